"""The documents: code that runs, links that lead somewhere, numbers that are those of the stored runs."""

import csv
import json
import re
import statistics
from pathlib import Path

import pytest
import torch

from ctld import OPTIMIZERS

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])


def test_the_readmes_loop_runs_and_learns():
    loop, others = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    names = {}
    torch.manual_seed(0)
    exec(compile(loop, "README.md", "exec"), names)
    assert names["loss"].item() < 0.9
    assert not names["optimizer"].exploring
    # Each of the other methods' lines, put into the same loop.
    body = loop[loop.index("for step in range") :]
    for line in others.splitlines()[2:]:
        exec(compile(f"import ctld\n{line}\n{body}", "README.md", "exec"), names)
        assert names["loss"].isfinite()


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document):
    for target in re.findall(r"\]\((?!https?:)([^)#]*)(?:#[^)]*)?\)", document.read_text()):
        assert not target or (document.parent / target).exists(), target


def test_anchors_exist():
    for document in DOCUMENTS:
        for target, anchor in re.findall(r"\]\(([^)#:]*)#([^)]*)\)", document.read_text()):
            headings = re.findall(
                r"^#+ (.*)$", ((document.parent / target) if target else document).read_text(), re.MULTILINE
            )
            slugs = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
            assert anchor in slugs, f"{document.name}: {target}#{anchor}"


def test_double_well_table_is_the_stored_run():
    runs = json.loads((ROOT / "results" / "double_well.json").read_text())["runs"]
    text = (ROOT / "docs" / "maths.md").read_text()
    for dimensions in (1, 10, 100, 1000):
        for tempered, name in ((True, "paper"), (False, "none")):
            chosen = [run for run in runs if (run["dimensions"], run["tempered"]) == (dimensions, tempered)]
            kinetic = [run["kinetic_temperature"] for run in chosen]
            crossings = ", ".join(str(run["crossings"]) for run in chosen)
            error = statistics.stdev(kinetic) / len(kinetic) ** 0.5
            row = f"| {dimensions:,} | {name} | {statistics.mean(kinetic):.3f} ± {error:.3f} |"
            line = next(line for line in text.splitlines() if line.startswith(row))
            assert line.endswith(f"| {crossings} |")


def test_digits_table_is_the_stored_run():
    runs = json.loads((ROOT / "results" / "digits.json").read_text())["runs"]
    plain = {run["seed"]: run for run in runs if run["method"] == "SGD-M"}
    text = (ROOT / "README.md").read_text()

    def cell(values, digits):
        return f"{statistics.fmean(values):.{digits}f} ± {statistics.stdev(values) / len(values) ** 0.5:.{digits}f}"

    for method in dict.fromkeys(run["method"] for run in runs):
        chosen = [run for run in runs if run["method"] == method]
        assert len(chosen) == 5
        differences = [run["nll"] - plain[run["seed"]]["nll"] for run in chosen]
        cells = [cell([run["nll"] for run in chosen], 4), cell([run["error"] for run in chosen], 2)]
        cells.append("–" if method == "SGD-M" else cell(differences, 4))
        assert f"| {method} | {' | '.join(cells)} |" in text


def test_the_laptop_table_is_the_stored_one():
    """The README's, from results/laptop/tables: `ctld report` of the runs."""

    def cells(study, metric):
        with (ROOT / "results" / "laptop" / "tables" / f"{study}-final.csv").open(encoding="utf-8") as file:
            rows = [row for row in csv.DictReader(file) if row["metric"] == metric]
        found = {}
        for row in rows:
            text = "diverged"
            if row["diverged"] == "0":
                text = f"{float(row['mean']):.3f} ± {(float(row['high']) - float(row['low'])) / 2:.3f}"
                text = {"best": f"**{text}**", "": text}.get(row["mark"], f"{text} ({row['mark']})")
            found[row["method"], row["variant"]] = text
        return found

    image, text = cells("sda", "test image_mse"), cells("charrnn", "test nats")
    readme = (ROOT / "README.md").read_text()
    for method in ("sgd", "rmsprop", "adam", "anneal_sgd", "santa", "ctld"):
        values = [found[method, variant] for found in (image, text) for variant in ("tuned", "paper")]
        assert f"| {OPTIMIZERS[method].title} | {' | '.join(values)} |" in readme


