"""A study of the user's own, from outside the package: CONTRIBUTING.md's example runs, resumes and is reported as ours are."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ctld_lab import studies, workloads
from ctld_lab.records import StudyDirectory

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "own_study.py"


@pytest.fixture(autouse=True)
def _as_it_was(monkeypatch, tmp_path):
    """The table of workloads and the environment of this process are put back."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(workloads, "OWN", {})
    monkeypatch.setenv(studies.OWN, "")
    monkeypatch.delenv(studies.OWN)
    monkeypatch.delitem(sys.modules, "ctld_own_study_mine", raising=False)
    yield
    sys.modules.pop("ctld_own_study_mine", None)


def test_the_example_of_the_document_runs_in_a_pool_and_is_reported(tmp_path):
    assert "examples/own_study.py" in (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    words = ["run", str(EXAMPLE), "--scale", "smoke", "--dir", str(tmp_path / "study"), "--workers", "2"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-m", "ctld_lab", *words], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    study = StudyDirectory(tmp_path / "study")
    assert study.description()["study"] == "spirals"
    assert [run.state() for run in study.runs()] == ["done"] * 8
    assert "CTLD, T auto" in done.stdout
    assert "Two spirals" in (tmp_path / "study" / "report.html").read_text(encoding="utf-8")


def test_it_goes_on_by_its_own_command_alone(ctld, tmp_path):
    """A record that names a file must not have it executed."""
    shutil.copy(EXAMPLE, tmp_path / "mine.py")
    run = ("run", "mine.py", "--scale", "smoke", "--seeds", "1", "--methods", "sgd", "--engine", "local", "--no-report")
    code, out = ctld(*run)
    assert code == 0, out
    assert (tmp_path / "runs" / "mine-smoke" / "study.json").exists()
    (tmp_path / "mine.py").write_text("raise SystemExit('executed')")
    code, out = ctld("resume", "runs/mine-smoke")
    assert code == 2
    assert "give its command itself: ctld run" in out
    assert "executed" not in out


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "there is no file mine.py"),
        ("A = 1", "mine.py has no STUDY; let it end with STUDY = Study(...)"),
        (EXAMPLE.read_text().replace('name="spirals"', 'name="sda"'), "calls its study 'sda', which is taken"),
    ],
    ids=["missing", "empty", "taken"],
)
def test_files_that_are_no_study_are_refused(ctld, tmp_path, text, words):
    if text is not None:
        (tmp_path / "mine.py").write_text(text)
    code, out = ctld("run", "mine.py")
    assert code == 2
    assert words in out


def test_its_first_scale_is_the_default_where_it_has_no_laptop(ctld, tmp_path):
    (tmp_path / "mine.py").write_text(EXAMPLE.read_text().replace('"laptop": {', '"small": {'))
    from ctld_lab.commands.request import default_scale

    assert default_scale("mine.py") == "small"
    assert default_scale("sda") == "laptop"
