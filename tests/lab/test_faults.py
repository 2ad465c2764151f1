"""Real faults: processes killed while they write, full disks, damaged checkpoints. Nothing is lost, and it is said."""

import os
import re
import resource
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import small_run
import torch

from ctld_lab import cli
from ctld_lab.checkpoints import load_checkpoint, previous
from ctld_lab.files import NoSpace
from ctld_lab.records import Appender, RunDirectory, read_json, write_json


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    small_run.install(monkeypatch.setattr)
    state = torch.get_rng_state()
    yield
    torch.set_rng_state(state)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """What a run comes to that nothing happens to."""
    with pytest.MonkeyPatch.context() as patch:
        small_run.install(patch.setattr)
        outcomes = {}
        for size in (10, 20_000):
            run = small_run.prepare(tmp_path_factory.mktemp("whole"), size=size)
            assert small_run.execute(run) == "done"
            outcomes[size] = small_run.outcome(run)
    return outcomes


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


# ---- killed while writing a checkpoint ----

# A process that forks others, each of which saves until it is killed. What it was told to have been saved must be there,
# or something newer.
SAVING = """
import os, random, signal, sys, time
from pathlib import Path
import torch
from ctld_lab.checkpoints import load_newest, save_checkpoint

torch.set_num_threads(1)
path = Path("checkpoint.safetensors")
told, tell = os.pipe()
os.set_blocking(told, False)
step = 0  # the newest that is known to have been saved

def save(step):
    save_checkpoint(path, {"step": step, "weight": torch.full((20_000,), float(step))})
    os.write(tell, b"%d\\n" % step)

def check():
    global step
    try:
        step = int(os.read(told, 2**16).split()[-1])
    except BlockingIOError:
        pass
    found = load_newest(path)
    if found is None:
        assert step == 0, step
        return
    state, note = found
    assert note in NOTES, note
    assert state["step"] in (step, step + 1), (state["step"], step)
    assert (state["weight"] == state["step"]).all()
    assert not list(Path().glob(".*")), list(Path().glob(".*"))
    step = state["step"]

NOTES = ("",)
"""

AT_RANDOM = """
generator, kills = random.Random(1), 0
while kills < 40 or step <= 10:  # a busy machine saves fewer between two kills
    kills += 1
    child = os.fork()
    if child == 0:
        while True:
            step += 1
            save(step)
    time.sleep(generator.uniform(0.0, 0.04))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    check()
print("saved", step)
"""

# Audit events come before the call that they announce; fsync has none. First with a first checkpoint, then with a second and a
# third, each on a file system with hard links and on one without.
BETWEEN_ANY_TWO_CALLS = """
CALLS = ("open", "os.link", "os.rename", "os.remove")
def die_before(count):
    def hook(event, arguments):
        nonlocal count
        if event in CALLS:
            count -= 1
            if count < 0:
                os.kill(os.getpid(), signal.SIGKILL)
    sys.addaudithook(hook)
    sync = os.fsync
    os.fsync = lambda handle: (hook("open", ()), sync(handle), hook("open", ()))

def refuse(*arguments, **options):
    raise PermissionError(1, "Operation not permitted")

link, home = os.link, os.getcwd()
MISSING = "checkpoint.safetensors is missing; the run went on from the one before it, checkpoint.previous.safetensors"
for kept in range(3):
    for os.link, NOTES in ((link, ("",)), (refuse, ("", MISSING))):
        os.chdir(home)
        os.mkdir(f"{kept}{os.link is link}")
        os.chdir(f"{kept}{os.link is link}")
        for step in range(1, kept + 1):
            save(step)
        step = kept
        for count in range(100):
            child = os.fork()
            if child == 0:
                die_before(count)
                save(step + 1)
                os._exit(0)
            survived = os.waitpid(child, 0)[1] == 0
            check()
            if survived:
                break
        print(count)
"""


