"""Numbers of the report: their digits, what is missing or wrong, comparisons. No figure is drawn here."""

import io
import math

import pytest
import sample_records as sample
from rich.console import Console

from ctld_lab.commands import Refusal
from ctld_lab.commands.overview import print_comparison, shown
from ctld_lab.records import StudyDirectory, write_json
from ctld_lab.report import double_well, methods, sensitivity, timing
from ctld_lab.report.plots import render
from ctld_lab.report.reading import read_study
from ctld_lab.report.sections import printed_values
from ctld_lab.report.tables import final_table
from ctld_lab.report.wording import listed, shortened, show, show_estimate, show_range, show_seconds, show_setting
from ctld_lab.statistics import Estimate, estimate

LAPTOP = sample.Path(__file__).parents[2] / "results" / "laptop"


def text(words):
    """With plain spaces."""
    return words.replace("\N{NO-BREAK SPACE}", " ")


# ---- words ----


def test_numbers_have_the_digits_that_their_interval_warrants():
    assert text(show_estimate(Estimate(0.0123456, 0.0119, 0.0128, 3))) == "0.01235 ± 0.00045"
    assert text(show_estimate(Estimate(1.5, None, None, 1))) == "1.500"
    assert text(show_estimate(estimate([0.4, 0.4, 0.4]))) == "0.4000 ± 0"
    assert show_estimate(estimate([])) == "–"
    assert show_range(Estimate(1.0102, 1.0031, 1.0183, 9)) == "1.010 [1.003, 1.018]"
    assert (show(math.inf), show(0.0), show(-2.5, 2), show(4e-11)) == ("∞", "0", "−2.5", "4e−11")
    assert (show_setting(1e-5), show_setting(0.1), show_setting(20.0)) == ("1e−5", "0.1", "20")
    assert (show_seconds(3.21), show_seconds(75), show_seconds(600), show_seconds(7200)) == (
        "3.2 s",
        "75 s",
        "10.0 min",
        "2.0 h",
    )
    assert (shortened("abc"), shortened("a" * 9, 5)) == ("abc", "aaaa…")
    assert (listed(["a"]), listed(["a", "b", "c"]), listed([])) == ("a", "a, b and c", "")


# ---- rows ----


def test_rows_say_what_is_missing_failed_or_diverged(tmp_path):
    rows = {(row.method, row.variant): row for row in final_table(sample.write_sda(tmp_path / "sda"))}
    assert rows["sgd", "tuned"].state == "3 seeds"
    assert rows["adam", "tuned"].state == "2 of 3 seeds, 1 failed"
    assert rows["rmsprop", "tuned"].state == "2 of 3 seeds"
    assert rows["santa", "paper"].state == "3 seeds, 3 diverged"
    assert rows["sgd", "tuned"].marks["test image_mse"] == "undecided"  # ±0.007 of 0.096 is more than 5 %
    assert rows["ctld", "tuned"].marks["test image_mse"] == "best"
    assert rows["santa", "tuned"].marks["test image_mse"] == ""


def test_a_method_that_diverges_once_cannot_be_best(tmp_path):
    study = sample.write_sda(tmp_path / "sda", methods=("sgd", "ctld"), wrong=False)
    result = study.run("ctld-tuned-seed1").path / "result.json"
    write_json(result, {"steps": 100, "diverged": True, "seconds": {"train": 1.0}})
    rows = [row for row in final_table(study) if row.variant == "tuned"]
    assert [row.marks["test mse"] for row in rows] == ["", ""]
    assert rows[1].state == "3 seeds, 1 diverged"


def test_a_loss_ten_times_that_of_before_training_has_diverged(tmp_path):
    run = StudyDirectory(tmp_path).run("a")
    run.prepare({"kind": "train", "seed": 0})
    (run.path / "metrics.jsonl").write_text('{"step": 0, "test": {"mse": 2.0}}\n')
    write_json(tmp_path / "study.json", {"study": "sda"})
    for end, expected in ((19.0, False), (21.0, True), (1e24, True)):
        run.write("result.json", {"test": {"mse": end}})
        assert [each.diverged for each in read_study(StudyDirectory(tmp_path)).runs] == [expected]


