"""ctld.sample: known posteriors, the same draws however it is run, and refusals before any work."""

import copy
import logging
import warnings

import numpy as np
import pytest
import torch
from torch import nn

import ctld
from ctld import Langevin
from ctld.chains import SeparateChains
from ctld.sampling import ConvergenceWarning, run
from ctld.sampling.chains_of import worth_compiling
from sampling_problems import Recurrent, Regression, dropout_network, half_square, same

pytestmark = pytest.mark.filterwarnings("ignore::ctld.sampling.ConvergenceWarning")
PROBLEM = Regression()


def sampled(problem=PROBLEM, model=None, loader=None, **options):
    options = {"weight_decay": problem.weight_decay, "seed": 1, "progress": False, "num_steps": 40} | options
    loader = problem.loader() if loader is None else loader
    return ctld.sample(problem.model() if model is None else model, half_square, loader, **options)


# ---- laws ----


def scores(draws):
    """Distances of means and variances from the posterior's, in standard errors that know the autocorrelation."""
    values = draws.parameters["weight"][:, :, 0]
    found = []
    for element, (mean, variance) in enumerate(zip(PROBLEM.mean, PROBLEM.covariance.diagonal(), strict=True)):
        series = values[:, :, element]
        for each, law in ((series, mean), ((series - float(mean)) ** 2, variance)):
            estimate = ctld.diagnostics.estimate(each)
            found.append(abs(estimate.mean - float(law)) / estimate.standard_error)
    return found


def test_the_posterior_of_a_linear_regression():
    """Six comparisons at 4.2 standard errors of batch means; the twin at a temperature of 1.5 is 50 % too wide."""
    draws = sampled(num_steps=2000, thin=1)
    assert max(scores(draws)) < 4.2
    assert draws.r_hat < 1.05
    assert draws.advice() == []
    assert draws.counts.draws == (1500,) * 4
    twin = sampled(num_steps=2000, thin=1, temperature=1.5)
    assert max(scores(twin)) > 4.2


@pytest.mark.parametrize("name", ["sgld", "psgld", "sghmc", "sgnht", "langevin", "csghmc"])
def test_every_sampler_of_the_table(name):
    draws = sampled(sampler=name, num_chains=2, num_steps=60)
    assert np.isfinite(draws.parameters["weight"]).all()
    assert min(draws.counts.draws) > 0


# ---- the same draws, however it is run ----


def test_chains_together_are_chains_one_by_one(monkeypatch):
    options = {"loader": PROBLEM.loader(8), "predict": PROBLEM.inputs[:2], "projections": 2}
    together = sampled(**options)
    monkeypatch.setattr(run, "chains_of", lambda models, steps, loss, _, **options: SeparateChains(models, steps, loss))
    alone = sampled(**options)
    for name in ("predictions", "projections"):
        np.testing.assert_allclose(getattr(together, name), getattr(alone, name), rtol=1e-9)
    np.testing.assert_allclose(together.parameters["weight"], alone.parameters["weight"], rtol=1e-9)


def test_an_lstm_runs_in_a_loop(caplog):
    caplog.set_level(logging.INFO, "ctld")
    inputs = torch.randn(12, 4, 2)
    loader = [(inputs, inputs.sum((1, 2))[:, None])]
    draws = ctld.sample(
        Recurrent(), half_square, loader, num_data=12, num_steps=12, seed=0, predict=inputs, progress=False
    )
    assert draws.predictions.shape == (4, 9, 12, 1)
    assert "one after the other" in caplog.text
    assert draws.settings["lr"] > 0


def test_a_model_with_hooks_runs_in_a_loop():
    seen = []
    model = PROBLEM.model()
    model.register_forward_hook(lambda *_: seen.append(1))
    sampled(model=model, num_steps=4, lr=0.01)
    assert len(seen) == 4 * 4  # once for each chain and step


class Killed(BaseException):
    pass


