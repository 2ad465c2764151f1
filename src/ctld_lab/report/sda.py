"""Figure 2: the stacked autoencoder, layer by layer, and the temperature while the final layer explores."""

from collections.abc import Callable, Sequence

from matplotlib.axes import Axes

from ctld_lab.records import number
from ctld_lab.report import paper, temperature
from ctld_lab.report.curves import band_words, draw_curves, keys, mark_stages
from ctld_lab.report.plots import COLOURS, Panel, Plot, no_data, thousands
from ctld_lab.report.ranking import agreement, verdict
from ctld_lab.report.reading import RunRecord, StudyRecord
from ctld_lab.report.scale import scale_notes
from ctld_lab.report.sections import Cell, Content, Table, marks_note, value_cell, variant_title
from ctld_lab.report.tables import Row, final_table, rows_as_csv

IMAGE = (
    "image_mse"  # of the image that comes back through the whole stack: what tuning judged by; older records lack it
)
LAYER = "mse"  # of the layer on its own input: what the paper compares, on training data
SPLITS = {"train": "training", "test": "test"}


def content(study: StudyRecord) -> Content:
    rows = final_table(study)
    printed = paper.values(study)
    variants = list(dict.fromkeys(row.variant for row in rows))
    judged = IMAGE if any(f"test {IMAGE}" in row.values for row in rows) else LAYER
    found = Content()
    for variant in variants:
        found.summary += _summary(study, variant, [row for row in rows if row.variant == variant], judged, printed)
    if any(run.metrics for run in study.finals):
        found.plots.append(_plot(study, variants, judged))
    found.tables.append(_final(study, rows, judged, printed))
    if any(f"test {LAYER} of layer 1" in row.values for row in rows):
        found.tables.append(_layers(rows))
    temperature.add(study, found)
    return found


def _summary(study: StudyRecord, variant: str, rows: Sequence[Row], judged: str, printed: dict[str, str]) -> list[str]:
    """Judged as tuning did; with the paper's rates, then by what the paper compares."""
    split = paper.split(study)
    what = {IMAGE: "MSE of the image through the whole stack", LAYER: "MSE of the last layer"}
    paragraphs = [
        [
            f"{variant_title(variant)}:",
            verdict(rows, f"test {judged}", name=f"test {what[judged]}"),
            agreement(rows, f"{split} {judged}", printed, name=f"{SPLITS[split]} {what[judged]}"),
        ]
    ]
    if variant == "paper" and judged == IMAGE and any(row.done for row in rows):
        theirs = f"{SPLITS[split]} {what[LAYER]}"
        paragraphs.append(
            [
                f"{variant_title(variant)}, by what the paper compares:",
                verdict(rows, f"{split} {LAYER}", name=f"{theirs} on its own input", brief=True),
                agreement(rows, f"{split} {LAYER}", printed),
            ]
        )
    return [" ".join(filter(None, sentences)) for sentences in paragraphs]


def _plot(study: StudyRecord, variants: Sequence[str], judged: str) -> Plot:
    split = paper.split(study)
    short = {"tuned": "tuned", "paper": "the paper's rates"}
    panels = [
        Panel(f"{title}, {short.get(variant, variant)}", _curves(study, variant, data, metric))
        for metric, data, title in (
            (IMAGE, "test", "Image, test data"),
            (LAYER, split, f"Layer, {split} data"),
        )
        for variant in variants
        if metric in (judged, LAYER)
    ]
    panels.append(Panel("Temperature ratio, final layer", lambda axes: draw_ratio(axes, study)))
    through = "of the image that comes back through all decoders, on test data; " if judged == IMAGE else ""
    caption = (
        f"Error (half the mean square over elements) against iterations: {through}of the layer in training on its own input, "
        f"on {SPLITS[split]} data, as the paper has it. Means over seeds{band_words(study)}; dashed lines are switches to the "
        "next layer. Last panel: 1/g(α), which multiplies the temperature of CTLD, during the exploration of the final layer, "
        "one seed."
    )
    return Plot("curves", caption, panels, keys(study))


