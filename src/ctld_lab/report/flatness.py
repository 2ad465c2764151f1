"""Flat minima: does the paper's hypothesis hold in these runs? That exploration ends in flatter ones, and that flat is good."""

import json
import math
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from ctld_lab.report.flatness_records import EIGENVALUE, GAP, GRADIENT, LOSS, SHARPNESS, TEST, Flatness, Group
from ctld_lab.report.plots import COLOURS, LOG, Key, Panel, Plot, Series, method_key
from ctld_lab.report.provenance import Provenance
from ctld_lab.report.sections import Content, Prose, Table, cells, variant_title
from ctld_lab.report.shapes import TABLES
from ctld_lab.report.statistics import Estimate, association, paired_difference
from ctld_lab.report.wording import shortened, show, show_estimate

BASE = "sgd"
HOLDS, FAILS, OPEN, UNKNOWN = "holds", "does not hold", "is undecided", "cannot be told"
FEWEST = 4  # methods: 3! orders, the least share of them is a sixth
VALUES, DIFFERENCES, CORRELATIONS, SEEDS = (
    TABLES[f"flat-{name}"] for name in ("values", "differences", "correlations", "seeds")
)
TOGETHER = "all together"


@dataclass(frozen=True)
class Part:
    """The tables of one study: from its runs, or as they were published."""

    source: Flatness
    values: pd.DataFrame
    differences: pd.DataFrame
    correlations: pd.DataFrame
    seeds: pd.DataFrame

    @property
    def title(self) -> str:
        return self.source.study.heading

    @property
    def variants(self) -> list[str]:
        return list(dict.fromkeys(self.values["variant"]))

    def tempered(self, variant: str) -> list[str]:
        """CTLD; where a study calls it otherwise, all that are made with it."""
        own = self.values[self.values["variant"] == variant]
        methods = list(dict.fromkeys(own.loc[own["tempered"] == 1, "method"]))
        return ["ctld"] if "ctld" in set(own["method"]) else methods

    def other_decay(self, variant: str) -> bool:
        """Was what is called flatter or sharper than SGD-M trained with another weight decay?"""
        own = (
            self.values[self.values["variant"] == variant].drop_duplicates("method").set_index("method")["weight_decay"]
        )
        return BASE in own and any(own[method] != own[BASE] for method in self.tempered(variant))

    def flatter(self, variant: str, method: str) -> dict[str, str]:
        """Measure → is `method` flatter than SGD-M? By the sign of the paired difference: no margin of flatness is known."""
        chosen = self.differences[(self.differences["variant"] == variant) & (self.differences["method"] == method)]
        found = dict.fromkeys(self.source.measures, UNKNOWN)
        for _, line in chosen.iterrows():
            if math.isfinite(line["low"]):
                found[line["measure"]] = HOLDS if line["high"] < 0 else FAILS if line["low"] > 0 else OPEN
        return found

    def goes_with(self, variant: str, quality: str) -> dict[str, str]:
        """Measure → do flatter models have a lower `quality`, the test loss or the gap?"""
        chosen = self.correlations[
            (self.correlations["variant"] == variant) & (self.correlations["quality"] == quality)
        ]
        found = dict.fromkeys(self.source.measures, UNKNOWN)
        for _, line in chosen[chosen["methods"] >= FEWEST].iterrows():
            found[line["measure"]] = OPEN if line["p"] >= 0.05 else HOLDS if line["rho"] > 0 else FAILS
        return found


def part_of(source: Flatness) -> Part:
    if source.tables:
        tables = source.tables
        seeds = tables.get("seeds", pd.DataFrame(columns=SEEDS))
        return Part(source, tables["values"], tables["differences"], tables["correlations"], seeds)
    groups, columns = source.groups, [TEST, LOSS, GRADIENT, *source.measures, GAP]
    values = [
        [*_line(group, name, group.estimate(name)), int(group.tempered), group.weight_decay]
        for group in groups
        for name in columns
    ]
    differences = []
    for group in groups:
        first = next((x for x in groups if x.variant == group.variant and x.method == BASE), None)
        for measure in source.measures if group.method != BASE else ():
            found = paired_difference(group.by_seed(measure), first.by_seed(measure) if first else {})
            differences.append(_line(group, measure, found))
    seeds = [
        [group.method, group.variant, name, seed, value]
        for group in groups
        for name in columns
        for seed, value in sorted(group.by_seed(name).items())
    ]
    frames = (values, VALUES), (differences, DIFFERENCES), (_correlations(source, groups), CORRELATIONS), (seeds, SEEDS)
    return Part(source, *(pd.DataFrame(lines, columns=header) for lines, header in frames))


