"""`ctld flatness`: that its numbers are those of the kept parameters, what it does twice and what not, and what it refuses."""

import json
import os
import shlex
import shutil

import numpy as np
import pytest
import torch
from torch import nn

from ctld import diagnostics
from ctld_lab import cli, data, flatness, jobs, workloads
from ctld_lab.checkpoints import load_checkpoint, save_checkpoint
from ctld_lab.control import Control
from ctld_lab.flatness import Settings, load_probe, measure
from ctld_lab.records import RecordError, RunDirectory, StudyDirectory, read_json, write_json

LENGTH, HIDDEN, EXAMPLES = 6, 3, 60
FEW = f"--examples {EXAMPLES} --threads 1"
METHODS = {"sgd": {"lr": 0.5, "momentum": 0.5}, "ctld": {"lr": 0.5, "momentum": 0.5, "temperature": 0.01}}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A study of two methods and two seeds, of a text of three letters: seconds."""
    root = tmp_path_factory.mktemp("trained")
    text = root / "letters.txt"
    text.write_bytes(bytes(np.random.default_rng(0).choice([97, 98, 99], size=4000, p=[0.6, 0.3, 0.1]).tolist()))
    study = StudyDirectory(root / "study")
    study.prepare(
        {
            "study": "charrnn",
            "scale": "smoke",
            "title": "Letters",
            "methods": list(METHODS),
            "seeds": [0, 1],
            "commands": [],
        }
    )
    base = {
        "kind": "train", "study": "charrnn", "scale": "smoke", "variant": "tuned", "steps": [20], "exploration_steps": 5,
        "evaluations": 2, "checkpoint_seconds": 1e9,
        "workload": {"name": "char_lstm", "hidden": HIDDEN, "layers": 1, "batch_size": 8, "length": LENGTH,
                     "curve_characters": 100},
        "data": {"name": "letters", "path": str(text), "sha256": data.identify(text)},
    }  # fmt: skip
    for method, options in METHODS.items():
        for seed in (0, 1):
            run = study.run(f"{method}-tuned-seed{seed}")
            run.prepare(
                base | {"role": "final", "method": method, "seed": seed, "optimizer": options, "keep_parameters": True}
            )
            assert jobs.execute(run.path, threads=1, control=Control()) == "done", run.failure()
    study.run("tune-sgd-00").prepare(base | {"role": "tuning", "method": "sgd", "seed": 9, "optimizer": METHODS["sgd"]})
    return root


@pytest.fixture
def study(trained, tmp_path, monkeypatch):
    """A copy, to break."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)
    threads = torch.get_num_threads()
    monkeypatch.setattr(
        flatness, "settings", lambda examples: Settings(examples, iterations=12, probes=3, sizes=(0.1,))
    )
    shutil.copytree(trained / "study", tmp_path / "study")
    yield StudyDirectory(tmp_path / "study")
    torch.set_num_threads(threads)


@pytest.fixture
def ctld(capsys):
    def call(line):
        """Exit code, output, error."""
        with pytest.raises(SystemExit) as leaving:
            cli.main(shlex.split(line))
        caught = capsys.readouterr()
        return leaving.value.code, caught.out, caught.err

    return call


def finals(study):
    return [run for run in study.runs() if run.config()["role"] == "final"]


# ---- numbers ----


