"""The studies of posteriors: the reference, scores, samplers, the mixture of predictives, published numbers."""

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import cells
from posterior import agreement, reference, regression, study, tables
from posterior.problems import PROBLEMS, predictions, split
from posterior.samplers import SAMPLERS, Setting

NAMES = ("diabetes", "wine", "hats")
STORED = Path(study.__file__).parent / "results"


@pytest.mark.parametrize("name", NAMES)
def test_the_samplers_potential_is_the_one_that_nuts_sampled(name):
    problem = PROBLEMS[name]()
    with np.load(reference.STORED / f"{name}.npz", allow_pickle=False) as stored:
        draws, potentials = stored["theta"], stored["potential"]
    model, loss = agreement.model_of(problem, torch.Generator().manual_seed(0)), agreement.mean_loss(problem)
    for theta, potential in zip(draws, potentials, strict=True):
        with torch.no_grad():
            for parameter, part in zip(model.parameters(), split(theta, problem.shapes), strict=True):
                parameter.copy_(torch.tensor(part))
        mean = loss(model, torch.tensor(problem.inputs), torch.tensor(problem.targets)).item()
        ours = problem.num_data * (mean + problem.weight_decay * float((theta**2).sum()) / 2)
        assert ours == pytest.approx(potential, rel=1e-9)
        outputs = model(torch.tensor(problem.test_inputs)).detach()
        outputs = outputs.softmax(dim=-1) if problem.noise is None else outputs
        np.testing.assert_allclose(predictions(problem, theta), outputs.numpy(), atol=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_reference_has_converged(name):
    quantiles, about = reference.read(PROBLEMS[name]())
    assert about["worst_r_hat"] < 1.01
    assert about["least_ess_bulk"] > 1000
    assert np.isfinite(quantiles).all()
    assert (np.diff(quantiles, axis=0) >= 0).all()


@pytest.mark.parametrize("name", NAMES)
def test_scores_tell_the_reference_from_others(name):
    """Its own quantiles are near, but for the interpolation of quantiles; wider ones, and their lower half, are not."""
    problem = PROBLEMS[name]()
    quantiles, _ = reference.read(problem)
    same = agreement.score(problem, quantiles, quantiles)
    assert same["w2"] < 0.05
    assert same["total_variation"] < 0.005
    middle = np.median(quantiles, axis=0)
    wide = agreement.score(problem, middle + 1.5 * (quantiles - middle), quantiles)
    assert wide["w2"] > 0.3
    half = agreement.score(problem, quantiles[:100], quantiles)
    assert half["w2"] > 0.3
    assert half["total_variation"] > 0.01
    few = agreement.floor(problem, quantiles, 100)
    many = agreement.floor(problem, quantiles, 1000)
    assert many[0] < few[0] < 0.3


def test_a_chain_that_diverged_or_has_no_draws_is_infinitely_far():
    problem = PROBLEMS["hats"]()
    quantiles, _ = reference.read(problem)
    assert agreement.score(problem, quantiles[:10], quantiles)["w2"] == math.inf
    assert agreement.score(problem, quantiles + math.nan, quantiles)["w2"] == math.inf


def test_mirror_images_have_the_same_density():
    problem = PROBLEMS["hats"]()
    np.testing.assert_allclose(problem.inputs, -problem.inputs[::-1])
    assert np.array_equal(problem.targets, problem.targets[::-1])
    np.testing.assert_allclose(problem.test_inputs, -problem.test_inputs[::-1], atol=1e-12)


@pytest.mark.parametrize("name", SAMPLERS)
def test_sampler_steps_and_says_when_it_is_cold(name):
    model = nn.Linear(2, 1)
    optimizer = SAMPLERS[name].build(model, Setting(20, 0.1, 5.0, 0.2, 600), 1)
    cold = []
    for _ in range(40):
        model.weight.grad, model.bias.grad = torch.ones_like(model.weight), torch.ones_like(model.bias)
        optimizer.step(loss=1.0)
        cold.append(SAMPLERS[name].cold(optimizer))
    assert any(cold)
    assert all(cold) == (name not in ("csghmc", "driven", "paper", "tact_hmc", "resgld"))


def test_likelihood_of_a_mixture():
    """Two draws of equal weight, one model of two having only the first; in units of 2."""
    targets = torch.tensor([[0.5, -1.0], [0.5, -1.0]])
    mixture = regression.Mixture(targets)
    noise = torch.tensor([[0.0], [0.0]])
    mixture.add(torch.zeros(2, 2), noise, torch.tensor([True, True]))
    mixture.add(torch.ones(2, 2), noise, torch.tensor([True, False]))
    both, one = mixture.score(torch.tensor([2.0, 2.0]))
    density = torch.distributions.Normal(0.0, 1.0)
    first, second = density.log_prob(targets[0]).exp(), density.log_prob(targets[0] - 1).exp()
    assert both["log_likelihood"] == pytest.approx(float(((first + second) / 2).log().mean()) - math.log(2), rel=1e-5)
    assert one["log_likelihood"] == pytest.approx(float(first.log().mean()) - math.log(2), rel=1e-5)
    assert both["rmse"] == pytest.approx(2 * math.sqrt((0.0 + 1.5**2) / 2), rel=1e-5)
    assert (both["draws"], one["draws"]) == (2, 1)


def test_held_out_rows_are_of_the_training_part_and_no_others():
    train = np.arange(10, 60)
    fit, chosen_by = regression.held_out(train, 3)
    assert len(chosen_by) == 10
    assert sorted([*fit, *chosen_by]) == train.tolist()
    assert not np.array_equal(chosen_by, regression.held_out(train, 4)[1])


def test_epochs_show_every_row_once_and_the_others_draw():
    problem = PROBLEMS["diabetes-epochs"]()
    rows = list(agreement.rows_of(problem, 20, seed=1))
    for epoch in (rows[:10], rows[10:]):
        assert sorted(torch.cat(epoch).tolist()) == list(range(300))
    assert not torch.equal(rows[0], rows[10])
    drawn = torch.cat(list(agreement.rows_of(PROBLEMS["diabetes-batch"](), 10, seed=1)))
    assert len(set(drawn.tolist())) < 250  # of 320 draws from 300 about 197 differ, ± 7


@pytest.mark.slow
def test_some_of_both_parts_and_a_second_call_computes_nothing(tmp_path, capsys):
    some = [
        study.near("hats", "resgld", 1400, 1, 1),
        *(study.fits("diabetes20", name, 60, 2) for name in ("sgd", "ensemble")),
    ]
    cells.run(tmp_path, some)
    said = capsys.readouterr().out
    assert said.count("final") + said.count("log-likelihood") == 3
    cells.run(tmp_path, some)
    assert capsys.readouterr().out == ""
    tables.pack(tmp_path, tmp_path / "results")
    made = tables.findings(tmp_path / "results")["tables"]
    assert made["hats"]["rows"][0][0] == "replica exchange"
    assert [row[0] for row in made["diabetes20"]["rows"]] == ["SGD-M", "`ctld.Ensemble`"]


# ---- tables ----


def test_part_three_compares_by_split():
    """Paired: what splits share does not count."""
    split = np.array([-3.0, -2.0, -4.0, -3.5])

    def rows(values, **more):
        return pd.DataFrame({"log_likelihood": values, "rmse": 1.0, "draws": 9} | more)

    travels = {"half_trips": 30, "promised_half_trips": 20.0, "warned": True}
    found = {"baoab": rows(split), "calibrated": rows(split + np.array([0.2, 0.21, 0.19, 0.2]), **travels)}
    assert tables.long_table(found)["rows"][1][-3:] == ["30 (30 to 30)", "20", "4 of 4"]
    told = tables.long_finding("energy", found)
    assert (told["verdict"], told["numbers"]) == ("ahead", "log-likelihood +0.200 (+0.187 to +0.213)")
    for change, word in (([0.01, -0.01, 0.01, -0.01], "tie"), ([0.5, -0.5, 0.4, -0.3], "undecided")):
        found["calibrated"] = rows(split + change, **travels)
        assert tables.long_finding("energy", found)["verdict"] == word
    found["calibrated"].loc[1, "draws"] = 0
    assert tables.long_table(found)["rows"][1][1] == "none: no cold draw in 1 of 4 splits"


def test_tempering_is_ahead_beyond_two_standard_errors_and_not_without_draws():
    def rows(*values):
        return pd.DataFrame({"w2": values})

    found = {"baoab": rows(0.5, 0.52, 0.51), "resgld": rows(0.4, 0.42, 0.41)}
    (told,) = tables.tempering_finding("hats", found)
    assert told["verdict"] == "ahead"
    (told,) = tables.tempering_finding("hats", found | {"resgld": rows(0.3, 0.5, 0.7)})
    assert told["verdict"] == "tie"
    (told,) = tables.tempering_finding("hats", found | {"sgld": rows(0.3, 0.3, 0.31)})
    assert told["verdict"] == "behind"
    assert tables.tempering_finding("hats", found | {"resgld": rows(0.3, math.inf, 0.3)}) == []


def test_published_numbers_are_those_of_the_stored_runs():
    """A few of each kind, as they were published first; tests of `render` hold the rest."""
    made = tables.findings(STORED)["tables"]
    first = ["SGNHT", "no", "0.8", "0.079 ± 0.004", "0.003", "1.000", "750", ""]
    assert made["wine"]["rows"][0] == first
    calibrated = ["calibrated tempering, BAOAB", "yes", "0.8", "0.143 ± 0.004", "0.015", "318", "61 92 46 102"]
    assert calibrated in made["diabetes"]["rows"]
    energy = {row[0]: row[1:] for row in made["energy"]["rows"]}
    assert energy["`ctld.Ensemble`"] == ["-1.321 ± 0.028", "-0.665 (-0.757 to -0.574)", "behind", "1.075 ± 0.045"]
    told = {row["id"]: row for row in tables.findings(STORED)["findings"]}
    assert told["energy-long"]["numbers"] == "log-likelihood +0.029 (+0.018 to +0.041)"
    assert told["concrete-long"]["verdict"] == "tie"
