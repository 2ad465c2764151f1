"""`python -m ctld_lab.demo`: SGD with momentum against CTLD on 5,000 digits, in a minute or two, without a network.

Varied: the method. Fixed: learning rate, momentum, weight decay, data, initial weights and batches. Tuned: nothing.
Prints a table, and leaves a figure (PNG, PDF) and the numbers behind it (JSON) in a directory.
"""

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ctld import CTLD, StepRecord, __version__
from ctld_lab.workloads import digits

try:
    from rich import progress
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    from ctld_lab.demo_figure import HIGHEST_RATIO, METHODS, Method, Run, build_figure
except ImportError as missing:
    raise ImportError(f'the demo needs {missing.name}, which is not installed: pip install "ctld[lab]"') from missing

LEARNING_RATE = 0.1
MOMENTUM = 0.9
WEIGHT_DECAY = 1e-3
# Two standard deviations over ten seeds of the difference between CTLD at T auto and SGD-M: results/digits_pilot.json, a
# run of much the same length.
CAPTION = "one seed: differences up to 0.003 in loss and 0.5 % in error are chance"


# ---- training ----


def build_optimizer(
    method: Method, model: torch.nn.Module, *, num_data: int, exploration_steps: int, seed: int
) -> torch.optim.Optimizer:
    if method.temperature is None:
        return torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY)
    return CTLD(
        model.parameters(),
        lr=LEARNING_RATE,
        momentum=MOMENTUM,
        weight_decay=WEIGHT_DECAY,
        num_data=num_data,
        exploration_steps=exploration_steps,
        temperature=method.temperature,
        seed=seed,
    )


def train(
    method: Method, data: digits.Digits, *, epochs: int, exploration_epochs: int, seed: int, advance: Callable[[], Any]
) -> Run:
    """Train from the weights and on the batches that all methods share; `advance` is called after every step."""
    model = digits.build_model(seed)
    exploration_steps = exploration_epochs * data.steps_per_epoch
    optimizer = build_optimizer(method, model, num_data=data.num_data, exploration_steps=exploration_steps, seed=seed)
    batches = digits.batch_indices(data.num_data, seed)
    run = Run(method.name, getattr(optimizer, "temperature", None))
    records: list[StepRecord] = []
    seconds: dict[bool, list[float]] = {True: [], False: []}  # of epochs, by whether they explore

    def closure() -> torch.Tensor:
        rows = next(batches)
        optimizer.zero_grad()
        loss = digits.mean_loss(model, data.train_images[rows], data.train_labels[rows])
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    _record_losses(run, model, data, epoch=0)
    for epoch in range(1, epochs + 1):
        tempered = optimizer if isinstance(optimizer, CTLD) and optimizer.exploring else None
        start = time.perf_counter()
        for _ in range(data.steps_per_epoch):
            optimizer.step(closure)  # type: ignore[arg-type]  # typed for a float, made for a tensor
            if tempered is not None and tempered.last is not None:
                records.append(tempered.last)
            advance()
        seconds[tempered is not None].append(time.perf_counter() - start)
        _record_losses(run, model, data, epoch=epoch)

    run.alpha = [record.alpha for record in records if record.alpha is not None]
    run.temperature_ratio = [record.temperature_ratio for record in records]
    run.share_of_steps = _share_of_steps(run.temperature_ratio)
    run.seconds_per_exploring_epoch = statistics.fmean(seconds[True]) if seconds[True] else None
    run.seconds_per_fine_tuning_epoch = statistics.fmean(seconds[False]) if seconds[False] else None
    return run


def _record_losses(run: Run, model: torch.nn.Module, data: digits.Digits, *, epoch: int) -> None:
    train_nll, train_error = digits.evaluate(model, data.train_images, data.train_labels)
    test_nll, test_error = digits.evaluate(model, data.test_images, data.test_labels)
    run.epoch.append(epoch)
    run.train_nll.append(train_nll)
    run.train_error_percent.append(train_error)
    run.test_nll.append(test_nll)
    run.test_error_percent.append(test_error)


def _share_of_steps(temperature_ratio: Sequence[float]) -> dict[str, float] | None:
    """By temperature band: cold is 1/g = 1, hot is above half of the highest 1/g, warm is between."""
    if not temperature_ratio:
        return None
    cold = statistics.fmean(ratio == 1.0 for ratio in temperature_ratio)
    hot = statistics.fmean(ratio > HIGHEST_RATIO / 2.0 for ratio in temperature_ratio)
    return {"cold": cold, "warm": 1.0 - cold - hot, "hot": hot}


# ---- what is shown ----


