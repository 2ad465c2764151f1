"""Run a study as cells: one JSON file each, resumed after any stop, shared by several processes.

A cell has a name, the facts that decide its numbers, and a generator that fills a dictionary part by part:

    def work(found):                    # what the file holds already, {} at first
        if "tuning" not in found:
            found["tuning"] = tune()
            yield "tuning"              # the file is written here, and the word is printed

A study gives its cells by scale, packs complete cells into CSV tables, and reads findings from these tables:

    python research/traps.py --scale smoke             compute what is missing in runs/traps-smoke, then print the findings
    python research/traps.py --scale laptop --status   say how far it is
    python research/traps.py --scale laptop --publish  replace research/traps/results and everything rendered from it
"""

import argparse
import fnmatch
import json
import math
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from filelock import FileLock, Timeout

from ctld_lab.data import DataError
from render import RESEARCH, publish, text_of, write

Found = dict[str, Any]


@dataclass(frozen=True)
class Cell:
    """One unit of work. `name` may have slashes; `facts` are stored, and a file with other facts is refused."""

    name: str
    facts: Mapping[str, Any]
    work: Callable[[Found], Iterator[str]]
    needs: Sequence[str] = ()
    """Cells that must be complete before this one begins."""


@dataclass(frozen=True)
class Study:
    """A study: its cells, and the way from cells to tables to findings."""

    name: str
    scales: Mapping[str, Callable[[Path], Sequence[Cell]]]
    """Scale → the cells in a directory, in the order of computation."""
    pack: Callable[[Path, Path], None]
    """Write the CSV tables of the complete cells of a directory into another one."""
    findings: Callable[[Path], dict[str, Any]]
    """Read the findings from the CSV tables in a directory; `render` says what they look like."""


def read(directory: Path, name: str) -> Found:
    """Return what the file of a cell holds; an empty dictionary if there is none."""
    path = directory / f"{name}.json"
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise SystemExit(f"{path} must hold a JSON object. Remove it and run again.")
    return found


def complete(directory: Path, name: str) -> bool:
    return bool(read(directory, name).get("done"))


def packed(directory: Path) -> Iterator[tuple[str, Found]]:
    """Yield name and content of every complete cell in a directory, in the order of their names."""
    for path in sorted(directory.rglob("*.json")):
        name = path.relative_to(directory).with_suffix("").as_posix()
        if (found := read(directory, name)).get("done"):
            yield name, found


def origins(directory: Path) -> list[dict[str, Any]]:
    """Return a row for each environment in which a cell was computed: commit, machine, versions, command."""
    rows = []
    for name, found in packed(directory):
        for stamp in found["environments"]:
            versions = {f"{package} version": version for package, version in stamp["versions"].items()}
            rows.append({"cell": name} | {key: value for key, value in stamp.items() if key != "versions"} | versions)
    return rows


def read_csv(results: Path, name: str, dtype: Any = None) -> pd.DataFrame:
    """Return a stored table; an empty one if there is none."""
    path = results / f"{name}.csv"
    return pd.read_csv(path, dtype=dtype) if path.exists() and path.stat().st_size > 1 else pd.DataFrame()


def run(directory: Path, cells: Sequence[Cell], say: Callable[[str], None] = print) -> None:
    """Compute what is missing, one cell after another; cells that another process holds are left to it."""
    stamp = environment()
    for place, cell in enumerate(cells, start=1):
        path = directory / f"{cell.name}.json"
        facts = plain(cell.facts)
        with _alone(path) as free:
            found = read(directory, cell.name)
            if any(found.get(key, value) != value for key, value in facts.items()):
                held = {key: found.get(key) for key in facts}
                raise SystemExit(f"{path} must be about {facts}, got {held}. Give another --dir.")
            if found.get("done"):
                continue
            waits = [name for name in cell.needs if not complete(directory, name)]
            if waits or not free:
                reason = f"waits for {', '.join(waits)}; run again" if waits else "another process is at it"
                say(f"{cell.name}: {reason}")
                continue
            found |= facts
            stamps = found.setdefault("environments", [])
            if not stamps or {**stamps[-1], "started": ""} != {**stamp, "started": ""}:
                stamps.append(stamp)
            began = time.perf_counter()
            for part in cell.work(found):
                seconds = time.perf_counter() - began
                found["seconds"] = round(found.get("seconds", 0.0) + seconds, 1)
                _save(path, found)
                say(f"[{place}/{len(cells)}] {cell.name}: {part}, {seconds:.1f} s")
                began = time.perf_counter()
            _save(path, found | {"done": True})


