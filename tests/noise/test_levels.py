"""The library's numbers at every level that this processor has are those of numpy and torch, bit for bit."""

import shutil

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ctld import noise
from ctld.stepping import native

LIBRARY = native.load()
needs_library = pytest.mark.skipif(LIBRARY is None, reason="the kernels were not built")
kinds = pytest.mark.parametrize("kind", noise.KINDS)
levels = pytest.mark.parametrize(
    "level", range(len(native.LEVELS) if LIBRARY is None else LIBRARY.level + 1), ids=lambda n: native.LEVELS[n]
)


def test_built_where_there_is_a_compiler():
    assert LIBRARY is not None or shutil.which("cc") is None


def at_level(level, *arguments):
    best, LIBRARY.level = LIBRARY.level, level
    try:
        return LIBRARY.numbers(*arguments)
    finally:
        LIBRARY.level = best


def same_bits(level, kind, seed, step, stream, offset, numel):
    fast = at_level(level, kind, seed, step, stream, offset, numel)
    slow = noise.slow_numbers(kind, seed, step, stream, numel, offset=offset, device="cpu")
    return torch.equal(fast.view(torch.int32), slow.view(torch.int32))


@needs_library
@levels
@kinds
@pytest.mark.parametrize(
    ("numel", "offset"),
    [
        (1, 0),
        (1, 31),
        (31, 1),
        (32, 32),
        (127, 5),
        (128, 0),
        (129, 96),
        (513, 17),
        (100_003, 2),
        (70_001, 2**34 - 35_000),  # the block passes 2**32: Gaussian noise
        (70_001, 2**35 - 35_000),  # and three-point noise
        (300, 2**62 + 3),
        (300, 2**63 - 301),
    ],
)
def test_same_bits(level, kind, numel, offset):
    assert same_bits(level, kind, 2**40 + 5, 2**31 + 9, 2**32 - 1, offset, numel)


@needs_library
@levels
@kinds
@settings(deadline=None, max_examples=50)
@given(
    seed=st.integers(0, noise.MAX_SEED),
    step=st.integers(0, 2**32 - 1),
    stream=st.integers(0, 2**32 - 1),
    offset=st.integers(0, 2**63 - 1000),
    numel=st.integers(1, 500),
)
def test_same_bits_anywhere(level, kind, seed, step, stream, offset, numel):
    assert same_bits(level, kind, seed, step, stream, offset, numel)


@needs_library
@levels
@kinds
def test_nothing_is_written_beyond_the_end(level, kind):
    """C is handed a pointer, so nobody else would notice."""
    for numel in (1, 31, 100, 127, 128, 129):
        memory = torch.full((numel + 256,), 77.0)
        where = memory[128:].data_ptr()
        LIBRARY._numbers(level, native.KINDS[kind], 1, 2, 3, 5, numel, where)
        assert (memory[:128] == 77).all()
        assert (memory[128 + numel :] == 77).all()
        assert torch.equal(memory[128 : 128 + numel], noise.numbers(kind, 1, 2, 3, numel, offset=5))


@needs_library
def test_a_different_bit_would_be_seen(monkeypatch):
    """The twin: one number of a hundred is its neighbour."""
    real = LIBRARY.numbers

    def wrong(*arguments):
        made = real(*arguments)
        made[50] = torch.nextafter(made[50], torch.tensor(10.0))
        return made

    assert same_bits(LIBRARY.level, "gaussian", 1, 2, 3, 0, 100)
    monkeypatch.setattr(LIBRARY, "numbers", wrong)
    assert not same_bits(LIBRARY.level, "gaussian", 1, 2, 3, 0, 100)
