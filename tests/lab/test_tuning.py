"""Tuning: equal, seeded, on validation data alone."""

import itertools
import math

import pytest

from ctld_lab import tuning
from ctld_lab.records import StudyDirectory, read_json

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


def tried(tmp_path, results):
    study = StudyDirectory(tmp_path)
    runs = []
    for index, result in enumerate(results):
        run = study.run(f"tune-sgd-{index:02d}")
        run.prepare({"seed": index})
        run.write("result.json", {"seconds": {"train": 1.5, "log": 0.5}} | result)
        runs.append((run, {"lr": 10.0**-index}))
    return study, runs


def test_the_lowest_validation_value_is_chosen_and_everything_is_kept(tmp_path):
    study, runs = tried(
        tmp_path,
        [
            {"valid": {"mse": 0.3}, "test": {"mse": 0.0}},
            {"valid": {"mse": 0.2}, "test": {"mse": 9.0}},
            {"diverged": True},
            {"valid": {"mse": math.nan}},
        ],
    )
    assert tuning.choose(study, "sgd", SPACE, runs, metric="mse") == {"lr": 0.1}
    record = read_json(tmp_path / "tuning" / "sgd.json")
    assert record["value"] == 0.2
    assert [trial["value"] for trial in record["trials"]] == [0.3, 0.2, "nan", "nan"]
    assert [trial["diverged"] for trial in record["trials"]] == [False, False, True, False]
    assert record["trials"][0]["seconds"] == 2.0


def test_nothing_is_chosen_where_all_diverged(tmp_path):
    study, runs = tried(tmp_path, [{"diverged": True}, {"diverged": True}])
    assert tuning.choose(study, "sgd", SPACE, runs, metric="mse") is None


@pytest.mark.parametrize("trials", [1, 2])
def test_few_trials_are_possible(trials):
    assert len(tuning.propose(SPACE, trials)) == trials
