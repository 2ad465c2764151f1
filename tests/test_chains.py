"""Chains side by side beside separate runs of the same models, optimizers and batches."""

import copy
import math
import re
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import ctld
from ctld import CTLD, OPTIMIZERS, Langevin, NonFiniteError, diagnostics
from ctld.chains import Chains, NonFiniteChainsError
from ctld.chains.compiled import can_compile
from ctld.observing import TakesLoss
from targets import equal, saved

NUM_CHAINS, STEPS, EXPLORATION = 3, 50, 30


def mlp():
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double()


def cnn():
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 5, 2), nn.Flatten(), nn.Linear(5 * 4, 3)
    ).double()


def normalised():
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 3)).double()


SHAPES = {mlp: (6,), cnn: (1, 8, 8), normalised: (1, 8, 8)}


def loss(model, inputs, labels):
    return functional.cross_entropy(model(inputs), labels)


def batch(build, step, *leading):
    """Steps are named, so that a resumed run sees the same."""
    generator = torch.Generator().manual_seed(step)
    inputs = torch.randn(*leading, 16, *SHAPES[build], generator=generator, dtype=torch.float64)
    return inputs, torch.randint(3, (*leading, 16), generator=generator)


def built(build, num_chains=NUM_CHAINS, seeds=None, **options):
    """Models and optimizers, the same each time."""
    torch.manual_seed(7)
    models = [build() for _ in range(num_chains)]
    options = {"lr": 0.1, "weight_decay": 1e-3, "num_data": 200, "exploration_steps": EXPLORATION} | options
    seeds = seeds or range(100, 100 + num_chains)
    return models, [CTLD(model.parameters(), seed=seed, **options) for model, seed in zip(models, seeds, strict=True)]


def train(chains, build, steps):
    for step in steps:
        chains.backward(*batch(build, step))
        chains.step()


def train_alone(model, optimizer, batches, loss=loss):
    for each in batches:
        optimizer.zero_grad()
        value = loss(model, *each)
        value.backward()
        if isinstance(optimizer, TakesLoss):
            optimizer.step(loss=value)
        else:
            optimizer.step()


def assert_close(here, there, tolerance=1e-10):
    for (name, mine), theirs in zip(here.state_dict().items(), there.state_dict().values(), strict=True):
        torch.testing.assert_close(
            mine, theirs, rtol=tolerance, atol=tolerance, msg=lambda text, name=name: f"{name}: {text}"
        )


# ---- equal to separate runs ----


@pytest.mark.parametrize("build", SHAPES)
def test_chains_are_separate_runs(build):
    """Across the switch of phases: parameters, running statistics, α; 1e-10 where rounding is 1e-16 a step."""
    models, optimizers = built(build)
    others, twins = built(build)
    train(Chains(models, optimizers, loss), build, range(STEPS))
    for model, optimizer, other, twin in zip(models, optimizers, others, twins, strict=True):
        train_alone(other, twin, [batch(build, step) for step in range(STEPS)])
        assert_close(model, other)
        assert not optimizer.exploring
        assert optimizer.tempering.alpha == pytest.approx(twin.tempering.alpha, rel=1e-10, abs=1e-12)
    alphas = [optimizer.tempering.alpha for optimizer in optimizers]
    assert len(set(alphas)) == NUM_CHAINS
    assert max(map(abs, alphas)) > 0.01


def test_each_chain_may_have_its_own_batches():
    models, optimizers = built(mlp)
    others, twins = built(mlp)
    chains = Chains(models, optimizers, loss)
    for step in range(STEPS):
        chains.backward(*batch(mlp, step, NUM_CHAINS), shared=False)
        chains.step()
    for chain, (other, twin) in enumerate(zip(others, twins, strict=True)):
        batches = [batch(mlp, step, NUM_CHAINS) for step in range(STEPS)]
        train_alone(other, twin, [[tensor[chain] for tensor in each] for each in batches])
        assert_close(models[chain], other)


class Quadratic(nn.Module):
    """(θ − centre)²/2, of which the gradient has no sums, hence no order of summation."""

    def __init__(self, start):
        super().__init__()
        self.theta = nn.Parameter(start)

    def forward(self, centre):
        return 0.5 * (self.theta - centre).square().sum()


