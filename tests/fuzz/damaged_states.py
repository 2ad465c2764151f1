"""Damaged states: each is refused with a sentence and changes nothing, or loads and the run goes on.

`python tests/fuzz/damaged_states.py 10000 results/fuzz-states.json` runs it at length over all methods, `make test` a few
hundred.
"""

import copy
import json
import math
import platform
import random
import subprocess
import sys
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1]))
from ctld import NonFiniteError
from states.runs import RUNS, advance, build

NASTY: list[Any] = [
    *(None, True, "abc", "", [], {}, (), -1, 0, 1, 2.5, 3, 10**400, 2**63, -(2**70)),
    *(math.nan, math.inf, -math.inf, -1.0, 0.0, 1e308, -1e308, 5e-324, 1e9, 1j),
    *(
        torch.tensor(math.nan),
        torch.zeros(3),
        torch.zeros(2, 2, dtype=torch.int64),
        torch.zeros((), dtype=torch.complex64),
    ),
    *(torch.zeros(0), torch.full((40,), math.inf), torch.empty(3, device="meta")),
]
WITH_ROOM = ("ctld_thermometers", "ctld_tempering_means", "ctld_tempering_warm_up")
"""Tensors that are longer than what they hold: what is beyond it is not kept."""
METHODS = [name for name in RUNS if name not in ("sgd", "rmsprop", "adam", "adadelta")]  # those are torch's own


def places(state: dict[str, Any]) -> list[tuple[Any, Any]]:
    """Every entry that a state has: container and key."""
    found: list[tuple[Any, Any]] = [(state, key) for key in state]
    found += [(state["state"], key) for key in state["state"]]
    for entries in state["state"].values():
        found += [(entries, key) for key in entries]
    for group in state["param_groups"]:
        found += [(group, key) for key in group]
    return found


def damage(state: dict[str, Any], dice: random.Random) -> str:
    """Changes a state in one place; says how."""
    container, key = dice.choice(places(state))
    value = container[key]
    kind = dice.choice(("value", "value", "value", "element", "delete", "add", "dtype"))
    if kind == "delete":
        del container[key]
        return f"without {key}"
    if kind == "add":
        container["ctld_unknown" if isinstance(key, str) else 999] = dice.choice(NASTY)
        return f"something beside {key}"
    if kind == "element" and isinstance(value, Tensor) and value.is_floating_point() and value.numel():
        container[key] = value.clone()
        container[key].view(-1)[dice.randrange(value.numel())] = dice.choice((math.nan, math.inf, 1e30, -1.0))
        return f"an element of {key}"
    if kind == "dtype" and isinstance(value, Tensor):
        container[key] = value.to(dice.choice((torch.int64, torch.float16, torch.bool)))
        return f"{key} as {container[key].dtype}"
    container[key] = copy.deepcopy(dice.choice(NASTY))
    return f"{key} = {str(container[key])[:40]}"


def same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return (
            isinstance(other, Tensor)
            and one.dtype == other.dtype
            and torch.equal(one.nan_to_num(7), other.nan_to_num(7))
        )
    if isinstance(one, dict):
        return isinstance(other, dict) and one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    return bool(one == other or (one != one and other != other))


def attempt(name: str, saved: dict[str, Any], number: int) -> tuple[str, str]:
    """What became of one damaged state: the outcome, and how it was damaged."""
    dice = random.Random(number)
    candidate = copy.deepcopy(saved)
    how = damage(candidate, dice)
    optimizer, params = build(name)
    before = copy.deepcopy(optimizer.state_dict())
    try:
        optimizer.load_state_dict(candidate)
    except ValueError as error:
        if not same(before, optimizer.state_dict()):
            return "refused, but changed", how
        return ("refused" if len(str(error)) > 20 else "refused without a sentence"), how
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:120], how
    now, wanted = optimizer.state_dict()["param_groups"][0], candidate["param_groups"][0]
    kept = [key for key in wanted if key.startswith("ctld_") and key not in WITH_ROOM]
    odd = [key for key in kept if not same(wanted[key], now.get(key))]
    if odd:
        return f"loaded, but {odd[0]} is another", how
    try:
        advance(optimizer, params, 0, 2)
        optimizer.state_dict()
    except (NonFiniteError, FloatingPointError, UserWarning):
        return "loaded, and a later step was refused", how
    except Exception as error:
        return f"loaded, then {type(error).__name__}: {error}"[:120], how
    return "loaded", how


FINE = ("refused", "loaded", "loaded, and a later step was refused")


def fuzz(count: int, first: int = 0) -> tuple[Counter[str], list[str]]:
    """Outcomes of so many damaged states, dealt out over all methods; and what went wrong."""
    saved = {}
    outcomes: Counter[str] = Counter()
    wrong = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in METHODS:
            optimizer, params = build(name)
            advance(optimizer, params, 0, 4)
            saved[name] = copy.deepcopy(optimizer.state_dict())
        for number in range(first, first + count):
            name = METHODS[number % len(METHODS)]
            outcome, how = attempt(name, saved[name], number)
            outcomes[outcome if outcome in FINE else "wrong"] += 1
            if outcome not in FINE:
                wrong.append(f"{number} {name}, {how}: {outcome}")
    return outcomes, wrong


def store(output: Path, counts: Counter[str], wrong: list[str]) -> int:
    """Writes what was found, with what it was found on; returns 1 if anything was wrong."""
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
    about = {
        "command": " ".join(["python", *sys.argv]),
        "methods": METHODS,
        "commit": commit,
        "torch": torch.__version__,
        "machine": platform.machine(),
        "outcomes": dict(counts),
        "wrong": wrong,
    }
    unfinished = output.with_suffix(".unfinished")
    unfinished.write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
    unfinished.replace(output)
    return min(len(wrong), 1)


if __name__ == "__main__":
    sys.exit(store(Path(sys.argv[2]), *fuzz(int(sys.argv[1]))))
