"""What every sampler answers: is this a draw, at which temperature; BAOAB and UBU as methods of their own."""

import math

import pytest
import torch
from torch import nn

import ctld
from ctld import CTLD, OPTIMIZERS, NonFiniteError, Tempering, create

N, LR = 40.0, 0.05


def build(name, theta, **options):
    needed = {"num_data": N, "exploration_steps": 3, "num_steps": 8}
    chosen = {option: needed[option] for option in OPTIMIZERS[name].needs} | {"weight_decay": 0.1} | options
    return create(name, [theta], lr=LR, seed=2, **chosen)


def step(optimizer, theta):
    theta.grad = theta.detach().clone()
    optimizer.step(loss=float(theta.detach().square().sum()) / 2)


SAMPLERS = [name for name, method in OPTIMIZERS.items() if method.samples]


@pytest.mark.parametrize("name", [name for name in OPTIMIZERS if OPTIMIZERS[name].noisy or "easgd" in name])
def test_one_attribute_says_whether_the_model_holds_a_draw(name):
    theta = nn.Parameter(torch.ones(5))
    optimizer = build(name, theta)
    assert optimizer.is_draw is False
    step(optimizer, theta)
    at_once = name in SAMPLERS and name != "csghmc" and getattr(optimizer, "temperature_ratio", 1.0) == 1.0
    assert optimizer.is_draw is at_once


def test_ctld_draws_while_it_explores_at_g_1():
    theta = nn.Parameter(torch.ones(5))
    options = {"num_data": N, "temperature": 1.0, "exploration_steps": 4, "cycle_steps": 7, "seed": 1}
    optimizer = CTLD([theta], LR, tempering=Tempering.driven(6), **options)
    for _ in range(21):
        exploring = optimizer.exploring
        step(optimizer, theta)
        assert optimizer.is_draw == (exploring and optimizer.tempering.temperature_ratio == 1.0)
    assert not CTLD([theta], LR, **(options | {"temperature": 0.0})).is_draw


def test_csghmc_draws_at_the_ends_of_its_cycles():
    theta = nn.Parameter(torch.ones(5))
    optimizer = create("csghmc", [theta], lr=LR, num_data=N, num_steps=20, num_cycles=2, exploration_share=0.6, seed=1)
    for _ in range(20):
        sampling = optimizer.sampling
        step(optimizer, theta)
        assert optimizer.is_draw == sampling


def test_psgld_freezes_what_it_has_adapted():
    theta = nn.Parameter(torch.ones(5))
    optimizer = create("psgld", [theta], lr=LR, num_data=N, adapt_steps=3, seed=1)
    for count in range(1, 6):
        before = optimizer.state[theta]["square_average"].clone()
        step(optimizer, theta)
        assert torch.equal(optimizer.state[theta]["square_average"], before) == (count > 3)
        assert optimizer.is_draw == (count > 3)
    with pytest.raises(ValueError, match="adapt_steps"):
        create("psgld", [nn.Parameter(torch.ones(5))], lr=LR, num_data=N, adapt_steps=4).load_state_dict(
            optimizer.state_dict()
        )


@pytest.mark.parametrize("integrator", ["baoab", "ubu"])
def test_they_are_ctld_at_a_constant_temperature(integrator):
    """To the bit, whatever lr does."""
    paths = []
    for build_one in (
        lambda params: create(integrator, params, lr=LR, num_data=N, weight_decay=0.1, seed=5),
        lambda params: CTLD(
            params, LR, num_data=N, weight_decay=0.1, seed=5, exploration_steps=99, temperature=1.0,
            integrator=integrator, tempering=Tempering.constant(),
        ),
    ):  # fmt: skip
        theta = nn.Parameter(torch.linspace(-1.0, 1.0, 700))
        optimizer = build_one([theta])
        for count in range(12):
            optimizer.param_groups[0]["lr"] = LR * (0.0 if count == 4 else 1.0 / (1 + count))
            step(optimizer, theta)
        paths.append(theta.detach())
    assert torch.equal(*paths)


@pytest.mark.parametrize("name", ["baoab", "ubu"])
def test_they_refuse_gradients_that_are_not_finite(name):
    theta = nn.Parameter(torch.ones(5))
    optimizer = build(name, theta)
    step(optimizer, theta)
    before = [theta.detach().clone(), optimizer.state[theta]["momentum_buffer"].clone()]
    theta.grad[2] = math.nan
    with pytest.raises(NonFiniteError, match="parameter 0 has 1 of 5 elements that are NaN"):
        optimizer.step()
    assert torch.equal(theta, before[0])
    assert torch.equal(optimizer.state[theta]["momentum_buffer"], before[1])
    assert optimizer.steps == 1
    optimizer.check_gradients = False
    optimizer.step()
    assert theta.isnan().any()