def test_one_seed_claims_nothing(tmp_path):
    rows = final_table(sample.write_sda(tmp_path / "sda", seeds=1, wrong=False))
    assert {mark for row in rows for mark in row.marks.values()} == {""}
    assert not methods.autoencoder(read_study(tmp_path / "sda")).standings


def test_broken_files_are_told_and_hide_nothing(tmp_path):
    study = sample.write_sda(tmp_path / "sda", methods=("sgd", "ctld"), wrong=False)
    (study.run("sgd-tuned-seed0").path / "result.json").write_text("{ no JSON")
    (study.run("sgd-tuned-seed1").path / "metrics.jsonl").write_text("[1]\n")
    assert final_table(study)[0].state == "1 of 3 seeds, 2 failed"
    errors = [run.error for run in read_study(study).failed]
    assert "cannot be read as JSON" in errors[0]
    assert "is no object" in errors[1]
    (study.path / "study.json").write_text("[]")
    assert "not an object" in read_study(study).problem


@pytest.mark.parametrize(
    ("file", "record"),
    [
        ("config.json", {"kind": "train", "method": "sgd", "variant": "tuned", "seed": "one"}),
        ("result.json", {"test": [1.0], "diverged": False}),
        ("result.json", {"test": {"mse": {}}, "diverged": False}),
        ("result.json", {"stages": [1], "diverged": False}),
    ],
)
def test_a_record_of_the_wrong_shape_costs_its_run(tmp_path, file, record):
    study = sample.write_sda(tmp_path / "sda", methods=("sgd", "ctld"), wrong=False)
    write_json(study.run("sgd-tuned-seed1").path / file, record)
    found = read_study(study)
    assert [run.name for run in found.failed] == ["sgd-tuned-seed1"]
    assert f"{file} is not as it should be" in found.failed[0].error
    assert final_table(found)[0].state == "2 of 3 seeds, 1 failed"


def test_studies_without_runs_have_rows_but_no_numbers(tmp_path):
    study = sample.describe(tmp_path / "sda", "sda", methods=["sgd", "ctld"])
    assert [(row.title, row.state) for row in final_table(study)] == [
        ("SGD-M", "0 of 3 seeds"),
        ("CTLD", "0 of 3 seeds"),
    ]
    contents = {"sda": methods.autoencoder, "charrnn": methods.lstm, "sensitivity": sensitivity.content}
    for name, content in (contents | {"timing": timing.content, "x": double_well.content}).items():
        assert not content(read_study(sample.describe(tmp_path / f"empty-{name}", name))).plots


def test_grid_points_are_complete_with_their_own_number_of_seeds():
    rows = final_table(LAPTOP / "sensitivity")
    assert {row.state for row in rows if row.variant == "grid"} == {"1 seed"}
    assert {row.state for row in rows if row.variant == "depth"} == {"3 seeds"}


def test_timing_rows_carry_the_runs_own_intervals(tmp_path):
    study = read_study(sample.write_timing(tmp_path / "timing"))
    rows = {row.method: row for row in final_table(study)}
    assert rows["ctld"].estimate("ratio") == Estimate(1.006, 1.006 - 0.004, 1.006 + 0.006, 88)  # those kept
    assert rows["ctld (exploration)"].title == "CTLD (exploration)"
    assert (rows["ctld"].state, rows["sgd"].state) == ("88 rounds", "100 rounds")
    (table,) = timing.content(study).tables
    rounds = {row[0].text: row[list(table.columns).index("Rounds")].text for row in table.rows}
    assert (rounds["CTLD"], rounds["SGD-M"]) == ("88 of 100", "100")


