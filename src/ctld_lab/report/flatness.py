"""Flat minima: does the paper's hypothesis hold in these runs? That exploration ends in flatter ones, and that flat is good."""

import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from ctld_lab.report import tidy
from ctld_lab.report.minima import DECAY, EIGENVALUE, GAP, GRADIENT, LOSS, SHARPNESS, TEMPERED, TEST
from ctld_lab.report.plots import COLOURS, LOG, Key, Panel, Plot, Series, method_key
from ctld_lab.report.provenance import Provenance
from ctld_lab.report.reading import StudyRecord
from ctld_lab.report.sections import Cell, Content, Prose, Table, cells, variant_title
from ctld_lab.report.wording import shortened, show, show_estimate
from ctld_lab.statistics import Association, Estimate, association, estimate, paired_difference

BESIDE = (TEST, LOSS, GRADIENT, GAP, TEMPERED, DECAY)
BASE = "sgd"
HOLDS, FAILS, OPEN, UNKNOWN = "holds", "does not hold", "is undecided", "cannot be told"
FEWEST = 4  # methods: 3! orders, the least share of them is a sixth
TOGETHER = "all together"
Group = tuple[str, str]
"""Variant (with the point, if any) and method."""


@dataclass(frozen=True)
class Part:
    """Measurements of one study. `label` distinguishes it from the others on a page."""

    study: StudyRecord
    label: str

    @property
    def facts(self) -> dict[str, Any]:
        return dict(self.study.description.get("flatness", {}))

    @cached_property
    def values(self) -> dict[Group, dict[str, dict[int, float]]]:
        """Measure and seed → value, by variant and method, in the order in which they are shown."""
        rows = self.study.table[self.study.table["at"] == tidy.MINIMUM]
        found: dict[Group, dict[str, dict[int, float]]] = {}
        for method, variant, point, _, metric, seed, value in rows.itertuples(index=False, name=None):
            group = " ".join(filter(None, (variant, ", ".join(point.replace("=", " = ").split("  "))))), method
            found.setdefault(group, {}).setdefault(metric, {})[int(seed or 0)] = value
        variants = sorted({variant for variant, _ in found}, key=lambda x: (("tuned", "paper", x).index(x), x))
        order = [*self.study.methods, *(method for _, method in found)]
        return {key: found[key] for key in sorted(found, key=lambda key: (variants.index(key[0]), order.index(key[1])))}

    @property
    def measures(self) -> list[str]:
        """Those of flatness, for which lower is flatter."""
        return [
            name for name in dict.fromkeys(name for own in self.values.values() for name in own) if name not in BESIDE
        ]

    @property
    def variants(self) -> list[str]:
        return list(dict.fromkeys(variant for variant, _ in self.values))

    def by_seed(self, variant: str, method: str, name: str) -> dict[int, float]:
        return self.values.get((variant, method), {}).get(name, {})

    def _of(self, variant: str, method: str, name: str) -> float:
        return next(iter(self.by_seed(variant, method, name).values()), math.nan)

    def tempered(self, variant: str) -> list[str]:
        """CTLD; where a study calls it otherwise, all that are made with it."""
        own = [method for other, method in self.values if other == variant]
        return ["ctld"] if "ctld" in own else [method for method in own if self._of(variant, method, TEMPERED) == 1]

    def other_decay(self, variant: str) -> bool:
        """True if what is compared with SGD-M was trained with another weight decay."""
        base = self._of(variant, BASE, DECAY)
        return not math.isnan(base) and any(self._of(variant, x, DECAY) != base for x in self.tempered(variant))

    def difference(self, variant: str, method: str, name: str) -> Estimate:
        """Paired by seed, from SGD-M."""
        return paired_difference(self.by_seed(variant, method, name), self.by_seed(variant, BASE, name))

    def flatter(self, variant: str, method: str) -> dict[str, str]:
        """Measure → is `method` flatter than SGD-M? By the sign of the paired difference: no margin of flatness is known."""
        return {name: _sign(self.difference(variant, method, name)) for name in self.measures}

    def correlation(self, variant: str, measure: str, quality: str) -> Association | None:
        groups = [key for key in self.values if variant in (key[0], TOGETHER)]
        return association([(self.by_seed(*key, measure), self.by_seed(*key, quality)) for key in groups])

    def goes_with(self, variant: str, quality: str) -> dict[str, str]:
        """Measure → do flatter models have a lower `quality`, the test loss or the gap?"""
        found = dict.fromkeys(self.measures, UNKNOWN)
        for name in found:
            seen = self.correlation(variant, name, quality)
            if seen is not None and seen.methods >= FEWEST:
                found[name] = OPEN if seen.probability >= 0.05 else HOLDS if seen.rho > 0 else FAILS
        return found


def _sign(found: Estimate) -> str:
    low, high = found.ends
    return UNKNOWN if math.isnan(low) else HOLDS if high < 0 else FAILS if low > 0 else OPEN


def content(parts: Sequence[Part]) -> Content:
    """Return the content for all studies in which flatness was measured."""
    found = Content(summary=summary(parts)) if parts else Content()
    for part in parts:
        found.tables += [_values(part), _differences(part), _correlations(part)]
    found.plots += [_plot(parts)] if parts else []
    return found


