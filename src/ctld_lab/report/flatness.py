"""Flat minima: does the paper's hypothesis hold in these runs? That exploration ends in flatter ones, and that flat is good."""

import json
import math
import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from matplotlib.axes import Axes

from ctld_lab.report.flatness_records import EIGENVALUE, GAP, GRADIENT, LOSS, SHARPNESS, TEST, Flatness, Group
from ctld_lab.report.flatness_verdicts import BASE, associations, difference, summary, variants
from ctld_lab.report.plots import COLOURS, Key, Panel, Plot, method_key, no_data, plain_log
from ctld_lab.report.provenance import Provenance
from ctld_lab.report.sections import Cell, Content, Table, variant_title
from ctld_lab.report.statistics import Estimate
from ctld_lab.report.tables import as_csv
from ctld_lab.report.wording import listed, shortened, show, show_estimate

NAMES = {SHARPNESS: "sharpness, %"}

VALUES_NOTE = (
    "± is the half width of a 95 % interval over seeds (Student's t). Lower is flatter. Rises of the loss are under Gaussian "
    "noise of that size, relative to each tensor's root mean square; sharpness is Keskar's. A network that is not trained to "
    "the end is in no minimum: see its training loss and gradient. Networks of different kinds cannot be compared."
)
LAST_NOTE = "Where a run kept several models, all of this is of the last one alone, the test loss too."
DIFFERENCES_NOTE = (
    "Below zero: flatter than SGD-M with the same initial weights and batches. An interval that holds zero decides nothing. No "
    "correction for several comparisons."
)
CORRELATIONS_NOTE = (
    "Spearman's ρ over runs; above zero: flatter goes with better. p is the share of the orders of the methods, each with all "
    "its seeds, that have a ρ as far from zero: runs of one method are not independent. The gap is test minus training loss."
)


def content(parts: Sequence[Flatness]) -> Content:
    """Of all studies in which it was measured."""
    found = Content()
    for part in parts:
        found.tables += [_values(part), _differences(part), _correlations(part)]
    if parts:
        found.summary = summary(parts)
        found.plots.append(_plot(parts))
    return found


def provenance(parts: Sequence[Flatness], problems: Sequence[tuple[str, str]]) -> Provenance:
    """How it was measured."""
    facts, commands = [], []
    for part in parts:
        for words in dict.fromkeys(measured.what for measured in part.measured):
            facts.append((part.title, f"{words}, in eval mode and the same for all methods of a seed"))
        for settings in dict.fromkeys(json.dumps(measured.settings) for measured in part.measured):
            facts.append(("Settings", shortened(settings.strip("{}").replace('"', ""))))
        commands.append(shlex.join(["ctld", "flatness", part.study.directory.path.resolve().name]))
    made = list(dict.fromkeys(measured.made for part in parts for measured in part.measured))
    return Provenance(facts, commands, made, list(problems))


# ---- tables ----


def _name(measure: str) -> str:
    text = NAMES.get(measure, measure)
    return text[0].upper() + text[1:]


def _values(part: Flatness) -> Table:
    columns = [TEST, LOSS, GRADIENT, *part.measures]
    body = [
        [
            Cell(group.title),
            Cell(group.variant),
            Cell(str(len(group.runs))),
            *(Cell(show_estimate(group.estimate(name))) for name in columns),
        ]
        for group in part.groups
    ]
    csv = _csv((group, name, group.estimate(name)) for group in part.groups for name in [*columns, GAP])
    notes = [VALUES_NOTE]
    loose = [measured.run.name for measured in part.measured if not measured.converged]
    if loose:
        notes.append(
            f"The largest eigenvalue is not found to 1 % in {listed(loose[:4])}{' and others' if len(loose) > 4 else ''}."
        )
    if any(_several(measured.run.result.get("members")) for measured in part.measured):
        notes.append(LAST_NOTE)
    caption = f"{part.title}: how flat the minima are"
    return Table(f"{part.label}-values", caption, ["Method", "Setting", "Runs", *map(_name, columns)], body, csv, notes)


def _several(members: Any) -> bool:
    return isinstance(members, int) and members > 1