def quadratic(model, centre):
    return model(centre)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_method_to_the_bit(name):
    """Those that do not read the loss, which is a sum; CTLD to its rounding."""
    method = OPTIMIZERS[name]
    given = {"num_data": 50.0, "exploration_steps": 5, "num_steps": 10, "lr": 1e-3}
    options = {option: given[option] for option in method.needs | {"lr"}}
    if name == "ctld":
        options["weight_decay"] = 1e-3
    starts = [torch.randn(9, dtype=torch.float64) for _ in range(NUM_CHAINS)]
    sides = []
    for _ in range(2):
        models = [Quadratic(start.clone()) for start in starts]
        made = [
            ctld.create(name, model.parameters(), **options, **({"seed": seed} if method.noisy else {}))
            for seed, model in enumerate(models)
        ]
        sides.append((models, made))
    (models, optimizers), (others, twins) = sides
    chains = Chains(models, optimizers, quadratic)
    for _ in range(10):
        chains.backward(0.3)
        chains.step()
    for model, start, other, twin in zip(models, starts, others, twins, strict=True):
        train_alone(other, twin, [[0.3]] * 10, quadratic)
        assert not torch.equal(model.theta, start)
        if method.needs_loss:
            torch.testing.assert_close(model.theta, other.theta, rtol=1e-13, atol=1e-13)
        else:
            assert torch.equal(model.theta, other.theta)


def test_torchs_optimizers_and_schedulers():
    torch.manual_seed(1)
    models = [mlp() for _ in range(NUM_CHAINS)]
    others = copy.deepcopy(models)
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1 * (1 + chain)) for chain, model in enumerate(models)]
    twins = [torch.optim.SGD(model.parameters(), lr=0.1 * (1 + chain)) for chain, model in enumerate(others)]
    schedulers = [torch.optim.lr_scheduler.StepLR(optimizer, 5) for optimizer in optimizers]
    chains = Chains(models, optimizers, loss)
    for step in range(10):
        losses = chains.backward(*batch(mlp, step))
        chains.step()
        for scheduler in schedulers:
            scheduler.step()
    for chain, (other, twin) in enumerate(zip(others, twins, strict=True)):
        scheduler = torch.optim.lr_scheduler.StepLR(twin, 5)
        for step in range(10):
            if step == 9:
                assert losses[chain].item() == pytest.approx(loss(other, *batch(mlp, step)).item(), rel=1e-12)
            train_alone(other, twin, [batch(mlp, step)])
            scheduler.step()
        assert_close(models[chain], other)


def test_frozen_and_unused_parameters_and_tied_ones():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(6, 6)
            self.second = nn.Linear(6, 6)
            self.second.weight = self.first.weight
            self.unused = nn.Linear(2, 2)
            self.head = nn.Linear(6, 3)

        def forward(self, inputs):
            return self.head(torch.tanh(self.second(torch.tanh(self.first(inputs)))))

    sides = []
    for _ in range(2):
        models, optimizers = built(lambda: Net().double())
        models[1].head.weight.requires_grad_(False)
        for model in models:
            model.second.bias.requires_grad_(False)
        sides.append((models, optimizers))
    (models, optimizers), (others, twins) = sides
    frozen, before = models[1].head.weight.clone(), models[0].unused.weight.clone()
    train(Chains(models, optimizers, loss), mlp, range(STEPS))
    for model, other, twin in zip(models, others, twins, strict=True):
        train_alone(other, twin, [batch(mlp, step) for step in range(STEPS)])
        assert_close(model, other)
    assert torch.equal(models[1].head.weight, frozen)
    assert torch.equal(models[0].unused.weight, before)
    assert models[0].unused.weight.grad is None
    assert models[0].head.weight.grad is not None


