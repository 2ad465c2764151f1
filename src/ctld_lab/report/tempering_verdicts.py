"""What is asked of calibrated tempering on the double well, judged from records; and what the other temperings sample there."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ctld_lab.report.tempering_records import KINETIC, Found, Group, percent, rank
from ctld_lab.report.wording import listed, show

SQUARE_WITHIN, KINETIC_WITHIN = 0.01, 0.02
LARGEST_VARIATION = 0.10
LEAST_RATIO = 100.0
LEAST_TRIPS = 20
ERRORS_IN_ONE_DIMENSION = 2.0
"""Standard errors that the kinetic temperature may be off besides, at d = 1, where one run knows it to no better."""


HOLDS, FAILS, UNDECIDED = "holds", "does not hold", "is undecided"
RULE = (
    "A requirement holds if the estimate is within its limit by one standard error, does not hold if it is beyond by more than "
    "two, and is undecided otherwise; for the kinetic temperature at d = 1 it holds up to two standard errors beyond 2 %, if "
    "one is no more than 2 %. A tempering that diverged in any run does not hold."
)


@dataclass(frozen=True)
class Verdict:
    """Whether a requirement holds in these dimensions, and the number it rests on."""

    group: Group
    outcome: str
    value: str
    distance: float
    """From what is ideal, to find the worst."""


def _outcome(beyond: float, error: float) -> str:
    """Of how far an estimate is beyond its limit, negative if within. An error that is not known decides nothing."""
    return HOLDS if beyond + error <= 0 else FAILS if beyond - 2 * error > 0 else UNDECIDED


def square_verdict(group: Group) -> Verdict:
    off = deviation(group, "x²")
    return Verdict(group, _outcome(abs(off.mean) - SQUARE_WITHIN, off.error), percent(off), abs(off.mean))


def kinetic_verdict(group: Group) -> Verdict:
    off = deviation(group, KINETIC)
    beyond = abs(off.mean) - KINETIC_WITHIN
    outcome = _outcome(beyond, off.error)
    if group.dimensions == 1 and beyond <= ERRORS_IN_ONE_DIMENSION * off.error:
        outcome = HOLDS if off.error <= KINETIC_WITHIN else UNDECIDED
    return Verdict(group, outcome, percent(off), abs(off.mean))


def variation_verdict(group: Group) -> Verdict:
    largest = _worst(max, group.numbers("total_variation"))
    return Verdict(group, _outcome(largest - LARGEST_VARIATION, 0.0), show(largest, 2), largest)


def trips_verdict(group: Group) -> Verdict:
    fewest = _worst(min, group.numbers("half_trips"))
    return Verdict(group, _outcome(LEAST_TRIPS - fewest, 0.0), "–" if math.isnan(fewest) else f"{fewest:,.0f}", -fewest)


def ratio_verdict(group: Group, rate: Found) -> Verdict:
    ratio = group.crossing_rate().over(rate)
    return Verdict(group, _outcome(LEAST_RATIO - ratio.mean, ratio.error), str(ratio), -ratio.mean)


def _worst(choose: Callable[[Sequence[float]], float], values: Sequence[float]) -> float:
    """Not a number, if one of them is none or there are none."""
    return choose(values) if values and not any(map(math.isnan, values)) else math.nan


def square_ratio(group: Group) -> Found:
    return group.mean("x²").over(group.expected("x²"))


def deviation(group: Group, name: str) -> Found:
    """Relative, from the exact value."""
    ratio = group.mean(name).over(group.expected(name))
    return Found(ratio.mean - 1.0, ratio.error)


def required(wells: Sequence[Group], rate: Found, without: str) -> str:
    """A sentence for each requirement, at the depth of the paper. `without` says why there is no rate, should that be so."""
    calibrated = [group for group in wells if group.tempering == "calibrated" and (group.done or group.diverged)]
    if not calibrated:
        return ""
    asked: list[tuple[str, str, Callable[[Group], Verdict]]] = [
        ("⟨x²⟩ at g = 1 within 1 % of exact", "largest deviation", square_verdict),
        (
            "kinetic temperature at g = 1 within 2 % (at d = 1, and two standard errors)",
            "largest deviation",
            kinetic_verdict,
        ),
        ("total variation of |α| at most 0.10 in each run", "largest", variation_verdict),
        ("at least 20 half-trips in each run", "fewest", trips_verdict),
    ]
    crossings = "at least 100 times the crossings without tempering"
    if math.isfinite(rate.mean):
        words = f"{crossings} ({rate} per 400,000 steps)"
        asked.append((words, "smallest ratio", lambda group: ratio_verdict(group, rate)))
    sentences = [
        _judged(words, extreme, [_judge(group, verdict) for group in calibrated]) for words, extreme, verdict in asked
    ]
    if not math.isfinite(rate.mean):
        sentences.append(f"A{crossings[1:]}: cannot be told, since the run that counts those {without}.")
    return "Calibrated tempering on the double well, BAOAB. " + " ".join(sentences)


def _judge(group: Group, verdict: Callable[[Group], Verdict]) -> Verdict:
    return Verdict(group, FAILS, group.diverged, math.inf) if group.diverged else verdict(group)


def _judged(words: str, extreme: str, verdicts: Sequence[Verdict]) -> str:
    begun = words[0].upper() + words[1:]
    held = [verdict for verdict in verdicts if verdict.outcome == HOLDS]
    if len(held) == len(verdicts):
        worst = max(verdicts, key=lambda verdict: verdict.distance)
        places = listed([verdict.group.place for verdict in verdicts])
        return f"{begun}: holds at {places}; the {extreme} is {worst.value}, at {worst.group.place}."
    parts = []
    for outcome in (FAILS, UNDECIDED):
        those = [f"{verdict.group.place} ({verdict.value})" for verdict in verdicts if verdict.outcome == outcome]
        parts += [f"{outcome} at {listed(those)}"] if those else []
    parts += [f"holds at {listed([verdict.group.place for verdict in held])}"] if held else []
    return f"{begun}: {', '.join(parts)}."


def twin(wells: Sequence[Group]) -> str:
    """What is wrong on purpose has to be found out by the same rule."""
    sentences = []
    for group in wells:
        if group.tempering == "half-the-force" and (group.done or group.diverged):
            found = f"its kinetic temperature is {group.mean(KINETIC)} at {group.place}"
            found += f" ({group.diverged})" if group.diverged else ""
            if kinetic_verdict(group).outcome == FAILS:
                sentences.append(f"The twin with half the force on α fails, as it must: {found}.")
            else:
                sentences.append(
                    f"The twin with half the force on α is not found out: {found}. The comparison says nothing."
                )
    return " ".join(sentences)


def others(wells: Sequence[Group]) -> str:
    """What the other temperings sample; the table has the numbers one by one."""
    sentences = []
    for label in sorted({group.tempering for group in wells}, key=rank):
        own = [group for group in wells if group.tempering == label]
        chosen = [group for group in own if group.done]
        if label in ("calibrated", "half-the-force"):
            continue
        lost = [f"{group.diverged} at {group.place}" for group in own if group.diverged]
        if lost:
            name = own[0].title
            sentences.append(f"{name[0].upper()}{name[1:]}: {listed(lost)}.")
        if not chosen:
            continue
        kinetic = [group.mean(KINETIC).mean for group in chosen]
        square = max((deviation(group, "x²") for group in chosen), key=lambda found: abs(found.mean))
        name, where = chosen[0].title, listed([group.place for group in chosen])
        span = show(kinetic[0], 3) if len(kinetic) == 1 else f"{show(min(kinetic), 3)} to {show(max(kinetic), 3)}"
        sentences.append(
            f"{name[0].upper()}{name[1:]}: kinetic temperature {span} at {where}; ⟨x²⟩ off by {percent(square)} at most."
        )
    return " ".join(sentences)
