"""What torch asks of its own optimizers, asked of every method of ours; where ours differ by design, a test says how and why.

By design (DIFFERENCES): gradients of zero do not stop a sampler; complex and sparse parameters are refused; a state that lacks
an option is refused rather than guessed at; there is no second implementation to compare with.
"""

import copy
import io
from itertools import product

import pytest
import torch
from infos import INFOS, options
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.testing._internal.common_optimizers import OptimizerErrorEnum, get_error_inputs_for_all_optims

from ctld import OPTIMIZERS
from targets import equal

pytestmark = pytest.mark.filterwarnings("ignore:exploring at T = ")  # improper priors are not what is asked here
every_method = pytest.mark.parametrize("name", INFOS)
CASES = [(name, number) for name, info in INFOS.items() for number in range(len(info.optim_inputs_func("cpu")))]
every_case = pytest.mark.parametrize(
    ("name", "number"), CASES, ids=[f"{name}-{INFOS[name].optim_inputs_func('cpu')[n].desc}" for name, n in CASES]
)


def linear(contiguous=True, dtype=torch.float32):
    """A weight, a bias, and the closure that torch's suite minimises."""
    generator = torch.Generator().manual_seed(0)
    weight, bias = (torch.randn(*shape, 2, generator=generator, dtype=dtype)[..., 0] for shape in ((10, 5), (10,)))
    if contiguous:
        weight, bias = weight.contiguous(), bias.contiguous()
    weight, bias = nn.Parameter(weight), nn.Parameter(bias)
    given = torch.randn(5, generator=generator, dtype=dtype)

    def closure():
        weight.grad = bias.grad = None
        loss = (weight.mv(given) + bias).square().sum()
        loss.backward()
        return loss

    return weight, bias, closure


def case(name, number):
    return INFOS[name].optim_inputs_func("cpu")[number].kwargs


def run(optimizer, closure, steps=20, schedulers=()):
    for _ in range(steps):
        loss = optimizer.step(closure).item()
        for scheduler in schedulers:
            scheduler.step(*((loss,) if isinstance(scheduler, ReduceLROnPlateau) else ()))


@every_case
@pytest.mark.parametrize(("contiguous", "scheduled"), [(True, True), (False, False)])
def test_goes_in_the_right_direction(name, number, contiguous, scheduled):
    info = INFOS[name]
    for row in info.scheduler_inputs if scheduled else [()]:
        weight, bias, closure = linear(contiguous)
        chosen = case(name, number)
        optimizer = info.optim_cls([weight, bias], **chosen)
        before = closure().item()
        run(optimizer, closure, schedulers=[build(optimizer) for build in row])
        after = closure().item()
        assert after > before if chosen.get("maximize") else after < before


@every_method
def test_groups_with_schedulers(name):
    info = INFOS[name]
    for row in info.scheduler_inputs:
        weight, bias, closure = linear()
        groups = [{"params": [weight]}, {"params": [bias], "lr": 0.5 * options(name)["lr"]}]
        optimizer = info.optim_cls(groups, **options(name))
        before = closure().item()
        run(optimizer, closure, schedulers=[build(optimizer) for build in row])
        assert closure().item() < before


@every_method
@pytest.mark.parametrize("dimensions", [0, 1, 2])
def test_a_learning_rate_that_is_a_tensor(name, dimensions):
    """The number's path, to the bit; also when a scheduler writes to it in place."""
    ends = []
    for tensor in (False, True):
        weight, bias, closure = linear()
        given = options(name)
        if tensor:
            given["lr"] = torch.full((1,) * dimensions, given["lr"], dtype=torch.float64)
        optimizer = INFOS[name].optim_cls([weight, bias], **given)
        run(optimizer, closure, 15, [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)])
        ends.append(torch.cat([weight.detach().flatten(), bias.detach()]))
    torch.testing.assert_close(*ends, rtol=1e-6, atol=1e-7)


@every_method
def test_decay_of_one_group(name):
    """A weight that the loss does not know shrinks where it has weight decay, and only there."""
    sizes = []
    for decay in (0.0, 10.0):
        free = nn.Parameter(torch.ones(4))
        optimizer = INFOS[name].optim_cls([{"params": [free], "weight_decay": decay}], **options(name))
        for _ in range(20):
            free.grad = torch.zeros_like(free)
            optimizer.step(lambda: torch.tensor(1.0))
        sizes.append(free.detach().norm().item())
    assert sizes[1] < sizes[0]