def test_ubu_needs_momentum():
    with pytest.raises(ValueError, match="momentum must be above 0"):
        create("ubu", [nn.Parameter(torch.ones(2))], lr=LR, momentum=0.0, num_data=N)


@pytest.mark.parametrize("name", ["sghmc", "sgnht", "langevin", "baoab", "csghmc"])
def test_a_new_temperature_takes_the_momenta_along(name):
    theta = nn.Parameter(torch.ones(5))
    optimizer = build(name, theta)
    step(optimizer, theta)
    before = optimizer.state[theta]["momentum_buffer"].clone()
    optimizer.set_temperature(0.25)
    assert optimizer.temperature == 0.25
    assert torch.equal(optimizer.state[theta]["momentum_buffer"], 0.5 * before)
    optimizer.set_temperature(1.0, rescale=False)
    assert torch.equal(optimizer.state[theta]["momentum_buffer"], 0.5 * before)
    with pytest.raises(ValueError, match="temperature = -1"):
        optimizer.set_temperature(-1)


def test_ctld_takes_along_the_momenta_of_groups_that_explore():
    theta, phi = nn.Parameter(torch.ones(5)), nn.Parameter(torch.ones(5))
    groups = [{"params": [theta]}, {"params": [phi], "explore": False}]
    optimizer = CTLD(groups, LR, num_data=N, exploration_steps=9, temperature=4.0, seed=1)
    phi.grad = torch.ones(5)
    step(optimizer, theta)
    before = [optimizer.state[p]["momentum_buffer"].clone() for p in (theta, phi)]
    optimizer.set_temperature(1.0)
    assert torch.equal(optimizer.state[theta]["momentum_buffer"], 0.5 * before[0])
    assert torch.equal(optimizer.state[phi]["momentum_buffer"], before[1])
    options = {"num_data": N, "exploration_steps": 10**5, "temperature": 1.0, "seed": 1}
    calibrated = CTLD([theta], LR, tempering=Tempering.calibrated(), **options)
    with pytest.raises(ValueError, match=r"calibrated.*other temperature"):
        calibrated.set_temperature(1.0)


@pytest.mark.parametrize("name", [name for name, method in OPTIMIZERS.items() if not method.samples and method.noisy])
def test_what_minimises_has_no_temperature_to_set(name):
    optimizer = build(name, nn.Parameter(torch.ones(2)))
    if name == "simulated_annealing":
        optimizer.set_temperature(2.0)
        return
    assert optimizer.temperature == 0.0
    with pytest.raises(AttributeError, match="minimises"):
        optimizer.set_temperature(1.0)


@pytest.mark.parametrize("name", [name for name in SAMPLERS if name != "ctld"])
def test_the_temperature_is_1_unless_another_is_given(name):
    assert build(name, nn.Parameter(torch.ones(2))).temperature == 1.0


@pytest.mark.parametrize(("name", "cls"), [("tact_hmc", "TACTHMC"), ("resgld", "ReSGLD")])
def test_a_method_that_has_moved_says_where_it_is(name, cls):
    with pytest.raises(ValueError, match=f"research/methods/{name}.py"):
        create(name, [nn.Parameter(torch.ones(2))], lr=LR)
    for module in (ctld, ctld.optimizers):
        with pytest.raises(AttributeError, match=f"research/methods/{name}.py"):
            getattr(module, cls)
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        ctld.Nothing  # noqa: B018


def test_baoab_has_the_exact_variance_where_euler_has_not():
    """40,000 chains: √(2/40,000) = 0.7 % of the variance is one standard error."""
    found = {}
    for name in ("baoab", "langevin"):
        theta = nn.Parameter(torch.zeros(40_000, dtype=torch.float64))
        optimizer = create(name, [theta], lr=0.8, momentum=0.5, num_data=N, seed=4)
        for _ in range(80):
            theta.grad = theta.detach().clone()
            optimizer.step()
        found[name] = (float(theta.detach().square().mean()) * N - 1.0) / math.sqrt(2 / 40_000)
    assert abs(found["baoab"]) < 4
    assert found["langevin"] > 20  # 1/(1 − 0.8/3) = 1.36