def test_a_few_rounds_of_timing_claim_nothing(tmp_path):
    study = sample.write_timing(tmp_path / "timing")
    result = study.run("timing").result()
    for measured in result["methods"].values():
        measured["rounds"] = 5
    write_json(study.run("timing").path / "result.json", result)
    assert {row.estimate("ratio").half_width for row in final_table(study)} == {None}
    assert not timing.content(read_study(study)).standings


# ---- what each study says ----


def test_the_autoencoder_is_ranked_by_the_image():
    """By the last layer's own error others are ahead: the paper's measure is beside it, and not marked."""
    found = methods.autoencoder(read_study(LAPTOP / "sda"))
    assert [each.groups["Ahead"] for each in found.standings] == [["RMSprop"], ["RMSprop"]]
    table = found.tables[0]
    place = next(index for index, column in enumerate(table.columns) if column.startswith("Paper"))
    assert {cell.mark for row in table.rows for cell in row[place - 1 :]} == {""}


def test_bands_of_what_diverged_are_not_drawn_and_layers_are_told_apart():
    (plot,) = methods.autoencoder(read_study(LAPTOP / "sda")).plots
    panels = {panel.title: panel for panel in plot.panels}
    santa = [series for series in panels["Image, test data, the paper's rates"].series if series.key.label == "Santa"]
    assert santa
    assert not any(series.band for series in santa)
    assert panels["Image, test data, tuned"].lines == [("x", 1500.0), ("x", 3000.0), ("x", 4500.0)]
    assert all(panel.series for panel in plot.panels)


def test_unfinished_runs_are_named_above_their_curves():
    found = methods.lstm(read_study(LAPTOP.parent / "paper" / "charrnn"))
    drawn = [plot for plot in found.plots if plot.name.startswith("curves-")]
    assert sum("begun" in words for words in found.summary) == len(drawn) > 0


def test_scale_is_told_where_values_cannot_be_compared(tmp_path):
    study = read_study(sample.write_sda(tmp_path / "sda", methods=("ctld",), wrong=False))
    smaller = len(methods.autoencoder(study).tables[0].notes)
    study.description["scale"] = "paper"
    assert len(methods.autoencoder(study).tables[0].notes) == smaller - 1


def test_where_the_temperature_ran_away_is_told(tmp_path):
    found = methods.autoencoder(read_study(sample.write_sda(tmp_path / "sda", wrong=False)))
    rows = [[text(cell.text) for cell in row] for row in found.tables[-1].rows]
    assert rows[0] == ["tuned", "1", "0.0031", "31 %", "1 %", "6.67", "1.30", "0.200", "3"]
    assert rows[5][:6] == ["paper", "2", "1", "31 %", "34 %", "6.67"]
    assert "34 % of it in layer 2" in text(found.summary[-1])


def test_a_value_that_the_paper_has_for_training_alone(tmp_path):
    study = read_study(sample.write_charrnn(tmp_path / "charrnn"))
    assert printed_values(study, 0)["sgd"] == "above 3.1"
    assert "sgd" not in printed_values(study, 1)


def test_points_that_diverged_stay_in_the_conclusion(tmp_path):
    found = sensitivity.content(read_study(sample.write_sensitivity(tmp_path / "sensitivity", wrong=True)))
    for lost in ("S = 0.95 (1 of 3 seeds)", "T = 10 (3 of 3 seeds)", "w = 80, σ = 0.01 (1 of 2 seeds)"):
        assert lost in found.summary[0]
    cells = {row[0].text: row[1].text for row in found.tables[0].rows}
    assert cells["T = 10"] == "diverged"
    assert cells["S = 0.95"].endswith("(2 of 3)")


def test_every_point_of_a_grid_may_diverge(tmp_path):
    study = sample.write_sensitivity(tmp_path / "sensitivity", seeds=1)
    for run in study.runs():
        write_json(run.path / "result.json", {"steps": 9, "diverged": True, "seconds": {"train": 1.0}})
    found = sensitivity.content(read_study(study))
    assert len(found.plots[0].panels) == 4
    assert render(found.plots[0])


