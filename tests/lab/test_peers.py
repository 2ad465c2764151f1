"""The study of peers: what is read when, scores against other computations of them, every method on a small problem, tables."""

import importlib.util
import itertools
import json
import math
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import ctld
from ctld_lab import data
from ctld_lab.files import RecordError, read_json
from ctld_lab.peers import methods, packages, problems, scores, study, tables
from ctld_lab.peers.methods import EVERY, METHODS, MOVING, OLDER, THEIRS
from ctld_lab.report.markdown import document
from ctld_lab.studies import peers
from ctld_lab.traps.study import cell_path

ROOT = Path(__file__).parents[2]
SMOKE = peers.PLANS["smoke"]


def available(method):
    module = EVERY[method].module
    return not module or importlib.util.find_spec(module) is not None


def small(name="digits5k", seed=0, tuning=True):
    return study.load_for(name, SMOKE[name], seed, tuning=tuning)


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
    total, disagreement = scores._uncertainty(members)
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
    curve = [{"scaled_nll": nll} for nll in (0.4, 0.3, 0.32, 0.3, 0.2)]
    assert scores.equivalent(value, curve) == pytest.approx(networks)


def test_a_member_that_repeats_another_adds_no_mutual_information():
    members = random_members(1, 30, 4)
    _, disagreement = scores._uncertainty(members.expand(3, -1, -1))
    torch.testing.assert_close(disagreement, torch.zeros_like(disagreement), atol=1e-7, rtol=0)
    _, disagreement = scores._uncertainty(random_members(3, 30, 4))
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
    methods.swag(replace(problem, build=problems._perceptron(13, 2, 3)), {"lr": 0.1, "weight_decay": 0.0}, 0)
    assert len(seen) == methods.SWAG_RANK
    along = torch.stack(seen).double()
    draws = torch.stack([torch.cat([x.flatten() for x in member.values()]) for member in kept["members"]]).double()
    rank = methods.SWAG_RANK
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
    assert len(seen) == methods.SWAG_RANK
    torch.testing.assert_close(kept[0], torch.stack(seen).mean(dim=0))
    assert (kept[0] - seen[-1]).abs().max() > 1e-3  # not where it stopped


def test_snapshots_are_taken_where_lr_is_lowest_and_it_goes_up_again(monkeypatch):
    rates, taken = [], []
    build, state = methods.momentum_sgd, methods.state
    made = []
    monkeypatch.setattr(methods, "momentum_sgd", lambda *given: made.append(build(*given)) or made[-1])
    monkeypatch.setattr(methods, "state", lambda model: taken.append(len(rates)) or state(model))
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
    kind = packages.sghmc_of_torch_uncertainty()
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
    monkeypatch.setattr(ctld.TACTHMC, "temperature_ratio", property(lambda own: 1.0 if own.steps % 8 == 0 else 2.0))
    problem = replace(small("wine"), size=replace(SMOKE["wine"].size, steps=400))
    options = {"lr": 0.03, "weight_decay": 0.01, "temperature": 0.3}
    sampler, ratios, _, found = spied(monkeypatch, "tact_hmc", problem, options)
    assert ratios == [1.0] * 12  # at 312, for 305 and 310, and then at each cold step up to 400
    assert len(found(problem.held_out[0])) == 12
    assert found.facts == {"cold_share": 0.125}
    assert sampler.param_groups[0]["lr"] == pytest.approx(methods.SWAG_RATE * options["lr"])


