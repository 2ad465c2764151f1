"""Every study at smoke scale, as a user runs it; killed again and again, it leaves the same records; the paper's settings."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from smoke import call

from ctld_lab import studies, tuning
from ctld_lab.records import RunDirectory, StudyDirectory, read_json
from ctld_lab.studies import charrnn, comparison, sda, sensitivity

RESULTS = Path(__file__).parents[2] / "results"


def command(*arguments):
    return [sys.executable, "-m", "ctld_lab", *map(str, arguments)]


def environment():
    # One thread, as workers have it; and no data but what is embedded.
    kept = {name: value for name, value in os.environ.items() if name != "CTLD_DATA"}
    return kept | {"OMP_NUM_THREADS": "1", "COLUMNS": "100"}


def ctld(*arguments):
    return subprocess.run(command(*arguments), capture_output=True, text=True, env=environment(), timeout=600)


def records(run):
    """What a run left, times and machine excepted."""
    metrics, result = run.metrics(), dict(run.result())
    for line in (*metrics, result):
        line.pop("seconds", None)
    if run.config()["kind"] == "timing":
        return run.config(), len(metrics), result["rounds"]
    return run.config(), metrics, run.trace(), result


# ---- as a user runs them ----


@pytest.mark.parametrize("name", list(studies.names()))
def test_a_study_runs_from_end_to_end(name, smoke_study):
    ran = smoke_study(name)
    study, directory = ran.study, ran.study.path
    assert study.description()["study"] == name
    assert {run.state() for run in study.runs()} == {"done"}
    assert (directory / "report.html").stat().st_size > 5_000
    assert name == "digits" or list((directory / "figures").glob("*.svg"))
    assert list((directory / "tables").glob("*.csv"))
    assert "report.html" in ran.out
    assert not list(directory.rglob("*.unfinished"))
    assert not list(directory.rglob("checkpoint.safetensors"))
    if name in ("sda", "charrnn"):
        check_tuning(study, trials=studies.get(name).scales["smoke"]["trials"])

    # What is done is not done again.
    before = {path: path.stat().st_mtime_ns for path in (directory / "runs").rglob("*")}
    code, out = call(*ran.words, "--no-report")
    assert code == 0, out
    assert before == {path: path.stat().st_mtime_ns for path in (directory / "runs").rglob("*")}


def check_tuning(study, *, trials):
    """Equal for all methods, and without a look at test data."""
    tuned = {path.stem: read_json(path) for path in (study.path / "tuning").glob("*.json")}
    assert set(tuned) == set(comparison.COMPARED)
    assert {len(record["trials"]) for record in tuned.values()} == {trials}
    for run in study.runs():
        splits = {split for line in run.metrics() for split in ("train", "valid", "test") if split in line}
        assert splits == ({"train", "valid"} if run.config()["role"] == "tuning" else {"train", "test"})
    for method, record in tuned.items():
        final = study.run(f"{method}-tuned-seed0").config()["optimizer"]
        assert final["lr"] == record["chosen"]["lr"]


# ---- killed ----


KILLS = 10


@pytest.mark.long
def test_killed_again_and_again_it_leaves_the_same_records(tmp_path):
    arguments = (
        "run",
        "sda",
        "--scale",
        "smoke",
        "--methods",
        "ctld",
        "--seeds",
        "1",
        "--workers",
        "1",
        "--no-report",
        "--dir",
    )
    whole = ctld(*arguments, tmp_path / "whole")
    assert whole.returncode == 0, whole.stderr
    moments = random.Random(0)
    killed = tmp_path / "killed"
    kills = 0
    while True:
        process = subprocess.Popen(
            command(*arguments, killed),
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        if kills < KILLS:
            begun = _records_in(killed)
            while _records_in(killed) == begun and process.poll() is None:  # until it writes
                time.sleep(0.01)
            time.sleep(moments.uniform(0.0, 0.25))
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                kills += 1
        output, _ = process.communicate(timeout=300)
        if process.returncode == 0:
            break
        assert process.returncode == -signal.SIGKILL, output
    assert kills == KILLS
    expected = {run.name: records(run) for run in StudyDirectory(tmp_path / "whole").runs()}
    assert {run.name: records(run) for run in StudyDirectory(killed).runs()} == expected
    assert (
        read_json(killed / "tuning" / "ctld.json")["chosen"] == read_json(tmp_path / "whole/tuning/ctld.json")["chosen"]
    )
    assert not list(killed.rglob("checkpoint.safetensors")) + list(killed.glob("runs/*/.*.unfinished"))
    assert max(int(run.environment()["attempts"]) for run in StudyDirectory(killed).runs()) > 1


def _records_in(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.glob("runs/*/metrics.jsonl"))


# ---- the paper's settings ----


def planned(module, scale="paper", **changed):
    study = module.STUDY
    settings = dict(study.scales[scale]) | changed
    request = studies.Request(scale, list(study.methods), [0], {"name": settings["data"], "sha256": ""}, settings)
    return {run.name: run.config for run in next(study.plan(request, StudyDirectory(Path("nowhere"))))}


def test_sda_is_the_papers():
    runs = planned(sda)
    ctld_run = runs["ctld-paper-seed0"]
    assert ctld_run["workload"]["widths"] == [784, 500, 500, 2000, 10]
    assert ctld_run["steps"] == [100_000] * 4
    assert ctld_run["exploration_steps"] == 18_000
    assert ctld_run["optimizer"]["lr"] == pytest.approx(60_000 * 0.0008**2)
    assert (ctld_run["optimizer"]["momentum"], ctld_run["optimizer"]["temperature"]) == (0.0, 1.0)
    rates = {name: runs[f"{name}-paper-seed0"]["optimizer"]["lr"] for name in ("sgd", "rmsprop", "adam", "anneal_sgd")}
    assert rates == {"sgd": 0.1, "rmsprop": 0.001, "adam": 0.001, "anneal_sgd": 0.1}
    assert runs["santa-paper-seed0"]["optimizer"]["lr"] / 60_000 == pytest.approx(4e-11)


def test_charrnn_is_the_papers():
    runs = planned(charrnn)
    ctld_run = runs["ctld-paper-seed0"]
    assert ctld_run["steps"] == [20 * 90_000_000 // (100 * 50)]
    assert ctld_run["exploration_steps"] == 9000
    assert ctld_run["optimizer"]["lr"] == pytest.approx(9e7 * 2.08e-5**2)
    assert ctld_run["optimizer"]["momentum"] == 0.66
    assert runs["sgd-paper-seed0"]["schedule"] == {"every": 5000, "factor": 0.85}
    assert "schedule" not in runs["adam-paper-seed0"]
    rates = {name: runs[f"{name}-paper-seed0"]["optimizer"]["lr"] for name in ("sgd", "rmsprop", "adam", "anneal_sgd")}
    assert rates == {"sgd": 0.001, "rmsprop": 0.002, "adam": 0.03, "anneal_sgd": 0.0005}


@pytest.mark.parametrize("module", [sda, charrnn])
def test_what_laptop_scale_chose_is_run_at_the_papers_scale(module):
    """The stored table of its trials says the same, and it comes after the paper's own settings."""
    about = json.loads((RESULTS / "laptop" / module.STUDY.name / "study.json").read_text(encoding="utf-8"))
    stored = tuning.stored_trials(RESULTS / "laptop", module.STUDY.name, "laptop", about["data"])
    chosen = {method: next(trial for trial in trials if trial.state == "chosen") for method, trials in stored.items()}
    assert {method: trial.parameters for method, trial in chosen.items()} == module.LAPTOP
    runs = planned(module, trials=0)
    methods = list(module.STUDY.methods)
    assert list(runs) == [f"{method}-{variant}-seed0" for variant in ("paper", "laptop") for method in methods]
    chosen = runs["ctld-laptop-seed0"]["optimizer"]
    assert chosen["momentum"] == pytest.approx(1 - module.LAPTOP["ctld"]["friction"])
    assert chosen["temperature"] == "auto"
    assert not any("laptop" in name for name in planned(module, "laptop"))


