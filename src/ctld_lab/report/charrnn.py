"""Figure 3: the character-level LSTM, on training and test text."""

import math
from collections.abc import Callable, Sequence

from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, NullLocator

from ctld_lab.report import paper, temperature
from ctld_lab.report.curves import band_words, draw_curves, keys
from ctld_lab.report.plots import Panel, Plot
from ctld_lab.report.ranking import agreement, verdict
from ctld_lab.report.reading import StudyRecord
from ctld_lab.report.scale import scale_notes
from ctld_lab.report.sections import Cell, Content, Table, marks_note, value_cell, variant_title
from ctld_lab.report.tables import Row, final_table, rows_as_csv

METRICS = {
    "test nats": "Test nats/char",
    "train nats": "Train nats/char",
}
DERIVED = {  # of the first two, so not marked again
    "test bits": "Test bits/char",
    "test perplexity": "Test perplexity",
    "train perplexity": "Train perplexity",
}
PERPLEXITIES = (2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 50, 100, 200, 500)  # what a second axis can show


def content(study: StudyRecord) -> Content:
    rows = final_table(study)
    printed = paper.values(study, 1)
    found = Content()
    for variant in dict.fromkeys(row.variant for row in rows):
        competing = [row for row in rows if row.variant == variant]
        text = verdict(competing, "test nats", name="test loss", unit="nats/char")
        sentences = [f"{variant_title(variant)}:", text, agreement(competing, "test nats", printed)]
        found.summary.append(" ".join(filter(None, sentences)))
        panels = [
            Panel(f"{split.capitalize()} loss, {variant_title(variant).lower()}", _curves(study, variant, split))
            for split in ("train", "test")
        ]
        caption = (
            f"{variant_title(variant)}. Nats per character against iterations, on training and test text: means over seeds"
            f"{band_words(study)}. On the right, the same as perplexity, exp(nats)."
        )
        if any(run.metrics for run in study.finals if run.variant == variant):
            found.plots.append(
                Plot(f"curves-{variant or 'all'}", caption, panels, keys(study), columns=2, size=(3.5, 2.6))
            )
    found.tables.append(_final(study, rows))
    temperature.add(study, found)
    return found


def _curves(study: StudyRecord, variant: str, split: str) -> Callable[[Axes], None]:
    def draw(axes: Axes) -> None:
        draw_curves(axes, study, variant, split, "nats", "nats per character")
        if axes.axison:
            low, high = axes.get_ylim()
            second = axes.twinx()
            second.spines["right"].set_visible(True)
            second.set(yscale="log", ylim=(low, high), ylabel="perplexity")
            shown = [tick for tick in PERPLEXITIES if low <= math.log(tick) <= high]
            second.yaxis.set_major_locator(FixedLocator([math.log(tick) for tick in shown]))
            second.yaxis.set_major_formatter(lambda value, _: f"{math.exp(value):.0f}")
            second.yaxis.set_minor_locator(NullLocator())

    return draw


def _final(study: StudyRecord, rows: Sequence[Row]) -> Table:
    printed = paper.values(study)
    notes = [*marks_note(rows), *paper.note(study), *scale_notes(study)]
    body = [
        [
            Cell(row.title),
            Cell(row.variant),
            Cell(row.state),
            *(value_cell(row, metric) for metric in METRICS),
            Cell(printed.get(row.method, "–")),
            *(Cell(value_cell(row, metric).text) for metric in DERIVED),
        ]
        for row in rows
    ]
    columns = [
        "Method",
        "Setting",
        "Runs",
        *METRICS.values(),
        "Paper's perplexity as printed, train / test",
        *DERIVED.values(),
    ]
    csv = rows_as_csv(rows, {"test perplexity": paper.values(study, 1), "train perplexity": paper.values(study, 0)})
    return Table("final", "Loss at the end of training", columns, body, csv, notes)