@pytest.mark.filterwarnings("ignore:the thermostat of α")
def test_a_sampler_that_is_never_cold_has_no_prediction(monkeypatch):
    monkeypatch.setattr(ctld.TACTHMC, "temperature_ratio", 2.0)
    options = {"lr": 0.03, "weight_decay": 0.01, "temperature": 0.3}
    found = study._run(small("wine"), "tact_hmc", options)
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
    found = study._run(small("wine"), "resgld", {"lr": 0.03, "weight_decay": 0.01, "temperature": 0.1})
    assert set(found) == {"nll", "seconds", "cold_share", "swaps"}
    found = study._run(small("wine"), "ensemble_tuned", {"lr": 0.03, "weight_decay": 0.01, "temperature": 0.1})
    assert found["temperature"] == 0.1
    assert found["mean_ratio"] == 1.0
    found = study._run(small("wine"), "ensemble", {"lr": 0.03, "weight_decay": 0.01})
    assert 0.0 < found["temperature"] < 1.0
    found = study._run(small("wine"), "moving_driven", {"lr": 0.03, "weight_decay": 0.01, "temperature": 0.1})
    assert 1.0 < found["mean_ratio"] < 6.7  # between the ends of the paper's range
    assert set(study._run(small("wine"), "ensemble_cold", {"lr": 0.03, "weight_decay": 0.01})) == {"nll", "seconds"}


# ---- the study ----


def test_all_methods_are_tried_at_the_same_points():
    plan = SMOKE["digits5k"]
    for method, row in EVERY.items():
        for mine, theirs in zip(plan.trial_options(method), plan.trial_options("ensemble_tuned"), strict=True):
            for name in ("lr", "weight_decay"):
                low, high = plan.spaces[f"{name} of {row.rates}"]
                least, most = plan.spaces[f"{name} of sgd"]
                mine_at = math.log(mine[name] / low) / math.log(high / low)
                assert mine_at == pytest.approx(math.log(theirs[name] / least) / math.log(most / least), abs=0.01)
            assert set(mine) == {"lr", "weight_decay"} | ({row.third} if row.third else set())


def without_seconds(cell):
    text = json.dumps({key: value for key, value in cell.items() if key != "environment"})
    cell = json.loads(text)
    for run in (*cell.get("trials", ()), *cell["final"]):
        run.pop("seconds")
    return cell


def test_a_study_that_was_stopped_goes_on(tmp_path, monkeypatch):
    """Stopped after each of its runs in turn; the files in the end are those of one that was not."""
    plan = SMOKE["wine"]
    study.carry_out(tmp_path / "whole", "wine", "sgd", plan, {})
    study.carry_out_reference(tmp_path / "whole", "wine", plan, {})
    write = study.write_cell

    def once(path, cell):
        write(path, cell)
        raise KeyboardInterrupt

    monkeypatch.setattr(study, "write_cell", once)
    for _ in range(plan.trials + 2 * plan.seeds):
        with pytest.raises(KeyboardInterrupt):
            study.carry_out(tmp_path / "parts", "wine", "sgd", plan, {})
            study.carry_out_reference(tmp_path / "parts", "wine", plan, {})
    monkeypatch.setattr(study, "write_cell", write)
    study.carry_out(tmp_path / "parts", "wine", "sgd", plan, {})
    study.carry_out_reference(tmp_path / "parts", "wine", plan, {})
    for method in ("sgd", study.REFERENCE):
        one, other = (read_json(cell_path(tmp_path / x, "wine", method)) for x in ("whole", "parts"))
        assert without_seconds(one) == without_seconds(other)


def test_commands_with_one_directory_share_the_work(tmp_path, capsys):
    """What another process holds is left to it, the reference waits for SGD-M; whoever comes last does the rest."""
    plan = replace(SMOKE["wine"], trials=1, seeds=1, reference=1)
    asked = ["sgd", "adamw", study.REFERENCE]
    path = cell_path(tmp_path, "wine", "sgd")
    with study._alone(path) as mine:
        assert mine
        study.share_out(tmp_path, "wine", asked, plan, {})
        assert not path.exists()
    told = capsys.readouterr().out
    assert "wine sgd: another command is at it" in told
    assert "wine reference: waits for SGD-M; give the command again" in told
    first = cell_path(tmp_path, "wine", "adamw").read_bytes()
    study.share_out(tmp_path, "wine", asked, plan, {})
    assert set(tables.load(tmp_path, "wine", plan)) == {"sgd", "adamw", study.REFERENCE}
    assert cell_path(tmp_path, "wine", "adamw").read_bytes() == first
    assert "another command" not in capsys.readouterr().out


