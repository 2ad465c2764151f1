"""`ctld check`: its answers are right, right settings pass, wrong ones fail and say what to turn, few trips say nothing."""

import json
import math

import numpy as np
import pytest

from ctld import diagnostics
from ctld_lab import check as verdicts
from ctld_lab import cli
from ctld_lab.check import (
    CONFIGURATIONAL,
    KINETIC,
    UNIFORMITY,
    Run,
    Settings,
    exit_code,
    judge,
    remedies,
    sample,
    uniformity,
)
from ctld_lab.sampling.targets import BUILDERS, CHECKED, build

CONSTANT = {"tempering": "constant"}
STEPS = 12_000
"""In which a tenth more noise is seen by six standard errors, where the temperature is constant."""
TEMPERED = 20_000
"""And where it moves."""


def verdicts_of(rows):
    return {row.quantity: row.verdict for row in rows}


# ---- the targets ----


def exact_draws(name, count):
    """From the law itself, without a sampler."""
    generator = np.random.default_rng(5)
    if name == "gaussian":
        return generator.standard_normal((count, 10)) / 2.0
    if name == "anisotropic":
        return generator.standard_normal((count, 6)) / np.sqrt(5.0 ** np.linspace(2, 0, 6))
    if name == "double-well":
        theta = generator.standard_normal((count, 3))
        nodes = np.linspace(-2, 2, 200_001)
        density = np.exp(-8 * (nodes**2 - 1) ** 2)
        theta[:, 0] = np.interp(generator.random(count), np.cumsum(density) / density.sum(), nodes)
        return theta
    if name == "funnel":
        neck = generator.standard_normal((count, 1)) * math.sqrt(0.5)
        return np.hstack([neck, np.exp(neck / 2) * generator.standard_normal((count, 2))])
    target = build(name)
    # U is quadratic: its slope at the unit vectors, less that at zero, is the precision.
    origin = target.potential(np.zeros(4))[1]
    precision = target.potential(np.eye(4))[1] - origin
    center = -np.linalg.solve(precision, origin)
    return center + generator.standard_normal((count, 4)) @ np.linalg.cholesky(np.linalg.inv(precision)).T


@pytest.mark.parametrize("name", CHECKED)
def test_exact_draws_have_the_answers(name):
    target, count = build(name), 200_000
    theta = exact_draws(name, count)
    configurational = ((theta - target.center) * target.potential(theta)[1]).mean(axis=1)
    answers = [(quantity.of(theta), quantity.expected) for quantity in target.quantities] + [(configurational, 1.0)]
    if not math.isnan(target.mean_energy):
        answers.append((target.potential(theta)[0], target.mean_energy))
    for series, expected in answers:
        assert abs(series.mean() - expected) < 4.2 * series.std() / math.sqrt(count)


@pytest.mark.parametrize("name", BUILDERS)
def test_slopes_are_those_of_the_potential_for_one_and_for_many(name):
    target, generator = build(name), np.random.default_rng(0)
    theta = 0.7 * generator.standard_normal((3, target.start.size))
    energies, slopes = target.potential(theta)
    for place, energy, slope in zip(theta, energies, slopes, strict=True):
        alone = target.potential(place)
        assert alone[0] == pytest.approx(energy)
        assert alone[1] == pytest.approx(slope)
        step = 1e-6 * generator.standard_normal(place.size)
        difference = target.potential(place + step)[0] - target.potential(place - step)[0]
        assert difference == pytest.approx(2 * slope @ step, rel=1e-5, abs=1e-9)


@pytest.mark.parametrize("name", CHECKED)
def test_the_stiffness_is_the_largest_curvature(name):
    """Of the funnel three standard deviations down, of the double well in a well."""
    target = build(name)
    theta = target.start.copy()
    if name == "funnel":
        theta[0] = -3 * math.sqrt(0.5)
        theta[1:] = 0.0
    steps = 1e-5 * np.eye(theta.size)
    hessian = (target.potential(theta + steps)[1] - target.potential(theta - steps)[1]) / 2e-5
    assert np.linalg.eigvalsh(hessian)[-1] == pytest.approx(target.stiffness, rel=1e-6)


# ---- runs ----


@pytest.mark.parametrize("options", [{}, {"dtype": "float32"}, {"integrator": "euler", "lr": 0.02, "momentum": 0.5}])
def test_right_settings_pass(options):
    rows = judge(sample("gaussian", Settings(**CONSTANT | options), STEPS))
    assert set(verdicts_of(rows).values()) == {"pass"}
    assert all(row.half_trips is None for row in rows)
    assert exit_code(rows) == 0


