"""Numbers and lists as text: as many digits as the interval warrants."""

import math
from collections.abc import Mapping, Sequence

from ctld_lab.statistics import Estimate

FILTERS = ("show", "show_estimate", "show_range", "show_setting", "show_seconds", "listed", "counted")
MINUS = "\N{MINUS SIGN}"
PLUS_MINUS = "\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}"


def show(value: float, digits: int = 4) -> str:
    """`digits` significant digits; 4.0e−11 for what is far from 1."""
    if not math.isfinite(value):
        return "–" if math.isnan(value) else "∞" if value > 0 else f"{MINUS}∞"
    if value == 0.0:
        return "0"
    exponent = math.floor(math.log10(abs(value)))
    if not -4 <= exponent <= 6:
        mantissa, power = f"{value:.{digits - 1}e}".split("e")
        if "." in mantissa:
            mantissa = mantissa.rstrip("0").rstrip(".")
        return f"{mantissa}e{int(power)}".replace("-", MINUS)
    return _fixed(value, max(0, digits - 1 - exponent))


def show_estimate(estimate: Estimate) -> str:
    """0.01234 ± 0.00041: the half width to two digits, the mean to the same place. Without an interval, the mean alone."""
    half = estimate.half_width
    if estimate.count == 0 or not math.isfinite(estimate.mean):
        return "–"
    if half is None or not math.isfinite(half):
        return show(estimate.mean)
    if half <= 1e-9 * abs(estimate.mean):  # equal, but for rounding
        return f"{show(estimate.mean)}{PLUS_MINUS}0"
    decimals = 1 - math.floor(math.log10(half))
    largest = max(abs(estimate.mean), half)
    if not -5 <= math.floor(math.log10(largest)) <= 6:
        return f"{show(estimate.mean)}{PLUS_MINUS}{show(half, 2)}"
    # A half width far below the mean says no more after six digits of the mean.
    decimals = min(decimals, 5 - math.floor(math.log10(largest)))
    return f"{_fixed(estimate.mean, decimals)}{PLUS_MINUS}{_fixed(half, decimals)}"


def show_range(estimate: Estimate) -> str:
    """1.010 [1.003, 1.018]: where the interval need not be symmetric."""
    if estimate.low is None or estimate.high is None or not estimate.high > estimate.low:
        return show(estimate.mean)
    decimals = max(0, -math.floor(math.log10((estimate.high - estimate.low) / 6.0)))
    return f"{_fixed(estimate.mean, decimals)} [{_fixed(estimate.low, decimals)}, {_fixed(estimate.high, decimals)}]"


def show_setting(value: float) -> str:
    """0.1, 20, 4e−11: what somebody chose, without digits that he did not give."""
    text = f"{value:.3g}".replace("e-0", "e-").replace("e+0", "e+")
    return text.replace("-", MINUS)


def show_settings(settings: Mapping[str, float]) -> str:
    """lr 0.1, friction 0.05."""
    return ", ".join(f"{name} {show_setting(value)}" for name, value in settings.items())


def show_seconds(seconds: float) -> str:
    """12 s, 3.4 min, 2.1 h."""
    if not math.isfinite(seconds):
        return "–"
    for unit, length in (("h", 3600.0), ("min", 60.0)):
        if seconds >= 1.5 * length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"


def listed(names: Sequence[str], word: str = "and") -> str:
    """a, b and c."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} {word} {names[-1]}" if names else ""


def counted(count: int, word: str, plural: str | None = None) -> str:
    """1 seed, 3 seeds."""
    return f"{count:,} {word if count == 1 else plural or word + 's'}"


def shortened(text: str, longest: int = 600) -> str:
    """An error may be a page long; its beginning says what it is."""
    return text if len(text) <= longest else text[: longest - 1] + "…"


def _fixed(value: float, decimals: int) -> str:
    text = f"{round(value, decimals) + 0.0:,.{max(decimals, 0)}f}"
    return text.replace("-", MINUS)
