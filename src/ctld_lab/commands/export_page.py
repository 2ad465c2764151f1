"""The page and the figure of an exported study, from its tables alone; both say which methods are missing."""

import io
from collections.abc import Mapping, Sequence
from typing import Any

Row = dict[str, str]
Tables = Mapping[str, Sequence[Row]]

HEADINGS = {
    "sda": "Stacked denoising autoencoder at the paper's size (Fig. 2)",
    "charrnn": "Character-level LSTM at the paper's size (Fig. 3)",
}
# What is drawn, and, of the first, what the page's table has for each stage.
DRAWN = {
    "sda": (("train", "mse", "training MSE, own input"), ("test", "image_mse", "test MSE, image")),
    "charrnn": (("train", "nats", "training nats per character"), ("test", "nats", "test nats per character")),
}
COLOURS = {"sgd": "#000000", "ctld": "#0072B2", "rmsprop": "#009E73", "adam": "#E69F00", "anneal_sgd": "#CC79A7",
           "santa": "#D55E00"}  # fmt: skip
HIGHEST = 10.0  # a curve that ends this many times above the best is drawn to the top of the axes, and no further


def label(run: Row) -> str:
    return run["title"] + ("" if run["variant"] == "paper" else f" ({run['variant']} rate)")


def missing(runs: Sequence[Row]) -> str:
    """One sentence; empty where every run is done."""
    parts = []
    begun = [
        f"{label(run)} ({int(run['step']):,} of {int(run['steps']):,})" for run in runs if run["state"] == "partial"
    ]
    if begun:
        parts.append(f"Partial: {', '.join(begun)}.")
    absent = [label(run) for run in runs if run["state"] == "not begun"]
    if absent:
        parts.append(f"Missing: {', '.join(absent)}.")
    return " ".join(parts)


# ---- the page ----


def page(name: str, tables: Tables) -> str:
    """Markdown."""
    runs = tables["runs"]
    done = sum(run["state"] in ("done", "diverged") for run in runs)
    parts = [
        f"# {HEADINGS.get(name, name)}",
        f"Written by `ctld export`; {done} of {len(runs)} runs are done. {missing(runs)}".strip(),
        f"![Curves of the runs so far]({name}.png)",
        _errors(name, tables),
    ]
    if tables["temperature"]:
        parts.append(_heat(tables["temperature"]))
    parts.append(_provenance(name, runs))
    return "\n\n".join(parts) + "\n"


def _errors(name: str, tables: Tables) -> str:
    """A row for each run: the paper's metric after each stage, the second metric at the end, and the paper's value."""
    (split, metric, words), (other_split, other, other_words) = DRAWN[name]
    stages = sorted({int(row["stage"]) for row in tables["finals"]})
    values = {(row["run"], int(row["stage"]), row["split"], row["metric"]): row for row in tables["finals"]}

    def cell(run: str, stage: int, split: str, metric: str) -> str:
        row = values.get((run, stage, split, metric))
        if row is None:
            return "–"
        return f"{float(row['value']):.4g}" if row["evaluation"] == "end" else f"({float(row['value']):.4g})"

    heads = [f"layer {stage}" for stage in stages] if len(stages) > 1 or name == "sda" else [words]
    lines = [_line(["method", "options", "iterations", *heads, other_words, "paper"])]
    lines.append(_line(["---"] * (len(heads) + 5)))
    for run in tables["runs"]:
        reached = [stage for stage in stages if (run["run"], stage, split, metric) in values]
        lines.append(
            _line(
                [label(run), run["options"], f"{int(run['step']):,}{' (diverged)' * (run['state'] == 'diverged')}"]
                + [cell(run["run"], stage, split, metric) for stage in stages]
                + [cell(run["run"], reached[-1], other_split, other) if reached else "–", run["paper"] or "–"]
            )
        )
    said = f"By layer: {words}. " if len(heads) > 1 else ""
    note = (
        f"{said}Numbers in brackets are the last point of a curve of a run that is not done: they are measured on fewer data, "
        "and the stage may not have ended. The paper's values are read off its figure, at the end of the last stage."
    )
    return "\n".join(lines) + f"\n\n{note}"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _heat(trace: Sequence[Row]) -> str:
    """The temperature of each stage's exploration, from the recorded steps."""
    lines = [_line(["run", "layer", "recorded steps", "at g = 1", "highest 1/g", "kinetic T", "configurational T"])]
    lines.append(_line(["---"] * 7))
    for key in dict.fromkeys((row["run"], row["stage"]) for row in trace):
        rows = [row for row in trace if (row["run"], row["stage"]) == key]
        ratios = [float(row["temperature_ratio"]) for row in rows]
        cold = sum(ratio == 1.0 for ratio in ratios) / len(ratios)
        read = [
            f"{float(rows[-1][name]):.3g}" if rows[-1].get(name) else "–" for name in ("kinetic", "configurational")
        ]
        lines.append(_line([*key, f"{len(rows):,}", f"{100 * cold:.0f} %", f"{max(ratios):.3g}", *read]))
    note = (
        "Thermometers read at g = 1 and in units of T, at the end of what is recorded: 1 is right. Were α uniform, 27 % of the "
        "steps would be at g = 1."
    )
    return "\n".join(lines) + f"\n\n{note}"


