"""Time per step and memory of every method in `ctld.OPTIMIZERS`, relative to `torch.optim.SGD(momentum=0.9)`.

    python benchmarks/methods.py

The parameters are those of an MLP 784-256-256-10 (269,322 elements in six tensors) and the gradients are given, so that
nothing but the optimizer is timed. All methods take turns, as timing.py says; a block of steps has EASGD's exchange in it,
which is every tenth step. Medians and quartiles are over rounds.

Memory is that of the tensors in `state_dict()`, per parameter; parameters, gradients and what a step allocates and frees
again are not in it. Methods with two phases are measured in both. The result goes to benchmarks/results/methods.json;
`--document` prints the stored one as the table of docs/methods.md.
"""

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import ctld

sys.path.insert(0, str(Path(__file__).parents[1]))  # as a script, it has only its own folder

from benchmarks import choices, timing
from benchmarks.stored import commit, cpu_model, store

RESULTS = Path(__file__).parent / "results" / "methods.json"
WIDTHS = (784, 256, 256, 10)
SHAPES = [shape for inputs, outputs in pairwise(WIDTHS) for shape in ((outputs, inputs), (outputs,))]
LOSS = 2.3
REFERENCE = "torch.optim.SGD"


@dataclass
class Contender(timing.Contender):
    """A method in one of its phases, with parameters of its own."""

    method: str
    phase: str
    optimizer: torch.optim.Optimizer
    parameters: list[nn.Parameter]
    takes_loss: bool = True

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
    for name in ctld.OPTIMIZERS:
        for phase in choices.PHASES.get(name, [""]):
            made.append(_contender(name, phase, choices.from_table(name, phase)))
    return made


def _contender(method: str, phase: str, build: Callable[..., torch.optim.Optimizer]) -> Contender:
    generator = torch.Generator().manual_seed(0)
    parameters = [nn.Parameter(0.05 * torch.randn(shape, generator=generator)) for shape in SHAPES]
    for parameter in parameters:
        parameter.grad = 0.01 * torch.randn(parameter.shape, generator=generator)
    return Contender(method, phase, build(parameters), parameters)


def measure(everyone: list[Contender], *, rounds: int, steps: int) -> None:
    timing.interleave(everyone, steps=steps, rounds=rounds, label="methods")
    for contender in everyone:
        # Arithmetic on numbers that are not finite, or denormal after a collapse, has another speed.
        if not all(bool(parameter.isfinite().all()) for parameter in contender.parameters):
            raise FloatingPointError(f"{contender.method} {contender.phase} has diverged: its time means nothing")


def report(everyone: list[Contender], *, rounds: int, steps: int, load: tuple[float, float]) -> dict[str, Any]:
    reference = everyone[0]
    rows = []
    for contender in everyone:
        summary = timing.summary(contender, reference)
        rows.append(
            {
                "method": contender.method,
                "phase": contender.phase,
                "relative_time": summary["relative"],
                "microseconds_per_step": summary["microseconds"],
                "state_bytes_per_parameter": round(contender.state_bytes_per_parameter(), 3),
            }
        )
    return {
        "what": "time per step relative to torch.optim.SGD(momentum=0.9), default implementation, same round",
        "command": "python benchmarks/methods.py",
        "commit": commit(),
        "machine": {
            "cpu": cpu_model(),
            "cores": os.cpu_count(),
            "torch_threads": torch.get_num_threads(),
            "torch": torch.__version__,
            "python": platform.python_version(),
            "load_before": load[0],
            "load_after": load[1],
            "undisturbed_blocks": timing.undisturbed_share(everyone),
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


def _tensors(tree: Any) -> Iterator[Tensor]:
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, dict):
        for value in tree.values():
            yield from _tensors(value)
    elif isinstance(tree, list | tuple):
        for value in tree:
            yield from _tensors(value)


def run(*, rounds: int = 100, steps: int = 10, output: Path = RESULTS) -> None:
    """Measure, store and show."""
    everyone = contenders()
    before = os.getloadavg()[0]
    measure(everyone, rounds=rounds, steps=steps)
    load = (round(before, 2), round(os.getloadavg()[0], 2))
    result = report(everyone, rounds=rounds, steps=steps, load=load)
    store(result, output)
    show(result)


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
    run(rounds=arguments.rounds, steps=arguments.steps, output=arguments.output)


if __name__ == "__main__":
    main()
