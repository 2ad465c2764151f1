"""The page that has the paper beside what is stored: its numbers are those of the tables, its verdicts those of the orders."""

import math
import re
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pandas as pd
import pytest

from ctld.tempering import TemperatureScaling
from ctld_lab.paper import experiments, items, printed
from ctld_lab.paper.items import NOT_RUN, OTHER, SAME, order
from ctld_lab.paper.page import render
from ctld_lab.paper.stored import Stored
from ctld_lab.records import RecordError
from ctld_lab.report import tidy
from ctld_lab.report.provenance import searches
from ctld_lab.report.reading import read_study
from ctld_lab.report.tables import final_table
from ctld_lab.report.tidy import point_text
from ctld_lab.sampling.targets import DoubleWell
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


def study(name, scale="paper"):
    return read_study(RESULTS / scale / name)


def finals(name, scale="paper"):
    return {(row.method, row.variant, point_text(row.point)): row for row in final_table(study(name, scale))}


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
    own = study("sda").places("cold_share").query("variant == 'paper'")
    assert len(own) == 4
    for row in own.itertuples():
        share = f"{100 * (1 - row.value):.0f}\N{NO-BREAK SPACE}%"
        assert cells[f"exploration at g < 1, layer {row.stage:.0f}"]["ours"] == share


def test_figure_2_has_the_stored_errors(found):
    cells = table(found["fig-2"])
    for title, method in TITLES.items():
        for variant, words in (("paper", ""), ("laptop", ", laptop's lr")):
            row = finals("sda").get((method, variant, ""))
            if row and row.diverged:
                assert cells[title + words]["ours, layer 4"] == "diverged"
            elif row and row.done:
                assert cells[title + words]["ours, layer 4"] == f"{row.estimate('train mse').mean:.4f}"
                assert cells[title + words]["ours, image"] == f"{row.estimate('test image_mse').mean:.2f}"
            else:
                assert title + words not in cells
    assert cells["CTLD"]["steps"] == "100\N{NO-BREAK SPACE}%"


def test_figure_3_has_the_farthest_evaluations(found):
    cells, names = table(found["fig-3"]), {"paper": "", "paper-biases-0": ", biases 0"}
    assert found["fig-3"].share < 1
    for title, method in TITLES.items():
        for variant, words in names.items():
            points = study("charrnn").places(["train nats", "test nats"])
            points = points[(points["method"] == method) & (points["variant"] == variant)].sort_values("step")
            ends = [
                points[points["metric"] == metric].iloc[-1] for metric in ("train nats", "test nats") if len(points)
            ]
            if ends:
                assert cells[title + words]["ours, train / test"] == " / ".join(f"{x['value']:.3f}" for x in ends)
                share = 100 * ends[0]["step"] / 360_000
                assert float(cells[title + words]["steps"].rstrip("\N{NO-BREAK SPACE}%")) == pytest.approx(
                    share, rel=0.05
                )


@pytest.mark.parametrize(("name", "key"), [("sda", "table-1"), ("charrnn", "table-2")])
def test_tables_1_and_2_have_the_chosen_rates(found, name, key):
    cells = table(found[key])
    for search in searches(study(name, "laptop")):
        title = next(title for title, method in TITLES.items() if method == search.name)
        ours = next(value for name, value in cells[title].items() if name.startswith("ours"))
        assert float(ours.replace("−", "-")) == pytest.approx(search.chosen["lr"])


def test_figure_4_has_the_stored_losses(found):
    cells = table(found["fig-4"])
    own = {key: row.estimate("test nats") for key, row in finals("sensitivity", "laptop").items()}
    for (_, variant, point), row in own.items():
        if variant == "depth":
            assert cells[point.replace("=", " = ")]["ours, test nats"] == f"{row.mean:.3f} ± {row.half_width:.3f}"
    grid = [row.mean for (_, variant, _), row in own.items() if variant == "grid"]
    assert cells["w × σ, lowest to highest"]["ours, test nats"] == f"{min(grid):.3f}–{max(grid):.3f}"


def test_table_3_has_the_stored_ratios(found):
    cells = table(found["table-3"])
    for row in finals("timing", "laptop").values():
        title = next((x for x, method in {**TITLES, "AdaDelta": "adadelta"}.items() if method == row.method), None)
        if title:
            assert cells[title]["ours, ratio"].split(" ")[0] == f"{row.estimate('ratio').mean:.3f}"
            seconds = timing.PAPER[row.method] / timing.PAPER["sgd"]
            assert cells[title]["paper, ratio"] == f"{seconds:.3f}"


def test_theorem_1_has_ratios_to_the_exact_averages(found):
    cells, exact = table(found["theorem-1"]), {}
    for (label, variant, _), row in finals("double-well", "laptop").items():
        if variant == "tempered":
            exact[label] = {metric: row.estimate(metric).mean for metric in row.metrics}
    for label, own in exact.items():
        name = f"CTLD, the paper's, {label}".replace(" = ", "\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}")
        assert cells[name]["ours, kinetic T"].startswith(f"{own['kinetic_temperature'] / own['kinetic_target']:.3f} ±")
        assert cells[name]["ours, ⟨x²⟩"].startswith(f"{own['mean_square'] / own['mean_square_exact']:.3f} ±")


def test_theorem_2_has_the_stored_exponents(found):
    exponents = [row[2] for row in found["theorem-2"].rows if "±" in row[2] and "at s" not in row[2]]
    shown = [text.split(" ")[0].replace("−", "-") for text in exponents]
    table = study("double-well", "laptop").table
    stored = {f"{value:.2f}" for value in table.loc[table["metric"].str.endswith(" slope"), "value"]}
    assert shown
    assert set(shown) <= stored


def test_theorem_2_has_what_minibatch_noise_adds(found):
    """A limit less that without noise; compensated chains have none of it."""
    table, cells = study("double-well", "laptop").table, {row[0]: row[2] for row in found["theorem-2"].rows}
    for d in (1, 10):
        for compensated in (0, 1):
            own = table[(table["method"] == "none") & (table["point"] == f"d={d}.0 compensated={compensated}.0")]
            limits = own[own["metric"] == "limit"].set_index("at")["value"]
            added = limits["s=8"] - limits["s=0"]
            cell = cells[f"Bias by noise, d = {d}, no tempering" + ", compensated" * compensated]
            if compensated:
                assert cell.startswith(f"{added:.3f} ±".replace("-", "−"))
                assert abs(added) < float(cell.split(" ")[2])
            else:
                heated = DoubleWell(d).mean_energy(1 + 0.02 * 8**2 / 2) - DoubleWell(d).mean_energy()
                assert added == pytest.approx(heated, rel=0.1)


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
    ends = [
        [method, "paper", "", "stage=1 step=360000", f"{split} nats", "0", value]
        for method, value in values.items()
        for split in ("train", "test")
    ]
    (folder / "paper" / "tables").mkdir()
    table = pd.concat([study("charrnn").table, tidy.frame(ends)])
    tidy.write(folder / "paper" / "tables" / "charrnn.csv", table)


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