def _line(group: Group, name: str, found: Estimate) -> list[Any]:
    return [group.method, group.variant, name, found.mean, *found.ends, found.count]


def _correlations(source: Flatness, groups: Sequence[Group]) -> list[list[Any]]:
    variants = list(dict.fromkeys(group.variant for group in groups))
    lines = []
    for variant in [*variants, *([TOGETHER] if len(variants) > 1 and source.comparable else [])]:
        own = [group for group in groups if variant in (group.variant, TOGETHER)]
        for measure in source.measures:
            for quality in (TEST, GAP):
                found = association([(group.by_seed(measure), group.by_seed(quality)) for group in own])
                if found is not None:
                    lines.append([variant, measure, quality, found.rho, found.probability, found.runs, found.methods])
    return lines


# ---- the section ----


def content(sources: Sequence[Flatness]) -> Content:
    """Of all studies in which it was measured."""
    found = Content()
    parts = [part_of(source) for source in sources]
    for part in parts:
        found.tables += [_values(part), _differences(part), _correlation_table(part)]
        found.data[f"{part.source.label}-seeds"] = part.seeds
    if parts:
        found.summary = summary(parts)
        found.plots.append(_plot(parts))
    return found


def summary(parts: Sequence[Part]) -> list[str]:
    """All claims counted over all readings, then a paragraph for each study and setting."""
    places = [(part, variant) for part in parts for variant in part.variants]
    explored = [
        x
        for part, variant in places
        for method in part.tempered(variant)
        for x in part.flatter(variant, method).values()
    ]
    associated = {q: [x for part, variant in places for x in part.goes_with(variant, q).values()] for q in (TEST, GAP)}
    prose = Prose("flatness")
    decays = list(dict.fromkeys(part.title for part, variant in places if part.other_decay(variant)))
    found = prose.paragraphs("lead", explored=explored, associated=associated, decays=decays)
    for part, variant in places:
        known = part.correlations[(part.correlations["variant"] == variant) & (part.correlations["quality"] == TEST)]
        found += prose.paragraphs(
            "paragraph", part=part, title=part.title, variant=variant_title(variant).lower(),
            explored=[(part.source.study.title(x), list(_sorted(part.flatter(variant, x)))) for x in part.tempered(variant)],
            good=list(_sorted(part.goes_with(variant, TEST))), gap=list(_sorted(part.goes_with(variant, GAP))),
            runs=int(known["runs"].iloc[0]) if len(known) else 0, methods=int(known["methods"].iloc[0]) if len(known) else 0,
        )  # fmt: skip
    return found


def _sorted(verdicts: dict[str, str]) -> Iterator[tuple[str, list[str], bool]]:
    """Verdict, the measures that have it, and whether all do."""
    for verdict in (HOLDS, FAILS, OPEN, UNKNOWN):
        names = [measure for measure, found in verdicts.items() if found == verdict]
        if names:
            yield verdict, names, len(names) == len(verdicts) > 1


def provenance(sources: Sequence[Flatness], problems: Sequence[tuple[str, str]]) -> Provenance:
    """How it was measured."""
    facts, commands = [], []
    for source in sources:
        for words in dict.fromkeys(measured.what for measured in source.measured):
            facts.append((source.study.heading, f"{words}, in eval mode and the same for all methods of a seed"))
        for settings in dict.fromkeys(json.dumps(measured.settings) for measured in source.measured):
            facts.append(("Settings", shortened(settings.strip("{}").replace('"', ""))))
        commands.append(shlex.join(["ctld", "flatness", source.study.directory.path.resolve().name]))
    made = list(dict.fromkeys(measured.made for source in sources for measured in source.measured))
    return Provenance(facts, commands, made, list(problems))


def _name(measure: str) -> str:
    text = {SHARPNESS: "sharpness, %"}.get(measure, measure)
    return text[0].upper() + text[1:]


