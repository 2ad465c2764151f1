"""`normal` is a pure function of (seed, step, stream, element), whatever the split, the threads and the layout."""

import math
import shutil
from unittest.mock import ANY

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ctld import noise
from ctld.noise.gaussian import _root, box_muller


@settings(deadline=None, max_examples=60)
@given(
    numel=st.integers(0, 300),
    offset=st.integers(0, 2**40),
    cut=st.integers(0, 300),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_any_split_gives_the_same_numbers(numel, offset, cut, dtype):
    cut = min(cut, numel)
    whole = noise.normal(7, 3, 5, numel, offset=offset, dtype=dtype)
    left = noise.normal(7, 3, 5, cut, offset=offset, dtype=dtype)
    right = noise.normal(7, 3, 5, numel - cut, offset=offset + cut, dtype=dtype)
    assert whole.shape == (numel,)
    assert torch.equal(whole, torch.cat([left, right]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_thread_count_does_not_matter(dtype):
    one = noise.normal(1, 2, 3, 700_001, dtype=dtype)
    torch.set_num_threads(3)
    assert torch.equal(noise.normal(1, 2, 3, 700_001, dtype=dtype), one)


def test_long_requests_are_cut_without_a_seam(monkeypatch):
    whole = noise.normal(1, 2, 3, 1000)
    monkeypatch.setattr(noise, "_BLOCKS_AT_A_TIME", 7)
    monkeypatch.setattr(noise.native, "load", lambda: None)
    assert torch.equal(noise.normal(1, 2, 3, 1000), whole)


def test_every_argument_matters():
    numbers = {
        tuple(noise.normal(*arguments, 4).tolist())
        for arguments in [(1, 2, 3), (2, 2, 3), (1, 3, 3), (1, 2, 4), (1, 3, 2), (1 + 2**32, 2, 3)]
    }
    numbers.add(tuple(noise.normal(1, 2, 3, 4, offset=2**34).tolist()))
    assert len(numbers) == 7


def test_against_an_independent_implementation():
    """Philox on Python's integers and the library's log and cos, from the published description."""

    def block(seed, step, stream, index):
        counter, key = [index & 0xFFFFFFFF, index >> 32, step, stream], [seed & 0xFFFFFFFF, seed >> 32]
        for _ in range(10):
            high0, low0 = divmod(0xD2511F53 * counter[0], 2**32)
            high1, low1 = divmod(0xCD9E8D57 * counter[2], 2**32)
            counter = [high1 ^ counter[1] ^ key[0], low1, high0 ^ counter[3] ^ key[1], low0]
            key = [(key[0] + 0x9E3779B9) % 2**32, (key[1] + 0xBB67AE85) % 2**32]
        for radius_word, angle_word in (counter[:2], counter[2:]):
            radius = math.sqrt(-2 * math.log((radius_word + 0.5) / 2**32))
            angle = 2 * math.pi * (angle_word + 0.5) / 2**32
            yield from (radius * math.cos(angle), radius * math.sin(angle))

    arguments = (2**40 + 17, 12, 4)
    expected = [number for index in range(2**33, 2**33 + 50) for number in block(*arguments, index)]
    actual = noise.normal(*arguments, 200, offset=2**35, dtype=torch.float64)
    np.testing.assert_allclose(actual, expected, atol=3e-14)


def test_known_values():
    """Pins every bit: if this changes, `noise.GENERATOR` has to change with it."""
    assert noise.GENERATOR == "philox4x32-10/box-muller/1"
    known = [0.03626968976869684, 0.7317442005612188, -0.5364045989014136, 0.9608620056107797]
    assert noise.normal(2017, 12, 4, 4, dtype=torch.float64).tolist() == known
    assert noise.native._KNOWN[torch.float64] == known
    assert noise.normal(2017, 12, 4, 4).tolist() == noise.native._KNOWN[torch.float32]


def test_precisions_agree():
    double = noise.normal(1, 2, 3, 1_000_000, dtype=torch.float64)
    single = noise.normal(1, 2, 3, 1_000_000)
    assert single.dtype == torch.float32
    assert (double - single).abs().max() < 1e-4
    large = double.abs() > 0.1
    assert ((double - single) / double)[large].abs().max() < 1e-5
    assert torch.equal(noise.normal(1, 2, 3, 100, dtype=torch.bfloat16), single[:100].bfloat16())


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 4e-15), (torch.float32, 2e-6)])
def test_box_muller_against_the_library(dtype, tolerance):
    """All the corners of the series: words at the ends, at each quarter and eighth of the circle, and many between."""
    corners = [k * 2**29 + d for k in range(9) for d in (-2, -1, 0, 1, 2)] + [2**24, 2**31 + 12345]
    generator = torch.Generator().manual_seed(5)
    middle = torch.randint(2**32, (20_000,), generator=generator).tolist()
    words = torch.tensor([w for w in corners if 0 <= w < 2**32] + middle)
    radius_words, angle_words = words, words.flip(0)
    # The uniform as float32 sees it: what is tested is the arithmetic on it.
    uniform = (radius_words.to(dtype) + 0.5).double().numpy() / 2.0**32
    radius = np.sqrt(-2.0 * np.log(uniform))
    angle = 2.0 * math.pi * (angle_words.double().numpy() + 0.5) / 2.0**32
    expected = np.stack([radius * np.cos(angle), radius * np.sin(angle)])
    actual = box_muller(torch.stack([radius_words, angle_words]), dtype).double().numpy()
    np.testing.assert_allclose(actual, expected, atol=6.8 * tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_arithmetic_is_correctly_rounded(dtype):
    """What the same bits everywhere rest on: each operation against numpy's, which is the processor's."""
    x = torch.rand(200_003, dtype=dtype, generator=torch.Generator().manual_seed(1)) * 44.0
    y = x.flip(0) + 0.5
    pairs = [
        (_root(x.clone()), np.sqrt(x.numpy())),
        (x / y, x.numpy() / y.numpy()),
        (x * y, x.numpy() * y.numpy()),
        (x.clone().mul_(math.log(2.0)), x.numpy() * np.array(math.log(2.0), dtype=x.numpy().dtype)),
        (x.clone().add_(1.0 / 3.0), x.numpy() + np.array(1.0 / 3.0, dtype=x.numpy().dtype)),
    ]
    for ours, theirs in pairs:
        np.testing.assert_array_equal(ours.numpy(), theirs)


def test_extreme_words_are_finite():
    words = torch.tensor([[0, 0xFFFFFFFF, 0, 0xFFFFFFFF], [0, 0, 0xFFFFFFFF, 0xFFFFFFFF]])
    for dtype in (torch.float32, torch.float64):
        numbers = box_muller(words, dtype)
        assert numbers.isfinite().all()
        assert numbers.abs().max() == pytest.approx(math.sqrt(2 * 33 * math.log(2)), rel=1e-6)


class TestNative:
    """C and torch give the same bits; either may be missing."""

    @staticmethod
    def by_torch(monkeypatch, *arguments, **options):
        with monkeypatch.context() as patch:
            patch.setattr(noise.native, "load", lambda: None)
            return noise.normal(*arguments, **options)

    def test_built_where_there_is_a_compiler(self):
        assert noise.native.load() is not None or shutil.which("cc") is None

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
    @pytest.mark.parametrize(("numel", "offset"), [(0, 5), (1, 0), (1, 3), (511, 2), (513, 1), (70_001, 2**35 + 3)])
    def test_same_bits(self, monkeypatch, numel, offset, dtype):
        arguments = (2**40 + 5, 2**31 + 9, 2**32 - 1, numel)
        expected = self.by_torch(monkeypatch, *arguments, offset=offset, dtype=dtype)
        assert torch.equal(noise.normal(*arguments, offset=offset, dtype=dtype), expected)

    def test_missing_library_is_said_once_and_done_without(self, monkeypatch, caplog, tmp_path):
        expected = noise.normal(1, 2, 3, 9)
        monkeypatch.setattr(noise.native, "LIBRARY", tmp_path / "missing.so")
        noise.native.load.cache_clear()
        try:
            with caplog.at_level("INFO", logger="ctld"):
                assert torch.equal(noise.normal(1, 2, 3, 9), expected)
                noise.normal(1, 2, 3, 9)
            assert [record.getMessage() for record in caplog.records if "by torch" in record.getMessage()] == [ANY]
        finally:
            noise.native.load.cache_clear()

    def test_library_that_computes_something_else_is_not_used(self, monkeypatch, caplog):
        monkeypatch.setattr(noise.native, "_KNOWN", {torch.float32: [0.0] * 4})
        noise.native.load.cache_clear()
        try:
            with caplog.at_level("INFO", logger="ctld"):
                assert noise.native.load() is None
            assert noise.native.LIBRARY.exists() == ("does not give the known numbers" in caplog.text)
        finally:
            noise.native.load.cache_clear()


def test_default_device_does_not_matter():
    """The numbers are made on the device that was asked for; C must never be handed another's memory."""
    expected = noise.normal(1, 2, 3, 9)
    with torch.device("meta"):
        assert torch.equal(noise.normal(1, 2, 3, 9, device="cpu"), expected)
        noise._page.cache_clear()
        assert isinstance(noise.scalar_normal(1, 3, 0), float)


def test_scalar_normal_is_an_element_of_its_stream():
    elements = noise.normal(9, 0, noise.ALPHA, 600, dtype=torch.float64)
    assert [noise.scalar_normal(9, noise.ALPHA, k) for k in (0, 255, 256, 599)] == elements[[0, 255, 256, 599]].tolist()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((-1, 0, 0, 1), "seed = -1"),
        ((2**63, 0, 0, 1), "seed = "),
        ((0, 2**32, 0, 1), "step = 4294967296"),
        ((0, 0, -1, 1), "stream = -1"),
        ((0, 0, 0, -1), "numel = -1"),
        ((0, 0, 0, 2**63), "exceed"),
    ],
)
def test_refuses(arguments, message):
    with pytest.raises(ValueError, match=message):
        noise.normal(*arguments)
