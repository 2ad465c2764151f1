"""The study `ensemble`: equal gradients and trials, no test data in a trial, members that survive a kill, its protocol."""

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from small_run import StopAt

import ctld
import ensemble
from ctld_lab import data, jobs, studies, tuning, workloads
from ctld_lab.checkpoints import load_checkpoint
from ctld_lab.commands import Refusal
from ctld_lab.commands.request import Order, build
from ctld_lab.control import Control
from ctld_lab.records import RunDirectory, StudyDirectory
from ensemble import METHODS


def request(scale="smoke", methods=tuple(METHODS), seeds=(0, 1)):
    settings = dict(ensemble.STUDY.scales[scale])
    images = {"name": settings["data"], "sha256": data.identify(settings["data"])}
    return studies.Request(scale, list(methods), list(seeds), images, settings)


def config(workload, method, *, scale="smoke", role="final", seed=0, **options):
    options = {"lr": 0.1, "temperature": 0.01} | options
    if METHODS[method].second != "temperature":
        del options["temperature"]
    run = ensemble._run(request(scale), workload, method, "name", seed, workload, options, role=role)
    return run.config | {"checkpoint_seconds": 1e9, "keep_parameters": True}


def execute(path, settings, control=None):
    run = RunDirectory(path)
    run.prepare(settings)
    state = jobs.execute(path, threads=1, control=control or Control())
    if state == "failed":
        raise AssertionError(run.failure()["traceback"])
    return state


@pytest.fixture
def judged(monkeypatch):
    """What every call of `judge` was given, by the workload's calls in order."""
    seen = []
    for kind in (workloads.MnistMLP, workloads.CharLSTM):
        judge = kind.judge

        def watched(self, members, judge=judge):
            seen.append([{name: tensor.clone() for name, tensor in state.items()} for state in members])
            return judge(self, members)

        monkeypatch.setattr(kind, "judge", watched)
    return seen


# ---- as a user runs it ----


def test_it_runs_from_end_to_end_by_its_file(smoke_study):
    ran = smoke_study("research/ensemble.py")
    assert ran.study.description()["study"] == "ensemble"
    assert {run.state() for run in ran.study.runs()} == {"done"}
    assert "report.html" in ran.out


# ---- fair ----


@pytest.mark.parametrize("method", METHODS)
def test_every_method_takes_the_same_number_of_gradients(method, tmp_path, monkeypatch, judged):
    counts = itertools.count()
    loss = workloads.MnistMLP.loss

    def counted(self, step):
        next(counts)
        return loss(self, step)

    monkeypatch.setattr(workloads.MnistMLP, "loss", counted)
    settings = config("digits5k", method, lr=1e-6 if method == "santa" else 0.01)
    assert execute(tmp_path, settings) == "done"
    assert next(counts) == ensemble.STUDY.scales["smoke"]["workloads"]["digits5k"]["steps"]
    result = RunDirectory(tmp_path).result()
    expected = {"sgd": 1, "adam": 1, "santa": 1, "swa": 1, "deep": 3, "csghmc": 10}.get(method, 5)
    assert result["members"] == len(judged[-1]) == expected
    assert set(result["test"]) == {
        prefix + name for prefix in ("", "last_") for name in ("nll", "error", "ece", "brier")
    }
    assert all(not torch.equal(one["0.weight"], two["0.weight"]) for one, two in itertools.pairwise(judged[-1]))
    # What is kept for whoever looks at the model is the last member.
    kept = load_checkpoint(tmp_path / "parameters.safetensors")
    assert all(torch.equal(kept[name], tensor) for name, tensor in judged[-1][-1].items())


def test_the_training_nll_is_that_of_the_model_that_was_kept(tmp_path):
    """Of SWA the averaged one, on which training never stood."""
    settings = config("digits5k", "swa", lr=0.3)
    execute(tmp_path, settings)
    workload = workloads.build(settings)
    workload.model.load_state_dict(load_checkpoint(tmp_path / "parameters.safetensors"))
    run = RunDirectory(tmp_path)
    assert run.result()["train"] == pytest.approx(workload.evaluate(thorough=True)["train"])
    assert run.result()["test"]["last_nll"] == pytest.approx(workload.evaluate(thorough=True)["test"]["nll"])


@pytest.mark.parametrize("scale", ensemble.STUDY.scales)
def test_budgets_are_equal_at_every_scale(scale):
    for workload, size in ensemble.STUDY.scales[scale]["workloads"].items():
        assert size["steps"] % size["cycles"] == size["steps"] % 3 == 0
        for method in METHODS:
            made = config(workload, method, scale=scale)
            assert sum(made["steps"]) == size["steps"]
            assert max(made["members"]["steps"]) == made["steps"][0]
            assert made["workload"].get("stages", 1) == len(made["steps"])


