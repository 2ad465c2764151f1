"""The learning rate from the curvature: known quadratics, the bound by batches, what is said of funnels."""

import math

import pytest
import torch
from torch import nn
from torch.autograd.function import once_differentiable

from ctld.sampling.learning_rate import learning_rate, remark_of_funnel, top_curvature
from sampling_problems import Recurrent, Regression, half_square

PROBLEM = Regression()
RULE = {"momentum": 0.9, "temperature": 1.0, "num_data": 40.0, "batches_per_epoch": 1, "replaced": False}


def loss(model, batch):
    return half_square(model(batch[0]), batch[1])


def test_the_top_eigenvalue_of_a_regression():
    batch = PROBLEM.inputs, PROBLEM.targets[:, None]
    found = top_curvature(PROBLEM.model(), loss, [batch], prior=PROBLEM.weight_decay)
    assert found == pytest.approx(PROBLEM.top, rel=1e-6)
    halves = [(part[0], part[1]) for part in zip(batch[0].split(20), batch[1].split(20), strict=True)]
    assert top_curvature(PROBLEM.model(), loss, halves, prior=0.05) == pytest.approx(PROBLEM.top, rel=1e-6)


def test_a_loss_that_can_be_differentiated_once_only():
    class Once(torch.autograd.Function):
        @staticmethod
        def forward(ctx, inputs):
            ctx.save_for_backward(inputs)
            return 1.5 * inputs.square()

        @staticmethod
        @once_differentiable
        def backward(ctx, gradient):
            return gradient * 3.0 * ctx.saved_tensors[0]

    model = nn.Linear(1, 1, bias=False).double()
    found = top_curvature(
        model, lambda model, batch: Once.apply(model(batch)).mean(), [torch.ones(1, 1).double()], prior=0.0
    )
    assert found == pytest.approx(3.0, rel=1e-6)


def test_recurrent_and_normalised_models_are_left_as_they_are():
    inputs = torch.randn(6, 4, 2)
    for model, data in ((Recurrent(), inputs), (nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 1)), inputs[:, 0])):
        before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        assert math.isfinite(top_curvature(model, loss, [(data, torch.ones(6, 1))], prior=0.1))
        assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


def test_the_rule():
    """lr·k by the sampler; x = lr·k·M/(1 − μ) at most .85 in epochs and .2 with replacement, at T = 1."""
    assert learning_rate("baoab", 2.0, **RULE)[0] == pytest.approx(0.2)
    assert learning_rate("sgld", 2.0, **RULE | {"momentum": 0.0})[0] == pytest.approx(0.05)
    epochs = learning_rate("baoab", 2.0, **RULE | {"batches_per_epoch": 10})
    assert epochs[0] * 2.0 * 10 / 0.1 == pytest.approx(0.85)
    assert "heat of 10 batches" in epochs[1]
    replaced = learning_rate("baoab", 2.0, **RULE | {"batches_per_epoch": 10, "replaced": True})
    assert replaced[0] * 2.0 * 10 / 0.1 == pytest.approx(0.2)
    # Heat is x²/(6T) in epochs, x/(2T) with replacement: the same share of a lower temperature.
    cold = learning_rate("baoab", 2.0, **RULE | {"batches_per_epoch": 10, "temperature": 0.04})
    assert cold[0] == pytest.approx(0.2 * epochs[0])
    cold = learning_rate("baoab", 2.0, **RULE | {"batches_per_epoch": 10, "replaced": True, "temperature": 0.04})
    assert cold[0] == pytest.approx(0.04 * replaced[0])
    assert learning_rate("psgld", 2.0, **RULE)[0] == pytest.approx(0.05 * math.sqrt(2.0 / 40.0))


@pytest.mark.parametrize("top", [0.0, -1.0, math.nan])
def test_without_curvature_an_lr_is_asked_for(top):
    with pytest.raises(ValueError, match=r'lr="auto" needs a loss with curvature, got a top eigenvalue of .* Give lr'):
        learning_rate("baoab", top, **RULE)


def test_a_funnel_is_named():
    assert remark_of_funnel([1.0, 9.0]) is None
    assert "between 1 and 11, as in a funnel" in remark_of_funnel([1.0, 11.0])
