"""The learning coefficient where it is known: regular models, a normal crossing, deep linear networks."""

import math
from itertools import combinations, pairwise

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from ctld.diagnostics import learning_coefficient
from sampling_problems import Recurrent


def half_square(outputs, targets):
    return 0.5 * (outputs - targets).square().sum(dim=-1).mean()


# ---- a regular model with noisy targets: d/2, up to the spring ----


def regression(num_data=1000, dimension=6):
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(num_data, dimension, generator=generator, dtype=torch.float64)
    targets = inputs.sum(dim=1, keepdim=True) + torch.randn(num_data, 1, generator=generator, dtype=torch.float64)
    model = nn.Linear(dimension, 1, bias=False).double()
    with torch.no_grad():
        model.weight.copy_(torch.linalg.lstsq(inputs, targets).solution.T)
    curvature = torch.linalg.eigvalsh(inputs.T @ inputs / num_data) * num_data / math.log(num_data)
    law = float((0.5 * curvature / (curvature + 1.0)).sum())
    return model, inputs, targets, law


def batches(inputs, targets, size):
    return DataLoader(TensorDataset(inputs, targets), batch_size=size, shuffle=True)


@pytest.fixture(scope="module")
def of_regression():
    model, inputs, targets, law = regression()
    return learning_coefficient(model, half_square, batches(inputs, targets, 100), num_steps=2000, seed=1), law


def test_half_the_dimension_with_noisy_targets(of_regression):
    found, law = of_regression
    assert law == pytest.approx(3.0, rel=0.02)
    assert found.error < 0.05 * law
    assert abs(found.value - law) < 4.0 * found.error
    assert found.remarks == ()
    heat = found.kinetic_temperature
    assert abs(heat.mean - 1.0) < 0.05 + 4.0 * heat.standard_error


@pytest.mark.filterwarnings("ignore:the chains have a temperature", "ignore::ctld.TemperatureWarning")
def test_a_twin_without_control_variate_is_far_too_high(of_regression):
    model, inputs, targets, law = regression()
    loader, lr = batches(inputs, targets, 100), of_regression[0].lr
    twin = learning_coefficient(model, half_square, loader, num_steps=2500, seed=1, lr=lr, control_variate=False)
    assert twin.value - law > 4.0 * twin.error
    assert any("Give control_variate=True" in remark for remark in twin.remarks)


def test_the_answer_repeats_and_leaves_the_model_alone(of_regression):
    model, inputs, targets, _ = regression()
    state = torch.get_rng_state()
    before = model.weight.detach().clone()
    loader = batches(inputs, targets, 100)
    first, second = (learning_coefficient(model, half_square, loader, num_steps=200, seed=3) for _ in range(2))
    assert (first.value, first.error) == (second.value, second.error)
    assert torch.equal(model.weight, before)
    assert torch.equal(torch.get_rng_state(), state)
    assert float(first) == first.value
    assert "LearningCoefficient" in repr(first)


def test_arviz_has_the_draws(of_regression):
    found = of_regression[0]
    made = found.to_arviz()
    assert float(made.posterior["llc"].mean()) == pytest.approx(found.value, rel=0.01)
    assert found.convergence.ess_bulk > 100


# ---- a normal crossing, by quadrature ----


class Crossing(nn.Module):
    """w₁ w₂ x, of which L = w₁² w₂²/2 with targets of zero."""

    def __init__(self):
        super().__init__()
        self.first, self.second = (nn.Parameter(torch.zeros(1, dtype=torch.float64)) for _ in range(2))

    def forward(self, inputs):
        return self.first * self.second * inputs


@pytest.mark.slow
def test_a_normal_crossing():
    """The asymptote, ½ with log n in its error, is far away at any n: the law is that of this n and this spring."""
    num_data = 20_000
    nbeta = num_data / math.log(num_data)
    grid = np.linspace(-6.0, 6.0, 2401)
    loss = 0.5 * grid[:, None] ** 2 * grid[None, :] ** 2
    weight = np.exp(-nbeta * loss - 0.5 * (grid[:, None] ** 2 + grid[None, :] ** 2))
    law = nbeta * (loss * weight).sum() / weight.sum()
    loader = [(torch.ones(1, 1, dtype=torch.float64), torch.zeros(1, 1, dtype=torch.float64))]
    found = learning_coefficient(Crossing(), half_square, loader, num_data=num_data, num_steps=5000, seed=1)
    assert found.error < 0.1 * law
    assert abs(found.value - law) < 4.0 * found.error
    assert abs(found.value - 0.5) > 4.0 * found.error  # the twin


# ---- deep linear networks ----


def aoyagi(widths, rank):
    """λ of a linear network at a matrix of this rank (Aoyagi 2024)."""
    excess = sorted(width - rank for width in widths)
    for size in range(2, len(excess) + 1):
        chosen, rest, layers = excess[:size], excess[size:], size - 1
        if sum(chosen) >= layers * max(chosen) and (not rest or sum(chosen) < layers * min(rest)):
            break
    total = sum(chosen)
    over = total - (math.ceil(total / layers) - 1) * layers
    regular = 0.5 * (rank * (widths[0] + widths[-1]) - rank**2)
    pairs = 0.5 * sum(a * b for a, b in combinations(chosen, 2))
    return regular + over * (layers - over) / (4 * layers) - (layers - 1) / (4 * layers) * total**2 + pairs