def test_what_was_done_with_another_plan_is_refused(tmp_path):
    plan = replace(SMOKE["wine"], trials=1, seeds=1)
    study.carry_out(tmp_path, "wine", "sgd", plan, {})
    with pytest.raises(RecordError, match="give another directory, or remove it"):
        study.carry_out(tmp_path, "wine", "sgd", replace(plan, seeds=2), {})


def test_a_run_that_diverges_is_a_result(tmp_path):
    """Its trial is not chosen; in a final run it is counted."""
    plan = replace(SMOKE["wine"], trials=1, seeds=1)
    problem = study.load_for("wine", plan, 0, tuning=True)
    assert study._run(problem, "sgd", {"lr": 1e20, "weight_decay": 0.1})["nll"] == math.inf
    assert study._run(problem, "ensemble", {"lr": 1e20, "weight_decay": 0.1})["nll"] == math.inf


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"scale": "huge"}, "no scale 'huge'"),
        ({"scale": "smoke", "methods": ["sdg"]}, "no method 'sdg'"),
        ({"scale": "smoke", "problems": ["beer"]}, "no problem 'beer'"),
    ],
)
def test_what_there_is_not_is_refused_before_any_run(tmp_path, given, words):
    with pytest.raises(ValueError, match=words):
        peers.execute(given.pop("scale"), tmp_path, **given)
    assert not list(tmp_path.iterdir())


def test_a_package_that_is_missing_is_told_before_any_run(tmp_path, monkeypatch):
    monkeypatch.setattr(methods.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"SAM needs the package pytorch-optimizer, .* make peers"):
        peers.execute("smoke", tmp_path)
    assert not list(tmp_path.iterdir())


def test_data_that_are_missing_are_told_before_any_run(tmp_path, monkeypatch):
    monkeypatch.setenv("CTLD_DATA", str(tmp_path / "nowhere"))
    monkeypatch.setattr(data.locate, "search_path", lambda folder=None: [tmp_path / "nowhere"])
    with pytest.raises(data.DataError, match="ctld data fetch mnist"):
        peers.execute("laptop", tmp_path / "out", methods=["sgd"], problems=["digits5k"])
    assert not (tmp_path / "out").exists()


def test_a_stored_file_of_another_plan_is_not_shown(tmp_path):
    plan = replace(SMOKE["wine"], trials=1, seeds=1)
    study.carry_out(tmp_path, "wine", "sgd", plan, {})
    assert set(tables.load(tmp_path, "wine", plan)) == {"sgd"}
    with pytest.raises(RecordError, match="give another directory, or remove it"):
        tables.load(tmp_path, "wine", replace(plan, trials=2))


# ---- tables ----


def cell(nlls, **more):
    runs = [
        {"seed": seed, "nll": nll, "scaled_nll": nll, "error": 0.1, "ece": 0.01, "seconds": 1.0}
        for seed, nll in enumerate(nlls)
    ]
    return {"final": runs, **more}


