"""The sub-steps, and sums that stay exact over many elements."""

import pytest
import torch

from ctld.stepping import foreach


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_square_norm_is_summed_wide(dtype):
    """In its own float32, a norm over 2e7 elements is off by 0.2 % and more; an energy needs far better."""
    ones = torch.full((20_000_000,), 0.1, dtype=dtype)
    exact = ones.numel() * ones[0].double().item() ** 2
    assert foreach.square_norm([ones], ones.device).item() == pytest.approx(exact, rel=1e-9)


def test_square_norm_does_not_overflow():
    large = torch.full((4,), 1e30)
    assert foreach.square_norm([large], large.device).item() == pytest.approx(4e60)


def test_square_norm_of_nothing():
    device = torch.device("cpu")
    assert foreach.square_norm([], device) == 0.0
    assert foreach.square_norm([torch.empty(0, 3)], device) == 0.0


def test_drift_into_lower_precision_rounds_once():
    parameter, momentum = torch.ones(3, dtype=torch.bfloat16), torch.full((3,), 0.3)
    foreach.drift([parameter], [momentum], step=0.5)
    assert torch.equal(parameter, torch.full((3,), 1.15).bfloat16())


def test_gradients_are_copied_when_changed():
    parameter = torch.nn.Parameter(torch.ones(3))
    parameter.grad = torch.ones(3)
    (total,) = foreach.total_gradients([parameter], [parameter.grad], decay=0.5, ascend=True)
    assert torch.equal(total, torch.full((3,), -0.5))
    assert torch.equal(parameter.grad, torch.ones(3))


def test_sums_are_as_wide_as_a_device_adds(monkeypatch):
    """Of a device that is not here, or has no float64 and says so when it adds, it is float32."""
    foreach._has_float64.cache_clear()
    assert foreach.wide_dtype(torch.device("cpu")) == torch.float64
    assert foreach.wide_dtype(torch.device("mps")) == torch.float32

    def refuses(*_, **options):
        assert options["dtype"] == torch.float64
        raise RuntimeError("Required aspect fp64 is not supported on the device")

    monkeypatch.setattr(torch, "ones", refuses)
    assert foreach.wide_dtype(torch.device("xpu")) == torch.float32
    foreach._has_float64.cache_clear()
    monkeypatch.setattr(torch, "ones", lambda *_, **__: torch.tensor([1.0, 1.0], dtype=torch.float64))
    assert foreach.wide_dtype(torch.device("xpu")) == torch.float64
    foreach._has_float64.cache_clear()
