"""From words to numbers: the emulated fused multiply-add, Box-Muller against the library's functions, three points."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ctld.noise.gaussian import GROUP, THREE_POINT_VALUE, _fused, _root, gaussian, three_point


def nearest(x):
    """The float32 nearest to a fraction, ties to even: the definition, without floating point."""
    if x == 0:
        return 0.0
    exponent = math.frexp(x)[1] - 1
    if Fraction(2) ** exponent > abs(x):  # frexp has rounded it up
        exponent -= 1
    quantum = Fraction(2) ** (max(exponent, -126) - 23)
    rounded = round(x / quantum) * quantum
    return math.copysign(math.inf, x) if abs(rounded) >= 2**128 else float(rounded)


def fused(a, b, c):
    return _fused(*(torch.tensor([x], dtype=torch.float32) for x in (a, b, c))).item()


def exactly(a, b, c):
    return nearest(Fraction(a) * Fraction(b) + Fraction(c))


single = st.floats(width=32, allow_nan=False, allow_infinity=False)
ordinary = st.floats(width=32, min_value=-8.0, max_value=8.0)
near_one = st.integers(-6, 6).map(lambda k: 1.0 + k * 2.0**-23 if k >= 0 else 1.0 + k * 2.0**-24)
odd_or_even = st.integers(2**23, 2**24 - 1).map(lambda k: k * 2.0**-23)
sign = st.sampled_from([-1.0, 1.0])


class TestFusedMultiplyAdd:
    @settings(deadline=None, max_examples=300)
    @given(single, single, single)
    def test_any_numbers(self, a, b, c):
        assert fused(a, b, c) == exactly(a, b, c)

    @settings(deadline=None, max_examples=300)
    @given(ordinary, ordinary, st.integers(-3, 3))
    def test_cancellation(self, a, b, neighbours):
        """c within three places of −ab: what is left are bits that a rounded product has lost."""
        c = np.float32(-a * b)
        for _ in range(abs(neighbours)):
            c = np.nextafter(c, np.float32(math.copysign(np.inf, neighbours)))
        if np.isfinite(c):
            assert fused(a, b, float(c)) == exactly(a, b, float(c))

    @settings(deadline=None, max_examples=300)
    @given(near_one, near_one, odd_or_even, st.sampled_from([-24, -25, -60]), sign, sign)
    def test_near_ties(self, a, b, c, exponent, first_sign, second_sign):
        """ab is half a place of c, give or take 2⁻⁴⁶ of it: float64 sees a tie where there is none."""
        a, c = first_sign * a * 2.0**exponent, second_sign * c
        assert fused(a, b, c) == exactly(a, b, c)

    def test_rounding_twice_would_be_seen(self):
        a, b, c = 2.0**-24 * (1 + 2.0**-23), 1 - 2.0**-23, 1 + 2.0**-23
        assert np.float32(a * b + c) != exactly(a, b, c)
        assert fused(a, b, c) == exactly(a, b, c)

    def test_below_the_normal_numbers(self):
        tiny = 2.0**-149
        for a, b, c in [(tiny, 0.5, 0.0), (tiny, 0.5, tiny), (tiny, 1.5, tiny), (3 * tiny, 0.5, -tiny)]:
            assert fused(a, b, c) == exactly(a, b, c)


def test_products_sums_and_roots_are_correctly_rounded():
    """What the same bits everywhere rest on besides: each operation against numpy's, which is the processor's."""
    x = torch.rand(200_003, generator=torch.Generator().manual_seed(1)) * 44.0
    y = x.flip(0) + 0.5
    assert np.array_equal(_root(x.clone()).numpy(), np.sqrt(x.numpy()))
    assert np.array_equal((x * y).numpy(), x.numpy() * y.numpy())
    assert np.array_equal((x - y).numpy(), x.numpy() - y.numpy())
    assert np.array_equal(x.double().float().numpy(), x.numpy())


def pairs():
    """Words at the ends, at each eighth of the range and at powers of two, every one with every other; then 50,000 more."""
    corners = [k * 2**29 + d for k in range(9) for d in (-3, -2, -1, 0, 1, 2, 3)]
    corners = sorted({word for word in corners + [2**k for k in range(32)] if 0 <= word < 2**32})
    radius_words = np.repeat(corners, len(corners))
    angle_words = np.tile(corners, len(corners))
    more = np.random.default_rng(5).integers(2**32, size=(2, 50_000))
    chosen = np.concatenate([np.stack([radius_words, angle_words]), more], axis=1)
    half = GROUP // 2
    return chosen[:, : chosen.shape[1] // half * half]


def box_muller(radius_word, angle_word):
    """The formulas of the module in float64, by the library's functions; the uniform is what float32 makes of it."""
    uniform = np.float32(radius_word >> 1 | 1).astype(float) / 2.0**31
    radius = np.sqrt(-2.0 * np.log(uniform))
    signed = np.where(angle_word < 2**31, angle_word, angle_word - 2**32)
    angle = math.pi / 4 * (1.0 + signed / 2.0**31)
    return radius, radius * np.cos(angle) * (1 - 2 * (angle_word & 1)), radius * np.sin(angle) * (1 - (angle_word & 2))


def in_groups(radius_word, angle_word):
    """Sixteen words of the one kind, then sixteen of the other."""
    half = GROUP // 2
    return torch.from_numpy(np.stack([radius_word.reshape(-1, half), angle_word.reshape(-1, half)], axis=1).reshape(-1))


def test_box_muller_against_the_library():
    radius_word, angle_word = pairs()
    radius, first, second = box_muller(radius_word, angle_word)
    made = gaussian(in_groups(radius_word, angle_word)).double().numpy().reshape(-1, 2, GROUP // 2)
    worst = np.maximum(np.abs(made[:, 0].reshape(-1) - first), np.abs(made[:, 1].reshape(-1) - second))
    # The polynomials' relative error is below 1e-5, of Q, C and S each; rounding is far less.
    assert (worst <= 1e-5 * radius).all()


def test_all_four_quadrants():
    """The two lowest bits of the angle's word choose the signs, each of one number."""
    words = torch.full((4, GROUP), 2**30)
    words[:, GROUP // 2 :] = torch.tensor([4, 5, 6, 7])[:, None]
    made = gaussian(words.flatten()).view(4, 2, GROUP // 2)[:, :, 0]
    assert made.sign().tolist() == [[1, 1], [-1, 1], [1, -1], [-1, -1]]


def test_extreme_words():
    """Neither inf nor NaN; the largest number there is comes from u = 2⁻³¹."""
    corners = np.array([0, 1, 2, 3, 2**31 - 1, 2**31, 2**32 - 2, 2**32 - 1] * 2)
    made = gaussian(in_groups(np.repeat(corners, 16), np.tile(corners, 16)))
    assert made.isfinite().all()
    assert made.abs().max().item() == pytest.approx(math.sqrt(62 * math.log(2)), rel=1e-5)


def test_halves_of_a_word_are_sixteen_apart():
    words = torch.zeros(GROUP // 2, dtype=torch.int64)
    words[3] = 0x7FFF_8000
    expected = torch.zeros(GROUP)
    expected[3], expected[3 + 16] = -THREE_POINT_VALUE, THREE_POINT_VALUE
    assert torch.equal(three_point(words), expected)
