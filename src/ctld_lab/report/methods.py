"""Figures 2 and 3: methods compared, by learning curves, a table of how they end, and CTLD's temperature."""

from collections.abc import Sequence

from ctld_lab.report import temperature
from ctld_lab.report.curves import curve_panel, curves_frame, curves_plot, ratio_panel, trace_frame
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
from ctld_lab.report.tables import Row, final_frame, final_table, seeds_frame

IMAGE = "image_mse"  # of the image that comes back through the whole stack: what tuning judged by
LAYER = "mse"  # of the layer on its own input: what the paper compares, on training data
LSTM = {"test nats": "Test nats/char", "train nats": "Train nats/char"}
DERIVED = {  # of the first two, so not marked again
    "test bits": "Test bits/char", "test perplexity": "Test perplexity", "train perplexity": "Train perplexity",
}  # fmt: skip


def autoencoder(study: StudyRecord) -> Content:
    rows, prose = final_table(study), Prose("sda", band=_band(study))
    variants = list(dict.fromkeys(row.variant for row in rows))
    curves, trace = curves_frame(study, variants, [("test", IMAGE), ("train", LAYER)]), trace_frame(study)
    found = Content(data={"seeds": seeds_frame(rows), "curves": curves, "trace": trace})
    for variant in variants:
        competing = [row for row in rows if row.variant == variant]
        judged = verdict(competing, f"test {IMAGE}", name="test MSE of the image through the whole stack")
        theirs = verdict(
            competing, f"train {LAYER}", name="training MSE of the last layer on its own input", brief=True
        )
        compares = variant == "paper" and any(row.done for row in competing)
        found.summary += prose.paragraphs(
            "summary", variant=variant_title(variant), verdict=judged, theirs=theirs if compares else ""
        )
        where = f"Autoencoder, {short_title(variant)}: test error of the image"
        found.standings += standing(where, competing, f"test {IMAGE}")
    panels = [
        curve_panel(study, curves, variant, split, metric, f"{title}, {short_title(variant)}", "MSE")
        for metric, split, title in ((IMAGE, "test", "Image, test data"), (LAYER, "train", "Layer, train data"))
        for variant in variants
    ]
    found.plots += curves_plot(study, "curves", prose("curves"), [*panels, ratio_panel(trace)], curves)
    found.tables.append(_autoencoder_table(study, rows, prose))
    if any(f"test {LAYER} of layer 1" in row.metrics for row in rows):
        found.tables.append(_layers(rows))
    temperature.add(study, found)
    return found


def _band(study: StudyRecord) -> str:
    return Prose("common")("band", diverged=any(run.diverged for run in study.finals))


def _autoencoder_table(study: StudyRecord, rows: Sequence[Row], prose: Prose) -> Table:
    """What was judged by first; then the layer's own error beside the paper's, which is of the same data."""
    printed = printed_values(study)
    body = [
        cells(
            row.title, setting_title(row.variant), row.state, value_cell(row, f"test {IMAGE}"),
            value_cell(row, f"train {IMAGE}"), value_cell(row, f"train {LAYER}", marked=False), printed.get(row.method, "–"),
            value_cell(row, f"test {LAYER}", marked=False),
        )
        for row in rows
    ]  # fmt: skip
    columns = ["Method", "Setting", "Runs", "Image, test MSE", "Image, train MSE", "Last layer, train MSE"]
    columns += ["Paper, Fig.\N{NO-BREAK SPACE}2: last layer, train", "Last layer, test MSE"]
    notes = [*marks_note(rows), *paper_note(study), *prose.paragraphs("image")]
    frame = final_frame(rows, {f"train {LAYER}": printed})
    return Table("final", "Error at the end of the last layer", columns, body, frame, notes)


def _layers(rows: Sequence[Row]) -> Table:
    layers = max(sum(metric.startswith(f"test {LAYER} of layer") for metric in row.metrics) for row in rows)
    metrics = {
        f"{split} {LAYER} of layer {layer}": f"Layer {layer}, {split}"
        for layer in range(1, layers + 1)
        for split in ("train", "test")
    }
    body = [
        cells(row.title, setting_title(row.variant), *(value_cell(row, x, marked=False) for x in metrics))
        for row in rows
    ]
    caption = "MSE of each layer on its own input, at its end: what the paper's figure shows"
    frame = final_frame(rows, only=list(metrics))
    return Table("layers", caption, ["Method", "Setting", *metrics.values()], body, frame)


def lstm(study: StudyRecord) -> Content:
    rows = final_table(study)
    variants = list(dict.fromkeys(row.variant for row in rows))
    frame = curves_frame(study, variants, [("train", "nats"), ("test", "nats")])
    found = Content(data={"seeds": seeds_frame(rows), "curves": frame})
    trace = trace_frame(study)
    if len(trace):
        found.data["trace"] = trace
        panel = ratio_panel(trace, "Temperature ratio", "the exploration")
        found.plots.append(Plot("temperature", Prose("charrnn")("temperature"), [panel], columns=1, size=(6.4, 2.2)))
    for variant in variants:
        competing = [row for row in rows if row.variant == variant]
        title = variant_title(variant)
        prose = Prose("charrnn", variant=title, band=_band(study))
        said = verdict(competing, "test nats", name="test loss", unit="nats/char")
        found.summary += prose.paragraphs("summary", verdict=said)
        where = f"Character-level LSTM, {short_title(variant)}: test loss"
        found.standings += standing(where, competing, "test nats")
        panels = [
            curve_panel(study, frame, variant, x, "nats", f"{x.capitalize()} loss, {title.lower()}", "nats per character")
            for x in ("train", "test")
        ]  # fmt: skip
        chosen = frame[frame["variant"] == variant]
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
    theirs = {"test perplexity": printed_values(study, 1), "train perplexity": printed_values(study, 0)}
    notes = [*marks_note(rows), *paper_note(study)]
    found.tables.append(
        Table("final", "Loss at the end of training", [*columns, *DERIVED.values()], body, final_frame(rows, theirs), notes)
    )  # fmt: skip
    temperature.add(study, found)
    return found
