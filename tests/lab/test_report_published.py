"""What is in the repository, and what anybody publishes: the page again from its tables, and every verdict from its numbers."""

import csv
import json
import math
import shutil
from pathlib import Path

import pytest
import sample_records as sample

from ctld_lab import timing
from ctld_lab.report import build
from ctld_lab.report.ensemble import content as ensemble_content
from ctld_lab.report.flatness import FRAMES
from ctld_lab.report.reading import read_study
from ctld_lab.report.tables import final_table
from ctld_lab.statistics import Estimate, association, estimate, marks, paired_difference, word

ROOT = Path(__file__).parents[2]
LAPTOP = ROOT / "results" / "laptop"
pytestmark = pytest.mark.xdist_group("published")


def rows(path):
    with path.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def numbers(line):
    low, high = (float(line[end]) if line[end] else None for end in ("low", "high"))
    return Estimate(float(line["mean"] or "nan"), low, high, int(line["count"]))


@pytest.fixture(scope="module")
def rebuilt(tmp_path_factory, undrawn):
    out = tmp_path_factory.mktemp("laptop")
    build(LAPTOP, out)
    return out


def test_the_stored_page_is_made_from_the_stored_tables(rebuilt):
    """`ctld report results/laptop`: the same bytes, page and tables, all of them."""
    names = {path.name for path in (LAPTOP / "tables").iterdir()}
    assert names == {path.name for path in (rebuilt / "tables").iterdir()}
    for name in names:
        assert (rebuilt / "tables" / name).read_bytes() == (LAPTOP / "tables" / name).read_bytes(), name
    page = (LAPTOP / "report.html").read_bytes()
    assert (rebuilt / "report.html").read_bytes() == page
    assert len(page) < 3_000_000


def test_stored_studies_name_commit_machine_and_command():
    folders = sorted(path.parent for path in LAPTOP.glob("*/study.json"))
    assert len(folders) == 7
    for folder in folders:
        record = json.loads((folder / "study.json").read_text(encoding="utf-8"))
        assert record["commands"][0].startswith(f"ctld run {folder.name}")
        assert "commit " in record["machine"]
        assert "torch" in record["machine"]


FINAL = ["sda-final", "sda-layers", "charrnn-final", "sensitivity-points", "ensemble-temperature-curve"]
FINAL += [f"ensemble-final-{workload}" for workload in ("digits5k", "digits60k", "text")]


@pytest.mark.parametrize("name", FINAL)
def test_every_mark_follows_from_the_numbers_beside_it(name):
    """Best, tie, undecided, or worse: by paired differences where values by seed are stored, else by Welch's."""
    lines = rows(LAPTOP / "tables" / f"{name}.csv")
    stored = LAPTOP / "tables" / f"{name.split('-')[0]}-seeds.csv"
    by_seed = {}
    for line in rows(stored) if stored.exists() else ():
        key = tuple(line[column] for column in ("method", "variant", "point", "metric"))
        by_seed.setdefault(key, {})[int(line["seed"])] = float(line["value"] or "nan")
    for variant, metric in {(line["variant"], line["metric"]) for line in lines}:
        competing = {
            (line["method"], line["point"]): line
            for line in lines
            if (line["variant"], line["metric"]) == (variant, metric) and line["diverged"] == "0"
        }
        values = {key: by_seed.get((key[0], variant, key[1], metric), {}) for key in competing}
        found = marks({key: numbers(line) for key, line in competing.items()}, values)
        assert found == {key: line["mark"] for key, line in competing.items()}, (variant, metric)
        for key, own in values.items():
            if own:
                assert numbers(competing[key]).mean == pytest.approx(estimate(list(own.values())).mean)


def test_every_word_follows_from_the_difference_beside_it():
    means = {
        (workload, line["method"], line["metric"]): float(line["mean"])
        for workload in ("digits5k", "digits60k", "text")
        for line in rows(LAPTOP / "tables" / f"ensemble-final-{workload}.csv")
        if line["mean"]
    }
    lines = rows(LAPTOP / "tables" / "ensemble-differences.csv")
    assert len(lines) == 3 * 7 * 4
    for line in lines:
        reference = means[line["workload"], line["other"], line["metric"]]
        assert word(numbers(line), reference) == line["word"], line
        one = means[line["workload"], line["one"], line["metric"]]
        assert float(line["mean"]) == pytest.approx(one - reference, abs=1e-9)


