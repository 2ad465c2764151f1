"""A step that is refused once is a bad batch; twenty in a row mean that the parameters are lost."""

import pytest
import torch
from torch import nn

from ctld import BAOAB, CTLD, SGLD, NonFiniteError


def built(kind):
    theta = nn.Parameter(torch.zeros(3))
    if kind is CTLD:
        return theta, CTLD([theta], 0.1, num_data=10, exploration_steps=100, temperature=1.0, seed=0)
    return theta, kind([theta], 0.1, num_data=10, seed=0)


@pytest.mark.parametrize("kind", [CTLD, BAOAB])
def test_twenty_refusals_in_a_row(kind):
    theta, optimizer = built(kind)

    def step(gradient):
        theta.grad = torch.full((3,), gradient)
        optimizer.step(loss=1.0)

    for _ in range(2):  # a step that is taken begins the count anew
        for _ in range(19):
            with pytest.raises(NonFiniteError, match="Skip the batch, or lower lr"):
                step(float("nan"))
        step(0.1)
    for _ in range(19):
        with pytest.raises(NonFiniteError, match="Skip the batch"):
            step(float("nan"))
    for count in (20, 21):
        with pytest.raises(NonFiniteError, match=rf"{count} steps in a row were refused, .* The parameters are lost"):
            step(float("nan"))
    assert torch.isfinite(theta).all()


def test_a_method_that_does_not_look_is_as_it_was():
    theta, optimizer = built(SGLD)
    theta.grad = torch.ones(3)
    optimizer.step()
    assert optimizer.steps == 1
