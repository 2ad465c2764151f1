"""The study `ensemble`: equal gradients and trials, no test data in a trial, members that survive a kill, its protocol."""

import itertools
import json
import re
import shutil
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
from ctld_lab.records import RunDirectory, StudyDirectory, read_json, write_json
from ctld_lab.report import ensemble as section
from ctld_lab.report.provenance import provenance
from ctld_lab.report.reading import read_study
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


# ---- the report ----


def write_study(path, shifts, *, seeds=5):
    """Made-up results: nll 0.15 and the method's shift on each workload, and what seeds share."""
    study = StudyDirectory(path)
    settings = {"workloads": {"digits5k": {}, "text": {"text": "enwik8"}}}
    study.prepare(
        {
            "study": "ensemble", "scale": "laptop", "title": "Cycles", "figure": "", "methods": list(METHODS),
            "titles": dict(ensemble.STUDY.titles), "seeds": list(range(seeds)), "data": {}, "settings": settings,
            "paper": {}, "commands": [],
        }
    )  # fmt: skip

    def write(name, seed, method, variant, nll, **more):
        run = study.run(name)
        run.prepare({"kind": "train", "role": "final", "method": method, "variant": variant, "seed": seed} | more)
        scores = {"nll": nll, "error": 30 * nll, "ece": 4 * nll, "brier": nll / 2, "last_nll": nll + 0.01}
        run.write("result.json", {"test": scores, "train": {"nll": 0.01}, "members": 6, "seconds": {"train": 1.0}})

    generator = np.random.default_rng(0)
    for seed, (workload, shift) in itertools.product(range(seeds), shifts.items()):
        for method in METHODS:
            nll = 0.15 + 0.01 * seed + shift.get(method, 0.02) + 1e-4 * generator.standard_normal()
            write(f"{workload}-{method}-seed{seed}", seed, method, workload, nll)
    for seed, (method, level) in itertools.product(
        range(seeds), {"cycles_driven": 1.0, "cycles_constant": 1.05, "cycles_cold": 0.0, "sgd": 0.0}.items()
    ):
        for heat in (0.01, 0.1, 1.0) if level else (None,):
            noise = 1e-4 * generator.standard_normal()
            nll = 0.155 + 0.01 * seed + (level * 0.1 * (np.log10(heat) + 1.4) ** 2 - 0.04 if heat else 0.0) + noise
            point = {"point": {"T": heat}} if heat else {}
            write(f"curve-{method}-{heat}-seed{seed}", seed, method, "curve", nll, **point)
    record = {
        "method": "digits5k-sgd", "space": {"lr": [0.03, 0.3]}, "chosen": {"lr": 0.29}, "value": 0.1,
        "trials": [{"run": "x", "parameters": {"lr": lr}, "value": 0.4 - lr} for lr in (0.04, 0.1, 0.29)],
    }  # fmt: skip
    (path / "tuning").mkdir()
    write_json(path / "tuning" / "digits5k-sgd.json", record)
    return path


def content(path):
    return section.content(read_study(path))


DRIVEN, CONSTANT, COLD = "cycles_driven", "cycles_constant", "cycles_cold"


@pytest.mark.parametrize(
    ("shift", "answer", "noise"),
    [
        ({DRIVEN: -0.01, CONSTANT: 0.0, COLD: 0.01}, "it does on 5,000 digits", "the noise deserves credit"),
        (
            {DRIVEN: 0.0, CONSTANT: 0.0, COLD: 0.0},
            "ties with it on 5,000 digits",
            "cycles without any tie with noise",
        ),
        ({DRIVEN: 0.01, CONSTANT: 0.0, COLD: -0.01}, "it does harm on 5,000 digits", "the noise does harm"),
    ],
)
def test_the_answer_is_made_of_the_records(shift, answer, noise, tmp_path):
    other = {DRIVEN: -0.01, CONSTANT: 0.0, COLD: 0.01}
    found = content(write_study(tmp_path, {"digits5k": shift, "text": other}))
    first = found.summary[0]
    assert answer in first
    assert first.count("char-LSTM") == 1
    (sentence,) = [words for words in found.summary if words.startswith("5,000 digits")]
    assert "driven − constant" in sentence
    assert noise in sentence
    assert "(5 seeds)" in sentence


def test_the_curve_is_drawn_beside_no_noise(tmp_path):
    found = content(write_study(tmp_path, {"digits5k": {}}))
    assert [plot.name for plot in found.plots] == ["temperature-curve"]
    (table,) = [table for table in found.tables if table.name == "final-digits5k"]
    assert any("SGD-M (highest lr)" in note for note in table.notes)
    (table,) = [table for table in found.tables if table.name == "differences"]
    assert len(table.rows) == 2 * 7