def test_sensitivity_is_the_papers():
    runs = planned(sensitivity)
    run = runs["depth-S0.85-seed0"]
    assert run["optimizer"]["lr"] == pytest.approx(2_932_400 * 2e-4**2)
    assert run["optimizer"]["tempering"] == {"height_factor": 20.0, "width": 0.04, "depth": 0.85}
    assert run["optimizer"]["momentum"] == 0.7
    assert run["exploration_steps"] == 9000
    assert runs["grid-w5-sigma0.08-seed0"]["optimizer"]["tempering"]["height_factor"] == 5.0
    assert runs["exploration-share0-seed0"]["exploration_steps"] == 0
    assert runs["temperature-Tauto-seed0"]["optimizer"]["temperature"] == "auto"


@pytest.mark.parametrize(("module", "share"), [(sda, 0.18), (charrnn, 0.025)])
@pytest.mark.parametrize("scale", ["laptop", "paper"])
def test_smaller_scales_keep_the_share_of_exploration(module, share, scale):
    for run in planned(module, scale).values():
        assert run["exploration_steps"] / run["steps"][0] == pytest.approx(share, abs=0.5 / run["steps"][0])


def test_an_unknown_study_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match=r"did you mean charrnn\? Known: sda, charrnn"):
        studies.get("char-rnn")


@pytest.mark.parametrize("name", list(studies.names()))
def test_studies_say_what_they_do(name):
    study = studies.get(name)
    assert study.name == name
    assert all((study.title, study.figure, study.varied, study.tuned, study.fixed))
    assert set(study.scales) >= set(studies.SCALES)


def test_runs_have_names_that_tell_them_apart():
    for name in studies.names():
        for scale in studies.SCALES:
            study = studies.get(name)
            settings = dict(study.scales[scale])
            data = {"name": settings.get("data"), "sha256": ""}
            request = studies.Request(scale, list(study.methods), list(range(settings["seeds"])), data, settings)
            runs = next(study.plan(request, StudyDirectory(Path("nowhere"))))
            assert len({run.name for run in runs}) == len(runs)
            assert all(RunDirectory(Path("runs") / run.name).name == run.name for run in runs)
