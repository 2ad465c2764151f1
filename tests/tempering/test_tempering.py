"""The α-subsystem: the paper's numbers, its own law, the mass, replacing pieces, state."""

import copy
import math

import numpy as np
import pytest
import torch

from ctld import diagnostics
from ctld.tempering import (
    Bias,
    ConfiningWell,
    Exploration,
    Metadynamics,
    Scaling,
    TemperatureControl,
    TemperatureScaling,
    Tempering,
    Well,
)
from targets import equal


def test_paper_formulas():
    tempering = Tempering.paper(step_size=8e-4, exploration_steps=18_000)
    assert tempering.friction == pytest.approx(1250.0)
    assert tempering.well.strength == pytest.approx(1.5 / 6.4e-7)
    assert tempering.bias.height == pytest.approx(20 / (6.4e-7 * 18_000 * 300))
    assert (tempering.bias.width, tempering.bias.num_bins, tempering.bias.edge) == (0.04, 300, 1.5)
    assert (tempering.scaling.plateau, tempering.scaling.edge, tempering.scaling.depth) == (0.4, 1.5, 0.85)
    assert tempering.mass is None
    assert Tempering.paper(8e-4, 18_000, mass=1).mass == 1.0


def test_mean_temperature_ratio_is_the_integral():
    alpha = np.linspace(-1.5, 1.5, 300_001)
    scaling = TemperatureScaling()
    exact = np.mean([1 / scaling.value(a) for a in alpha])
    assert Tempering.paper(0.01, 100).mean_temperature_ratio == pytest.approx(exact, rel=1e-5)


class TestMass:
    def test_automatic_mass_is_the_spec_formula(self):
        tempering = Tempering.paper(0.005, 2000)
        tempering.prepare(Exploration(0.005, 0.3))
        hamiltonian = 2.3 * 5000 / 0.0032
        tempering.end(hamiltonian, 0.1)
        assert tempering.mass == pytest.approx(0.005**2 * (1.5 * 0.85 / 1.1) * hamiltonian / 0.3, rel=1e-5)
        tempering.end(10 * hamiltonian, 0.1)
        assert tempering.mass == pytest.approx(0.005**2 * (1.5 * 0.85 / 1.1) * hamiltonian / 0.3, rel=1e-5)

    def test_automatic_mass_is_one_where_the_paper_was_stable(self):
        tempering = Tempering.paper(8e-4, 18_000)
        tempering.prepare(Exploration(8e-4, 0.3))
        # The largest H that moves α by 0.3 at most.
        tempering.end(0.3 / (6.4e-7 * 1.5 * 0.85 / 1.1) * 0.999, 0.1)
        assert tempering.mass == 1.0

    def test_a_negative_potential_has_a_mass_too(self):
        tempering = Tempering.paper(0.1, 100)
        tempering.prepare(Exploration(0.1, 0.0))
        tempering.end(-1e6, 0.0)
        assert tempering.mass > 1000

    def test_well_and_bias_accelerate_every_mass_alike(self):
        moves = []
        for mass in (1.0, 50.0):
            tempering = Tempering.paper(0.1, 100, mass=mass)
            tempering.prepare(Exploration(0.1, 0.0))
            tempering.alpha = 1.7
            tempering.end(0.0, 0.0)
            before = tempering.alpha
            tempering.end(0.0, 0.0)
            moves.append(tempering.alpha - before)
        assert moves == pytest.approx([-1.5, -1.5])


