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
import warnings
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

# The most that a step may take, in units of another's, at the sizes above; None where nothing is asked.
TARGETS: tuple[tuple[choices.Choice, choices.Choice, tuple[float | None, ...]], ...] = (
    (choices.GAUSSIAN, choices.FUSED_SGD, (1.2, None, None, None)),
    (choices.GAUSSIAN, choices.LANGEVIN, (None, 1.2, 1.2, 1.25)),
    (choices.TWO_GROUPS, choices.GAUSSIAN, (1.1, 1.1, 1.1, 1.1)),
    (choices.BAOAB, choices.GAUSSIAN, (1.3, 1.3, 1.3, 1.3)),
    (choices.Choice("psgld", choices.from_table("psgld")), choices.FUSED_SGD, (2.0, 3.0, 3.0, 3.0)),
    (choices.Choice("santa", choices.from_table("santa")), choices.FUSED_SGD, (2.0, 3.0, 3.0, 3.0)),
)
SMALL = {"97": (10, 8, 1), "1,004": (20, 40, 4)}
"""Where exact tempering fits, and Python is the cost: networks of so many parameters."""
SMALL_CHOICES = (choices.LANGEVIN, choices.CONSTANT, choices.CALIBRATED)
SETTLING = 200  # steps before the clock starts: more than the warm-up of calibrated tempering
SMALL_BUDGET, SMALL_TARGET = 15.0, 30.0  # seconds of measuring, and the most microseconds of a calibrated step
MAIN = (
    choices.FUSED_SGD,
    choices.SGD,
    choices.GAUSSIAN,
    choices.UNCHECKED[0],
    choices.THREE_POINT,
    choices.UNCHECKED[1],
    choices.FINE_TUNING,
    choices.LANGEVIN,
    choices.TWO_GROUPS,
    choices.BAOAB,
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
    by_name = {one.name: one for one in everyone}
    for row in rows:
        bases = {base.name: base for choice, base, _ in TARGETS if choice.name == row["name"]}
        row["to"] = {name: timing.summary(by_name[row["name"]], by_name[name])["interval"] for name in bases}
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


def measure_small(size: str, widths: Sequence[int], **turns: Any) -> dict[str, Any]:
    """One small network: microseconds of a step, thermometers included, after the warm-up of calibrated tempering."""
    everyone = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that no trips fit, and gradients that repeat: they are given
        for choice in SMALL_CHOICES:
            parameters = given(widths)
            everyone.append(_stepping(choice, parameters, torch.tensor(2.3)))
            everyone[-1].run(SETTLING)
        rounds = timing.interleave(everyone, label=f"small steps, {size}", **turns)
    rows = [{"name": one.name} | timing.summary(one, everyone[0]) for one in everyone]
    return {"parameters": sum(parameter.numel() for parameter in parameters), "rounds": rounds, "rows": rows}


def run(*, effort: float = 1.0, command: str = "") -> Result:
    result = heading("time per step relative to torch.optim.SGD(momentum=0.9, fused=True)", command, effort=effort)
    sizes = [
        measure(size, widths, budget=effort * BUDGETS[size], block_seconds=BLOCKS[size])
        for size, widths in SIZES.items()
    ]
    small = [measure_small(size, widths, budget=effort * SMALL_BUDGET) for size, widths in SMALL.items()]
    return result | {"sizes": sizes, "small": small}


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
        *_against_targets(sizes),
        *_small_steps(result.get("small", [])),
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


def _against_targets(sizes: list[dict[str, Any]]) -> list[str]:
    """A row for each target; none of a result that was stored before there were these."""
    columns = [{row["name"]: row for row in each["rows"]} for each in sizes]
    rows = []
    for choice, base, targets in TARGETS:
        if all(base.name in column[choice.name].get("to", {}) for column in columns if choice.name in column):
            found = [column[choice.name]["to"][base.name] for column in columns if choice.name in column]
            judged = [_judged(*pair) for pair in zip(found, targets, strict=False)]
            rows.append([f"{choice.name} / {base.name}", *judged])
    if not rows or any(len(row) != len(sizes) + 1 for row in rows):
        return []
    header = ["", *(each["size"] for each in sizes)]
    return ["Against the targets: median [95 % interval of the median] ≤ target.", "", *table(header, rows), ""]


def _small_steps(small: list[dict[str, Any]]) -> list[str]:
    """Microseconds of a step, median (quartiles)."""
    if not small:
        return []
    names = [row["name"] for row in small[0]["rows"]]
    columns = [{row["name"]: row for row in each["rows"]} for each in small]
    lines = [[name, *(_spread(column[name]["microseconds"], 1) for column in columns)] for name in names]
    header = ["microseconds of a step", *(f"{each['parameters']:,} parameters" for each in small)]
    text = f"Small networks, where Python is the cost; the target for calibrated tempering is {SMALL_TARGET:g} µs:"
    return [text, "", *table(header, lines), ""]


def _judged(interval: dict[str, float], target: float | None) -> str:
    found = f"{interval['median']:.3f} [{interval['low']:.3f}, {interval['high']:.3f}]"
    return found if target is None else f"{found} ≤ {target:g}: {timing.verdict(interval, target)}"


if __name__ == "__main__":
    main("steps", "Time of optimizer steps relative to fused SGD.", run, tables)