@pytest.mark.parametrize("kind", ["stacked", "recurrent"])
@pytest.mark.parametrize("at", [7, 23])
def test_a_killed_run_goes_on_to_the_same_bits(kind, at, tmp_path, monkeypatch):
    """Killed within burn-in and after it; epochs of five batches, dropout, and the learning rate from the curvature."""
    monkeypatch.setattr(run, "SECONDS", 0.0)
    if kind == "stacked":
        model, problem = dropout_network(), PROBLEM
        loader = problem.loader(8)
    else:
        inputs = torch.randn(20, 4, 2)
        data = torch.utils.data.TensorDataset(inputs, inputs.sum((1, 2))[:, None])
        model, loader = Recurrent(), torch.utils.data.DataLoader(data, batch_size=4, shuffle=True)
    options = {"num_steps": 40, "seed": 5, "progress": False, "weight_decay": 0.1, "thin": 3, "num_chains": 2}
    steps = []

    def loss(outputs, targets):
        return half_square(outputs, targets)

    def killed(self):
        if self.step == at and not steps:
            steps.append(self.step)
            raise Killed
        return advance(self)

    whole = ctld.sample(model, loss, loader, **options)
    advance = run.Run._advance
    monkeypatch.setattr(run.Run, "_advance", killed)
    with pytest.raises(Killed):
        ctld.sample(model, loss, loader, folder=tmp_path, **options)
    resumed = ctld.sample(model, loss, loader, folder=tmp_path, **options)
    assert steps == [at]
    assert same(whole, resumed)
    assert whole.thermometers == resumed.thermometers
    # A finished folder is read, not run again.
    monkeypatch.setattr(run.Run, "_advance", None)
    assert same(whole, ctld.sample(model, loss, loader, folder=tmp_path, **options))
    assert same(whole, ctld.Draws.load(tmp_path))


def test_rows_of_a_killed_run_are_written_again(tmp_path, monkeypatch):
    """A kill between two checkpoints leaves rows that do not count."""
    whole = sampled(thin=1)
    advance, saves = run.Run._advance, []

    def once(self):
        if self.step == 20 and not saves:
            saves.append(self.save())
        if self.step == 30 and len(saves) == 1:
            saves.append(None)
            raise Killed
        return advance(self)

    monkeypatch.setattr(run.Run, "_advance", once)
    with pytest.raises(Killed):
        sampled(thin=1, folder=tmp_path)
    assert same(whole, sampled(thin=1, folder=tmp_path))


def test_the_users_model_and_random_numbers_stay_as_they_are():
    model = PROBLEM.model()
    before, state = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    sampled(model=model, loader=PROBLEM.loader(8))
    assert torch.equal(model.weight, before["weight"])
    assert torch.equal(torch.get_rng_state(), state)


# ---- starts ----


def test_chains_start_apart_and_the_first_one_at_the_model():
    model = PROBLEM.model()
    draws = sampled(model=model, num_steps=1, burn_in=0.0, lr=1e-12, temperature=1e-9)
    first = draws.parameters["weight"][:, 0]
    np.testing.assert_allclose(first[0], model.weight.detach(), atol=1e-4)
    assert np.abs(first[1:] - first[0]).max(axis=(1, 2)).min() > 0.01
    together = sampled(model=model, num_steps=1, burn_in=0.0, lr=1e-12, temperature=1e-9, starts="model")
    np.testing.assert_allclose(together.parameters["weight"][:, 0], np.stack([first[0]] * 4), atol=1e-4)


def test_parameters_without_a_reset_are_moved_and_frozen_ones_are_not():
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.shift = nn.Parameter(torch.zeros(3, dtype=torch.float64))
            self.fixed = nn.Linear(3, 1).double().requires_grad_(False)

        def forward(self, inputs):
            return self.fixed(inputs + self.shift)

    draws = sampled(model=Own(), num_steps=2, burn_in=0.0, lr=1e-12, temperature=1e-9)
    assert np.ptp(draws.parameters["fixed.weight"], axis=0).max() == 0.0
    assert np.ptp(draws.parameters["shift"][:, 0], axis=0).min() > 0.1


