"""The double well: exact values, many chains against the reference's one, and the rates of Theorem 2."""

import math

import numpy as np
import pytest

from ctld.optimizers.reference import ReferenceCTLD
from ctld_lab import jobs
from ctld_lab.control import Control
from ctld_lab.records import RunDirectory, StudyDirectory
from ctld_lab.sampling import theorem
from ctld_lab.sampling.double_well import measure
from ctld_lab.sampling.replicas import Alphas, Replicas
from ctld_lab.sampling.targets import DoubleWell
from ctld_lab.studies.double_well import STUDY
from ctld_lab.studies.study import Request

# ---- exact values ----


@pytest.mark.parametrize("temperature", [0.3, 1.0, 6.67])
def test_quadrature_against_the_gradient(temperature):
    """⟨x U′(x)⟩ = T, by parts, holds for the quadrature of ⟨32 x²(x² − 1)⟩; and ⟨U⟩ follows from ⟨x²⟩ and it."""
    well = DoubleWell(1)
    # x U′ = 32(x⁴ − x²) and U = 8x⁴ − 16x² + 8, so ⟨U⟩ = T/4 − 8⟨x²⟩ + 8.
    assert well.mean_energy(temperature) == pytest.approx(temperature / 4 - 8 * well.mean_square(temperature) + 8)
    assert DoubleWell(11).mean_energy(temperature) == pytest.approx(well.mean_energy(temperature) + 5 * temperature)


def test_known_numbers():
    assert DoubleWell(1).mean_square() == pytest.approx(0.96445636, abs=1e-8)
    assert DoubleWell(1).mean_energy() == pytest.approx(0.53434909, abs=1e-8)
    # Two narrow Gaussians of variance T/64 when it is cold: ⟨U⟩ → T/2.
    assert DoubleWell(1).mean_energy(0.01) == pytest.approx(0.005, rel=0.01)


def test_many_are_as_each():
    theta = np.random.default_rng(0).standard_normal((5, 3))
    well = DoubleWell(3)
    energies, gradients = well(theta)
    for row in range(5):
        energy, gradient = well(theta[row])
        assert energies[row] == pytest.approx(energy, rel=1e-14)
        assert np.array_equal(gradients[row], gradient)


def test_refuses_what_it_cannot_do():
    with pytest.raises(ValueError, match="dimensions = 0"):
        DoubleWell(0)
    with pytest.raises(ValueError, match="temperature = 8"):
        DoubleWell(1).mean_energy(8.0)
    with pytest.raises(ValueError, match="tempering = 'wrong'"):
        theorem.simulate(
            DoubleWell(1),
            step_size=0.1,
            duration=1.0,
            replicas=2,
            generator=np.random.default_rng(0),
            tempering="wrong",
        )


# ---- many chains at once ----


def test_each_chain_is_algorithm_1():
    """Three chains with noise of their own, each against the reference with the same; α visits walls and slopes."""
    count, dimensions, steps, eta = 3, 4, 1500, 0.03
    generator = np.random.default_rng(5)
    theta, r = generator.standard_normal((2, count, dimensions))
    r_alpha = generator.standard_normal(count)
    epsilon = generator.standard_normal((steps, count, dimensions))
    epsilon_alpha = generator.standard_normal((steps, count))
    well = DoubleWell(dimensions)
    chains = Replicas(theta, r, Alphas(r_alpha, eta, steps), eta=eta, friction=1.0)
    alphas = []
    for step in range(steps):
        alphas.append(chains.alpha)
        U, grad_U = well(chains.theta)
        chains.step(U, grad_U, chains.g(), lambda: epsilon[step], lambda: epsilon_alpha[step])
    for row in range(count):
        reference = ReferenceCTLD(theta=theta[row], r=r[row], r_alpha=r_alpha[row], eta=eta, N=1.0, L_s=steps)
        for step in range(steps):
            assert reference.alpha == pytest.approx(alphas[step][row], abs=1e-6), step
            U, grad_U = well(reference.theta)
            reference.step(U, grad_U, 1.0 - eta, lambda: epsilon[step, row], lambda: epsilon_alpha[step, row])
        # The dynamics multiplies differences of rounding; hills cut off at 8.75 σ are lost in them.
        assert chains.theta[row] == pytest.approx(reference.theta, abs=1e-6)
        assert chains.alphas.V_b[row] == pytest.approx(reference.V_b, abs=1e-6)
    assert np.abs(alphas).max() > 1.5
    assert (np.abs(alphas) < 0.4).any()


