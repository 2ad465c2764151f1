"""The tidy table: what runs leave in it, how it is stored, refused and joined."""

import json
import math

import pandas as pd
import pytest
import sample_records as sample

from ctld_lab.records import RecordError, write_json
from ctld_lab.report import tidy
from ctld_lab.report.curves import curves
from ctld_lab.report.provenance import searches
from ctld_lab.report.reading import read_study
from ctld_lab.report.tables import final_table
from ctld_lab.report.temperature import temperatures


def table(lines):
    """Rows of one metric: "method seed value", and more before the metric if there is."""
    return tidy.frame([[method, "tuned", "", at, metric, seed, value] for method, at, metric, seed, value in lines])


def finished(method, *seeds):
    return [(method, "", tidy.DIVERGED, str(seed), 0.0) for seed in seeds]


def values(frame, metric):
    chosen = frame[frame["metric"] == metric]
    return {(row.method, row.seed): row.value for row in chosen.itertuples()}


# ---- from runs ----


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    return sample.write_sda(tmp_path_factory.mktemp("tidy") / "sda")


def test_every_number_of_a_result_has_a_row(study):
    found = read_study(study).table
    finals = found[(found["at"] == "") & (found["method"] == "ctld") & (found["variant"] == "tuned")]
    for seed in range(3):
        result = study.run(f"ctld-tuned-seed{seed}").result()
        own = dict(finals.loc[finals["seed"] == str(seed), ["metric", "value"]].itertuples(index=False, name=None))
        for split in ("train", "test"):
            for metric, value in result[split].items():
                assert own[f"{split} {metric}"] == value
        for number, stage in enumerate(result["stages"], start=1):
            assert own[f"train mse of layer {number}"] == stage["train"]["mse"]


def test_states_of_runs_are_rows(study):
    rows = {(row.method, row.variant): row for row in final_table(study)}
    states = {key: (rows[key].done, rows[key].failed, rows[key].diverged) for key in rows}
    assert states["sgd", "tuned"] == (3, 0, 0)
    assert states["adam", "tuned"] == (2, 1, 0)
    assert states["rmsprop", "tuned"] == (2, 0, 0)  # the third was begun
    assert states["santa", "paper"] == (3, 0, 3)
    assert rows["rmsprop", "tuned"].planned == 3
    assert all(math.isnan(x) for by_seed in rows["santa", "paper"].values.values() for x in by_seed.values())


def test_trials_and_what_was_chosen(study):
    found = {search.name: search for search in searches(read_study(study))}
    assert list(found) == ["sgd", "adam", "ctld"]
    for name, search in found.items():
        record = json.loads((study.path / "tuning" / f"{name}.json").read_text(encoding="utf-8"))
        assert [trial.parameters for trial in search.trials] == [trial["parameters"] for trial in record["trials"]]
        assert (search.chosen, search.value) == (record["chosen"], record["value"])
        assert search.train_seconds == sum(30.0 + trial for trial in range(8))


def test_temperature_of_a_run_that_diverged_belongs_to_the_layer_it_was_in(tmp_path):
    study = sample.write_sda(tmp_path / "sda", methods=("ctld",), seeds=1, wrong=False)
    tempering = {"cold_share": 0.0, "share_outside": 0.9, "highest_ratio": 6.67}
    result = {"steps": 3100, "diverged": True, "temperature": 1.0, "tempering": tempering, "seconds": {"train": 1.0}}
    write_json(study.run("ctld-paper-seed0").path / "result.json", result)
    found = temperatures(read_study(study)).query("variant == 'paper'")
    assert list(zip(found["stage"], found["share_outside"], strict=True)) == [(2, 0.9)]


def test_the_trace_is_of_the_last_stage_of_one_run(study):
    found = read_study(study).places("temperature_ratio")
    assert set(zip(found["variant"], found["seed"], found["stage"], strict=True)) == {("tuned", "0", 4.0)}
    assert found["step"].tolist() == list(range(1, 541))


# ---- curves ----


def curve(*seeds, stage=1):
    """Seeds' values by step; None where there is none."""
    lines = [(str(seed), step, value) for seed, own in enumerate(seeds) for step, value in enumerate(own)]
    return [("sgd", f"stage={stage} step={step}", "test mse", seed, value) for seed, step, value in lines if value]


def drawn(lines):
    made = table(lines)
    return curves(pd_study(made), "test mse")


def pd_study(frame, **description):
    from ctld_lab.records import StudyDirectory
    from ctld_lab.report.reading import StudyRecord

    return StudyRecord(StudyDirectory(sample.Path("none")), description, frame)


def test_a_curve_ends_where_a_seed_is_lost():
    two = [*curve((3.0, 2.0, 1.0), (3.0, 2.0, None)), *curve((1.0, 1.0), (1.0, 1.0), stage=2), *finished("sgd", 0, 1)]
    found = drawn(two)
    assert found[["stage", "step", "mean", "count"]].to_numpy().tolist() == [[1, 0, 3, 2], [1, 1, 2, 2]]


def test_unfinished_runs_are_drawn_where_there_are_no_others():
    both = curve((3.0, 2.0), (5.0, 4.0))
    assert drawn([*both, *finished("sgd", 0)])["mean"].tolist() == [3.0, 2.0]
    assert drawn(both)["mean"].tolist() == [4.0, 3.0]
    failed = ("sgd", "", tidy.FAILED, "1", 1.0)
    assert drawn([*both, failed])["mean"].tolist() == [3.0, 2.0]