def test_a_buffer_that_a_module_replaces():
    class Counting(nn.Module):
        def __init__(self, start):
            super().__init__()
            self.layer = nn.Linear(6, 3)
            self.register_buffer("mean", torch.full((), start))

        def forward(self, inputs):
            outputs = self.layer(inputs)
            self.mean = 0.5 * self.mean + outputs.detach().mean()
            return outputs

    models = [Counting(float(chain)).double() for chain in range(NUM_CHAINS)]
    others = copy.deepcopy(models)
    train(Chains(models, [torch.optim.SGD(model.parameters(), lr=0.1) for model in models], loss), mlp, range(5))
    for model, other in zip(models, others, strict=True):
        train_alone(other, torch.optim.SGD(other.parameters(), lr=0.1), [batch(mlp, step) for step in range(5)])
        assert_close(model, other)


# ---- independent of each other ----


def test_chains_of_one_start_part_by_their_noise_alone():
    """And the twin that is wrong on purpose, one seed for all, is told, and does not part."""
    for seeds, apart in (([1, 2, 3], True), ([1, 1, 1], False)):
        models, optimizers = built(mlp, seeds=seeds, temperature=0.01)
        for model in models[1:]:
            model.load_state_dict(models[0].state_dict())
        if apart:
            chains = Chains(models, optimizers, loss)
        else:
            with pytest.warns(UserWarning, match="several chains have seed 1, hence the same noise"):
                chains = Chains(models, optimizers, loss)
        train(chains, mlp, range(5))
        assert torch.allclose(models[0][0].weight, models[1][0].weight) is not apart
        assert torch.allclose(models[0][0].weight, models[2][0].weight) is not apart


def test_dropout_differs_between_chains():
    torch.manual_seed(0)
    start = nn.Sequential(nn.Linear(6, 30), nn.Dropout(0.5), nn.Linear(30, 3)).double()
    models = [copy.deepcopy(start) for _ in range(NUM_CHAINS)]
    chains = Chains(models, [torch.optim.SGD(model.parameters(), lr=0.1) for model in models], loss)
    assert len(set(chains.backward(*batch(mlp, 0)).tolist())) == NUM_CHAINS
    for model in models:
        model.eval()
    assert torch.allclose(chains.backward(*batch(mlp, 0)), loss(start.eval(), *batch(mlp, 0)))
    models[1].train()
    with pytest.raises(ValueError, match="chain 1 is in training mode, chain 0 is not"):
        chains.backward(*batch(mlp, 0))


def test_a_nan_in_one_chain_stops_that_chain_alone():
    models, optimizers = built(mlp)
    others, twins = built(mlp)
    chains = Chains(models, optimizers, loss)
    train(chains, mlp, range(5))
    before = copy.deepcopy((models[1].state_dict(), optimizers[1].state_dict()))
    inputs, labels = batch(mlp, 5, NUM_CHAINS)
    inputs[1, 0, 0] = math.nan
    losses = chains.backward(inputs, labels, shared=False)
    assert losses.isfinite().tolist() == [True, False, True]
    with pytest.raises(
        NonFiniteChainsError, match=r"1 of 3 chains refused this step, .* chain 1: the loss is nan"
    ) as error:
        chains.step()
    assert error.value.chains == (1,)
    assert isinstance(error.value, NonFiniteError)
    assert equal(dict(models[1].state_dict()), dict(before[0]))
    assert equal(optimizers[1].state_dict(), before[1])
    train(chains, mlp, range(6, STEPS))
    for chain in range(NUM_CHAINS):
        train_alone(others[chain], twins[chain], [batch(mlp, step) for step in range(5)])
        if chain != 1:
            train_alone(others[chain], twins[chain], [(inputs[chain], labels[chain])])
        train_alone(others[chain], twins[chain], [batch(mlp, step) for step in range(6, STEPS)])
        assert_close(models[chain], others[chain])


def test_another_failure_does_not_stop_the_others_either():
    models, optimizers = built(mlp)
    chains = Chains(models, optimizers, loss)
    chains.backward(*batch(mlp, 0))
    optimizers[0].param_groups[0]["lr"] = -1.0
    before = models[2][0].weight.clone()
    with pytest.raises(ExceptionGroup, match=r"chains \[0\] failed") as error:
        chains.step()
    assert isinstance(error.value.exceptions[0], ValueError)
    assert error.value.exceptions[0].__notes__ == ["in chain 0"]
    assert not torch.equal(models[2][0].weight, before)


# ---- state ----