def test_a_tenth_more_noise_fails():
    rows = judge(sample("gaussian", Settings(**CONSTANT), STEPS, temperature=1.1))
    assert set(verdicts_of(rows).values()) == {"fail"}
    assert exit_code(rows) == 1


def test_a_large_step_of_euler_fails_and_says_what_to_turn():
    """Spec section 8: the variance is × 1/(1 − lr·k/(2(1 + μ))), and the thermometer does not see it."""
    settings = Settings(lr=0.8, integrator="euler", **CONSTANT)
    rows = judge(sample("gaussian", settings, STEPS))
    assert verdicts_of(rows) == {KINETIC: "pass", CONFIGURATIONAL: "fail", "variance": "fail"}
    row = next(row for row in rows if row.quantity == "variance")
    assert abs(row.measured - 0.25 / (1 - 0.8 / 3.8)) < 4.2 * row.standard_error
    (remedy,) = remedies(rows, settings)
    assert "--integrator baoab" in remedy
    assert "× 1.27" in remedy
    assert exit_code(judge(sample("gaussian", Settings(lr=0.8, **CONSTANT), STEPS))) == 0


def test_divergence_is_a_failure():
    settings = Settings(lr=4.0, **CONSTANT)
    rows = judge(sample("gaussian", settings, 3000))
    assert exit_code(rows) == 1
    assert all("diverged at step" in row.note for row in rows)
    assert "below 2(1 + momentum) = 3.8" in remedies(rows, settings)[0]


def test_the_papers_tempering_fails_on_the_double_well():
    """1.4 to 1.75 at g = 1 with η = 0.02, momentum 0.98 and mass 1 (docs/maths.md); 1.25 with the defaults here."""
    settings = Settings(tempering="paper")
    rows = judge(sample("double-well", settings, 30_000))
    assert verdicts_of(rows)[KINETIC] == verdicts_of(rows)[CONFIGURATIONAL] == "fail"
    assert rows[0].measured > 1.15
    assert exit_code(rows) == 1
    assert any("--tempering calibrated" in remedy for remedy in remedies(rows, settings))


def test_without_tempering_the_barrier_is_hardly_crossed_and_nothing_is_claimed():
    rows = judge(sample("double-well", Settings(**CONSTANT), TEMPERED))
    assert verdicts_of(rows) == {
        KINETIC: "pass",
        CONFIGURATIONAL: "pass",
        "x²": "pass",
        "share, right well": "unconverged",
    }
    assert "crossings of 20" in rows[-1].note
    assert exit_code(rows) == 3


def test_calibrated_tempering_with_a_prior_warns_of_nothing_and_repeats():
    settings = Settings()
    first, second = (sample("regression", settings, 4000) for _ in range(2))
    assert first.warnings == []
    assert judge(first) == judge(second)
    assert UNIFORMITY in verdicts_of(judge(first))
    assert judge(sample("regression", Settings(seed=1), 4000)) != judge(first)


@pytest.mark.parametrize("name", CHECKED)
def test_the_defaults_pass(name):
    rows = judge(sample(name, Settings(), TEMPERED))
    assert "fail" not in verdicts_of(rows).values()
    assert all(abs(row.z) < 4.2 for row in rows if row.quantity != UNIFORMITY)
    assert verdicts_of(rows)[KINETIC] == "pass"
    assert rows[0].half_trips > 100


def test_a_tenth_more_noise_fails_with_tempering_too():
    rows = judge(sample("gaussian", Settings(), TEMPERED, temperature=1.1))
    assert verdicts_of(rows)[KINETIC] == verdicts_of(rows)["variance"] == "fail"
    assert rows[0].half_trips >= 20


# ---- verdicts ----


def made_up(*, trips, mean=1.0, deviation=0.1, crossings=None, diverged_at=None):
    """A run of independent draws, and of an α that goes up and down."""
    generator, steps = np.random.default_rng(1), 10_000
    names = (KINETIC, CONFIGURATIONAL, "variance")
    alpha = 1.5 * np.abs(1 - np.abs(np.linspace(1, trips + 1.02, steps) % 2.0 - 1))
    return Run(
        target=build("gaussian"),
        settings=Settings(),
        steps=steps,
        alpha=alpha,
        cold=alpha <= 0.4,
        edge=1.5,
        plateau=0.4,
        series={
            name: (0.25 if name == "variance" else 1.0) * (mean + deviation * generator.standard_normal(steps))
            for name in names
        },
        crossings=crossings,
        diverged_at=diverged_at,
    )


