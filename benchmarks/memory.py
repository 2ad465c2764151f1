"""Memory that an optimizer holds, and what a step takes on top for as long as it lasts.

    python benchmarks/memory.py

Each optimizer and size has a process of its own. "Held" is what resident memory has grown by since before the optimizer was
made, after two steps. "During a step" is the highest resident memory in the course of a third step (VmHWM of Linux, reset
before it), less what was resident before; "while it is made" is the same of the constructor, less what was resident after.
All at two sizes: the line through them has bytes per parameter as its slope, and what it has at no parameters is the
constant. The process has made and stepped a small optimizer of the same kind before, so that the code that torch loads on
the way is not in it, and its allocator gives back at once what is freed: else memory for later use would count as held.
State is that of the tensors in `state_dict()`.
"""

import argparse
import ctypes
import gc
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1]))  # as a script, it has only its own folder

from benchmarks import choices, timing
from benchmarks.steps import SIZES, given
from benchmarks.stored import ROOT, Result, heading, main, table, where

SMALL, LARGE = SIZES["1.6M"], SIZES["25M"]
# A tenth of a byte per parameter is more than the pages and the allocator's ends can be off by.
TOLERANCE = 0.1
KINDS = {
    "state": "state",
    "held": "held",
    "during_step": "on top, during a step",
    "while_made": "on top, while it is made",
}
JUDGED = (choices.GAUSSIAN.name, choices.THREE_POINT.name, choices.FINE_TUNING.name)


def everyone() -> dict[str, choices.Choice]:
    """By name."""
    chosen = [
        choices.FUSED_SGD,
        choices.SGD,
        choices.GAUSSIAN,
        choices.THREE_POINT,
        choices.FINE_TUNING,
        choices.COMPENSATED,
        *choices.MINIMISERS,
        choices.LANGEVIN,
        *choices.samplers(),
    ]
    return {choice.name: choice for choice in chosen}


# ---- in the process of its own ----


def weigh(choice: choices.Choice, widths: Sequence[int]) -> dict[str, int]:
    """Bytes, by what for."""
    options: dict[str, Any] = {"loss": torch.tensor(2.3)} if choice.takes_loss else {}
    small = choice.build(given((8, 6, 4)))
    for _ in range(2):
        small.step(**options)
    parameters = given(widths)
    _touch(parameters)
    _give_back()
    before = _resident()
    _reset_peak()
    optimizer = choice.build(parameters)
    made = _status("VmHWM") - _status("VmRSS")
    for _ in range(2):
        optimizer.step(**options)
    _give_back()
    held = _resident()
    _reset_peak()
    counted = _status("VmRSS")
    optimizer.step(**options)
    peak = _status("VmHWM")
    states = {tensor.data_ptr(): tensor for tensor in _tensors(optimizer.state_dict())}
    return {
        "parameters": sum(parameter.numel() for parameter in parameters),
        "state": sum(tensor.numel() * tensor.element_size() for tensor in states.values()),
        "held": held - before,
        "during_step": max(peak - counted, 0),
        "while_made": max(made, 0),
    }


def _touch(parameters: choices.Parameters) -> None:
    """Threads start and take their stacks with the first large operation."""
    for parameter in parameters:
        parameter.detach().add_(0.0)


def _give_back() -> None:
    """What imports have left, compiled code not yet written to files above all, is not to be freed while others are weighed."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)


def _reset_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # what the kernel does with VmHWM on a 5


def _resident() -> int:
    """Bytes, page by page: the kernel's own count in VmRSS is off by up to a few megabytes where there are many cores."""
    return _entry("Rss", Path("/proc/self/smaps_rollup"))


def _status(entry: str) -> int:
    return _entry(entry, Path("/proc/self/status"))


def _entry(name: str, file: Path) -> int:
    """Bytes."""
    for line in file.read_text(encoding="ascii").splitlines():
        if line.startswith(name + ":"):
            return 1024 * int(line.split()[1])
    raise OSError(f"there is no {name} in {file}: this needs Linux")


def _tensors(tree: Any) -> Iterator[Tensor]:
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, dict | list | tuple):
        for value in tree.values() if isinstance(tree, dict) else tree:
            yield from _tensors(value)


# ---- in the process that starts them ----


def weigh_apart(name: str, widths: Sequence[int]) -> dict[str, int]:
    command = [sys.executable, "-m", "benchmarks.memory", "--child", name, *map(str, widths)]
    # The child is to find what this process finds, wherever it was started.
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(os.path.abspath(place) for place in sys.path)}
    environment |= {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
    made = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    if made.returncode:
        raise RuntimeError(f"{name} could not be measured:\n{made.stderr}")
    found: dict[str, int] = json.loads(made.stdout)
    return found


def measure(names: Sequence[str], small: Sequence[int] = SMALL, large: Sequence[int] = LARGE) -> list[dict[str, Any]]:
    """A row for each."""
    progress = timing.Progress("memory")
    rows = []
    with ThreadPoolExecutor(max_workers=2) as pool:  # they are processes: two cores are busy
        pairs = [[pool.submit(weigh_apart, name, widths) for widths in (small, large)] for name in names]
        for name, pair in zip(names, pairs, strict=True):
            few, many = (future.result() for future in pair)
            rows.append(_line(name, few, many))
            progress.show(f"{len(rows)} of {len(names)}", last=len(rows) == len(names))
    return rows


def _line(name: str, few: dict[str, int], many: dict[str, int]) -> dict[str, Any]:
    more = many["parameters"] - few["parameters"]
    row: dict[str, Any] = {"name": name}
    for what in KINDS:
        slope = (many[what] - few[what]) / more
        constant = few[what] - slope * few["parameters"]
        row[what] = {"bytes_per_parameter": round(slope, 3), "constant_megabytes": round(1e-6 * constant, 2)}
    if name in JUDGED:
        excess = row["held"]["bytes_per_parameter"] + row["during_step"]["bytes_per_parameter"] - 4
        row["verdict"] = "met" if excess < TOLERANCE else "not met"
    return row


def run(*, effort: float = 1.0, command: str = "") -> Result:
    result = heading("bytes of memory per float32 parameter", command, effort=effort)
    names = list(everyone())
    chosen = names if effort >= 1 else names[:6]
    sizes = {"small": list(SMALL), "large": list(LARGE)}
    return result | {"sizes": sizes, "rows": measure(chosen)}


# ---- tables ----


def tables(result: Result) -> list[str]:
    """For README.md."""
    return [
        *where(result),
        "",
        *table(
            ["bytes per parameter + constant", *KINDS.values(), "one buffer per parameter and a constant"],
            [[row["name"], *(_cell(row[kind]) for kind in KINDS), row.get("verdict", "–")] for row in result["rows"]],
        ),
    ]


def _cell(line: dict[str, float]) -> str:
    # Rounded first, and 0 added, so that there is no −0.00.
    slope, constant = round(line["bytes_per_parameter"], 2) + 0.0, round(line["constant_megabytes"], 1) + 0.0
    return f"{slope:.2f} {'+' if constant >= 0 else '−'} {abs(constant):.1f} MB"


def _child(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--child", required=True)
    parser.add_argument("widths", type=int, nargs="+")
    chosen = parser.parse_args(arguments)
    sys.stdout.write(json.dumps(weigh(everyone()[chosen.child], chosen.widths)))


if __name__ == "__main__":
    if "--child" in sys.argv:
        _child(sys.argv[1:])
    else:
        main("memory", "Memory that optimizers hold and take.", run, tables)
