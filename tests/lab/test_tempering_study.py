"""The study of temperings: targets and their answers, what a chain is measured by, and sentences that follow the records."""

import math
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sample_records import describe, write_run
from small_run import AskedOnceBegun

from ctld import Tempering, diagnostics
from ctld_lab import jobs
from ctld_lab.control import Control
from ctld_lab.records import StudyDirectory
from ctld_lab.report import temperings
from ctld_lab.report.known_answers import Found, together
from ctld_lab.report.reading import read_study
from ctld_lab.report.temperings import OFF
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
    assert "Calibrated: kinetic temperature" in page
    assert "cannot be shown" not in page
    assert (smoke.path / "tables" / "tempering-wells.csv").read_text().count("\n") == 2 + 12


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


# ---- the report, on made-up numbers ----


def chain_result(*, kinetic=1.0, error=0.004, square=0.9645, rate=500.0, variation=0.02, trips=50, **more):
    return {
        "means": {
            "kinetic temperature": {"mean": kinetic, "error": error, "expected": 1.0},
            "configurational temperature": {"mean": 1.0, "error": 0.004, "expected": 1.0},
            "x²": {"mean": square, "error": 0.0004, "expected": 0.9645},
        },
        "crossing_rate": {"mean": rate, "error": 20.0}, "crossings": int(rate),
        "total_variation": variation, "half_trips": trips, "depth": 0.85, "seconds": 1.0, **more,
    }  # fmt: skip


def write_study(path, *, twin=1.25, twin_error=0.004, seeds=2, **calibrated):
    study = describe(path, "tempering", seeds=list(range(seeds)))
    common = {"kind": "tempering", "study": "tempering", "scale": "laptop"}

    def chain(tempering, dimensions, seed, result, **more):
        config = {"variant": "chain", "target": "double-well", "tempering": tempering, "dimensions": dimensions}
        name = "-".join(map(str, (tempering, *more.values(), dimensions, seed)))
        write_run(study, name, {**common, **config, "steps": 400_000, "seed": seed, **more}, result=result)

    for seed in range(seeds):
        for dimensions in (1, 1000):
            chain(
                "calibrated", dimensions, seed, chain_result(**(calibrated if dimensions == 1000 else {})), depth=0.85
            )
            chain("paper", dimensions, seed, chain_result(kinetic=1.5, square=0.94, rate=130.0))
            chain("driven", dimensions, seed, chain_result(kinetic=1.1), period=1000)
        chain("half-the-force", 1, seed, chain_result(kinetic=twin, error=twin_error), depth=0.85)
    rate = {"crossing_rate": {"mean": 3.2, "error": 0.1}, "seconds": 1.0}
    write_run(study, "rate", {**common, "variant": "rate", "seed": 0, "steps": 100}, result=rate)
    return study


def summary(path, **options):
    return " ".join(temperings.content(read_study(write_study(path, **options))).summary).replace("\u00a0", " ")


def test_each_tempering_is_told_with_the_range_of_its_numbers(tmp_path):
    text = summary(tmp_path, kinetic=1.026)
    assert "Calibrated: kinetic temperature 1.00 to 1.03 of T, ⟨x²⟩ 1.000 to 1.000 of the exact one" in text
    assert "The paper's: kinetic temperature 1.50 to 1.50 of T, ⟨x²⟩ 0.9746 to 0.9746" in text
    assert "Twin: half the force: kinetic temperature 1.25 of T" in text
    assert "(d = 1 and 1000)" in text


def test_runs_that_diverged_or_failed_are_counted_in_the_table(tmp_path):
    study = write_study(tmp_path, seeds=3)
    for seed in (0, 2):
        study.run(f"calibrated-0.85-1000-{seed}").write("result.json", {"diverged": True, "reason": "too far"})
    (study.run("paper-1000-1").path / "result.json").unlink()
    study.run("paper-1000-1").write("failure.json", {"error": "OSError: no space"})
    (table,) = temperings.content(read_study(study)).tables
    states = {(row[0].text, row[1].text): row[-1].text for row in table.rows}
    assert states["1,000", "calibrated"] == "1 of 3 runs, 2 diverged"
    assert states["1,000", "the paper's"] == "2 of 3 runs, 1 failed"