def test_twenty_half_trips_are_needed():
    few, enough = judge(made_up(trips=18)), judge(made_up(trips=30))
    assert (few[0].half_trips < 20, enough[0].half_trips >= 20) == (True, True)
    assert (exit_code(few), exit_code(enough)) == (3, 0)
    assert "half-trips of 20" in few[0].note
    assert exit_code(judge(made_up(trips=18, mean=2.0))) == 3  # nothing is said, whatever was measured


def test_what_is_certain_and_what_matters():
    within = judge(made_up(trips=40, mean=1.015, deviation=0.05))
    assert exit_code(within) == 0
    assert within[0].verdict == "biased"
    assert len(remedies(within, Settings(integrator="ubu"))) == 2  # of the thermometer, and of the others
    assert within[0].z > verdicts.SIGNIFICANT
    assert within[0].note in ("+1.4 %", "+1.5 %", "+1.6 %")
    assert exit_code(judge(made_up(trips=40, mean=1.015, deviation=0.05), tolerance=0.01)) == 1
    assert exit_code(judge(made_up(trips=40, mean=1.03, deviation=0.05))) == 1
    coarse = judge(made_up(trips=40, deviation=10.0))
    assert exit_code(coarse) == 3
    assert "±" in coarse[0].note


def test_uniformity():
    generator = np.random.default_rng(2)
    steps = np.repeat(generator.uniform(-1.5, 1.5, 5000), 20)  # correlated over 20 steps
    measured, uniform = uniformity(steps, 1.5)
    assert abs(measured - uniform.mean) < 4 * uniform.standard_error
    assert measured == pytest.approx(diagnostics.total_variation(steps, folded=True, num_bins=15))
    measured, uniform = uniformity(np.sign(steps) * 1.5 * (np.abs(steps) / 1.5) ** 2, 1.5)  # too cold
    assert measured - uniform.mean > verdicts.UNIFORM
    assert measured - uniform.mean > verdicts.SIGNIFICANT * uniform.standard_error


# ---- the command ----


def call(capsys, line):
    with pytest.raises(SystemExit) as leaving:
        cli.main(["check", *line.split()])
    caught = capsys.readouterr()
    return leaving.value.code, caught.out, caught.err


def test_the_command(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    file = tmp_path / "check.json"
    code, out, err = call(capsys, f"--targets gaussian --tempering constant --steps 5000 --json {file}")
    assert (code, err) == (0, "")
    for word in ("expected", "measured", "error", "z", "trips", "verdict", CONFIGURATIONAL, "3 pass"):
        assert word in out
    assert max(map(len, out.splitlines())) <= 80
    written = json.loads(file.read_text())
    assert (written["exit_code"], written["settings"]["tempering"]) == (0, "constant")
    assert [row["verdict"] for row in written["rows"]] == ["pass"] * 3


def test_exit_codes_of_the_command(capsys):
    code, out, _ = call(capsys, "--targets gaussian --tempering constant --lr 2 --integrator euler --steps 3000")
    assert code == 1
    assert "--integrator baoab" in out
    code, out, _ = call(capsys, "--targets gaussian,funnel --steps 2000")
    assert code == 3
    assert "--thorough" in out


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--targets gausian", "did you mean gaussian"),
        ("--tempering hot", "--tempering"),
        ("--integrator verlet", "--integrator"),
        ("--dtype int8", "--dtype"),
        ("--device nowhere", "--device nowhere"),
        ("--lr 0", "--lr"),
        ("--lr nan", "--lr"),
        ("--lr inf", "--lr"),
        ("--momentum 1", "--momentum"),
        ("--integrator ubu --momentum 0", "a --momentum above 0"),
        ("--seed -1", "--seed"),
        ("--json nowhere/check.json", "a directory that exists"),
        ("--steps 10", "2000"),
    ],
)
def test_refusals(capsys, line, message):
    code, out, err = call(capsys, line)
    assert (code, out) == (2, "")
    assert message in err


def test_help_has_examples(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    code, out, _ = call(capsys, "--help")
    assert code == 0
    assert "ctld check --tempering paper --targets double-well" in out
    assert "--steps" not in out
