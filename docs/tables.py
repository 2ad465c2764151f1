"""Tables in the documents, made from the stored results: `python docs/tables.py` after a study has been run again.

What lies between two markers, `<!-- NAME -->` and `<!-- end of NAME -->`, is made by the function of that name below. A
test (tests/test_documents.py) compares.
"""

import functools
import json
import re
import statistics
from pathlib import Path

from ctld_lab.report.reading import read_study
from ctld_lab.report.tables import final_table

ROOT = Path(__file__).resolve().parents[1]
STORED = ROOT / "results"
METHODS = {
    "sgd": "SGD-M",
    "rmsprop": "RMSprop",
    "adam": "Adam",
    "anneal_sgd": "AnnealSGD",
    "santa": "Santa",
    "ctld": "CTLD",
}
WORKLOADS = {"digits5k": "5,000 digits", "digits60k": "55,000 digits", "text": "char-LSTM"}


@functools.cache
def study(name, scale="laptop"):
    return read_study(STORED / scale / name)


@functools.cache
def final(name, scale="laptop"):
    """Method and variant → what its runs came to."""
    return {(row.method, row.variant): row for row in final_table(study(name, scale)) if not row.point}


def table(header, body):
    return "\n".join(f"| {' | '.join(line)} |" for line in [header, ["---"] * len(header), *body])


def interval(row, metric, places, *, marked=True):
    """Mean and half the width of its 95 % interval; the best bold, with the report's word for the others."""
    if row.diverged:
        return "diverged"
    found, mark = row.estimate(metric), row.marks[metric] if marked else ""
    cell = f"{found.mean:.{places}f} ± {found.half_width:.{places}f}"
    return {"best": f"**{cell}**", "": cell}.get(mark, f"{cell} ({mark})")


def signed(value, places):
    return f"{value:+.{places}f}".replace("-", "−")


def with_error(values, places):
    """Mean and standard error over seeds."""
    return f"{statistics.fmean(values):.{places}f} ± {statistics.stdev(values) / len(values) ** 0.5:.{places}f}"


def paper():
    """The paper's two comparisons."""
    metrics = {"sda": "test image_mse", "charrnn": "test nats"}
    columns = [(name, variant) for name in metrics for variant in ("tuned", "paper")]
    header = ["method", "autoencoder, tuned", "at the paper's settings", "LSTM, tuned", "at the paper's settings"]
    body = [
        [title, *(interval(final(name)[method, variant], metrics[name], 3) for name, variant in columns)]
        for method, title in METHODS.items()
    ]
    return table(header, body)


@functools.cache
def the_papers_items():
    """What `ctld paper` shows, by item."""
    from ctld_lab.paper import items

    return {item.key: item for item in items(STORED)}


def paper_items():
    """Every item of the paper: how much of it was run, and how its order compares."""
    body = [
        [item.printed["name"], item.scale, item.done, item.seeds, item.verdict.words]
        for item in the_papers_items().values()
    ]
    return table(["item", "shown at", "steps done, of the paper's", "seeds", "verdict"], body)


def paper_fig_2():
    """Fig. 2: a layer's error on its own input, which is the paper's measure, and the image's."""
    item = the_papers_items()["fig-2"]
    return table(item.columns[:4], [row[:4] for row in item.rows])


def digits():
    """CTLD beside SGD-M on 5,000 digits, paired by seed."""
    runs = json.loads((STORED / "digits.json").read_text(encoding="utf-8"))["runs"]
    plain = {run["seed"]: run["nll"] for run in runs if run["method"] == "SGD-M"}
    body = []
    for method in dict.fromkeys(run["method"] for run in runs):
        chosen = [run for run in runs if run["method"] == method]
        differences = [run["nll"] - plain[run["seed"]] for run in chosen]
        cells = [with_error([run["nll"] for run in chosen], 4), with_error([run["error"] for run in chosen], 2)]
        body.append([method, *cells, "–" if method == "SGD-M" else with_error(differences, 4)])
    return table(["method", "test nll", "test error %", "nll − SGD-M, paired"], body)


def double_well():
    """What the paper's settings sample."""
    runs = json.loads((STORED / "double_well.json").read_text(encoding="utf-8"))["runs"]
    body = []
    for dimensions in (1, 10, 100, 1000):
        for tempered, name in ((True, "paper"), (False, "none")):
            chosen = [run for run in runs if (run["dimensions"], run["tempered"]) == (dimensions, tempered)]
            cells = [with_error([run["kinetic_temperature"] for run in chosen], 3)]
            cells.append(with_error([run["mean_square"] for run in chosen], 4))
            for key in ("total_variation", "cold_share"):
                cells.append(f"{statistics.fmean(run[key] for run in chosen):.2f}" if tempered else "–")
            cells.append(", ".join(str(run["crossings"]) for run in chosen))
            body.append([f"{dimensions:,}", name, *cells])
    header = ["d", "tempering", "kinetic temperature at g = 1 (1.010)", "⟨x²⟩ at g = 1 (0.9645)", "TV of α"]
    return table([*header, "time at g = 1 (0.267)", "crossings"], body)


PLACES = {
    "docs/maths.md": (double_well,),
    "docs/paper.md": (paper_items, paper_fig_2, paper, digits),
}


def rendered(document):
    """The text of a document with its tables as the stored results have them."""
    text = (ROOT / document).read_text(encoding="utf-8")
    for make in PLACES[document]:
        name = make.__name__
        pattern = re.compile(f"<!-- {name} -->.*?<!-- end of {name} -->", re.DOTALL)
        if len(pattern.findall(text)) != 1:
            raise ValueError(f"{document} has no place for the table {name}, or several: give it its two markers")
        block = f"<!-- {name} -->\n\n{make()}\n\n<!-- end of {name} -->"
        text = pattern.sub(lambda _, block=block: block, text)
    return text


if __name__ == "__main__":
    for document in PLACES:
        (ROOT / document).write_text(rendered(document), encoding="utf-8")
