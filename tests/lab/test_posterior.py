"""The study of posteriors: samplers see the reference's potential, scores tell right from wrong, and the smoke scale runs."""

import math
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from ctld.tempering.trips import TRIPS
from ctld_lab.data import uci
from ctld_lab.files import RecordError, read_json
from ctld_lab.posterior import agreement, reference, regression, tables
from ctld_lab.posterior.problems import PROBLEMS, split
from ctld_lab.posterior.samplers import SAMPLERS, Setting, available
from ctld_lab.report.markdown import document
from ctld_lab.studies import posterior

STORED = Path(__file__).parents[2] / "results" / "posterior" / "reference"
NAMES = ("diabetes", "wine", "hats")


@pytest.mark.parametrize("name", NAMES)
def test_the_samplers_potential_is_the_one_that_nuts_sampled(name):
    problem = PROBLEMS[name]()
    with np.load(STORED / f"{name}.npz", allow_pickle=False) as stored:
        draws, potentials = stored["theta"], stored["potential"]
    model, loss = agreement.model_of(problem, torch.Generator().manual_seed(0)), agreement.mean_loss(problem)
    for theta, potential in zip(draws, potentials, strict=True):
        with torch.no_grad():
            for parameter, part in zip(model.parameters(), split(theta, problem.shapes), strict=True):
                parameter.copy_(torch.tensor(part))
        mean = loss(model, torch.tensor(problem.inputs), torch.tensor(problem.targets)).item()
        ours = problem.num_data * (mean + problem.weight_decay * float((theta**2).sum()) / 2)
        assert ours == pytest.approx(potential, rel=1e-9)
        outputs = model(torch.tensor(problem.test_inputs)).detach()
        outputs = outputs.softmax(dim=-1) if problem.noise is None else outputs
        np.testing.assert_allclose(reference.predictions(problem, theta), outputs.numpy(), atol=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_reference_has_converged(name):
    quantiles, about = reference.read(STORED, PROBLEMS[name]())
    assert about["worst_r_hat"] < 1.01
    assert about["least_ess_bulk"] > 1000
    assert np.isfinite(quantiles).all()
    assert (np.diff(quantiles, axis=0) >= 0).all()


@pytest.mark.parametrize("name", NAMES)
def test_scores_tell_the_reference_from_others(name):
    """Its own quantiles are near, but for the interpolation of quantiles; wider ones, and their lower half, are not."""
    problem = PROBLEMS[name]()
    quantiles, _ = reference.read(STORED, problem)
    same = agreement.score(problem, quantiles, quantiles)
    assert same.w2 < 0.05
    assert same.total_variation < 0.005
    middle = np.median(quantiles, axis=0)
    wide = agreement.score(problem, middle + 1.5 * (quantiles - middle), quantiles)
    assert wide.w2 > 0.3
    half = agreement.score(problem, quantiles[:100], quantiles)
    assert half.w2 > 0.3
    assert half.total_variation > 0.01
    few = agreement.floor(problem, quantiles, 100)
    many = agreement.floor(problem, quantiles, 1000)
    assert many.w2 < few.w2 < 0.3


def test_a_chain_that_diverged_or_has_no_draws_is_infinitely_far():
    problem = PROBLEMS["hats"]()
    quantiles, _ = reference.read(STORED, problem)
    assert agreement.score(problem, quantiles[:10], quantiles).w2 == math.inf
    assert agreement.score(problem, quantiles + math.nan, quantiles).w2 == math.inf


def test_mirror_images_have_the_same_density():
    problem = PROBLEMS["hats"]()
    np.testing.assert_allclose(problem.inputs, -problem.inputs[::-1])
    assert np.array_equal(problem.targets, problem.targets[::-1])
    np.testing.assert_allclose(problem.test_inputs, -problem.test_inputs[::-1], atol=1e-12)


def test_every_sampler_of_the_table_is_there():
    import ctld

    sampling = {name for name, method in ctld.OPTIMIZERS.items() if method.samples}
    assert sampling - {"ctld"} <= set(available())
    assert available() == list(SAMPLERS)


@pytest.mark.parametrize("name", SAMPLERS)
def test_sampler_steps_and_says_when_it_is_cold(name):
    model = nn.Linear(2, 1)
    optimizer = SAMPLERS[name].build(model, Setting(20, 0.1, 5.0, 0.2, 600), 1)
    cold = []
    for _ in range(40):
        model.weight.grad, model.bias.grad = torch.ones_like(model.weight), torch.ones_like(model.bias)
        optimizer.step(loss=1.0)
        cold.append(SAMPLERS[name].cold(optimizer))
    assert any(cold)
    assert all(cold) == (name not in ("csghmc", "driven", "paper", "tact_hmc", "resgld"))


def test_likelihood_of_a_mixture():
    """Two draws of equal weight, one model of two having only the first; in units of 2."""
    targets = torch.tensor([[0.5, -1.0], [0.5, -1.0]])
    mixture = regression.Mixture(targets, [], [], [])
    noise = torch.tensor([[0.0], [0.0]])
    mixture.add(torch.zeros(2, 2), noise, torch.tensor([True, True]))
    mixture.add(torch.ones(2, 2), noise, torch.tensor([True, False]))
    both, one = mixture.score(torch.tensor([2.0, 2.0]))
    density = torch.distributions.Normal(0.0, 1.0)
    first, second = density.log_prob(targets[0]).exp(), density.log_prob(targets[0] - 1).exp()
    assert both["log_likelihood"] == pytest.approx(float(((first + second) / 2).log().mean()) - math.log(2), rel=1e-5)
    assert one["log_likelihood"] == pytest.approx(float(first.log().mean()) - math.log(2), rel=1e-5)
    assert both["rmse"] == pytest.approx(2 * math.sqrt((0.0 + 1.5**2) / 2), rel=1e-5)
    assert (both["draws"], one["draws"]) == (2, 1)


def test_held_out_rows_are_of_the_training_part_and_no_others():
    train = np.arange(10, 60)
    fit, chosen_by = regression.held_out(train, 3)
    assert len(chosen_by) == 10
    assert sorted([*fit, *chosen_by]) == train.tolist()
    assert not np.array_equal(chosen_by, regression.held_out(train, 4)[1])


def test_holm_is_the_step_down_correction():
    assert tables.holm([0.01, 0.04, 0.03], 3) == pytest.approx([0.03, 0.06, 0.06])
    assert tables.holm([0.01], 8) == pytest.approx([0.08])  # seven are still to come


def test_missing_data_are_named_with_the_remedy(tmp_path, monkeypatch):
    from ctld_lab.data import DataError

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("CTLD_DATA", raising=False)
    with pytest.raises(DataError, match=r"uci/energy/data\.txt.*ctld data fetch uci/energy"):
        uci.load("energy", tmp_path)
    (tmp_path / "uci" / "energy").mkdir(parents=True)
    (tmp_path / "uci" / "energy" / "data.txt").write_text("1 2\n")
    with pytest.raises(DataError, match="SHA-256"):
        uci.load("energy", tmp_path)
    assert uci.found(tmp_path) == ["energy"]


@pytest.mark.slow
def test_smoke(tmp_path):
    """Some methods of both parts; a second call computes nothing, one of another size is refused."""
    methods = ["sghmc", "calibrated", "resgld", "sgd", "ensemble"]
    posterior.execute("smoke", tmp_path, methods, ["hats", "diabetes20"])
    written = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.json")}
    assert {path.stem for path in written} == set(methods)
    text = (tmp_path / "tables.md").read_text(encoding="utf-8")
    assert "not run yet are SGLD" in text
    assert "## diabetes20" in text
    posterior.execute("smoke", tmp_path, methods, ["hats", "diabetes20"])
    assert {path: path.stat().st_mtime_ns for path in written} == written
    with pytest.raises(RecordError, match="give another directory"):
        posterior.execute("laptop", tmp_path, ["sgd"], ["diabetes20"])
    with pytest.raises(ValueError, match="no method 'sgdd'"):
        posterior.execute("smoke", tmp_path, ["sgdd"])
    with pytest.raises(ValueError, match="no problem 'hat'"):
        posterior.execute("smoke", tmp_path, [], ["hat"])


def test_what_the_page_says_of_calibrated_tempering():
    """A chain with too few half-trips is never silent about it, and there are such chains."""
    root = Path(__file__).parents[2]
    page = (root / "docs" / "posterior.md").read_text(encoding="utf-8")
    cells = [read_json(path) for path in sorted((root / "results/posterior/agreement").glob("*/calibrated.json"))]
    rows = [row for cell in cells for stage in ("tuning", "final") for row in cell[stage]]
    few = [row for row in rows if row["half_trips"] < TRIPS]
    assert (len(rows), len(few)) == (28, 4)
    assert all(row["warned"] for row in few)
    assert sum(row["warned"] for row in rows) == len(few) + 9
    assert "Of all 28 chains, trials included, four made fewer than the 20" in page
    assert "so did nine of the other 24" in page
    final = sorted((row["half_trips"], row["promised_half_trips"]) for cell in cells for row in cell["final"])
    assert final[0][0] == 5
    assert round(final[0][1]) == 18
    assert (final[1][0], final[-1][0]) == (20, 102)
    assert (round(min(one for _, one in final[1:])), round(max(one for _, one in final))) == (25, 57)


def test_what_the_page_says_of_thousands_of_rows():
    root = Path(__file__).parents[2]
    cells = tables.cells(root / "results" / "posterior" / "regression")
    likelihood = {
        name: {
            method: np.mean([row["log_likelihood"] for row in cell["final"]]) for method, cell in cells[name].items()
        }
        for name in ("kin8nm", "power-plant")
    }
    kin, plant = likelihood["kin8nm"], likelihood["power-plant"]
    assert {f"{kin[name] - kin['sgd']:+.3f}" for name in ("langevin", "sghmc")} == {"+0.052"}
    assert f"{kin['ensemble'] - kin['sgd']:+.3f}" == "-0.031"
    assert max(abs(value - plant["sgd"]) for name, value in plant.items() if name != "psgld") < 0.0065
    assert max(abs(each["calibrated"] - each["baoab"]) for each in (kin, plant)) < 0.0015
    rows = [row for name in ("kin8nm", "power-plant") for row in cells[name]["calibrated"]["final"]]
    trips = sorted(row["half_trips"] for row in rows)
    assert (trips[0], trips[-1], len(trips)) == (4, 24, 40)
    assert all(row["warned"] for row in rows)
    behind = [
        name
        for name, each in cells.items()
        if "| pSGLD |" in (text := tables.regression_text(name, each, root / "results/posterior/published.csv"))
        and "behind" in next(line for line in text.splitlines() if line.startswith("| pSGLD"))
    ]
    assert len(behind) == 4
    draws = np.mean([row["draws"] for row in rows]) / np.mean(
        [row["draws"] for row in cells["kin8nm"]["baoab"]["final"]]
    )
    assert f"{draws:.1f}" == "0.4"
    page = (root / "docs" / "posterior.md").read_text(encoding="utf-8")
    assert "(+0.052, 0.036 to 0.068), `ctld.Ensemble` is behind (−0.031)" in page
    assert "two fifths of the draws: 4 to 24 half-trips in a split, and a warning in all forty" in page


def test_what_the_page_says_of_part_three():
    root = Path(__file__).parents[2]
    found = tables.cells(root / "results" / "posterior" / "long" / "regression")["concrete"]
    assert tables.long_text(found).endswith("40,000 gradients: -0.018 (-0.045 to +0.009): a tie.")
    rows = found["calibrated"]["final"]
    few = [row for row in rows if row["half_trips"] < TRIPS]
    assert len(few) == 1
    assert few[0]["warned"]
    assert sum(row["warned"] for row in rows) == 1 + 11
    for cell in found.values():
        assert cell["environment"]["dirty"] is False
        assert len(cell["final"]) == 20
    page = (root / "docs" / "posterior.md").read_text(encoding="utf-8")
    assert "−0.018 in log-likelihood against the same sampler without it (−0.045 to +0.009)" in page
    assert "so did eleven that made enough" in page
    assert "in the hottest split T rises by 30 %, in the coolest by 2 %" in page
    assert [round(100 * end(row["depth"] / (1 - row["depth"]) for row in rows)) for end in (max, min)] == [30, 2]


def test_what_the_page_says_of_part_three_on_energy():
    root = Path(__file__).parents[2]
    found = tables.cells(root / "results" / "posterior" / "long" / "regression")["energy"]
    assert tables.long_text(found).endswith("40,000 gradients: +0.029 (+0.018 to +0.041): ahead.")
    rows = found["calibrated"]["final"]
    assert min(row["half_trips"] for row in rows) == TRIPS
    assert sum(row["warned"] for row in rows) == 9
    assert [round(100 * end(row["depth"] / (1 - row["depth"]) for row in rows)) for end in (min, max)] == [4, 9]
    chosen_by = {
        name: np.mean([[trial["log_likelihood"] for trial in split] for split in found[name]["tuning"]], axis=0)
        for name in ("calibrated", "baoab")
    }
    assert found["baoab"]["trials"] == [[0.001, 0.3], [0.001, 1.0], [0.004, 0.3], [0.004, 1.0]]
    assert [f"{gain:.3f}" for gain in chosen_by["calibrated"] - chosen_by["baoab"]] == [
        "0.032",
        "0.036",
        "0.120",
        "0.052",
    ]
    for cell in found.values():
        assert cell["environment"]["dirty"] is False
        assert len(cell["final"]) == 20
    page = (root / "docs" / "posterior.md").read_text(encoding="utf-8")
    assert "0.120 and 0.052 beside 0.032 and 0.036" in page


def test_part_three_compares_by_split_and_not_where_there_are_no_draws():
    """Paired: what splits share does not count."""
    split = np.array([-3.0, -2.0, -4.0, -3.5])

    def cell(values, **more):
        rows = [{"log_likelihood": float(value), "rmse": 1.0, "draws": 9} | more for value in values]
        return {"size": {"steps": 40_000}, "final": rows}

    travels = {"half_trips": 30, "promised_half_trips": 20.0, "warned": True}
    found = {"baoab": cell(split), "calibrated": cell(np.add(split, [0.2, 0.21, 0.19, 0.2]), **travels)}
    text = tables.long_text(found)
    assert "| 30 (30 to 30) | 20 | 4 of 4 |" in text
    assert "Calibrated less untempered, 40,000 gradients: +0.200 (+0.187 to +0.213): ahead." in text
    found["calibrated"] = cell(np.add(split, [0.01, -0.01, 0.01, -0.01]), **travels)
    assert tables.long_text(found).endswith(": a tie.")
    found["calibrated"] = cell(np.add(split, [0.5, -0.5, 0.4, -0.3]), **travels)
    assert tables.long_text(found).endswith(": undecided.")
    found["calibrated"]["final"][1]["draws"] = 0
    text = tables.long_text(found)
    assert "none: no cold draw in 1 of 4 splits" in text
    assert text.endswith("Not compared: some splits have no draw.")
    assert tables.long_text({"baoab": cell(split)}).endswith("Partial.")


def test_the_page_shows_the_stored_runs(tmp_path):
    root = Path(__file__).parents[2]
    page = (root / "docs" / "posterior.md").read_text(encoding="utf-8")
    shutil.copytree(root / "results" / "posterior", tmp_path / "posterior")
    made = tables.write(tmp_path / "posterior", tmp_path / "posterior" / "reference")
    assert len(made) == 12
    assert document(page, made) == page
