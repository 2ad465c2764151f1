"""Tuning: equal, seeded, on validation data alone."""

import itertools
import math
from dataclasses import replace
from pathlib import Path

import pytest

from ctld_lab import tuning
from ctld_lab.records import RecordError, StudyDirectory, read_json
from ctld_lab.report.provenance import Trial

LAPTOP = Path(__file__).parents[2] / "results" / "laptop"
SPACE = {"lr": (0.01, 1.0), "friction": (0.05, 1.0)}


def test_methods_are_tried_at_the_same_points_of_their_spaces():
    """Else whether CTLD beats SGD-M would be a draw of lots."""
    other = {"lr": (1e-4, 1e-2), "epsilon": (1e-6, 1e-2)}
    mine, theirs = tuning.propose(SPACE, 8), tuning.propose(other, 8)
    for trial, twin in zip(mine, theirs, strict=True):
        assert math.log10(trial["lr"] / 0.01) == pytest.approx(math.log10(twin["lr"] / 1e-4), abs=0.01)
    assert mine == tuning.propose(SPACE, 8)
    assert tuning.propose(SPACE, 3) == mine[:3]  # more trials keep those that were made


def test_stored_trials_are_the_points_of_today():
    """The trials of the published runs (results/laptop/tables) were proposed by Optuna, from the same Sobol points."""
    assert tuning.propose({"lr": (0.02, 2.0), "friction": (0.05, 1.0)}, 3) == [
        {"lr": 1.26, "friction": 0.749},
        {"lr": 0.0494, "friction": 0.189},
        {"lr": 0.156, "friction": 0.299},
    ]


@pytest.mark.parametrize("space", [SPACE, {"lr": (0.01, 1.0)}], ids=["two dimensions", "one"])
def test_eight_trials_leave_no_eighth_of_the_learning_rates_out(space):
    low, high = space["lr"]
    places = [math.log(trial["lr"] / low) / math.log(high / low) for trial in tuning.propose(space, 8)]
    assert sorted(int(8 * min(place, 0.999)) for place in places) == list(range(8))


def test_proposals_fill_the_space_on_a_logarithmic_scale():
    proposed = tuning.propose(SPACE, 32)
    for name, (low, high) in SPACE.items():
        places = sorted(math.log(trial[name] / low) / math.log(high / low) for trial in proposed)
        assert places[0] >= -0.01
        assert places[-1] <= 1.01
        # Sobol points leave no gap of 4/32, which one in three random searches does.
        assert max(b - a for a, b in itertools.pairwise(places)) < 4 / 32


def test_friction_is_one_minus_momentum():
    assert tuning.options({"lr": 0.1, "friction": 0.1}) == {"lr": 0.1, "momentum": 0.9}
    assert tuning.options({"lr": 0.1}) == {"lr": 0.1}


def searched(tmp_path, results, stored=None):
    """The searches of one method in as many trials as there are results; what each trial left is written."""
    study = StudyDirectory(tmp_path)
    searches = tuning.Searches(study, {"sgd": SPACE}, len(results), metric="mse", stored=stored)
    for (_, name, index, _), result in zip(searches.trials(), results, strict=stored is None):
        run = study.run(name)
        run.prepare({"seed": index})
        if result is not None:
            run.write("result.json", {"seconds": {"train": 1.5, "log": 0.5}} | result)
    return searches


def test_the_lowest_validation_value_is_chosen_and_everything_is_kept(tmp_path):
    searches = searched(
        tmp_path,
        [
            {"valid": {"mse": 0.3}, "test": {"mse": 0.0}},
            {"valid": {"mse": 0.2}, "test": {"mse": 9.0}},
            {"diverged": True},
            {"valid": {"mse": math.nan}},
        ],
    )
    assert searches.chosen() == {"sgd": tuning.propose(SPACE, 2)[1]}
    record = read_json(tmp_path / "tuning" / "sgd.json")
    assert record["value"] == 0.2
    assert [trial["value"] for trial in record["trials"]] == [0.3, 0.2, "nan", "nan"]
    assert [trial["diverged"] for trial in record["trials"]] == [False, False, True, False]
    assert record["trials"][0]["seconds"] == 2.0


def test_nothing_is_chosen_where_all_diverged(tmp_path):
    assert searched(tmp_path, [{"diverged": True}, {"diverged": True}]).chosen() == {}
    assert read_json(tmp_path / "tuning" / "sgd.json")["chosen"] is None


def test_a_search_waits_for_a_trial_that_failed(tmp_path):
    assert searched(tmp_path, [{"valid": {"mse": 0.3}}, None]).chosen() == {}
    assert not (tmp_path / "tuning").exists()


def trials(points, values, states=("", "", "")):
    return [Trial(point, value, 4.0, state) for point, value, state in zip(points, values, states, strict=True)]


def test_stored_trials_stand_for_new_ones(tmp_path):
    """What they chose is chosen, nothing is run, and the record says where it is from."""
    proposed = tuning.propose(SPACE, 3)
    stored = {"sgd": trials(proposed, [0.3, math.nan, 0.1], ["", "diverged", "chosen"])}
    searches = searched(tmp_path, [{}, {}, {}], stored)
    assert list(searches.trials()) == []
    assert searches.chosen() == {"sgd": proposed[2]}
    record = read_json(tmp_path / "tuning" / "sgd.json")
    assert [trial["value"] for trial in record["trials"]] == [0.3, "nan", 0.1]
    assert [trial["diverged"] for trial in record["trials"]] == [False, True, False]
    assert record["search"].endswith("as stored by an earlier run of the study")


@pytest.mark.parametrize("change", ["another point", "one too few", "another method"])
def test_stored_trials_that_would_not_be_run_today_are_refused(tmp_path, change):
    stored = {"sgd": trials(tuning.propose(SPACE, 3), [0.3, 0.2, 0.1])}
    if change == "another point":
        stored["sgd"][1] = replace(stored["sgd"][1], parameters={"lr": 0.5, "friction": 0.5})
    elif change == "one too few":
        stored["sgd"].pop()
    else:
        stored = {"adam": stored["sgd"]}
    with pytest.raises(RecordError, match="the stored trials of sgd are not the 3 that this version would run"):
        searched(tmp_path, [{}, {}, {}], stored)


def test_the_published_trials_can_be_taken_over():
    """Of all three studies that tune; at another scale, or of another report, they are refused."""
    for name, searches in (("sda", 6), ("charrnn", 6), ("ensemble", 36)):
        data = read_json(LAPTOP / name / "study.json")["data"]
        stored = tuning.stored_trials(LAPTOP, name, "laptop", data)
        assert len(stored) == searches
        assert {len(trials) for trials in stored.values()} == {8}
    with pytest.raises(RecordError, match="holds no trials of the study sda at the scale paper on these data"):
        tuning.stored_trials(LAPTOP, "sda", "paper", read_json(LAPTOP / "sda" / "study.json")["data"])
    with pytest.raises(RecordError, match="holds no trials of the study sda"):
        tuning.stored_trials(LAPTOP, "sda", "laptop", {"sha256": "another"})
    with pytest.raises(RecordError, match=r"--tuned .*study\.json"):
        tuning.stored_trials(LAPTOP.parent, "sda", "laptop", {})


@pytest.mark.parametrize("trials", [1, 2])
def test_few_trials_are_possible(trials):
    assert len(tuning.propose(SPACE, trials)) == trials
