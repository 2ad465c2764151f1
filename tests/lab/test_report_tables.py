"""Numbers of the report: intervals, ties, what is missing or wrong, comparisons. No figure is drawn here."""

import csv
import io
import json
import math

import pytest
import sample_records as sample
from rich.console import Console

from ctld_lab.commands import Refusal
from ctld_lab.commands.overview import print_comparison, shown
from ctld_lab.records import StudyDirectory, write_json
from ctld_lab.report import double_well, methods, sensitivity, temperature, timing
from ctld_lab.report.curves import mean_curves
from ctld_lab.report.plots import render
from ctld_lab.report.reading import read_study
from ctld_lab.report.sections import printed_values, verdict
from ctld_lab.report.tables import final_table
from ctld_lab.report.wording import listed, shortened, show, show_estimate, show_range, show_seconds, show_setting
from ctld_lab.statistics import Estimate, estimate


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
    assert rows["sgd", "tuned"].estimate("test mse of layer 1").count == 3


def test_a_method_that_diverges_once_cannot_be_best(tmp_path):
    study = sample.write_sda(tmp_path / "sda", methods=("sgd", "ctld"), wrong=False)
    result = study.run("ctld-tuned-seed1").path / "result.json"
    write_json(result, {"steps": 100, "diverged": True, "seconds": {"train": 1.0}})
    rows = [row for row in final_table(study) if row.variant == "tuned"]
    assert [row.marks["test mse"] for row in rows] == ["", ""]
    assert rows[1].state == "3 seeds, 1 diverged"
    assert "CTLD diverged in 1 of 3 seeds." in verdict(rows, "test mse", name="test MSE")


def test_verdict_names_ties(tmp_path):
    study = read_study(sample.write_sda(tmp_path / "sda", wrong=False))
    rows = [row for row in final_table(study) if row.variant == "tuned"]
    words = text(verdict(rows, "test image_mse", name="test MSE"))
    assert words.startswith(
        "CTLD has the lowest test MSE, 0.0957 ± 0.0074 (3 seeds), and no other method is shown to tie with it."
    )
    assert "Of SGD-M the seeds decide nothing." in words


def test_one_seed_claims_nothing(tmp_path):
    study = read_study(sample.write_sda(tmp_path / "sda", seeds=1, wrong=False))
    rows = final_table(study)
    assert {mark for row in rows for mark in row.marks.values()} == {""}
    found = methods.autoencoder(study)
    assert "with one seed nothing is known about chance" in found.summary[0]
    assert "One seed" in found.tables[0].notes[0]


def test_broken_files_are_told_and_hide_nothing(tmp_path):
    study = sample.write_sda(tmp_path / "sda", methods=("sgd", "ctld"), wrong=False)
    (study.run("sgd-tuned-seed0").path / "result.json").write_text("{ no JSON")
    (study.run("sgd-tuned-seed1").path / "metrics.jsonl").write_text("[1]\n")
    rows = final_table(study)
    assert rows[0].state == "1 of 3 seeds, 2 failed"
    errors = [run.error for run in read_study(study).failed]
    assert len(errors) == 2
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
    for name, content in (
        ("sda", methods.autoencoder),
        ("charrnn", methods.lstm),
        ("sensitivity", sensitivity.content),
        ("timing", timing.content),
        ("x", double_well.content),
    ):
        found = content(read_study(sample.describe(tmp_path / f"empty-{name}", name)))
        assert not found.plots
        assert not found.summary or "nothing can be said yet" in found.summary[0]


def test_grid_points_are_complete_with_their_own_number_of_seeds(tmp_path):
    rows = final_table(sample.write_sensitivity(tmp_path / "sensitivity"))
    assert {row.state for row in rows if row.variant == "grid"} == {"2 seeds"}
    assert {row.state for row in rows if row.variant == "depth"} == {"3 seeds"}