def _differences(part: Flatness) -> Table:
    body, lines = [], []
    for group in part.groups:
        rows = [row for row in part.groups if row.variant == group.variant]
        if group.method == BASE:
            continue
        found = {measure: difference(rows, group, measure) for measure in part.measures}
        body.append(
            [Cell(group.title), Cell(group.variant), *(Cell(show_estimate(found[measure])) for measure in found)]
        )
        lines += [(group, measure, found[measure]) for measure in found]
    caption = f"{part.title}: paired differences from SGD-M"
    columns = ["Method", "Setting", *map(_name, part.measures)]
    return Table(f"{part.label}-differences", caption, columns, body, _csv(lines), [DIFFERENCES_NOTE])


def _correlations(part: Flatness) -> Table:
    body, lines = [], []
    found = variants(part.groups)
    for variant in [*found, *(["all together"] if len(found) > 1 and part.comparable else [])]:
        rows = [group for group in part.groups if variant in (group.variant, "all together")]
        by_quality = {quality: associations(part, rows, quality) for quality in (TEST, GAP)}
        for measure in part.measures:
            cells = [Cell(_name(measure)), Cell(variant)]
            for quality, by_measure in by_quality.items():
                one = by_measure[measure]
                cells.append(Cell("–" if one is None else f"{show(one.rho, 2)} (p = {show(one.probability, 2)})"))
                if one is not None:
                    lines.append(
                        [variant, measure, quality, repr(one.rho), repr(one.probability), one.runs, one.methods]
                    )
            known = by_quality[TEST][measure]
            cells.append(
                Cell("–" if known is None else f"{known.runs} ({known.methods} × {known.runs // known.methods})")
            )
            body.append(cells)
    columns = ["Measure", "Setting", "ρ with test loss", "ρ with the gap", "Runs (methods × seeds)"]
    csv = as_csv(["variant", "measure", "quality", "rho", "p", "runs", "methods"], lines)
    caption = f"{part.title}: does flat go with good?"
    return Table(f"{part.label}-correlations", caption, columns, body, csv, [CORRELATIONS_NOTE])


def _csv(rows: Iterable[tuple[Group, str, Estimate]]) -> bytes:
    lines = []
    for group, name, found in rows:
        numbers = ["" if x is None or not math.isfinite(x) else repr(x) for x in (found.mean, found.low, found.high)]
        lines.append([group.method, group.variant, name, *numbers, found.count])
    return as_csv(["method", "variant", "measure", "mean", "low", "high", "count"], lines)


# ---- figure ----


def _plot(parts: Sequence[Flatness]) -> Plot:
    panels = []
    keys: dict[str, Key] = {}
    for part in parts:
        for group in part.groups:
            keys.setdefault(group.title, _key(part, group))
        for variant in variants(part.groups):
            rows = [group for group in part.groups if group.variant == variant]
            panels.append(Panel(f"{part.label}, {variant_title(variant).lower()}", _scatter(part, rows)))
    caption = (
        "Test loss of each final model against the largest eigenvalue of the Hessian of its training loss. If flat were good, "
        "the points would rise to the right."
    )
    return Plot("scatter", caption, panels, list(keys.values()), columns=2)


def _key(part: Flatness, group: Group) -> Key:
    """A point; methods that the paper does not have share its colours, and have other shapes."""
    key = method_key(group.method, group.title, part.study.methods)
    marker = "o" if group.method in COLOURS else "s" if len(key.dashes) and key.dashes[0] > 2 else "^"
    return replace(key, dashes=(), marker=marker, line=False)


def _scatter(part: Flatness, rows: Sequence[Group]) -> Callable[[Axes], None]:
    def draw(axes: Axes) -> None:
        points = []
        for group in rows:
            across, up = group.by_seed(EIGENVALUE), group.by_seed(TEST)
            own = [
                (across[seed], up[seed]) for seed in across if 0 < across[seed] < math.inf and math.isfinite(up[seed])
            ]
            style: dict[str, Any] = _key(part, group).style() | {"alpha": 0.85}
            axes.plot([x for x, _ in own], [y for _, y in own], **style)
            points += own
        if not points:
            return no_data(axes, "no positive eigenvalue")
        plain_log(axes, "x", [x for x, _ in points])
        heights = [y for _, y in points]
        if min(heights) > 0 and max(heights) > 3 * min(heights):
            plain_log(axes, "y", heights)
        axes.set(xlabel="largest eigenvalue", ylabel="test loss")
        return None

    return draw