def test_a_mean_that_was_stored_has_its_interval():
    """Three seeds of which the mean and the standard error were kept: t of two degrees of freedom is 4.303."""
    lines = [
        ("sgd", "stage=1 step=0", "test mse", "0 1 2", 2.0),
        ("sgd", "stage=1 step=0", "test mse s.e.", "0 1 2", 0.1),
    ]
    (row,) = drawn(lines).itertuples()
    assert (row.mean, row.count) == (2.0, 3)
    assert (row.low, row.high) == pytest.approx((2.0 - 0.4302653, 2.0 + 0.4302653))


# ---- files ----


def test_what_is_written_is_read(tmp_path):
    made = table(
        [("sgd", "", "test mse", "0", 0.1 + 0.2), ('<b>,"', "", "x\ny", "0 1", 1e-300), ("a", "", "b", "", -3.0)]
    )
    tidy.write(tmp_path / "x.csv", made)
    pd.testing.assert_frame_equal(tidy.read(tmp_path / "x.csv"), made)


def test_numbers_that_are_none_have_no_row():
    assert len(table([("sgd", "", "x", "0", math.nan), ("sgd", "", "x", "1", None), ("sgd", "", "x", "2", 1.0)])) == 1


@pytest.mark.parametrize(
    "content",
    [
        b"", b"\xff\xfe\x00", b"a,b\n1,2\n", b"method,variant,point,at,metric,seed,value\na,b\n",
        b"method,variant,point,at,metric,seed,value\na,b,,,m,0,=1+1\n",
        b"method,variant,point,at,metric,seed,value\na,b,,,m,zero,1\n",
        b'method,variant,point,at,metric,seed,value\na,"b\n',
    ],
    ids=["empty", "binary", "columns", "ragged", "formula", "seed", "quote"],
)  # fmt: skip
def test_a_damaged_table_is_refused(tmp_path, content):
    path = tmp_path / "x.csv"
    path.write_bytes(content)
    with pytest.raises(RecordError, match="cannot be read as a table"):
        tidy.read(path)


def test_a_link_is_not_followed(tmp_path):
    (tmp_path / "x.csv").symlink_to("/etc/passwd")
    with pytest.raises(RecordError, match="is no table of a report"):
        tidy.read(tmp_path / "x.csv")


def test_nothing_that_a_terminal_would_obey_is_read(tmp_path):
    tidy.write(tmp_path / "x.csv", table([("\x1b[31msgd", "", "test\x07 mse", "0", 1.0)]))
    assert all(text.isprintable() for text in tidy.read(tmp_path / "x.csv")[["method", "metric"]].to_numpy().ravel())


# ---- joining ----


def test_joining_is_concatenation_without_duplicates():
    one = table([*finished("sgd", 0), ("sgd", "", "test mse", "0", 1.0)])
    other = table([*finished("ctld", 0), ("ctld", "", "test mse", "0", 2.0)])
    assert values(tidy.join(one, other), "test mse") == {("sgd", "0"): 1.0, ("ctld", "0"): 2.0}
    assert len(tidy.join(one, one)) == len(one)


def test_a_run_that_was_made_again_replaces_the_published_one():
    old = table([*finished("sgd", 0, 1), *[("sgd", "", "test mse", str(seed), 1.0) for seed in (0, 1)]])
    new = table([*finished("sgd", 0), ("sgd", "", "test mse", "0", 2.0)])
    assert values(tidy.join(old, new), "test mse") == {("sgd", "0"): 2.0, ("sgd", "1"): 1.0}


def test_what_is_finished_is_not_replaced_by_what_is_not():
    old = table([*finished("sgd", 0), ("sgd", "", "test mse", "0", 1.0), *curve((3.0, 2.0, 1.0))])
    new = table([("sgd", "", tidy.UNFINISHED, "0", 1.0), *curve((9.0, 9.0, 9.0, 9.0, 9.0))])
    assert values(tidy.join(old, new), "test mse")["sgd", "0"] == 1.0
    assert len(tidy.join(old, new)) == len(old)


def test_a_run_that_goes_on_has_its_longer_curve():
    short, long = (
        table([("sgd", "", tidy.UNFINISHED, "0", 1.0), *curve(own)]) for own in ((3.0, 2.0), (3.0, 2.0, 1.0))
    )
    assert len(tidy.join(short, long)) == len(tidy.join(long, short)) == len(long)


def test_means_over_seeds_go_when_all_of_their_seeds_are_there():
    old = table([("sgd", "stage=1 step=0", "test mse", "0 1", 2.0)])
    new = table(curve((1.0,), (3.0,)))
    assert set(values(tidy.join(old, new), "test mse")) == {("sgd", "0"), ("sgd", "1")}
    assert ("sgd", "0 1") in values(tidy.join(old, new[new["seed"] == "0"]), "test mse")


def test_flatness_of_a_run_stays_where_the_newer_table_has_none():
    old = table([*finished("sgd", 0), ("sgd", tidy.MINIMUM, "trace", "0", 5.0)])
    new = table([*finished("sgd", 0), ("sgd", "", "test mse", "0", 1.0)])
    assert values(tidy.join(old, new), "trace") == {("sgd", "0"): 5.0}
    measured = table([*finished("sgd", 0), ("sgd", tidy.MINIMUM, "trace", "0", 6.0)])
    assert values(tidy.join(old, measured), "trace") == {("sgd", "0"): 6.0}
