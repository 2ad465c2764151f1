"""Time per step and memory of every method in `ctld.OPTIMIZERS`, relative to `torch.optim.SGD(momentum=0.9)`.

    python benchmarks/methods.py

The parameters are those of an MLP 784-256-256-10 (269,322 elements in six tensors) and the gradients are given, so that
nothing but the optimizer is timed. All methods run in one process and take turns, in an order that is shuffled in every
round: whatever else the machine does, it does to all of them. A round times a block of steps of each method (EASGD's
exchange, every tenth step, is in it) and divides by SGD's block of the same round; medians and quartiles are over rounds.
A block whose threads had to wait for a core (Linux counts that) is timed again, since another program's slice of a core is
longer than most blocks.

Memory is that of the tensors in `state_dict()`, per parameter; parameters, gradients and what a step allocates and frees
again are not in it. Methods with two phases are measured in both. The result goes to benchmarks/results/methods.json;
`--document` prints the stored one as the table of docs/methods.md.
"""

import argparse
import contextlib
import json
import os
import platform
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import ctld

RESULTS = Path(__file__).parent / "results" / "methods.json"
WIDTHS = (784, 256, 256, 10)
SHAPES = [shape for inputs, outputs in pairwise(WIDTHS) for shape in ((outputs, inputs), (outputs,))]
NUM_DATA = 60_000
LOSS = 2.3
FOREVER = 10**9
ATTEMPTS = 10
UNDISTURBED = 0.02

# The options that a row of the table needs, and those that hold a method with two phases in one of them.
OPTIONS: dict[str, dict[str, Any]] = {
    "num_data": {"num_data": NUM_DATA},
    "exploration_steps": {"exploration_steps": FOREVER},
    "num_steps": {"num_steps": FOREVER},
}
PHASES: dict[str, dict[str, dict[str, Any]]] = {
    "ctld": {"exploration": {"temperature": 1.0}, "fine-tuning": {"exploration_steps": 0}},
    "santa": {"exploration": {}, "refinement": {"exploration_steps": 0}},
    "csghmc": {"exploration": {"exploration_share": 1.0}, "sampling": {"exploration_share": 0.0}},
}
REFERENCE = "torch.optim.SGD"


@dataclass
class Contender:
    """A method in one of its phases, with parameters of its own."""

    method: str
    phase: str
    optimizer: torch.optim.Optimizer
    parameters: list[nn.Parameter]
    takes_loss: bool = True
    seconds: list[float] = field(default_factory=list)
    """Per step, one entry for each round."""
    waiting: list[float] = field(default_factory=list)
    """Share of each entry's time that threads spent waiting for a core."""

    def time_block(self, steps: int) -> None:
        """Of a few attempts, the first that hardly had to wait for a core, or the one that waited least."""
        attempts = []
        for _ in range(ATTEMPTS):
            before = _nanoseconds_waited()
            seconds = self.run(steps)
            share = 1e-9 * (_nanoseconds_waited() - before) / (seconds * steps)
            attempts.append((share, seconds))
            if share < UNDISTURBED:
                break
        share, seconds = min(attempts)
        self.seconds.append(seconds)
        self.waiting.append(share)

    def run(self, steps: int) -> float:
        """Seconds per step."""
        options: dict[str, Any] = {"loss": LOSS} if self.takes_loss else {}
        start = time.perf_counter()
        for _ in range(steps):
            self.optimizer.step(**options)
        return (time.perf_counter() - start) / steps

    def state_bytes_per_parameter(self) -> float:
        tensors = {tensor.data_ptr(): tensor for tensor in _tensors(self.optimizer.state_dict())}
        total = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
        return total / sum(parameter.numel() for parameter in self.parameters)


def contenders() -> list[Contender]:
    """The references first, then every row of the table in its order."""
    made = [
        _contender(REFERENCE, phase, lambda params, fused=fused: torch.optim.SGD(params, 1e-3, 0.9, fused=fused))
        for phase, fused in (("default", None), ("fused=True", True))
    ]
    for contender in made:
        contender.takes_loss = False
    for name, method in ctld.OPTIMIZERS.items():
        needed: dict[str, Any] = {}
        for option in sorted(method.needs):
            needed |= OPTIONS[option]
        for phase, options in PHASES.get(name, {"": {}}).items():
            chosen = {"lr": 1e-3} | ({"seed": 0} if method.noisy else {}) | needed | options
            made.append(_contender(name, phase, lambda params, n=name, o=chosen: ctld.create(n, params, **o)))
    return made


def _contender(method: str, phase: str, build: Callable[..., torch.optim.Optimizer]) -> Contender:
    generator = torch.Generator().manual_seed(0)
    parameters = [nn.Parameter(0.05 * torch.randn(shape, generator=generator)) for shape in SHAPES]
    for parameter in parameters:
        parameter.grad = 0.01 * torch.randn(parameter.shape, generator=generator)
    return Contender(method, phase, build(parameters), parameters)


def measure(everyone: list[Contender], *, rounds: int, steps: int) -> None:
    order = random.Random(0)
    for contender in everyone:
        contender.run(steps)  # allocates what the first step allocates
    for _ in range(rounds):
        for contender in order.sample(everyone, len(everyone)):
            contender.run(1)  # its memory is in the caches again
            contender.time_block(steps)
    for contender in everyone:
        # Arithmetic on numbers that are not finite, or denormal after a collapse, has another speed.
        if not all(bool(parameter.isfinite().all()) for parameter in contender.parameters):
            raise FloatingPointError(f"{contender.method} {contender.phase} has diverged: its time means nothing")


