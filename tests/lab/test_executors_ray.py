"""The engine "ray" on a cluster of its own on this machine. Skipped where Ray is not installed."""

import os
import re
import signal
import threading
import time
from pathlib import Path

import pytest

from ctld_lab.executors import run_all
from ctld_lab.executors.on_ray import EngineError
from ctld_lab.records import RunDirectory

pytest.importorskip("ray")
pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # Ray's own
    pytest.mark.xdist_group("ray"),
]
FAKES = Path(__file__).parent / "fakes"


@pytest.fixture(autouse=True)
def _fakes(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(FAKES), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("CTLD_DATA", "/where/the data/lie")
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")  # else Ray leaves a token in the home directory


def prepare(root, *methods, **settings):
    runs = []
    for number, method in enumerate(methods):
        run = RunDirectory(root / f"{method}-{number}")
        run.prepare({"kind": "train", "role": "final", "method": method, "seed": number, "sleep": 0.01, **settings})
        runs.append(run)
    return runs


def test_states_and_records_are_those_of_the_other_engines(tmp_path):
    runs = prepare(tmp_path, "good", "failing", "dying", "good", steps=5)
    states = run_all([run.path for run in runs], engine="ray", workers=2, threads=1)
    assert list(states.values()) == ["done", "failed", "failed", "done"]
    assert runs[1].failure()["error"].startswith("ArithmeticError: seed 1 fails")
    assert runs[2].failure()["error"]
    assert runs[0].environment()["threads"] == 1
    assert runs[0].result()["data"] == "/where/the data/lie"


def test_a_signal_stops_at_a_checkpoint(tmp_path):
    runs = prepare(tmp_path, "good", "good", "good", steps=100_000)

    def interrupt():
        end = time.monotonic() + 60
        while sum((run.path / "pid").exists() for run in runs) < 2 and time.monotonic() < end:
            time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    states = run_all([run.path for run in runs], engine="ray", workers=2, threads=1)
    thread.join()
    assert sorted(states.values()) == ["interrupted", "interrupted", "waiting"]
    assert sum(run.checkpoint.exists() for run in runs) == 2
    assert list(tmp_path.glob(".stop*")) == []


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1", "127.0.0.1:port", "auto"])
def test_a_cluster_that_is_not_there_is_told_at_once(tmp_path, address):
    (run,) = prepare(tmp_path, "good", steps=5)
    start = time.monotonic()
    with pytest.raises(EngineError, match=re.escape(f"at {address}: ")):
        run_all([run.path], engine="ray", ray_address=address)
    assert time.monotonic() - start < 20
