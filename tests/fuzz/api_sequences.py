"""Random sequences of calls: a run that is resumed again and again has the bits of one that is not; a refusal changes nothing.

`python tests/fuzz/api_sequences.py 650 results/fuzz-sequences.json` runs it at length over all methods, `make test` some.
"""

import copy
import io
import math
import random
import sys
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1]))
from ctld import NonFiniteError
from fuzz.damaged_states import METHODS, same, store
from states.runs import build, gradients

LENGTH = 30
ACTIONS = ("step",) * 8 + (
    "closure",
    "observed",
    "nan",
    "no gradient",
    "lr",
    "freeze",
    "read",
    "copy",
    "resume",
    "resume",
    "group",
)


class Pair:
    """One run as it is, and one that is given up and resumed; both are told the same."""

    def __init__(self, name: str, dice: random.Random) -> None:
        self.name, self.dice, self.step = name, dice, 0
        self.runs = [build(name), build(name)]
        self.added = 0
        self.resumes = 0

    def both(self, act: Any) -> None:
        """Does it to both runs, each with the same luck; both raise or none does, and who raises has not changed."""
        luck, raised = self.dice.random(), []
        for optimizer, params in self.runs:
            before = snapshot(optimizer, params)
            try:
                act(optimizer, params, random.Random(luck))
                raised.append("")
            except (ValueError, NonFiniteError) as error:
                raised.append(f"{type(error).__name__}: {error}")
                if len(str(error)) < 20 or not same(before, snapshot(optimizer, params)):
                    raise AssertionError(f"refused without a sentence, or changed: {error}") from error
        assert raised[0] == raised[1], raised

    def act(self, action: str) -> None:
        if action == "resume":
            optimizer, params = self.runs[1]
            self.runs[1] = resumed(self.name, optimizer, params, self.added)
            self.resumes += 1
        elif action == "group" and self.added < 2:
            self.added += 1
            self.both(lambda optimizer, params, luck: add_group(optimizer, params))
        elif action in CALLS:
            self.both(lambda optimizer, params, luck: CALLS[action](optimizer, params, self.step, luck))
            self.step += 1

    def differs(self) -> bool:
        (_, one), (_, other) = self.runs
        return not all(map(torch.equal, one, other))


def snapshot(optimizer: Any, params: list[Tensor]) -> Any:
    return copy.deepcopy((optimizer.state_dict(), [parameter.detach() for parameter in params]))


def add_group(optimizer: Any, params: list[Tensor]) -> None:
    fresh = torch.nn.Parameter(torch.linspace(-1, 1, 9, dtype=params[0].dtype))
    params.append(fresh)
    optimizer.add_param_group({"params": [fresh]})


def resumed(name: str, optimizer: Any, params: list[Tensor], added: int) -> tuple[Any, list[Tensor]]:
    """Through a file, into a new optimizer of parameters that have the same values."""
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    again, other = build(name)
    for _ in range(added):
        add_group(again, other)
    for new, old in zip(other, params, strict=True):
        new.data.copy_(old.data)
        new.requires_grad_(old.requires_grad)
    again.load_state_dict(torch.load(file, weights_only=True))
    return again, other


def step(optimizer: Any, params: list[Tensor], number: int, luck: random.Random) -> None:
    loss = gradients(params, number)
    optimizer.step(loss=torch.tensor(loss, dtype=torch.float64) if luck.random() < 0.3 else loss)


def closure(optimizer: Any, params: list[Tensor], number: int, luck: random.Random) -> None:
    optimizer.step(lambda: gradients(params, number))


def observed(optimizer: Any, params: list[Tensor], number: int, luck: random.Random) -> None:
    loss = gradients(params, number)
    for _ in range(2):
        optimizer.observe(loss)
    optimizer.step()


def nan(optimizer: Any, params: list[Tensor], number: int, luck: random.Random) -> None:
    loss = gradients(params, number)
    if getattr(optimizer, "check_gradients", False) and getattr(optimizer, "exploring", True):  # no other looks
        if luck.random() < 0.5:
            params[luck.randrange(4)].grad.view(-1)[0] = math.nan
        else:
            loss = math.inf
    optimizer.step(loss=loss)


def no_gradient(optimizer: Any, params: list[Tensor], number: int, luck: random.Random) -> None:
    loss = gradients(params, number)
    params[luck.randrange(len(params))].grad = None
    optimizer.step(loss=loss)


def change_lr(optimizer: Any, params: list[Tensor], number: int, luck: random.Random) -> None:
    factor = luck.choice((0.5, 0.9, 1.0, 0.0))
    for group in optimizer.param_groups:
        group.setdefault("initial_lr", float(group["lr"]))
        group["lr"] = factor * group["initial_lr"]
    step(optimizer, params, number, luck)


def freeze(optimizer: Any, params: list[Tensor], number: int, luck: random.Random) -> None:
    chosen = params[luck.randrange(len(params))]
    loss = gradients(params, number)
    chosen.requires_grad_(not chosen.requires_grad)
    if not chosen.requires_grad:
        chosen.grad = None
    optimizer.step(loss=loss)


def read(optimizer: Any, params: list[Tensor], number: int, luck: random.Random) -> None:
    repr(optimizer)
    _ = getattr(optimizer, "last", None), getattr(optimizer, "temperature", None)
    optimizer.zero_grad()
    step(optimizer, params, number, luck)


def deep_copy(optimizer: Any, params: list[Tensor], number: int, luck: random.Random) -> None:
    copy.deepcopy(optimizer)
    step(optimizer, params, number, luck)


CALLS = {
    "step": step,
    "closure": closure,
    "observed": observed,
    "nan": nan,
    "no gradient": no_gradient,
    "lr": change_lr,
    "freeze": freeze,
    "read": read,
    "copy": deep_copy,
}


def fuzz(count: int, first: int = 0) -> tuple[Counter[str], list[str]]:
    """Counts of sequences, calls and resumes, dealt out over all methods; and what went wrong."""
    counts: Counter[str] = Counter()
    wrong = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number in range(first, first + count):
            name = METHODS[number % len(METHODS)]
            dice = random.Random(number)
            pair, done = Pair(name, dice), []
            counts["sequences"] += 1
            try:
                for _ in range(LENGTH):
                    done.append(dice.choice(ACTIONS))
                    pair.act(done[-1])
                    counts["calls"] += 1
                    if pair.differs():
                        raise AssertionError("the resumed run has left the other")
            except Exception as error:
                wrong.append(f"{number} {name}, {', '.join(done[-6:])}: {type(error).__name__}: {error}"[:600])
            counts["resumes"] += pair.resumes
    return counts, wrong


if __name__ == "__main__":
    sys.exit(store(Path(sys.argv[2]), *fuzz(int(sys.argv[1]))))
