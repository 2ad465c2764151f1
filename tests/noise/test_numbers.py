"""`numbers` is a pure function of (seed, step, stream, element), whatever the split, the threads and the device in force."""

import math
import statistics

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ctld import noise
from ctld.stepping import native

kinds = pytest.mark.parametrize("kind", noise.KINDS)


@kinds
@settings(deadline=None, max_examples=60)
@given(numel=st.integers(0, 400), offset=st.integers(0, 2**40), cut=st.integers(0, 400))
def test_any_split_gives_the_same_numbers(kind, numel, offset, cut):
    cut = min(cut, numel)
    whole = noise.numbers(kind, 7, 3, 5, numel, offset=offset)
    left = noise.numbers(kind, 7, 3, 5, cut, offset=offset)
    right = noise.numbers(kind, 7, 3, 5, numel - cut, offset=offset + cut)
    assert whole.shape == (numel,)
    assert torch.equal(whole, torch.cat([left, right]))


@kinds
@settings(deadline=None, max_examples=30)
@given(numel=st.integers(1, 200), offset=st.integers(0, 200))
def test_any_split_gives_the_same_numbers_without_the_library(kind, numel, offset):
    whole = noise.slow_numbers(kind, 7, 3, 5, 400, offset=0, device="cpu")
    assert torch.equal(
        noise.slow_numbers(kind, 7, 3, 5, numel, offset=offset, device="cpu"), whole[offset : offset + numel]
    )


@kinds
def test_thread_count_does_not_matter(kind):
    one = noise.numbers(kind, 1, 2, 3, 700_001)
    torch.set_num_threads(3)
    assert torch.equal(noise.numbers(kind, 1, 2, 3, 700_001), one)


@kinds
def test_long_requests_are_cut_without_a_seam(kind, monkeypatch):
    whole = noise.numbers(kind, 1, 2, 3, 3000, offset=5)
    monkeypatch.setattr(noise, "_GROUPS_AT_A_TIME", 7)
    monkeypatch.setattr(native, "load", lambda: None)
    assert torch.equal(noise.numbers(kind, 1, 2, 3, 3000, offset=5), whole)


@kinds
def test_every_argument_matters(kind):
    arguments = [(1, 2, 3), (2, 2, 3), (1, 3, 3), (1, 2, 4), (1, 3, 2), (1 + 2**32, 2, 3), (1 + 2**62, 2, 3)]
    made = {tuple(noise.numbers(kind, *each, 64).tolist()) for each in arguments}
    made |= {tuple(noise.numbers(kind, 1, 2, 3, 64, offset=offset).tolist()) for offset in (64, 2**35, 2**36)}
    assert len(made) == 10


def test_known_values():
    """Pins every bit: if this changes, `noise.GENERATOR` has to change with it."""
    assert noise.GENERATOR == "ars-7 (cpu) or philox4x32-10/box-muller/2"
    known = {
        "gaussian": [0.24943512678146362, -1.050191044807434, -0.005450126249343157, 1.4700632095336914],
        "three_point": [0.0, 0.0, 0.0, 1.7320244312286377],
    }
    assert known == native._KNOWN
    for kind, expected in known.items():
        assert noise.numbers(kind, 2017, 12, 4, 4).tolist() == expected
        assert noise.slow_numbers(kind, 2017, 12, 4, 4, offset=0, device="cpu").tolist() == expected