def test_a_model_for_each_chain():
    models = [PROBLEM.model(seed) for seed in range(3)]
    draws = sampled(model=models, num_steps=1, burn_in=0.0, lr=1e-12, temperature=1e-9)
    expected = np.stack([model.weight.detach().numpy() for model in models])
    np.testing.assert_allclose(draws.parameters["weight"][:, 0], expected, atol=1e-4)


# ---- what counts as a draw ----


def test_a_sampler_that_seldom_holds_a_draw_is_waited_for():
    """Draws are due at even steps; a sampler that holds one only after odd steps gives it one step later."""

    class Odd(Langevin):
        @property
        def is_draw(self):
            return self.steps % 2 == 1

    def build(parameters, lr, seed):
        return Odd(parameters, lr, num_data=PROBLEM.num_data, seed=seed)

    draws = sampled(sampler=build, thin=4, burn_in=0.5, lr=0.01)
    assert draws.counts.draws == (4,) * 4

    class Never(Odd):
        is_draw = False

    with pytest.raises(ValueError, match=r"the chains must give draws, got none"):
        sampled(sampler=lambda p, lr, seed: Never(p, lr, num_data=40, seed=seed), lr=0.01)


def test_a_chain_that_is_lost_is_given_up_and_left_out():
    models = [PROBLEM.model(seed) for seed in range(3)]
    nn.init.constant_(models[1].weight, 1e200)
    with pytest.warns(UserWarning, match=r"chain 1 has refused 20 steps in a row: its parameters are lost"):
        draws = sampled(model=models, lr=0.01)
    assert draws.counts.lost == (1,)
    assert draws.counts.refused == (0, 40, 0)
    assert len(draws) == 2
    assert np.isfinite(draws.parameters["weight"]).all()
    assert "given up" in draws.advice()[0]
    assert np.isfinite(draws.r_hat)
    with pytest.raises(FloatingPointError, match="its parameters are lost"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sampled(model=[models[1]] * 2, lr=0.01)


def test_a_chain_without_a_loss_does_not_stop_the_others():
    """With lr="auto" the curvature is looked at where there is one; R-hat is that of the chains that are left."""
    models = [PROBLEM.model(seed) for seed in range(3)]
    nn.init.constant_(models[1].weight, 1e200)
    with pytest.warns(UserWarning, match="chain 1 has refused 20 steps in a row"):
        draws = sampled(model=models, num_steps=400)
    assert draws.counts.lost == (1,)
    assert draws.r_hat < 1.5
    assert draws.ess > 1
    with pytest.raises(FloatingPointError, match="no chain has a finite loss at the start"):
        sampled(model=[models[1]] * 2)


def test_the_curvature_is_looked_at_where_each_chain_starts():
    """Of q⁴/12 it is q²: the chain at 3 decides, though it is not the first."""

    class Quartic(nn.Module):
        def __init__(self, start):
            super().__init__()
            self.q = nn.Parameter(torch.tensor([start], dtype=torch.float64))

    models = [Quartic(0.1), Quartic(3.0)]
    options = {"num_data": 1, "num_steps": 2, "burn_in": 0.0, "progress": False, "seed": 0}
    draws = ctld.sample(models, lambda model, batch: (model.q**4 / 12).sum(), [torch.zeros(1)], **options)
    assert draws.settings["lr"] == pytest.approx(0.4 / 9.0, rel=0.01)


def test_chains_that_disagree_are_called_so():
    with pytest.warns(
        ConvergenceWarning, match=r"R-hat is .*: the chains, which began at different places, do not agree"
    ):
        sampled(lr=1e-9)


# ---- refusals ----


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_steps": 0}, r"num_steps = 0 is out of range"),
        ({"burn_in": 1.0}, r"burn_in = 1.0 is out of range"),
        ({"thin": 100}, r"thin must be at most the 30 steps after burn-in, got 100. Raise num_steps"),
        ({"starts": "anywhere"}, r"starts must be \"spread\" or \"model\", got 'anywhere'"),
        ({"sampler": "adam"}, r"sampler must be one of .*, got 'adam'"),
        ({"sampler": "nuts"}, r"sampler must be one of .*, got 'nuts'"),
        ({"lr": -1.0}, r"lr = -1.0 is out of range"),
        ({"temperature": 0.0}, r"temperature = 0.0 is out of range"),
        ({"loader": []}, r"loader must have batches, got an empty one"),
        ({"loader": iter([1])}, r"loader must be gone through once for each epoch, got an iterator"),
        ({"projections": torch.ones(2, 5)}, r"projections must have shape \(count, 3\), got \(2, 5\)"),
        ({"predict": PROBLEM.loader()}, r"predict must be what the model takes, got a DataLoader"),
        ({"model": [1]}, r"model must be a torch.nn.Module, or one for each chain, got int"),
        ({"nonsense": 3}, r"nonsense"),
    ],
)
def test_refusals(options, message, tmp_path):
    options = {"num_data": 40} | options
    with pytest.raises((ValueError, TypeError), match=message):
        sampled(folder=tmp_path / "new", **options)


