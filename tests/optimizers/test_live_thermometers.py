"""Live thermometers: right where the answer is known, wrong where something is, part of the state, and quick to say so."""

import copy
import math
import warnings

import numpy as np
import pytest
import torch
from torch import nn

from ctld import CTLD, RMSPreconditioner, TemperatureWarning, Tempering
from ctld.diagnostics import batch_means_error
from ctld.diagnostics.streaming import FEWEST, MOST, BatchMeans
from ctld.thermometers import GroupThermometer
from ctld.thermometers.advice import kinetic_share
from targets import Classification, equal, saved, train

N = 1000.0
LR, MOMENTUM, CURVATURE = 0.1, 0.9, 1.0


def sample(steps, *, noise=0.0, dimensions=400, groups=1, seed=0, lr=LR, momentum=MOMENTUM, tempering=None, **options):
    """A Gaussian of N data; its gradients with noise of this standard deviation. Quiet about temperatures.

    A step costs the same with 50 elements and with 400, which tell as much in an eighth of the steps.
    """
    generator = torch.Generator().manual_seed(seed)
    draw = lambda: torch.randn(dimensions, generator=generator, dtype=torch.float64)  # noqa: E731
    parameters = [nn.Parameter(draw() / math.sqrt(N * CURVATURE)) for _ in range(groups)]
    optimizer = CTLD(
        [{"params": [parameter]} for parameter in parameters], lr, momentum, num_data=N, exploration_steps=steps,
        temperature=1.0, tempering=tempering or Tempering.constant(1.0), seed=seed, **options,
    )  # fmt: skip
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", TemperatureWarning)
        for _ in range(steps):
            for parameter in parameters:
                parameter.grad = CURVATURE * parameter.detach() + (noise * draw() if noise else 0.0)
            loss = sum(0.5 * CURVATURE * float(parameter.detach().square().sum()) for parameter in parameters)
            optimizer.step(loss=loss)
    return optimizer, [str(warning.message) for warning in caught]


def adds(share):
    """The gradients' noise that adds this share to the temperature."""
    return math.sqrt(share * 2.0 * (1.0 - MOMENTUM) / (N * LR))