def summary(parts: Sequence[Part]) -> list[str]:
    """All claims counted over all readings."""
    places = [(part, variant) for part in parts for variant in part.variants]
    explored = [
        x
        for part, variant in places
        for method in part.tempered(variant)
        for x in part.flatter(variant, method).values()
    ]
    associated = {q: [x for part, variant in places for x in part.goes_with(variant, q).values()] for q in (TEST, GAP)}
    decays = list(dict.fromkeys(part.study.heading for part, variant in places if part.other_decay(variant)))
    return Prose("flatness").paragraphs("lead", explored=explored, associated=associated, decays=decays)


def provenance(parts: Sequence[Part], problems: Sequence[tuple[str, str]]) -> Provenance:
    """How it was measured."""
    facts, commands = [], []
    for part in parts:
        more = ", in eval mode and the same for all methods of a seed"
        facts += [(part.study.heading, words + more) for words in part.facts.get("what", [])]
        texts = part.facts.get("settings", [])
        facts += [("Settings", shortened(text.strip("{}").replace('"', ""))) for text in texts]
        commands.append(shlex.join(["ctld", "flatness", part.study.directory.path.resolve().name]))
    made = list(dict.fromkeys(x for part in parts for x in part.facts.get("made", [])))
    return Provenance(facts, commands, made, list(problems))


def _name(measure: str) -> str:
    text = {SHARPNESS: "sharpness, %"}.get(measure, measure)
    return text[0].upper() + text[1:]


def _values(part: Part) -> Table:
    columns = [TEST, LOSS, GRADIENT, *part.measures]
    body = []
    for variant, method in part.values:
        found = [estimate(list(part.by_seed(variant, method, name).values())) for name in columns]
        count = max(each.count for each in found)
        body.append(cells(part.study.title(method), variant, count, *map(show_estimate, found)))
    loose, several = part.facts.get("loose", []), part.facts.get("several", False)
    notes = Prose("flatness").paragraphs("values_notes", loose=loose, several=several)
    caption = f"{part.study.heading}: how flat the minima are"
    return Table(f"{part.label}-values", caption, ["Method", "Setting", "Runs", *map(_name, columns)], body, notes)


def _differences(part: Part) -> Table:
    marks = {HOLDS: "flatter", FAILS: "sharper"}
    body = []
    for variant, method in part.values:
        if method != BASE:
            found = [part.difference(variant, method, name) for name in part.measures]
            texts = [Cell(show_estimate(each), marks.get(_sign(each), "")) for each in found]
            body.append(cells(part.study.title(method), variant, *texts))
    caption, notes = (
        f"{part.study.heading}: paired differences from SGD-M",
        Prose("flatness").paragraphs("differences_notes"),
    )
    return Table(f"{part.label}-differences", caption, ["Method", "Setting", *map(_name, part.measures)], body, notes)


def _correlations(part: Part) -> Table:
    body = []
    together = len(part.variants) > 1 and part.facts.get("alike", False)
    for variant in [*part.variants, *([TOGETHER] if together else [])]:
        for measure in part.measures:
            found = [part.correlation(variant, measure, quality) for quality in (TEST, GAP)]
            texts = ["–" if x is None else f"{show(x.rho, 2)} (p = {show(x.probability, 2)})" for x in found]
            seen = found[0]
            of = f"{seen.runs} ({seen.methods} × {seen.runs // seen.methods})" if seen else "–"
            body.append(cells(_name(measure), variant, *texts, of))
    columns = ["Measure", "Setting", "ρ with test loss", "ρ with the gap", "Runs (methods × seeds)"]
    caption, notes = (
        f"{part.study.heading}: does flat go with good?",
        Prose("flatness").paragraphs("correlations_notes"),
    )
    return Table(f"{part.label}-correlations", caption, columns, body, notes)


def _plot(parts: Sequence[Part]) -> Plot:
    """Runs one by one."""
    panels, keys = [], dict[str, Key]()
    for part in parts:
        study = part.study
        for variant in part.variants:
            series = []
            for method in (method for other, method in part.values if other == variant):
                key = keys.setdefault(study.title(method), _key(method, study.title(method), study.methods))
                across, up = (part.by_seed(variant, method, name) for name in (EIGENVALUE, TEST))
                seeds = sorted(across.keys() & up.keys())
                series.append(Series(key, [across[seed] for seed in seeds], [up[seed] for seed in seeds]))
            heights = [y for each in series for y in each.y if math.isfinite(y)]
            log = bool(heights) and min(heights) > 0 and max(heights) > 3 * min(heights)
            title = f"{part.label}, {variant_title(variant).lower()}"
            more: dict[str, Any] = {"x": LOG, "y": LOG if log else "linear", "words": "no positive eigenvalue"}
            panels.append(Panel(title, series, "largest eigenvalue", "test loss", **more))
    return Plot("scatter", Prose("flatness")("caption"), panels, list(keys.values()), columns=2)


def _key(method: str, title: str, methods: Sequence[str]) -> Key:
    """A point; methods that the paper does not have share its colours, and have other shapes."""
    key = method_key(method, title, methods)
    marker = "o" if method in COLOURS else "s" if len(key.dashes) and key.dashes[0] > 2 else "^"
    return replace(key, dashes=(), marker=marker, line=False)