def test_verdicts():
    """Paired by seed: what seeds share does not count. A method that diverged is behind."""
    seeds = np.array([0.1, 0.2, 0.3, 0.4, 0.5])
    cells = {
        "ensemble": cell(1.0 + seeds),
        "sgd": cell(1.2 + seeds + 0.001 * seeds**2),
        "adamw": cell(0.9 + seeds + 0.001 * seeds**2),
        "swag": cell(1.001 + seeds + [0.001, -0.001, 0.002, -0.003, 0.0]),
        "sam": cell(1.05 + seeds + [0.3, -0.3, 0.2, -0.3, 0.1]),
        "ivon": cell([1.0, 1.0, math.inf, 1.0, 1.0]),
    }
    found = {method: word for method, (_, word) in tables.compare(cells).items()}
    assert found == {"sgd": "ahead", "adamw": "behind", "swag": "tie", "sam": "undecided", "ivon": "ahead: it diverged"}
    cells["ensemble"] = cell([1.0, math.inf, 1.0, 1.0, 1.0])
    found = {method: word for method, (_, word) in tables.compare(cells).items()}
    assert found == dict.fromkeys(("sgd", "adamw", "swag", "sam"), "behind: ours diverged") | {"ivon": "undecided"}
    cells["ensemble"] = cell(1.0 + seeds)
    text = tables.results_text(cells)
    assert "| IVON | 1 of 5 diverged | ahead: it diverged | – | – | – | – | 1.0 |" in text
    cells["ivon"]["final"][2]["failed"] = methods.NEVER_COLD
    assert "| IVON | 1 of 5 had no cold draw | ahead: it had no cold draw |" in tables.results_text(cells)
    assert text.index("| AdamW") < text.index("| ctld.Ensemble |") < text.index("| IVON")


def test_temperatures_that_move_are_compared_with_a_constant_one():
    seeds = np.array([0.1, 0.2, 0.3, 0.4, 0.5])
    chosen = {"lr": 0.1, "weight_decay": 0.01, "temperature": 0.02}
    cells = {name: cell(2.0 + seeds, chosen=chosen) for name in MOVING} | {
        "ensemble_tuned": cell(1.0 + seeds, chosen=chosen),
        "moving_paper": cell(0.9 + seeds + 0.001 * seeds**2, chosen=chosen),
    }
    for run in cells["moving_paper"]["final"]:
        run["mean_ratio"] = 1.5
    text = tables.moving_text(cells)
    assert "| ctld.Ensemble, T tuned | 1.3000 ± 0.1963 |  |  | 0.02 | 0.02 |" in text
    assert "| paper's α | 1.2001 ± 0.1964 | -0.0999 ± 0.0001 | behind | 0.02 | 0.03 |" in text
    assert "| driven α | 2.3000 ± 0.1963 | +1.0000 ± 0.0000 | ahead | 0.02 | 0.02 |" in text
    cells["moving_driven"] = cell([1.0, 1.0, math.inf, 1.0, 1.0], chosen=chosen)
    assert "| driven α | 1 of 5 diverged | – | ahead: it diverged | 0.02 | 0.02 |" in tables.moving_text(cells)


def test_older_methods_are_corrected_by_themselves(tmp_path, monkeypatch):
    """A p of 0.008 counts four times, not as often as there are peers."""
    seeds, chosen = np.array([0.1, 0.2, 0.3, 0.4, 0.5]), {"lr": 0.1, "weight_decay": 0.01}
    near = cell(1.05 + seeds + 0.0228 * np.array([1, -1, 1, -1, 0]), chosen=chosen, trials=[{"nll": 1.0}])
    peers_too = dict.fromkeys(("sgd", "adamw", "swag"), near)
    reference = {"final": [{"curve": [{"scaled_nll": 2.0}]}] * 5}
    stored = dict.fromkeys(OLDER, near) | {"ensemble": cell(1.0 + seeds), study.REFERENCE: reference}
    assert tables.compare(stored)["swa"][1] == "ahead"
    assert tables.compare(stored | peers_too)["swa"][1] == "undecided"
    monkeypatch.setattr(tables, "read", lambda directory, name, method, plan: (stored | peers_too).get(method))
    made = tables.texts(tmp_path, {"wine": SMOKE["wine"]})
    assert set(made) == {"wine-older"}
    assert "| SWA | 1.3500 ± " in made["wine-older"]
    assert "| ahead |" in made["wine-older"]
    assert "SGD-M" not in made["wine-older"]
    stored.pop("adam")
    assert not tables.texts(tmp_path, {"wine": SMOKE["wine"]})