class TestOwnLaw:
    """With γ_α = 1/η, no coupling and no bias, α is a random walk with steps of variance 2η²/m."""

    def test_free_diffusion(self):
        step_size, mass, steps = 0.1, 4.0, 40_000
        tempering = Tempering(step_size=step_size, mass=mass, alpha_momentum=0.0)
        tempering.prepare(Exploration(step_size, 0.0))
        alpha = np.array([_advanced(tempering, 0.0, e) for e in np.random.default_rng(2).standard_normal(steps)])
        assert "beyond ±1.5" in tempering.remark
        variance = np.var(np.diff(alpha))
        expected = 2 * step_size**2 / mass
        # A variance of n normal numbers has the relative error sqrt(2/n) = 0.7 %.
        assert variance == pytest.approx(expected, rel=3 * math.sqrt(2 / steps))
        assert variance != pytest.approx(1.1 * expected, rel=3 * math.sqrt(2 / steps))

    @staticmethod
    def driven_out(*, pull, height):
        """α under H = 6, which favours the hot edge by 6·0.85 kT; `pull` is how far the well moves α in one step."""
        step_size = 0.05
        bias = Metadynamics(height) if height else None
        tempering = Tempering(well=ConfiningWell(1.5, pull / step_size**2), bias=bias, step_size=step_size, mass=1.0)
        tempering.prepare(Exploration(step_size, 0.0))
        alpha = [_advanced(tempering, 6.0, e) for e in np.random.default_rng(3).standard_normal(60_000)]
        return np.array(alpha[20_000:])

    def test_bias_makes_alpha_uniform(self):
        levelled = self.driven_out(pull=0.1, height=0.01)
        # 40,000 steps, correlated over about (3/0.07)² = 1,800, are 20 independent ones: hills refill what chance has
        # left, so that the distance is far below the 0.3 of twenty free draws in 15 bins. Two seeds gave 0.015, 0.024.
        assert diagnostics.total_variation(levelled, num_bins=15) < 0.05

    @pytest.mark.filterwarnings("ignore:alpha spent")
    def test_without_a_bias_it_is_not(self):
        free = self.driven_out(pull=0.1, height=0.0)
        assert diagnostics.total_variation(free, num_bins=15) > 0.5
        assert diagnostics.cold_share(free).share < 0.02

    def test_the_papers_well_keeps_it_from_being_uniform(self):
        """Erratum 6: a pull of δ′ in one step takes α from the hot edge to the cold plateau."""
        teleported = self.driven_out(pull=1.5, height=0.01)
        assert diagnostics.total_variation(teleported, num_bins=15) > 0.1


def _advanced(tempering, hamiltonian, normal):
    tempering.end(hamiltonian, normal)
    return tempering.alpha


class TestCompensation:
    def test_noise_variance_loses_what_the_potential_brings(self):
        tempering = Tempering(step_size=0.1, mass=1.0, alpha=0.95, alpha_momentum=0.0)
        tempering.prepare(Exploration(0.1, 0.0))
        slope = 1.5 * 0.85 / 1.1
        tempering.end(0.0, 1.0, hamiltonian_variance=50.0)
        assert tempering.alpha_momentum == pytest.approx(math.sqrt(2 - (0.1 * slope) ** 2 * 50.0))
        assert tempering.steps_clamped == 0

    def test_clamped_and_counted(self):
        tempering = Tempering(step_size=0.1, mass=1.0, alpha=0.95, alpha_momentum=0.0)
        tempering.prepare(Exploration(0.1, 0.0))
        tempering.end(0.0, 1.0, hamiltonian_variance=1e6)
        assert tempering.alpha_momentum == 0.0
        assert tempering.steps_clamped == 1


class TestPieces:
    def test_well_and_bias_may_be_left_out(self):
        tempering = Tempering(scaling=TemperatureScaling(depth=0.5))
        tempering.prepare(Exploration(0.1, 1.0))
        assert (tempering.step_size, tempering.friction, tempering.alpha_momentum) == (0.1, 10.0, 1.0)
        assert tempering.end(3.0, 0.0) == 0.0

    def test_pieces_of_the_users_own(self):
        class Exponential(Scaling):
            edge = 1.0

            def value(self, alpha):
                return np.exp(-abs(alpha))

            def derivative(self, alpha):
                return -np.sign(alpha) * np.exp(-abs(alpha))

        class Spring(Well):
            def force(self, alpha):
                return torch.tensor(-3.0 * alpha)

        class Forgetful(Bias):
            def deposit(self, alpha):
                self.at = alpha

            def force(self, alpha):
                return np.float64(0.25)

        tempering = Tempering(scaling=Exponential(), well=Spring(), bias=Forgetful(), mass=2.0, alpha=0.5)
        tempering.prepare(Exploration(0.1, 0.0))
        force = tempering.end(4.0, 0.0)
        assert force == pytest.approx(4.0 * math.exp(-0.5) + 2.0 * (-1.5 + 0.25))
        assert tempering.bias.at == 0.5
        assert isinstance(tempering, TemperatureControl)
        assert all(type(value) in (int, float) for value in tempering.state_dict().values())

    def test_pieces_without_an_edge_need_one(self):
        class Flat(Scaling):
            def value(self, alpha):
                return 1.0

            def derivative(self, alpha):
                return 0.0

        with pytest.raises(ValueError, match=r"Tempering\(edge=\.\.\.\)"):
            Tempering(scaling=Flat())
        assert Tempering(scaling=Flat(), edge=2.0).edge == 2.0

    def test_serves_one_optimizer(self):
        tempering = Tempering()
        tempering.prepare(Exploration(0.1, 0.0))
        with pytest.raises(ValueError, match="one Tempering for each optimizer"):
            tempering.prepare(Exploration(0.1, 0.0))

    def test_end_before_prepare(self):
        with pytest.raises(ValueError, match="prepare"):
            Tempering().end(0.0, 0.0)

    @pytest.mark.parametrize("option", ["step_size", "mass", "friction"])
    @pytest.mark.parametrize("value", [-1.0, math.nan, math.inf])
    def test_refuses(self, option, value):
        with pytest.raises(ValueError, match=f"{option} = "):
            Tempering(**{option: value})


