"""Flat minima: does the paper's hypothesis hold in these runs? That exploration ends in flatter ones, and that flat is good."""

import json
import math
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pandas as pd

from ctld_lab.records import RecordError
from ctld_lab.report.plots import COLOURS, LOG, Key, Panel, Plot, Series, method_key
from ctld_lab.report.provenance import Provenance
from ctld_lab.report.reading import RunRecord, StudyRecord, read_flat, read_tables
from ctld_lab.report.sections import Cell, Content, Prose, Table, cells, variant_title
from ctld_lab.report.shapes import TABLES, printable
from ctld_lab.report.wording import shortened, show, show_estimate, show_setting
from ctld_lab.statistics import Estimate, association, estimate, paired_difference

TEST, LOSS, GAP, GRADIENT = "test loss", "training loss", "gap", "gradient norm"
EIGENVALUE, TRACE, SHARPNESS = "largest eigenvalue", "trace", "sharpness"
BESIDE = (TEST, LOSS, GRADIENT, GAP)
NEEDED = [
    "eigenvalues",
    "residuals",
    "trace",
    "sharpness",
    "rises",
    "loss",
    "gradient_norm",
    "metric",
    "what",
    "settings",
]
ALTERED = "was measured with other settings than most; measure all alike, with --again"
BASE = "sgd"
HOLDS, FAILS, OPEN, UNKNOWN = "holds", "does not hold", "is undecided", "cannot be told"
FEWEST = 4  # methods: 3! orders, the least share of them is a sixth
FRAMES = ("values", "differences", "correlations", "seeds")
TOGETHER = "all together"


@dataclass
class Part:
    """What was measured of one study: from its runs, or as it was published."""

    study: StudyRecord
    label: str
    """Tells it from the others of a page, and names its files."""
    frames: dict[str, pd.DataFrame]
    problems: list[tuple[str, str]] = field(default_factory=list)
    """Records that are left out, and why."""
    what: list[str] = field(default_factory=list)
    settings: list[str] = field(default_factory=list)
    made: list[str] = field(default_factory=list)
    loose: list[str] = field(default_factory=list)
    """Runs whose largest eigenvalue is not found to 1 %."""
    several: bool = False
    """Runs kept several models, and this is of the last."""
    runs: int = 0

    @property
    def measures(self) -> list[str]:
        """Those of flatness, for which lower is flatter."""
        return [name for name in dict.fromkeys(self.frames["values"]["measure"]) if name not in BESIDE]

    @property
    def variants(self) -> list[str]:
        return list(dict.fromkeys(self.frames["values"]["variant"]))

    def tempered(self, variant: str) -> list[str]:
        """CTLD; where a study calls it otherwise, all that are made with it."""
        own = self.frames["values"].query("variant == @variant")
        return ["ctld"] if "ctld" in set(own["method"]) else list(dict.fromkeys(own.query("tempered == 1")["method"]))

    def other_decay(self, variant: str) -> bool:
        """Was what is called flatter or sharper than SGD-M trained with another weight decay?"""
        own = self.frames["values"].query("variant == @variant").drop_duplicates("method").set_index("method")
        decay = own["weight_decay"]
        return BASE in decay and any(decay[method] != decay[BASE] for method in self.tempered(variant))

    def flatter(self, variant: str, method: str) -> dict[str, str]:
        """Measure → is `method` flatter than SGD-M? By the sign of the paired difference: no margin of flatness is known."""
        chosen = self.frames["differences"].query("variant == @variant and method == @method")
        found = {line["measure"]: _sign(line["low"], line["high"]) for _, line in chosen.iterrows()}
        return dict.fromkeys(self.measures, UNKNOWN) | found

    def goes_with(self, variant: str, quality: str) -> dict[str, str]:
        """Measure → do flatter models have a lower `quality`, the test loss or the gap?"""
        chosen = self.frames["correlations"].query("variant == @variant and quality == @quality and methods >= @FEWEST")
        found = dict.fromkeys(self.measures, UNKNOWN)
        for _, line in chosen.iterrows():
            found[line["measure"]] = OPEN if line["p"] >= 0.05 else HOLDS if line["rho"] > 0 else FAILS
        return found


