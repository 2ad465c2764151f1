"""Half-trips are counted as `diagnostics.half_trips` counts them, and looked for when so many were promised."""

import numpy as np
import pytest

from ctld import diagnostics
from ctld.tempering.trips import TRIPS, Trips

PLATEAU, EDGE = 0.4, 1.5


def travel(alpha, *, length, end=0):
    """Trips along a path, and what was said at which step."""
    trips = Trips(PLATEAU, EDGE)
    trips.promise(begin=0, length=length, end=end)
    said = {}
    for step, place in enumerate(np.abs(alpha).tolist(), 1):
        if trips.visit(place, step) and (text := trips.look(step)) is not None:
            said[step] = text
    return trips, said


def triangle(period, count):
    """|α| from 0 to the edge and back."""
    return EDGE * (1.0 - np.abs(1.0 - (np.arange(count) % period) / (period / 2)))


def test_they_are_counted_as_the_diagnostics_do():
    alpha = np.cumsum(0.1 * np.random.default_rng(0).standard_normal(20_000))
    alpha = np.abs((alpha + EDGE) % (4 * EDGE) - 2 * EDGE) - EDGE  # reflected at ±edge
    trips, _ = travel(alpha, length=1e9)
    assert trips.count == diagnostics.half_trips(alpha, plateau=PLATEAU, edge=EDGE).count > 20


def test_trips_that_come_are_not_spoken_of():
    trips, said = travel(triangle(200, 10_000), length=100.0, end=10_000)
    assert (trips.count, said) == (100, {})


def test_trips_that_stay_away_are_noticed_by_the_first_look():
    """Eight were promised by step 800. Once is enough."""
    _, said = travel(np.zeros(10_000), length=100.0, end=10_000)
    assert said == {800: "0 half-trips in 800 steps, where 8 were promised"}


def test_trips_that_cease_are_noticed():
    """20 in the first 2,000 steps, then none: at 8,800 steps fewer than a quarter of 88 are there."""
    _, said = travel(np.concatenate([triangle(200, 2000), np.zeros(10_000)]), length=100.0)
    assert list(said) == [8800]


@pytest.mark.parametrize(("period", "expected"), [(2000, []), (2400, [20_000])])
def test_too_few_by_the_end_are_said_there(period, expected):
    """Half as many as promised is no failure of the promise, but fewer than 20 are too few for averages."""
    trips, said = travel(triangle(period, 20_000), length=600.0, end=20_000)
    assert (trips.count >= TRIPS) == (not expected)
    assert list(said) == expected


def test_what_was_said_is_not_said_again_after_a_resume():
    trips, _ = travel(np.zeros(900), length=100.0)
    again = Trips(PLATEAU, EDGE)
    again.promise(begin=0, length=100.0, end=0)
    again.go_on(trips.count, trips.hot, trips.numbers, 900)
    assert not any(again.visit(0.0, step) and again.look(step) for step in range(901, 5000))
