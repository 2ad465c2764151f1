"""`ctld run` and what follows it: records, what is done again and what is not, resume, list, report, TensorBoard."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from ctld_lab import jobs
from ctld_lab.commands import carry_out
from ctld_lab.commands.lock import locked
from ctld_lab.records import RecordError, StudyDirectory, read_json, write_json
from ctld_lab.tensorboard import export, scalars

RUN = "run fake --scale smoke --engine local --dir study"


@pytest.fixture(autouse=True)
def _fake_study(fake_study, monkeypatch, tmp_path):
    monkeypatch.setenv("CTLD_DATA", str(tmp_path))  # so that --data-dir is undone


def attempts():
    return {run.name: run.environment()["attempts"] for run in StudyDirectory(Path("study")).runs()}


# ---- run ----


def test_runs_the_plan_and_builds_the_report(ctld):
    code, out = ctld(RUN)
    assert code == 0
    assert [run.state() for run in StudyDirectory(Path("study")).runs()] == ["done"] * 6
    assert "tune-good: 20 steps" in out
    assert "report: study/report.html" in out
    assert Path("study/report.html").exists()
    study = read_json(Path("study/study.json"))
    assert study["commands"] == ["ctld run fake --scale smoke"]
    assert study["data"]["name"] == "pydoc"
    assert len(study["data"]["sha256"]) == 64


def test_default_directory(ctld):
    assert ctld("run fake --scale smoke --engine local --no-report")[0] == 0
    assert Path("runs/fake-smoke/study.json").exists()
    assert not Path("runs/fake-smoke/report.html").exists()


def test_what_is_done_is_not_done_again(ctld):
    ctld(f"{RUN} --no-report")
    code, out = ctld(f"{RUN} --no-report --seeds 3")
    assert code == 0
    assert "good-2: 10 steps" in out
    assert "good-1:" not in out
    assert set(attempts().values()) == {1}
    assert read_json(Path("study/study.json"))["seeds"] == [0, 1, 2]


def test_what_a_run_left_that_was_killed_when_it_was_done_is_removed(ctld):
    ctld(f"{RUN} --no-report")
    run = Path("study/runs/good-1")
    written = (run / "result.json").read_bytes()
    (run / "checkpoint.safetensors").write_bytes(b"of a moment before")
    assert ctld(f"{RUN} --no-report")[0] == 0
    assert not (run / "checkpoint.safetensors").exists()
    assert (run / "result.json").read_bytes() == written
    assert set(attempts().values()) == {1}


def test_failures_are_listed_and_tried_again(ctld):
    code, out = ctld(f"{RUN} --no-report --methods failing,good --seeds 1")
    assert code == 1
    assert "failed  failing-0: ArithmeticError: seed 0 fails\n" in out
    assert "traceback: study/runs/failing-0/failure.json" in out
    assert "Traceback" not in out
    assert f"go on with: ctld {RUN}" in out
    assert (Path("study/runs/good-0/result.json")).exists()
    ctld(f"{RUN} --no-report --methods failing,good --seeds 1")
    assert attempts() == {"failing-0": 2, "good-0": 1, "tune-failing": 1, "tune-good": 1}


def test_a_failure_holds_up_what_builds_on_it_and_nothing_else(ctld, monkeypatch):
    """A tuning run that is missing would let the plan choose other settings than it will when the run is there."""
    execute = jobs.execute

    def fail(path, **options):
        return execute(path, **options) if path.name != "tune-good" else "failed"

    monkeypatch.setattr(jobs, "execute", fail)
    code, _ = ctld(f"{RUN} --no-report")
    assert code == 1
    names = [run.name for run in StudyDirectory(Path("study")).runs()]
    assert names == ["better-0", "better-1", "tune-better", "tune-good"]


def test_other_settings_in_the_same_directory_are_refused(ctld):
    ctld(f"{RUN} --no-report")
    code, out = ctld("run fake --scale laptop --dir study")
    assert code == 1
    assert "another --dir" in out


def test_a_text_of_the_users(ctld, tmp_path):
    text = tmp_path / "my book.txt"
    text.write_text("It was a dark and stormy night. " * 100)
    assert ctld(f"{RUN} --no-report --text 'my book.txt' --data-dir .")[0] == 0
    study = read_json(Path("study/study.json"))
    assert study["data"] == {"name": "my book.txt", "sha256": study["data"]["sha256"], "path": str(text)}
    assert shlex.split(study["commands"][0])[5:] == ["--text", str(text), "--data-dir", str(tmp_path)]
    assert os.environ["CTLD_DATA"] == str(tmp_path)


def test_one_command_at_a_time(ctld):
    ctld(f"{RUN} --no-report")
    with locked(Path("study")):
        for line in (RUN, "resume study"):
            code, out = ctld(line)
            assert code == 1
            assert f"process {os.getpid()}, is at work in study" in out
        assert "live, 100 %" in ctld("list .")[1]
    assert ctld(f"{RUN} --no-report")[0] == 0


def test_ctrl_c_between_runs(ctld, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(carry_out, "follow_plan", interrupt)
    code, out = ctld(RUN)
    assert code == 130
    assert f"interrupted; go on with: ctld {RUN}" in out


# ---- resume ----


def test_resume_a_study_does_all_its_orders(ctld):
    ctld(f"{RUN} --seeds 1")
    ctld(f"{RUN} --no-report --seeds 5, --methods good")
    for name in ("good-0", "good-5"):
        Path(f"study/runs/{name}/result.json").unlink()
    Path("study").rename("moved")
    code, out = ctld("resume moved --engine local")
    assert code == 0
    assert sorted(path.parent.name for path in Path("moved/runs").glob("*/result.json")) == [
        "better-0",
        "good-0",
        "good-5",
        "tune-better",
        "tune-good",
    ]
    assert out.count("report:") == 0  # the last order had none
    assert [order.get("report", True) for order in read_json(Path("moved/study.json"))["orders"]] == [True, False]


def test_resume_one_run(ctld):
    ctld(f"{RUN} --no-report")
    run = StudyDirectory(Path("study")).run("good-0")
    (run.path / "result.json").unlink()
    run.checkpoint.write_text("7")
    assert ctld("resume study/runs/good-0 --engine local")[0] == 0
    assert run.result()["started_at"] == 7
    assert "is done" in ctld("resume study/runs/good-0")[1]


@pytest.mark.parametrize("orders", [None, [], ["rm -rf /"], [3], "x", [{"study": "sda", "scale": "smoke", "x": "y"}]])
def test_resume_trusts_no_foreign_order(ctld, orders):
    ctld(f"{RUN} --no-report")
    path = Path("study/study.json")
    write_json(path, read_json(path) | {"orders": orders})
    code, out = ctld("resume study")
    assert code == 1
    assert "--dir study" in out


# ---- list, report, compare ----


def test_list(ctld):
    out = ctld("list")[1]
    assert "no study in runs yet" in out
    ctld(f"{RUN} --no-report --methods failing,good --seeds 1")
    Path("broken").mkdir()
    Path("broken/study.json").write_text("{")
    code, out = ctld("list .")
    assert code == 0
    assert "Figure 2" in out
    row = next(line.split() for line in out.splitlines() if line.split()[:1] == ["study"] and "fake," in line)
    assert row == ["study", "fake,", "smoke", "3/4", "1", "stopped,", "83", "%"]
    assert "cannot be read as JSON" in " ".join(out.split())


def test_report_and_compare(ctld):
    ctld(f"{RUN} --no-report")
    ctld(f"{RUN} --no-report --dir other")
    code, out = ctld("report . --output page")
    assert code == 0
    assert Path("page/report.html").exists()
    assert "0.2500" in out
    code, out = ctld("compare study other")
    assert code == 0
    assert "(2) other" in out
    assert "tie" in out


def test_report_without_torch(ctld, monkeypatch):
    ctld(f"{RUN} --no-report")
    script = "import sys\nfrom ctld_lab.cli import _main\nprint(_main(['report', 'study']), 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert done.stdout.endswith("\n0 False\n")


# ---- ctld data ----


def test_data_commands(ctld):
    code, out = ctld("data list")
    assert code == 0
    assert "pydoc" in out
    assert ctld("data verify pydoc") == (0, "pydoc: pydoc is right\n")
    code, out = ctld("data verify mnist")
    assert code == 1
    assert "is wrong" in out
    assert "nothing to fetch" in ctld("data fetch pydoc")[1]


# ---- TensorBoard ----


def test_tensorboard_from_records_alone(ctld):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    code, out = ctld(f"{RUN} --no-report --tensorboard")
    assert code == 0
    assert "tensorboard --logdir study/tensorboard" in out
    (Path("study/runs/good-0/trace.jsonl")).write_text(json.dumps({"step": 3, "stage": 1, "alpha": -0.5}) + "\n")
    (Path("study/tensorboard/stale")).mkdir()
    assert ctld(f"{RUN} --no-report --tensorboard")[0] == 0
    assert not Path("study/tensorboard/stale").exists()
    events = EventAccumulator("study/tensorboard/good-0").Reload()
    assert sorted(events.Tags()["scalars"]) == ["exploration/alpha", "lr", "test/mse", "train/mse"]
    assert [(event.step, event.value) for event in events.Scalars("train/mse")] == [(0, 1.0), (10, 0.5)]
    assert [(event.step, event.value) for event in events.Scalars("exploration/alpha")] == [(3, -0.5)]
    before = Path("study/tensorboard/good-0/events.out.tfevents.0.ctld").read_bytes()
    export(StudyDirectory(Path("study")))
    assert Path("study/tensorboard/good-0/events.out.tfevents.0.ctld").read_bytes() == before
    assert [path.name for path in Path("study").glob(".tensorboard*")] == []


def test_a_broken_record_leaves_the_old_curves(ctld):
    pytest.importorskip("tensorboard")
    ctld(f"{RUN} --no-report --tensorboard")
    Path("study/runs/good-0/metrics.jsonl").write_text("[]\n")
    code, out = ctld(f"{RUN} --no-report --tensorboard")
    assert code == 1
    assert "line 1 is no object" in out
    assert len(list(Path("study/tensorboard").iterdir())) == 6
    with pytest.raises(RecordError):
        export(StudyDirectory(Path("study")))
    assert [path.name for path in Path("study").glob(".tensorboard*")] == []


def test_scalars():
    line = {"step": 3, "stage": 1, "train": {"mse": "inf"}, "lr": 0.5, "good": True, "word": "x", "list": [1]}
    assert dict(scalars(line, "a/")) == {"a/train/mse": float("inf"), "a/lr": 0.5}
