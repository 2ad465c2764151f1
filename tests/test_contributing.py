"""The examples of CONTRIBUTING.md train, are saved and resumed to the bit; its numbers are the stored ones."""

import copy
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from ctld import CTLD

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


def example(name: str) -> Any:
    (code,) = (
        block for block in re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL) if f"class {name}(" in block
    )
    names: dict[str, Any] = {"__name__": "example"}
    exec(code, names)
    return names[name]


def train(weights: nn.Parameter, optimizer: Any, steps: int) -> None:
    for _ in range(steps):
        loss = 0.5 * weights.square().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step(loss=loss)


def build(kind: str) -> tuple[nn.Parameter, Any]:
    weights = nn.Parameter(torch.linspace(-1.0, 1.0, 50))
    if kind == "PerturbedSGD":
        return weights, example(kind)([weights], lr=0.05, radius=0.01, seed=1)
    options: dict[str, Any] = {
        "num_data": 100,
        "exploration_steps": 20,
        "temperature": 0.5,
        "weight_decay": 0.1,
        "seed": 1,
    }
    return weights, CTLD([weights], lr=0.05, tempering=example(kind)(5, 3.0), **options)


@pytest.mark.parametrize("kind", ["PerturbedSGD", "Steps"])
def test_it_resumes_to_the_bit(kind: str) -> None:
    weights, optimizer = build(kind)
    train(weights, optimizer, 7)
    again, other = build(kind)
    again.data.copy_(weights.data)
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for one, by in ((weights, optimizer), (again, other)):
        train(one, by, 7)
    assert torch.equal(weights, again)
    assert not torch.equal(weights, torch.linspace(-1.0, 1.0, 50))


def test_the_method_minimises_with_noise_of_its_size() -> None:
    weights, optimizer = build("PerturbedSGD")
    train(weights, optimizer, 400)
    # SGHMC's law with 2(1 − μ)·lr·T/N = radius²: Var θ = radius²/(2(1 − μ)·lr·k)/(1 − lr·k/(2(1 + μ))), 0.1² here. Fifty
    # elements tell a standard deviation to a tenth: three of these on either side.
    assert 0.07 < float(weights.detach().std()) < 0.13


def test_a_state_with_another_radius_is_refused() -> None:
    _, optimizer = build("PerturbedSGD")
    other = example("PerturbedSGD")([nn.Parameter(torch.zeros(50))], lr=0.05, radius=0.02, seed=1)
    with pytest.raises(ValueError, match=r"saved with radius = 0\.01"):
        other.load_state_dict(optimizer.state_dict())


def test_the_tempering_is_hot_first() -> None:
    weights, optimizer = build("Steps")
    ratios = []
    for _ in range(7):
        train(weights, optimizer, 1)
        ratios.append(optimizer.last.temperature_ratio)
    assert ratios == [3.0] * 5 + [1.0] * 2


def test_the_walk_names_files_that_exist() -> None:
    rows = [line.split("|")[2] for line in TEXT.splitlines() if re.match(r"\| \d+ \|", line)]
    names = [name for row in rows for name in re.findall(r"`([^`]+)`", row)]
    assert len(rows) <= 12
    for name in names:
        assert (ROOT / "src" / "ctld" / name).exists(), name


def stored(name: str) -> Any:
    return json.loads((ROOT / "results" / name).read_text(encoding="utf-8"))


def test_the_time_of_the_tests_and_the_score_of_the_mutants_are_the_stored_ones() -> None:
    timed, scores = stored("tests.json"), stored("mutation.json")
    minutes, seconds = divmod(round(timed["seconds"]), 60)
    said = " ".join(TEXT.split())
    assert f"{timed['tests']:,} tests in {minutes}:{seconds:02}" in said
    drawn, killed = sum(scores["counts"].values()), scores["counts"]["killed"]
    assert f"found {killed} of {drawn} small mistakes" in said
    assert drawn == len(scores["mutants"]) <= scores["known"]
    for record in (timed, scores):
        assert record["machine"]
        assert re.fullmatch(r"[0-9a-f]{40}", record["commit"])
        assert re.fullmatch(r"20\d\d-\d\d-\d\d", record["date"])
