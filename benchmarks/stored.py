"""What every stored result says besides its numbers: the command, the commit, the machine. And tables of it."""

import argparse
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch

import ctld
from ctld.stepping import native

ROOT = Path(__file__).parents[1]
FOLDER = Path(__file__).parent / "results"
QUICK = 0.08

Result = dict[str, Any]


def heading(what: str, command: str, *, effort: float) -> Result:
    """The first entries of a result."""
    return {
        "what": what,
        "command": command,
        "effort": effort,
        "commit": commit(),
        "machine": machine(),
    }


def machine() -> dict[str, Any]:
    """Its kind, nothing by which one could tell it from others of the kind."""
    library = native.load()
    return {
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "kernels": native.LEVELS[library.level] if library is not None else "none, by torch",
        "torch_threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "ctld": ctld.__version__,
        "load_before": load(),
    }


def load() -> float:
    """Of the machine, over the last minute: how many threads want a core."""
    return round(os.getloadavg()[0], 2)


def cpu_model() -> str:
    information = Path("/proc/cpuinfo")
    if information.exists():
        for line in information.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def commit() -> str | None:
    """Of the code that is measured, with a plus sign if src is not as committed; None outside a repository."""

    def git(*arguments: str) -> subprocess.CompletedProcess[str]:
        # Without optional locks it changes nothing, and does not disturb another git at work.
        command = ["git", "--no-optional-locks", *arguments]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)

    try:
        found = git("rev-parse", "HEAD")
        if found.returncode:
            return None
        return found.stdout.strip() + ("+" if git("status", "--porcelain", "--", "src").stdout.strip() else "")
    except OSError:
        return None


def store(result: Result, path: Path) -> None:
    """All of it or nothing: a reader never sees half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".draft")
    draft.write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    draft.replace(path)


def read(name: str, folder: Path = FOLDER) -> Result | None:
    """A stored result, or None if there is none yet."""
    path = folder / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    """In Markdown."""
    names = list(header)
    lines = [names, ["---"] * len(names), *(list(row) for row in rows)]
    return [f"| {' | '.join(line)} |" for line in lines]


def where(result: Result) -> list[str]:
    """On what it was measured, as a sentence."""
    kind, found = result["machine"], result["commit"]
    of = f"commit {found[:10]}{'+ (with changes)' if found.endswith('+') else ''}" if found else "no commit"
    short = "" if result["effort"] >= 1 else f" A short run ({result['effort']:g} of the time), so only a sketch."
    return [
        f"{kind['cpu']}, {kind['cores']} cores, kernels: {kind['kernels']}, torch {kind['torch']} on "
        f"{kind['torch_threads']} threads, load {kind['load_before']} before and {kind['load_after']} after, {of}; "
        f"`{result['command']}`.{short}"
    ]


def parser(description: str) -> argparse.ArgumentParser:
    """The options that all of them have."""
    made = argparse.ArgumentParser(description=description)
    made.add_argument("--effort", type=float, default=1.0, help="of the usual time; more makes intervals narrower")
    made.add_argument("--quick", action="store_const", dest="effort", const=QUICK, help=f"the same as --effort {QUICK}")
    made.add_argument("--threads", type=int, default=2)
    return made


def options_of(arguments: argparse.Namespace) -> str:
    """As they would be typed, for the record."""
    effort = "" if arguments.effort == 1 else f" --effort {arguments.effort:g}"
    return effort + ("" if arguments.threads == 2 else f" --threads {arguments.threads}")


def main(name: str, description: str, run: Callable[..., Result], tables: Callable[[Result], list[str]]) -> None:
    """One benchmark as a script."""
    arguments = parser(description).parse_args()
    torch.set_num_threads(arguments.threads)
    finish(name, run(effort=arguments.effort, command=f"python benchmarks/{name}.py{options_of(arguments)}"), tables)


def finish(name: str, result: Result, tables: Callable[[Result], list[str]]) -> None:
    """Store a result, show it, and bring README.md up to date."""
    result["machine"]["load_after"] = load()
    store(result, FOLDER / f"{name}.json")
    say("\n".join(tables(result)) + "\n")
    from benchmarks import document  # which imports the benchmarks, which import this

    document.update()


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