def run_script(folder, *parts, argument=""):
    """In a process group of its own, of which nothing is left in the end."""
    modules = os.pathsep.join(filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH")]))
    process = subprocess.Popen(
        [sys.executable, "-c", "\n".join(parts), argument],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": modules},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, errors = process.communicate(timeout=120)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    assert process.returncode == 0, errors
    return out.split()


def test_killed_at_any_moment_a_good_checkpoint_is_there(tmp_path):
    word, count = run_script(tmp_path, SAVING, AT_RANDOM)
    assert word == "saved"
    assert int(count) > 10  # else it was killed before it saved anything


def test_killed_between_any_two_calls_a_good_checkpoint_is_there(tmp_path):
    deaths = list(map(int, run_script(tmp_path, SAVING, BETWEEN_ANY_TWO_CALLS)))
    assert len(deaths) == 6
    assert all(9 <= count < 99 for count in deaths)


# As above, but what is killed is a run that saves after each step. It gets longer each time, so that it comes to an end.
RUNNING = """
import os, random, signal, sys, time
from pathlib import Path
import torch
import small_run
from ctld_lab.records import RunDirectory

torch.set_num_threads(1)
small_run.install()
run = RunDirectory(Path(sys.argv[1]))
small_run.execute(small_run.prepare(Path("warm")))  # imports all that it needs, once
generator, kills = random.Random(2), 0
while run.result() is None:
    child = os.fork()
    if child == 0:
        os._exit(0 if small_run.execute(run) == "done" else 1)
    time.sleep(generator.uniform(0.0, 0.02 + 0.01 * kills))
    os.kill(child, signal.SIGKILL)
    status = os.waitpid(child, 0)[1]
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, run.failure()
    kills += os.WIFSIGNALED(status)
print("kills", kills)
"""


def test_a_run_that_is_killed_again_and_again_ends_in_the_same_bits(tmp_path, whole):
    run = small_run.prepare(tmp_path / "run", size=20_000)
    word, kills = run_script(tmp_path, RUNNING, argument=run.path)
    assert word == "kills"
    assert int(kills) >= 3
    assert small_run.execute(run) == "done"  # that cleans up, where the last kill came before
    assert small_run.outcome(run) == whole[20_000]
    assert run.notes() == []
    assert not [name for name in contents(run.path) if "checkpoint" in name]


# ---- a damaged checkpoint ----


def flip(path):
    content = bytearray(path.read_bytes())
    content[-3] ^= 16
    path.write_bytes(content)


def test_a_run_goes_back_to_the_checkpoint_before_and_says_so(tmp_path, whole, monkeypatch, capsys):
    run = small_run.prepare(tmp_path / "run")
    assert small_run.execute(run, small_run.StopAt(9)) == "interrupted"
    steps = [load_checkpoint(path)["stage_step"] for path in (previous(run.checkpoint), run.checkpoint)]
    assert steps[0] < steps[1]
    flip(run.checkpoint)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as leaving:
        cli.main(["resume", "run", "--engine", "local", "--threads", "1"])
    assert leaving.value.code == 0
    out = " ".join(capsys.readouterr().out.split())
    note = (
        "checkpoint.safetensors is damaged: its checksum is wrong (it is checkpoint.damaged.safetensors now); the run "
        f"went on from the one before it, checkpoint.previous.safetensors, at step {steps[0]}"
    )
    assert f"note run: {note}" in out
    assert run.notes() == [note]
    assert small_run.outcome(run) == whole[10]


def test_with_both_damaged_the_run_fails_and_names_both(tmp_path, whole):
    run = small_run.prepare(tmp_path / "run")
    small_run.execute(run, small_run.StopAt(9))
    for path in (run.checkpoint, previous(run.checkpoint)):
        flip(path)
    kept = contents(run.path)
    assert small_run.execute(run) == "failed"
    error = run.failure()["error"]
    assert str(run.path) in error
    assert "checkpoint.safetensors is damaged" in error
    assert "checkpoint.previous.safetensors is damaged" in error
    assert "remove both, and the run starts anew" in error
    assert {name: contents(run.path)[name] for name in kept if name != "environment.json"} == {
        name: content for name, content in kept.items() if name != "environment.json"
    }
    for path in (run.checkpoint, previous(run.checkpoint)):
        path.unlink()
    assert small_run.execute(run) == "done"
    assert small_run.outcome(run) == whole[10]


# ---- a full disk ----


@pytest.fixture
def disk(tmp_path):
    """A file system of one megabyte."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder], capture_output=True, text=True, timeout=20
    )
    if mounted.returncode:
        pytest.skip(f"no small disk can be mounted here: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True, timeout=20)


@contextmanager
def filled(disk, *, leave):
    """All but `leave` bytes are taken by another."""
    other = disk / "other"
    with other.open("wb", buffering=0) as file:
        try:
            while file.write(bytes(4096)):
                pass
        except OSError:
            pass
        file.truncate(file.tell() - leave)
    yield
    other.unlink()


def half_written(folder):
    return [path.name for path in folder.rglob("*") if "unfinished" in path.name]


def test_a_full_disk_costs_nothing_that_was_saved(disk, whole):
    run = small_run.prepare(disk / "run", size=20_000)
    assert small_run.execute(run, small_run.StopAt(4)) == "interrupted"
    before = contents(run.path)
    with filled(disk, leave=65_536):
        assert small_run.execute(run) == "failed"
        error = run.failure()["error"]
        assert f"{run.checkpoint} could not be written: No space left on device" in error
        told = re.search(r"\((.*) bytes to write, (.*) free on that disk\)", error)
        needed, free = (int(number.replace(",", "")) for number in told.groups())
        assert free <= 65_536 < 160_000 < needed
        assert "Make space" in error
        assert "the same command again" in error
        after = contents(run.path)
        for name in ("checkpoint.safetensors", "checkpoint.previous.safetensors", "config.json"):
            assert after[name] == before[name]
        assert not half_written(disk)
        assert small_run.execute(run) == "failed"  # and once more, with no worse end
    assert small_run.execute(run) == "done"
    assert small_run.outcome(run) == whole[20_000]
    assert run.failure() is None


def test_a_disk_too_full_for_the_failure_itself(disk, whole, monkeypatch, capsys):
    run = small_run.prepare(disk / "run", size=20_000)
    assert small_run.execute(run, small_run.StopAt(4)) == "interrupted"
    before = contents(run.path)
    monkeypatch.chdir(disk)
    with filled(disk, leave=0):
        with pytest.raises(SystemExit) as leaving:
            cli.main(["resume", "run", "--engine", "local", "--threads", "1"])
        out = " ".join(capsys.readouterr().out.split())
        assert leaving.value.code == 1
        assert "failed run: its failure could not be written to run, where 0 bytes are free; make space" in out
        assert "go on with: ctld resume run" in out
        assert contents(run.path) | {".lock": b""} == before | {".lock": b""}
        assert not half_written(disk)
    assert small_run.execute(run) == "done"
    assert small_run.outcome(run) == whole[20_000]


def test_a_study_on_a_full_disk_is_refused_with_the_file(disk, monkeypatch, capsys):
    monkeypatch.chdir(disk)
    with filled(disk, leave=0), pytest.raises(SystemExit) as leaving:
        cli.main(["run", "double-well", "--scale", "smoke", "--dir", "study", "--engine", "local"])
    assert leaving.value.code == 1
    said = capsys.readouterr().err
    assert "study/study.json could not be written: No space left on device" in said
    assert "Make space" in said
    assert not half_written(disk)


def test_lines_on_a_full_disk_are_whole_or_not_there(disk):
    run = RunDirectory(disk)
    lines = Appender(disk / "metrics.jsonl")
    lines.append({"step": 0})
    lines.flush()
    length = lines.length
    with filled(disk, leave=8192):
        lines.append({"step": 1, "text": "x" * 6000})
        with pytest.raises(NoSpace, match=r"metrics\.jsonl could not be written"):
            lines.append({"step": 2, "text": "y" * 20_000})
        assert (disk / "metrics.jsonl").stat().st_size == length == lines.length
    lines.append({"step": 1})
    lines.close()
    assert [line["step"] for line in run.metrics()] == [0, 1]


@contextmanager
def file_size_limit(size):
    """Of the kernel; needs no rights. Python ignores the signal that comes with it."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_limit_on_the_size_of_files(tmp_path, whole):
    run = small_run.prepare(tmp_path / "run", size=20_000)
    assert small_run.execute(run, small_run.StopAt(4)) == "interrupted"
    before = contents(run.path)
    with file_size_limit(100_000):
        assert small_run.execute(run) == "failed"
    assert f"{run.checkpoint} could not be written: File too large" in run.failure()["error"]
    assert "raise the quota or limit" in run.failure()["error"]
    after = contents(run.path)
    for path in (run.checkpoint, previous(run.checkpoint)):
        assert after[path.name] == before[path.name]
    assert not half_written(tmp_path)
    assert small_run.execute(run) == "done"
    assert small_run.outcome(run) == whole[20_000]


def test_a_whole_file_on_a_full_disk_stays_as_it_was(disk):
    write_json(disk / "a.json", {"old": 1})
    with filled(disk, leave=0), pytest.raises(NoSpace, match=r"a\.json could not be written: No space.*What was saved"):
        write_json(disk / "a.json", {"new": "x" * 10_000})
    assert read_json(disk / "a.json") == {"old": 1}
    assert not half_written(disk)
    assert shutil.disk_usage(disk).free > 900_000
