"""CTLD by the kernel for GPUs, in Triton's interpreter: the path that a GPU takes, on tensors that lie on a CPU."""

import math
import os

import pytest
import torch
from torch import Tensor

from targets import Classification

os.environ.setdefault("TRITON_INTERPRET", "1")  # before Triton is imported
pytest.importorskip("triton")

from ctld import CTLD, NonFiniteError, noise
from ctld.kernels import cuda, native
from ctld.noise.philox import WORD, philox


def philox_words(seed, step, stream, block):
    counter = torch.stack((block & WORD, block >> 32, torch.full_like(block, step), torch.full_like(block, stream)))
    return philox(counter, (seed & WORD, seed >> 32)).T.reshape(-1)


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    """Tensors count as those of a GPU, and torch's own path has the noise that it would have there."""
    monkeypatch.setattr(native, "load", lambda: None)
    monkeypatch.setattr(native, "stepper", lambda: None)
    monkeypatch.setattr(noise, "words", philox_words)

    def choose(kernel):
        monkeypatch.setattr("ctld.movers._on_gpu", lambda parameter: kernel)

    return choose


def optimizer(problem, **options):
    settings = {
        "num_data": problem.num_data,
        "exploration_steps": 6,
        "temperature": 0.1,
        "weight_decay": 0.01,
        "seed": 3,
    }
    return CTLD(problem.model.parameters(), 0.05, 0.8, **(settings | options))


def train(problem, chosen, steps):
    for step in steps:
        chosen.zero_grad()
        chosen.step(loss=problem.backward(step))


@pytest.mark.parametrize("options", [{}, {"noise": "three_point"}, {"noise_compensation": True}], ids=str)
def test_path_is_that_of_torch(as_on_a_gpu, options):
    ends = []
    for kernel in (False, True):
        as_on_a_gpu(kernel)
        problem = Classification()
        chosen = optimizer(problem, **options)
        train(problem, chosen, range(9))
        ends.append((problem.flat(), chosen.tempering.alpha))
    (by_torch, alpha), (by_kernel, other_alpha) = ends
    torch.testing.assert_close(by_kernel, by_torch, rtol=1e-5, atol=1e-6)
    assert other_alpha == pytest.approx(alpha, rel=1e-5)


def test_one_read_a_step(as_on_a_gpu, monkeypatch):
    as_on_a_gpu(True)
    problem = Classification()
    chosen = optimizer(problem)
    train(problem, chosen, range(2))
    chosen._observed = [problem.backward(2).detach().double()]  # as it would stay on a GPU
    reads = []
    for name in ("tolist", "item", "__bool__", "__float__"):
        original = getattr(Tensor, name)
        monkeypatch.setattr(Tensor, name, lambda self, f=original, n=name: (reads.append(n), f(self))[1])
    chosen.step()
    assert reads == ["tolist"]


@pytest.mark.parametrize("where", ["loss", "gradient"])
def test_refused_whole(as_on_a_gpu, where):
    as_on_a_gpu(True)
    problem = Classification()
    chosen = optimizer(problem)
    train(problem, chosen, range(2))
    before, alpha = problem.flat().clone(), chosen.tempering.alpha
    momenta = [chosen.state[p]["momentum_buffer"].clone() for p in problem.model.parameters()]
    loss = problem.backward(2)
    if where == "gradient":
        problem.model[2].bias.grad[1] = math.nan
    chosen._observed = [loss.detach().double() * (math.nan if where == "loss" else 1.0)]
    with pytest.raises(NonFiniteError, match="nothing has changed"):
        chosen.step()
    assert torch.equal(problem.flat(), before)
    assert chosen.tempering.alpha == alpha
    now = [chosen.state[p]["momentum_buffer"] for p in problem.model.parameters()]
    assert all(map(torch.equal, now, momenta))
    assert cuda.available()