def test_without_tempering_it_is_langevin_dynamics():
    eta, steps = 0.05, 200
    epsilon = np.random.default_rng(0).standard_normal((steps, 1, 2))
    well, theta, r = DoubleWell(2), np.array([[1.0, 0.5]]), np.array([[0.1, -0.2]])
    chain = Replicas(theta, r, None, eta=eta, friction=1.0)
    reference = ReferenceCTLD(theta=theta[0], r=r[0], r_alpha=0.0, eta=eta, N=1.0, L_s=steps, S=0.0, height_factor=0.0)
    for step in range(steps):
        U, grad_U = well(chain.theta)
        chain.step(U, grad_U, chain.g(), lambda: epsilon[step], lambda: pytest.fail("there is no α"))
        U_alone, grad_alone = well(reference.theta)
        reference.step(U_alone, grad_alone, 1.0 - eta, lambda: epsilon[step, 0], lambda: 0.0)
    assert chain.theta[0] == pytest.approx(reference.theta, abs=1e-9)


# ---- Theorem 2 ----


def measured(**options):
    averages = theorem.simulate(
        DoubleWell(1), duration=256.0, replicas=2048, generator=np.random.default_rng(1), **options
    )
    return theorem.describe(averages, options["step_size"])


@pytest.fixture(scope="module")
def untempered():
    return measured(step_size=0.04)


def test_the_limit_is_that_of_the_step_size(untempered):
    """η²·64/(2(1 + μ)) of ½ too much at η = 0.04, as on a Gaussian of the wells' curvature (docs/maths.md): 0.0134."""
    assert untempered["limit_error"] < 0.01 * 0.534 / 2
    assert untempered["limit"] == pytest.approx(0.0134, abs=4 * untempered["limit_error"])
    assert untempered["cold_limit"] == pytest.approx(untempered["limit"])


def test_ten_percent_more_noise_is_seen(untempered):
    """The twin that is wrong: T = 1.1 in place of 1 makes ⟨U⟩ larger by 0.05."""
    wrong = measured(step_size=0.04, noise_factor=1.1)
    difference = wrong["limit"] - untempered["limit"]
    error = math.hypot(wrong["limit_error"], untempered["limit_error"])
    assert difference > 10 * error
    assert difference == pytest.approx(
        DoubleWell(1).mean_energy(1.1) - DoubleWell(1).mean_energy(), abs=0.003 + 4 * error
    )


# What the noise of minibatches adds to the variance of each step, η²s², is a temperature of ηs²/(2γ).
NOISE = {"step_size": 0.04, "noise": 3.0}


def test_minibatch_noise_heats_as_much_as_it_should(untempered):
    noisy = measured(**NOISE)
    hotter = DoubleWell(1).mean_energy(1.0 + 0.04 * 3.0**2 / 2) - DoubleWell(1).mean_energy()
    error = math.hypot(noisy["limit_error"], untempered["limit_error"])
    assert error < 0.04 * hotter
    assert noisy["limit"] - untempered["limit"] == pytest.approx(hotter, abs=4 * error)


def test_noise_that_is_known_does_no_harm(untempered):
    """Compensated chains have the law of exact gradients; the test above is the twin without."""
    compensated = measured(**NOISE, compensated=True)
    error = math.hypot(compensated["limit_error"], untempered["limit_error"])
    assert compensated["limit"] == pytest.approx(untempered["limit"], abs=4 * error)


def test_known_noise_is_taken_from_what_alpha_gets():
    """2ηγ_α m − η²g′²s² in place of 2ηγ_α m, never below zero."""
    eta, place = 0.02, 0.95
    found = []
    for known in (0.0, 40.0, 1e6):
        alphas = Alphas(np.zeros(1), eta, 100, known_noise=known)
        alphas.alpha[:] = place
        alphas.move(np.zeros(1), np.ones(1))
        found.append(alphas.r_alpha[0])
    z = (place - 0.4) / 1.1
    slope = 0.85 * 6 * z * (1 - z) / 1.1
    assert found[0] - found[2] == pytest.approx(math.sqrt(2.0))
    assert found[1] - found[2] == pytest.approx(math.sqrt(2.0 - (eta * slope * 40.0) ** 2))


def test_exponent_of_the_noise():
    noises = [0.0, 1.0, 2.0, 4.0]
    lines = [{"step_size": 0.02, "noise": s, "limit": 0.3 + 0.1 * s**2, "limit_error": 0.01} for s in noises]
    found = theorem.against_noise(lines, "limit")
    assert found["slope"] == pytest.approx(2.0)
    assert (found["from"], found["to"], found["bound"]) == (1.0, 4.0, 1.0)


