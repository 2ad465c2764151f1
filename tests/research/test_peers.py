"""The study of peers: scores against other computations of them, every method on a small problem, verdicts."""

import importlib.util
import itertools
import json
import math
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import cells
from cells import read
from methods import TACTHMC
from peers import methods, problems, scores, study, tables, training
from peers.methods import EVERY, METHODS, MOVING
from peers.plans import PLANS

STORED = Path(study.__file__).parent / "results"
SMOKE = PLANS["smoke"]


def available(method):
    module = EVERY[method].module
    return not module or importlib.util.find_spec(module) is not None


def small(name="digits5k", seed=0, tuning=True):
    return SMOKE[name].load(name, seed, tuning=tuning)


# ---- scores ----


def random_members(count, rows, classes, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return (3 * torch.randn(count, rows, classes, generator=generator)).log_softmax(dim=-1)


def test_the_average_is_of_probabilities():
    members = random_members(4, 50, 5)
    torch.testing.assert_close(scores.averaged(members).exp(), members.double().exp().mean(dim=0))


@pytest.mark.parametrize("part", [1000, 2**18])
def test_scores_do_not_depend_on_how_many_rows_are_computed_at_a_time(monkeypatch, part):
    """Members, windows, characters, classes: as text has them."""
    members = random_members(4, 700 * 3, 5).reshape(4, 700, 3, 5)
    drawn = torch.multinomial(
        (members.mean(dim=0) / 1.7).softmax(-1).flatten(0, 1), 1, generator=torch.Generator().manual_seed(1)
    )
    labels = drawn.reshape(700, 3)
    whole = members.double().exp().mean(dim=0)
    own = torch.special.entr(members.double().exp()).sum(-1).mean(dim=0)
    monkeypatch.setattr(scores, "PART", part)
    mean = scores.averaged(members)
    torch.testing.assert_close(mean.exp(), whole)
    torch.testing.assert_close(scores.averaged(members[:1]), members[0].double())
    total, disagreement = scores.uncertainty(members)
    torch.testing.assert_close(total, torch.special.entr(whole).sum(-1))
    torch.testing.assert_close(disagreement, total - own)
    temperatures = np.geomspace(0.1, 10, 4001)
    by_search = min(
        temperatures, key=lambda t: scores.nll((mean.float() / float(t)).double().log_softmax(dim=-1), labels)
    )
    assert 0.2 < by_search < 5  # not at an end
    assert scores.fitted_temperature(mean, labels) == pytest.approx(by_search, rel=1e-3)


def test_the_fitted_temperature_is_the_one_that_was_applied():
    """Labels are drawn from a distribution whose logarithm is then multiplied by 2.5: dividing by 2.5 is best."""
    right = random_members(1, 20_000, 5)[0].double() / 3
    right = right.log_softmax(dim=-1)
    labels = torch.multinomial(right.exp(), 1, generator=torch.Generator().manual_seed(1))[:, 0]
    # ∂²nll/∂(log T)² at T = 1 is the mean variance of log p under p; it gives the standard error of log T.
    variance = (right.exp() * right**2).sum(-1) - (right.exp() * right).sum(-1) ** 2
    error = 1.0 / math.sqrt(float(variance.sum()))
    found = scores.fitted_temperature(2.5 * right, labels)
    assert abs(math.log(found / 2.5)) < 4 * error < 0.1
    assert abs(math.log(scores.fitted_temperature(right, labels))) < 4 * error  # the twin: nothing to be mended


def test_auroc_is_the_share_of_pairs_in_the_right_order():
    known, strange = torch.tensor([0.1, 0.4, 0.4, 0.9]), torch.tensor([0.4, 0.8])
    pairs = [(b > a) + 0.5 * (b == a) for a, b in itertools.product(known.tolist(), strange.tolist())]
    assert scores.auroc(known, strange) == pytest.approx(np.mean(pairs))
    assert scores.auroc(torch.zeros(3), torch.ones(2)) == 1.0
    assert scores.auroc(torch.ones(3), torch.ones(5)) == 0.5


@pytest.mark.parametrize(
    ("value", "networks"),
    [(0.5, 0.0), (0.4, 1.0), (0.35, 1.5), (0.3, 2.0), (0.25, 4.5), (0.2, 5.0), (0.1, 5.0), (math.inf, 0.0)],
)
def test_worth_in_networks(value, networks):
    """The curve rises from 2 to 4 networks: 0.3 is reached by two."""
    assert scores.equivalent(value, (0.4, 0.3, 0.32, 0.3, 0.2)) == pytest.approx(networks)


def test_a_member_that_repeats_another_adds_no_mutual_information():
    members = random_members(1, 30, 4)
    _, disagreement = scores.uncertainty(members.expand(3, -1, -1))
    torch.testing.assert_close(disagreement, torch.zeros_like(disagreement), atol=1e-7, rtol=0)
    _, disagreement = scores.uncertainty(random_members(3, 30, 4))
    assert disagreement.min() > 0.0


# ---- problems ----


@pytest.mark.parametrize("name", list(SMOKE))
def test_trials_hold_no_test_data(name, monkeypatch):
    """Neither as what is judged nor beside it, and other rows than the final runs are judged by."""
    trial, final = small(name, tuning=True), small(name, tuning=False)
    assert trial.held_out is trial.valid
    assert not trial.strange
    known = {row.numpy().tobytes() for part in (trial.train, trial.valid) for row in part[0]}
    shared = sum(row.numpy().tobytes() in known for row in final.held_out[0])
    assert shared <= (0 if name != "text" else 2)  # fifty characters that occur twice in a text


def test_seeds_have_digits_of_their_own():
    one, other, again = small(seed=0), small(seed=1), small(seed=0)
    assert torch.equal(one.train[0], again.train[0])
    assert not torch.equal(one.train[0], other.train[0])
    assert torch.equal(one.valid[0], other.valid[0])


def test_an_epoch_shows_every_row_once():
    problem = small()
    each = len(problem.train[0]) // problem.size.batch
    steps = list(problem.batches(3, 2 * each))
    for epoch in (steps[:each], steps[each:]):
        rows = torch.cat([inputs for inputs, _ in epoch])
        assert len({row.numpy().tobytes() for row in rows}) == each * problem.size.batch
    assert not torch.equal(steps[0][0], steps[each][0])  # shuffled anew
    assert torch.equal(steps[0][0], next(problem.batches(3, 1))[0])
    assert not torch.equal(steps[0][0], next(problem.batches(3, 1, member=1))[0])


def test_halves_are_of_two_digits():
    images = torch.arange(6.0)[:, None].expand(6, 784)
    labels = torch.tensor([1, 1, 2, 2, 2, 3])
    mixed = problems.halves(images, labels)
    assert torch.equal(mixed[:, 0], images[:, 0])
    assert mixed[:, -1].tolist() == [2, 2, 5, 5, 5, 0]


def test_characters_are_predicted_from_those_before():
    problem = small("text")
    inputs, labels = problem.train
    assert torch.equal(inputs[:, 1:], labels[:, :-1])
    assert torch.equal(inputs[1:, 0], labels[:-1, -1])
    assert problem.num_data == labels.numel()


# ---- methods ----

other_peoples = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")


@other_peoples
@pytest.mark.parametrize("method", list(EVERY))
@pytest.mark.parametrize("name", ["wine", "text"])
def test_every_method_predicts(method, name):
    if name in EVERY[method].not_for:
        pytest.skip("is not for this problem")
    if not available(method):
        pytest.skip("needs a package of `make peers`")
    problem = small(name)
    options = SMOKE[name].trial_options(method)[0]
    predict = EVERY[method].train(problem, options, 7)
    found = predict(problem.held_out[0])
    assert found.shape[1:-1] == problem.held_out[1].shape
    assert found.exp().sum(dim=-1).sub(1.0).abs().max() < 1e-4
    torch.testing.assert_close(predict(problem.held_out[0]), found)
    again = EVERY[method].train(problem, options, 7)(problem.held_out[0])
    torch.testing.assert_close(again, found)
    single = {"sgd", "adamw", "adam", "santa", "sam", "swa"}
    assert (len(found) == 1) == (method in single)


@other_peoples
@pytest.mark.parametrize("method", list(EVERY))
def test_every_method_has_the_same_number_of_gradients(monkeypatch, method):
    """Counted where they are computed; SAM's two a step are of half the steps."""
    counted = []
    loss = problems.Problem.loss
    monkeypatch.setattr(problems.Problem, "loss", lambda *given: counted.append(1) or loss(*given))
    if not available(method):
        pytest.skip("needs a package of `make peers`")
    problem = small("wine")
    EVERY[method].train(problem, SMOKE["wine"].trial_options(method)[0], 7)
    assert len(counted) == problem.size.steps


def test_swag_draws_from_the_gaussian_of_what_sgd_passed(monkeypatch):
    """Mean and variance of many draws; half the diagonal and half the low rank add up to the variance along the way."""
    monkeypatch.setattr(methods, "SAMPLES", 4000)
    kept = {}
    monkeypatch.setattr(methods, "together", lambda model, members: kept.update(members=list(members)))
    seen = []
    to_vector = nn.utils.parameters_to_vector
    monkeypatch.setattr(
        nn.utils, "parameters_to_vector", lambda p: seen.append(to_vector(p).detach().clone()) or seen[-1]
    )
    problem = replace(small("wine"), size=replace(SMOKE["wine"].size, steps=200, width=2))
    methods.swag(replace(problem, build=problems.perceptron(13, 2, 3)), {"lr": 0.1, "weight_decay": 0.0}, 0)
    assert len(seen) == training.SWAG_RANK
    along = torch.stack(seen).double()
    draws = torch.stack([torch.cat([x.flatten() for x in member.values()]) for member in kept["members"]]).double()
    rank = training.SWAG_RANK
    variance = 0.5 * along.var(dim=0, correction=0) * (1.0 + rank / (rank - 1))
    away = (draws.mean(dim=0) - along.mean(dim=0)) / (variance / len(draws)).sqrt()
    assert away.abs().max() < 4.5
    ratio = draws.var(dim=0) / variance
    assert (ratio - 1.0).abs().max() < 4.5 * math.sqrt(2.0 / len(draws))


def test_swa_is_the_mean_of_what_sgd_passed(monkeypatch):
    seen = []
    to_vector = nn.utils.parameters_to_vector
    monkeypatch.setattr(
        nn.utils, "parameters_to_vector", lambda p: seen.append(to_vector(p).detach().clone()) or seen[-1]
    )
    kept = []
    monkeypatch.setattr(methods, "alone", lambda model: kept.append(to_vector(model.parameters()).detach()))
    problem = replace(small("wine"), size=replace(SMOKE["wine"].size, steps=200))
    methods.swa(problem, {"lr": 0.1, "weight_decay": 0.0}, 0)
    assert len(seen) == training.SWAG_RANK
    torch.testing.assert_close(kept[0], torch.stack(seen).mean(dim=0))
    assert (kept[0] - seen[-1]).abs().max() > 1e-3  # not where it stopped


def test_snapshots_are_taken_where_lr_is_lowest_and_it_goes_up_again(monkeypatch):
    rates, taken = [], []
    build, state = methods.momentum_sgd, training.state
    made = []
    monkeypatch.setattr(methods, "momentum_sgd", lambda *given: made.append(build(*given)) or made[-1])
    monkeypatch.setattr(training, "state", lambda model: taken.append(len(rates)) or state(model))
    loss = problems.Problem.loss
    monkeypatch.setattr(
        problems.Problem, "loss", lambda *given: rates.append(made[0].param_groups[0]["lr"]) or loss(*given)
    )
    problem = replace(small("wine"), size=replace(SMOKE["wine"].size, steps=60, cycles=3))
    methods.snapshot(problem, {"lr": 0.1, "weight_decay": 0.0}, 0)
    assert taken == [20, 40, 60]
    assert [rates[place - 1] for place in taken] == pytest.approx([0.05 * (1 + math.cos(math.pi * 0.95))] * 3)
    assert [rates[place] for place in (0, 20, 40)] == pytest.approx([0.1] * 3)


def test_santa_anneals_and_then_refines(monkeypatch):
    made = []
    create = methods.create
    monkeypatch.setattr(
        methods, "create", lambda *given, **more: made.append((create(*given, **more), more)) or made[-1][0]
    )
    problem = replace(small("wine"), size=replace(SMOKE["wine"].size, steps=50))
    methods.santa(problem, {"lr": 1e-4, "weight_decay": 0.02, "epsilon": 0.3}, 0)
    sampler, given = made[0]
    assert given["exploration_steps"] == 10
    assert (given["num_data"], given["weight_decay"], given["epsilon"]) == (problem.num_data, 0.02, 0.3)
    assert sampler.param_groups[0]["lr"] == pytest.approx(0.0, abs=1e-12)


@pytest.mark.skipif(not available("tu_sghmc"), reason="needs a package of `make peers`")
def test_torch_uncertaintys_file_is_taken_alone_and_knows_no_n():
    """Its noise is that of 10,000 data at T = 1, whatever there are; and it burns in by tensors, not by steps."""
    kind = methods.sghmc_of_torch_uncertainty()
    assert kind.__module__ == "sghmc"
    assert "torch_uncertainty" not in sys.modules
    weights = [torch.zeros(20_000, requires_grad=True) for _ in range(4)]
    optimizer = kind(weights, lr=0.1)
    torch.manual_seed(0)
    for _ in range(50):
        for weight in weights:
            weight.grad = torch.ones_like(weight)
        optimizer.step()
    assert optimizer.burnt_in == optimizer.burn_in_steps == 200
    velocity = optimizer.state[weights[0]]["momentum"]
    before = velocity.clone()
    optimizer.step()
    noise = velocity - 0.95 * before
    # (2 lr² M C − lr⁴) T/N with M = 1/√v̂, v̂ = 1, C = 0.05; T/N = 1e-4. Twenty thousand draws know a variance to 1 %.
    assert noise.var() / (2 * 0.1**2 * 0.05 - 0.1**4) == pytest.approx(1e-4, rel=0.04)
    for group in optimizer.param_groups:
        group["lr"] = 1e-3  # where the floor binds: a hundred times the variance of T/N = 1e-4, and more
    before = velocity.clone()
    optimizer.step()
    assert (velocity - 0.95 * before).var() == pytest.approx(1e-8, rel=0.04)
    assert 1e-8 > 900 * (2 * 1e-3**2 * 0.05 * 1e-4)


def spied(monkeypatch, method, problem, options, seed=3):
    """The sampler that a method makes, T over its temperature at each network that is taken, and the batches seen."""
    made, ratios, batches = [], [], []
    create, taken, loss = methods.create, methods.state, problems.Problem.loss
    monkeypatch.setattr(methods, "create", lambda *given, **more: made.append(create(*given, **more)) or made[-1])
    monkeypatch.setattr(methods, "state", lambda model: ratios.append(made[0].temperature_ratio) or taken(model))
    monkeypatch.setattr(
        problems.Problem, "loss", lambda own, model, batch: batches.append(batch[0]) or loss(own, model, batch)
    )
    found = METHODS[method].train(problem, options, seed)
    return made[0], ratios, batches, found


@pytest.mark.filterwarnings("ignore:the thermostat of α")
def test_tact_hmc_draws_when_it_is_cold(monkeypatch):
    """Cold in every eighth step here, while every fifth of the last hundred of 400 is a place: draws wait."""
    monkeypatch.setattr(TACTHMC, "temperature_ratio", property(lambda own: 1.0 if own.steps % 8 == 0 else 2.0))
    problem = replace(small("wine"), size=replace(SMOKE["wine"].size, steps=400))
    options = {"lr": 0.03, "weight_decay": 0.01, "temperature": 0.3}
    sampler, ratios, _, found = spied(monkeypatch, "tact_hmc", problem, options)
    assert ratios == [1.0] * 12  # at 312, for 305 and 310, and then at each cold step up to 400
    assert len(found(problem.held_out[0])) == 12
    assert found.facts == {"cold_share": 0.125}
    assert sampler.param_groups[0]["lr"] == pytest.approx(training.SWAG_RATE * options["lr"])


@pytest.mark.filterwarnings("ignore:the thermostat of α")
def test_a_sampler_that_is_never_cold_has_no_prediction(monkeypatch):
    monkeypatch.setattr(TACTHMC, "temperature_ratio", 2.0)
    options = {"lr": 0.03, "weight_decay": 0.01, "temperature": 0.3}
    found = study.run(small("wine"), "tact_hmc", options, 1000)
    assert (found["nll"], found["failed"]) == (math.inf, methods.NEVER_COLD)


def test_replicas_see_the_same_batch(monkeypatch):
    problem = replace(small("wine"), size=replace(SMOKE["wine"].size, steps=160))
    options = {"lr": 0.03, "weight_decay": 0.01, "temperature": 0.1}
    sampler, ratios, batches, found = spied(monkeypatch, "resgld", problem, options)
    assert all(torch.equal(one, other) for one, other in zip(batches[::2], batches[1::2], strict=True))
    assert not torch.equal(batches[0], batches[2])
    assert ratios == [1.0] * 20  # of the last twenty of eighty steps
    assert found.facts == {"cold_share": 1.0, "swaps": sampler.swaps}


def test_what_is_noted_is_stored():
    found = study.run(small("wine"), "resgld", {"lr": 0.03, "weight_decay": 0.01, "temperature": 0.1}, 1000)
    assert set(found) == {"nll", "seconds", "cold_share", "swaps"}
    found = study.run(small("wine"), "ensemble_tuned", {"lr": 0.03, "weight_decay": 0.01, "temperature": 0.1}, 1000)
    assert found["temperature"] == 0.1
    assert found["mean_ratio"] == 1.0
    found = study.run(small("wine"), "ensemble", {"lr": 0.03, "weight_decay": 0.01}, 1000)
    assert 0.0 < found["temperature"] < 1.0
    found = study.run(small("wine"), "moving_driven", {"lr": 0.03, "weight_decay": 0.01, "temperature": 0.1}, 1000)
    assert 1.0 < found["mean_ratio"] < 6.7  # between the ends of the paper's range
    assert set(study.run(small("wine"), "ensemble_cold", {"lr": 0.03, "weight_decay": 0.01}, 1000)) == {
        "nll",
        "seconds",
    }


# ---- the study ----


def test_all_methods_are_tried_at_the_same_points():
    plan = SMOKE["digits5k"]
    for method, row in EVERY.items():
        for mine, theirs in zip(plan.trial_options(method), plan.trial_options("ensemble_tuned"), strict=True):
            for name in ("lr", "weight_decay"):
                low, high = plan.searched(method)[name]
                least, most = plan.searched("sgd")[name]
                mine_at = math.log(mine[name] / low) / math.log(high / low)
                assert mine_at == pytest.approx(math.log(theirs[name] / least) / math.log(most / least), abs=0.01)
            assert set(mine) == {"lr", "weight_decay"} | ({row.third} if row.third else set())


def without_times(cell):
    kept = {key: value for key, value in cell.items() if key not in ("environments", "seconds")}
    text = json.dumps(kept)
    cell = json.loads(text)
    for run in (*cell.get("trials", ()), *cell["final"]):
        run.pop("seconds")
    return cell


def test_a_study_that_was_stopped_goes_on(tmp_path, monkeypatch):
    """Stopped after each of its runs in turn; the files in the end are those of one that was not."""
    quiet = {"say": lambda line: None}

    def some(directory):
        return [cell for cell in study.cells("smoke", directory) if cell.name in ("wine/sgd", "wine/reference")]

    cells.run(tmp_path / "whole", some(tmp_path / "whole"), **quiet)

    def stop(line):
        raise KeyboardInterrupt

    for _ in range(SMOKE["wine"].trials + 2 * SMOKE["wine"].seeds):
        with pytest.raises(KeyboardInterrupt):
            cells.run(tmp_path / "parts", some(tmp_path / "parts"), say=stop)
    cells.run(tmp_path / "parts", some(tmp_path / "parts"), **quiet)
    for name in ("wine/sgd", "wine/reference"):
        one, other = (read(tmp_path / x, name) for x in ("whole", "parts"))
        assert one["done"]
        assert without_times(one) == without_times(other)


def test_the_reference_waits_for_sgd(tmp_path):
    lines = []
    both = [cell for cell in study.cells("smoke", tmp_path) if cell.name == "wine/reference"]
    cells.run(tmp_path, both, say=lines.append)
    assert lines == ["wine/reference: waits for wine/sgd; run again"]


def test_a_run_that_diverges_is_a_result():
    for method in ("sgd", "ensemble"):
        assert study.run(small("wine"), method, {"lr": 1e20, "weight_decay": 0.1}, 1000)["nll"] == math.inf


def test_a_package_that_is_missing_is_named_before_any_trial(tmp_path, monkeypatch):
    monkeypatch.setattr(methods.importlib.util, "find_spec", lambda name: None)
    plan = replace(SMOKE["wine"], small=False)
    with pytest.raises(SystemExit, match=r"SAM needs the package pytorch-optimizer, [^.]*. Run `make peers`"):
        next(study.work({}, "wine", "sam", plan))


# ---- tables ----


def rows(nlls, **more):
    count = len(nlls)
    frame = {"nll": nlls, "scaled_nll": nlls, "error": [0.1] * count, "ece": [0.01] * count, "seconds": [1.0] * count}
    return pd.DataFrame(frame | {"machine": ["A"] * count, "failed": ["it grew"] * count} | more)


CURVE = pd.DataFrame([{"seed": seed, "networks": 1, "scaled_nll": 2.0} for seed in range(5)])
SEEDS = np.array([0.1, 0.2, 0.3, 0.4, 0.5])


def test_verdicts():
    """Paired by seed: what seeds share does not count. A method that diverged is behind, ours too."""
    found = {
        "ensemble": rows(1.0 + SEEDS),
        "sgd": rows(1.2 + SEEDS + 0.001 * SEEDS**2),
        "adamw": rows(0.9 + SEEDS + 0.001 * SEEDS**2),
        "swag": rows(1.001 + SEEDS + [0.001, -0.001, 0.002, -0.003, 0.0]),
        "sam": rows(1.05 + SEEDS + [0.3, -0.3, 0.2, -0.3, 0.1]),
        "ivon": rows([1.0, 1.0, math.inf, 1.0, 1.0]),
    }
    words = {method: word for method, (_, word) in tables.compare(found).items()}
    assert words == {"sgd": "ahead", "adamw": "behind", "swag": "tie", "sam": "undecided", "ivon": "ahead: it diverged"}
    made = tables.results_table(found, CURVE)["rows"]
    assert made[-1] == ["IVON", "1 of 5 diverged", "ahead: it diverged", *["–"] * 4, "1.0"]
    assert [row[0] for row in made[:2]] == ["AdamW", "ctld.Ensemble"]
    found["ivon"] = rows([1.0, math.inf, 1.0, 1.0, 1.0], failed=[methods.NEVER_COLD] * 5)
    assert tables.compare(found)["ivon"][1] == "ahead: it had no cold draw"
    found["ensemble"] = rows([1.0, math.inf, 1.0, 1.0, 1.0])
    words = {method: word for method, (_, word) in tables.compare(found).items()}
    assert words == dict.fromkeys(("sgd", "adamw", "swag", "sam"), "behind: ours diverged") | {"ivon": "undecided"}


def test_more_comparisons_are_corrected_more():
    """A p of 0.008 counts four times, not as often as there are peers."""
    near = rows(1.05 + SEEDS + 0.0228 * np.array([1, -1, 1, -1, 0]))
    found = {"ensemble": rows(1.0 + SEEDS)} | dict.fromkeys(("swa", "snapshot", "adam", "santa"), near)
    assert tables.compare(found)["swa"][1] == "ahead"
    assert tables.compare(found | dict.fromkeys(("sgd", "adamw", "swag"), near))["swa"][1] == "undecided"


def test_temperatures_that_move_are_compared_with_a_constant_one():
    found = {"ensemble_tuned": rows(1.0 + SEEDS, third=0.02)} | {name: rows(2.0 + SEEDS, third=0.02) for name in MOVING}
    found["moving_paper"] = rows(0.9 + SEEDS + 0.001 * SEEDS**2, third=0.02, mean_ratio=1.5)
    made = {row[0]: row[1:] for row in tables.moving_table(found)["rows"]}
    assert made["ctld.Ensemble, T tuned"] == ["1.3000 ± 0.1963", "", "", "0.02", "0.02"]
    assert made["paper's α"] == ["1.2001 ± 0.1964", "-0.0999 ± 0.0001", "behind", "0.02", "0.03"]
    assert made["driven α"] == ["2.3000 ± 0.1963", "+1.0000 ± 0.0000", "ahead", "0.02", "0.02"]


def test_seconds_of_different_machines_are_not_set_side_by_side():
    one, other = rows(1.0 + SEEDS), rows(1.1 + SEEDS)
    assert "CPU s" in tables.results_table({"ensemble": one, "sgd": other}, CURVE)["head"]
    apart = {"ensemble": one, "sgd": other.assign(machine="B")}
    assert "CPU s" not in tables.results_table(apart, CURVE)["head"]


def test_published_numbers_are_those_of_the_stored_runs():
    """A few of each kind, as they were published first; tests of `render` hold the rest."""
    made = tables.findings(STORED)["tables"]
    digits = {row[0]: row for row in made["digits5k"]["rows"]}
    assert digits["ctld.Ensemble"][1:] == [
        "0.1321 ± 0.0094",
        "",
        "0.1283 ± 0.0086",
        "3.81 ± 0.28",
        "0.7",
        "5.0 or more",
        "18.4",
    ]
    assert digits["SGD-M"][1:] == ["0.1453 ± 0.0054", "ahead", "0.1419 ± 0.0049", "4.33 ± 0.20", "0.9", "1.0", "19.5"]
    assert ["falling T", "1.0122 ± 0.0071", "-0.0107 ± 0.0058", "behind", "0.95", "0.205"] in made["wine-moving"][
        "rows"
    ]
    assert ["AdamW", "lr 0.000636, weight_decay 0.535", "0.0592"] in made["digits60k-chosen"]["rows"]
    assert ["SAM", "85.1 ± 0.5", "–", "97.3 ± 1.2", "–"] in made["digits5k-strange"]["rows"]