def change(path, names, *, nll=None, metrics=None):
    """Other results of some runs; `nll` is a function of the seed."""
    for run in StudyDirectory(path).runs():
        if re.fullmatch(names, run.name):
            result = run.result()
            if nll is not None:
                result["test"]["nll"] = nll(run.config()["seed"])
            run.write("result.json", result)
            if metrics is not None:
                (run.path / "metrics.jsonl").write_text(json.dumps(metrics) + "\n")


def test_seeds_that_differ_too_much_show_no_tie(tmp_path):
    path = write_study(tmp_path, {"digits5k": {}})
    change(path, "curve-cycles_driven-0.1-seed.", nll=lambda seed: 20.0 if seed == 2 else 0.1)
    change(path, "digits5k-cycles_driven-seed.", nll=lambda seed: 20.0 if seed == 2 else 0.1)
    found = content(path)
    assert "seeds decide nothing on 5,000 digits" in found.summary[0]
    (table,) = [table for table in found.tables if table.name == "differences"]
    assert [row[3].text for row in table.rows][:3] == ["undecided", "undecided", "tie"]


@pytest.mark.parametrize(
    ("workload", "before"), [("digits5k", {"test": {"nll": 2.3}}), ("text", {"test": {"nats": 2.3, "bits": 3.3}})]
)
def test_an_nll_ten_times_that_of_before_training_has_diverged(workload, before, tmp_path):
    path = write_study(tmp_path, {"digits5k": {}, "text": {}})
    change(path, f"{workload}-sgd-seed3", nll=lambda seed: 24.0, metrics={"step": 0} | before)
    change(path, f"{workload}-adam-seed3", nll=lambda seed: 22.0, metrics={"step": 0} | before)
    diverged = {run.name for run in read_study(path).runs if run.diverged}
    assert diverged == {f"{workload}-sgd-seed3"}
    assert any("SGD-M diverged in 1 of 5 seeds." in words for words in content(path).summary)


def test_a_method_without_runs_on_a_workload_is_in_its_table(tmp_path):
    path = write_study(tmp_path, {"digits5k": {}, "text": {}})
    for run in StudyDirectory(path).runs():
        if re.fullmatch("text-(adam|cycles_cold)-seed.", run.name):
            shutil.rmtree(run.path)
    found = content(path)
    (words,) = [text for text in found.summary if text.startswith("char-LSTM: ")]
    assert "cycles (T = 0) and Adam have no finished run." in words
    assert "Of cycles, driven − constant is" in words  # known without the comparison with T = 0
    (table,) = [table for table in found.tables if table.name == "final-text"]
    assert {row[0].text: row[2].text for row in table.rows}["Adam"] == "0 of 5 seeds"
    assert [row[0].text for row in table.rows] == [method.title for method in METHODS.values()]
    assert any("the same text in the same order" in note for note in table.notes)
    (table,) = [table for table in found.tables if table.name == "final-digits5k"]
    assert not any("the same text in the same order" in note for note in table.notes)


def test_the_searches_of_many_workloads_are_no_methods(tmp_path):
    path = write_study(tmp_path, {"digits5k": {}})
    record = read_json(path / "tuning" / "digits5k-sgd.json")
    for workload, method in itertools.product(("digits5k", "digits60k", "text"), METHODS):
        write_json(path / "tuning" / f"{workload}-{method}.json", record)
    found = provenance(read_study(path))
    assert "3 trials for each of 36 searches, one for each method and workload." in found.tuning_words


def test_all_data_are_named(tmp_path):
    path = write_study(tmp_path, {"digits5k": {}})
    for place, name in enumerate(("mnist", "enwik8", "mnist")):
        StudyDirectory(path).run(f"x{place}").prepare(
            {"kind": "train", "seed": 0, "data": {"name": name, "sha256": "ab"}}
        )
    facts = provenance(read_study(path)).facts
    assert [value for key, value in facts if key == "Data"] == ["mnist, SHA-256 ab…", "enwik8, SHA-256 ab…"]


def test_one_seed_answers_nothing(tmp_path):
    found = content(write_study(tmp_path, {"digits5k": {}}, seeds=1))
    assert found.summary[0].startswith("Does the tempering deserve the credit? Too few runs are finished to say.")


def test_a_study_that_has_just_begun_is_shown(tmp_path):
    study = write_study(tmp_path / "some", {})
    for run in StudyDirectory(study).runs():
        for file in run.path.iterdir():
            file.unlink()
    found = content(study)
    assert "Too few runs" in found.summary[0]
    assert not found.plots
