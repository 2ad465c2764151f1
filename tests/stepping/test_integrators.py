"""Plans of the integrators: the numbers, and what they mean on a Gaussian."""

import math

import pytest

from ctld.stepping.integrators import INTEGRATORS, FreeMotion, baoab, buffer_unit, euler, kick_of, rest, sgd, ubu
from ctld.stepping.sweep import Compensation, Reading, Sweep

LR, MU, TAU = 0.09, 0.8, 0.02


def moments(plan, curvature, steps=4000):
    """Variances of θ and of u, and their covariance, on a Gaussian, by following the plan's linear map."""
    second = [[1.0, 0.0], [0.0, TAU]]
    for _ in range(steps):
        for sweep in plan.sweeps:
            # (θ, p) → p = retain·p + impulse·k·θ + noise, θ = θ + stride·p
            a = [
                [1.0 + sweep.stride * sweep.impulse * curvature, sweep.stride * sweep.retain],
                [sweep.impulse * curvature, sweep.retain],
            ]
            half = [[sum(a[i][k] * second[k][j] for k in range(2)) for j in range(2)] for i in range(2)]
            second = [[sum(half[i][k] * a[j][k] for k in range(2)) for j in range(2)] for i in range(2)]
            noise = (sweep.stride * sweep.deviation, sweep.deviation)
            second = [[second[i][j] + noise[i] * noise[j] for j in range(2)] for i in range(2)]
    return second


class TestGaussian:
    @pytest.mark.parametrize("curvature", [0.5, 4.0])
    def test_baoab_is_exact(self, curvature):
        (position, _), _ = moments(baoab(LR, MU, TAU), curvature)
        assert position == pytest.approx(TAU / curvature, rel=1e-9)

    @pytest.mark.parametrize("curvature", [0.5, 4.0])
    def test_euler_is_too_wide_by_a_known_factor(self, curvature):
        (position, _), _ = moments(euler(LR, MU, TAU), curvature)
        expected = TAU / curvature / (1.0 - LR * curvature / (2.0 * (1.0 + MU)))
        assert position == pytest.approx(expected, rel=1e-9)
        assert position != pytest.approx(TAU / curvature, rel=1e-3)

    @pytest.mark.parametrize("curvature", [0.1, 0.5])
    def test_ubu_is_too_wide_by_a_twelfth(self, curvature):
        (position, _), _ = moments(ubu(LR, MU, TAU), curvature)
        excess = position * curvature / TAU - 1.0
        assert excess == pytest.approx(kick_of("ubu", LR, MU) ** 2 * curvature / 12.0, rel=0.1)

    @pytest.mark.parametrize("name", INTEGRATORS)
    def test_without_noise_it_is_sgd(self, name):
        """The path of θ under baoab and ubu is SGD's, seen where the gradient is taken."""
        curvature, path = 0.7, {}
        for which, plan in (("sgd", sgd(LR, MU)), (name, INTEGRATORS[name](LR, MU, 0.0))):
            theta, p, path[which] = 1.0, 0.0, []
            for _ in range(30):
                for sweep in plan.sweeps:
                    p = sweep.retain * p + sweep.impulse * curvature * theta if sweep.impulse else sweep.retain * p
                    theta += sweep.stride * p
                path[which].append(theta)
        if name == "euler":
            assert path[name] == pytest.approx(path["sgd"])
        else:  # the first half kick of a start at rest is missing; the recurrence is the same
            for track in path.values():
                triples = zip(track, track[1:], track[2:], strict=False)
                for before, here, after in triples:
                    assert after == pytest.approx((1 + MU) * here - MU * before - LR * curvature * here)


def test_factors_on_momenta():
    """`before` and `after` multiply u around the refreshment; θ moves by the momenta as they were."""
    plan = euler(LR, MU, TAU, before=1.1, after=0.7)
    assert plan.sweeps[0].retain == pytest.approx(0.77 * MU)
    assert plan.sweeps[0].retain * plan.sweeps[0].stride == pytest.approx(MU * math.sqrt(LR))
    first, second = baoab(LR, MU, TAU, before=1.1, after=0.7).sweeps
    assert first.stride == pytest.approx(1.1 * 0.5 * kick_of("baoab", LR, MU))
    assert second.retain == pytest.approx(0.77 * MU)
    assert second.stride * second.deviation == pytest.approx(
        0.5 * kick_of("baoab", LR, MU) * math.sqrt((1 - MU**2) * TAU)
    )


def test_options_reach_the_plan():
    plan = euler(LR, MU, TAU, decay=0.01, ascend=True, compensate=True, scaled=True)
    assert (plan.decay, plan.ascend, plan.scaled, plan.measure) == (0.01, True, True, True)
    assert plan.compensation == Compensation(LR, 2 * (1 - MU) * TAU)
    assert sgd(LR, MU, decay=0.01).sweeps == (Sweep(MU, 1.0, -LR),)
    assert rest().sweeps == ()
    assert rest().measure
    assert [sweep.second_noise for sweep in ubu(LR, MU, TAU).sweeps] == [False, True]


@pytest.mark.parametrize("name", ["baoab", "ubu"])
def test_compensation_goes_with_euler(name):
    with pytest.raises(ValueError, match=name):
        INTEGRATORS[name](LR, MU, TAU, compensate=True)


def test_readings():
    rows = [(1.0, 2.0, 3.0, 4.0), (5.0, 6.0, 7.0, 8.0)]
    assert Reading()(rows[:1]) == rows[0]
    assert Reading("mean", 3.0, 2.0)(rows) == (1.0, 6.0, 2.0 * (6.0 + 3.0), 0.0)
    assert Reading("last", 3.0, 2.0)(rows) == (1.0, 3.0, 12.0, 0.0)


def test_free_motion_has_the_exact_law():
    motion = FreeMotion.over(MU)
    length = -math.log(MU)
    reach = motion.reach - motion.stride * MU
    moved = (reach + motion.stride * MU) ** 2 * motion.first**2 + (motion.stride * motion.second) ** 2
    assert moved == pytest.approx((2 * length - 3 + 4 * MU - MU**2) / length**2)
    assert MU**2 * motion.first**2 + motion.second**2 == pytest.approx(1 - MU**2)


def test_units_of_the_buffer():
    assert buffer_unit("euler", LR, MU) == math.sqrt(LR)
    assert buffer_unit("baoab", LR, MU) == MU * math.sqrt(2 * LR / (1 + MU))
    assert kick_of("ubu", LR, 0.0) == 0.0