class TestState:
    @staticmethod
    def running():
        tempering = Tempering.paper(0.05, 100)
        tempering.prepare(Exploration(0.05, 0.5))
        return tempering

    def test_resumes_to_the_same_bits(self):
        normals = np.random.default_rng(4).standard_normal(200).tolist()
        whole, first = self.running(), self.running()
        for e in normals:
            whole.end(3.0, e)
        for e in normals[:77]:
            first.end(3.0, e)
        second = Tempering.paper(0.05, 100)
        second.prepare(Exploration(0.9, -3.0))
        second.load_state_dict(copy.deepcopy(first.state_dict()))
        for e in normals[77:]:
            second.end(3.0, e)
        left, right = whole.state_dict(), second.state_dict()
        assert torch.equal(left.pop("bias_values"), right.pop("bias_values"))
        assert left == right

    def test_edge_comes_with_the_well(self):
        """Else steps outside would be counted against another edge than the well's."""

        def build(edge):
            tempering = Tempering(scaling=TemperatureScaling(edge=edge), well=ConfiningWell(edge, 1.0))
            tempering.prepare(Exploration(0.05, 0.0))
            return tempering

        loaded = build(3.0)
        loaded.load_state_dict(build(1.0).state_dict())
        assert loaded.edge == loaded.well.edge == loaded.scaling.edge == 1.0

    def test_mass_that_is_not_known_yet_survives(self):
        second = self.running()
        second.mass = 3.0
        second.load_state_dict(self.running().state_dict())
        assert second.mass is None

    @pytest.mark.parametrize(
        ("build", "message"),
        [
            (lambda: Tempering.paper(0.05, 100, num_bins=150), "300 bins"),
            (lambda: Tempering(step_size=0.05), "bias_values"),
        ],
    )
    def test_refused_and_unchanged(self, build, message):
        tempering = build()
        tempering.prepare(Exploration(0.05, 0.0))
        before = copy.deepcopy(tempering.state_dict())
        with pytest.raises(ValueError, match=message):
            tempering.load_state_dict(self.running().state_dict())
        assert equal(tempering.state_dict(), before)

    def test_refused_after_its_pieces_were_loaded_and_unchanged(self):
        tempering = self.running()
        before = copy.deepcopy(tempering.state_dict())
        state = copy.deepcopy(before) | {"scaling_depth": 0.5, "well_force": 7.0, "bias_height": 3.0, "alpha": "hot"}
        state["bias_values"] += 1.0
        with pytest.raises(TypeError, match="alpha = 'hot'"):
            tempering.load_state_dict(state)
        assert equal(tempering.state_dict(), before)

    def test_foreign_state_is_refused(self):
        with pytest.raises(ValueError, match="not that of this Tempering"):
            self.running().load_state_dict({"alpha": 0.0})


def test_share_outside_is_counted_and_warned_of_once():
    tempering = Tempering(step_size=1.0, mass=1.0, alpha=5.0, alpha_momentum=0.0, friction=0.0)
    tempering.prepare(Exploration(1.0, 0.0))
    for _ in range(99):
        tempering.end(0.0, 0.0)
    assert tempering.remark is None
    tempering.end(0.0, 0.0)
    assert "100% of 100 steps beyond ±1.5" in tempering.remark
    tempering.remark = None
    for _ in range(50):
        tempering.end(0.0, 0.0)
    assert tempering.remark is None
    assert tempering.share_outside == 1.0