def test_a_loader_without_examples_needs_num_data():
    with pytest.raises(ValueError, match="num_data must be given"):
        sampled(loader=[(PROBLEM.inputs, PROBLEM.targets)])


def test_draws_that_do_not_fit_are_refused_before_a_step(monkeypatch):
    monkeypatch.setattr(run.store, "IN_MEMORY", 1000)
    monkeypatch.setattr(run.Run, "_advance", None)
    with pytest.raises(ValueError, match=r"the draws must fit into .* Give folder="):
        sampled()


def test_a_folder_of_another_run_is_refused(tmp_path):
    sampled(folder=tmp_path)
    with pytest.raises(ValueError, match=r"weight_decay must be 0.05 as in the run that .* holds, got 0.1"):
        sampled(folder=tmp_path, weight_decay=0.1)
    other = tmp_path / "other"
    other.mkdir()
    (other / "notes.txt").write_text("mine")
    with pytest.raises(FileExistsError, match="folder must be empty or one of"):
        sampled(folder=other)
    assert [entry.name for entry in other.iterdir()] == ["notes.txt"]


def test_damaged_files_are_refused(tmp_path):
    sampled(folder=tmp_path)
    (tmp_path / "finished.json").unlink()
    (tmp_path / "state.pt").write_bytes(b"nonsense")
    with pytest.raises(ValueError, match=r"state.pt must be a state of a run, got a damaged file"):
        sampled(folder=tmp_path)
    (tmp_path / "settings.json").write_text("{")
    with pytest.raises(ValueError, match=r"settings.json must be JSON, got a damaged file"):
        sampled(folder=tmp_path)


def test_the_seed_of_a_folder_is_kept(tmp_path):
    """Without a seed one is drawn, and the run that goes on has the same."""
    first = sampled(seed=None, folder=tmp_path)
    (tmp_path / "finished.json").unlink()
    assert same(first, sampled(seed=None, folder=tmp_path))


def test_progress_without_a_terminal(monkeypatch, capsys):
    monkeypatch.setattr("ctld.sampling.progress.EVERY", 0.0)
    sampled(progress=True)
    assert "sampling: step 40 of 40, loss" in capsys.readouterr().err


def test_the_preconditioner_of_psgld_rests_when_draws_begin():
    """Draws are due after every fifth step from 15 on; if it adapts until 25, the first one is taken at 26."""
    assert sampled(sampler="psgld", thin=5).counts.draws == (6,) * 4
    assert sampled(sampler="psgld", thin=5, adapt_steps=25).counts.draws == (4,) * 4


def test_compiling_is_for_many_steps():
    assert not worth_compiling("auto", 99_999)
    assert worth_compiling("auto", 100_000)
    assert worth_compiling(True, 1)
    assert not worth_compiling(False, 10**9)
    with pytest.raises(ValueError, match='compile must be True, False or "auto", got 3'):
        sampled(compile=3)