def test_cycles_differ_in_the_temperature_alone():
    names = [name for name in METHODS if name.startswith("cycles")]
    assert len(names) == 5
    made = [config("digits5k", name, scale="laptop") for name in names]
    for each in made:
        each["optimizer"].pop("tempering", None)
        each["optimizer"].pop("temperature")
        each.pop("method")
    assert all(each == made[0] for each in made)
    constant, driven = (config("digits5k", f"cycles_{name}", scale="laptop") for name in ("constant", "driven"))
    explored = driven["exploration_steps"]
    sweep = ctld.Tempering.driven(driven["optimizer"]["tempering"]["period"])
    ratios = []
    for _ in range(explored):
        ratios.append(sweep.temperature_ratio)
        sweep.end(0.0, 0.0)
    assert constant["optimizer"]["tempering"]["ratio"] == pytest.approx(np.mean(ratios), rel=1e-3)
    top = int(np.argmax(ratios))  # once up and down
    assert (np.diff(ratios[: top + 1]) >= 0).all()
    assert (np.diff(ratios[top:]) <= 0).all()
    assert sweep.alpha == pytest.approx(0.0, abs=1e-9)
    assert max(ratios) == pytest.approx(1 / 0.15, rel=1e-3)


def test_tuning_is_equal_and_in_two_dimensions():
    plan = next(ensemble.plan(request("laptop"), StudyDirectory(Path("nowhere"))))
    trials = ensemble.STUDY.scales["laptop"]["trials"]
    assert len(plan) == trials * 3 * len(METHODS)
    assert {run.config["role"] for run in plan} == {"tuning"}
    assert {run.config["seed"] for run in plan} == {1000}
    places = {}
    for workload, size in ensemble.STUDY.scales["laptop"]["workloads"].items():
        for method in METHODS:
            space = ensemble._space(method, size)
            assert list(space) == ["lr", METHODS[method].second]
            found = tuning.propose(space, trials)
            places[workload, method] = [
                [np.log(trial[name] / low) / np.log(high / low) for name, (low, high) in space.items()]
                for trial in found
            ]
    expected = next(iter(places.values()))
    for found in places.values():
        assert np.allclose(found, expected, atol=0.005)  # values are given to three digits


# ---- test data ----


def rows(images):
    return {row.tobytes() for row in images.numpy()}


def test_trials_hold_no_test_data_and_nobody_trains_on_validation_data():
    images = data.load_images("digits")
    test = {row.tobytes() for row in images.test}
    for workload in ("digits5k", "digits60k"):
        trial = workloads.build(config(workload, "sgd", role="tuning", seed=1000))
        final = workloads.build(config(workload, "sgd"))
        assert set(trial._data) == {"train", "valid"}
        assert set(final._data) == {"train", "test"}
        assert not test & (rows(trial._data["train"][0]) | rows(trial._data["valid"][0]))
        assert rows(final._data["test"][0]) == test
        valid = rows(trial._data["valid"][0])
        assert not valid & (rows(trial._data["train"][0]) | rows(final._data["train"][0]))
        assert final.num_data == trial.num_data
    text = data.load_text("pydoc")
    trial, final = (workloads.build(config("text", "sgd", role=role)) for role in ("tuning", "final"))
    assert set(trial._texts) == {"train", "valid"}
    assert set(final._texts) == {"train", "test"}
    assert np.array_equal(trial._texts["valid"].ravel(), trial._codes[text.valid[:2000]])
    assert np.array_equal(final._texts["test"].ravel(), final._codes[text.test[:2000]])


def test_seeds_draw_other_digits_and_methods_share_them():
    one, same, other = (workloads.build(config("digits5k", *item)) for item in (("sgd",), ("deep",), ("sgd",)))
    other = workloads.build(config("digits5k", "sgd", seed=1))
    assert torch.equal(one._data["train"][0], same._data["train"][0])
    assert rows(one._data["train"][0]) != rows(other._data["train"][0])
    with pytest.raises(ValueError, match="do not fit digits, which has 4000"):
        workloads.build(
            config("digits5k", "sgd") | {"workload": {"name": "mnist_mlp", "train_images": 3900, "valid_images": 200}}
        )


