"""What calibrated tempering makes of its warm-up: the mass of α, and how much of α's noise minibatches bring themselves."""

import copy
import math

import numpy as np
import pytest

from ctld import NonFiniteError, Tempering
from ctld.tempering.control import Exploration
from targets import equal

WARM_UP = 4000
SLOPE = -math.log(0.15) / 1.1  # |g′/g| at depth 0.85
KEEP = math.exp(-0.2)


def calibrated(potentials, integrator="baoab"):
    """A tempering whose warm-up saw these, and is over."""
    tempering = Tempering.calibrated(depth=0.85, warm_up=WARM_UP)
    tempering.prepare(Exploration(step_size=0.01, normal=0.0, steps=10**9, integrator=integrator))
    for potential in potentials:
        tempering.begin(float(potential), 0.5)
    assert not tempering.warming_up
    return tempering


def wave(amplitude):
    """Of variance amplitude²/2, without second differences to speak of, and many of it in a window."""
    return amplitude * np.sin(2 * np.pi * np.arange(WARM_UP) / 100)


def white(variance, seed=1):
    return math.sqrt(variance) * np.random.default_rng(seed).standard_normal(WARM_UP)


def noise_known(tempering):
    """ν² as the state has it now."""
    return float(tempering.state_dict()["warm_up"][6])


def test_a_light_alpha_has_the_least_mass():
    """B = 2: by its kick the mass would be B(|g′/g|/0.4)² = 37."""
    assert calibrated(wave(2.0)).mass == 400.0


@pytest.mark.parametrize("variance", [50.0, 5000.0])
def test_the_mass_goes_by_the_kick(variance):
    assert calibrated(wave(math.sqrt(2 * variance))).mass == pytest.approx(variance * (SLOPE / 0.4) ** 2, rel=1e-3)


def test_the_mass_is_bound_by_the_noise():
    """White noise: m ≥ 1.2·max(g′)²ν²(1 + c)/(4(1 − c)), nine times what the kick of the little that is left asks for."""
    tempering = calibrated(white(1000.0))
    noise = float(tempering.state_dict()["warm_up"][2])  # as the warm-up saw it: no more than there is in all
    bound = 1.2 * SLOPE**2 * noise * (1 + KEEP) / (4 * (1 - KEEP))
    assert tempering.mass == pytest.approx(bound, rel=1e-9)
    assert bound > 5 * 1000.0 * math.sqrt(6 / (WARM_UP / 2)) * (SLOPE / 0.4) ** 2
    assert bound > 400.0


@pytest.mark.parametrize("integrator", ["euler", "baoab"])
@pytest.mark.parametrize("place", [0.2, 0.7, -1.1])
def test_noise_of_the_minibatches_is_left_out_of_the_injected_one(integrator, place):
    """Two steps that differ in the sign of the number drawn are apart by twice the injected deviation.

    Euler: 2(1 − c)m − g′²ν². BAOAB: (1 − c²)m − g′²ν²(1 + c)²/4. On the plateau g′ = 0, and nothing is taken off.
    """
    tempering = calibrated(white(1000.0), integrator)
    tempering.alpha, tempering.alpha_momentum = place, 0.0
    momenta = []
    for normal in (1.0, -1.0):
        twin = copy.deepcopy(tempering)
        twin.begin(0.0, normal)
        momenta.append(twin.alpha_momentum)
    g = math.exp(-SLOPE * max(abs(place) - 0.4, 0.0))
    slope = SLOPE * g if abs(place) > 0.4 else 0.0
    whole = 2 * (1 - KEEP) if integrator == "euler" else 1 - KEEP**2
    share = 1.0 if integrator == "euler" else (1 + KEEP) ** 2 / 4
    variance = whole * tempering.mass - share * slope**2 * noise_known(twin)
    assert ((momenta[0] - momenta[1]) / 2) ** 2 == pytest.approx(variance, rel=1e-9)
    if slope:  # it is a share that matters: a test without it would fail
        assert share * slope**2 * noise_known(twin) > 0.05 * whole * tempering.mass


@pytest.mark.filterwarnings("ignore:calibrated tempering made")  # α is put where it is
def test_more_noise_than_is_injected_is_clamped_and_counted():
    tempering = calibrated(wave(2.0))
    for step in range(5000):  # the noise comes after the mass was fixed at 400
        tempering.alpha, tempering.alpha_momentum = 1.0, 0.0
        tempering.begin(400.0 * (-1.0) ** step, 0.0)
    assert tempering.steps_clamped > 0
    tempering.alpha, tempering.alpha_momentum = 1.0, 0.0
    twin = copy.deepcopy(tempering)
    tempering.begin(0.0, 1.0)
    twin.begin(0.0, -1.0)
    assert tempering.alpha_momentum == twin.alpha_momentum


@pytest.mark.parametrize("integrator", ["euler", "baoab"])
@pytest.mark.parametrize("thrown", [1e3, -1e12, 1e99])
def test_an_alpha_that_is_thrown_far_out_is_back_at_once(integrator, thrown):
    """Reflections are not counted one by one: where a potential jumps, there would be more of them than a life is long."""
    tempering = calibrated(wave(2.0), integrator)
    tempering.alpha = 1.0
    tempering.begin(thrown, 0.1)
    for _ in range(3):
        tempering.begin(0.0, 0.1)
        assert abs(tempering.alpha) <= 1.5


@pytest.mark.parametrize("move", [0.3, 2.2, 4.0, 9.7, 13.9, -16.2, 100.3, -1000.4])
def test_reflections_in_one_go_are_those_one_by_one(move):
    tempering = calibrated(wave(2.0))
    tempering.alpha, tempering.alpha_momentum = 0.7, 5.0
    tempering._drift(move)
    alpha, momentum = 0.7 + move, 5.0
    while abs(alpha) > 1.5:
        alpha, momentum = math.copysign(3.0, alpha) - alpha, -momentum
    assert tempering.alpha == pytest.approx(alpha, abs=1e-9)
    assert tempering.alpha_momentum == momentum


@pytest.mark.parametrize("potential", [1e200, -math.inf, math.nan])
def test_a_potential_that_has_diverged_is_refused_and_nothing_has_changed(potential):
    tempering = calibrated(wave(2.0))
    before = copy.deepcopy(tempering.state_dict())
    with pytest.raises(NonFiniteError, match=r"U/T is .* lower lr"):
        tempering.begin(potential, 0.1)
    assert equal(tempering.state_dict(), before)
