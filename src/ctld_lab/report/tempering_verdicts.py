"""What is asked of calibrated tempering on the double well, judged from records; and what the other temperings sample there."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ctld_lab.report.tempering_records import KINETIC, Found, Group, percent, rank
from ctld_lab.report.wording import listed, show

SQUARE_WITHIN, KINETIC_WITHIN = 0.01, 0.02
LARGEST_VARIATION = 0.10
LEAST_RATIO = 100.0
LEAST_TRIPS = 20
ERRORS_IN_ONE_DIMENSION = 2.0
"""Standard errors that the kinetic temperature may be off besides, at d = 1, where one run knows it to no better."""


@dataclass(frozen=True)
class Verdict:
    """Whether a requirement holds in these dimensions, and the number it rests on."""

    group: Group
    holds: bool
    value: str
    distance: float
    """From what is ideal, to find the worst."""


def square_verdict(group: Group) -> Verdict:
    off = deviation(group, "x²")
    return Verdict(group, abs(off.mean) <= SQUARE_WITHIN, percent(off), abs(off.mean))


def kinetic_verdict(group: Group) -> Verdict:
    off = deviation(group, KINETIC)
    allowed = KINETIC_WITHIN + (ERRORS_IN_ONE_DIMENSION * off.error if group.dimensions == 1 else 0.0)
    return Verdict(group, abs(off.mean) <= allowed, percent(off), abs(off.mean))


def variation_verdict(group: Group) -> Verdict:
    largest = max(group.numbers("total_variation"), default=math.nan)
    return Verdict(group, largest <= LARGEST_VARIATION, show(largest, 2), largest)


def trips_verdict(group: Group) -> Verdict:
    fewest = min(group.numbers("half_trips"), default=math.nan)
    return Verdict(group, fewest >= LEAST_TRIPS, f"{fewest:,.0f}", -fewest)


def ratio_verdict(group: Group, rate: Found) -> Verdict:
    ratio = group.crossing_rate().over(rate)
    return Verdict(group, ratio.mean >= LEAST_RATIO, str(ratio), -ratio.mean)


def square_ratio(group: Group) -> Found:
    return group.mean("x²").over(group.expected("x²"))


def deviation(group: Group, name: str) -> Found:
    """Relative, from the exact value."""
    ratio = group.mean(name).over(group.expected(name))
    return Found(ratio.mean - 1.0, ratio.error)


def required(wells: Sequence[Group], rate: Found) -> str:
    """A sentence for each requirement, at the depth of the paper."""
    calibrated = [group for group in wells if group.tempering == "calibrated" and group.done]
    if not calibrated:
        return ""
    asked: list[tuple[str, str, list[Verdict]]] = [
        ("⟨x²⟩ at g = 1 within 1 % of exact", "largest deviation", [square_verdict(group) for group in calibrated]),
        (
            "kinetic temperature at g = 1 within 2 % (at d = 1, and two standard errors)",
            "largest deviation",
            [kinetic_verdict(group) for group in calibrated],
        ),
        (
            "total variation of |α| at most 0.10 in each run",
            "largest",
            [variation_verdict(group) for group in calibrated],
        ),
        ("at least 20 half-trips in each run", "fewest", [trips_verdict(group) for group in calibrated]),
    ]
    if math.isfinite(rate.mean):
        words = f"at least 100 times the crossings without tempering ({rate} per 400,000 steps)"
        asked.append((words, "smallest ratio", [ratio_verdict(group, rate) for group in calibrated]))
    sentences = [_judged(*each) for each in asked]
    return "Calibrated tempering on the double well, BAOAB. " + " ".join(sentences)


def _judged(words: str, extreme: str, verdicts: Sequence[Verdict]) -> str:
    held = [verdict for verdict in verdicts if verdict.holds]
    missed = [verdict for verdict in verdicts if not verdict.holds]
    begun = words[0].upper() + words[1:]
    if not missed:
        worst = max(verdicts, key=lambda verdict: verdict.distance)
        places = listed([verdict.group.place for verdict in verdicts])
        return f"{begun}: holds at {places}; the {extreme} is {worst.value}, at {worst.group.place}."
    values = listed([f"{verdict.group.place} ({verdict.value})" for verdict in missed])
    holds = f", holds at {listed([verdict.group.place for verdict in held])}" if held else ""
    return f"{begun}: does not hold at {values}{holds}."


def twin(wells: Sequence[Group]) -> str:
    """What is wrong on purpose has to be found out by the same rule."""
    sentences = []
    for group in wells:
        if group.tempering == "half-the-force" and group.done:
            found = f"its kinetic temperature is {group.mean(KINETIC)} at {group.place}"
            if kinetic_verdict(group).holds:
                sentences.append(
                    f"The twin with half the force on α is not found out: {found}. The comparison says nothing."
                )
            else:
                sentences.append(f"The twin with half the force on α fails, as it must: {found}.")
    return " ".join(sentences)


def others(wells: Sequence[Group]) -> str:
    """What the other temperings sample; the table has the numbers one by one."""
    sentences = []
    for label in sorted({group.tempering for group in wells}, key=rank):
        chosen = [group for group in wells if group.tempering == label and group.done]
        if label in ("calibrated", "half-the-force") or not chosen:
            continue
        kinetic = [group.mean(KINETIC).mean for group in chosen]
        square = max((deviation(group, "x²") for group in chosen), key=lambda found: abs(found.mean))
        name, where = chosen[0].title, listed([group.place for group in chosen])
        span = show(kinetic[0], 3) if len(kinetic) == 1 else f"{show(min(kinetic), 3)} to {show(max(kinetic), 3)}"
        sentences.append(
            f"{name[0].upper()}{name[1:]}: kinetic temperature {span} at {where}; ⟨x²⟩ off by {percent(square)} at most."
        )
    return " ".join(sentences)