def test_sensitivity_says_what_exceeds_chance(tmp_path):
    study = read_study(sample.write_sensitivity(tmp_path / "sensitivity"))
    words = sensitivity.content(study).summary[0]
    about_depth, about_temperature = (
        sentence for sentence in words.split("Over ") if "of S," in sentence or "of T," in sentence
    )
    assert "no effect can be told from chance" in about_depth
    assert "it matters here" in about_temperature


def test_timing_rows_carry_the_runs_own_intervals(tmp_path):
    study = read_study(sample.write_timing(tmp_path / "timing"))
    rows = {row.method: row for row in final_table(study)}
    assert rows["ctld"].estimate("ratio") == Estimate(1.006, 1.006 - 0.004, 1.006 + 0.006, 88)  # those kept
    assert rows["ctld (exploration)"].title == "CTLD (exploration)"
    assert (rows["ctld"].state, rows["sgd"].state) == ("88 rounds", "100 rounds")
    found = timing.content(study)
    table = found.tables[0]
    shown = {row[0].text: row[list(table.columns).index("Rounds")].text for row in table.rows}
    assert (shown["CTLD"], shown["SGD-M"]) == ("88 of 100", "100")
    assert any(note.startswith("91 % of the blocks") for note in table.notes)
    words = found.summary[0]
    assert "CTLD takes 1.006 [1.002, 1.012] times as long as SGD-M per epoch: slower than SGD-M." in words
    assert (
        "CTLD (fine-tuning) takes 1.003 [0.999, 1.009] times as long as SGD-M per epoch: not to be told from SGD-M."
        in words
    )


# ---- what each study says ----


def test_the_autoencoder_is_ranked_by_the_image(tmp_path):
    """RMSprop's last layer has dead codes, and the lowest error on its own input."""
    found = methods.autoencoder(read_study(sample.write_sda(tmp_path / "sda", wrong=False)))
    tuned, paper_rates, theirs = (text(words) for words in found.summary[:3])
    for words in (tuned, paper_rates):
        assert "CTLD has the lowest test MSE of the image through the whole stack" in words
        assert "RMSprop has the lowest" not in words
    assert "by what the paper compares: RMSprop has the lowest training MSE of the last layer" in theirs
    table = found.tables[0]
    assert list(table.columns)[3] == "Image, test MSE"
    place = next(index for index, column in enumerate(table.columns) if column.startswith("Paper"))
    assert table.columns[place - 1] == "Last layer, train MSE"
    assert {cell.mark for row in table.rows for cell in row[place - 1 :]} == {""}


def test_curves_end_where_a_seed_is_lost_and_leave_out_thorough_evaluations(tmp_path):
    study = read_study(sample.write_sda(tmp_path / "sda", methods=("sgd",), wrong=False))
    runs = [run for run in study.finals if run.variant == "tuned"]
    assert [len(curve) for curve in mean_curves(runs, "test", "mse")] == [16, 16, 16, 16]
    runs[0].metrics[-1]["thorough"] = True
    assert [len(curve) for curve in mean_curves(runs[:1], "test", "mse")] == [16, 16, 16, 15]
    del runs[1].metrics[20:]
    curves = mean_curves(runs, "test", "mse")
    assert [len(curve) for curve in curves] == [16, 4]
    assert {found.count for curve in curves for _, found in curve} == {3}
    del runs[1].metrics[16:]
    assert [len(curve) for curve in mean_curves(runs, "test", "mse")] == [16]


def test_scale_is_told_where_values_cannot_be_compared(tmp_path):
    study = read_study(sample.write_sda(tmp_path / "sda", methods=("ctld",), wrong=False))
    assert "compare orders, not values" in " ".join(methods.autoencoder(study).tables[0].notes)
    study.description["scale"] = "paper"
    assert "compare orders" not in " ".join(methods.autoencoder(study).tables[0].notes)


