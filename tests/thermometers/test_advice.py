"""When a temperature is called wrong: beyond a tenth and four standard errors of it, by readings that are enough."""

import math
from functools import partial

import pytest

from ctld.thermometers import GroupThermometer
from ctld.thermometers.advice import advice

MOMENTUM = 0.6  # then batches of 10 steps are just long enough
AROUND = partial(
    advice,
    0,
    integrator="euler",
    momentum=MOMENTUM,
    of_tempering=None,
    compensated=False,
    can_compensate=True,
)


def group(kinetic, *, configurational=1.0, heat=0.0, spread=0.0, batches=20):
    """Batches of all three readings, in turns above and below their mean by so much. Returns it with the kinetic error."""
    thermometer = GroupThermometer()
    for batch in range(batches):
        beside = spread if batch % 2 else -spread
        for step in range(10):
            if step % 5 == 0:
                thermometer.read_probe(configurational + beside, heat, 1.0)
            thermometer.read(kinetic + beside, 1.0)
    found = thermometer.temperatures.kinetic
    return thermometer, found.standard_error if found else math.nan


@pytest.mark.parametrize("spread", [0.0, 0.2])
@pytest.mark.parametrize("side", [1, -1])
def test_the_threshold_is_a_tenth_and_four_standard_errors(spread, side):
    _, error = group(1.0, spread=spread)
    assert (error > 0.03) == (spread > 0)
    within, beyond = (0.1 + 4.0 * error + 1e-6 * way for way in (-1, 1))
    assert AROUND(group(1.0 + side * within, spread=spread)[0]) is None
    assert f"kinetic temperature of {1 + side * beyond:.2f}" in AROUND(group(1.0 + side * beyond, spread=spread)[0])


@pytest.mark.parametrize("spread", [0.0, 0.2])
def test_parameters_that_are_spread_too_far_have_the_same_one(spread):
    thermometer, _ = group(1.0, spread=spread)
    threshold = 0.1 + 4.0 * thermometer.temperatures.configurational.standard_error
    assert AROUND(group(1.0, configurational=1.0 + threshold - 1e-6, spread=spread)[0]) is None
    said = AROUND(group(1.0, configurational=1.0 + threshold + 1e-6, spread=spread)[0])
    assert "configurational" in said
    assert AROUND(group(1.0, configurational=0.5, spread=spread)[0]) is None


def test_too_few_batches_and_too_short_ones_say_nothing():
    """Of 19 and of 20 batches, 18 count; of 18, 17. A batch has to have four times what the momenta remember."""
    assert AROUND(group(2.0, batches=18)[0]) is None
    assert AROUND(group(2.0, batches=19)[0]) is not None
    assert AROUND(group(2.0)[0], momentum=0.61) is None


@pytest.mark.parametrize(("share", "told"), [(0.49, False), (0.51, True), (1.99, True), (2.01, False)])
def test_minibatches_are_the_cause_where_they_bring_about_as_much(share, told):
    """BAOAB's reading has a share of what they bring: 2(1 + μ²)/(1 + μ)²."""
    assert ("minibatches" in AROUND(group(1.5, heat=share * 0.5)[0])) == told
    brought = share * 0.5 / (2 * (1 + MOMENTUM**2) / (1 + MOMENTUM) ** 2)
    assert ("minibatches" in AROUND(group(1.5, heat=brought)[0], integrator="baoab")) == told
