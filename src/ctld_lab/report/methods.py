"""Figures 2 and 3: methods compared, by learning curves, a table of how they end, and CTLD's temperature."""

from collections.abc import Sequence

import pandas as pd

from ctld_lab.report import temperature, tidy
from ctld_lab.report.curves import curve_panel, curves, curves_plot, ratio_panel, shown_in
from ctld_lab.report.plots import Plot
from ctld_lab.report.reading import StudyRecord
from ctld_lab.report.sections import (
    Content,
    Prose,
    Table,
    cells,
    marks_note,
    paper_note,
    printed_values,
    setting_title,
    short_title,
    standing,
    value_cell,
    variant_title,
    verdict,
)  # fmt: skip
from ctld_lab.report.tables import Row, final_table

IMAGE = "test image_mse"  # of the image that comes back through the whole stack: what tuning judged by
LAYER = "train mse"  # of the layer on its own input: what the paper compares, on training data
LSTM = {"test nats": "Test nats/char", "train nats": "Train nats/char"}
DERIVED = {  # of the first two, so not marked again
    "test bits": "Test bits/char", "test perplexity": "Test perplexity", "train perplexity": "Train perplexity",
}  # fmt: skip


def autoencoder(study: StudyRecord) -> Content:
    rows, prose = final_table(study), Prose("sda", band=_band(study))
    variants = list(dict.fromkeys(row.variant for row in rows))
    found, drawn = Content(), {metric: curves(study, metric) for metric in (IMAGE, LAYER)}
    for variant in variants:
        competing = [row for row in rows if row.variant == variant]
        begun = shown_in(drawn[IMAGE])
        judged = verdict(competing, IMAGE, name="test MSE of the image through the whole stack", begun=begun)
        theirs = verdict(competing, LAYER, name="training MSE of the last layer on its own input", brief=True)
        compares = variant == "paper" and any(row.done for row in competing)
        found.summary += prose.paragraphs(
            "summary", variant=variant_title(variant), verdict=judged, theirs=theirs if compares else ""
        )
        found.standings += standing(f"Autoencoder, {short_title(variant)}: test error of the image", competing, IMAGE)
    panels = [
        curve_panel(study, drawn[metric], variant, f"{title}, {short_title(variant)}", "MSE")
        for metric, title in ((IMAGE, "Image, test data"), (LAYER, "Layer, train data"))
        for variant in variants
    ]
    panels.append(ratio_panel(study, "Temperature ratio, final layer", "layer {}"))
    found.plots += curves_plot(study, "curves", prose("curves"), panels, pd.concat(drawn.values()), columns=2)
    found.tables.append(_autoencoder_table(study, rows, prose))
    if any(f"{LAYER} of layer 1" in row.metrics for row in rows):
        found.tables.append(_layers(rows))
    temperature.add(study, found)
    return found


def _band(study: StudyRecord) -> str:
    states = study.table[study.table["metric"] == tidy.DIVERGED]
    return Prose("common")("band", diverged=bool((states["value"] > 0).any()))


def _autoencoder_table(study: StudyRecord, rows: Sequence[Row], prose: Prose) -> Table:
    """Table of errors: the metric of the comparison first, then the layer's error beside the paper's, on the same data."""
    printed = printed_values(study)
    body = [
        cells(
            row.title, setting_title(row.variant), row.state, value_cell(row, IMAGE), value_cell(row, "train image_mse"),
            value_cell(row, LAYER, marked=False), printed.get(row.method, "–"), value_cell(row, "test mse", marked=False),
        )
        for row in rows
    ]  # fmt: skip
    columns = ["Method", "Setting", "Runs", "Image, test MSE", "Image, train MSE", "Last layer, train MSE"]
    columns += ["Paper, Fig.\N{NO-BREAK SPACE}2: last layer, train", "Last layer, test MSE"]
    notes = [*marks_note(rows), *paper_note(study), *prose.paragraphs("image")]
    return Table("final", "Error at the end of the last layer", columns, body, notes)


def _layers(rows: Sequence[Row]) -> Table:
    layers = max(sum(metric.startswith(f"{LAYER} of layer") for metric in row.metrics) for row in rows)
    metrics = {
        f"{split} mse of layer {layer}": f"Layer {layer}, {split}"
        for layer in range(1, layers + 1)
        for split in ("train", "test")
    }
    body = [
        cells(row.title, setting_title(row.variant), *(value_cell(row, x, marked=False) for x in metrics))
        for row in rows
    ]
    caption = "MSE of each layer on its own input, at its end: what the paper's figure shows"
    return Table("layers", caption, ["Method", "Setting", *metrics.values()], body)


def lstm(study: StudyRecord) -> Content:
    rows, found = final_table(study), Content()
    trace = ratio_panel(study, "Temperature ratio", "the exploration")
    if trace.series:
        found.plots.append(Plot("temperature", Prose("charrnn")("temperature"), [trace], columns=1, size=(6.4, 2.2)))
    drawn = {metric: curves(study, metric) for metric in ("train nats", "test nats")}
    for variant in dict.fromkeys(row.variant for row in rows):
        competing = [row for row in rows if row.variant == variant]
        title = variant_title(variant)
        prose = Prose("charrnn", variant=title, band=_band(study))
        begun = shown_in(drawn["test nats"])
        said = verdict(competing, "test nats", name="test loss", unit="nats/char", begun=begun)
        found.summary += prose.paragraphs("summary", verdict=said)
        where = f"Character-level LSTM, {short_title(variant)}: test loss"
        found.standings += standing(where, competing, "test nats")
        panels = [
            curve_panel(
                study, frame, variant, f"{x.split()[0].capitalize()} loss, {title.lower()}", "nats per character"
            )
            for x, frame in drawn.items()
        ]
        chosen = pd.concat(frame[frame["variant"] == variant] for frame in drawn.values())
        found.plots += curves_plot(study, f"curves-{variant or 'all'}", prose("curves"), panels, chosen, columns=2)
    printed = printed_values(study)
    body = [
        cells(
            row.title, setting_title(row.variant), row.state, *(value_cell(row, metric) for metric in LSTM),
            printed.get(row.method, "–"), *(value_cell(row, metric, marked=False) for metric in DERIVED),
        )
        for row in rows
    ]  # fmt: skip
    columns = ["Method", "Setting", "Runs", *LSTM.values(), "Paper's perplexity as printed, train / test"]
    notes = [*marks_note(rows), *paper_note(study)]
    found.tables.append(Table("final", "Loss at the end of training", [*columns, *DERIVED.values()], body, notes))
    temperature.add(study, found)
    return found