@every_method
def test_the_errors_of_all_optimizers(name):
    """Those that torch's wheel lists: parameters of the wrong kind, duplicates, values out of range."""
    for item in get_error_inputs_for_all_optims("cpu", torch.float32):
        given = item.optimizer_error_input
        assert item.error_on == OptimizerErrorEnum.CONSTRUCTION_ERROR
        params, words = given.params, None
        if params is None:  # torch's item on an lr of several elements, in words of our own
            params, words = [nn.Parameter(torch.ones(3))], rf"{item.error_regex}|lr = .* is not a number"
        # Of a parameter that is given twice torch only warns, and warnings are errors here.
        with pytest.raises((TypeError, ValueError, UserWarning), match=words):
            INFOS[name].optim_cls(params, **(options(name) | given.kwargs))


@every_case
def test_a_state_goes_on_alike(name, number):
    """Through a file, into an optimizer of equal parameters; and the state that was saved is left as it was."""
    weight, bias, closure = linear()
    optimizer = INFOS[name].optim_cls([weight, bias], **case(name, number))
    run(optimizer, closure, 5)
    buffer = io.BytesIO()
    torch.save(optimizer.state_dict(), buffer)
    buffer.seek(0)
    saved = torch.load(buffer, weights_only=True)
    kept = copy.deepcopy(saved)
    twin_weight, twin_bias, twin_closure = linear()
    with torch.no_grad():
        twin_weight.copy_(weight)
        twin_bias.copy_(bias)
    twin = INFOS[name].optim_cls([twin_weight, twin_bias], **case(name, number))
    twin.load_state_dict(saved)
    run(optimizer, closure, 10)
    run(twin, twin_closure, 10)
    assert torch.equal(weight, twin_weight)
    assert torch.equal(bias, twin_bias)
    assert equal(saved, kept)


@every_method
def test_state_dict_hooks_and_order(name):
    weight, bias, closure = linear()
    optimizer = INFOS[name].optim_cls([weight, bias], **options(name))
    heard = []
    optimizer.register_state_dict_pre_hook(lambda _: heard.append("before"))
    optimizer.register_state_dict_post_hook(lambda _, state: heard.append("after"))
    optimizer.register_load_state_dict_pre_hook(lambda _, state: heard.append("loading"))
    optimizer.register_load_state_dict_post_hook(lambda _: heard.append("loaded"))
    run(optimizer, closure, 1)
    optimizer.load_state_dict(optimizer.state_dict())
    assert heard == ["before", "after", "loading", "loaded"]


@every_method
def test_step_hooks_and_their_order(name):
    weight, bias, closure = linear()
    optimizer = INFOS[name].optim_cls([weight, bias], **options(name))
    heard = []
    optimizer.register_step_pre_hook(lambda *_: heard.append("own before"))
    optimizer.register_step_post_hook(lambda *_: heard.append("own after"))
    handles = [
        register_optimizer_step_pre_hook(lambda *_: heard.append("global before")),
        register_optimizer_step_post_hook(lambda *_: heard.append("global after")),
    ]
    try:
        run(optimizer, closure, 1)
    finally:
        for handle in handles:
            handle.remove()
    assert heard == ["global before", "own before", "own after", "global after"]
    run(optimizer, closure, 1)
    assert heard[4:] == ["own before", "own after"]


@every_method
def test_gradients_are_never_written_to(name):
    weight, bias, closure = linear()
    optimizer = INFOS[name].optim_cls([weight, bias], **(options(name) | {"weight_decay": 0.1}))
    for _ in range(5):
        loss = closure()
        kept = [weight.grad.clone(), bias.grad.clone()]
        versions = [weight.grad._version, bias.grad._version]
        optimizer.step(loss=loss)
        assert torch.equal(weight.grad, kept[0])
        assert torch.equal(bias.grad, kept[1])
        assert [weight.grad._version, bias.grad._version] == versions


