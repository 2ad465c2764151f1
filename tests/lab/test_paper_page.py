"""The page that has the paper beside what is stored: its numbers are those of the tables, its verdicts those of the orders."""

import csv
import math
import re
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from ctld.tempering import TemperatureScaling
from ctld_lab.paper import experiments, items, printed
from ctld_lab.paper.items import NOT_RUN, OTHER, SAME, order
from ctld_lab.paper.page import render
from ctld_lab.paper.stored import Stored
from ctld_lab.records import RecordError
from ctld_lab.studies import charrnn, sda, sensitivity, timing

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results"
TITLES = {
    "SGD-M": "sgd",
    "RMSprop": "rmsprop",
    "Adam": "adam",
    "AnnealSGD": "anneal_sgd",
    "Santa": "santa",
    "CTLD": "ctld",
}


@pytest.fixture(scope="module")
def found():
    return {item.key: item for item in items(RESULTS)}


def rows(name, scale="paper", **wanted):
    with (RESULTS / scale / "tables" / f"{name}.csv").open(encoding="utf-8") as file:
        return [row for row in csv.DictReader(file) if all(row[key] == value for key, value in wanted.items())]


def table(item):
    """First cell → the others by column."""
    return {row[0]: dict(zip(item.columns[1:], row[1:], strict=True)) for row in item.rows}


# ---- what the paper prints ----


def test_printed_values_are_those_of_the_studies():
    """Two copies of the paper's numbers: that of the page, and the one that the studies run with."""
    for study, name in ((sda, "sda"), (charrnn, "charrnn")):
        theirs = printed.rates_of_sgd(name)
        for method, options in study.PAPER.items():
            assert theirs[method] == pytest.approx(options["optimizer"]["lr"], rel=1e-12)
        assert printed.PRINTED["rates"]["N"][name] == study.PAPER_DATA
        assert printed.STEPS[name] == study.STUDY.paper["steps"]
    assert printed.STEPS["sensitivity"] == sensitivity.PAPER_STEPS
    assert printed.STEPS["timing"] == math.prod(timing.STUDY.scales["paper"][name] for name in ("rounds", "batches"))
    assert printed.SECONDS == timing.PAPER


def test_the_curve_of_figure_1_is_the_librarys():
    scaling = TemperatureScaling(plateau=printed.PLATEAU, edge=printed.EDGE, depth=printed.DEPTH)
    for alpha in (-2.0, -1.5, -1.1, -0.4, 0.0, 0.3, 0.41, 0.95, 1.3, 1.6):
        assert printed.scaling(alpha) == pytest.approx(float(scaling.value(alpha)), abs=1e-12)


# ---- our numbers ----


def test_figure_1_has_the_stored_shares(found):
    cells = table(found["fig-1"])
    for row in rows("sda-temperature", variant="paper"):
        share = f"{100 * (1 - float(row['cold_share'])):.0f}\N{NO-BREAK SPACE}%"
        assert cells[f"exploration at g < 1, layer {row['stage']}"]["ours"] == share


def test_figure_2_has_the_stored_errors(found):
    cells = table(found["fig-2"])
    for title, method in TITLES.items():
        for variant, words in (("paper", ""), ("laptop", ", laptop's lr")):
            own = {row["metric"]: row for row in rows("sda-final", method=method, variant=variant) if row["metric"]}
            if own and "1" in {row["diverged"] for row in own.values()}:
                assert cells[title + words]["ours, layer 4"] == "diverged"
            elif own:
                assert cells[title + words]["ours, layer 4"] == f"{float(own['train mse']['mean']):.4f}"
                assert cells[title + words]["ours, image"] == f"{float(own['test image_mse']['mean']):.2f}"
            else:
                assert title + words not in cells
    assert cells["CTLD"]["steps"] == "100\N{NO-BREAK SPACE}%"


def test_figure_3_has_the_farthest_evaluations(found):
    cells, names = table(found["fig-3"]), {"paper": "", "paper-biases-0": ", biases 0"}
    assert found["fig-3"].share < 1
    for title, method in TITLES.items():
        for variant, words in names.items():
            ends = []
            for split in ("train", "test"):
                points = rows("charrnn-curves", method=method, variant=variant, split=split, metric="nats")
                ends += [max(points, key=lambda row: float(row["step"]))] if points else []
            if ends:
                assert cells[title + words]["ours, train / test"] == " / ".join(f"{float(x['mean']):.3f}" for x in ends)
                share = 100 * float(ends[0]["step"]) / 360_000
                assert float(cells[title + words]["steps"].rstrip("\N{NO-BREAK SPACE}%")) == pytest.approx(
                    share, rel=0.05
                )


@pytest.mark.parametrize(("study", "key"), [("sda", "table-1"), ("charrnn", "table-2")])
def test_tables_1_and_2_have_the_chosen_rates(found, study, key):
    cells = table(found[key])
    for row in rows(f"{study}-tuning", "laptop"):
        title = next(title for title, method in TITLES.items() if method == row["method"])
        shown = re.match(r"lr ([^,]+)", row["chosen"])[1]
        ours = next(value for name, value in cells[title].items() if name.startswith("ours"))
        assert float(ours.replace("−", "-")) == pytest.approx(float(shown.replace("−", "-")))


def test_figure_4_has_the_stored_losses(found):
    cells = table(found["fig-4"])
    for row in rows("sensitivity-points", "laptop", variant="depth", metric="test nats"):
        half = 0.5 * (float(row["high"]) - float(row["low"]))
        assert cells[row["point"].replace("=", " = ")]["ours, test nats"] == f"{float(row['mean']):.3f} ± {half:.3f}"
    grid = [float(row["mean"]) for row in rows("sensitivity-points", "laptop", variant="grid", metric="test nats")]
    assert cells["w × σ, lowest to highest"]["ours, test nats"] == f"{min(grid):.3f}–{max(grid):.3f}"