def test_the_papers_constants_come_from_the_record():
    study = read_study(LAPTOP / "sensitivity")

    def of_the_paper():
        panels = sensitivity.content(study).plots[0].panels
        return {panel.title: list(each.x) for panel in panels for each in panel.series if each.key == sensitivity.PAPER}

    assert len(of_the_paper()) == 3
    study.description["paper"].pop("defaults")
    assert of_the_paper() == {}


def test_the_double_well_stands_beside_the_exact_values():
    found = double_well.content(read_study(LAPTOP / "double-well"))
    assert [table.name for table in found.tables] == ["exactness", "theorem"]
    assert [cell.text for cell in found.tables[0].rows[-1]][:5] == ["exact", "", "1.010", "0.9645", "0"]
    assert [len(table.rows) for table in found.tables] == [9, 12]


@pytest.mark.parametrize(
    ("slope", "error", "bound", "misfit", "said"),
    [
        (2.23, 0.04, 1.0, 1.0, "faster"),
        (0.2, 0.04, 1.0, 1.0, "more slowly"),
        (-1.02, 0.03, -1.0, math.nan, "as in the bound"),
        (math.nan, math.nan, 1.0, math.nan, "no power"),
        (1.5, 0.04, -1.0, math.nan, "the other way"),
        (0.1, 0.04, 1.0, 9.0, "no power"),
    ],
)
def test_powers_are_named_only_where_there_is_one(slope, error, bound, misfit, said):
    line = {"slope": slope, "standard_error": error, "bound": bound, "misfit": misfit}
    assert double_well.beside(line) == said


# ---- comparisons ----


def shift(study, factor, run):
    path = study.run(run).path / "result.json"
    result = study.run(run).result()
    result["test"]["mse"] *= factor
    write_json(path, result)


def printed(*paths):
    console = Console(width=200, file=io.StringIO())
    print_comparison(list(paths), console)
    return console.file.getvalue()


def row_of(words, label, metric):
    (line,) = [line for line in words.splitlines() if line.strip().startswith(label) and f" {metric} " in line]
    return line.strip()


def test_compare_pairs_seeds_across_directories(tmp_path):
    first = sample.write_sda(tmp_path / "one", methods=("sgd", "ctld"), wrong=False)
    second = sample.write_sda(tmp_path / "two", methods=("sgd", "ctld"), wrong=False)
    for seed, factor in enumerate((0.90, 0.91, 0.89)):
        shift(second, factor, f"ctld-tuned-seed{seed}")
    words = printed(first.path, second.path)
    assert row_of(words, "CTLD, tuned", "test mse").endswith("lower")
    assert row_of(words, "SGD-M, tuned", "test mse").endswith("tie")
    assert row_of(printed(second.path, first.path), "CTLD, tuned", "test mse").endswith("higher")


def test_compare_leaves_out_what_one_directory_alone_has(tmp_path):
    first = sample.write_sda(tmp_path / "one", methods=("sgd",), seeds=1, wrong=False)
    second = sample.write_sda(tmp_path / "two", methods=("sgd", "ctld"), wrong=False)
    words = printed(first.path, second.path)
    assert "CTLD" not in words
    assert row_of(words, "SGD-M, tuned", "test mse").endswith("?")  # one seed in common


def test_compare_passes_no_verdict_on_unlike_experiments(tmp_path):
    first = sample.write_sda(tmp_path / "one", methods=("sgd", "ctld"), wrong=False)
    second = sample.write_sda(tmp_path / "two", methods=("sgd", "ctld"), wrong=False)
    words = printed(first.path, second.path)
    assert "tie" in words
    assert "not the same experiment" not in words
    assert shown(["test mse", "test image_mse", "train mse"]) == ["test image_mse", "test mse"]
    write_json(second.path / "study.json", second.description() | {"scale": "smoke"})
    words = printed(first.path, second.path)
    assert "they differ in scale" in words
    assert "tie" not in words
    timed = sample.write_timing(tmp_path / "timing")
    with pytest.raises(Refusal, match="different studies: sda against timing"):
        printed(first.path, timed.path)