def _sign(low: float, high: float) -> str:
    return UNKNOWN if not math.isfinite(low) else HOLDS if high < 0 else FAILS if low > 0 else OPEN


# ---- from records ----


def read_flatness(study: StudyRecord, label: str = "") -> Part:
    """Of final runs that are done. A record that is broken, or was made with other settings than most, is told."""
    empty = {name: pd.DataFrame(columns=TABLES[f"flat-{name}"]) for name in FRAMES}
    if study.published:
        folder, name = study.directory.path.parent / "tables", study.directory.path.resolve().name
        return Part(study, label, empty | read_tables(folder, f"flat-minima-{name}-", "flat-"))
    records: dict[str, tuple[RunRecord, dict[str, Any]]] = {}
    problems: list[tuple[str, str]] = []
    for run in study.finals:
        try:
            record = read_flat(run.directory) if run.state == "done" and not run.diverged else {}
            missing = [name for name in NEEDED if name not in record or record[name] == []]
            if record and missing:
                path = run.directory.path / "flatness.json"
                raise RecordError(
                    f"{path} is not as it should be (without {', '.join(missing)}); measure it with --again"
                )
            if record:
                records[run.name] = run, record
        except (RecordError, OSError) as error:
            problems.append((run.name, shortened(printable(str(error)))))
    keys = {name: json.dumps([x["settings"], x["what"]], sort_keys=True) for name, (_, x) in records.items()}
    for variant in {run.variant for run, _ in records.values()}:  # each with a workload of its own, perhaps
        own = [name for name, (run, _) in records.items() if run.variant == variant]
        usual = Counter(keys[name] for name in own).most_common(1)[0][0]
        problems += [(name, ALTERED) for name in own if keys[name] != usual]
    kept = [records[name] for name in records if name not in dict(problems)]
    return Part(
        study, label, empty | _frames(study, kept), problems, what=list(dict.fromkeys(shortened(x["what"]) for _, x in kept)),
        settings=list(dict.fromkeys(json.dumps(x["settings"]) for _, x in kept)), runs=len(kept),
        made=list(dict.fromkeys(f"torch {x.get('torch')}, threads: {x.get('threads')}" for _, x in kept)),
        loose=[run.name for run, x in kept if x["residuals"][0] > 0.01 * abs(x["eigenvalues"][0])],
        several=any(run.result.get("members", 1) > 1 for run, _ in kept),
    )  # fmt: skip


def _measured(run: RunRecord, record: dict[str, Any]) -> dict[str, float]:
    """By name: the loss, its gradient, the measures, and the gap."""
    test = run.result.get("test", {})
    # Of the model that was kept: where a run judged several together, it is the last of them.
    names = (f"last_{record['metric']}", "last_nll", record["metric"])
    found = {TEST: next((float(test[key]) for key in names if key in test), math.nan), LOSS: record["loss"]}
    found |= {GRADIENT: record["gradient_norm"], EIGENVALUE: record["eigenvalues"][0]}
    found |= {TRACE: record["trace"].get("mean", math.nan), SHARPNESS: record["sharpness"]}
    for part in record["rises"]:
        found[f"rise at {show_setting(part.get('size', math.nan))}"] = part.get("mean", math.nan)
    return found | {GAP: found[TEST] - found[LOSS]}


def _tempered(run: RunRecord) -> bool:
    """By the paper's algorithm, whatever a study calls it; at T = 0 it would be SGD-M, at a constant T plain noise."""
    options = run.config.get("optimizer", {})
    tempering = options.get("tempering")
    constant = isinstance(tempering, dict) and tempering.get("kind") == "constant"
    return bool(run.config.get("algorithm", run.method) == "ctld" and options.get("temperature") != 0 and not constant)