def test_table_3_has_the_stored_ratios(found):
    cells = table(found["table-3"])
    for row in rows("timing-times", "laptop", metric="ratio"):
        title = next((x for x, method in {**TITLES, "AdaDelta": "adadelta"}.items() if method == row["method"]), None)
        if title:
            assert cells[title]["ours, ratio"].split(" ")[0] == f"{float(row['mean']):.3f}"
            assert cells[title]["paper, ratio"] == f"{float(row['paper']):.3f}"


def test_theorem_1_has_ratios_to_the_exact_averages(found):
    cells, exact = table(found["theorem-1"]), {}
    for row in rows("double-well-exactness", "laptop", variant="tempered"):
        exact.setdefault(row["method"], {})[row["metric"]] = float(row["mean"])
    for label, own in exact.items():
        name = f"CTLD, the paper's, {label}".replace(" = ", "\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}")
        assert cells[name]["ours, kinetic T"].startswith(f"{own['kinetic_temperature'] / own['kinetic_target']:.3f} ±")
        assert cells[name]["ours, ⟨x²⟩"].startswith(f"{own['mean_square'] / own['mean_square_exact']:.3f} ±")


def test_theorem_2_has_the_stored_exponents(found):
    shown = [row[2].split(" ")[0].replace("−", "-") for row in found["theorem-2"].rows if "±" in row[2]]
    stored = {f"{float(row['slope']):.2f}" for row in rows("double-well-theorem", "laptop") if row["slope"]}
    assert shown
    assert set(shown) <= stored


# ---- verdicts ----


@pytest.mark.parametrize(
    ("ours", "kind"),
    [
        ({"a": 1.0, "b": 2.0, "c": 3.0}, SAME),
        ({"a": 1.0, "b": 3.0, "c": 2.0}, SAME),  # the paper's ranges of b and c overlap
        ({"a": 2.5, "b": 2.0, "c": 3.0}, OTHER),
        ({"a": math.inf, "b": 2.0, "c": 3.0}, OTHER),
        ({"b": 2.0, "c": 3.0}, NOT_RUN),
        ({}, NOT_RUN),
    ],
)
def test_orders_are_compared_by_pairs_that_the_paper_tells_apart(ours, kind):
    assert order({"a": 1.0, "b": (1.5, 2.5), "c": (2.0, 3.0)}, ours, "x").kind == kind


def finish(folder, values):
    """The stored results with every run of Fig. 3 at its end."""
    shutil.copytree(RESULTS / "paper" / "charrnn", folder / "paper" / "charrnn")
    (folder / "paper" / "tables").mkdir()
    for path in (RESULTS / "paper" / "tables").glob("charrnn-*.csv"):
        shutil.copy(path, folder / "paper" / "tables")
    with (folder / "paper" / "tables" / "charrnn-curves.csv").open("a", encoding="utf-8") as file:
        for method, value in values.items():
            for split in ("train", "test"):
                file.write(f"paper,{split},nats,{method},1,360000.0,{value},,,1\n")


@pytest.mark.parametrize(("swapped", "kind"), [(False, SAME), (True, OTHER)])
def test_finished_runs_of_figure_3_get_their_verdict(tmp_path, swapped, kind):
    values = {method: printed.ends(value)[0] for method, value in printed.FIG_3["train"].items()}
    if swapped:
        values["ctld"], values["adam"] = values["adam"], values["ctld"]
    finish(tmp_path, values)
    item = experiments.fig_3(Stored(tmp_path))
    assert item.verdict.kind == kind
    assert item.share == 1.0


def test_an_unfinished_run_is_shown_with_its_share(tmp_path):
    finish(tmp_path, {"ctld": 2.5})
    item = experiments.fig_3(Stored(tmp_path))
    cells = table(item)
    assert cells["CTLD"]["steps"] == "100\N{NO-BREAK SPACE}%"
    assert cells["Santa"]["steps"] == "0\N{NO-BREAK SPACE}%"
    assert item.verdict.kind == NOT_RUN


# ---- the page ----


def test_the_page_is_one_file_and_has_every_item(found):
    page = render(list(found.values()))
    assert not re.findall(r"""(?:src|href)=["'](?!data:|#)""", page)
    assert re.findall(r'<section id="([\w-]+)"', page) == list(found)
    assert len(re.findall(r"<img ", page)) == sum(len(x.pictures) + len(x.unseen) for x in found.values())
    for item in found.values():
        for picture in (*item.pictures, *item.unseen):
            assert ElementTree.fromstring(picture.svg).tag.endswith("svg")


def test_the_stored_figures_are_made_from_the_stored_tables(found):
    """`ctld paper --output docs/_static/paper`, after a table has changed. Number by number: the last digit may differ."""
    pictures = {f"{x.name}.svg": x.svg for item in found.values() for x in (*item.pictures, *item.unseen)}
    stored = {path.name: path for path in (ROOT / "docs" / "_static" / "paper").glob("*.svg")}
    assert stored.keys() == pictures.keys()
    number = re.compile(r"(?<![#\w.-])-?\d+\.?\d*")
    for name, path in stored.items():
        mine, theirs = ([float(x) for x in number.findall(text)] for text in (pictures[name], path.read_text("utf-8")))
        assert len(mine) == len(theirs), name
        assert mine == pytest.approx(theirs, abs=0.01), name


def test_the_command_needs_no_torch_and_refuses_an_empty_folder(tmp_path):
    with pytest.raises(RecordError, match=r"study\.json"):
        items(tmp_path)
    script = "import sys, ctld_lab.paper; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