def status(directory: Path, cells: Sequence[Cell]) -> str:
    """Return a line for each cell that is not complete, and how many are."""
    lines, done = [], 0
    for cell in cells:
        found = read(directory, cell.name)
        done += bool(found.get("done"))
        if not found.get("done"):
            with _alone(directory / f"{cell.name}.json", make=False) as free:
                state = "running" if not free else "begun" if found else "not begun"
            lines.append(f"{cell.name}: {state}, {found.get('seconds', 0.0):.0f} s so far")
    return "\n".join([*lines, f"{done} of {len(cells)} cells are complete in {directory}"])


@contextmanager
def _alone(path: Path, make: bool = True) -> Iterator[bool]:
    """Hold the cell; False if another process does. The kernel frees it however that process dies."""
    lock = path.with_name(f".{path.name}.lock")
    if not make and not lock.exists():
        yield True
        return
    lock.parent.mkdir(parents=True, exist_ok=True)
    held = FileLock(lock)
    try:
        held.acquire(timeout=0.25)  # `--status` of another process may look at it just now
    except Timeout:
        yield False
        return
    try:
        yield True
    finally:
        held.release()


def _save(path: Path, found: Found) -> None:
    write(path, json.dumps(plain(found), separators=(",", ":"), allow_nan=False) + "\n")


def plain(value: Any) -> Any:
    """Return `value` as JSON has it: numbers that are not finite become "nan", "inf" or "-inf", tuples lists."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value


def environment() -> dict[str, Any]:
    """Return versions, commit, machine and command: what a number may depend on."""
    import torch

    import ctld

    def git(*words: str) -> str | None:
        try:
            done = subprocess.run(
                ["git", "-C", RESEARCH, *words], capture_output=True, text=True, check=True, timeout=20
            )
        except (OSError, subprocess.SubprocessError):
            return None
        return done.stdout.strip()

    processor = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    names = [line.split(":", 1)[1].strip() for line in processor.splitlines() if line.startswith("model name")]
    return {
        "versions": {"ctld": ctld.__version__, "torch": torch.__version__, "python": platform.python_version()},
        "commit": git("rev-parse", "HEAD"),
        "dirty": bool(git("status", "--porcelain", "--untracked-files=no", "--", "src", "research")),
        "machine": f"{platform.system()} {platform.machine()}, {(names or [platform.processor()])[0]}",
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "command": " ".join(["python", *sys.argv]),
    }


def main(study: Study, arguments: Sequence[str] | None = None) -> None:
    """Carry out the command line of a study."""
    parser = argparse.ArgumentParser(prog=f"python research/{study.name}.py", description=f"The study {study.name}.")
    parser.add_argument("--scale", choices=[*study.scales], default="laptop", help="how large; default: laptop")
    parser.add_argument("--dir", type=Path, help=f"where the cells go; default: runs/{study.name}-SCALE")
    parser.add_argument("--only", nargs="+", metavar="PATTERN", help='names of cells, such as "rbf8/*"; default: all')
    parser.add_argument("--status", action="store_true", help="say how far it is, and compute nothing")
    parser.add_argument(
        "--publish", action="store_true", help="replace the stored results and what is rendered from them"
    )
    given = parser.parse_args(arguments)
    directory = given.dir or RESEARCH.parent / "runs" / f"{study.name}-{given.scale}"
    cells = study.scales[given.scale](directory)
    names = [cell.name for cell in cells]
    for pattern in given.only or ():
        if not fnmatch.filter(names, pattern):
            parser.error(f"--only must match one of {', '.join(names)}, got {pattern}")
    chosen = [cell for cell in cells if any(fnmatch.fnmatch(cell.name, pattern) for pattern in given.only or "*")]
    if given.status:
        print(status(directory, chosen))
        return
    import torch

    torch.set_num_threads(1)  # many small tensors: threads would wait for each other, and sums would differ
    try:
        run(directory, chosen, say=lambda line: print(line, flush=True))
    except DataError as error:
        raise SystemExit(str(error)) from None
    results = directory / "results"
    study.pack(directory, results)
    if missing := [name for name in names if not complete(directory, name)]:
        print(f"{len(missing)} of {len(names)} cells are missing: the findings come when all are there")
        return
    print(text_of(study.findings(results)))
    if given.publish:
        publish(study.name, results)
