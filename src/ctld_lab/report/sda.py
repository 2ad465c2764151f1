"""Figure 2: the stacked autoencoder, layer by layer, and the temperature while the final layer explores."""

from collections.abc import Callable, Sequence

from matplotlib.axes import Axes

from ctld_lab.records import number
from ctld_lab.report import paper
from ctld_lab.report.curves import BAND_WORDS, draw_curves, keys, mark_stages
from ctld_lab.report.plots import COLOURS, Panel, Plot, no_data, thousands
from ctld_lab.report.ranking import agreement, verdict
from ctld_lab.report.reading import RunRecord, StudyRecord
from ctld_lab.report.sections import Cell, Content, Table, marks_note, value_cell, variant_title
from ctld_lab.report.tables import Row, final_table, rows_as_csv

IMAGE = "test image_mse"  # what tuning judged by; older records lack it
LAYER = "test mse"


def content(study: StudyRecord) -> Content:
    rows = final_table(study)
    printed = paper.values(study)
    variants = list(dict.fromkeys(row.variant for row in rows))
    through_stack = any(IMAGE in row.values for row in rows)
    found = Content()
    for variant in variants:
        competing = [row for row in rows if row.variant == variant]
        sentences = [f"{variant_title(variant)}:", verdict(competing, LAYER, name="test MSE of the last layer")]
        sentences.append(agreement(competing, LAYER, printed))
        if through_stack and any(row.done for row in competing):
            judged = verdict(competing, IMAGE, name="test MSE", brief=True)
            sentences.append(f"By what comes back through the whole stack: {judged}")
        found.summary.append(" ".join(filter(None, sentences)))
    panels = [Panel(f"Test MSE, {variant_title(variant).lower()}", _curves(study, variant)) for variant in variants]
    panels.append(Panel("Temperature ratio, final layer", lambda axes: draw_ratio(axes, study)))
    caption = (
        "Test error of the layer in training, on its own input (half the mean square over elements), against iterations: means "
        f"over seeds{BAND_WORDS}; dashed lines are switches to the next layer. Last panel: 1/g(α), which multiplies the "
        "temperature of CTLD, during the exploration of the final layer, one seed."
    )
    if any(run.metrics for run in study.finals):
        found.plots.append(Plot("curves", caption, panels, keys(study)))
    found.tables.append(_final(study, rows, printed))
    if any(f"{LAYER} of layer 1" in row.values for row in rows):
        found.tables.append(_layers(rows))
    return found


def _curves(study: StudyRecord, variant: str) -> Callable[[Axes], None]:
    def draw(axes: Axes) -> None:
        draw_curves(axes, study, variant, "test", "mse", "MSE")
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


def _final(study: StudyRecord, rows: Sequence[Row], printed: dict[str, str]) -> Table:
    others = {"train mse": "Train MSE"}
    notes = [*marks_note(rows), *paper.note(study)]
    if any(IMAGE in row.values for row in rows):
        others = {IMAGE: "Test, whole stack", **others, "train image_mse": "Train, whole stack"}
        notes.append(
            "From the second layer on, the input of a layer is made by the method itself, and codes that have died are "
            "reconstructed without error: the MSE of the last layer, which the paper compares, can be low for that reason. "
            "“Whole stack” is the error of the image that comes back through all decoders."
        )
    if study.description.get("scale") != "paper":
        notes.append("At this scale network and training are smaller than the paper's: compare orders, not values.")
    body = [
        [
            Cell(row.title),
            Cell(row.variant),
            Cell(row.state),
            value_cell(row, LAYER),
            Cell(printed.get(row.method, "–")),
            *(value_cell(row, metric) for metric in others),
        ]
        for row in rows
    ]
    columns = ["Method", "Setting", "Runs", "Test MSE", "Paper, Fig.\N{NO-BREAK SPACE}2", *others.values()]
    return Table(
        "final", "Error at the end of the last layer", columns, body, rows_as_csv(rows, {LAYER: printed}), notes
    )


def _layers(rows: Sequence[Row]) -> Table:
    layers = max((sum(metric.startswith(f"{LAYER} of layer") for metric in row.values) for row in rows), default=0)
    metrics = {
        f"{split} mse of layer {layer}": f"Layer {layer}, {split}"
        for layer in range(1, layers + 1)
        for split in ("test", "train")
    }
    body = [
        [Cell(row.title), Cell(row.variant), *(Cell(value_cell(row, metric).text) for metric in metrics)]
        for row in rows
    ]
    csv = rows_as_csv(rows, only=list(metrics))
    return Table(
        "layers", "MSE of each layer on its own input, at its end", ["Method", "Setting", *metrics.values()], body, csv
    )