@every_method
def test_parameters_without_a_gradient_rest(name):
    weight, bias, closure = linear()
    idle = nn.Parameter(torch.ones(3))
    optimizer = INFOS[name].optim_cls([weight, bias, idle], **options(name))
    run(optimizer, closure, 12)
    assert torch.equal(idle, torch.ones(3))


@every_method
def test_empty_parameters(name):
    empty, weight = nn.Parameter(torch.empty(0, 3)), nn.Parameter(torch.ones(2))
    optimizer = INFOS[name].optim_cls([empty, weight], **options(name))
    for _ in range(3):
        (empty.sum() + weight.square().sum()).backward()
        optimizer.step(loss=1.0)
        optimizer.zero_grad()


@every_method
def test_mixed_dtypes(name):
    parameters = [nn.Parameter(torch.ones(3, dtype=dtype)) for dtype in (torch.float32, torch.float64)]
    optimizer = INFOS[name].optim_cls(parameters, **options(name))
    for _ in range(12):
        optimizer.zero_grad()
        loss = sum(parameter.square().sum().double() for parameter in parameters)
        loss.backward()
        optimizer.step(loss=loss)
    assert all(bool((parameter < 1.0).any()) for parameter in parameters)


@every_method
def test_copies_have_every_public_attribute(name):
    weight, bias, closure = linear()
    optimizer = INFOS[name].optim_cls([weight, bias], **options(name))
    run(optimizer, closure, 3)
    twin = copy.deepcopy(optimizer)
    public = [{key for key in vars(each) if not key.startswith("_")} for each in (optimizer, twin)]
    assert public[0] == public[1]


@every_method
def test_named_parameters(name):
    weight, bias, closure = linear()
    optimizer = INFOS[name].optim_cls([("weight", weight), ("bias", bias)], **options(name))
    run(optimizer, closure, 2)
    state = optimizer.state_dict()
    assert state["param_groups"][0]["param_names"] == ["weight", "bias"]
    optimizer.load_state_dict(state)


# ---- where ours differ, by design ----

DIFFERENCES = {
    "zero gradients": "a sampler's noise does not stop where the gradient is zero: the posterior is flat there, not a point",
    "complex": "noise on a complex number is a choice of metric; train torch.view_as_real of it",
    "sparse": "noise and momentum are dense: every element moves in every step",
    "older states": "an option that is missing would be guessed at, and the run would go on as another",
    "implementations": "there is one, which chooses by device: foreach, fused, capturable and differentiable name none of ours",
}


@every_method
def test_difference_zero_gradients(name):
    parameter = nn.Parameter(torch.ones(5))
    optimizer = INFOS[name].optim_cls([parameter], **options(name))
    for _ in range(3):
        parameter.grad = torch.zeros_like(parameter)
        optimizer.step(lambda: torch.tensor(1.0))
    assert torch.equal(parameter, torch.ones(5)) == (not OPTIMIZERS[name].noisy)


@every_method
@pytest.mark.parametrize("kind", ["complex", "sparse"])
def test_difference_kinds_of_parameters(name, kind):
    if kind == "complex":
        with pytest.raises((TypeError, ValueError), match="complex"):
            INFOS[name].optim_cls([nn.Parameter(torch.ones(3, dtype=torch.complex64))], **options(name))
        return
    parameter = nn.Parameter(torch.ones(3))
    optimizer = INFOS[name].optim_cls([parameter], **options(name))
    parameter.grad = torch.ones(3).to_sparse()
    with pytest.raises((TypeError, ValueError, RuntimeError), match="sparse"):
        optimizer.step(loss=1.0)


@every_method
def test_difference_older_states(name):
    weight, bias, _ = linear()
    optimizer = INFOS[name].optim_cls([weight, bias], **options(name))
    state = optimizer.state_dict()
    for group in state["param_groups"]:
        del group["maximize"]
    with pytest.raises(ValueError, match="lacks"):
        optimizer.load_state_dict(state)


def test_every_difference_has_a_reason_and_every_method_is_here():
    assert all(len(reason) > 30 for reason in DIFFERENCES.values())
    assert len(INFOS) == 14
    for info, attribute in product(INFOS.values(), ("supported_impls", "supports_fused_on")):
        assert getattr(info, attribute) == ()