def _frames(study: StudyRecord, kept: Sequence[tuple[RunRecord, dict[str, Any]]]) -> dict[str, pd.DataFrame]:
    groups: dict[tuple[str, str], dict[int, dict[str, float]]] = {}
    of_group: dict[tuple[str, str], list[Any]] = {}
    kinds = set()
    for run, record in kept:
        point = ", ".join(f"{key} = {value}" for key, value in run.point.items())
        key = " ".join(filter(None, (run.variant, point))), run.method
        groups.setdefault(key, {})[run.seed] = _measured(run, record)
        decay = run.config.get("optimizer", {}).get("weight_decay", 0.0)
        of_group.setdefault(key, [int(_tempered(run)), float(decay) if isinstance(decay, int | float) else math.nan])
        workload = run.config.get("workload")
        # Stages are models after one another, not another network.
        network = {name: x for name, x in workload.items() if name != "stages"} if isinstance(workload, dict) else {}
        kinds.add((record["what"], json.dumps(network, sort_keys=True)))
    variants = sorted(dict.fromkeys(key[0] for key in groups), key=lambda x: ("tuned", "paper", x).index(x))
    order = sorted(groups, key=lambda key: (variants.index(key[0]), [*study.methods, key[1]].index(key[1])))
    names = list(
        dict.fromkeys(name for own in groups.values() for each in own.values() for name in each if name != GAP)
    )

    def by_seed(key: tuple[str, str], name: str) -> dict[int, float]:
        return {seed: values[name] for seed, values in sorted(groups.get(key, {}).items()) if name in values}

    def line(key: tuple[str, str], name: str, found: Estimate) -> list[Any]:
        return [key[1], key[0], name, found.mean, *found.ends, found.count]

    lines: dict[str, list[list[Any]]] = {name: [] for name in FRAMES}
    for key in order:
        for name in [*names, GAP]:
            own = by_seed(key, name)
            lines["values"].append([*line(key, name, estimate(list(own.values()))), *of_group[key]])
            lines["seeds"] += [[key[1], key[0], name, seed, value] for seed, value in own.items()]
            if key[1] != BASE and name not in BESIDE:
                found = paired_difference(own, by_seed((key[0], BASE), name))
                lines["differences"].append(line(key, name, found))
    for variant in [*variants, *([TOGETHER] if len(variants) > 1 and len(kinds) == 1 else [])]:
        for name in (name for name in names if name not in BESIDE):
            for quality in (TEST, GAP):
                pairs = [(by_seed(key, name), by_seed(key, quality)) for key in order if variant in (key[0], TOGETHER)]
                if (seen := association(pairs)) is not None:
                    numbers = [seen.rho, seen.probability, seen.runs, seen.methods]
                    lines["correlations"].append([variant, name, quality, *numbers])
    return {name: pd.DataFrame(found, columns=TABLES[f"flat-{name}"]) for name, found in lines.items()}


# ---- the section ----


def content(parts: Sequence[Part]) -> Content:
    """Of all studies in which it was measured."""
    found = Content(summary=summary(parts)) if parts else Content()
    for part in parts:
        found.tables += [_values(part), _differences(part), _correlations(part)]
        found.data[f"{part.label}-seeds"] = part.frames["seeds"]
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
        facts += [
            (part.study.heading, f"{words}, in eval mode and the same for all methods of a seed") for words in part.what
        ]
        facts += [("Settings", shortened(settings.strip("{}").replace('"', ""))) for settings in part.settings]
        commands.append(shlex.join(["ctld", "flatness", part.study.directory.path.resolve().name]))
    return Provenance(facts, commands, list(dict.fromkeys(x for part in parts for x in part.made)), list(problems))


def _name(measure: str) -> str:
    text = {SHARPNESS: "sharpness, %"}.get(measure, measure)
    return text[0].upper() + text[1:]


def _rows(
    frame: pd.DataFrame, measures: Sequence[str], *, signed: bool = False
) -> Iterator[tuple[str, str, int, list[Cell]]]:
    """Method, variant, seeds, and each measure; of differences with what their sign says."""
    marks = {HOLDS: "flatter", FAILS: "sharper"} if signed else {}
    for (variant, method), part in frame.groupby(["variant", "method"], sort=False):
        lines = {line["measure"]: line for _, line in part.iterrows()}
        found = []
        for x in (lines[name] for name in measures):
            low, high = (None if math.isnan(x[end]) else x[end] for end in ("low", "high"))
            text = show_estimate(Estimate(x["mean"], low, high, int(x["count"])))
            found.append(Cell(text, marks.get(_sign(x["low"], x["high"]), "")))
        yield str(method), str(variant), int(part["count"].max()), found