@pytest.mark.parametrize("build", [mlp, normalised])
def test_resuming_is_exact(build):
    models, optimizers = built(build)
    chains = Chains(models, optimizers, loss)
    train(chains, build, range(20))
    state = saved(chains.state_dict())
    train(chains, build, range(20, STEPS))
    others, twins = built(build, seeds=[5, 6, 7])
    resumed = Chains(others, twins, loss)
    train(resumed, build, range(3))
    resumed.load_state_dict(state)
    train(resumed, build, range(20, STEPS))
    assert equal(resumed.state_dict(), chains.state_dict())


def test_a_saved_chain_is_a_saved_run():
    """Each entry loads into a model and an optimizer of their own, and is no larger than they are."""
    models, optimizers = built(mlp)
    chains = Chains(models, optimizers, loss)
    train(chains, mlp, range(20))
    state = saved(chains.state_dict())
    (model, _, _), (optimizer, _, _) = built(mlp)
    model.load_state_dict(state["models"][2])
    optimizer.load_state_dict(state["optimizers"][2])
    train(chains, mlp, range(20, STEPS))
    train_alone(model, optimizer, [batch(mlp, step) for step in range(20, STEPS)])
    assert_close(model, models[2])
    weight = chains.state_dict()["models"][0]["0.weight"]
    assert weight.untyped_storage().nbytes() == weight.numel() * weight.element_size()


def test_a_state_that_does_not_fit_changes_nothing():
    models, optimizers = built(mlp)
    chains = Chains(models, optimizers, loss)
    train(chains, mlp, range(3))
    before, state = copy.deepcopy(chains.state_dict()), copy.deepcopy(chains.state_dict())
    train(chains, mlp, range(3, 6))
    now = copy.deepcopy(chains.state_dict())
    with pytest.raises(ValueError, match="the state has 2 models and 2 optimizers, here are 3 chains"):
        chains.load_state_dict({"format": 1, "models": state["models"][:2], "optimizers": state["optimizers"][:2]})
    with pytest.raises(ValueError, match="the state has format None"):
        chains.load_state_dict({"models": [], "optimizers": []})
    state["optimizers"][2]["param_groups"][0]["ctld_generator"] = "dice"
    with pytest.raises(ValueError, match="'dice'"):
        chains.load_state_dict(state)
    assert equal(chains.state_dict(), now)
    chains.load_state_dict(before)
    assert equal(chains.state_dict(), before)


# ---- refused ----


class Recurrent(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.memory = kind(6, 5)
        self.head = nn.Linear(5, 3)

    def forward(self, inputs):
        outputs, *_ = self.memory(inputs)
        return self.head(outputs)


class Branching(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, inputs):
        outputs = self.layer(inputs)
        return outputs if outputs.sum() > 0 else -outputs


class Remembering(Branching):
    def __init__(self):
        super().__init__()
        self.seen = torch.zeros(16, 3)

    def forward(self, inputs):
        outputs = self.layer(inputs)
        self.seen.add_(outputs.detach())
        return outputs


def averaging():
    return nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3, momentum=None))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            lambda: Recurrent(nn.LSTM),
            r"memory \(LSTM\) cannot .*: torch.func.vmap has no rule for aten::lstm.input. .* by hand",
        ),
        (lambda: Recurrent(nn.GRU), r"memory \(GRU\) cannot be run for all chains in one pass: .* aten::gru.input\."),
        (
            lambda: Recurrent(nn.RNN),
            r"memory \(RNN\) cannot be run for all chains in one pass: .* aten::rnn_tanh.input\.",
        ),
        (Branching, r"the model \(Branching\) cannot .*: it reads a number from a tensor .*torch.where"),
        (averaging, r"1 \(BatchNorm1d\) cannot .*: it reads a number from a tensor"),
        (Remembering, r"the model \(Remembering\) cannot .*: it writes into a tensor .*register_buffer"),
    ],
)
def test_models_that_vmap_cannot_take(build, message):
    models = [build() for _ in range(NUM_CHAINS)]
    before = copy.deepcopy([model.state_dict() for model in models])
    chains = Chains(models, [torch.optim.SGD(model.parameters(), lr=0.1) for model in models], loss)
    inputs, labels = batch(mlp, 0)
    with pytest.raises(NotImplementedError, match=message):
        chains.backward(inputs.float(), labels)
    assert equal([dict(model.state_dict()) for model in models], [dict(state) for state in before])
    with pytest.raises(RuntimeError, match="there are no new gradients"):
        chains.step()
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in models[0].modules())