def test_seconds_of_different_machines_are_not_set_side_by_side():
    """A file's environment is of whoever began it; a run that was made elsewhere says so itself."""
    here, there = {"environment": {"machine": "A"}}, {"environment": {"machine": "B"}}
    assert "| CPU s |" in tables.results_text({"ensemble": cell([1.0, 2.0], **here), "sgd": cell([1.0, 2.0], **here)})
    apart = {"ensemble": cell([1.0, 2.0], **here), "sgd": cell([1.0, 2.0], **there)}
    assert "CPU" not in tables.results_text(apart)
    for run in apart["sgd"]["final"]:
        run["machine"] = "A"
    assert "| CPU s |" in tables.results_text(apart)


def test_the_page_shows_the_stored_runs():
    page = (ROOT / "docs" / "peers.md").read_text(encoding="utf-8")
    made = tables.texts(ROOT / "results" / "peers", peers.PLANS["laptop"])
    assert made
    assert document(page, made) == page


def test_what_the_page_says_came_out():
    """The sentences of docs/peers.md, README and docs/which.md, from the stored runs."""
    cells = {
        name: tables.load(ROOT / "results" / "peers", name, peers.PLANS["laptop"][name])
        for name in ("wine", "digits5k", "digits60k")
    }
    words = {name: {method: word for method, (_, word) in tables.compare(each).items()} for name, each in cells.items()}
    digits, wine = words["digits5k"], words["wine"]
    ten = {"sgd", "sam", "adamw", "swag", "ivon", "laplace_last", "laplace_kfac", "csghmc", "resgld", "deep"}
    assert {method for method, word in digits.items() if word == "ahead"} == ten
    assert digits["without_n"] == "ahead: it diverged"
    assert digits["tact_hmc"] == "ahead: it had no cold draw"
    assert [digits[name] for name in ("dropout", "ensemble_cold", "ensemble_tuned")] == [
        "undecided",
        "undecided",
        "tie",
    ]
    behind = {"adamw", "ensemble_cold", "csghmc", "deep", "resgld"}
    assert {method for method, word in wine.items() if word == "behind"} == behind
    assert {method for method, word in wine.items() if word == "ahead"} == {"sam", "ensemble_tuned", "without_n"}
    assert wine["sgd"] == "tie"
    assert sum(word == "tie" for word in wine.values()) == 7
    mean = {
        name: {m: np.mean(tables.values(c, "nll")) for m, c in each.items() if m in METHODS}
        for name, each in cells.items()
    }
    ours = mean["digits5k"]["ensemble"]
    assert min(mean["digits5k"], key=mean["digits5k"].__getitem__) == "dropout"
    assert round(100 * (1 - ours / mean["digits5k"]["sgd"])) == 9
    assert round(mean["digits5k"]["ensemble_cold"] - ours, 4) == 0.0059
    assert round(100 * (1 - ours / mean["digits5k"]["ensemble_cold"])) == 4
    assert all(value >= 5 for value in tables.worth(cells["digits5k"], "ensemble"))
    more = words["digits60k"]
    assert {method for method, word in more.items() if word == "ahead"} == ten | {"dropout"}
    assert [more[name] for name in ("ensemble_cold", "ensemble_tuned")] == ["tie", "tie"]
    assert (more["without_n"], more["tact_hmc"]) == ("ahead: it diverged", "ahead: it had no cold draw")
    assert min(mean["digits60k"], key=mean["digits60k"].__getitem__) == "ensemble"
    lower = {method: 100 * (1 - mean["digits60k"]["ensemble"] / value) for method, value in mean["digits60k"].items()}
    told = {"dropout": 6, "sgd": 7, "swag": 7, "laplace_last": 8, "laplace_kfac": 9, "csghmc": 9, "ivon": 11}
    told |= {"deep": 12, "resgld": 13, "sam": 14, "adamw": 21}
    assert {method: round(lower[method]) for method in told} == told
    assert round(float(np.mean(tables.worth(cells["digits60k"], "ensemble"))), 1) == 3.6
    lost = {m: int(np.isinf(tables.values(cells["digits60k"][m], "nll")).sum()) for m in ("tact_hmc", "without_n")}
    assert lost == {"tact_hmc": 3, "without_n": 4}
    assert sorted(run["members"] for run in cells["digits60k"]["tact_hmc"]["final"] if "members" in run) == [1, 4]
    ratio = {method: mean["wine"]["ensemble"] / value - 1 for method, value in mean["wine"].items()}
    assert all(abs(value) < 0.03 for method, value in ratio.items() if method != "without_n")
    assert all(0.005 < ratio[method] < 0.025 for method in behind)
    assert round(100 * ratio["resgld"], 1) == 0.5
    swaps = {
        kind: sum(run["swaps"] for each in cells.values() for run in each["resgld"][kind])
        for kind in ("trials", "final")
    }
    assert swaps == {"trials": 5, "final": 0}
    cold = [run["cold_share"] for run in cells["wine"]["tact_hmc"]["final"]]
    assert (round(100 * min(cold)), round(100 * max(cold))) == (8, 14)
    draws = [run["members"] for run in cells["wine"]["tact_hmc"]["final"]]
    assert (min(draws), max(draws)) == (7, 14)
    trials = {m: min(float(t["nll"]) for t in c["trials"]) for m, c in cells["wine"].items() if m in METHODS}
    assert min(trials, key=trials.__getitem__) == "dropout"
    assert sorted(mean["wine"], key=mean["wine"].__getitem__)[-2:] == ["dropout", "without_n"]
    seconds = {m: np.mean(tables.values(c, "seconds")) for m, c in cells["digits5k"].items() if m in METHODS}
    slower = {m: value / seconds["sgd"] for m, value in seconds.items()}
    assert [round(slower[m], 1) for m in ("ivon", "dropout")] == [2.6, 1.4]
    assert all(value < 1.205 for m, value in slower.items() if m not in ("ivon", "dropout", "tact_hmc", "resgld"))
    page = (ROOT / "docs" / "peers.md").read_text(encoding="utf-8")
    assert "ahead of ten of its peers" in page
    plan = peers.PLANS["laptop"]["digits60k"]
    again = cells["digits60k"] | {
        "ensemble": study.read(ROOT / "results" / "peers-again", "digits60k", "ensemble", plan)
    }
    assert again["ensemble"]["chosen"] == cells["digits60k"]["ensemble"]["chosen"]
    assert {method: word for method, (_, word) in tables.compare(again).items()} == more
    moved = np.subtract(*(tables.values(x["ensemble"], "nll") for x in (again, cells["digits60k"])))
    assert round(max(abs(moved)), 4) == 0.0018
    assert [round(float(np.mean(tables.values(x["ensemble"], "nll"))), 4) for x in (again, cells["digits60k"])] == [
        0.0458,
        0.0454,
    ]
    kappa = np.prod(list(again["ensemble"]["chosen"].values())) * 1500 / 0.1
    assert round(float(kappa), 2) == 0.38
    three = sorted(mean["digits60k"], key=mean["digits60k"].__getitem__)[:3]
    assert set(three) == {"ensemble", "ensemble_tuned", "ensemble_cold"}
    by_seed = sorted(tables.worth(cells["digits60k"], "ensemble"))
    assert (round(by_seed[0], 1), by_seed[-1]) == (1.8, 5)
    intel = {
        m
        for m in METHODS
        if "Intel" in json.dumps(cells["digits60k"][m]["final"] + [cells["digits60k"][m]["environment"]])
    }
    assert set(METHODS) - intel == {"ensemble", "ensemble_cold", "sgd", "deep"}


