"""Values printed in the paper, from printed.toml: claims, settings, and the values read off its figures."""

import tomllib
from pathlib import Path
from typing import Any

Value = float | tuple[float, float]
METHODS = ("sgd", "rmsprop", "adam", "anneal_sgd", "santa", "ctld")
PLATEAU, EDGE, DEPTH = 0.4, 1.5, 0.85  # δ, δ′ and S of Fig. 1
EPOCH = 18_000  # iterations of Fig. 3
PRINTED: dict[str, Any] = tomllib.loads(Path(__file__).with_name("printed.toml").read_text(encoding="utf-8"))
ITEMS, STEPS, SECONDS = (PRINTED[name] for name in ("items", "steps", "seconds"))


def values(table: dict[str, Any]) -> dict[str, Value]:
    """Return printed values by method; a list of two is a range."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in table.items()}


FIG_2 = values(PRINTED["fig-2"])
FIG_3 = {split: values(PRINTED["fig-3"][split]) for split in ("train", "test")}
FIG_4 = {float(S): float(value) for S, value in PRINTED["fig-4"]["S"].items()}


def ends(value: Value) -> tuple[float, float]:
    """Return the lowest and the highest number that a printed value may mean."""
    return value if isinstance(value, tuple) else (value, value)


def rates_of_sgd(study: str) -> dict[str, Value]:
    """Return the printed learning rates in SGD's units, those of the mean loss: N η² for CTLD, N η for Santa."""
    found, count = dict(PRINTED["rates"][study]), PRINTED["rates"]["N"][study]
    return found | {"ctld": count * found["ctld"] ** 2, "santa": count * found["santa"]}


def scaling(alpha: float) -> float:
    """Return g(α) as Eq. 6 has it."""
    z = min(max((abs(alpha) - PLATEAU) / (EDGE - PLATEAU), 0.0), 1.0)
    return 1.0 - DEPTH * (3 * z**2 - 2 * z**3)
