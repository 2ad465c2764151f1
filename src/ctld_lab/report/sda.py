"""Figure 2: the stacked autoencoder, layer by layer, and the temperature while the final layer explores."""

from collections.abc import Sequence

import pandas as pd

from ctld_lab.report import temperature
from ctld_lab.report.curves import curve_panel, curves_frame, curves_plot, ratio_panel, trace_frame
from ctld_lab.report.ranking import agreement, paper_note, paper_split, printed_values, scale_notes, verdict
from ctld_lab.report.reading import StudyRecord
from ctld_lab.report.sections import Content, Prose, Table, cells, marks_note, standing, value_cell, variant_title
from ctld_lab.report.tables import Row, final_frame, final_table, seeds_frame

IMAGE = (
    "image_mse"  # of the image that comes back through the whole stack: what tuning judged by; older records lack it
)
LAYER = "mse"  # of the layer on its own input: what the paper compares, on training data
SPLITS = {"train": "training", "test": "test"}
NAMES = {IMAGE: "MSE of the image through the whole stack", LAYER: "MSE of the last layer"}


def content(study: StudyRecord) -> Content:
    rows = final_table(study)
    printed, split = printed_values(study), paper_split(study)
    variants = list(dict.fromkeys(row.variant for row in rows))
    curves = curves_frame(study, variants, [("test", IMAGE), (split, LAYER)])
    seen = {*curves["metric"], *(metric for row in rows for metric in row.metrics)}
    judged = IMAGE if seen & {IMAGE, f"test {IMAGE}"} else LAYER
    found = Content(data={"seeds": seeds_frame(rows)})
    for variant in variants:
        competing = [row for row in rows if row.variant == variant]
        found.summary += Prose("sda").paragraphs(
            "summary", variant=variant_title(variant),
            verdict=verdict(competing, f"test {judged}", name=f"test {NAMES[judged]}"),
            agreement=agreement(competing, f"{split} {judged}", printed, name=f"{SPLITS[split]} {NAMES[judged]}"),
            theirs=variant == "paper" and judged == IMAGE and any(row.done for row in competing),
            their_verdict=verdict(
                competing, f"{split} {LAYER}", name=f"{SPLITS[split]} {NAMES[LAYER]} on its own input", brief=True
            ),
            their_agreement=agreement(competing, f"{split} {LAYER}", printed),
        )  # fmt: skip
        where = {"tuned": "tuned", "paper": "the paper's rates"}.get(variant, variant)
        found.standings += standing(f"Autoencoder, {where}: test error of the image", competing, f"test {judged}")
    _draw(study, variants, judged, curves, found)
    found.tables.append(_final(study, rows, judged, printed))
    if any(f"test {LAYER} of layer 1" in row.metrics for row in rows):
        found.tables.append(_layers(rows))
    temperature.add(study, found)
    return found


def _draw(study: StudyRecord, variants: Sequence[str], judged: str, frame: pd.DataFrame, found: Content) -> None:
    split = paper_split(study)
    shown = [(IMAGE, "test", "Image, test data"), (LAYER, split, f"Layer, {split} data")]
    trace = trace_frame(study)
    short = {"tuned": "tuned", "paper": "the paper's rates"}
    panels = [
        curve_panel(study, frame, variant, data, metric, f"{title}, {short.get(variant, variant)}", "MSE")
        for metric, data, title in shown
        for variant in variants
        if metric in (judged, LAYER)
    ]
    panels.append(ratio_panel(trace))
    diverged = any(run.diverged for run in study.finals)
    caption = Prose("sda")(
        "curves", through=judged == IMAGE, split=SPLITS[split], band=Prose("common")("band", diverged=diverged)
    )
    found.plots += curves_plot(study, "curves", caption, panels, frame)
    found.data |= {"curves": frame, "trace": trace}


def _final(study: StudyRecord, rows: Sequence[Row], judged: str, printed: dict[str, str]) -> Table:
    """What was judged by first; then the layer's own error beside the paper's, which is of the same data."""
    split = paper_split(study)
    other = "test" if split == "train" else "train"
    notes = [*marks_note(rows), *paper_note(study)]
    whole = {f"test {IMAGE}": "Image, test MSE", f"train {IMAGE}": "Image, train MSE"} if judged == IMAGE else {}
    notes += Prose("sda").paragraphs("image") if judged == IMAGE else []
    body = [
        cells(
            row.title, row.variant, row.state, *(value_cell(row, metric) for metric in whole),
            value_cell(row, f"{split} {LAYER}", marked=judged == LAYER), printed.get(row.method, "–"),
            value_cell(row, f"{other} {LAYER}", marked=judged == LAYER),
        )
        for row in rows
    ]  # fmt: skip
    columns = ["Method", "Setting", "Runs", *whole.values(), f"Last layer, {split} MSE"]
    columns += [f"Paper, Fig.\N{NO-BREAK SPACE}2: last layer, {split}", f"Last layer, {other} MSE"]
    frame = final_frame(rows, {f"{split} {LAYER}": printed})
    return Table("final", "Error at the end of the last layer", columns, body, frame, [*notes, *scale_notes(study)])


def _layers(rows: Sequence[Row]) -> Table:
    layers = max(
        (sum(metric.startswith(f"test {LAYER} of layer") for metric in row.metrics) for row in rows), default=0
    )
    metrics = {
        f"{split} {LAYER} of layer {layer}": f"Layer {layer}, {split}"
        for layer in range(1, layers + 1)
        for split in ("train", "test")
    }
    body = [
        cells(row.title, row.variant, *(value_cell(row, metric, marked=False) for metric in metrics)) for row in rows
    ]
    caption = "MSE of each layer on its own input, at its end: what the paper's figure shows"
    return Table(
        "layers", caption, ["Method", "Setting", *metrics.values()], body, final_frame(rows, only=list(metrics))
    )
