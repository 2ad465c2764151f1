"""Time of a whole optimizer step, relative to `torch.optim.SGD(momentum=0.9, fused=True)`, at four sizes.

    python benchmarks/steps.py

Parameters are those of an MLP, six float32 tensors, and gradients are given, so that nothing but the step is timed, all of
it: for CTLD the energies, α and its hills, and the search for NaN unless a row says "unchecked". Everyone moves the same
parameters by the same gradients and has momenta of their own, so that no one has the better place in memory. timing.py says
how the contenders take turns.

The last table turns times into bytes per second: a step reads parameter, gradient and momentum and writes two of them,
5 × 4 bytes for each element. At the smallest size it is Python that takes the time.
"""

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parents[1]))  # as a script, it has only its own folder

from benchmarks import choices, timing
from benchmarks.stored import Result, heading, main, table, where

SIZES = {
    "10k": (64, 96, 32, 10),
    "250k": (784, 256, 256, 10),
    "1.6M": (784, 1000, 800, 50),
    "25M": (2500, 3500, 4000, 500),
}
BUDGETS = {"10k": 25.0, "250k": 25.0, "1.6M": 35.0, "25M": 100.0}  # seconds
BLOCKS = {"10k": 0.005, "250k": 0.005, "1.6M": 0.01, "25M": 0.05}  # seconds; shorter ones are disturbed less often
BYTES_PER_ELEMENT = 5 * 4

# The most that a step may take, in units of the reference's, at the sizes above.
GAUSSIAN, THREE_POINT = (1.15, 1.35, 1.5, 1.05), (1.1, 1.2, 1.2, 1.02)
TARGETS = {
    choices.GAUSSIAN.name: GAUSSIAN,
    choices.UNCHECKED[0].name: GAUSSIAN,
    choices.THREE_POINT.name: THREE_POINT,
    choices.UNCHECKED[1].name: THREE_POINT,
    choices.FINE_TUNING.name: (0.8, 0.8, 0.95, 1.0),
}
MAIN = (
    choices.FUSED_SGD,
    choices.SGD,
    choices.GAUSSIAN,
    choices.UNCHECKED[0],
    choices.THREE_POINT,
    choices.UNCHECKED[1],
    choices.FINE_TUNING,
)
OTHERS_EVERY = 4
"""The others are in one round of so many."""
STREAMED = [choices.FUSED_SGD.name, choices.FINE_TUNING.name, *(choice.name for choice in choices.UNCHECKED)]
"""Those that move BYTES_PER_ELEMENT and no more; who checks the gradients reads them twice."""


@dataclass(kw_only=True)
class Repeated(timing.Contender):
    """A call that is repeated."""

    name: str
    call: Callable[[], Any]

    def run(self, steps: int) -> float:
        call = self.call
        start = time.perf_counter()
        for _ in range(steps):
            call()
        return (time.perf_counter() - start) / steps


def contenders(parameters: choices.Parameters) -> tuple[list[Repeated], dict[str, str]]:
    """The reference first; and what was found of other libraries."""
    # As the user has it: one element on the CPU, with the graph behind it.
    loss = torch.tensor(2.3, requires_grad=True) * 1.0
    others, found = choices.peers()
    made = [_stepping(choice, parameters, loss) for choice in MAIN]
    for choice in (*choices.samplers(), *others):
        made.append(_stepping(choice, parameters, loss))
        made[-1].every = OTHERS_EVERY
    return made, found


def _stepping(choice: choices.Choice, parameters: choices.Parameters, loss: Tensor) -> Repeated:
    step: Callable[..., Any] = choice.build(parameters).step
    return Repeated(name=choice.name, call=(lambda: step(loss=loss)) if choice.takes_loss else step)


def given(widths: Sequence[int]) -> choices.Parameters:
    """Parameters of an MLP, with gradients."""
    generator = torch.Generator().manual_seed(0)
    shapes = [shape for inputs, outputs in pairwise(widths) for shape in ((outputs, inputs), (outputs,))]
    parameters = [nn.Parameter(0.05 * torch.randn(shape, generator=generator)) for shape in shapes]
    for parameter in parameters:
        parameter.grad = 0.01 * torch.randn(parameter.shape, generator=generator)
    return parameters