def _provenance(name: str, runs: Sequence[Row]) -> str:
    """Where the numbers come from; runs that have begun."""
    begun = [run for run in runs if run["commit"] or run["state"] != "not begun"]
    commits = ", ".join(dict.fromkeys(run["commit"][:7] for run in begun if run["commit"])) or "unknown"
    machines = "; ".join(dict.fromkeys(run["machine"] for run in begun)) or "–"
    threads = ", ".join(dict.fromkeys(run["threads"] for run in begun)) or "–"
    versions = "; ".join(dict.fromkeys(run["versions"] for run in begun)) or "–"
    hours = ", ".join(f"{label(run)} {float(run['seconds'] or 0) / 3600:.2f}" for run in begun if run["seconds"]) or "–"
    command = runs[0]["command"] if runs else ""
    return (
        f"Command: `{command}`. Commit {commits}; {machines}; threads a run: {threads}; {versions}. Hours so far: "
        f"{hours}.\n\nTables: [runs]({name}-runs.csv), [curves]({name}-curves.csv), "
        f"[errors]({name}-finals.csv), [temperature]({name}-temperature.csv). Figure: [PNG]({name}.png), [PDF]({name}.pdf)."
    )


# ---- the figure ----


def figure(name: str, tables: Tables) -> dict[str, bytes]:
    """PNG and PDF by kind."""
    import matplotlib
    from matplotlib.figure import Figure

    style: dict[Any, Any] = {"font.size": 8, "axes.spines.top": False, "axes.spines.right": False, "legend.frameon": False,
                             "text.parse_math": False, "pdf.fonttype": 42, "axes.titlelocation": "left"}  # fmt: skip
    with matplotlib.rc_context(style):
        drawn = Figure(figsize=(9.9, 3.1), layout="constrained")
        left, middle, right = drawn.subplots(1, 3)
        for axes, (split, metric, words) in zip((left, middle), DRAWN[name], strict=True):
            _curves(axes, tables, f"{split} {metric}")
            axes.set_title(words)
        _ratio(right, tables["temperature"])
        handles, labels = left.get_legend_handles_labels()
        if handles:
            drawn.legend(handles, labels, loc="outside lower center", ncols=len(handles))
        said = missing(tables["runs"])
        if said:
            drawn.suptitle(said, fontsize=8, color="#B00000", x=0.01, ha="left")
        files = {}
        for kind, options in (("png", {"dpi": 150}), ("pdf", {"metadata": {"CreationDate": None}})):
            content = io.BytesIO()
            drawn.savefig(content, format=kind, **options)
            files[kind] = content.getvalue()
        return files


def _curves(axes: Any, tables: Tables, column: str) -> None:
    """One line for each run and stage: a stage starts anew, so no line leads from one to the next."""
    ends = []
    for run in tables["runs"]:
        rows = [row for row in tables["curves"] if row["run"] == run["run"] and row.get(column)]
        named = label(run)
        for stage in dict.fromkeys(row["stage"] for row in rows):
            points = [(int(row["step"]), float(row[column])) for row in rows if row["stage"] == stage]
            dashes = "-" if run["variant"] == "paper" else "--"
            axes.plot(*zip(*points, strict=True), dashes, lw=1.1, color=COLOURS.get(run["method"], "0.5"), label=named)
            named = "_"  # once in the legend
            ends += [value for _, value in points[1:]]
    axes.set_yscale("log")
    if ends:
        best = min(ends)
        axes.set_ylim(0.8 * best, min(1.2 * max(ends), 100 * HIGHEST * best))
    for which in ("major", "minor"):
        getattr(axes.yaxis, f"set_{which}_formatter")(_plain)
    axes.set_xlim(0, max((int(run["steps"]) for run in tables["runs"]), default=1))
    _iterations(axes)


def _plain(value: float, _: int) -> str:
    """Written out, for leading digits that do not crowd a logarithmic axis."""
    return f"{value:g}" if f"{value:e}"[0] in "12357" else ""


def _iterations(axes: Any) -> None:
    axes.set_xlabel("iteration")
    axes.locator_params(axis="x", nbins=5)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value / 1000:g}k" if value else "0")


def _ratio(axes: Any, trace: Sequence[Row]) -> None:
    """1/g(α) in the last stage that has been recorded, as the paper's figure has it for the last layer."""
    if not trace:
        axes.set_title("1/g(α): nothing recorded yet")
        return
    stage = max(int(row["stage"]) for row in trace)
    rows = [row for row in trace if int(row["stage"]) == stage]
    axes.plot(
        [int(row["step"]) for row in rows], [float(row["temperature_ratio"]) for row in rows], lw=0.7, color="#0072B2"
    )
    axes.set_ylim(0.5, 7.2)
    axes.set_title(f"1/g(α) while stage {stage} explores")
    _iterations(axes)
