"""Engines leave the same states and records, whatever happens to the processes; progress is what the files say."""

import fcntl
import io
import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest
from rich.console import Console

from ctld_lab import jobs
from ctld_lab.commands.display import Display, duration, total_steps
from ctld_lab.control import Control
from ctld_lab.executors import pool, run_all
from ctld_lab.executors.on_ray import EngineError
from ctld_lab.records import RunDirectory

FAKES = Path(__file__).parent / "fakes"
ENDLESS = 100_000  # steps


@pytest.fixture(autouse=True)
def _fakes(monkeypatch):
    """Here, and through the environment in spawned workers."""
    monkeypatch.syspath_prepend(FAKES)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(FAKES), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setitem(jobs.KINDS, "train", "fake_kind")
    monkeypatch.setattr(jobs, "_set_threads", lambda threads: None)
    monkeypatch.setattr(jobs, "environment", lambda threads: {"threads": threads})


def prepare(root, *methods, steps=5, sleep=0.0):
    paths = []
    for number, method in enumerate(methods):
        run = RunDirectory(root / f"{method}-{number}")
        run.prepare(
            {"kind": "train", "role": "final", "method": method, "seed": number, "steps": steps, "sleep": sleep}
        )
        paths.append(run.path)
    return paths


def wait_for(condition, seconds=10.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


def in_background(act):
    thread = threading.Thread(target=act)
    thread.start()
    return thread


@pytest.mark.parametrize(("engine", "workers"), [("local", 1), ("pool", 2)])
def test_a_failing_run_does_not_stop_the_others(tmp_path, engine, workers):
    paths = prepare(tmp_path, "good", "failing", "better")
    states = run_all(paths, engine=engine, workers=workers, threads=3)
    assert list(states.values()) == ["done", "failed", "done"]
    failure = RunDirectory(paths[1]).failure()
    assert failure["error"].startswith("ArithmeticError: seed 1 fails")
    assert "fake_kind" in failure["traceback"]
    assert RunDirectory(paths[0]).environment()["threads"] == 3


@pytest.mark.parametrize("engine", ["local", "pool"])
def test_no_runs(engine):
    assert run_all([], engine=engine) == {}


@pytest.mark.parametrize(
    ("options", "word"),
    [({"engine": "cloud"}, "local, pool, ray"), ({"workers": 0}, "workers"), ({"threads": 0}, "threads")],
)
def test_refuses_nonsense(options, word):
    with pytest.raises(ValueError, match=word):
        run_all([], **options)


def test_threads_share_the_cores(tmp_path, monkeypatch):
    monkeypatch.setattr("ctld_lab.executors.cores", lambda: 8)
    (path,) = prepare(tmp_path, "good")
    run_all([path], engine="pool", workers=3)
    assert RunDirectory(path).environment()["threads"] == 2


@pytest.mark.parametrize(
    ("engine", "workers", "number"),
    [("local", 1, signal.SIGINT), ("pool", 2, signal.SIGINT), ("pool", 2, signal.SIGTERM)],
)
def test_a_signal_stops_at_a_checkpoint(tmp_path, engine, workers, number):
    """To the parent alone: it hands the wish on. What was not begun waits, and all of it goes on later."""
    paths = prepare(tmp_path, "good", "better", "good", steps=ENDLESS, sleep=0.01)
    handler = signal.getsignal(number)

    def interrupt():
        wait_for(lambda: all((path / "pid").exists() for path in paths[:workers]))
        os.kill(os.getpid(), number)

    thread = in_background(interrupt)
    states = run_all(paths, engine=engine, workers=workers)
    thread.join()
    assert list(states.values()) == ["interrupted"] * workers + ["waiting"] * (3 - workers)
    assert signal.getsignal(number) == handler
    assert not any((path / "failure.json").exists() for path in paths)
    for path in paths[:workers]:
        assert int(RunDirectory(path).checkpoint.read_text()) > 0


def test_a_killed_worker_costs_one_run(tmp_path):
    """And not for good: it can be resumed."""
    paths = [*prepare(tmp_path, "good", steps=ENDLESS, sleep=0.01), *prepare(tmp_path, "better", "better")]

    def kill():
        wait_for(lambda: (paths[0] / "pid").exists() and (paths[0] / "pid").read_text())
        os.kill(int((paths[0] / "pid").read_text()), signal.SIGKILL)

    thread = in_background(kill)
    states = run_all(paths, engine="pool", workers=1)
    thread.join()
    assert list(states.values()) == ["failed", "done", "done"]
    error = RunDirectory(paths[0]).failure()["error"]
    assert "killed by signal 9" in error
    assert "memory" in error
    assert "resumed" in error
    RunDirectory(paths[0]).checkpoint.write_text(str(ENDLESS - 1))
    assert run_all(paths[:1], engine="local") == {paths[0]: "done"}
    assert RunDirectory(paths[0]).failure() is None


def test_workers_keep_memory_unless_the_user_says_otherwise(tmp_path, monkeypatch):
    monkeypatch.setenv("MALLOC_TOP_PAD_", "4096")
    (path,) = prepare(tmp_path, "good")
    assert run_all([path], engine="pool") == {path: "done"}
    found = RunDirectory(path).result()["memory"]
    assert found == jobs.MEMORY | {"MALLOC_TOP_PAD_": "4096"}
    assert "MALLOC_MMAP_THRESHOLD_" not in os.environ


def test_what_is_said_of_the_dead():
    assert "exit code 3" in pool.exit_reason(3)
    assert "signal 11;" in pool.exit_reason(-signal.SIGSEGV)


def test_a_run_that_another_process_has_is_left_alone(tmp_path, monkeypatch):
    (path,) = prepare(tmp_path, "good")
    monkeypatch.setattr(jobs, "PATIENCE", 0.3)
    with (path / jobs.LOCK).open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert run_all([path], engine="local") == {path: "waiting"}
        assert not (path / "environment.json").exists()
    assert run_all([path], engine="local") == {path: "done"}


def test_a_directory_that_is_not_there_fails(tmp_path):
    (path,) = prepare(tmp_path, "good")
    (path / "config.json").unlink()
    assert run_all([path], engine="local") == {path: "failed"}
    assert "config.json does not exist" in RunDirectory(path).failure()["error"]


def test_ray_that_is_not_installed(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(EngineError, match=r'pip install "ctld\[distributed\]"'):
        run_all(prepare(tmp_path, "good"), engine="ray")


# ---- progress ----


@pytest.mark.parametrize(
    ("config", "steps"), [({"steps": [3, 4]}, 7), ({"steps": 5}, 5), ({"rounds": 9}, 9), ({}, None)]
)
def test_total_steps(config, steps):
    assert total_steps(config) == steps


@pytest.mark.parametrize(("seconds", "text"), [(1.234, "1.23 s"), (150, "2 min"), (36_000, "10.0 h")])
def test_duration(seconds, text):
    assert duration(seconds) == text


@pytest.mark.parametrize("terminal", [True, False])
def test_display(tmp_path, terminal):
    """A bar on a terminal; everywhere a line for each run that has ended."""
    paths = prepare(tmp_path, "good", "failing", steps=60, sleep=0.01)
    console = Console(file=io.StringIO(), force_terminal=terminal, width=100)
    control = Control()
    with Display(paths, console, title="fake", control=control) as display:
        run_all(paths, engine="local", control=control, on_end=display.ended)
        control.stopping = True
    text = console.file.getvalue()
    assert ("steps/s" in text) == terminal
    assert "good-0: 60 steps" in text
    assert "failed  failing-1: ArithmeticError: seed 1 fails\n" in text
    assert "stopping after a checkpoint" in text
    assert "\x1b[?25l" not in text.rpartition("\x1b[?25h")[2], "the cursor must be there should we be killed"
