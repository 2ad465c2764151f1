"""`execute`: carry out the run that a directory describes, whatever its kind, and leave its result or its failure there.

Two processes that write into one directory would spoil it, so a run is locked. It matters for the seconds in which the workers
of a killed command still finish their step, and for `ctld resume` of a run that is live.
"""

import importlib
import os
import platform
import subprocess
import time
import traceback
from contextlib import nullcontext
from functools import lru_cache
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from ctld_lab.control import Control, Interrupted
from ctld_lab.records import RecordError, RunDirectory

# config["kind"] → the module whose `run(directory, config, control)` does it and returns the result. Imported when needed.
KINDS = {
    "train": "ctld_lab.train",
    "timing": "ctld_lab.timing",
    "double_well": "ctld_lab.sampling.double_well",
    "theorem": "ctld_lab.sampling.theorem",
    "tempering": "ctld_lab.sampling.temperings",
}


OWN = "CTLD_STUDY"  # as in `studies`, which bring torch
LOCK = ".run.lock"
MOST_THREADS = 1024
PATIENCE = 90.0  # seconds; longer than orphans live (`executors.pool.GRACE`)


def execute(path: Path, *, threads: int, control: Control) -> str:
    """Returns the state in which the run is left: "done", "failed", "interrupted", or "waiting" if another process keeps it."""
    asked_already = control.stopping
    if asked_already:  # a run that has not begun is not interrupted
        control.announce(state="waiting")
        return "waiting"
    lock = FileLock(path / LOCK)
    try:
        lock.acquire(timeout=PATIENCE, poll_interval=0.2, cancel_check=lambda: control.stopping)
    except Timeout:
        control.announce(state="waiting")
        return "waiting"
    except OSError as error:
        return _failed(RunDirectory(path), error, control)
    try:
        control.executing = True
        return _execute(path, threads=threads, control=control)
    except KeyboardInterrupt:
        if not control.stopping:
            raise
        return "interrupted"
    finally:
        control.executing = False
        lock.release()


def _execute(path: Path, *, threads: int, control: Control) -> str:
    """Never raises for a run that fails.

    A run that is done is left alone. One that was begun on another number of threads keeps that number, since sums, and so
    the last bits of everything, depend on it. Where there are other ranks, they `follow`.
    """
    directory = RunDirectory(path)
    try:
        if directory.result() is not None:
            control.announce(state="done")
        else:
            config = directory.config()
            if config.get("kind") not in KINDS:
                raise RecordError(f"{path} is of kind {config.get('kind')!r}; known: {', '.join(KINDS)}")
            threads = _begin(directory, threads, control)
            control.announce(threads=threads)
            result = _run(directory, control)
            if result is None:
                return "interrupted"
            directory.write("result.json", result)
        _clean_up(path)
    except Exception as error:
        return _failed(directory, error, control)
    return "done"


def _failed(directory: RunDirectory, error: Exception, control: Control) -> str:
    """The other runs go on; what went wrong is kept beside the run, and the next attempt starts from its checkpoint."""
    control.fail(directory, _describe(error))
    control.announce(state="failed")
    return "failed"


def follow(path: Path, *, control: Control) -> str:
    """`execute`, of a rank that is not the first."""
    assert control.ranks is not None
    directory = RunDirectory(path)
    try:
        word = control.ranks.heard()
        if "state" in word:
            return str(word["state"])
        _set_threads(int(word["threads"]))
        result = _run(directory, control)
    except Exception as error:
        control.fail(directory, _describe(error))
        return "failed"
    return "interrupted" if result is None else "done"


def _begin(directory: RunDirectory, threads: int, control: Control) -> int:
    """Write down in which environment; returns the number of threads."""
    before = directory.environment()
    ranks = control.ranks.size if control.ranks else 1
    if ranks == before.get("ranks", 1):  # on another number of ranks the last bits differ anyway
        threads = before.get("threads", threads)
        if not isinstance(threads, int) or not 1 <= threads <= MOST_THREADS:
            raise RecordError(
                f"{directory.path / 'environment.json'} says {str(threads)[:40]!r} of the number of threads; remove it and run "
                "again"
            )
    _set_threads(threads)
    (directory.path / "failure.json").unlink(missing_ok=True)  # first: a full disk below is a failure of its own
    directory.write("environment.json", _attempt(before, environment(threads) | {"ranks": ranks}))
    return threads


def _run(directory: RunDirectory, control: Control) -> dict[str, Any] | None:
    """What comes out, together with other ranks if there are any; None if it was interrupted."""
    with control.ranks.joined() if control.ranks else nullcontext():
        # Only now: a rank that cannot read it must be able to tell the others why it leaves.
        config = directory.config()
        if OWN in os.environ:
            importlib.import_module("ctld_lab.studies").load(Path(os.environ[OWN]))
        module = importlib.import_module(KINDS[config["kind"]])
        try:
            result: dict[str, Any] = module.run(directory, config, control)
        except Interrupted:
            return None
        return result


def _describe(error: Exception) -> dict[str, Any]:
    return failure(f"{type(error).__name__}: {error}", traceback.format_exc())


def failure(error: str, details: str = "") -> dict[str, Any]:
    """What failure.json holds."""
    return {"error": error, "traceback": details, "time": _now()}


def _attempt(before: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """The environment that the run began in; where it goes on in another, that is kept beside it."""
    if not before:
        return now | {"attempts": 1}
    kept = before | {"attempts": int(before.get("attempts", 0)) + 1}
    # A record of before ranks were counted was made by one.
    if any(now.get(key) != ({"ranks": 1} | before).get(key) for key in ("versions", "commit", "dirty", "ranks")):
        kept["went_on_in"] = [*before.get("went_on_in", ()), now]
    return kept


def _clean_up(path: Path) -> None:
    """What only a run that is not done has use for; also what a killed writer left half written."""
    for used in (
        path / "progress.json",
        path / LOCK,
        *path.glob("checkpoint*.safetensors"),
        *path.glob(".*.unfinished"),
    ):
        used.unlink(missing_ok=True)


def _set_threads(threads: int) -> None:
    import torch

    torch.set_num_threads(threads)


def environment(threads: int) -> dict[str, Any]:
    """Versions, commit and machine."""
    import numpy as np
    import torch

    import ctld

    commit, dirty = _commit()
    return {
        "versions": {
            "ctld": ctld.__version__,
            "torch": torch.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
        "commit": commit,
        "dirty": dirty,
        "machine": f"{platform.system()} {platform.machine()}, {_processor()}",
        "cores": os.cpu_count(),
        "threads": threads,
        "started": _now(),
    }


@lru_cache(maxsize=1)
def _commit() -> tuple[str | None, bool | None]:
    """Of the source that this process runs, where it is a clone; a later commit does not change what was imported."""
    here = Path(__file__).parent

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", "-C", here, *arguments], capture_output=True, text=True, timeout=20, check=True)
        return done.stdout.strip()

    try:
        git("ls-files", "--error-unmatch", __file__)  # else it is installed inside somebody else's repository
        return git("rev-parse", "HEAD"), bool(
            git("status", "--porcelain", "--untracked-files=no", "--", str(here.parent))
        )
    except (OSError, subprocess.SubprocessError):
        return None, None


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or "unknown processor"
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown processor")


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
