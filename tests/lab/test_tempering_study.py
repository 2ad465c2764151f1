"""The study of temperings: targets and their answers, what a chain is measured by, and sentences that follow the records."""

import math
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from small_run import AskedOnceBegun

from ctld import Tempering, diagnostics
from ctld_lab import jobs
from ctld_lab.control import Control
from ctld_lab.records import StudyDirectory
from ctld_lab.report import chains, tidy
from ctld_lab.report.reading import StudyRecord, read_study
from ctld_lab.sampling import targets
from ctld_lab.sampling import temperings as runs_of_temperings
from ctld_lab.sampling.chain import Chain
from ctld_lab.sampling.network import Network
from ctld_lab.sampling.temperings import Chains, HalfTheForce, build_tempering, chain, coldest, crossing_rate, measure
from ctld_lab.studies.study import Request
from tempering import STUDY

# ---- targets ----


def test_nine_modes_against_draws():
    target = targets.build("nine-modes")
    generator = np.random.default_rng(3)
    count = 20_000
    chosen = generator.choice(9, count, p=targets.WEIGHTS)
    draws = targets.CENTERS[chosen] + targets.WIDTH * generator.standard_normal((count, 2))
    answers = [(quantity.of(draws), quantity.expected) for quantity in target.quantities]
    for values, expected in [*answers, (target.potential(draws)[0], target.mean_energy)]:
        assert values.mean() == pytest.approx(expected, abs=4 * values.std() / math.sqrt(count))
    assert target.weights.sum() == pytest.approx(1.0)
    # A thousandth of a mode lies nearer to another's centre.
    assert target.weights == pytest.approx(targets.WEIGHTS, abs=1e-3)
    assert (target.cell(draws) == chosen).mean() > 0.999
    assert set(target.place(np.array([[1.0, 0.0], [0.5, 0.0], [-1.0, -1.2]]))) == {7, -1, 0}


def test_what_the_network_answers():
    network = Network()
    theta = np.random.default_rng(4).standard_normal((5, network.dimensions))
    first = targets.build("network").quantities[0].of(theta)
    n, x = network.UNITS, network.ASKED[0]
    w, c, a, b = np.split(theta[2], [n, 2 * n, 3 * n])
    assert first[2] == pytest.approx(b[0] + sum(a[k] * math.tanh(w[k] * x + c[k]) for k in range(n)))


# ---- many chains ----


def harmonic(theta):
    return 0.5 * np.square(theta).sum(axis=1), theta.copy()


def exchanged(factor):
    """The coldest of three temperatures, after exchanges; its U should have mean 1 in two dimensions."""
    ladders = 200
    temperature = np.repeat([1.0, 2.0, 4.0], ladders)
    chains = Chains(harmonic, np.zeros((600, 2)), temperature, lr=0.04, momentum=0.8, seed=5)
    if factor != 1.0:
        chains.temperature = factor * chains.temperature  # what exchanges go by, not the noise
    energies = np.array([energy for _, energy in coldest(chains, ladders=ladders, steps=2000, every=5)])[40:]
    return energies.mean(), energies.mean(axis=0).std(ddof=1) / math.sqrt(ladders)


def test_replica_exchange_keeps_the_law():
    mean, error = exchanged(1.0)
    assert error < 0.01
    assert mean == pytest.approx(1.0, abs=4 * error)


def test_exchange_by_wrong_temperatures_is_seen():
    mean, error = exchanged(3.0)
    assert abs(mean - 1.0) > 10 * error


# ---- a chain ----


def test_crossings_are_those_of_the_diagnostics():
    kicks, x = np.random.default_rng(6).standard_normal(5000), np.zeros(5000)
    for step in range(1, 5000):
        x[step] = 0.98 * x[step - 1] + 0.2 * kicks[step]
    place = targets.build("double-well", 1).place
    found = crossing_rate(place(x[:, None]))
    assert found["crossings"] == diagnostics.crossings(x) > 10
    assert found["crossing_rate"]["mean"] == pytest.approx(found["crossings"] * 400_000 / 5000)