def build_table(runs: Sequence[Run]) -> Table:
    """One row per method; narrow enough for a terminal of 80 columns."""
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), title="5,000 digits, MLP 784-256-256-10", caption=CAPTION)
    table.add_column("method", no_wrap=True)
    for heading in (
        "train\nloss",
        "test\nloss",
        "test\nerror %",
        "temper-\nature T",
        "s per epoch\nexplore / tune",
        "exploration %\ncold/warm/hot",
    ):
        table.add_column(heading, justify="right", no_wrap=True)
    for run in runs:
        seconds = (run.seconds_per_exploring_epoch, run.seconds_per_fine_tuning_epoch)
        shares = run.share_of_steps
        table.add_row(
            run.method,
            f"{run.train_nll[-1]:.4f}",
            f"{run.test_nll[-1]:.4f}",
            f"{run.test_error_percent[-1]:.1f}",
            "–" if run.temperature is None else f"{run.temperature:.2g}",
            " / ".join("–" if value is None else f"{value:.3f}" for value in seconds),
            "–" if shares is None else " / ".join(f"{100 * shares[band]:.0f}" for band in ("cold", "warm", "hot")),
        )
    return table


# ---- files ----


def _replace(path: Path, write: Callable[[Path], Any]) -> None:
    """Write beside the file and rename: a reader sees the old one or the new one, never a part."""
    unfinished = path.with_name(f".{path.stem}.{os.getpid()}.unfinished{path.suffix}")
    try:
        write(unfinished)
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)


def save(runs: Sequence[Run], settings: dict[str, Any], directory: Path) -> list[Path]:
    """Figure and numbers; the paths that were written."""
    figure = build_figure(runs, exploration_epochs=settings["exploration_epochs"])
    results = {"settings": settings, "runs": [asdict(run) for run in runs]}
    text = json.dumps(results, indent=1, allow_nan=False)
    paths = [directory / name for name in ("demo.png", "demo.pdf", "demo.json")]
    _replace(paths[0], lambda path: figure.savefig(path, dpi=300))
    _replace(paths[1], lambda path: figure.savefig(path, metadata={"CreationDate": None}))
    _replace(paths[2], lambda path: path.write_text(text + "\n", encoding="utf-8"))
    return paths


# ---- command ----


class RateColumn(progress.ProgressColumn):
    """Steps per second, which rich has no column for."""

    def render(self, task: progress.Task) -> str:
        speed = task.finished_speed or task.speed
        return "" if speed is None else f"{speed:.0f} steps/s"


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m ctld_lab.demo",
        description="SGD with momentum against CTLD on 5,000 digits: a table, a figure and a file of results.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--dir", type=Path, default=Path("demo"), help="where the figure and the results go")
    parser.add_argument("--seed", type=int, default=0, help="of the split, the weights, the batches and the noise")
    parser.add_argument("--epochs", type=int, default=120, help="of 31 steps, for every method")
    parser.add_argument("--exploration-epochs", type=int, default=40, help="how many of them CTLD explores")
    options = parser.parse_args(arguments)
    if not 0 < options.exploration_epochs < options.epochs:
        parser.error(
            f"--exploration-epochs {options.exploration_epochs} does not fit --epochs {options.epochs}: "
            "both phases need at least one epoch"
        )
    if options.seed < 0:
        parser.error(f"--seed {options.seed} is negative; give 0 or more")
    return options


def train_all(options: argparse.Namespace, data: digits.Digits, console: Console) -> list[Run]:
    """One method after the other, each with a bar of its own."""
    columns = (
        progress.TextColumn("{task.description}"),
        progress.BarColumn(bar_width=16),
        progress.MofNCompleteColumn(),
        RateColumn(),
        progress.TimeElapsedColumn(),
        progress.TimeRemainingColumn(),
    )
    runs = []
    threads = torch.get_num_threads()
    # For so small a network a second thread gains a seventh, and beside busy programs it may cost a factor of ten.
    torch.set_num_threads(1)
    try:
        with progress.Progress(*columns, console=console) as bars:
            steps = options.epochs * data.steps_per_epoch
            tasks = [bars.add_task(method.name, total=steps, start=False) for method in METHODS]
            for method, task in zip(METHODS, tasks, strict=True):
                bars.start_task(task)
                runs.append(
                    train(
                        method,
                        data,
                        epochs=options.epochs,
                        exploration_epochs=options.exploration_epochs,
                        seed=options.seed,
                        advance=partial(bars.advance, task),
                    )
                )
    finally:
        torch.set_num_threads(threads)
    return runs


def main(arguments: Sequence[str] | None = None) -> None:
    """The command, with the arguments of the command line unless others are given."""
    options = parse(arguments)
    options.dir.mkdir(parents=True, exist_ok=True)  # a directory that cannot be made fails now, not after the training
    console = Console()
    start = time.perf_counter()
    data = digits.load(options.seed)
    runs = train_all(options, data, console)
    settings = {
        "seed": options.seed,
        "epochs": options.epochs,
        "exploration_epochs": options.exploration_epochs,
        "steps_per_epoch": data.steps_per_epoch,
        "batch_size": digits.BATCH_SIZE,
        "num_data": data.num_data,
        "lr": LEARNING_RATE,
        "momentum": MOMENTUM,
        "weight_decay": WEIGHT_DECAY,
        "versions": {"ctld": __version__, "torch": torch.__version__, "python": platform.python_version()},
        "seconds": time.perf_counter() - start,
    }
    console.print(build_table(runs))
    for path in save(runs, settings, options.dir):
        console.print(f"{path}", highlight=False, soft_wrap=True)


if __name__ == "__main__":
    main()
