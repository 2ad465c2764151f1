"""`ctld.create`: one line for every method, and a sentence for every option that a method does not have."""

import numpy as np
import pytest
import torch
from torch import nn

from ctld import OPTIMIZERS, create
from ctld.checks import real, refuse_options
from ctld.optimizers import Sampler
from ctld.optimizers.table import SHARED

NEEDED = {"num_data": 9, "exploration_steps": 2, "num_steps": 9}
every_row = pytest.mark.parametrize("name", OPTIMIZERS)


def build(name, **options):
    needed = {option: NEEDED[option] for option in OPTIMIZERS[name].needs}
    return create(name, [nn.Parameter(torch.ones(3))], **({"lr": 0.1, "weight_decay": 1e-2} | needed | options))


@every_row
def test_what_is_shared_goes_to_every_method(name):
    assert {"num_data", "seed"} == SHARED
    optimizer = build(name, num_data=60_000, seed=5)
    assert getattr(optimizer, "seed", 5) in (5, 0)
    if "num_data" in OPTIMIZERS[name].needs:
        assert optimizer.num_data == 60_000


@every_row
@pytest.mark.parametrize("option", ["foreach", "fused", "capturable", "differentiable"])
def test_implementations_of_torch_may_be_off(name, option):
    build(name, **{option: None if option in ("foreach", "fused") else False})


@pytest.mark.parametrize("name", [name for name, method in OPTIMIZERS.items() if method.noisy])
@pytest.mark.parametrize("option", ["foreach", "fused", "capturable", "differentiable"])
def test_implementations_of_torch_that_are_on_are_refused(name, option):
    with pytest.raises(ValueError, match=f"{option} = True is an implementation of torch's that {name} does not have"):
        build(name, **{option: True})


@pytest.mark.parametrize(
    ("option", "value", "sentence"),
    [
        ("nesterov", True, "ctld has no option nesterov; it has check_gradients"),
        ("momentun", 0.9, "did you mean momentum?"),
        ("colour", "red", "ctld has no option colour; it has check_gradients"),
    ],
)
def test_an_option_of_torchs_gets_a_sentence(option, value, sentence):
    with pytest.raises(TypeError, match=sentence):
        build("ctld", **{option: value})


def test_without_names_to_guess_from():
    refuse_options("SGLD", {"foreach": None, "fused": False})
    with pytest.raises(TypeError, match="SGLD has no option x; leave it out"):
        refuse_options("SGLD", {"x": 1})


@pytest.mark.parametrize("name", [name for name, method in OPTIMIZERS.items() if issubclass(method.optimizer, Sampler)])
def test_constructors_say_the_same(name):
    """Without `create`: a script that was written for torch's optimizers gets a sentence, or what is off is accepted."""
    cls, needed = OPTIMIZERS[name].optimizer, {option: NEEDED[option] for option in OPTIMIZERS[name].needs}

    def construct(**options):
        return cls([nn.Parameter(torch.ones(3))], lr=0.1, weight_decay=1e-2, **needed, **options)

    construct(foreach=None, fused=False, capturable=False, differentiable=False)
    with pytest.raises(ValueError, match=f"fused = True is an implementation of torch's that {cls.__name__} does not"):
        construct(fused=True)
    with pytest.raises(TypeError, match=f"{cls.__name__} has no option betas"):
        construct(betas=(0.9, 0.999))
    with pytest.raises(TypeError, match="did you mean process_group"):
        construct(proces_group=None)


@every_row
@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_a_learning_rate_that_is_a_tensor(name, shape):
    if OPTIMIZERS[name].optimizer.__module__ == "ctld.optimizers.from_torch" and shape:
        pytest.skip("torch's own affair")
    optimizer = build(name, lr=torch.full(shape, 0.1, dtype=torch.float64))
    other = build(name, lr=0.1, **({"seed": optimizer.seed} if OPTIMIZERS[name].noisy else {}))
    for each in (optimizer, other):
        parameter = each.param_groups[0]["params"][0]
        parameter.square().sum().backward()
        each.step(loss=3.0)
    ends = [each.param_groups[0]["params"][0] for each in (optimizer, other)]
    assert torch.equal(*ends)


@pytest.mark.parametrize("value", [torch.ones(2), np.ones(2), torch.ones(0), [0.1]])
def test_more_than_one_number_is_refused(value):
    with pytest.raises(TypeError, match=r"lr = .* is not a number"):
        real("lr", value)
