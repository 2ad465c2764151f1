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
from contextlib import suppress
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
MEMORY = {
    "MALLOC_MMAP_THRESHOLD_": "1073741824",
    "MALLOC_TRIM_THRESHOLD_": "4294967296",
    "MALLOC_TOP_PAD_": "268435456",
}
"""Variables that have glibc keep the pages that a step frees for the next one, which makes an LSTM's steps a third shorter."""


def execute(path: Path, *, threads: int, control: Control) -> str:
    """Return the state in which the run is left: "done", "failed", "interrupted", or "waiting" if another process keeps it."""
    asked_already = control.stopping
    if asked_already:  # a run that has not begun is not interrupted
        return "waiting"
    lock = FileLock(path / LOCK)
    try:
        lock.acquire(timeout=PATIENCE, poll_interval=0.2, cancel_check=lambda: control.stopping)
    except Timeout:
        return "waiting"
    except OSError as error:
        return _failed(RunDirectory(path), error)
    try:
        control.executing = True
        return _execute(RunDirectory(path), threads, control)
    except KeyboardInterrupt:
        if not control.stopping:
            raise
        return "interrupted"
    finally:
        control.executing = False
        lock.release()


def _execute(directory: RunDirectory, threads: int, control: Control) -> str:
    """Return the state, also of a run that fails: the others go on, and the next attempt starts from its checkpoint."""
    try:
        if directory.result() is None:
            config = directory.config()
            if config.get("kind") not in KINDS:
                raise RecordError(f"{directory.path} is of kind {config.get('kind')!r}; known: {', '.join(KINDS)}")
            _begin(directory, threads)
            if OWN in os.environ:
                importlib.import_module("ctld_lab.studies").load(Path(os.environ[OWN]))
            module = importlib.import_module(KINDS[config["kind"]])
            directory.write("result.json", module.run(directory, config, control))
        _clean_up(directory.path)
    except Interrupted:
        return "interrupted"
    except Exception as error:
        return _failed(directory, error)
    return "done"


def _failed(directory: RunDirectory, error: Exception) -> str:
    with suppress(OSError):  # a full disk may be what went wrong
        directory.write("failure.json", _failure(f"{type(error).__name__}: {error}", traceback.format_exc()))
    return "failed"


def lost(path: Path, cause: str, control: Control, details: str = "") -> str:
    """The state of a run whose process died under it: failed, unless it was done or was to be stopped anyway."""
    directory = RunDirectory(path)
    if directory.result() is not None:
        return "done"
    if control.stopping:
        return "interrupted"
    with suppress(OSError):  # a full disk must not stop the others
        directory.write("failure.json", _failure(cause, details))
    return "failed"


def _begin(directory: RunDirectory, threads: int) -> None:
    """Write down in which environment, and set the number of threads.

    A run that was begun on another number of threads keeps that number: sums, and so the last bits of everything, depend on it.
    """
    before = directory.environment()
    threads = before.get("threads", threads)
    if not isinstance(threads, int) or not 1 <= threads <= MOST_THREADS:
        raise RecordError(
            f"{directory.path / 'environment.json'} says {str(threads)[:40]!r} of the number of threads; "
            "remove it and run again"
        )
    _set_threads(threads)
    (directory.path / "failure.json").unlink(missing_ok=True)  # first: a full disk below is a failure of its own
    directory.write("environment.json", _attempt(before, environment(threads)))


def _failure(error: str, details: str = "") -> dict[str, Any]:
    """Content of failure.json."""
    return {"error": error, "traceback": details, "time": _now()}


def _attempt(before: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """The environment that the run began in; where it goes on in another, that is kept beside it."""
    if not before:
        return now | {"attempts": 1}
    kept = before | {"attempts": int(before.get("attempts", 0)) + 1}
    if any(now.get(key) != before.get(key) for key in ("versions", "commit", "dirty")):
        kept["went_on_in"] = [*before.get("went_on_in", ()), now]
    return kept


def _clean_up(path: Path) -> None:
    """Remove what only an unfinished run has use for, and what a killed writer left half written."""
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
    """Commit of the source that this process runs, where it is a clone; a later commit does not change what was imported."""
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