class TestBatchMeans:
    def test_the_mean_and_the_error_of_a_series_that_is_kept(self):
        generator = np.random.default_rng(0)
        noise = generator.standard_normal(2**15)
        series = np.empty(noise.size)
        value = 0.0
        for step, shock in enumerate(noise):
            value = 0.9 * value + shock
            series[step] = value
        means = BatchMeans(8)
        for value in series:
            means.add(float(value))
        found = means.estimate()
        kept = series[means.length * (len(means.means) // 10) : means.length * len(means.means)]
        assert found.mean == pytest.approx(kept.mean(), rel=1e-9)
        # Of an autoregression the error is known: σ/(1 − φ)/√n. With about 30 batches it is itself off by 13 %.
        assert found.standard_error == pytest.approx(10.0 / math.sqrt(kept.size), rel=0.4)
        assert found.standard_error == pytest.approx(batch_means_error(kept), rel=0.5)

    def test_memory_is_constant_and_batches_grow(self):
        means = BatchMeans(1)
        for step in range(100_000):
            means.add(float(step))
            assert len(means.means) < MOST
        assert len(means.numbers) == BatchMeans.NUMBERS
        assert means.length * MOST >= 100_000 / 2

    def test_too_few_tell_nothing(self):
        means = BatchMeans(1)
        for step in range(FEWEST - 1):
            means.add(float(step))
        assert means.estimate() is None
        means.add(1.0)
        assert means.estimate() is not None

    def test_goes_on_from_its_numbers(self):
        whole, half = BatchMeans(4), BatchMeans(4)
        for step in range(1000):
            whole.add(math.sin(step))
            half.add(math.sin(step))
            if step == 517:
                again = BatchMeans(4)
                again.numbers = half.numbers
                half = again
        assert whole.numbers == half.numbers

    def test_a_trend_is_not_steady(self):
        flat, rising = BatchMeans(1), BatchMeans(1)
        generator = np.random.default_rng(1)
        for step in range(400):
            noise = float(generator.standard_normal())
            flat.add(noise)
            rising.add(noise + 0.02 * step)
        assert flat.steady
        assert not rising.steady


class TestReadings:
    """Standard errors are those of the readings; a right one is within 3 of them, and they are small enough to tell."""

    @pytest.mark.parametrize("integrator", ["euler", "baoab", "ubu"])
    def test_a_gaussian(self, integrator):
        optimizer, warned = sample(4_000, integrator=integrator)
        found = optimizer.last.groups[0]
        x = LR * CURVATURE
        # Section 8 of the spec, and the laws in integrators.py: the parameters are spread too far by so much.
        spread = {"euler": 1.0 / (1.0 - x / (2.0 * (1.0 + MOMENTUM))), "baoab": 1.0, "ubu": 1.0 + x / 12.0}[integrator]
        assert found.kinetic.standard_error < 0.01
        # UBU's reading is not exact: too large by about lr·curvature/10.
        assert abs(found.kinetic.mean - 1.0 - 0.1 * x * (integrator == "ubu")) < 3.0 * found.kinetic.standard_error
        assert found.configurational.standard_error < 0.04
        assert abs(found.configurational.mean - spread) < 3.0 * found.configurational.standard_error
        assert found.minibatch_heat.mean < 0.01
        assert not warned

    @pytest.mark.parametrize("momentum", [0.5, 0.9])
    @pytest.mark.parametrize("integrator", ["euler", "baoab", "ubu"])
    def test_noise_of_the_gradients_heats_and_its_share_is_told(self, integrator, momentum):
        """The parameters by N lr σ²/(2(1 − μ)), the kinetic reading by its share of that, to the order of lr × curvature."""
        lr = 0.01
        noise = math.sqrt(0.5 * 2.0 * (1.0 - momentum) / (N * lr))
        optimizer, warned = sample(8_000, noise=noise, integrator=integrator, momentum=momentum, lr=lr, seed=1)
        found = optimizer.last.groups[0]
        assert abs(found.minibatch_heat.mean - 0.5) < 3.0 * found.minibatch_heat.standard_error
        assert found.minibatch_heat.standard_error < 0.05
        expected = 1.0 + 0.5 * kinetic_share(integrator, momentum)
        assert abs(found.kinetic.mean - expected) < 4.0 * found.kinetic.standard_error + 0.3 * lr * CURVATURE
        assert found.kinetic.standard_error < 0.01
        assert len(warned) == 1
        assert "minibatches add" in warned[0]
        assert "larger batches" in warned[0]
        assert ("noise_compensation=True" in warned[0]) == (integrator == "euler")

    def test_many_elements_are_looked_at_by_some_of_them(self):
        optimizer, _ = sample(3_000, noise=adds(0.5), dimensions=5_000)
        found = optimizer.last.groups[0]
        assert abs(found.minibatch_heat.mean - 0.5) < 3.0 * found.minibatch_heat.standard_error
        assert abs(found.configurational.mean - 1.5 * 1.027) < 4.0 * found.configurational.standard_error

    def test_each_group_has_its_own(self):
        steps = 3_000
        quiet, noisy, frozen = (nn.Parameter(torch.zeros(40, dtype=torch.float64)) for _ in range(3))
        groups = [{"params": [quiet]}, {"params": [frozen], "explore": False}, {"params": [noisy]}]
        optimizer = CTLD(groups, LR, MOMENTUM, num_data=N, exploration_steps=steps, temperature=1.0,
                         tempering=Tempering.constant(1.0), seed=0)  # fmt: skip
        generator = torch.Generator().manual_seed(0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TemperatureWarning)
            for _ in range(steps):
                for parameter in (quiet, noisy, frozen):
                    parameter.grad = parameter.detach().clone()
                noisy.grad += adds(1.0) * torch.randn(40, generator=generator, dtype=torch.float64)
                optimizer.step(loss=0.0)
        cool, none, hot = optimizer.last.groups
        assert none is None
        assert abs(cool.kinetic.mean - 1.0) < 4.0 * cool.kinetic.standard_error
        assert hot.kinetic.mean > 1.5

    def test_only_the_lowest_temperature_counts(self):
        thermometer = GroupThermometer()
        for _ in range(1000):
            thermometer.read(1.0, 2.0)
            thermometer.read_probe(1.0, 1.0, 2.0)
        for _ in range(1000):
            thermometer.read(3.0, 1.0)
            thermometer.read(9.0, 5.0)
            thermometer.read_probe(4.0, 5.0, 1.0)
        found = thermometer.temperatures
        assert (found.kinetic.mean, found.configurational.mean, found.minibatch_heat.mean) == (3.0, 4.0, 5.0)

    def test_looks_do_not_keep_step_with_a_timetable(self):
        """10,000 steps have a look in every hundred, as often as α comes around."""
        parameter = nn.Parameter(torch.zeros(200, dtype=torch.float64))
        optimizer = CTLD([parameter], LR, num_data=N, exploration_steps=10_000, temperature=1.0, seed=0)
        assert optimizer.thermometers.period == 100
        starts = {-optimizer.thermometers.phase(step, optimizer.seed) for step in range(0, 10_000, 100)}
        assert len(starts) > 40
        assert 0 <= min(starts) <= max(starts) <= 97

    @pytest.mark.parametrize("turn", ["lost at the third", "in turns"])
    def test_gradients_that_come_and_go_are_not_taken_for_noise(self, turn):
        steps = 3_000
        first, second = (nn.Parameter(torch.full((30,), 0.03, dtype=torch.float64)) for _ in range(2))
        optimizer = CTLD([first, second], 1e-6, MOMENTUM, num_data=N, exploration_steps=steps, temperature=1e-6,
                         tempering=Tempering.constant(), seed=0)  # fmt: skip
        for step in range(steps):
            phase = optimizer.thermometers.phase(step, optimizer.seed)
            first.grad, second.grad = first.detach().clone(), second.detach().clone()
            if turn == "lost at the third" and phase == 2:
                second.grad = None
            if turn == "in turns":
                (first if step % 2 else second).grad = None
            optimizer.step(loss=0.0)
        heat = optimizer.thermometers.of(0).heat
        assert heat.estimate() is None
        assert not heat.means

    def test_maximize_and_weight_decay_have_their_part(self):
        """U = −(−½k x²) + ½λx²: the same Gaussian, of curvature k + λ."""
        steps, decay = 4_000, 0.5
        parameter = nn.Parameter(torch.zeros(400, dtype=torch.float64))
        optimizer = CTLD([parameter], LR, MOMENTUM, num_data=N, exploration_steps=steps, temperature=1.0, maximize=True,
                         weight_decay=decay, tempering=Tempering.constant(1.0), integrator="baoab", seed=2)  # fmt: skip
        for _ in range(steps):
            parameter.grad = -parameter.detach()
            optimizer.step(loss=-0.5 * float(parameter.detach().square().sum()))
        found = optimizer.last.groups[0].configurational
        assert abs(found.mean - 1.0) < 3.0 * found.standard_error < 0.1


class TestAdvice:
    def test_steps_too_large(self):
        _, warned = sample(4_000, lr=1.0)
        assert len(warned) == 1
        assert "configurational" in warned[0]
        assert 'integrator="baoab"' in warned[0]

    def test_an_alpha_that_moves_too_fast(self):
        _, warned = sample(4_000, tempering=Tempering.driven(100))
        assert len(warned) == 1
        assert "a longer period" in warned[0]

    def test_a_slow_one_is_left_alone(self):
        optimizer, warned = sample(4_000, tempering=Tempering.driven(10_000), integrator="baoab")
        assert abs(optimizer.last.groups[0].kinetic.mean - 1.0) < 0.03
        assert not warned

    def test_motion_is_not_called_noise(self):
        """At lr × curvature 1 the gradient changes as if it were noisy; what is wrong is α."""
        _, warned = sample(4_000, lr=1.0, tempering=Tempering.driven(100))
        assert len(warned) == 1
        assert "minibatches" not in warned[0]

    def test_nothing_that_would_be_refused_is_recommended(self):
        rms = RMSPreconditioner(adapt_steps=1000)
        _, warned = sample(4_000, noise=adds(0.5), preconditioner=rms)
        assert "noise_compensation" not in warned[0]
        _, warned = sample(4_000, noise=adds(3.0), lr=1.0, noise_compensation=True)
        assert all("baoab" not in advice and "compensation=True" not in advice for advice in warned)

    def test_too_cold(self):
        """Compensation takes the motion at large steps for noise."""
        optimizer, warned = sample(4_000, lr=1.0, noise_compensation=True)
        assert optimizer.last.groups[0].kinetic.mean < 0.8
        assert len(warned) == 1
        assert "noise_compensation=False" in warned[0]
        assert "α" not in warned[0]

    def test_an_error_comes_when_the_step_is_over(self):
        parameter = nn.Parameter(torch.zeros(50, dtype=torch.float64))
        control = Tempering.driven(100)
        optimizer = CTLD([parameter], LR, MOMENTUM, num_data=N, exploration_steps=6_000, temperature=1.0, tempering=control,
                         seed=0)  # fmt: skip
        taken, raised = 0, 0
        with warnings.catch_warnings():
            warnings.simplefilter("error", TemperatureWarning)
            for _ in range(6_000):
                parameter.grad = parameter.detach().clone()
                try:
                    optimizer.step(loss=0.0)
                except TemperatureWarning:
                    raised += 1
                taken += 1
                assert optimizer.state_dict()["param_groups"][0]["ctld_step"] == taken if raised else True
        assert raised == 1
        again = CTLD([parameter], LR, MOMENTUM, num_data=N, exploration_steps=6_000, temperature=1.0,
                     tempering=Tempering.driven(100), seed=0)  # fmt: skip
        again.load_state_dict(saved(optimizer.state_dict()))
        assert again.thermometers.warned  # and will not say it again

    def test_an_automatic_temperature_is_only_logged(self, caplog):
        generator = torch.Generator().manual_seed(0)
        parameter = nn.Parameter(0.03 * torch.randn(50, 2, generator=generator, dtype=torch.float64))
        optimizer = CTLD([parameter], LR, MOMENTUM, num_data=N, exploration_steps=6_000, weight_decay=1.0, seed=0,
                         tempering=Tempering.driven(100))  # fmt: skip
        for _ in range(6_000):
            parameter.grad = torch.zeros_like(parameter)
            optimizer.step(loss=0.0)
        (advice,) = [record.message for record in caplog.records if "kinetic temperature" in record.message]
        assert "a longer period" in advice

    def test_points_at_the_line_of_the_user(self):
        with pytest.warns(TemperatureWarning) as caught:
            parameter = nn.Parameter(torch.zeros(50, dtype=torch.float64))
            optimizer = CTLD([parameter], LR, MOMENTUM, num_data=N, exploration_steps=6_000, temperature=1.0,
                             tempering=Tempering.driven(100), seed=0)  # fmt: skip
            for _ in range(6_000):
                parameter.grad = parameter.detach().clone()
                optimizer.step(loss=0.5 * float(parameter.detach().square().sum()))
        assert [warning.filename for warning in caught] == [__file__]


class TestState:
    @pytest.mark.parametrize("interruption", [1, 2, 50, 65, 66, 67, 68, 69, 70, 72, 75, 80, 85, 90, 95])
    def test_resumed_readings_are_the_uninterrupted_ones(self, interruption):
        """Three of 32 steps are a look; also in the middle of one."""
        options = {"lr": 0.05, "momentum": 0.8, "num_data": 96, "exploration_steps": 200, "temperature": 0.1, "seed": 1}
        whole = Classification()
        optimizer = CTLD(whole.model.parameters(), **options)
        train(whole, optimizer, range(150))
        part = Classification()
        first = CTLD(part.model.parameters(), **options)
        train(part, first, range(interruption))
        second = CTLD(part.model.parameters(), **options)
        second.load_state_dict(saved(first.state_dict()))
        train(part, second, range(interruption, 150))
        assert equal(second.state_dict(), optimizer.state_dict())
        assert second.last.groups == optimizer.last.groups
        assert second.last.groups[0].kinetic is not None

    def test_a_refused_step_leaves_no_trace(self):
        problem = Classification()
        optimizer = CTLD(
            problem.model.parameters(), lr=0.05, num_data=96, exploration_steps=200, temperature=0.1, seed=1
        )
        train(problem, optimizer, range(17))
        before = copy.deepcopy(optimizer.state_dict())
        loss = problem.backward(17)
        next(problem.model.parameters()).grad[0] = math.nan
        with pytest.raises(ValueError, match="NaN"):
            optimizer.step(loss=loss)
        assert equal(optimizer.state_dict(), before)

    def test_averages_go_on_over_cycles(self):
        problem = Classification()
        optimizer = CTLD(problem.model.parameters(), lr=0.05, num_data=96, exploration_steps=60, cycle_steps=70,
                         temperature=0.1, seed=1, tempering=Tempering.constant())  # fmt: skip
        train(problem, optimizer, range(60))
        assert optimizer.last.groups[0].kinetic is None
        train(problem, optimizer, range(60, 180))
        assert optimizer.last.groups[0].kinetic is not None

    def test_known_in_fine_tuning_and_at_rest(self):
        problem = Classification()
        optimizer = CTLD(problem.model.parameters(), lr=0.05, num_data=96, exploration_steps=200, temperature=0.1, seed=1,
                         tempering=Tempering.constant())  # fmt: skip
        train(problem, optimizer, range(199))
        known = optimizer.last.groups[0]
        assert known.kinetic is not None
        optimizer.param_groups[0]["lr"] = 0.0
        train(problem, optimizer, range(199, 200))
        assert optimizer.last.groups == (known,)
        optimizer.param_groups[0]["lr"] = 0.05
        train(problem, optimizer, range(200, 205))
        assert optimizer.last.groups == (known,)

    def test_a_copy_goes_on_by_itself(self):
        problem = Classification()
        optimizer = CTLD(
            problem.model.parameters(), lr=0.05, num_data=96, exploration_steps=200, temperature=0.1, seed=1
        )
        train(problem, optimizer, range(70))
        twin_problem, twin = copy.deepcopy((problem, optimizer))
        train(problem, optimizer, range(70, 150))
        train(twin_problem, twin, range(70, 150))
        assert equal(twin.state_dict(), optimizer.state_dict())


def test_how_long_ago_the_last_cold_step_was():
    """A triangle wave from cold to hot and back: counted by hand. It goes on through a state, and through fine-tuning."""
    problem = Classification()
    options = {"num_data": 96, "weight_decay": 1e-2, "temperature": 0.1, "seed": 3, "exploration_steps": 60}
    optimizer = CTLD(problem.model.parameters(), 0.05, tempering=Tempering.driven(25), **options)
    expected = None
    for step in range(70):
        train(problem, optimizer, range(step, step + 1))
        if step < 60 and optimizer.last.temperature_ratio == 1.0:
            expected = 0
        elif expected is not None:
            expected += 1
        assert optimizer.last.steps_since_cold == expected
        if step == 40:
            state = optimizer.state_dict()
            optimizer = CTLD(problem.model.parameters(), 0.05, tempering=Tempering.driven(25), **options)
            optimizer.load_state_dict(state)
    assert expected >= 10


def test_a_run_that_is_never_cold_says_so():
    problem = Classification()
    optimizer = CTLD(
        problem.model.parameters(),
        0.05,
        num_data=96,
        exploration_steps=9,
        temperature=0.1,
        tempering=Tempering.constant(2.0),
    )
    train(problem, optimizer, range(5))
    assert optimizer.last.steps_since_cold is None
