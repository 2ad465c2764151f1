"""What temperings do on targets that are not Gaussian: funnel, nine modes, a small Bayesian network."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ctld_lab.records import number
from ctld_lab.report.reading import StudyRecord
from ctld_lab.report.sections import Cell, Content, Table
from ctld_lab.report.tables import as_csv
from ctld_lab.report.tempering_records import (
    CONFIGURATIONAL,
    KINETIC,
    NOTHING,
    Found,
    Group,
    found_in,
    rank,
    special,
    title,
    together,
)
from ctld_lab.report.wording import counted, listed, show

OFF = 3.0
"""Standard errors from which on an average counts as wrong."""
TWICE_CHANCE = 2.0
"""And how many times what chance gives, of the total variation of modes."""
_FIRST = (KINETIC, CONFIGURATIONAL, "U")


def add(study: StudyRecord, others: Sequence[Group], found: Content) -> None:
    """Sentences and a table, if the study has such runs."""
    if not others:
        return
    reference = special(study, "reference").get("means") or {}
    finished = [group for group in others if group.done or group.diverged]
    if finished:
        found.summary.append(" ".join(_sentence(group, reference) for group in finished))
    found.tables.append(_table(others, reference))


def answer(group: Group, name: str, reference: dict[str, object]) -> Found:
    """The exact value, or else what the reference found."""
    exact = group.expected(name)
    return exact if math.isfinite(exact.mean) else found_in(reference.get(name))


def averages(group: Group) -> list[str]:
    names = dict.fromkeys(name for run in group.done for name in run.result.get("means") or {})
    return [name for name in _FIRST if name in names] + [name for name in names if name not in _FIRST]


def modes(group: Group) -> tuple[float, float] | None:
    """Total variation of the shares of modes from the exact ones, and what chance gives when they are right."""
    rows = [run.result["shares"] for run in group.done if isinstance(run.result.get("shares"), list)]
    if not rows:
        return None
    shares = [together([found_in(share) for share in column]) for column in zip(*rows, strict=True)]
    exact = [number(share["expected"]) for share in rows[0]]
    variation = 0.5 * sum(abs(share.mean - value) for share, value in zip(shares, exact, strict=True))
    # The mean of |z| of a standard normal number is √(2/π).
    return variation, 0.5 * math.sqrt(2.0 / math.pi) * sum(share.error for share in shares)


@dataclass(frozen=True)
class Judged:
    """Averages that have an answer: how many agree with it; those that are off, in words; and how many nobody can tell."""

    agree: int
    off: list[str]
    unknown: int


def judged(group: Group, reference: dict[str, object]) -> Judged:
    """Off is three standard errors or more. An error that is not known shows no agreement."""
    agree, off, unknown = 0, [], 0
    for name in averages(group):
        found, exact = group.mean(name), answer(group, name, reference)
        if math.isnan(exact.mean):
            continue
        away = abs(found.away(exact))
        agree, unknown = agree + (away < OFF), unknown + math.isnan(away)
        if away >= OFF:
            off.append(f"{_shown(name)} {found} (right: {exact.right})")
    shares = modes(group)
    if shares:
        variation, limit = shares[0], TWICE_CHANCE * shares[1]
        agree, unknown = agree + (variation <= limit), unknown + math.isnan(variation - limit)
        if variation > limit:
            off.append(f"total variation of the modes {show(shares[0], 2)} (chance: {show(shares[1], 2)})")
    return Judged(agree, off, unknown)


def _sentence(group: Group, reference: dict[str, object]) -> str:
    where = f"{_named(group.target)}, {'no' if group.tempering == 'constant' else group.title} tempering"
    if not group.done:
        return f"{where}: {group.diverged}."
    where += f" ({group.diverged})" if group.diverged else ""
    found = judged(group, reference)
    count = found.agree + len(found.off)
    unknown = f"; {counted(found.unknown, 'average')} cannot be judged" if found.unknown else ""
    if not count:
        return f"{where}: measured, with nothing to compare{unknown}."
    rest = unknown + (
        f"; {group.crossing_rate()} changes of mode in 400,000 steps" if group.numbers("crossings") else ""
    )
    if not found.off:
        return f"{where}: {counted(count, 'average')} agree within three standard errors{rest}."
    verb = "is" if len(found.off) == 1 else "are"
    return f"{where}: of {counted(count, 'average')}, {len(found.off)} {verb} off: {listed(found.off)}{rest}."


def _named(target: str) -> str:
    return {"funnel": "Funnel", "nine-modes": "Nine modes", "network": "Bayesian network"}.get(target, target)


def _shown(name: str) -> str:
    if name in (KINETIC, CONFIGURATIONAL):
        return name
    return f"variance of {name.removeprefix('var ')}" if name.startswith("var ") else f"⟨{name}⟩"


def _table(others: Sequence[Group], reference: dict[str, object]) -> Table:
    labels = sorted({group.tempering for group in others}, key=rank)
    body, lines = [], []
    for target in dict.fromkeys(group.target for group in others):
        chosen = {group.tempering: group for group in others if group.target == target}
        names = list(dict.fromkeys(name for group in chosen.values() for name in averages(group)))
        for name in names:
            answers = [answer(group, name, reference) for group in chosen.values() if group.done]
            exact = next((each for each in answers if math.isfinite(each.mean)), NOTHING)
            cells = []
            for label in labels:
                found = chosen[label].mean(name) if label in chosen else NOTHING
                away = found.away(exact)
                known = math.isfinite(found.mean) and math.isfinite(exact.mean)
                mark = "off" if abs(away) >= OFF else "not judged" if known and math.isnan(away) else ""
                cells.append(Cell(str(found), mark))
                lines.append([target, label, name, found.mean, found.error, exact.mean, exact.error, away])
            body.append([Cell(_named(target)), Cell(_shown(name)), Cell(exact.right), *cells])
        shares = {label: modes(chosen[label]) for label in labels if label in chosen}
        if any(shares.values()):
            texts = [_against_chance(shares.get(label)) for label in labels]
            body.append([Cell(_named(target)), Cell("TV of the modes"), Cell("0"), *map(Cell, texts)])
            rates = [str(chosen[label].crossing_rate()) if label in chosen else "–" for label in labels]
            body.append([Cell(_named(target)), Cell("changes of mode"), Cell("–"), *map(Cell, rates)])
            for label, pair in shares.items():
                lines.append([target, label, "total variation of the modes", *(pair or ("", "")), 0.0, "", ""])
        states = [chosen[label].state if label in chosen else "–" for label in labels]
        trips = [_least(chosen[label].numbers("half_trips")) if label in chosen else "–" for label in labels]
        body.append([Cell(_named(target)), Cell("fewest half-trips"), Cell("–"), *map(Cell, trips)])
        body.append([Cell(_named(target)), Cell("runs"), Cell(""), *map(Cell, states)])
    header = ["target", "tempering", "average", "mean", "error", "expected", "expected_error", "errors_away"]
    notes = [
        "± is one standard error. “off” marks what is three standard errors or more from the right value, “not judged” what "
        "has no known error. The network's right values, with errors of their own, are those of replica exchange, by other "
        "code; f(x) is its prediction at x, and its variance is that over the posterior. Total variation of the modes stands "
        "beside what chance gives where all is right; changes of mode are per 400,000 steps."
    ]
    columns = ["Target", "Average at g = 1", "Right", *(title(label) for label in labels)]
    return Table("targets", "Targets that are not Gaussian", columns, body, as_csv(header, lines), notes)


def _against_chance(pair: tuple[float, float] | None) -> str:
    return "–" if pair is None else f"{show(pair[0], 2)} (chance: {show(pair[1], 2)})"


def _least(values: Sequence[float]) -> str:
    return f"{min(values):,.0f}" if values else "–"