def test_a_loss_that_vmap_cannot_take_is_told_from_the_model():
    models, optimizers = built(mlp)
    chains = Chains(
        models, optimizers, lambda model, *batch: loss(model, *batch) * float(model[0].weight.detach().sum())
    )
    with pytest.raises(
        NotImplementedError, match="the loss cannot be run for all chains in one pass: it reads a number"
    ):
        chains.backward(*batch(mlp, 0))


def test_the_callers_own_errors_stay_what_they_are():
    models, optimizers = built(mlp)
    chains = Chains(models, optimizers, loss)
    inputs, labels = batch(mlp, 0)
    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied") as error:
        chains.backward(inputs[:, :5], labels)
    assert type(error.value) is RuntimeError
    with pytest.raises(ValueError, match=re.escape("a tensor of shape (16, 6) should have 3 entries")):
        chains.backward(inputs, labels, shared=False)
    vectors = Chains(*built(mlp), lambda model, inputs, labels: model(inputs))
    with pytest.raises(ValueError, match=re.escape("the loss has shape (16, 3) in each chain")):
        vectors.backward(inputs, labels)
    chains.backward(inputs, labels)
    chains.step()
    with pytest.raises(RuntimeError, match="there are no new gradients"):
        chains.step()
    models[2][0].bias = nn.Parameter(models[2][0].bias.detach().clone())
    with pytest.raises(ValueError, match=r"0\.bias of chain 2 has left the chains' common memory"):
        chains.backward(inputs, labels)
    models[1].float()
    with pytest.raises(ValueError, match=r"0\.weight of chain 1 has left the chains' common memory"):
        chains.backward(inputs, labels)


def test_models_and_optimizers_that_do_not_fit():
    models, optimizers = built(mlp)
    for models_given, optimizers_given, message in (
        ([], [], "there are 0 models"),
        (models, optimizers[:2], "there are 3 models and 2 optimizers"),
        (models, [optimizers[1], optimizers[0], optimizers[2]], "optimizer 0 has parameters that are not of model 0"),
        ([models[0], models[0]], [optimizers[0], optimizers[0]], r"0\.weight is one tensor in several chains"),
    ):
        with pytest.raises(ValueError, match=message), pytest.warns() if len(models_given) == 2 else nullcontext():
            Chains(models_given, optimizers_given, loss)
    wide = nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 3)).double()
    deep = nn.Sequential(*mlp(), nn.Tanh(), nn.Linear(3, 3)).double()
    for odd, message in ((wide, r"0\.weight of chain 1 has shape, dtype and device \(\(9, 6\)"), (deep, r"'4\.bias'")):
        pair = [mlp(), odd]
        with pytest.raises(ValueError, match=message):
            Chains(pair, [torch.optim.SGD(model.parameters(), lr=0.1) for model in pair], loss)
    plain, odd = normalised(), normalised()
    odd[1].register_buffer("another", torch.zeros(1))
    before = plain[0].weight.data_ptr()
    with pytest.raises(ValueError, match=r"have not the same buffers: \['1\.another'\]"):
        Chains([plain, odd], [torch.optim.SGD(model.parameters(), lr=0.1) for model in (plain, odd)], loss)
    assert plain[0].weight.data_ptr() == before  # nothing has moved
    with pytest.raises(TypeError, match="LBFGS evaluates the loss"):
        Chains(models, [torch.optim.LBFGS(model.parameters()) for model in models], loss)


# ---- what they draw ----

CURVATURE, LR, MOMENTUM, NUM_DATA, ELEMENTS, BURN_IN, DRAWS = 2.0, 0.2, 0.5, 50.0, 20, 50, 1500