def aoyagi_watanabe(inputs, hidden, outputs, rank):
    """The four cases of two layers (Aoyagi and Watanabe 2005)."""
    if inputs + hidden < outputs + rank:
        return (hidden * inputs - hidden * rank + outputs * rank) / 2
    if outputs + hidden < inputs + rank:
        return (hidden * outputs - hidden * rank + inputs * rank) / 2
    if inputs + outputs < hidden + rank:
        return inputs * outputs / 2
    odd = (inputs + hidden + outputs + rank) % 2
    both = hidden + rank
    return (-(both**2) - inputs**2 - outputs**2 + 2 * both * (inputs + outputs) + 2 * inputs * outputs + odd) / 8


def test_the_formula_agrees_with_the_four_cases_of_two_layers():
    shapes = [
        (a, h, b, r) for a in range(1, 9) for h in range(1, 9) for b in range(1, 9) for r in range(min(a, h, b) + 1)
    ]
    assert len(shapes) > 1800
    for a, h, b, r in shapes:
        assert aoyagi((a, h, b), r) == pytest.approx(aoyagi_watanabe(a, h, b, r)), (a, h, b, r)


def linear_network(widths, rank, num_data=20_000):
    """A network whose product is an isometry of this rank, and data that it fits without noise."""
    generator = torch.Generator().manual_seed(0)
    bases = [torch.linalg.qr(torch.randn(width, width, generator=generator))[0][:, :rank] for width in widths]
    model = nn.Sequential(*[nn.Linear(a, b, bias=False) for a, b in pairwise(widths)])
    with torch.no_grad():
        for layer, before, after in zip(model, bases[:-1], bases[1:], strict=True):
            layer.weight.copy_(after @ before.T)
        inputs = torch.randn(num_data, widths[0], generator=generator)
        return model, batches(inputs, model(inputs), 500)


@pytest.mark.slow
@pytest.mark.parametrize(("widths", "rank"), [((5, 4, 5), 2), ((6, 3, 6), 2), ((3, 4, 3), 0)])
def test_deep_linear_networks_within_five_per_cent(widths, rank):
    found = learning_coefficient(*_arguments(widths, rank), seed=1)
    assert found.r_hat < 1.05
    assert found.error < 0.025 * aoyagi(widths, rank)
    assert found.value == pytest.approx(aoyagi(widths, rank), rel=0.05)


@pytest.mark.slow
def test_a_twin_with_a_stiff_spring_is_not():
    found = learning_coefficient(*_arguments((3, 4, 3), 0), seed=1, num_steps=2000, localization=30.0)
    assert found.value != pytest.approx(aoyagi((3, 4, 3), 0), rel=0.05)


def _arguments(widths, rank):
    model, loader = linear_network(widths, rank)
    return model, half_square, loader


# ---- what else it can do, and what it says ----


@pytest.mark.slow
def test_the_refined_coefficient_of_one_layer():
    """With the first layer at rest the second is a linear regression: half its parameters that see something."""
    generator = torch.Generator().manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3, bias=False), nn.Linear(3, 2, bias=False)).double()
    inputs = torch.randn(2000, 4, generator=generator, dtype=torch.float64)
    with torch.no_grad():
        targets = model(inputs)
        features = model[0](inputs)
    nbeta = 2000 / math.log(2000)
    curvature = torch.linalg.eigvalsh(features.T @ features / 2000) * nbeta
    law = 2 * float((0.5 * curvature / (curvature + 1.0)).sum())
    loader = [(inputs, targets)]
    found = learning_coefficient(
        model, half_square, loader, num_data=2000, parameters=["1.weight"], seed=1, num_steps=2500
    )
    assert abs(found.value - law) < 4.0 * found.error
    assert found.error < 0.1 * law
    with pytest.raises(ValueError, match=r"parameters must be names of 0.weight, 1.weight, got \['2.weight'\]"):
        learning_coefficient(model, half_square, loader, num_data=2000, parameters=["2.weight"])


@pytest.mark.filterwarnings("ignore:R-hat of the loss")
def test_an_lstm():
    inputs = torch.randn(20, 4, 2)
    model = Recurrent()
    with torch.no_grad():
        targets = model(inputs)
    found = learning_coefficient(model, half_square, [(inputs, targets)], num_data=20, num_steps=100, seed=0)
    assert math.isfinite(found.value)


@pytest.mark.filterwarnings("ignore:R-hat of the loss")
def test_parameters_that_are_no_minimum_are_called_so():
    model, inputs, targets, _ = regression()
    with torch.no_grad():
        model.weight.add_(0.2)
    with pytest.warns(UserWarning, match="the parameters are no minimum"):
        learning_coefficient(model, half_square, batches(inputs, targets, 250), num_steps=400, seed=1)


def test_chains_that_have_not_mixed_are_called_so():
    model, inputs, targets, _ = regression()
    with pytest.warns(UserWarning, match=r"R-hat of the loss is .* Raise num_steps, or localization"):
        learning_coefficient(model, half_square, batches(inputs, targets, 250), num_steps=200, lr=1e-4, seed=1)


def test_an_lr_that_is_too_large_is_refused():
    model, inputs, targets, _ = regression()
    with pytest.raises(
        FloatingPointError, match=r"20 steps in a row were refused with lr = 100: .* Lower lr, or raise"
    ):
        learning_coefficient(model, half_square, batches(inputs, targets, 250), num_steps=400, lr=100.0, seed=1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_steps": 10}, "num_steps = 10 is out of range"),
        ({"localization": 0.0}, "localization = 0.0 is out of range"),
        ({"num_data": 1.0}, "num_data must be above 1, got 1.0"),
        ({"num_chains": 0}, "num_chains = 0 is out of range"),
    ],
)
def test_refusals(options, message):
    model, inputs, targets, _ = regression()
    with pytest.raises(ValueError, match=message):
        learning_coefficient(model, half_square, batches(inputs, targets, 100), **options)