def test_what_the_page_says_of_text():
    """The sentences of docs/peers.md, README and docs/which.md."""
    plan = peers.PLANS["laptop"]["text"]
    cells = tables.load(ROOT / "results" / "peers", "text", plan)
    found = {method: word for method, (_, word) in tables.compare(cells).items()}
    assert {method for method, word in found.items() if word == "behind"} == {"sgd", "swag"}
    assert {method for method, word in found.items() if word == "tie"} == {"ensemble_cold", "ensemble_tuned"}
    undecided = {"dropout", "adamw", "ivon", "deep", "sam"}
    assert {method for method, word in found.items() if word == "undecided"} == undecided
    assert {method for method, word in found.items() if word == "ahead"} == {"csghmc", "resgld", "without_n"}
    assert found["tact_hmc"] == "ahead: it had no cold draw"
    nll = {method: tables.values(each, "nll") for method, each in cells.items() if method in METHODS}
    mean = {method: np.mean(values) for method, values in nll.items()}
    lower = {method: round(100 * (1 - mean["ensemble"] / value)) for method, value in mean.items()}
    told = {"sgd": -1, "swag": -1, "dropout": -1, "adamw": 3, "ivon": 6, "deep": 6, "sam": 24, "csghmc": 2, "resgld": 6}
    assert {method: lower[method] for method in told} == told
    assert min(mean, key=mean.__getitem__) == "dropout"
    assert min(nll["without_n"]) > 150
    for method, cell in cells.items():
        if method in METHODS and cell["chosen"]["lr"] == cells["sgd"]["chosen"]["lr"] and method not in ("sam", "deep"):
            others = [value for seed, value in enumerate(nll[method]) if seed != 2]
            assert nll[method][2] - max(others) > 0.15
    assert plan.size.steps * plan.size.batch < plan.size.train
    assert f"{np.prod(list(cells['ensemble']['chosen'].values())) * 160 / 0.1:.3f}" == "0.003"
    page = (ROOT / "docs" / "peers.md").read_text(encoding="utf-8")
    assert "SGD-M and SWAG are ahead of the default (nll 1 % lower); its own T tuned and T = 0 tie" in page
    assert "cyclical SGHMC (2 %), replica exchange (6 %), SGHMC without N, whose nll is above 150" in page


