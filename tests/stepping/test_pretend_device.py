"""What an Apple GPU would find: no float64, no kernels of ours, and a host that waits for every number that it reads."""

import math

import pytest
import torch
from torch import nn

import ctld.noise.device
from ctld import CTLD, OPTIMIZERS, Tempering, create
from ctld.noise import generator_on, numbers
from pretend_device import NAME, PretendDevice


@pytest.fixture
def device(monkeypatch):
    monkeypatch.setattr(ctld.noise.device, "generator", lambda device: torch.Generator())
    with PretendDevice() as device:
        yield device


def parameters(device):
    torch.manual_seed(0)
    return [nn.Parameter(device.tensor(torch.randn(shape))) for shape in ((6, 5), (6,), (40, 8))]


def backward(params):
    """Sets the gradients of Σθ²/4 and returns it, on the device."""
    for parameter in params:
        parameter.grad = parameter.detach() * 0.5
    return sum(parameter.detach().square().sum() for parameter in params) * 0.25


NEEDED = {"num_data": 50, "exploration_steps": 6, "num_steps": 12}
OURS = [name for name in OPTIMIZERS if OPTIMIZERS[name].optimizer.__module__ != "ctld.optimizers.from_torch"]


@pytest.mark.parametrize("name", OURS)
def test_every_method_does_without_float64(device, name):
    params = parameters(device)
    needed = {option: NEEDED[option] for option in OPTIMIZERS[name].needs}
    temperature = {"temperature": 0.5} if name == "ctld" else {}
    optimizer = create(name, params, lr=0.01, weight_decay=0.01, seed=1, **needed, **temperature)
    before = [parameter.inner.clone() for parameter in params]
    for _ in range(12):
        optimizer.step(loss=backward(params))
    for parameter, start in zip(params, before, strict=True):
        assert parameter.inner.isfinite().all()
        assert not torch.equal(parameter.inner, start)


def build(params, **options):
    chosen = {"num_data": 50, "exploration_steps": 40, "temperature": 0.5, "weight_decay": 0.01, "seed": 1} | options
    return CTLD(params, 0.05, **chosen)


@pytest.mark.parametrize("options", [{}, {"integrator": "baoab", "tempering": "constant"}, {"noise": "three_point"}])
def test_a_step_reads_seldom_writes_nothing_and_launches_little(device, options):
    """One read says whether the step may be taken, one is of its energies. No memory of the host is sent there."""
    if "tempering" in options:
        options = options | {"tempering": Tempering.constant()}
    params = parameters(device)
    optimizer = build(params, **options)
    for step in range(30):
        loss = backward(params)
        device.forget()
        optimizer.step(loss=loss)
        if optimizer.thermometers.phase(step, optimizer.seed) not in (0, 1, 2):
            assert device.reads <= 2
            assert device.writes == 0
            assert device.launches <= 30 + 16 * len(params)
    assert optimizer.last.hamiltonian is not None


def test_fine_tuning_reads_and_writes_nothing(device):
    params = parameters(device)
    optimizer = build(params, exploration_steps=0)
    for _ in range(3):
        loss = backward(params)
        device.forget()
        optimizer.step(loss=loss)
        assert (device.reads, device.writes) == (0, 0)


def test_a_nan_is_refused_and_changes_nothing(device):
    params = parameters(device)
    optimizer = build(params)
    optimizer.step(loss=backward(params))
    loss = backward(params)
    params[0].grad.inner[0, 0] = math.nan
    before = [parameter.inner.clone() for parameter in params]
    with pytest.raises(ValueError, match="parameter 0 has 1 of 30 elements that are NaN"):
        optimizer.step(loss=loss)
    assert all(torch.equal(parameter.inner, start) for parameter, start in zip(params, before, strict=True))


def test_a_device_that_counts_would_see_a_read_and_a_write(device):
    made = device.tensor(torch.ones(3))
    device.forget()
    float(made.sum())
    torch.tensor(1.0, device=NAME)
    assert (device.reads, device.writes) == (1, 1)
    with pytest.raises(TypeError, match="float64"):
        made.double()


def test_noise_there_is_a_function_of_its_names(device):
    assert generator_on(NAME) == "torch.Generator"
    for kind in ("gaussian", "three_point"):
        made = numbers(kind, 5, 6, 7, 40_000, device=NAME).inner
        for first, count in ((9, 400), (4000, 200), (4096, 1), (12_287, 9000)):
            part = numbers(kind, 5, 6, 7, count, offset=first, device=NAME).inner
            assert torch.equal(part, made[first : first + count])
        for seed, step, stream in ((4, 6, 7), (5, 7, 7), (5, 6, 8)):
            other = numbers(kind, seed, step, stream, 40_000, device=NAME).inner
            assert abs(float((made * other).mean())) < 4 / math.sqrt(40_000)
        # Standard errors of the mean, and of the variance by a fourth moment of 3.
        assert abs(float(made.mean())) < 4 / math.sqrt(40_000)
        assert abs(float(made.var()) - 1.0) < 4 * math.sqrt(2 / 40_000)