def test_temperature_of_each_layer_and_where_it_ran_away(tmp_path):
    found = methods.autoencoder(read_study(sample.write_sda(tmp_path / "sda", wrong=False)))
    table = found.tables[-1]
    assert table.caption == "CTLD's temperature"
    rows = [[text(cell.text) for cell in row] for row in table.rows]
    assert len(rows) == 8
    assert rows[0] == ["tuned", "1", "0.0031", "31 %", "1 %", "6.67", "1.30", "0.200", "3"]
    assert list(table.columns[-3:-1]) == ["Kinetic", "Minibatch heat"]  # the others were not measured
    assert rows[5][:6] == ["paper", "2", "1", "31 %", "34 %", "6.67"]
    said = "more than 20 % of CTLD's exploration was beyond |α| = 1.5 (34 % of it in layer 2)"
    assert said in text(found.summary[-1])
    assert "With the paper's learning rates" in found.summary[-1]
    found = methods.lstm(read_study(sample.write_charrnn(tmp_path / "charrnn")))
    assert [column for column in found.tables[-1].columns if column == "Layer"] == []
    assert len(found.tables[-1].rows) == 2
    assert not any("beyond" in words for words in found.summary)


def test_temperature_of_a_run_that_diverged_belongs_to_the_layer_it_was_in(tmp_path):
    study = sample.write_sda(tmp_path / "sda", methods=("ctld",), seeds=1, wrong=False)
    run = study.run("ctld-paper-seed0")
    tempering = {"cold_share": 0.0, "share_outside": 0.9, "highest_ratio": 6.67}
    result = {"steps": 3100, "diverged": True, "temperature": 1.0, "tempering": tempering, "seconds": {"train": 1.0}}
    write_json(run.path / "result.json", result)
    found = temperature.frame_of(read_study(study)).query("variant == 'paper'")
    assert list(zip(found["stage"], found["share_outside"], strict=True)) == [(2, 0.9)]