def test_measures_what_is_cold():
    """A made-up series: everything at g = 1 has one value, everything hotter another."""
    steps = 3000
    known = targets.build("double-well", 1)
    alpha = np.tile(np.linspace(-1.49, 1.49, 150), steps // 150)  # ten to a bin of |α|
    cold = np.abs(alpha) <= 0.4
    series = np.where(cold, 1.0, 5.0)
    seen = {"x²": series, "share, right well": series}
    made_up = Chain(
        alpha=alpha,
        ratio=series,
        kinetic=series,
        potential=2 * series,
        virial=3 * series,
        quantities=seen,
        places=np.zeros(steps, dtype=np.int64),
        cells=None,
        tempering=Tempering.calibrated(0.85),
    )
    found = measure(known, made_up)
    means = {name: value["mean"] for name, value in found["means"].items()}
    assert means == pytest.approx({"kinetic temperature": 1, "configurational temperature": 3, "U": 2, "x²": 1})
    assert found["means"]["x²"]["expected"] == targets.DoubleWell(1).mean_square()
    assert found["cold_share"] == pytest.approx(cold.mean())
    assert found["total_variation"] == pytest.approx(0.0, abs=1e-12)
    assert found["half_trips"] == 2 * steps // 150
    assert found["depth"] == 0.85


def test_the_twin_differs_in_its_force_alone():
    config = {"depth": 0.85, "warm_up": 400, "steps": 1000}
    known = targets.build("double-well", 1)
    right, twin = (build_tempering({**config, "tempering": name}, known) for name in ("calibrated", "half-the-force"))
    assert isinstance(twin, HalfTheForce)
    assert twin.derivative(1.0, 0.7) == 0.5 * right.derivative(1.0, 0.7) != 0.0
    assert twin.scaling(1.0) == right.scaling(1.0)
    with pytest.raises(ValueError, match="tempering = 'wrong' is unknown; give calibrated"):
        build_tempering({**config, "tempering": "wrong"}, known)


def test_a_chain_that_falls_down_the_funnel_has_diverged(monkeypatch):
    known = replace(targets.build("funnel"), start=np.array([-800.0, 0.0, 0.0]))  # e^800 overflows
    monkeypatch.setattr(runs_of_temperings, "build", lambda name, dimensions: known)
    config = {"target": "funnel", "tempering": "constant", "steps": 100, "integrator": "baoab", "seed": 0}
    found = chain(config, lambda step: None)
    assert found["diverged"] is True
    assert found["reason"]


# ---- runs ----


@pytest.fixture
def smoke(smoke_study):
    return smoke_study("research/tempering.py").study


def test_smoke_runs_from_end_to_end(smoke):
    names = {run.name for run in smoke.runs()}
    assert {
        "d10-calibrated-seed0",
        "d10-calibrated-auto-seed0",
        "d1-half-the-force-seed0",
        "d1-driven-200-seed0",
    } < names
    assert {"rate", "reference", "funnel-paper-seed0", "network-constant-seed0"} < names
    results = {run.name: run.result() for run in smoke.runs()}
    assert results["d1-paper-seed0"]["steps"] == 1500
    assert len(results["nine-modes-calibrated-seed0"]["shares"]) == 9
    assert results["reference"]["means"].keys() == results["network-paper-seed0"]["means"].keys() - {
        "kinetic temperature",
        "configurational temperature",
    }
    assert results["rate"]["means"]["x²"]["mean"] == pytest.approx(0.9645, abs=0.01)
    # Too few half-trips fit: what the library warns of is kept.
    assert any("Averages at T need 20" in words for words in results["network-calibrated-seed0"]["warnings"])
    page = (smoke.path / "report.html").read_text()
    assert "cannot be shown" not in page


def test_a_stopped_chain_starts_again_to_the_same_numbers(smoke, tmp_path):
    whole = smoke.run("d1-calibrated-seed0")
    again = StudyDirectory(tmp_path).run("d1-calibrated-seed0")
    again.prepare(whole.config())
    assert jobs.execute(again.path, threads=1, control=AskedOnceBegun()) == "interrupted"
    assert jobs.execute(again.path, threads=1, control=Control()) == "done"
    assert {**again.result(), "seconds": 0} == {**whole.result(), "seconds": 0}


def test_seeds_of_long_runs_are_fewer(tmp_path):
    for scale, seeds in (("laptop", 3), ("paper", 10)):
        request = Request(scale, (), list(range(seeds)), {}, dict(STUDY.scales[scale]))
        (runs,) = STUDY.plan(request, StudyDirectory(tmp_path))
        long = [run for run in runs if run.config["steps"] == 2_500_000]
        assert len(long) == (2 if scale == "laptop" else 10)
        assert len({run.name for run in runs}) == len(runs)
        assert {run.config["integrator"] for run in runs if run.config.get("tempering") == "paper"} == {"euler"}
        assert {run.config.get("integrator") for run in runs if run.config.get("tempering") != "paper"} == {
            "baoab",
            None,
        }


# ---- what the runs leave in the tidy table ----


def test_every_average_of_a_run_is_kept_with_its_error(smoke):
    study = read_study(smoke)
    result = smoke.run("d10-calibrated-seed0").result()
    own = study.table.query("method == 'calibrated' and variant == 'double-well' and point == 'd=10'")
    found = dict(own[["metric", "value"]].itertuples(index=False, name=None))
    for name, record in result["means"].items():
        assert found[name] == record["mean"]
        assert found.get(f"{name} s.e.", math.nan) == pytest.approx(float(record["error"]), nan_ok=True)
    assert found["half trips"] == result["half_trips"]
    assert len(chains.wells(study)) == 12
    assert set(chains.targets(study)["target"]) == {"funnel", "network", "nine-modes"}


def lines(averages, *, target="funnel", method="paper"):
    """Rows of averages: name → (mean, error) by seed."""
    found = []
    for name, by_seed in averages.items():
        for seed, (mean, error) in enumerate(by_seed):
            found += [
                [method, target, "", "", name, str(seed), mean],
                [method, target, "", "", f"{name} s.e.", str(seed), error],
            ]
    return found


def study_of(rows):
    return StudyRecord(StudyDirectory(Path("none")), {"study": "tempering"}, tidy.frame(rows))


def test_means_over_runs_and_how_far_they_are_from_what_is_known():
    """Errors of independent runs add as squares; the reference has an error of its own."""
    known = [["exact", "funnel", "", "", "x²", "", 0.5], *lines({"v": [(0.2, 0.03)]}, method="reference")]
    rows = lines({"x²": [(0.5, 0.03), (0.7, 0.04)], "v": [(0.25, 0.04)], "U": [(9.0, 1.0)]})
    found = chains.targets(study_of([*known, *rows])).set_index("average")
    assert (found.at["x²", "mean"], found.at["x²", "error"]) == (pytest.approx(0.6), pytest.approx(0.025))
    assert found.at["x²", "errors_away"] == pytest.approx(4.0)
    assert found.at["v", "errors_away"] == pytest.approx(0.05 / 0.05)
    assert "U" not in found.index  # nobody knows it


def test_wells_are_ratios_to_what_is_known_and_to_no_tempering():
    known = [["exact", "double-well", "d=10", "", "x²", "", 0.5]]
    alone = lines({"crossing rate": [(4.0, 0.4)]}, target="double-well", method="constant")
    own = lines({"x²": [(0.6, 0.05)], "crossing rate": [(400.0, 30.0)]}, target="double-well", method="calibrated")
    for row in own:
        row[2] = "d=10"
    (found,) = chains.wells(study_of([*known, *alone, *own])).to_dict("records")
    assert (found["mean_square_ratio"], found["mean_square_ratio_error"]) == (pytest.approx(1.2), pytest.approx(0.1))
    assert found["crossing_ratio"] == pytest.approx(100.0)
    assert found["crossing_ratio_error"] == pytest.approx(100.0 * math.hypot(0.075, 0.1))


def test_a_chain_that_diverged_has_no_averages(smoke, tmp_path):
    shutil.copytree(smoke.path, tmp_path / "copy")
    copy = StudyDirectory(tmp_path / "copy")
    copy.run("d10-calibrated-seed0").write("result.json", {"diverged": True, "reason": "too far"})
    assert len(chains.wells(read_study(copy))) == 11
