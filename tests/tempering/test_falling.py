"""FallingTemperature: a saw from hot to cold, whatever the energy; it resumes, and refuses another's state."""

import math

import pytest

from ctld import CTLD, CycleLR
from ctld.tempering.falling import FallingTemperature, falling_ratio
from targets import Classification, saved


def test_a_saw_from_hot_to_cold():
    tempering = FallingTemperature(5, hot=8.0, cold=0.5)
    ratios = []
    for _ in range(7):
        ratios.append(tempering.temperature_ratio)
        tempering.advance(1e9, 5.0)
    assert ratios == pytest.approx([8.0, 4.0, 2.0, 1.0, 0.5, 0.5, 0.5])
    tempering.restart()
    assert tempering.temperature_ratio == 8.0
    assert tempering.mean_temperature_ratio == pytest.approx((8 + 4 + 2 + 1 + 0.5) / 5)
    assert falling_ratio(0, 1, 8.0, 0.5) == 0.5


def test_in_cycles_it_starts_anew_and_resumes_to_the_bit():
    def fresh(seed):
        problem = Classification()
        optimizer = CTLD(
            problem.model.parameters(),
            0.05,
            0.8,
            num_data=96,
            weight_decay=1e-2,
            exploration_steps=6,
            cycle_steps=10,
            temperature=0.1,
            tempering=FallingTemperature(6),
            seed=seed,
        )
        return problem, optimizer, CycleLR(optimizer)

    def go_on(problem, optimizer, scheduler, steps):
        seen = []
        for step in steps:
            seen.append(optimizer.temperature_ratio)
            optimizer.step(loss=problem.backward(step))
            scheduler.step()
        return seen

    problem, optimizer, scheduler = fresh(5)
    ratios = go_on(problem, optimizer, scheduler, range(13))
    fall = [math.exp(math.log(0.01) * k / 5) for k in range(6)]
    assert ratios == pytest.approx([*fall, 1.0, 1.0, 1.0, 1.0, *fall[:3]])
    state = saved([dict(problem.model.state_dict()), optimizer.state_dict(), scheduler.state_dict()])
    go_on(problem, optimizer, scheduler, range(13, 25))
    other, resumed, again = fresh(9)
    other.model.load_state_dict(state[0])
    resumed.load_state_dict(state[1])
    again.load_state_dict(state[2])
    go_on(other, resumed, again, range(13, 25))
    assert other.flat().equal(problem.flat())


def test_bad_input():
    with pytest.raises(ValueError, match=r"cold = 2 is above hot = 1: the temperature is to fall"):
        FallingTemperature(5, hot=1.0, cold=2.0)
    with pytest.raises(ValueError, match="cold = 0"):
        FallingTemperature(5, cold=0.0)
    with pytest.raises(ValueError, match="the state has fall_steps = 5, this temperature 6; build it as it was"):
        FallingTemperature(6).load_state_dict(FallingTemperature(5).state_dict())
