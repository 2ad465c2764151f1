"""Tensors that can take the places of others, by torch's guard and one by one."""

import pytest
import torch
from torch import nn

from ctld.stepping import same_kind
from ctld.stepping.same_kind import SameKind


def tensors():
    return [torch.zeros(3, 2), nn.Parameter(torch.zeros(4)), torch.zeros(())]


OTHERS = {
    "size": torch.zeros(3, 3),
    "in pieces": torch.zeros(3, 4)[:, ::2],
    "transposed": torch.zeros(2, 3).t(),
    "dtype": torch.zeros(3, 2, dtype=torch.float64),
    "class": nn.Parameter(torch.zeros(3, 2)),
    "sign": torch.ones(3, 2, dtype=torch.complex64).conj().imag.detach(),
    "nothing": None,
    "number": 1.0,
}


@pytest.fixture(params=["guard", "one by one"])
def ask(request, monkeypatch):
    """Makes what answers, by torch's guard or without it."""
    if request.param == "one by one":
        monkeypatch.setattr(same_kind, "_guard_of", lambda _: same_kind._never)
    return SameKind


def test_torch_has_the_guard():
    assert same_kind._guard_of(tensors()) is not same_kind._never


def test_new_tensors_of_the_same_kind(ask):
    assert ask(tensors())([tensor.clone().detach() if type(tensor) is torch.Tensor else tensor for tensor in tensors()])


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS.keys())
def test_another_kind(ask, other):
    known, now = ask(tensors()), tensors()
    assert known(now)
    now[0] = other
    assert not known(now)


def test_what_does_not_matter(ask):
    """torch's guard goes by it: then they are asked one by one."""
    known, now = ask(tensors()), tensors()
    now[1].requires_grad_(False)
    assert known(now)
    with torch.autocast("cpu"):
        assert known(tensors())
    with torch.inference_mode():
        assert known(tensors())


def test_none_at_all(ask):
    assert ask([])([])


def test_a_guard_that_has_changed_is_done_without(monkeypatch):
    class Odd:
        def __init__(self, *tensors, **options):
            raise TypeError("another signature")

    monkeypatch.setattr("torch._C._dynamo.guards.TensorGuards", Odd)
    assert SameKind(tensors())(tensors())
    assert same_kind._guard_of(tensors()) is same_kind._never
