"""The time of a whole draw, gradient and step, of several samplers on one small model in one run.

    python -m benchmarks draws          (extras crosscheck and posterior; a row whose package is missing is left out)

An MLP 10-8-1 of 97 parameters, 300 rows, four chains with all data in each step. The number is CPU time for a step of one
chain. What is compiled is compiled before anything is timed, and how long that took is told apart.
"""

import importlib
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # as a script, it has only its own folder

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.stored import Result, heading, main, table, where
from benchmarks.timing import Contender, interleave, summary
from ctld import create
from ctld.chains import Chains

CHAINS, ROWS, NUM_DATA = 4, 300, 300
LR, MOMENTUM, DECAY = 0.01, 0.9, 1 / NUM_DATA
SECONDS = 60.0
REFERENCE = "ctld BAOAB, four chains, compiled"


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(10, 8), nn.Tanh(), nn.Linear(8, 1))


def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(ROWS, 10, generator=generator), torch.randn(ROWS, 1, generator=generator)


def loss(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    return 0.5 * functional.mse_loss(model(inputs), targets)


class Timed(Contender):
    """A function that takes so many steps of `count` chains."""

    def __init__(self, go: Callable[[int], None], count: int) -> None:
        super().__init__()
        self.go, self.count = go, count
        begun = time.perf_counter()
        go(1)
        self.first = time.perf_counter() - begun

    def time_block(self, round_number: int, steps: int) -> None:
        """Time a block by the clock of the process, which stands still while others have the core: once is enough."""
        self.seconds[round_number] = self.run(steps)
        self.waiting[round_number] = self.parts[round_number] = 0.0

    def run(self, steps: int) -> float:
        begun = time.process_time()
        self.go(steps)
        return (time.process_time() - begun) / (steps * self.count)


def of_ctld(name: str, *, count: int = CHAINS, compile: bool = False) -> Timed:
    torch.manual_seed(0)
    models, batch = [model() for _ in range(count)], data()
    momentum = {} if name == "sgld" else {"momentum": MOMENTUM}
    options: dict[str, Any] = {"lr": LR, "num_data": NUM_DATA, "weight_decay": DECAY} | momentum
    optimizers = [create(name, each.parameters(), seed=seed, **options) for seed, each in enumerate(models)]
    if count == 1:
        own, optimizer = models[0], optimizers[0]

        def alone(steps: int) -> None:
            for _ in range(steps):
                optimizer.zero_grad()
                value = loss(own, *batch)
                value.backward()  # type: ignore[no-untyped-call]
                optimizer.step(loss=value)

        return Timed(alone, 1)
    chains = Chains(models, optimizers, loss, compile=compile)

    def together(steps: int) -> None:
        for _ in range(steps):
            chains.backward(*batch)
            chains.step()

    return Timed(together, count)


def of_posteriors(name: str) -> Timed:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        method = importlib.import_module(f"posteriors.sgmcmc.{name}")
    torch.manual_seed(0)
    own, batch = model(), data()
    parameters = {name: value.detach() for name, value in own.named_parameters()}

    def log_posterior(values: Any, batch: Any) -> Any:
        outputs = torch.func.functional_call(own, values, (batch[0],))
        prior = sum(value.square().sum() for value in values.values())
        return -0.5 * functional.mse_loss(outputs, batch[1]) - 0.5 * DECAY * prior, torch.tensor([])

    rate = LR if name == "sgld" else LR**0.5
    friction = {} if name == "sgld" else {"alpha": (1 - MOMENTUM) / rate}
    transform = method.build(log_posterior, lr=rate, temperature=1 / NUM_DATA, **friction)
    state = [transform.init(parameters)]

    def go(steps: int) -> None:
        for _ in range(steps):
            state[0] = transform.update(state[0], batch)[0]

    return Timed(go, 1)


def of_blackjax(name: str) -> Timed:
    jax, blackjax = importlib.import_module("jax"), importlib.import_module("blackjax")
    numpy = jax.numpy
    inputs, targets = (numpy.asarray(part.numpy()) for part in data())
    shapes = [(10, 8), (8,), (8, 1), (1,)]
    keys = jax.random.split(jax.random.key(0), len(shapes))
    start = [0.3 * jax.random.normal(key, (CHAINS, *shape)) for key, shape in zip(keys, shapes, strict=True)]

    def log_density(values: Any, _: Any) -> Any:
        outputs = numpy.tanh(inputs @ values[0] + values[1]) @ values[2] + values[3]
        prior = sum((value**2).sum() for value in values)
        return -NUM_DATA * (0.5 * ((outputs - targets) ** 2).mean() + 0.5 * DECAY * prior)

    gradient = jax.grad(log_density)
    options = {} if name == "sgld" else {"num_integration_steps": 1, "alpha": 1 - MOMENTUM}
    method = getattr(blackjax, name)(gradient, **options)
    step = jax.jit(jax.vmap(lambda key, values: method.step(key, values, 0, LR / NUM_DATA)))
    state = [start, jax.random.key(1)]

    def go(steps: int) -> None:
        for _ in range(steps):
            state[1], key = jax.random.split(state[1])
            state[0] = step(jax.random.split(key, CHAINS), state[0])
        jax.block_until_ready(state[0])

    return Timed(go, CHAINS)


def rows(*, compiled: bool = True) -> dict[str, Callable[[], Timed]]:
    """The rows by title."""
    found: dict[str, Callable[[], Timed]] = {
        REFERENCE: lambda: of_ctld("baoab", compile=compiled),
        "ctld BAOAB, four chains": lambda: of_ctld("baoab"),
        "ctld BAOAB, one chain in a plain loop": lambda: of_ctld("baoab", count=1),
        "ctld SGLD, four chains, compiled": lambda: of_ctld("sgld", compile=compiled),
        "ctld SGHMC, four chains, compiled": lambda: of_ctld("sghmc", compile=compiled),
    }
    for name in ("sgld", "sghmc", "baoa"):
        found[f"posteriors {name}, one chain"] = lambda name=name: of_posteriors(name)  # type: ignore[misc]
    for name in ("sgld", "sghmc"):
        found[f"blackjax {name}, four chains, compiled"] = lambda name=name: of_blackjax(name)  # type: ignore[misc]
    return found


def run(*, effort: float, command: str, compiled: bool = True) -> Result:
    result = heading("time of a whole draw, gradient and step, on a model of 97 parameters", command, effort=effort)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    result["machine"]["torch_threads"] = 1
    made: dict[str, Timed] = {}
    for title, build in rows(compiled=compiled).items():
        try:
            made[title] = build()
        except ImportError as error:
            sys.stderr.write(f"{title}: left out, {error}\n")
    interleave(list(made.values()), block_seconds=0.05, budget=SECONDS * effort, label="draws")
    result["cells"] = [
        {"sampler": title, "first_seconds": round(each.first, 1), **summary(each, made[REFERENCE])}
        for title, each in made.items()
    ]
    torch.set_num_threads(threads)
    return result


def tables(result: Result) -> list[str]:
    shown = [
        (
            cell["sampler"],
            f"{cell['microseconds']['median']:.0f}",
            f"{cell['relative']['median']:.2f} [{cell['interval']['low']:.2f}, {cell['interval']['high']:.2f}]",
            f"{cell['first_seconds']:.1f}",
        )
        for cell in result["cells"]
    ]
    header = ("", "µs of CPU a step and chain", "relative to the first row", "seconds before the second step")
    return [*where(result), "", *table(header, shown)]


if __name__ == "__main__":
    main("draws", "The time of a whole draw, beside posteriors and blackjax.", run, tables)
