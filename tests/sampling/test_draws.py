"""Draws: saved and loaded, handed to ArviZ, plotted; what they say of themselves."""

import re
import sys

import numpy as np
import pytest

from ctld.diagnostics import Estimate
from ctld.sampling import Counts, Draws
from ctld.thermometers import GroupTemperatures
from sampling_problems import same


def draws(*, shift=0.0, kinetic=1.0, length=200, chains=4, **changes):
    generator = np.random.default_rng(0)
    values = generator.standard_normal((chains, length, 2, 3))
    values[0] += shift
    group = GroupTemperatures(Estimate(kinetic, 0.01), None, Estimate(0.1, 0.01))
    given = {
        "parameters": {"weight": values},
        "statistics": {
            "loss": generator.standard_normal((chains, length)),
            "kinetic_temperature": generator.gamma(50.0, 0.02, (chains, length)),
        },
        "counts": Counts((length,) * chains, 2 * length, length, (0,) * chains),
        "settings": {"lr": 0.1, "temperature": 1.0},
        "thermometers": ((group, None),) * chains,
        "remarks": ("mind the step",),
    }
    return Draws(**given | changes)


def test_saved_and_loaded(tmp_path):
    made = draws(predictions=np.ones((4, 200, 5)), projections=np.zeros((4, 200, 2)))
    made.save(tmp_path / "draws.npz")
    found = Draws.load(tmp_path / "draws.npz")
    assert same(made, found)
    assert (found.settings, found.thermometers, found.remarks) == (made.settings, made.thermometers, made.remarks)
    draws(length=50).save(tmp_path / "draws.npz")
    assert Draws.load(tmp_path / "draws.npz").counts.draws == (50,) * 4
    assert [entry.name for entry in tmp_path.iterdir()] == ["draws.npz"]


def test_what_is_no_file_of_draws_is_refused(tmp_path):
    place = tmp_path / "draws.npz"
    place.write_bytes(b"nonsense")
    with pytest.raises(ValueError, match="must be a file of draws, got something else"):
        Draws.load(place)
    np.savez(place, about=np.array([{"evil": 1}], dtype=object))
    with pytest.raises(ValueError, match="must be a file of draws, got something else"):
        Draws.load(place)
    with pytest.raises(ValueError, match="must hold a finished run, got none"):
        Draws.load(tmp_path)
    with pytest.raises(FileNotFoundError):
        Draws.load(tmp_path / "missing.npz")


def test_arviz_has_the_groups():
    made = draws(predictions=np.ones((4, 200, 5))).to_arviz()
    assert made.posterior["weight"].shape == (4, 200, 2, 3)
    assert set(made.sample_stats.data_vars) == {"loss", "kinetic_temperature"}
    assert made.predictions["predictions"].shape == (4, 200, 5)
    only = draws(parameters={}, predictions=np.ones((4, 200, 5))).to_arviz()
    assert only.posterior["predictions"].shape == (4, 200, 5)


def test_the_figure_has_a_row_for_each_element_and_one_for_the_temperature():
    assert len(draws().plot(elements=2).axes) == 2 * 3
    assert len(draws(predictions=np.ones((4, 200, 5))).plot("weight").axes) == 2 * 5
    with pytest.raises(ValueError, match="quantity must be one of weight, got 'bias'"):
        draws().plot("bias")


@pytest.mark.parametrize(("package", "call"), [("matplotlib.figure", "plot"), ("arviz", "to_arviz")])
def test_extras_are_asked_for_when_needed(package, call, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=r"python -m pip install (matplotlib|arviz)"):
        getattr(draws(), call)()


def test_nothing_is_said_of_good_draws():
    assert draws().advice() == []
    assert draws().r_hat < 1.02
    assert 500 < draws().ess <= 4 * 200 * 3
    assert "R-hat 1.0" in repr(draws())


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"shift": 2.0}, r"R-hat is 1\.\d\d"),
        ({"kinetic": 1.2}, r"temperature of 1.20 ± 0.01 times the right one. Lower lr or take larger batches"),
        ({"kinetic": 0.8}, r"temperature of 0.80 ± 0.01 times the right one. Lower lr"),
        ({"length": 30}, r"the effective sample size is \d+. Raise num_steps"),
        ({"chains": 1}, r"one chain cannot tell whether it has converged"),
        ({"counts": Counts((200,) * 5, 400, 200, (0,) * 5, (2,))}, r"chains \[2\] were given up"),
    ],
)
def test_what_is_wrong_is_said(changes, said):
    found = draws(**changes).advice()
    assert len(found) == 1
    assert re.search(said, found[0])


def test_predictions_come_before_parameters():
    """Hidden units change places: parameters disagree where what is computed does not."""
    predictions = np.random.default_rng(1).standard_normal((4, 200, 5))
    made = draws(shift=5.0, predictions=predictions)
    assert list(made.quantities) == ["predictions"]
    assert made.r_hat < 1.05
    assert made.convergence(every=True)["weight"].r_hat.max() > 1.5