def test_the_temperings_table_is_the_stored_one():
    """docs/tempering.md, from results/laptop/tables: the calibrated rows, digit by digit."""
    with (ROOT / "results" / "laptop" / "tables" / "tempering-wells.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    text = (ROOT / "docs" / "tempering.md").read_text()

    def value(row, name, digits):
        return f"{float(row[name]):.{digits}f} ± {float(row[f'{name}_error']):.{digits}f}"

    found = [row for row in rows if row["tempering"] in ("calibrated", "half-the-force")]
    assert len(found) == 5
    for row in found:
        title = "calibrated" if row["tempering"] == "calibrated" else "half the force on α, wrong on purpose"
        kinetic = value(row, "kinetic_temperature", 4 if row["dimensions"] == "1000" else 3)
        cells = [f"{int(row['dimensions']):,}", title, kinetic, value(row, "mean_square_ratio", 4)]
        cells += [f"{float(row['largest_total_variation']):.3f}", value(row, "crossing_ratio", 0)]
        assert f"| {' | '.join(cells)} |" in text


def test_the_ensembles_tables_are_the_stored_ones():
    """docs/ensembles.md, from results/laptop/tables: every method's nll, and the comparisons that were planned."""
    tables, text = ROOT / "results" / "laptop" / "tables", (ROOT / "docs" / "ensembles.md").read_text()
    digits = {"digits5k": 4, "digits60k": 4, "text": 3}

    def rows(name):
        with (tables / f"ensemble-{name}.csv").open(encoding="utf-8") as file:
            return [row for row in csv.DictReader(file) if row["metric"] == "test nll"]

    cells = {}
    for workload, places in digits.items():
        for row in rows(f"final-{workload}"):
            half = (float(row["high"]) - float(row["low"])) / 2
            cell = f"{float(row['mean']):.{places}f} ± {half:.{places}f}"
            marked = {"best": f"**{cell}**", "": cell}.get(row["mark"], f"{cell} ({row['mark']})")
            cells.setdefault(row["method"], []).append(marked)
    assert len(cells) == 12
    for method, values in cells.items():
        assert f" | {' | '.join(values)} |" in text, method

    primary = [row for row in rows("differences") if row["role"] == "primary"]
    assert len(primary) == 9
    for row in primary:
        places = digits[row["workload"]]
        mean, low, high = (f"{float(row[name]):+.{places}f}".replace("-", "−") for name in ("mean", "low", "high"))
        assert f"| {mean} ({low} to {high}), {row['word']} |" in text, row


def test_the_readings_of_flatness_are_the_stored_ones():
    """Counts in docs/ensembles.md and the README, from results/laptop/tables."""
    agree = opposite = readings = 0
    tempered = ("ctld", "cycles_paper", "cycles_calibrated", "cycles_driven")
    supported = correlations = 0
    for study in ("sda", "charrnn", "ensemble"):
        table = ROOT / "results" / "laptop" / "tables" / f"flat-minima-{study}"
        with Path(f"{table}-differences.csv").open(encoding="utf-8") as file:
            rows = [row for row in csv.DictReader(file) if row["method"] in tempered]
        readings += len(rows)
        agree += sum(float(row["high"]) < 0 for row in rows)
        opposite += sum(float(row["low"]) > 0 for row in rows)
        with Path(f"{table}-correlations.csv").open(encoding="utf-8") as file:
            rows = [row for row in csv.DictReader(file) if row["quality"] == "test loss"]
        correlations += len(rows)
        supported += sum(float(row["rho"]) > 0 and float(row["p"]) < 0.05 for row in rows)
        assert not any(float(row["rho"]) < 0 and float(row["p"]) < 0.05 for row in rows)
    text, readme = (ROOT / "docs" / "ensembles.md").read_text(), (ROOT / "README.md").read_text()
    assert f"{agree} agree, {opposite} say the opposite and {readings - agree - opposite} decide nothing" in text
    assert f"Of {correlations} readings {supported} agree" in text
    assert (
        f"Of {readings} readings of flatness {agree} have CTLD flatter than SGD-M and {opposite} the opposite" in readme
    )
    assert f"{supported} of {correlations} readings agree" in readme
