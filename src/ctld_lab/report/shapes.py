"""Shapes of records. `fit` returns a record whose numbers are floats and whose words are printable, or refuses it.

Records come from disks and strangers. Code that reads a fitted record may rely on its shape: a failure there is our own bug.
A shape is NUMBER, WHOLE, FLAG, TEXT or ANYTHING, a list of one shape, a dictionary of shapes by key (`...` for all other keys),
or a tuple of alternatives. Keys may be missing; null counts as missing, a number that is null as NaN.
"""

import math
from pathlib import Path
from typing import Any

from ctld_lab.files import RecordError, printable
from ctld_lab.report.wording import shortened

NUMBER, WHOLE, FLAG, TEXT, ANYTHING = "a number", "a whole number", "true or false", "a text", "anything"
LONGEST = 4000  # letters of a text


def fit(value: Any, shape: Any, where: str = "") -> Any:
    """The value in this shape. Raises RecordError with the place of what does not fit."""
    if isinstance(shape, tuple):
        for alternative in shape:
            try:
                return fit(value, alternative, where)
            except RecordError:
                continue
        raise _misfit(value, " or ".join(map(_name, shape)), where)
    if isinstance(shape, dict):
        if not isinstance(value, dict):
            raise _misfit(value, _name(shape), where)
        rest = shape.get(..., ANYTHING)
        found = {}
        for key, item in value.items():
            expected, name = shape.get(key, rest), printable(str(key))
            if item is not None or expected == NUMBER:
                found[name] = fit(item, expected, f"{where}.{name}" if where else name)
        return found
    if isinstance(shape, list):
        if not isinstance(value, list):
            raise _misfit(value, _name(shape), where)
        return [fit(item, shape[0], f"{where}[{place}]") for place, item in enumerate(value)]
    return _plain(value, shape, where)


def fitted(record: dict[str, Any], shape: dict[Any, Any], path: Path, remedy: str) -> dict[str, Any]:
    """Return the record of a file in this shape, or refuse it with the file's name and the remedy."""
    try:
        return dict(fit(record, shape))
    except RecordError as error:
        raise RecordError(f"{path} is not as it should be ({error}); {remedy}") from None


def _plain(value: Any, shape: str, where: str) -> Any:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if shape == NUMBER and (number or value is None or value in ("nan", "inf", "-inf")):
        try:
            return float("nan" if value is None else value)
        except OverflowError:
            raise _misfit(value, NUMBER, where) from None
    if shape == WHOLE and number and math.isfinite(value) and value == int(value) and abs(value) < 2**63:
        return int(value)
    if shape == FLAG and isinstance(value, bool | int):
        return bool(value)
    if shape == TEXT and isinstance(value, str):
        return shortened(printable(value), LONGEST)
    if shape == ANYTHING:
        return _cleaned(value)
    raise _misfit(value, shape, where)


def _cleaned(value: Any) -> Any:
    if isinstance(value, dict):
        return {printable(str(key)): _cleaned(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_cleaned(item) for item in value]
    return shortened(printable(value), LONGEST) if isinstance(value, str) else value


def _name(shape: Any) -> str:
    return "an object" if isinstance(shape, dict) else "a list" if isinstance(shape, list) else str(shape)


def _misfit(value: Any, expected: str, where: str) -> RecordError:
    return RecordError(f"{where or 'it'} is {shortened(printable(repr(value)), 60)}, not {expected}")


# ---- the records of the laboratory ----

SCORES = {...: NUMBER}
MEAN = {"mean": NUMBER, "error": NUMBER, "expected": NUMBER}
PRINTED = {...: (TEXT, NUMBER)}
STUDY = {
    **dict.fromkeys(("study", "title", "figure", "scale", "varied", "tuned", "fixed", "published", "machine"), TEXT),
    "methods": [TEXT], "titles": {...: TEXT}, "seeds": [WHOLE], "commands": [TEXT], "data": {...: ANYTHING},
    "settings": {"grid_seeds": WHOLE, "workloads": {...: {...: ANYTHING}}}, "searches": {...: {...: TEXT}},
    "flatness": {
        "what": [TEXT], "settings": [TEXT], "made": [TEXT], "loose": [TEXT], "several": FLAG, "alike": FLAG, "runs": WHOLE,
    },
    "paper": {
        "values": PRINTED, "seconds_per_epoch": SCORES, "defaults": SCORES, "steps": WHOLE, "num_data": NUMBER,
        "note": TEXT, "split": TEXT,
    },
}  # fmt: skip
CONFIG = {
    **dict.fromkeys(("kind", "role", "method", "variant", "target", "algorithm"), TEXT),
    "tempering": (TEXT, ANYTHING), "seed": WHOLE, "dimensions": WHOLE, "period": WHOLE, "num_data": NUMBER,
    "point": {...: (NUMBER, TEXT)}, "steps": (WHOLE, [WHOLE]), "depth": (NUMBER, TEXT), "optimizer": {...: ANYTHING},
}  # fmt: skip
STAGE = {
    **dict.fromkeys(("train", "test", "valid"), SCORES),
    "temperature": NUMBER,
    "tempering": ({**dict.fromkeys(("cold_share", "share_outside", "highest_ratio", "mean_ratio"), NUMBER)}, TEXT),
    "thermometers": {...: {...: (MEAN, ANYTHING)}},
}
SLOPE = dict.fromkeys(("slope", "error", "bound", "from", "to", "misfit"), NUMBER)
RESULT = {
    **STAGE, "stages": [STAGE], "diverged": FLAG, "steps": WHOLE, "num_data": NUMBER, "members": WHOLE,
    "seconds": (SCORES, NUMBER), "rounds": WHOLE, "undisturbed": NUMBER,
    "methods": {...: {"rounds": WHOLE, ...: NUMBER}},
    **dict.fromkeys(("kinetic_target", "mean_square_exact", "crossings", "half_trips", "total_variation"), NUMBER),
    "means": {...: MEAN}, "shares": [MEAN], "crossing_rate": MEAN,
    "step_sizes": [{"lengths": [SCORES], "slopes": {...: SLOPE}, ...: NUMBER}], "slopes": {...: SLOPE},
}  # fmt: skip
LINE = {
    **STAGE,
    **dict.fromkeys(("step", "temperature_ratio"), NUMBER),
    **dict.fromkeys(("stage", "round"), WHOLE),
    "thorough": FLAG,
    **dict.fromkeys(("seconds", "waiting"), SCORES),
}
ENVIRONMENT = {
    "versions": {...: TEXT}, "commit": TEXT, "machine": TEXT, "dirty": FLAG, "threads": WHOLE, "cores": WHOLE, "notes": [TEXT],
}  # fmt: skip
TRIAL = {
    "run": TEXT, "parameters": {...: NUMBER}, "value": NUMBER, "seconds": NUMBER, "diverged": FLAG, "failed": FLAG,
}  # fmt: skip
TUNING = {
    "trials": [TRIAL], "chosen": {...: NUMBER}, "value": NUMBER, "space": {...: [NUMBER]}, "criterion": TEXT, "search": TEXT,
}  # fmt: skip
FLATNESS = {
    "eigenvalues": [NUMBER], "residuals": [NUMBER], "trace": MEAN, "sharpness": NUMBER,
    "rises": [{"size": NUMBER, "mean": NUMBER}], "loss": NUMBER, "gradient_norm": NUMBER, "metric": TEXT, "what": TEXT,
    "settings": {...: ANYTHING}, "torch": TEXT, "threads": WHOLE,
}  # fmt: skip