def test_the_lstms_temperature_is_drawn_where_it_was_traced(tmp_path):
    study = sample.write_charrnn(tmp_path / "charrnn")
    runs = [run for run in study.runs() if run.path.name.startswith("ctld")]
    for run in runs:
        (run.path / "trace.jsonl").unlink(missing_ok=True)
    without = methods.lstm(read_study(study))
    assert "trace" not in without.data
    lines = [{"step": step, "stage": 1, "temperature_ratio": ratio} for step, ratio in ((10, 1.0), (20, 6.67))]
    (runs[0].path / "trace.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    found = methods.lstm(read_study(study))
    assert found.data["trace"][["step", "temperature_ratio"]].to_numpy().tolist() == [[10, 1.0], [20, 6.67]]
    (plot,) = [plot for plot in found.plots if plot.name == "temperature"]
    assert plot.panels[0].xlabel == "iteration of the exploration"
    assert len(found.plots) == len(without.plots) + 1


def test_a_value_that_the_paper_has_for_training_alone(tmp_path):
    study = read_study(sample.write_charrnn(tmp_path / "charrnn"))
    assert printed_values(study, 0)["sgd"] == "above 3.1"
    assert "sgd" not in printed_values(study, 1)
    found = methods.lstm(study)
    lines = list(csv.DictReader(io.StringIO(found.tables[0].csv.decode())))
    printed = {x["metric"]: x["paper"] for x in lines if (x["method"], x["variant"]) == ("sgd", "tuned")}
    assert (printed["train perplexity"], printed["test perplexity"]) == ("above 3.1", "")


def test_points_that_diverged_stay_in_the_conclusion(tmp_path):
    study = read_study(sample.write_sensitivity(tmp_path / "sensitivity", wrong=True))
    found = sensitivity.content(study)
    words = found.summary[0]
    assert (
        "Training diverged at S = 0.95 (1 of 3 seeds): it cannot be said that S does not matter. Over the other 4 values of S"
        in words
    )
    assert (
        "Training diverged at T = 10 (3 of 3 seeds): it cannot be said that T does not matter. Over the other 4 values of T"
        in words
    )
    assert (
        "Training diverged at w = 80, σ = 0.01 (1 of 2 seeds): it cannot be said that w and σ do not matter." in words
    )
    assert "Over the other 15 values of w and σ" in words
    assert "no effect" not in words.partition("the length of the exploration")[0]
    assert found.plots[0].keys[-1].label == "a seed diverged"
    cells = {row[0].text: row[1].text for row in found.tables[0].rows}
    assert cells["T = 10"] == "diverged"
    assert cells["S = 0.95"].endswith("(2 of 3)")


def test_every_point_of_a_grid_may_diverge(tmp_path):
    study = sample.write_sensitivity(tmp_path / "sensitivity", seeds=1)
    for run in study.runs():
        write_json(run.path / "result.json", {"steps": 9, "diverged": True, "seconds": {"train": 1.0}})
    found = sensitivity.content(read_study(study))
    assert "0 other points finished, nothing to compare" in found.summary[0]
    assert len(found.plots[0].panels) == 4
    assert all(render(found.plots[0]))


def test_the_papers_constants_come_from_the_record(tmp_path):
    study = read_study(sample.write_sensitivity(tmp_path / "sensitivity"))

    def of_the_paper():
        panels = sensitivity.content(study).plots[0].panels
        return [
            (panel.title, series.x) for panel in panels for series in panel.series if series.key == sensitivity.PAPER
        ]

    assert of_the_paper() == [
        ("Depth S of the tempering", [3.0]),
        ("Temperature T", [3.0]),
        ("Length of the exploration", [2.0]),
    ]
    study.description["paper"].pop("defaults")
    assert of_the_paper() == []


def test_double_well_says_where_the_law_is_missed(tmp_path):
    found = double_well.content(read_study(sample.write_double_well(tmp_path / "double-well")))
    assert "the kinetic temperature at g = 1, exactly 1.010, is" in found.summary[0]
    assert "as in the bound" in [cell.text for row in found.tables[1].rows for cell in row]
    assert [table.name for table in found.tables] == ["exactness", "theorem"]
    assert [cell.text for cell in found.tables[0].rows[-1]][:5] == ["exact", "", "1.010", "0.9645", "0"]


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


def test_a_few_rounds_of_timing_claim_nothing(tmp_path):
    study = sample.write_timing(tmp_path / "timing")
    result = study.run("timing").result()
    for measured in result["methods"].values():
        measured["rounds"] = 5
    write_json(study.run("timing").path / "result.json", result)
    words = timing.content(read_study(study)).summary[0]
    assert "CTLD takes 1.01 times as long as SGD-M; 5 rounds cannot tell chance." in words
    assert "slower" not in words


def test_csv_has_all_digits_and_the_paper_beside(tmp_path):
    study = read_study(sample.write_sda(tmp_path / "sda"))
    rows = final_table(study)
    lines = list(csv.DictReader(io.StringIO(methods.autoencoder(study).tables[0].csv.decode())))
    of_ctld = {x["metric"]: x for x in lines if (x["method"], x["variant"]) == ("ctld", "tuned")}
    row = next(row for row in rows if (row.method, row.variant) == ("ctld", "tuned"))
    line = of_ctld["train image_mse"]
    assert float(line["mean"]) == row.estimate("train image_mse").mean
    assert (line["paper"], line["mark"], line["count"]) == ("", "best", "3")
    assert of_ctld["train mse"]["paper"] == "0.006"  # which is a training error
    assert of_ctld["test mse"]["paper"] == ""


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


def test_reading_takes_a_path_or_a_directory(tmp_path):
    sample.write_timing(tmp_path / "timing")
    assert final_table(tmp_path / "timing") == final_table(StudyDirectory(tmp_path / "timing"))


def test_a_loss_ten_times_that_of_before_training_has_diverged(tmp_path):
    run = StudyDirectory(tmp_path).run("a")
    run.prepare({"kind": "train", "seed": 0})
    (run.path / "metrics.jsonl").write_text('{"step": 0, "test": {"mse": 2.0}}\n')
    write_json(tmp_path / "study.json", {"study": "sda"})
    for end, expected in ((19.0, False), (21.0, True), (1e24, True)):
        run.write("result.json", {"test": {"mse": end}})
        assert [each.diverged for each in read_study(StudyDirectory(tmp_path)).runs] == [expected]