def measure(size: str, widths: Sequence[int], **turns: Any) -> dict[str, Any]:
    """One size. `turns` go to `timing.interleave`."""
    parameters = given(widths)
    everyone, found = contenders(parameters)
    rounds = timing.interleave(everyone, label=f"steps, {size}", **turns)
    # Arithmetic on numbers that are not finite has another speed.
    if not all(bool(parameter.isfinite().all()) for parameter in parameters):
        raise FloatingPointError(f"someone has diverged at size {size}: the times mean nothing")
    reference, elements = everyone[0], sum(parameter.numel() for parameter in parameters)
    rows = []
    for one in everyone:
        row = {"name": one.name} | timing.summary(one, reference)
        if one.name in STREAMED:
            row["gigabytes_per_second"] = timing.rounded(
                1e-3 * BYTES_PER_ELEMENT * elements / row["microseconds"]["median"]
            )
        rows.append(row)
    return {
        "size": size,
        "widths": list(widths),
        "parameters": elements,
        "tensors": len(parameters),
        "rounds": rounds,
        "undisturbed_blocks": timing.undisturbed_share(everyone),
        "peers": found,
        "rows": rows,
    }


def run(*, effort: float = 1.0, command: str = "") -> Result:
    result = heading("time per step relative to torch.optim.SGD(momentum=0.9, fused=True)", command, effort=effort)
    sizes = []
    for number, (size, widths) in enumerate(SIZES.items()):
        made = measure(size, widths, budget=effort * BUDGETS[size], block_seconds=BLOCKS[size])
        for row in made["rows"]:
            if row["name"] in TARGETS:
                row["target"] = TARGETS[row["name"]][number]
                row["verdict"] = timing.verdict(row["interval"], row["target"])
        sizes.append(made)
    return result | {"sizes": sizes}


# ---- tables ----


def tables(result: Result) -> list[str]:
    """For README.md."""
    sizes = result["sizes"]
    rounds = ", ".join(f"{each['rounds']} ({100 * each['undisturbed_blocks']:.0f} % undisturbed)" for each in sizes)
    peers = ", ".join(f"{package} {found}" for package, found in sizes[0]["peers"].items())
    names = [row["name"] for row in sizes[0]["rows"]]
    header = ["time relative to fused SGD", *(f"{each['size']} ({each['parameters']:,})" for each in sizes)]
    columns = [{row["name"]: row for row in each["rows"]} for each in sizes]
    microseconds = (f"{column[names[0]]['microseconds']['median']:.0f} µs" for column in columns)
    return [
        *where(result),
        f"Rounds: {rounds}. Other libraries: {peers}. Median (quartiles) over rounds.",
        "",
        *table(
            header,
            [["one step of fused SGD", *microseconds]]
            + [[name, *(_spread(column[name]["relative"]) for column in columns)] for name in names],
        ),
        "",
        "Against the targets: median [95 % interval of the median] ≤ target.",
        "",
        *table(
            ["", *(each["size"] for each in sizes)],
            [[name, *(_judged(column[name]) for column in columns)] for name in names if "target" in columns[0][name]],
        ),
        "",
        "Gigabytes per second, at 20 bytes for each element and the median time:",
        "",
        *table(
            ["", *(each["size"] for each in sizes)],
            [[name, *(f"{column[name]['gigabytes_per_second']:.1f}" for column in columns)] for name in STREAMED],
        ),
    ]


def _spread(values: dict[str, float], digits: int = 2) -> str:
    lower, median, upper = (
        f"{values[name]:.{digits if values[name] < 100 else 0}f}" for name in ("lower", "median", "upper")
    )
    return f"{median} ({lower} to {upper})"


def _judged(row: dict[str, Any]) -> str:
    interval = row["interval"]
    found = f"{interval['median']:.3f} [{interval['low']:.3f}, {interval['high']:.3f}] ≤ {row['target']:g}"
    return f"{found}: {row['verdict']}"


if __name__ == "__main__":
    main("steps", "Time of optimizer steps relative to fused SGD.", run, tables)