def _estimates(frame: pd.DataFrame, measures: Sequence[str]) -> Iterator[tuple[str, str, int, list[str]]]:
    """Method, variant, seeds, and each measure as text."""
    for (variant, method), part in frame.groupby(["variant", "method"], sort=False):
        lines = {line["measure"]: line for _, line in part.iterrows()}
        found = []
        for name in measures:
            line = lines[name]
            low, high = (None if math.isnan(line[end]) else line[end] for end in ("low", "high"))
            found.append(show_estimate(Estimate(line["mean"], low, high, int(line["count"]))))
        yield str(method), str(variant), int(part["count"].max()), found


def _values(part: Part) -> Table:
    columns = [TEST, LOSS, GRADIENT, *part.source.measures]
    study = part.source.study
    body = [
        cells(study.title(x), variant, count, *texts) for x, variant, count, texts in _estimates(part.values, columns)
    ]
    loose = [measured.run.name for measured in part.source.measured if not measured.converged]
    several = any(measured.run.result.get("members", 1) > 1 for measured in part.source.measured)
    notes = Prose("flatness").paragraphs("values_notes", loose=loose, several=several)
    header = ["Method", "Setting", "Runs", *map(_name, columns)]
    return Table(
        f"{part.source.label}-values", f"{part.title}: how flat the minima are", header, body, part.values, notes
    )


def _differences(part: Part) -> Table:
    study, measures = part.source.study, part.source.measures
    body = [cells(study.title(x), variant, *texts) for x, variant, _, texts in _estimates(part.differences, measures)]
    caption, header = f"{part.title}: paired differences from SGD-M", ["Method", "Setting", *map(_name, measures)]
    notes = Prose("flatness").paragraphs("differences_notes")
    return Table(f"{part.source.label}-differences", caption, header, body, part.differences, notes)


def _correlation_table(part: Part) -> Table:
    body = []
    known = {(x["variant"], x["measure"], x["quality"]): x for _, x in part.correlations.iterrows()}
    extra = [TOGETHER] if TOGETHER in set(part.correlations["variant"]) else []
    for variant in [*part.variants, *extra]:
        for measure in part.source.measures:
            found = [known.get((variant, measure, quality)) for quality in (TEST, GAP)]
            texts = ["–" if x is None else f"{show(x['rho'], 2)} (p = {show(x['p'], 2)})" for x in found]
            runs, methods = (int(found[0][name]) for name in ("runs", "methods")) if found[0] is not None else (0, 1)
            body.append(
                cells(_name(measure), variant, *texts, f"{runs} ({methods} × {runs // methods})" if runs else "–")
            )
    columns = ["Measure", "Setting", "ρ with test loss", "ρ with the gap", "Runs (methods × seeds)"]
    caption, notes = f"{part.title}: does flat go with good?", Prose("flatness").paragraphs("correlations_notes")
    return Table(f"{part.source.label}-correlations", caption, columns, body, part.correlations, notes)


# ---- figure ----


def _plot(parts: Sequence[Part]) -> Plot:
    """Runs one by one where they were kept, else the means of the methods."""
    panels, keys = [], dict[str, Key]()
    for part in parts:
        study = part.source.study
        frame = part.seeds.rename(columns={"value": "mean"}) if len(part.seeds) else part.values
        for variant in part.variants:
            series = []
            for method in dict.fromkeys(part.values.loc[part.values["variant"] == variant, "method"]):
                key = keys.setdefault(study.title(method), _key(method, study.title(method), study.methods))
                own = frame[(frame["variant"] == variant) & (frame["method"] == method)]
                across, up = (
                    own.loc[own["measure"] == name, "mean"].astype(float).tolist() for name in (EIGENVALUE, TEST)
                )
                series.append(Series(key, across, up))
            heights = [y for each in series for y in each.y if math.isfinite(y)]
            log = bool(heights) and min(heights) > 0 and max(heights) > 3 * min(heights)
            title = f"{part.source.label}, {variant_title(variant).lower()}"
            more: dict[str, Any] = {"x": LOG, "y": LOG if log else "linear", "words": "no positive eigenvalue"}
            panels.append(Panel(title, series, "largest eigenvalue", "test loss", **more))
    caption = Prose("flatness")("caption", runs=any(len(part.seeds) for part in parts))
    return Plot("scatter", caption, panels, list(keys.values()), columns=2)


def _key(method: str, title: str, methods: Sequence[str]) -> Key:
    """A point; methods that the paper does not have share its colours, and have other shapes."""
    key = method_key(method, title, methods)
    marker = "o" if method in COLOURS else "s" if len(key.dashes) and key.dashes[0] > 2 else "^"
    return replace(key, dashes=(), marker=marker, line=False)