def report(everyone: list[Contender], *, rounds: int, steps: int, load: tuple[float, float]) -> dict[str, Any]:
    reference = everyone[0]
    calm = [share < UNDISTURBED for contender in everyone for share in contender.waiting]
    rows = []
    for contender in everyone:
        ratios = [own / base for own, base in zip(contender.seconds, reference.seconds, strict=True)]
        rows.append(
            {
                "method": contender.method,
                "phase": contender.phase,
                "relative_time": _quartiles(ratios, 1.0),
                "microseconds_per_step": _quartiles(contender.seconds, 1e6),
                "state_bytes_per_parameter": round(contender.state_bytes_per_parameter(), 3),
            }
        )
    return {
        "what": "time per step relative to torch.optim.SGD(momentum=0.9), default implementation, same round",
        "command": "python benchmarks/methods.py",
        "machine": {
            "cpu": _cpu_model(),
            "cores": os.cpu_count(),
            "torch_threads": torch.get_num_threads(),
            "torch": torch.__version__,
            "python": platform.python_version(),
            "load_before": load[0],
            "load_after": load[1],
            "undisturbed_blocks": round(statistics.fmean(calm), 3),
        },
        "settings": {
            "parameters": sum(parameter.numel() for parameter in reference.parameters),
            "tensors": len(reference.parameters),
            "dtype": "float32",
            "rounds": rounds,
            "steps_per_block": steps,
            "ctld": ctld.__version__,
            "noise": f"{ctld.noise.GENERATOR} by {'C' if ctld.noise.native.load() else 'torch'}",
        },
        "rows": rows,
    }


def store(result: dict[str, Any], path: Path) -> None:
    """All of it or nothing: a reader never sees half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".draft")
    draft.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    draft.replace(path)


def show(result: dict[str, Any]) -> None:
    header = ("method", "time / SGD-M", "quartiles", "µs per step", "state bytes / parameter")
    lines = [
        (
            ", ".join(part for part in (row["method"], row["phase"]) if part),
            f"{row['relative_time']['median']:.2f}",
            f"{row['relative_time']['lower']:.2f} to {row['relative_time']['upper']:.2f}",
            f"{row['microseconds_per_step']['median']:.0f}",
            f"{row['state_bytes_per_parameter']:.2f}",
        )
        for row in result["rows"]
    ]
    try:
        from rich.console import Console
        from rich.table import Table
    except ModuleNotFoundError:
        widths = [max(len(line[column]) for line in (header, *lines)) for column in range(len(header))]
        for line in (header, *lines):
            cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
            sys.stdout.write("  ".join(cells).rstrip() + "\n")
        return
    table = Table(*header)
    for line in lines:
        table.add_row(*line)
    # Rich takes a pipe for a terminal of 80 columns, which would cut the names.
    Console(width=None if sys.stdout.isatty() else 120).print(table)


def document_rows(result: dict[str, Any]) -> list[str]:
    """The table "Cost" of docs/methods.md: memory and time relative to SGD-M, quartiles in brackets."""
    reference = result["rows"][0]["state_bytes_per_parameter"]
    lines = []
    for row in result["rows"]:
        lower, median, upper = (_short(row["relative_time"][name]) for name in ("lower", "median", "upper"))
        memory = f"{row['state_bytes_per_parameter'] / reference:.2f}"
        lines.append(f"| `{row['method']}` | {row['phase'] or '–'} | {memory} | {median} ({lower} to {upper}) |")
    return lines


def _short(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:.0f}"


def _quartiles(values: list[float], unit: float) -> dict[str, float]:
    quartiles = statistics.quantiles(values, n=4, method="inclusive")
    return {name: _rounded(unit * value) for name, value in zip(("lower", "median", "upper"), quartiles, strict=True)}


def _rounded(value: float) -> float:
    """Four digits: more than the spread warrants, and a file that can be read."""
    return float(f"{value:.4g}")


def _tensors(tree: Any) -> Iterator[Tensor]:
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, dict):
        for value in tree.values():
            yield from _tensors(value)
    elif isinstance(tree, list | tuple):
        for value in tree:
            yield from _tensors(value)


def _nanoseconds_waited() -> int:
    """How long the threads of this process have been ready to run without a core; 0 where the kernel does not say."""
    waited = 0
    for statistic in Path("/proc/self/task").glob("*/schedstat"):
        # A thread may end between the listing and the reading.
        with contextlib.suppress(OSError):
            waited += int(statistic.read_text(encoding="ascii").split()[1])
    return waited


def _cpu_model() -> str:
    information = Path("/proc/cpuinfo")
    if information.exists():
        for line in information.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def main() -> None:
    parser = argparse.ArgumentParser(description="Time and memory of every optimizer, relative to SGD with momentum.")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--steps", type=int, default=10, help="steps in a block; a multiple of EASGD's period, 10")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--document", action="store_true", help="print the stored result as rows of docs/methods.md")
    arguments = parser.parse_args()
    if arguments.document:
        stored = json.loads(arguments.output.read_text(encoding="utf-8"))
        sys.stdout.write("\n".join(document_rows(stored)) + "\n")
        return
    torch.set_num_threads(arguments.threads)
    everyone = contenders()
    before = os.getloadavg()[0]
    measure(everyone, rounds=arguments.rounds, steps=arguments.steps)
    load = (round(before, 2), round(os.getloadavg()[0], 2))
    result = report(everyone, rounds=arguments.rounds, steps=arguments.steps, load=load)
    store(result, arguments.output)
    show(result)


if __name__ == "__main__":
    main()
