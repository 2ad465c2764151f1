"""How hot CTLD was: its temperature T, and where α spent the exploration. A table for studies of methods."""

import math

import pandas as pd

from ctld_lab.report import tidy
from ctld_lab.report.reading import StudyRecord
from ctld_lab.report.sections import Content, Prose, Table, cells, setting_title, variant_title
from ctld_lab.report.wording import show, show_setting

# The paper's tempering, as `ctld.Tempering.paper` has it: g = 1 below the plateau's end, and α belongs within the edge.
PLATEAU, EDGE = 0.4, 1.5
UNIFORM_SHARE = PLATEAU / EDGE  # of time at g = 1, were α uniform
MUCH_OUTSIDE = 0.2
THERMOMETERS = {"kinetic": "Kinetic", "configurational": "Configurational", "minibatch_heat": "Minibatch heat"}
COLUMNS = ["temperature", "cold_share", "share_outside", "highest_ratio", *THERMOMETERS]


def temperatures(study: StudyRecord) -> pd.DataFrame:
    """Return a row for each variant and stage of CTLD: means over seeds, the highest 1/g, and the number of seeds."""
    rows = study.places(COLUMNS).reindex(columns=[*tidy.COLUMNS, "stage"])
    rows = rows[(rows["method"] == "ctld") & rows["stage"].notna()]
    keys = ["variant", "stage"]
    found = rows.pivot_table(index=keys, columns="metric", values="value", aggfunc="mean").reindex(columns=COLUMNS)
    highest = rows[rows["metric"] == "highest_ratio"].groupby(keys)["value"].max()
    seeds = rows.groupby(keys)["seed"].agg(lambda texts: len(set(" ".join(texts).split())))
    found = found.assign(highest_ratio=highest, seeds=seeds).reset_index()
    order = found["variant"].map(lambda variant: ["tuned", "paper", variant].index(variant))
    return (
        found.assign(order=order, stage=found["stage"].astype(int)).sort_values(["order", *keys]).drop(columns="order")
    )


def add(study: StudyRecord, found: Content) -> None:
    """Add the table, and a sentence where α was outside too much; nothing if no record has them."""
    frame = temperatures(study)
    if frame.empty:
        return
    layered = frame["stage"].max() > 1
    for variant, own in frame[frame["share_outside"] > MUCH_OUTSIDE].groupby("variant", sort=False):
        shares = [
            f"{_percent(line['share_outside'])} of it" + (f" in layer {line['stage']}" if layered else "")
            for _, line in own.iterrows()
        ]
        found.summary.append(Prose("common")("outside", variant=variant_title(str(variant)), shares=shares))
    measured = [name for name in THERMOMETERS if frame[name].notna().any()]
    body = [
        cells(
            setting_title(x["variant"]), *([x["stage"]] if layered else []), show_setting(x["temperature"]),
            _percent(x["cold_share"]), _percent(x["share_outside"]), show(x["highest_ratio"], 3),
            *(show(x[name], 3) for name in measured), x["seeds"],
        )
        for _, x in frame.iterrows()
    ]  # fmt: skip
    columns = ["Setting", *(["Layer"] if layered else []), "T", "Exploration at g = 1", f"Outside, |α| > {EDGE:g}"]
    columns += ["Highest 1/g", *(THERMOMETERS[name] for name in measured), "Seeds"]
    notes = Prose("common").paragraphs("temperature", seeds=int(frame["seeds"].max()), measured=bool(measured))
    found.tables.append(Table("temperature", "CTLD's temperature", columns, body, notes))


def _percent(share: float) -> str:
    return f"{100.0 * share:.0f}\N{NO-BREAK SPACE}%" if math.isfinite(share) else "–"
