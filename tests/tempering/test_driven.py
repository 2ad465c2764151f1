"""The timetable of a driven α, by hand."""

import pytest

from ctld import Tempering


def test_a_period():
    """From 0 to the edge, through 0 to the other one, and back; the temperature goes up and down twice."""
    control = Tempering.driven(8)
    alphas, ratios = [], []
    for _ in range(17):
        alphas.append(control.alpha / control.edge)
        ratios.append(control.temperature_ratio)
        control.end(0.0, 0.0)
    assert alphas == pytest.approx([0.0, 0.5, 1.0, 0.5, 0.0, -0.5, -1.0, -0.5] * 2 + [0.0])
    assert ratios[:4] == pytest.approx(ratios[4:8])
    assert ratios[0] == 1.0 < ratios[1] < ratios[2] == max(ratios)
    control.restart()
    assert control.alpha == 0.0