def test_tables_have_the_numbers_and_their_errors(tmp_path):
    (table,) = temperings.content(read_study(write_study(tmp_path))).tables
    first = [cell.text.replace("\u00a0", " ") for cell in table.rows[0]]
    assert first[:2] == ["1", "calibrated"]
    assert first[2] == "1.0000 ± 0.0028"  # 0.004/√2
    assert first[4] == "1.00000 ± 0.00029"
    assert first[5:8] == ["0.020", "50", "500 ± 14"]
    # (500/3.2)·sqrt((14.14/500)² + (0.1/3.2)²)
    assert first[8] == "156.2 ± 6.6"
    assert first[9:] == ["400,000", "2 runs"]
    assert [row[1].text for row in table.rows] == [
        "calibrated", "twin: half the force", "the paper's", "driven, 1,000 steps", "calibrated", "the paper's",
        "driven, 1,000 steps", "none",
    ]  # fmt: skip


def check_targets_follow_from_runs(folder):
    """Means and errors of the targets' table are those of the runs, put together."""
    names = {"dimensions": str, "tempering": str, "target": str, "average": str}
    tables = {name: pd.read_csv(folder / f"tempering-{name}.csv", dtype=names) for name in ("runs", "targets", "wells")}
    runs, found = tables["runs"], 0
    for _, line in tables["targets"].iterrows():
        own = runs[
            (runs["target"] == line["target"])
            & (runs["tempering"] == line["tempering"])
            & (runs["average"] == line["average"])
        ]
        if len(own):
            found += 1
            assert own["mean"].mean() == pytest.approx(line["mean"], rel=1e-9, abs=1e-12)
            error = math.sqrt((own["error"] ** 2).sum(skipna=False)) / len(own)
            assert error == pytest.approx(line["error"], rel=1e-9, abs=1e-12, nan_ok=True)
    wells = tables["wells"][tables["wells"]["dimensions"] != "any"]
    for _, line in wells.iterrows():
        own = runs[
            (runs["target"] == "double-well")
            & (runs["dimensions"] == line["dimensions"])
            & (runs["tempering"] == line["tempering"])
        ]
        crossed, configured, trips = (
            own[own["average"] == name] for name in ("crossing rate", "configurational temperature", "half trips")
        )
        assert len(crossed) == int(line["runs"])
        found += 1
        assert crossed["mean"].mean() == pytest.approx(line["crossing_rate"], rel=1e-9)
        assert configured["mean"].mean() == pytest.approx(line["configurational_temperature"], rel=1e-9, nan_ok=True)
        assert trips["mean"].min() == pytest.approx(line["fewest_half_trips"], nan_ok=True) or trips.empty
    return found


def test_values_of_each_run_are_kept(smoke):
    """And a table in which one of them was changed is seen not to follow from them."""
    assert check_targets_follow_from_runs(smoke.path / "tables") > 20


def test_the_stored_tables_follow_from_the_values_of_each_run():
    assert check_targets_follow_from_runs(Path(__file__).parents[2] / "results" / "laptop" / "tables") > 80


def test_a_changed_value_of_a_run_is_seen(smoke, tmp_path):
    shutil.copytree(smoke.path / "tables", tmp_path, dirs_exist_ok=True)
    path = tmp_path / "tempering-runs.csv"
    first, *rest = path.read_text().splitlines()
    place = next(n for n, line in enumerate(rest) if ",crossing rate," in line)
    *key, mean, error = rest[place].split(",")
    rest[place] = ",".join([*key, str(float(mean) + 1.0), error])
    path.write_text("\n".join([first, *rest]) + "\n")
    with pytest.raises(AssertionError):
        check_targets_follow_from_runs(tmp_path)


