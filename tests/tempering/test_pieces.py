"""g, φ and V_b against finite differences, closed forms and the sum of Gaussians."""

import copy
import math

import numpy as np
import pytest

from ctld.stepping import native
from ctld.tempering import ConfiningWell, Metadynamics, TemperatureScaling


class TestTemperatureScaling:
    def test_values_of_the_paper(self):
        scaling = TemperatureScaling()
        assert scaling.value(0.0) == scaling.value(0.4) == scaling.value(-0.4) == 1.0
        assert scaling.value(1.5) == scaling.value(-7.0) == pytest.approx(0.15)
        assert scaling.value(0.95) == pytest.approx(1 - 0.85 / 2)
        assert 1 / scaling.value(1.5) == pytest.approx(6.667, abs=1e-3)

    @pytest.mark.parametrize(("plateau", "edge", "depth"), [(0.4, 1.5, 0.85), (0.0, 1.0, 0.3), (0.1, 4.0, 0.99)])
    def test_derivative_is_that_of_the_value(self, plateau, edge, depth):
        scaling = TemperatureScaling(plateau, edge, depth)
        step = 1e-6
        for alpha in np.linspace(-1.2 * edge, 1.2 * edge, 257):
            slope = (scaling.value(alpha + step) - scaling.value(alpha - step)) / (2 * step)
            # Central differences: error of step²/6 · max|g‴| ≤ 1e-11 and rounding of 1e-16/step; at the two kinks of
            # g″ the error is of the order of step itself.
            assert scaling.derivative(alpha) == pytest.approx(slope, abs=2e-5)

    def test_steepest_slope(self):
        assert TemperatureScaling().derivative(0.95) == pytest.approx(-1.5 * 0.85 / 1.1)

    @pytest.mark.parametrize("depth", [-0.1, 1.0, 1.5, math.nan, math.inf])
    def test_refuses_depth(self, depth):
        with pytest.raises(ValueError, match=r"depth = .* give a finite number >= 0 and < 1"):
            TemperatureScaling(depth=depth)

    def test_refuses_edge_within_plateau(self):
        with pytest.raises(ValueError, match=r"edge = 0.3 is out of range; give a finite number > 0.4"):
            TemperatureScaling(edge=0.3)


class TestConfiningWell:
    def test_pulls_back_from_both_sides(self):
        well = ConfiningWell(edge=1.5, force=7.0)
        assert [well.force(a) for a in (-2.0, -1.5, 0.0, 1.5, 1.6)] == [7.0, 0.0, 0.0, 0.0, -7.0]

    def test_refuses_negative_force(self):
        with pytest.raises(ValueError, match=r"force = -1.0"):
            ConfiningWell(1.5, -1.0)


class TestMetadynamics:
    @pytest.mark.parametrize("compiled", [True, False])
    def test_values_are_the_sum_of_gaussians(self, compiled, monkeypatch):
        if not compiled:
            monkeypatch.setattr(native, "load", lambda: None)
        bias = Metadynamics(height=0.7, width=0.05, num_bins=200, edge=1.2)
        centers = np.random.default_rng(1).uniform(-1.4, 1.4, 500)
        for center in centers:
            bias.deposit(center)
        inside = centers[np.abs(centers) <= 1.2]
        expected = 0.7 * np.exp(-((bias.nodes[:, None] - inside) ** 2) / (2 * 0.05**2)).sum(1)
        assert inside.size < centers.size
        np.testing.assert_allclose(bias.values, expected, rtol=1e-12, atol=1e-14)

    def test_force_is_minus_the_slope_of_the_bin(self):
        bias = Metadynamics(height=1.0, width=0.04, num_bins=300, edge=1.5)
        bias.deposit(0.2)
        for alpha in (-1.5, 0.1, 0.204, 0.23, 1.4999):
            k = min(int((alpha + 1.5) / 0.01), 299)
            assert bias.force(alpha) == pytest.approx(-(bias.values[k + 1] - bias.values[k]) / 0.01)
            assert alpha * bias.force(alpha) >= 0 if alpha > 0.2 else True
        # One bin is a quarter of a width: the difference is the derivative in the middle of the bin, to (0.25)²/24.
        middle = 0.235
        exact = (middle - 0.2) / 0.04**2 * math.exp(-((middle - 0.2) ** 2) / (2 * 0.04**2))
        assert bias.force(middle) == pytest.approx(exact, rel=0.01)

    def test_force_at_the_edges_and_outside(self):
        bias = Metadynamics(height=1.0, edge=1.5)
        for alpha in (-1.5, 1.5):
            bias.deposit(alpha)
        assert bias.force(1.5) < 0 < bias.force(-1.5)
        assert bias.force(1.5001) == bias.force(-2.0) == 0.0
        before = bias.values
        bias.deposit(1.5001)
        np.testing.assert_array_equal(bias.values, before)

    def test_a_deposit_costs_the_same_after_many(self):
        bias = Metadynamics(height=1.0)
        sizes = set()
        for _ in range(1000):
            bias.deposit(0.3)
            sizes.add(sum(np.asarray(v).size for v in vars(bias).values()))
        assert sizes == {2 * 301 + 4}

    def test_a_copy_has_hills_of_its_own(self):
        bias = Metadynamics(height=1.0)
        bias.deposit(0.3)
        before, twin = bias.values, copy.deepcopy(bias)
        twin.deposit(0.3)
        np.testing.assert_array_equal(bias.values, before)
        np.testing.assert_array_equal(twin.values, 2 * before)

    def test_state_of_another_grid_is_refused(self):
        bias, other = Metadynamics(height=1.0, num_bins=100), Metadynamics(height=1.0, num_bins=200)
        bias.deposit(0.0)
        other.deposit(0.3)
        before = other.values
        with pytest.raises(ValueError, match=r"100 bins over ±1.5, this one has 200"):
            other.load_state_dict(bias.state_dict())
        np.testing.assert_array_equal(other.values, before)

    def test_arrays_handed_out_are_copies(self):
        bias = Metadynamics(height=1.0)
        bias.values[:] = 5.0
        bias.nodes[:] = 5.0
        bias.state_dict()["values"].fill_(5.0)
        assert bias.values.max() == 0.0
        assert bias.nodes[0] == -1.5

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"height": -1.0}, "height = -1.0"),
            ({"height": 1.0, "width": 0.0}, "width = 0.0"),
            ({"height": 1.0, "num_bins": 0}, "num_bins = 0"),
            ({"height": math.nan}, "height = nan"),
        ],
    )
    def test_refuses(self, options, message):
        with pytest.raises(ValueError, match=message):
            Metadynamics(**options)