def _curves(study: StudyRecord, variant: str, split: str, metric: str) -> Callable[[Axes], None]:
    def draw(axes: Axes) -> None:
        draw_curves(axes, study, variant, split, metric, "MSE")
        mark_stages(axes, study)

    return draw


def traced_run(study: StudyRecord) -> RunRecord | None:
    """The first CTLD run with a trace; finished and tuned ones first."""
    runs = sorted(study.finals, key=lambda run: (run.state != "done", run.variant != "tuned", run.seed))
    return next((run for run in runs if run.method == "ctld" and run.trace), None)


def draw_ratio(axes: Axes, study: StudyRecord) -> None:
    """Of the last stage that was traced."""
    run = traced_run(study)
    if run is None:
        return no_data(axes, "no exploration was traced")
    stage = max(int(line.get("stage", 1)) for line in run.trace)
    lines = [line for line in run.trace if int(line.get("stage", 1)) == stage]
    steps = run.config.get("steps") or []
    before = sum(steps[: stage - 1]) if isinstance(steps, list) else 0
    position = [number(line.get("step")) - before for line in lines]
    ratio = [number(line.get("temperature_ratio")) for line in lines]
    axes.plot(position, ratio, color=COLOURS["ctld"], linewidth=0.8)
    axes.set(xlabel=f"iteration of layer {stage}", ylabel="1/g(α)", xlim=(0, max(position) or 1))
    axes.set_ylim(0.5, max(7.2, 1.08 * max(ratio)))
    axes.set_yticks(range(1, 8))
    axes.locator_params(axis="x", nbins=5)
    thousands(axes)
    return None


def _final(study: StudyRecord, rows: Sequence[Row], judged: str, printed: dict[str, str]) -> Table:
    """What was judged by first; then the layer's own error beside the paper's, which is of the same data."""
    split = paper.split(study)
    other = "test" if split == "train" else "train"
    notes = [*marks_note(rows), *paper.note(study)]
    whole = {f"test {IMAGE}": "Image, test MSE", f"train {IMAGE}": "Image, train MSE"} if judged == IMAGE else {}
    if judged == IMAGE:
        notes.append(
            "“Image” is the error of the image that comes back through all decoders; tuning judged by it, and methods are "
            "ranked by it. From the second layer on, the input of a layer is made by the method itself, and codes that have "
            "died are reconstructed without error: the MSE of the last layer, which the paper compares, can be low for that "
            "reason."
        )
    notes += scale_notes(study)

    def layer(row: Row, data: str) -> Cell:
        cell = value_cell(row, f"{data} {LAYER}")
        return cell if judged == LAYER else Cell(cell.text)

    body = [
        [
            Cell(row.title),
            Cell(row.variant),
            Cell(row.state),
            *(value_cell(row, metric) for metric in whole),
            layer(row, split),
            Cell(printed.get(row.method, "–")),
            layer(row, other),
        ]
        for row in rows
    ]
    columns = [
        "Method",
        "Setting",
        "Runs",
        *whole.values(),
        f"Last layer, {split} MSE",
        f"Paper, Fig.\N{NO-BREAK SPACE}2: last layer, {split}",
        f"Last layer, {other} MSE",
    ]
    csv = rows_as_csv(rows, {f"{split} {LAYER}": printed})
    return Table("final", "Error at the end of the last layer", columns, body, csv, notes)


def _layers(rows: Sequence[Row]) -> Table:
    layers = max((sum(metric.startswith(f"test {LAYER} of layer") for metric in row.values) for row in rows), default=0)
    metrics = {
        f"{split} {LAYER} of layer {layer}": f"Layer {layer}, {split}"
        for layer in range(1, layers + 1)
        for split in ("train", "test")
    }
    body = [
        [Cell(row.title), Cell(row.variant), *(Cell(value_cell(row, metric).text) for metric in metrics)]
        for row in rows
    ]
    caption = "MSE of each layer on its own input, at its end: what the paper's figure shows"
    csv = rows_as_csv(rows, only=list(metrics))
    return Table("layers", caption, ["Method", "Setting", *metrics.values()], body, csv)