@pytest.mark.parametrize("study", ["sda", "charrnn", "ensemble"])
def test_readings_of_flatness_follow_from_those_of_each_run(study):
    tables = {name: rows(LAPTOP / "tables" / f"flat-minima-{study}-{name}.csv") for name in FRAMES}
    by_seed = {}
    for line in tables["seeds"]:
        by_seed.setdefault((line["method"], line["variant"], line["measure"]), {})[int(line["seed"])] = float(
            line["value"]
        )
    for line in tables["values"]:
        own = by_seed[line["method"], line["variant"], line["measure"]]
        assert numbers(line) == estimate([own[seed] for seed in sorted(own)])
    for line in tables["differences"]:
        own, plain = (by_seed[method, line["variant"], line["measure"]] for method in (line["method"], "sgd"))
        assert numbers(line) == paired_difference(own, plain)
    for line in tables["correlations"]:
        pairs = [
            (own, by_seed[method, variant, line["quality"]])
            for (method, variant, measure), own in by_seed.items()
            if (variant, measure) == (line["variant"], line["measure"])
        ]
        found = association(pairs)
        assert [found.rho, found.probability] == [float(line["rho"]), float(line["p"])]


def test_the_curve_against_the_temperature_is_read_as_the_document_reads_it():
    """docs/ensembles.md: beside T = 0, pair by pair, at each T."""
    by_point = {}
    for line in rows(LAPTOP / "tables" / "ensemble-seeds.csv"):
        if line["variant"] == "curve" and line["metric"] == "test nll":
            by_point.setdefault((line["method"], line["point"]), {})[int(line["seed"])] = float(line["value"])
    plain = by_point["cycles_cold", ""]
    mean = estimate(list(plain.values())).mean
    found = {key: word(paired_difference(own, plain), mean) for key, own in by_point.items() if key[1]}
    by_temperature = {
        point: [found[f"cycles_{kind}", f"T={point}"] for kind in ("paper", "driven", "constant")]
        for point in ("0.001", "0.00316", "0.01", "0.0316", "0.1", "0.316", "1.0")
    }
    assert by_temperature == {
        "0.001": ["tie"] * 3,
        "0.00316": ["tie", "lower", "tie"],
        "0.01": ["lower"] * 3,
        "0.0316": ["lower"] * 3,
        "0.1": ["lower"] * 3,
        "0.316": ["undecided", "higher", "higher"],
        "1.0": ["higher"] * 3,
    }
    lines = rows(LAPTOP / "tables" / "ensemble-temperature-curve.csv")
    marked = {(x["method"], x["point"]): x["mark"] for x in lines if x["metric"] == "test nll" and x["mark"]}
    assert marked == {
        **{(f"cycles_{kind}", "T=0.0316"): "tie" for kind in ("paper", "driven", "constant")},
        **{(f"cycles_{kind}", "T=0.1"): "undecided" for kind in ("driven", "constant")},
        ("cycles_paper", "T=0.1"): "best",
    }


def test_times_and_their_intervals_follow_from_the_rounds():
    lines = {}
    for line in rows(LAPTOP / "tables" / "timing-rounds.csv"):
        own = lines.setdefault(int(line["round"]), {"seconds": {}, "waiting": {}})
        for what in own:
            own[what][line["method"]] = float(line[what])
    settings = json.loads((LAPTOP / "timing" / "study.json").read_text(encoding="utf-8"))["settings"]
    assert len(lines) == settings["rounds"]
    epochs = settings["batches"] / math.ceil(60_000 / 128)
    found = timing.summary(list(lines.values()), epochs=epochs, exploration_share=settings["exploration_share"])
    stored = rows(LAPTOP / "tables" / "timing-times.csv")
    assert {line["method"] for line in stored} == found.keys()
    for line in stored:
        own = found[line["method"]]
        if line["metric"] == "ratio":
            assert [float(line[x]) for x in ("mean", "low", "high")] == [own[x] for x in ("ratio", "low", "high")]
        else:
            assert float(line["mean"]) == pytest.approx(own["seconds_per_epoch"], rel=1e-12)