def by_hand(run):
    """Loss and parameters as the documentation has them, with nothing of the workload."""
    text = np.fromfile(run.config()["data"]["path"], np.uint8)[: 4000 * 90 // 100]
    text = torch.from_numpy(text.astype(np.int64) - 97)
    lstm, head = nn.LSTM(3, HIDDEN).double(), nn.Linear(HIDDEN, 3).double()
    state = load_checkpoint(run.path / "parameters.safetensors")
    lstm.load_state_dict(
        {name.removeprefix("lstm."): value for name, value in state.items() if name.startswith("lstm")}
    )
    head.load_state_dict(
        {name.removeprefix("head."): value for name, value in state.items() if name.startswith("head")}
    )
    passages = EXAMPLES // LENGTH
    starts = [place * (len(text) - 2 * LENGTH) // passages for place in range(passages)]
    read = torch.stack([text[start : start + 2 * LENGTH + 1] for start in starts], dim=1)

    def loss():
        hidden, _ = lstm(nn.functional.one_hot(read[:-1], 3).double())
        scores = head(hidden[LENGTH:])
        return nn.functional.cross_entropy(scores.flatten(0, 1), read[LENGTH + 1 :].flatten())

    return loss, [*lstm.parameters(), *head.parameters()]


def exact_hessian(loss, parameters):
    gradient = torch.autograd.grad(loss(), parameters, create_graph=True)
    rows = [
        torch.cat([part.flatten() for part in torch.autograd.grad(number, parameters, retain_graph=True)])
        for part in gradient
        for number in part.flatten()
    ]
    return torch.cat([part.detach().flatten() for part in gradient]), torch.stack(rows)


def test_the_numbers_are_those_of_the_kept_parameters(study):
    run = study.run("ctld-tuned-seed0")
    loss, parameters = by_hand(run)
    gradient, hessian = exact_hessian(loss, parameters)
    count = sum(parameter.numel() for parameter in parameters)
    found = measure(run, Settings(examples=EXAMPLES, iterations=count, sizes=(0.01, 0.1)))

    assert found["loss"] == pytest.approx(float(loss().detach()), rel=1e-12)
    assert found["parameters"] == count == len(hessian)
    assert found["gradient_norm"] == pytest.approx(float(gradient.norm()), rel=1e-9)
    largest = torch.linalg.eigvalsh(hessian).flip(0)[:3].tolist()
    assert found["eigenvalues"] == pytest.approx(largest, rel=1e-8)  # with as many iterations as parameters it is exact
    assert found["residuals"] == [0, 0, 0]
    trace = diagnostics.hessian_trace(loss, parameters, probes=20)
    assert found["trace"] == pytest.approx({"mean": trace.mean, "standard_error": trace.standard_error}, rel=1e-8)
    assert abs(trace.mean - float(hessian.trace())) < 4 * trace.standard_error
    sharp = diagnostics.sharpness(loss, parameters, radius=1e-3, iterations=10)
    assert found["sharpness"] == pytest.approx(sharp.sharpness, rel=1e-8)
    rise = diagnostics.perturbed_loss(loss, parameters, size=0.1, draws=10)
    assert found["rises"][1] == pytest.approx({"size": 0.1, "mean": rise.mean, "standard_error": rise.standard_error})
    assert found["examples"] == EXAMPLES
    assert found["metric"] == "nats"


def test_all_seeds_and_methods_are_measured_on_the_same_data(study):
    """With one network in all of them, they differ in nothing."""
    same = (study.run("sgd-tuned-seed0").path / "parameters.safetensors").read_bytes()
    records = []
    for run in finals(study):
        (run.path / "parameters.safetensors").write_bytes(same)
        record = measure(run, Settings(examples=EXAMPLES, iterations=5, probes=2))
        record.pop("seconds")
        records.append(record)
    assert len(records) == 4
    assert all(record == records[0] for record in records)


def untrained(path, workload):
    """A run that kept its initial parameters, and the workload that has them too. Digits of the embedded data."""
    config = {
        "kind": "train", "role": "final", "seed": 1, "method": "sgd", "workload": workload,
        "data": {"name": "digits", "sha256": data.identify("digits")},
    }  # fmt: skip
    run, built = RunDirectory(path), workloads.build(config)
    run.prepare(config)
    run.write("result.json", {"diverged": False})
    save_checkpoint(run.path / "parameters.safetensors", built.model.state_dict())
    return run, built


def test_the_autoencoder_is_measured_without_dropout_through_the_whole_stack(tmp_path):
    run, built = untrained(tmp_path / "run", {"name": "sda", "widths": [784, 6, 3], "batch_size": 32})
    probe = load_probe(run, run.config(), 50)
    assert {parameter.dtype for parameter in probe.parameters} == {torch.float64}
    assert len(probe.parameters) == 8

    pixels = data.load_images("digits").train
    images = torch.from_numpy(pixels[np.arange(50) * len(pixels) // 50]).double() * 0.02
    first, last = (stack.double() for stack in built.stacks)
    code = last.encoder(first.encoder(images).relu()).relu()
    back = first.decoder(last.decoder(code).relu())
    expected = 0.5 * (back - images).square().mean()
    assert float(probe.loss().detach()) == pytest.approx(float(expected.detach()), rel=1e-12)


def test_the_perceptron_is_measured_on_what_its_seed_trained_on(tmp_path):
    workload = {"name": "mnist_mlp", "widths": [784, 5, 10], "valid_images": 100, "train_images": 200}
    run, built = untrained(tmp_path / "run", workload)
    found = measure(run, Settings(examples=500, iterations=3, probes=2, sizes=(0.1,)))
    assert found["examples"] == 200  # all there are
    assert found["metric"] == "nll"
    images, labels = built._data["train"]
    expected = nn.functional.cross_entropy(built.model.double()(images.double() / 255), labels)
    assert found["loss"] == pytest.approx(float(expected.detach()), rel=1e-12)


# ---- the command ----


def test_a_study_is_measured_once(study, ctld, monkeypatch):
    code, out, err = ctld(f"flatness study {FEW}")
    assert (code, err) == (0, "")
    assert "4 measured;" in out
    records = {run.name: run.flatness() for run in finals(study)}
    assert all(records.values())
    assert not (study.path / "runs" / "tune-sgd-00" / "flatness.json").exists()
    assert not list(study.path.rglob("*.unfinished"))

    code, again, _ = ctld(f"flatness study {FEW}")
    assert code == 0
    assert "4 measured before;" in again
    assert {run.name: run.flatness() for run in finals(study)} == records

    # One that is missing is measured, to the same numbers; the others are left alone.
    (study.run("sgd-tuned-seed1").path / "flatness.json").unlink()
    _, out, _ = ctld(f"flatness study {FEW}")
    assert "1 measured, 3 measured before;" in out
    new = study.run("sgd-tuned-seed1").flatness()
    assert new.pop("seconds") != records["sgd-tuned-seed1"].pop("seconds")
    assert new == records["sgd-tuned-seed1"]

    # Other settings, other parameters, or a word: anew.
    few = Settings(EXAMPLES, iterations=12, probes=3, sizes=(0.1,), radius=0.01)
    monkeypatch.setattr(flatness, "settings", lambda examples: few)
    assert "4 measured;" in ctld(f"flatness study {FEW}")[1]
    assert "4 measured;" in ctld(f"flatness study {FEW} --again")[1]
    shutil.copy(*(study.run(name).path / "parameters.safetensors" for name in ("sgd-tuned-seed0", "sgd-tuned-seed1")))
    assert "1 measured, 3 measured before;" in ctld(f"flatness study {FEW}")[1]


def test_runs_can_be_named(study, ctld):
    code, out, _ = ctld(
        f"flatness study/runs/sgd-tuned-seed0 study/runs/ctld-tuned-seed0 study/runs/sgd-tuned-seed0 {FEW}"
    )
    assert code == 0
    assert "2 measured;" in out


# ---- what cannot be measured ----


def test_an_older_study_is_told_what_to_do(study, ctld):
    for run in finals(study):
        (run.path / "parameters.safetensors").unlink()
    code, out, _ = ctld(f"flatness study {FEW}")
    assert code == 1
    assert "left out ctld-tuned-seed0 and 3 more: no parameters were kept" in out
    assert "give the study's command again" in out
    code, out, _ = ctld(f"flatness study/runs/sgd-tuned-seed0 {FEW}")
    assert code == 1
    assert "failed  sgd-tuned-seed0: no parameters were kept" in out


def test_a_run_that_was_not_asked_to_keep_parameters_is_given_no_remedy(study, ctld):
    """As those of a curve: run again, they would keep none either."""
    run = study.run("sgd-tuned-seed0")
    (run.path / "parameters.safetensors").unlink()
    config = run.config()
    del config["keep_parameters"]
    write_json(run.path / "config.json", config | {"study": "ensemble"})
    code, out, _ = ctld(f"flatness study/runs/sgd-tuned-seed0 {FEW}")
    assert code == 1
    assert "failed  sgd-tuned-seed0: no parameters were kept: this run was not asked to keep them" in out
    assert "give the study's command again" not in out
    write_json(run.path / "config.json", config)  # of a study whose final runs keep them now
    assert "give the study's command again" in ctld(f"flatness study/runs/sgd-tuned-seed0 {FEW}")[1]


def test_one_that_cannot_be_measured_does_not_stop_the_others(study, ctld):
    write_json(study.run("ctld-tuned-seed0").path / "result.json", {"diverged": True})
    (study.run("ctld-tuned-seed1").path / "result.json").unlink()
    code, out, _ = ctld(f"flatness study {FEW}")
    assert code == 0
    assert "2 measured;" in out
    assert "ctld-tuned-seed0: diverged" in out
    assert "ctld-tuned-seed1: not finished" in out


def _pickle(path):
    path.write_bytes(b"cos\nsystem\n(S'touch executed'\ntR.")


def _truncate(path):
    os.truncate(path, path.stat().st_size // 2)


def _pipe(path):
    path.unlink()
    os.mkfifo(path)


def _foreign(path):
    save_checkpoint(path, {"weight": torch.zeros(3)})


def _not_tensors(path):
    state = load_checkpoint(path)
    save_checkpoint(path, dict.fromkeys(state, "a string"))


def _not_finite(path):
    state = load_checkpoint(path)
    save_checkpoint(path, {name: value * float("nan") for name, value in state.items()})


BREAKS = {
    _pickle: "parameters.safetensors is damaged",
    _truncate: "parameters.safetensors",
    _pipe: "no parameters were kept",
    _foreign: "does not fit the network of config.json",
    _not_tensors: "does not fit the network of config.json",
    _not_finite: "the loss is nan",
}


@pytest.mark.parametrize("damage", BREAKS)
def test_damaged_parameters_are_told_by_name(study, ctld, tmp_path, damage):
    damage(study.run("sgd-tuned-seed0").path / "parameters.safetensors")
    code, out, _ = ctld(f"flatness study/runs/sgd-tuned-seed0 study/runs/sgd-tuned-seed1 {FEW}")
    assert code == 1
    assert "1 measured, 1 failed;" in out
    (line,) = [line for line in out.splitlines() if line.startswith("failed  sgd-tuned-seed0: ")]
    assert BREAKS[damage] in line
    assert not (tmp_path / "executed").exists()
    assert not (study.run("sgd-tuned-seed0").path / "flatness.json").exists()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"workload": {"name": "nothing"}}, "there is no workload 'nothing'"),
        ({"workload": 3}, "TypeError"),
        ({"kind": "timing"}, "of kind timing"),
        ({"data": {"name": "x", "path": "/nowhere", "sha256": ""}}, "/nowhere"),
    ],
)
def test_a_strangers_configuration_costs_its_own_run(study, ctld, change, words):
    path = study.run("sgd-tuned-seed0").path / "config.json"
    write_json(path, read_json(path) | change)
    code, out, _ = ctld(f"flatness study/runs/sgd-tuned-seed0 study/runs/sgd-tuned-seed1 {FEW}")
    assert code == 1
    assert "1 measured, 1 failed;" in out
    assert words in out


@pytest.mark.parametrize("content", ["{}", "[]", '{"settings": 3}', "\x00", "[" * 100 + "]" * 100])
def test_what_was_written_before_is_data(study, ctld, content):
    """Not ours: measured anew, and replaced."""
    path = study.run("sgd-tuned-seed0").path / "flatness.json"
    path.write_text(content)
    code, out, _ = ctld(f"flatness study/runs/sgd-tuned-seed0 {FEW}")
    assert code == 0
    assert "1 measured;" in out
    assert json.loads(path.read_text())["examples"] == EXAMPLES


def test_nothing_is_written_through_a_link(study, ctld, tmp_path):
    other = tmp_path / "other"
    other.write_text("mine")
    (study.run("sgd-tuned-seed0").path / "flatness.json").symlink_to(other)
    assert ctld(f"flatness study/runs/sgd-tuned-seed0 {FEW}")[0] == 0
    assert other.read_text() == "mine"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("nowhere", "neither a run"),
        ("study/runs/tune-sgd-00", "study/runs/tune-sgd-00 is a run of role 'tuning'"),
        ("study --examples 0", "--examples 0: at least 1"),
        ("study --threads 0", "--threads 0"),
        ("study --data-dir nowhere", "--data-dir nowhere"),
    ],
)
def test_refuses_in_one_sentence_and_measures_nothing(study, ctld, line, words):
    code, out, err = ctld(f"flatness {line}")
    assert (code, out) == (2, "")
    assert err.startswith("ctld: ")
    assert words in err
    assert not list(study.path.rglob("flatness.json"))


# ---- kept parameters and older directories ----


def test_a_run_from_before_parameters_were_kept_goes_on(tmp_path):
    """It decides no number. Whatever else differs is refused as ever."""
    run = RunDirectory(tmp_path / "run")
    run.prepare({"kind": "train", "seed": 1})
    run.prepare({"kind": "train", "seed": 1, "keep_parameters": True})
    assert "keep_parameters" not in run.config()
    with pytest.raises(RecordError, match="seed was 1, is now 2"):
        run.prepare({"kind": "train", "seed": 2, "keep_parameters": True})


@pytest.mark.parametrize("name", ["sda", "charrnn"])
def test_studies_keep_the_parameters_of_final_runs_alone(name, tmp_path):
    from ctld_lab import studies

    study = studies.get(name)
    settings = study.scales["smoke"]
    request = studies.Request("smoke", list(study.methods), [0], {"name": "x", "sha256": ""}, settings)
    runs = next(iter(study.plan(request, StudyDirectory(tmp_path))))
    assert {run.config["role"] for run in runs} == {"tuning", "final"}
    for run in runs:
        assert run.config.get("keep_parameters", False) == (run.config["role"] == "final")