def test_nothing_done_says_so(tmp_path):
    study = describe(tmp_path, "tempering")
    write_run(study, "d1", {"kind": "tempering", "variant": "chain", "target": "double-well", "tempering": "paper"})
    found = temperings.content(read_study(study))
    assert found.summary == ["No run on the double well is finished, so nothing can be said of it yet."]
    assert found.tables[0].rows[0][-1].text == "0 of 1 run"


def test_means_over_runs():
    found = together([Found(1.0, 0.3), Found(2.0, 0.4)])
    assert (found.mean, found.error) == pytest.approx((1.5, 0.25))
    assert found.away(Found(0.5, 0.0)) == pytest.approx(4.0)
    assert Found(1.0, 0.0).away(Found(0.5, 0.0)) == math.inf
    assert math.isnan(together([Found(1.0, math.nan)]).error)


# ---- other targets ----


def write_targets(path, *, square=0.68, error=0.01, prediction=1.0, shares=(0.5, 0.5), share_error=0.02):
    study = describe(path, "tempering", seeds=[0])
    common = {
        "kind": "tempering",
        "variant": "chain",
        "seed": 0,
        "steps": 1000,
        "tempering": "calibrated",
        "depth": 0.85,
    }
    result = {
        "means": {"x²": {"mean": square, "error": error, "expected": 0.68}},
        "shares": [{"mean": share, "error": share_error, "expected": 0.5} for share in shares],
        "crossing_rate": {"mean": 900.0, "error": 30.0}, "crossings": 900, "half_trips": 40,
    }  # fmt: skip
    write_run(study, "nine", {**common, "target": "nine-modes"}, result=result)
    result = {"means": {"f(0)": {"mean": prediction, "error": 0.03}}, "half_trips": 40}
    write_run(study, "net", {**common, "target": "network"}, result=result)
    reference = {"means": {"f(0)": {"mean": 1.0, "error": 0.04}}}
    write_run(study, "reference", {"kind": "tempering", "variant": "reference"}, result=reference)
    return study


def marks(path, **options):
    (table,) = temperings.content(read_study(write_targets(path, **options))).tables
    return {(row[0].text, row[1].text): cell.mark for row in table.rows for cell in row if cell.mark}


def test_targets_that_agree(tmp_path):
    # 2.8 standard errors, of which the reference has the larger part.
    assert marks(tmp_path, prediction=1.14) == {}


@pytest.mark.parametrize(
    ("wrong", "found"),
    [
        ({"square": 0.711}, {("Nine modes", "⟨x²⟩"): "off"}),
        # 0.03 and the reference's own 0.04 make 0.05.
        ({"prediction": 1.151}, {("Bayesian network", "⟨f(0)⟩"): "off"}),
        ({"square": 0.9, "error": math.nan}, {("Nine modes", "⟨x²⟩"): "not judged"}),
    ],
)
def test_targets_that_do_not_agree_or_cannot_be_judged(tmp_path, wrong, found):
    assert marks(tmp_path, **wrong) == found


def test_modes_stand_beside_what_chance_gives(tmp_path):
    # Five percent of one mode, beside √(2/π)·0.02 by chance.
    (table,) = temperings.content(read_study(write_targets(tmp_path, shares=(0.55, 0.45)))).tables
    (row,) = [row for row in table.rows if row[1].text == "TV of the modes"]
    assert row[3].text == "0.050 (chance: 0.016)"


def test_a_target_on_which_a_chain_diverged_is_told(tmp_path):
    study = write_targets(tmp_path)
    study.run("nine").write("result.json", {"diverged": True, "reason": "too far"})
    (table,) = temperings.content(read_study(study)).tables
    assert "0 of 1 run, 1 diverged" in [cell.text for row in table.rows for cell in row]


def test_a_mode_that_was_never_left_is_off():
    assert abs(Found(1.0, 0.0).away(Found(0.2, 0.0))) >= OFF