def test_on_the_digits_the_default_ties():
    """README: "the default ties with SGD with momentum", from values by seed."""
    runs = json.loads((ROOT / "results" / "digits.json").read_text(encoding="utf-8"))["runs"]
    by_method = {}
    for run in runs:
        by_method.setdefault(run["method"], {})[run["seed"]] = run["nll"]
    plain = by_method["SGD-M"]
    found = paired_difference(by_method["CTLD, T auto"], plain)
    assert word(found, estimate(list(plain.values())).mean) == "tie"
    assert word(paired_difference(by_method["CTLD, T = 1"], plain), estimate(list(plain.values())).mean) == "higher"


# ---- publishing ----


@pytest.fixture(scope="module")
def published(tmp_path_factory, undrawn):
    root = tmp_path_factory.mktemp("runs")
    sample.write_all(root)
    out = tmp_path_factory.mktemp("published")
    build(root, out)
    return root, out


def test_a_published_report_is_made_again_from_its_tables(published, tmp_path):
    """Without the runs: the same tables to the byte, curves and verdicts too."""
    _, out = published
    copy = tmp_path / "copy"
    shutil.copytree(out, copy)
    for folder in ("figures", "report.html"):
        path = copy / folder
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    again = tmp_path / "again"
    page = build(copy, again).read_text(encoding="utf-8")
    assert {path.name for path in (out / "tables").iterdir()} == {path.name for path in (again / "tables").iterdir()}
    for path in (out / "tables").iterdir():
        assert path.read_bytes() == (again / "tables" / path.name).read_bytes(), path.name
    for words in ("CTLD has the lowest test MSE", "it matters here", "as in the bound", "commit 3a2b55e0c0ff"):
        assert words in page, words
    assert "data:image/png" not in page  # the curves are there
    first = (out / "report.html").read_text(encoding="utf-8")
    assert page.count("data-panels") == first.count("data-panels")


def test_verdicts_of_a_published_study_are_paired(published):
    root, out = published
    for name in ("sda", "charrnn", "sensitivity"):
        own, stored = final_table(root / name), final_table(out / name)
        assert [(row.title, row.variant, row.point, row.state) for row in own] == [
            (row.title, row.variant, row.point, row.state) for row in stored
        ]
        for one, other in zip(own, stored, strict=True):
            assert {x: one.marks[x] for x in one.metrics} == {x: other.marks[x] for x in other.metrics}


@pytest.mark.parametrize(
    "content", [b"", b"\xff\xfe\x00", b'a,b\n"1,2\n', b"a,b\n1,2,3,4\n"], ids=["empty", "binary", "quote", "ragged"]
)
def test_a_damaged_table_costs_its_own_section(published, tmp_path, content):
    _, out = published
    copy = tmp_path / "copy"
    shutil.copytree(out, copy)
    (copy / "tables" / "timing-times.csv").write_bytes(content)
    found = read_study(copy / "timing")
    assert "timing-times.csv cannot be read as a table" in found.problem
    assert read_study(copy / "sda").problem is None


@pytest.mark.parametrize("column", ["mean", "count", "planned"])
def test_words_where_numbers_belong_are_refused(published, tmp_path, column):
    _, out = published
    copy = tmp_path / "copy"
    shutil.copytree(out, copy)
    path = copy / "tables" / "sda-final.csv"
    lines = rows(path)
    lines[3][column] = "=1+1"
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, lines[0])
        writer.writeheader()
        writer.writerows(lines)
    assert f"column {column} holds '=1+1', not a number" in read_study(copy / "sda").problem


def test_a_link_is_not_followed(published, tmp_path):
    _, out = published
    copy = tmp_path / "copy"
    shutil.copytree(out, copy)
    (copy / "tables" / "timing-times.csv").unlink()
    (copy / "tables" / "timing-times.csv").symlink_to("/etc/passwd")
    assert "is no table of a report" in read_study(copy / "timing").problem


def test_the_ensembles_answer_is_that_of_the_stored_differences():
    found = ensemble_content(read_study(LAPTOP / "ensemble")).summary[0]
    assert "ties with it on 60,000 digits and char-LSTM; it does harm on 5,000 digits." in found