def test_final_runs_have_what_the_trials_chose(tmp_path):
    study, asked = StudyDirectory(tmp_path), request(methods=["sgd", "cycles_driven"])
    plan = ensemble.plan(asked, study)
    trials = next(plan)
    for place, run in enumerate(trials):
        study.run(run.name).prepare(run.config)
        study.run(run.name).write("result.json", {"valid": {"nll": 1.0 + place}, "seconds": {"train": 1.0}})
    finals = {run.name: run.config for run in next(plan)}
    chosen = trials[0].config["optimizer"]
    assert finals["digits5k-sgd-seed1"]["optimizer"] == chosen
    assert (
        finals["text-cycles_driven-seed0"]["optimizer"]["temperature"] == trials[5].config["optimizer"]["temperature"]
    )
    assert all(run["keep_parameters"] for run in finals.values())
    assert len(finals) == 2 * 3 * 2
    curve = list(next(plan))
    assert {run.config["optimizer"]["lr"] for run in curve} == {0.1}
    assert {run.config["point"]["T"] for run in curve if "point" in run.config} == set(asked.settings["curve"]["T"])


def test_a_text_that_is_missing_is_told_before_any_run(tmp_path, monkeypatch):
    monkeypatch.setenv("CTLD_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(data.DataError, match="enwik8"):
        build(Order("ensemble", "laptop", data="digits"), ensemble.STUDY)
    assert build(Order("ensemble", "smoke"), ensemble.STUDY).data["name"] == "digits"


def test_too_few_images_are_refused_before_any_run(monkeypatch):
    monkeypatch.setattr("ctld_lab.commands.request._see", lambda name: None)
    with pytest.raises(
        Refusal, match=r"digits has 4,000 images to train on, .* laptop of the study ensemble takes 10,000"
    ):
        build(Order("ensemble", "laptop", data="digits"), ensemble.STUDY)


# ---- interrupted ----


@pytest.mark.parametrize(
    ("workload", "method"),
    [
        ("digits5k", "cycles_paper"),
        ("digits5k", "cycles_calibrated"),
        ("digits5k", "cycles_driven"),
        ("digits5k", "swa"),
        ("digits5k", "deep"),
        ("text", "deep"),
        ("text", "csghmc"),
    ],
)
def test_interrupted_it_keeps_the_same_members_to_the_bit(workload, method, tmp_path, judged):
    settings = config(workload, method)
    execute(tmp_path / "whole", settings)
    whole = judged[-1]
    attempts = 1
    for looks in itertools.cycle((4, 9, 2)):
        if execute(tmp_path / "stopped", settings, StopAt(looks)) == "done":
            break
        attempts += 1
    assert attempts > 3
    again = judged[-1]
    assert len(again) == len(whole) > 0
    for one, other in zip(whole, again, strict=True):
        assert one.keys() == other.keys()
        assert all(torch.equal(one[name], other[name]) for name in one)
    results = [RunDirectory(tmp_path / name).result() for name in ("whole", "stopped")]
    for result in results:
        result.pop("seconds")
    assert results[0] == results[1]
    assert RunDirectory(tmp_path / "whole").trace() == RunDirectory(tmp_path / "stopped").trace()


def test_killed_between_checkpoints_it_keeps_the_same_members(tmp_path, monkeypatch, judged):
    """A kill is a run that never gets to the end, and a checkpoint that is older than the members taken since."""
    settings = config("digits5k", "cycles_driven")
    execute(tmp_path / "whole", settings)

    class Killed(BaseException):
        pass

    path, loss = tmp_path / "killed", workloads.MnistMLP.loss
    execute(path, settings, StopAt(13))
    kept = (path / "checkpoint.safetensors").read_bytes()
    assert len(load_checkpoint(path / "checkpoint.safetensors")["members"]["samples"]) == 2

    def dying(self, step):
        if step == 25:
            raise Killed
        return loss(self, step)

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(workloads.MnistMLP, "loss", dying)
        execute(path, settings)
    assert (path / "checkpoint.safetensors").read_bytes() == kept
    assert execute(path, settings) == "done"
    *_, whole, _, again = judged
    assert len(whole) == len(again) == 5
    for one, other in zip(whole, again, strict=True):
        assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("workload", ["digits5k", "text"])
def test_a_deep_ensemble_begins_anew_and_its_first_member_as_everybody(workload):
    deep, single = (workloads.build(config(workload, method)) for method in ("deep", "sgd"))
    starts = []
    for stage in range(3):
        deep.begin(stage)
        starts.append([parameter.detach().clone() for parameter in deep.model.parameters()])
        with torch.no_grad():
            for parameter in deep.model.parameters():
                parameter.zero_()
        deep.begin(stage)  # of a run that goes on: nothing is begun anew
        assert not any(parameter.any() for parameter in deep.model.parameters())
    assert all(torch.equal(one, two) for one, two in zip(starts[0], single.model.parameters(), strict=True))
    assert not any(torch.equal(one, two) for one, two in zip(starts[0], starts[1], strict=True))
    assert not any(torch.equal(one, two) for one, two in zip(starts[1], starts[2], strict=True))