def later(name, methods):
    plan = peers.PLANS["laptop"][name]
    cells = tables.load(ROOT / "results" / "peers", name, plan, ("ensemble", *methods))
    ours = np.mean(tables.values(cells["ensemble"], "nll"))
    lower = {m: round(100 * (1 - ours / np.mean(tables.values(cells[m], "nll")))) for m in methods}
    return lower, {m: word for m, (_, word) in tables.compare(cells).items()}, cells


def test_what_the_page_says_of_older_methods():
    """And docs/which.md."""
    lower, words, cells = later("digits5k", OLDER)
    assert set(words.values()) == {"ahead"}
    assert [lower[name] for name in ("swa", "snapshot", "adam")] == [10, 10, 19]
    assert round(100 * np.mean(tables.values(cells["santa"], "error"))) == 34
    lower, words, cells = later("digits60k", OLDER)
    assert set(words.values()) == {"ahead"}
    assert [lower[name] for name in ("swa", "snapshot", "adam")] == [4, 9, 11]
    assert round(100 * np.mean(tables.values(cells["santa"], "error"))) == 9
    lower, words, _ = later("text", OLDER)
    assert words == {"swa": "behind", "snapshot": "ahead", "adam": "ahead", "santa": "ahead"}
    assert [lower[name] for name in ("swa", "snapshot", "adam")] == [-1, 2, 5]
    lower, words, _ = later("wine", OLDER)
    assert words == {"swa": "behind", "snapshot": "behind", "adam": "behind", "santa": "tie"}
    assert [lower[name] for name in ("swa", "snapshot", "adam")] == [-1, -1, -1]


