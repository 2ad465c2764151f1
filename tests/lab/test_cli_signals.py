"""Real signals to real processes: Ctrl-C, a second one, kill -9 of the command, and two commands at once."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ctld_lab.records import RunDirectory

FAKES = Path(__file__).parent / "fakes"


@pytest.fixture
def begin(tmp_path, monkeypatch):
    """Starts `ctld run fake` as a shell would, as a process group of its own; whatever is left of it ends with the test."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(FAKES), os.environ.get("PYTHONPATH", "")]))
    started = []

    def start(*arguments, live):
        words = [sys.executable, "-m", "ctld_lab", "run", "fake", "--dir", "study", "--no-report", *arguments]
        command = subprocess.Popen(
            words, cwd=tmp_path, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
        )
        started.append(command)
        wait_for(lambda: len(workers(tmp_path)) >= live)
        return command

    yield start
    for command in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(command.pid, signal.SIGKILL)
        command.communicate()


def workers(root):
    """Processes that have said so in the directory of a run."""
    said = [path.read_text() for path in (root / "study" / "runs").glob("*/pid")]
    return {int(text) for text in said if text}


def wait_for(condition, seconds=15.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


def alive(pid):
    """Zombies, whose parent has not looked yet, are not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks at processes as Linux shows them")


def test_ctrl_c_saves_and_the_same_command_goes_on(begin, tmp_path):
    """The whole group has the signal, as from a terminal."""
    command = begin("--scale", "paper", "--seeds", "1", "--workers", "2", live=2)
    os.killpg(command.pid, signal.SIGINT)
    out, _ = command.communicate(timeout=15)
    assert command.returncode == 130
    assert "interrupted; go on with: ctld run fake --dir study --no-report --scale paper --seeds 1 --workers 2" in out
    assert "Traceback" not in out
    assert not any(map(alive, workers(tmp_path)))
    runs = [RunDirectory(tmp_path / "study" / "runs" / name) for name in ("tune-good", "tune-better")]
    for run in runs:
        assert int(run.checkpoint.read_text()) > 0
        run.checkpoint.write_text("99999")  # the last step of all
    command = begin("--scale", "paper", "--seeds", "1", "--workers", "2", live=2)
    out, _ = command.communicate(timeout=30)
    assert command.returncode == 0
    assert [run.result()["started_at"] for run in runs] == [99_999] * 2
    assert "good-0: 10 steps" in out


@pytest.mark.parametrize("engine", ["local", "pool"])
def test_a_second_ctrl_c_kills(begin, tmp_path, engine):
    command = begin("--scale", "paper", "--methods", "stubborn", "--engine", engine, live=1)
    os.killpg(command.pid, signal.SIGINT)
    time.sleep(0.5)
    assert command.poll() is None
    os.killpg(command.pid, signal.SIGINT)
    assert command.wait(timeout=10) == -signal.SIGINT
    wait_for(lambda: not any(map(alive, workers(tmp_path))))


@pytest.mark.parametrize("engine", ["local", "pool"])
@pytest.mark.parametrize("whole_group", [True, False], ids=["the group", "the command alone"])
def test_ctrl_c_before_the_first_step_ends_at_once(begin, tmp_path, engine, whole_group):
    """Nothing is there to be saved, and an import may take a while."""
    command = begin("--scale", "paper", "--methods", "slow", "--engine", engine, live=1)
    began = time.monotonic()
    (os.killpg if whole_group else os.kill)(command.pid, signal.SIGINT)
    out, _ = command.communicate(timeout=15)
    assert time.monotonic() - began < 5.0  # on a machine with other things to do
    assert command.returncode == 130
    assert "interrupted; go on with: ctld run fake" in out
    assert "Traceback" not in out
    assert not any(map(alive, workers(tmp_path)))


def test_workers_do_not_outlive_a_killed_command(begin, tmp_path):
    """And they save what they have; no failure is recorded, for nothing failed."""
    command = begin("--scale", "paper", "--workers", "2", live=2)
    command.kill()
    command.wait(timeout=10)
    wait_for(lambda: not any(map(alive, workers(tmp_path))), seconds=5.0)
    for name in ("tune-good", "tune-better"):
        assert RunDirectory(tmp_path / "study" / "runs" / name).state() == "started"
        assert (tmp_path / "study" / "runs" / name / "checkpoint.safetensors").exists()


def test_the_lock_names_its_holder_and_goes_with_it(begin, tmp_path):
    command = begin("--scale", "paper", "--workers", "1", live=1)
    words = [sys.executable, "-m", "ctld_lab", "run", "fake", "--scale", "paper", "--dir", "study"]
    second = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert second.returncode == 1
    assert second.stderr.startswith(f"ctld: another command, process {command.pid}, is at work in study;")
    assert second.stdout == ""
    command.kill()
    command.wait(timeout=10)
    begin("--scale", "paper", "--workers", "1", live=1)