def _values(part: Part) -> Table:
    columns, frame = [TEST, LOSS, GRADIENT, *part.measures], part.frames["values"]
    body = [cells(part.study.title(x), variant, count, *row) for x, variant, count, row in _rows(frame, columns)]
    notes = Prose("flatness").paragraphs("values_notes", loose=part.loose, several=part.several)
    header, caption = (
        ["Method", "Setting", "Runs", *map(_name, columns)],
        f"{part.study.heading}: how flat the minima are",
    )
    return Table(f"{part.label}-values", caption, header, body, frame, notes)


def _differences(part: Part) -> Table:
    frame, measures = part.frames["differences"], part.measures
    body = [cells(part.study.title(x), variant, *row) for x, variant, _, row in _rows(frame, measures, signed=True)]
    caption, header = (
        f"{part.study.heading}: paired differences from SGD-M",
        ["Method", "Setting", *map(_name, measures)],
    )
    return Table(
        f"{part.label}-differences", caption, header, body, frame, Prose("flatness").paragraphs("differences_notes")
    )


def _correlations(part: Part) -> Table:
    frame = part.frames["correlations"]
    known = {(x["variant"], x["measure"], x["quality"]): x for _, x in frame.iterrows()}
    body = []
    for variant in [*part.variants, *([TOGETHER] if TOGETHER in set(frame["variant"]) else [])]:
        for measure in part.measures:
            found = [known.get((variant, measure, quality)) for quality in (TEST, GAP)]
            texts = ["–" if x is None else f"{show(x['rho'], 2)} (p = {show(x['p'], 2)})" for x in found]
            runs, methods = (int(found[0][name]) for name in ("runs", "methods")) if found[0] is not None else (0, 1)
            of = f"{runs} ({methods} × {runs // methods})" if runs else "–"
            body.append(cells(_name(measure), variant, *texts, of))
    columns = ["Measure", "Setting", "ρ with test loss", "ρ with the gap", "Runs (methods × seeds)"]
    caption, notes = (
        f"{part.study.heading}: does flat go with good?",
        Prose("flatness").paragraphs("correlations_notes"),
    )
    return Table(f"{part.label}-correlations", caption, columns, body, frame, notes)


def _plot(parts: Sequence[Part]) -> Plot:
    """Runs one by one where they were kept, else the means of the methods."""
    panels, keys = [], dict[str, Key]()
    for part in parts:
        study, values, seeds = part.study, part.frames["values"], part.frames["seeds"]
        frame = seeds.rename(columns={"value": "mean"}) if len(seeds) else values
        for variant in part.variants:
            series = []
            for method in dict.fromkeys(values.query("variant == @variant")["method"]):
                key = keys.setdefault(study.title(method), _key(method, study.title(method), study.methods))
                own = (
                    frame.query("variant == @variant and method == @method").set_index("measure")["mean"].astype(float)
                )
                series.append(Series(key, own[[EIGENVALUE]].tolist(), own[[TEST]].tolist()))
            heights = [y for each in series for y in each.y if math.isfinite(y)]
            log = bool(heights) and min(heights) > 0 and max(heights) > 3 * min(heights)
            title = f"{part.label}, {variant_title(variant).lower()}"
            more: dict[str, Any] = {"x": LOG, "y": LOG if log else "linear", "words": "no positive eigenvalue"}
            panels.append(Panel(title, series, "largest eigenvalue", "test loss", **more))
    caption = Prose("flatness")("caption", runs=any(len(part.frames["seeds"]) for part in parts))
    return Plot("scatter", caption, panels, list(keys.values()), columns=2)


def _key(method: str, title: str, methods: Sequence[str]) -> Key:
    """A point; methods that the paper does not have share its colours, and have other shapes."""
    key = method_key(method, title, methods)
    marker = "o" if method in COLOURS else "s" if len(key.dashes) and key.dashes[0] > 2 else "^"
    return replace(key, dashes=(), marker=marker, line=False)