def test_what_the_page_says_of_torch_uncertainty():
    """And docs/coming-from.md."""
    found = {name: later(name, THEIRS) for name in ("wine", "digits5k")}
    assert {name: lower["tu_sghmc"] for name, (lower, _, _) in found.items()} == {"wine": 1, "digits5k": 37}
    assert {words["tu_sghmc"] for _, words, _ in found.values()} == {"ahead"}


def test_what_the_page_says_of_temperatures_that_move():
    words, means, heats = {}, {}, {}
    for name in ("wine", "digits5k"):
        plan = peers.PLANS["laptop"][name]
        cells = tables.load(ROOT / "results" / "peers", name, plan, ("ensemble_cold", tables.CONSTANT, *MOVING))
        means[name] = {method: np.mean(tables.values(found, "nll")) for method, found in cells.items()}
        cells.pop("ensemble_cold")
        words[name] = {method: word for method, (_, word) in tables.compare(cells, ours=tables.CONSTANT).items()}
        ratio = {method: np.mean([run.get("mean_ratio", 1.0) for run in cells[method]["final"]]) for method in cells}
        heats[name] = {method: cells[method]["chosen"]["temperature"] * ratio[method] for method in cells}
        assert f"{100 * (ratio['moving_calibrated'] - 1):.1g}" == {"wine": "0.2", "digits5k": "0.002"}[name]
    assert set(words["digits5k"].values()) == {"tie"}
    ahead = {method for method, word in words["wine"].items() if word == "behind"}  # the constant one is
    assert ahead == {"moving_falling", "moving_driven", "moving_paper"}
    assert words["wine"]["moving_calibrated"] == "tie"
    assert all(heats["wine"][method] < 0.25 * heats["wine"][tables.CONSTANT] for method in ahead)
    assert all(round(100 * (means["wine"][method] / means["wine"][tables.CONSTANT] - 1)) == -1 for method in ahead)
    assert min(means["wine"], key=means["wine"].__getitem__) == "ensemble_cold"
    for method in ("moving_falling", "moving_driven"):
        assert round(100 * (means["digits5k"][method] / means["digits5k"][tables.CONSTANT] - 1)) == 2
    apart = [means[name]["moving_calibrated"] - means[name][tables.CONSTANT] for name in ("wine", "digits5k")]
    assert [f"{abs(value):.4f}" for value in apart] == ["0.0003", "0.0011"]
    page = (ROOT / "docs" / "peers.md").read_text(encoding="utf-8")
    assert "the first two are 2 % higher in the mean" in page
    assert "On wines they are ahead of it by 1 %, at a mean temperature below a quarter of its" in page
    assert "differs in the mean by 0.0003 and 0.0011" in page
    assert "T is 0.2 % higher on wines, 0.002 % on digits" in page


def test_stored_runs_are_complete_and_named():
    """A problem that is not complete is named as such on the page."""
    page = (ROOT / "docs" / "peers.md").read_text(encoding="utf-8")
    left = []
    for name, plan in peers.PLANS["laptop"].items():
        cells = tables.load(ROOT / "results" / "peers", name, plan)
        wanted = {method for method, row in METHODS.items() if name not in row.not_for} | {study.REFERENCE}
        planned = {method for method, row in MOVING.items() if name not in row.not_for}
        expected = {method for method, row in (OLDER | THEIRS).items() if name not in row.not_for}
        later = tables.load(ROOT / "results" / "peers", name, plan, expected)
        moving = tables.load(ROOT / "results" / "peers", name, plan, MOVING)
        if set(cells) != wanted or set(moving) != planned or set(later) != expected:
            left.append(name)
    (line,) = [line for line in page.splitlines() if line.startswith("Not run yet:")] or [""]
    assert [name for name in peers.PLANS["laptop"] if f"`{name}`" in line] == left