def test_against_an_independent_implementation():
    """The number of an element from the words of its pair, on Python's own integers and functions."""
    seed, step, stream, first = 2**40 + 17, 12, 4, 2**35 + 64
    made = noise.normal(seed, step, stream, 32, offset=first, dtype=torch.float64)
    words = noise.words(seed, step, stream, torch.arange(first // 4, first // 4 + 8)).tolist()
    for i, (radius_word, angle_word) in enumerate(zip(words[:16], words[16:], strict=True)):
        radius = math.sqrt(-2.0 * math.log((radius_word >> 1 | 1) / 2**31))
        angle = math.pi / 4 * (1.0 + (angle_word - (angle_word >> 31 << 32)) / 2**31)
        # 1e-5 is the error of the polynomials.
        tolerance = 1.5e-5 * radius
        assert made[i].item() == pytest.approx(radius * math.cos(angle) * (-1) ** (angle_word & 1), abs=tolerance)
        assert made[i + 16].item() == pytest.approx(
            radius * math.sin(angle) * (-1) ** (angle_word >> 1 & 1), abs=tolerance
        )


@kinds
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_other_dtypes_are_converted(kind, dtype):
    made = noise.numbers(kind, 1, 2, 3, 1000, offset=7, dtype=dtype)
    assert made.dtype == dtype
    assert torch.equal(made, noise.numbers(kind, 1, 2, 3, 1000, offset=7).to(dtype))
    assert noise.numbers(kind, 1, 2, 3, 0, dtype=dtype).dtype == dtype


def test_default_device_and_dtype_do_not_matter():
    """The numbers are made on the device that was asked for; C must never be handed another's memory."""
    expected = noise.normal(1, 2, 3, 9)
    slow = noise.slow_numbers("gaussian", 1, 2, 3, 9, offset=0, device="cpu")
    try:
        torch.set_default_dtype(torch.float64)
        with torch.device("meta"):
            assert torch.equal(noise.normal(1, 2, 3, 9, device="cpu"), expected)
            assert torch.equal(noise.slow_numbers("gaussian", 1, 2, 3, 9, offset=0, device="cpu"), slow)
            noise._page.cache_clear()
            assert isinstance(noise.scalar_normal(1, 3, 0), float)
    finally:
        torch.set_default_dtype(torch.float32)


def test_scalar_normal_is_an_element_of_its_stream():
    elements = noise.normal(9, 0, noise.ALPHA, 600, dtype=torch.float64)
    chosen = [0, 255, 256, 599]
    assert [noise.scalar_normal(9, noise.ALPHA, k) for k in chosen] == elements[chosen].tolist()
    assert statistics.fmean(noise.scalar_normal(9, noise.ALPHA, k) for k in range(600)) == pytest.approx(
        elements.mean().item()
    )


def test_streams_differ():
    assert len({noise.ALPHA, noise.INITIAL_MOMENTA, *map(noise.parameter_stream, range(10))}) == 12


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((-1, 0, 0, 1), "seed = -1"),
        ((2**63, 0, 0, 1), "seed = "),
        ((0, 2**32, 0, 1), "step = 4294967296"),
        ((0, -1, 0, 1), "step = -1"),
        ((0, 0, -1, 1), "stream = -1"),
        ((0, 0, 2**32, 1), "stream = 4294967296"),
        ((0, 0, 0, -1), "numel = -1"),
        ((0, 0, 0, 2**63), "exceed"),
    ],
)
def test_refuses(arguments, message):
    with pytest.raises(ValueError, match=message):
        noise.normal(*arguments)


def test_refuses_offsets_and_kinds():
    with pytest.raises(ValueError, match="offset = -1"):
        noise.normal(0, 0, 0, 1, offset=-1)
    with pytest.raises(ValueError, match="exceed"):
        noise.normal(0, 0, 0, 1, offset=2**63 - 1)
    with pytest.raises(ValueError, match="'uniform' is unknown; give one of 'gaussian', 'three_point'"):
        noise.numbers("uniform", 0, 0, 0, 1)


def test_the_last_of_everything():
    """The ends of each argument's range are within it."""
    arguments = (noise.MAX_SEED, 2**32 - 1, 2**32 - 1)
    for kind in noise.KINDS:
        made = noise.numbers(kind, *arguments, 40, offset=2**63 - 41)
        slow = noise.slow_numbers(kind, *arguments, 40, offset=2**63 - 41, device="cpu")
        assert torch.equal(made, slow)