def test_rates_in_time(untempered):
    slopes = untempered["slopes"]
    assert slopes["decaying_bias"]["slope"] == pytest.approx(-1.0, abs=4 * slopes["decaying_bias"]["error"])
    assert slopes["decaying_bias"]["error"] < 0.05
    assert slopes["decaying_variance"]["slope"] == pytest.approx(-1.0, abs=0.2)
    last = untempered["lengths"][-1]
    assert last["time"] == pytest.approx(256.0)
    # What is left of the bias is the constant, the distance of ⟨U⟩ from U*.
    assert last["constant"] == pytest.approx(DoubleWell(1).mean_energy())
    assert last["bias"] == pytest.approx(last["constant"] + last["sampling_error"])
    assert last["mse"] >= last["bias"] ** 2


def test_fitted_exponent():
    x = np.array([1.0, 2.0, 4.0, 8.0])
    assert theorem.power_law(x, -3 * x**-1.5, np.full(4, 0.1)).exponent == pytest.approx(-1.5)
    generator = np.random.default_rng(0)
    found = [theorem.power_law(x, x**-1.0 + 0.02 * generator.standard_normal(4), np.full(4, 0.02)) for _ in range(200)]
    exponents = np.array([each.exponent for each in found])
    assert exponents.mean() == pytest.approx(-1.0, abs=4 * exponents.std() / math.sqrt(200))
    assert np.mean([each.error for each in found]) == pytest.approx(exponents.std(), rel=0.2)
    # χ² with two degrees of freedom, halved, has mean and deviation 1.
    assert np.mean([each.misfit for each in found]) == pytest.approx(1.0, abs=4 / math.sqrt(200))
    assert math.isnan(theorem.power_law(x, x**5.0, np.full(4, 0.1)).exponent)


# ---- runs ----


def planned(path, **settings):
    directory = StudyDirectory(path)
    request = Request("smoke", (), [0], {}, dict(STUDY.scales["smoke"]) | settings)
    (runs,) = STUDY.plan(request, directory)
    made = []
    for run in runs:
        made.append(directory.run(run.name))
        made[-1].prepare(run.config)
    return {run.name: run for run in made}


@pytest.fixture
def smoke(smoke_study):
    return {run.name: run for run in smoke_study("double-well").study.runs()}


def test_smoke_runs_as_planned(smoke):
    result = smoke["tempered-d10-seed0"].result()
    assert (result["dimensions"], result["steps"], result["tempered"]) == (10, 2000, True)
    assert result["kinetic_target"] == pytest.approx(1.0101, abs=1e-4)
    alone = measure(10, 2000, seed=0)
    assert (result["kinetic_temperature"], result["crossings"]) == (alone["kinetic_temperature"], alone["crossings"])
    assert smoke["untempered-d1-seed0"].result()["tempered"] is False
    result = smoke["theorem-step-size-fixed"].result()
    assert [line["step_size"] for line in result["step_sizes"]] == [0.04, 0.028, 0.02]
    assert set(result["slopes"]) == {"limit", "cold_limit"}
    result = smoke["theorem-noise-paper-d10-compensated"].result()
    assert [line["noise"] for line in result["step_sizes"]] == [0.0, 4.0, 8.0]
    assert set(result["slopes"]) == {"limit", "cold_limit", "decaying_variance"}
    (line,) = smoke["theorem-steps-paper-eta0.02"].result()["step_sizes"]
    assert line["slopes"]["decaying_variance"]["bound"] == -1.0
    assert [length["steps"] for length in line["lengths"]] == [25, 50, 100, 200, 400, 800, 1600]


class StopsAfter(Control):
    def __init__(self, calls):
        super().__init__()
        self.calls = calls

    def tell(self, directory, step, steps, **more):
        self.calls -= 1
        self.stopping = self.calls < 0


@pytest.mark.parametrize(("name", "calls"), [("theorem-step-size-none", 2), ("tempered-d1-seed0", 0)])
def test_a_stopped_run_ends_with_the_same_numbers(smoke, tmp_path, name, calls):
    run: RunDirectory = planned(tmp_path)[name]
    assert jobs.execute(run.path, threads=1, control=StopsAfter(calls)) == "interrupted"
    begun = run.metrics()
    assert len(begun) == (2 if name.startswith("theorem") else 0)
    assert jobs.execute(run.path, threads=1, control=Control()) == "done", run.failure()
    assert run.metrics()[: len(begun)] == begun
    assert run.metrics() == smoke[name].metrics()
    ours, whole = run.result(), smoke[name].result()
    assert {**ours, "seconds": 0} == {**whole, "seconds": 0}


def test_names_of_runs_differ_at_every_scale(tmp_path):
    for scale, settings in STUDY.scales.items():
        request = Request(scale, (), list(range(settings["seeds"])), {}, dict(settings))
        (runs,) = STUDY.plan(request, StudyDirectory(tmp_path))
        assert len({run.name for run in runs}) == len(runs) == 2 * len(settings["chains"]) * settings["seeds"] + 13