def sampled(temperature=1.0, odd_centre=0.0):
    """θ of eight chains on the Gaussian of mean loss CURVATURE·θ²/2; the last may be given another centre."""
    generator = torch.Generator().manual_seed(3)
    models = [Quadratic(torch.randn(ELEMENTS, generator=generator, dtype=torch.float64)) for _ in range(8)]
    options = {"num_data": NUM_DATA, "temperature": temperature}
    optimizers = [Langevin(model.parameters(), LR, MOMENTUM, seed=s, **options) for s, model in enumerate(models)]
    chains = Chains(models, optimizers, lambda model, centre: CURVATURE * model(centre))
    centres = torch.tensor([0.0] * 7 + [odd_centre], dtype=torch.float64)
    draws = []
    for step in range(BURN_IN + DRAWS):
        chains.backward(centres, shared=False)
        chains.step()
        if step >= BURN_IN:
            draws.append(chains.stacked["theta"].numpy().copy())
    return np.stack(draws, axis=1)


def variance_score(draws):
    """Distance of ⟨θ²⟩ from the law of the step, T/(Nk)/(1 − x/(2(1 + μ))), in standard errors of at most 1 %."""
    law = 1.0 / (NUM_DATA * CURVATURE) / (1.0 - LR * CURVATURE / (2.0 * (1.0 + MOMENTUM)))
    found = diagnostics.estimate((draws**2).mean(axis=2))
    assert found.standard_error < 0.01 * law
    return abs(found.mean - law) / found.standard_error


def test_chains_of_a_gaussian_agree_with_its_law_and_with_each_other():
    draws = sampled()
    found = diagnostics.convergence({"theta": draws})["theta"]
    # R-hat − 1 is about (chains − 1)/(2·chains·draws in effect per chain): 3e-4 at 1,500 draws; 1.01 is the usual limit.
    assert found.r_hat.max() < 1.01
    assert found.ess_bulk.min() > 1000
    assert variance_score(draws) < 4.2


def test_twins_that_are_wrong_on_purpose():
    assert variance_score(sampled(temperature=1.1)) > 4.2
    # Three standard deviations off: B/W is 9·(1/8)(7/8)·8/7 = 1.1.
    found = diagnostics.convergence({"theta": sampled(odd_centre=0.3)})["theta"]
    assert found.r_hat.min() > 1.1


# ---- compiled ----


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")  # of torch's own, while it compiles
@pytest.mark.parametrize("shared", [True, False])
def test_a_compiled_pass_gives_the_same_numbers(shared, caplog):
    """Up to rounding, running statistics too; a smaller last batch is compiled for itself."""

    def run(compile):
        models, optimizers = built(normalised)
        chains = Chains(models, optimizers, loss, compile=compile)
        for step in range(6):
            inputs, labels = batch(normalised, step, *(() if shared else (NUM_CHAINS,)))
            if step % 2:
                inputs, labels = (each[:8] if shared else each[:, :8] for each in (inputs, labels))
            chains.backward(inputs, labels, shared=shared)
            chains.step()
        return chains

    compiled, plain = run(True), run(False)
    assert compiled.compiled
    assert not plain.compiled
    assert "failed" not in caplog.text
    for here, there in zip(compiled.models, plain.models, strict=True):
        assert_close(here, there, tolerance=1e-9)


def test_where_compiling_fails_chains_go_on_without(monkeypatch, caplog):
    def broken(*_, **__):
        raise RuntimeError("no compiler today\nand more")

    models, optimizers = built(mlp)
    others, twins = built(mlp)
    monkeypatch.setattr(torch, "compile", broken)
    monkeypatch.setattr("ctld.chains.compiled.shutil.which", lambda name: name)
    chains = Chains(models, optimizers, loss, compile=True)
    assert chains.compiled
    train(chains, mlp, range(3))
    assert not chains.compiled
    assert "torch.compile failed, and the chains go on without it: no compiler today" in caplog.text
    train(Chains(others, twins, loss), mlp, range(3))
    for model, other in zip(models, others, strict=True):
        assert_close(model, other, tolerance=0.0)


def test_what_is_not_compiled(monkeypatch):
    monkeypatch.setattr("ctld.chains.compiled.shutil.which", lambda name: name)
    assert can_compile(mlp())
    assert not can_compile(nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.1)))
    monkeypatch.setattr("ctld.chains.compiled.shutil.which", lambda name: None)
    assert not can_compile(mlp())
