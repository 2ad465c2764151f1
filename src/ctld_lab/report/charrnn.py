"""Figure 3: the character-level LSTM, on training and test text."""

from collections.abc import Sequence

from ctld_lab.report import temperature
from ctld_lab.report.curves import curve_panel, curves_frame, curves_plot
from ctld_lab.report.ranking import agreement, paper_note, printed_values, scale_notes, verdict
from ctld_lab.report.reading import StudyRecord
from ctld_lab.report.sections import Content, Prose, Table, cells, marks_note, standing, value_cell, variant_title
from ctld_lab.report.tables import Row, final_frame, final_table, seeds_frame

METRICS = {"test nats": "Test nats/char", "train nats": "Train nats/char"}
DERIVED = {  # of the first two, so not marked again
    "test bits": "Test bits/char", "test perplexity": "Test perplexity", "train perplexity": "Train perplexity",
}  # fmt: skip


def content(study: StudyRecord) -> Content:
    rows = final_table(study)
    printed = printed_values(study, 1)
    variants = list(dict.fromkeys(row.variant for row in rows))
    frame = curves_frame(study, variants, [("train", "nats"), ("test", "nats")])
    found = Content(data={"seeds": seeds_frame(rows), "curves": frame})
    diverged = any(run.diverged for run in study.finals)
    for variant in variants:
        competing = [row for row in rows if row.variant == variant]
        title = variant_title(variant)
        prose = Prose("charrnn", variant=title, band=Prose("common")("band", diverged=diverged))
        said = verdict(competing, "test nats", name="test loss", unit="nats/char")
        found.summary += prose.paragraphs("summary", verdict=said, agreement=agreement(competing, "test nats", printed))
        where = {"tuned": "tuned", "paper": "the paper's rates"}.get(variant, variant)
        found.standings += standing(f"Character-level LSTM, {where}: test loss", competing, "test nats")
        panels = [
            curve_panel(
                study,
                frame,
                variant,
                split,
                "nats",
                f"{split.capitalize()} loss, {title.lower()}",
                "nats per character",
            )
            for split in ("train", "test")
        ]
        chosen = frame[frame["variant"] == variant]
        found.plots += curves_plot(study, f"curves-{variant or 'all'}", prose("curves"), panels, chosen, columns=2)
    found.tables.append(_final(study, rows))
    temperature.add(study, found)
    return found


def _final(study: StudyRecord, rows: Sequence[Row]) -> Table:
    printed = printed_values(study)
    body = [
        cells(
            row.title, row.variant, row.state, *(value_cell(row, metric) for metric in METRICS),
            printed.get(row.method, "–"), *(value_cell(row, metric, marked=False) for metric in DERIVED),
        )
        for row in rows
    ]  # fmt: skip
    columns = [
        "Method",
        "Setting",
        "Runs",
        *METRICS.values(),
        "Paper's perplexity as printed, train / test",
        *DERIVED.values(),
    ]
    frame = final_frame(
        rows, {"test perplexity": printed_values(study, 1), "train perplexity": printed_values(study, 0)}
    )
    notes = [*marks_note(rows), *paper_note(study), *scale_notes(study)]
    return Table("final", "Loss at the end of training", columns, body, frame, notes)
