"""`ctld checkpoints` and `--from`: an unfinished run goes on elsewhere, and ends in the same bits."""

import shutil
from dataclasses import replace

import pytest
import small_run
from rich.console import Console

from ctld_lab.commands.carry_out import Machinery, follow_plan
from ctld_lab.commands.checkpoints import FILES, publish, published, take_up
from ctld_lab.records import RecordError, StudyDirectory
from ctld_lab.studies.study import Request, Run, Study

CONFIG = small_run.CONFIG | {"workload": {"name": "small", "size": 10}}
STUDY = Study("small", "", "", "", "", "", (), {}, lambda request, directory: iter([[Run("a", CONFIG)]]))
REQUEST = Request("smoke", (), [0], {}, {})
QUIET = Console(quiet=True)


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    small_run.install(monkeypatch.setattr)


def study_at(path):
    study = StudyDirectory(path)
    study.prepare({"study": "small", "scale": "smoke", "data": {}, "settings": {}, "methods": [], "seeds": []})
    return study


@pytest.fixture
def stopped(tmp_path):
    """A study with one run, stopped in the middle."""
    study = study_at(tmp_path / "first")
    study.run("a").prepare(CONFIG)
    assert small_run.execute(study.run("a"), small_run.StopAt(18)) == "interrupted"
    return study


@pytest.fixture
def whole(tmp_path):
    run = study_at(tmp_path / "whole").run("a")
    run.prepare(CONFIG)
    assert small_run.execute(run) == "done"
    return small_run.outcome(run)


def test_it_goes_on_elsewhere_to_the_same_bits(stopped, whole, tmp_path):
    out = tmp_path / "out"
    publish(stopped, out, QUIET)
    place = published(stopped, out, "a")
    assert sorted(path.name for path in place.path.iterdir()) == sorted(["config.json", *FILES])
    other = study_at(tmp_path / "other")
    states, _ = follow_plan(STUDY, REQUEST, other, Machinery("local"), QUIET, out)
    assert states == {other.run("a").path: "done"}
    assert small_run.outcome(other.run("a")) == whole
    assert other.run("a").environment()["attempts"] == 2
    publish(other, out, QUIET)
    assert not place.path.exists()
    assert not any(out.rglob("*.safetensors"))


def test_lines_that_a_live_run_adds_meanwhile_are_left_out(stopped, whole, tmp_path):
    """Its checkpoint is read first, and lines of later steps are cut."""
    run = stopped.run("a")
    with (run.path / "metrics.jsonl").open("a") as lines:
        lines.write('{"step": 99')
    publish(stopped, tmp_path / "out", QUIET)
    other = study_at(tmp_path / "other").run("a")
    other.prepare(CONFIG)
    take_up(other, published(stopped, tmp_path / "out", "a"), QUIET)
    assert small_run.execute(other) == "done"
    assert small_run.outcome(other) == whole


def test_a_checkpoint_of_its_own_stays(stopped, tmp_path):
    publish(stopped, tmp_path / "out", QUIET)
    run = stopped.run("a")
    small_run.execute(run, small_run.StopAt(4))
    before = run.checkpoint.read_bytes()
    take_up(run, published(stopped, tmp_path / "out", "a"), QUIET)
    assert run.checkpoint.read_bytes() == before


@pytest.mark.parametrize("damage", ["checkpoint", "metrics", "link", "settings"])
def test_what_is_damaged_or_other_is_refused(stopped, tmp_path, damage):
    publish(stopped, tmp_path / "out", QUIET)
    place = published(stopped, tmp_path / "out", "a")
    config = CONFIG
    if damage == "checkpoint":
        place.checkpoint.write_bytes(place.checkpoint.read_bytes()[:-1] + b"x")
    elif damage == "metrics":
        (place.path / "metrics.jsonl").write_bytes(b"")
    elif damage == "link":
        (place.path / "trace.jsonl").unlink()
        (place.path / "trace.jsonl").symlink_to("/etc/passwd")
    else:
        config = CONFIG | {"seed": 4}
    run = study_at(tmp_path / "other").run("a")
    run.prepare(config)
    with pytest.raises(RecordError):
        take_up(run, place, QUIET)


def test_a_damaged_checkpoint_does_not_take_the_place_of_a_good_one(stopped, tmp_path):
    publish(stopped, tmp_path / "out", QUIET)
    place = published(stopped, tmp_path / "out", "a")
    before = {path.name: path.read_bytes() for path in place.path.iterdir()}
    run = stopped.run("a")
    run.checkpoint.write_bytes(b"damaged")
    with pytest.raises(RecordError):
        publish(stopped, tmp_path / "out", QUIET)
    assert {path.name: path.read_bytes() for path in place.path.iterdir()} == before


def test_a_study_cannot_name_a_place_elsewhere(stopped, tmp_path):
    shutil.copytree(stopped.path, tmp_path / "copy")
    description = stopped.description() | {"study": "../../elsewhere"}
    (tmp_path / "copy" / "study.json").unlink()
    bad = replace(stopped, path=tmp_path / "copy")
    bad.prepare(description)
    with pytest.raises(RecordError):
        publish(bad, tmp_path / "out", QUIET)


def test_autocast_is_of_all_runs_and_in_their_configuration(tmp_path):
    study = study_at(tmp_path / "study")
    request = replace(REQUEST, settings={"autocast": "bfloat16"})
    states, _ = follow_plan(STUDY, request, study, Machinery("local"), QUIET)
    assert list(states.values()) == ["done"]
    assert study.run("a").config()["autocast"] == "bfloat16"
    with pytest.raises(RecordError, match="autocast"):
        study.run("a").prepare(CONFIG)
