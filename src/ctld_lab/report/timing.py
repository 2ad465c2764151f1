"""Table 3: the time of an epoch, and its ratio to that of SGD-M."""

from collections.abc import Sequence

from ctld_lab.report.plots import BLACK, GREY, NAMES, Key, Panel, Plot, Series, method_key
from ctld_lab.report.reading import StudyRecord
from ctld_lab.report.sections import COLUMNS, Content, Prose, Standing, Table, cells, paper_note, printed_values
from ctld_lab.report.tables import Row, final_table
from ctld_lab.report.wording import show, show_range
from ctld_lab.statistics import MARGIN, TIE, UNDECIDED

MEASURED = Key("measured, 95 % interval", BLACK, marker="o", line=False)
PAPER = Key("the paper, Table 3", GREY, marker="D", line=False)
UNDISTURBED = 0.02  # share of a block's time that its threads may spend waiting for a core


def content(study: StudyRecord) -> Content:
    order = {method: place for place, method in enumerate(study.methods)}
    rows = [row for row in final_table(study) if row.given]
    rows.sort(key=lambda row: (order.get(base(row.method), len(order)), row.method))
    printed = paper_ratios(study)
    tempered = [(row, _word(row)) for row in rows if base(row.method) == "ctld"]
    slowest = max(rows, key=lambda row: row.estimate("ratio").mean, default=None)
    prose = Prose("timing", tempered=tempered, slowest=slowest, printed=printed)
    found = Content(summary=prose.paragraphs("summary"))
    if rows:
        found.plots.append(_plot(study, rows, printed, prose("caption")))
        found.tables.append(_table(study, rows, printed, prose))
        found.standings += _standing(rows)
    return found


def paper_ratios(study: StudyRecord) -> dict[str, float]:
    """From the paper's seconds."""
    seconds = {method: float(text) for method, text in printed_values(study, key="seconds_per_epoch").items()}
    return {method: value / seconds["sgd"] for method, value in seconds.items()} if seconds.get("sgd") else {}


def base(method: str) -> str:
    """ "ctld (exploration)" is compared with the paper's CTLD."""
    return method.partition(" (")[0]


def _word(row: Row) -> str:
    ratio = row.estimate("ratio")
    if ratio.low is None or ratio.high is None:
        return ""
    return (
        "slower than SGD-M"
        if ratio.low > 1.0
        else "faster than SGD-M"
        if ratio.high < 1.0
        else "not to be told from SGD-M"
    )


def _standing(rows: Sequence[Row]) -> list[Standing]:
    """By the ratio to SGD-M, whose margin is the same 5 %."""
    groups: dict[str, list[str]] = {column: [] for column in COLUMNS.values()}
    for row in rows:
        ratio = row.estimate("ratio")
        if row.method != "sgd" and ratio.low is not None and ratio.high is not None:
            tie = ratio.low >= 1.0 - MARGIN and ratio.high <= 1.0 + MARGIN
            shown = (
                "Ahead" if ratio.high < 1.0 - MARGIN else "Behind" if ratio.low > 1.0 + MARGIN else COLUMNS[UNDECIDED]
            )
            groups[COLUMNS[TIE] if tie else shown].append(row.title)
    return [Standing("Time of an epoch, beside SGD-M", groups)] if any(groups.values()) else []


def _plot(study: StudyRecord, rows: Sequence[Row], printed: dict[str, float], caption: str) -> Plot:
    series = []
    for place, row in enumerate(rows):
        ratio = row.estimate("ratio")
        colour = method_key(base(row.method), row.title, study.methods).colour
        series.append(Series.of(Key(row.title, colour, marker="o", line=False), [float(place)], [ratio]))
    shown = [(place + 0.2, printed[row.method]) for place, row in enumerate(rows) if row.method in printed]
    series.append(Series(PAPER, [x for x, _ in shown], [y for _, y in shown]))
    names = [row.title.replace(" (", "\n").removesuffix(")") for row in rows]
    panel = Panel(
        "Time of an epoch, relative to SGD-M",
        series,
        "method",
        "ratio to SGD-M",
        x=NAMES,
        names=names,
        lines=[("y", 1.0)],
    )
    return Plot("ratios", caption, [panel], [MEASURED, PAPER], columns=1, size=(6.4, 2.8))


def _table(study: StudyRecord, rows: Sequence[Row], printed: dict[str, float], prose: Prose) -> Table:
    seconds = printed_values(study, key="seconds_per_epoch")
    waiting = study.table[study.table["metric"] == "waiting"]
    made = waiting["at"].nunique()
    body = []
    for row in rows:
        ratio = "1" if row.method == "sgd" else show_range(row.estimate("ratio"))
        kept = row.estimate("ratio").count
        theirs = [seconds.get(row.method, "–"), show(printed[row.method]) if row.method in printed else "–"]
        rounds = f"{kept} of {made}" if kept < made else str(kept)
        body.append(cells(row.title, show(row.estimate("seconds per epoch").mean), ratio, rounds, *theirs))
    columns = [
        "Method",
        "Seconds per epoch",
        "Ratio to SGD-M [95 % interval]",
        "Rounds",
        "Paper, seconds",
        "Paper, ratio",
    ]
    shares = [float((waiting["value"] < UNDISTURBED).mean())] if made else []
    unlike = [row.title for row in rows if base(row.method) not in seconds]
    notes = [*prose.paragraphs("notes", shares=shares), *paper_note(study), *prose.paragraphs("unlike", unlike=unlike)]
    return Table("times", "Time of an epoch", columns, body, notes)
