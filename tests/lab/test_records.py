"""Records: whole files at once, lines that can be cut back, settings that do not change under a run, hostile files refused."""

import json
import math
import os

import pytest

from ctld_lab import files, records
from ctld_lab.records import Appender, RecordError, RunDirectory, StudyDirectory, find_studies, read_json, write_json

DESCRIPTION = {
    "study": "sda",
    "scale": "smoke",
    "methods": ["sgd"],
    "seeds": [0],
    "data": {},
    "settings": {},
    "commands": ["a"],
}


def test_numbers_that_json_lacks_survive(tmp_path):
    write_json(tmp_path / "a.json", {"a": math.nan, "b": [math.inf, -math.inf], "c": 0.1})
    value = read_json(tmp_path / "a.json")
    assert math.isnan(records.number(value["a"]))
    assert [records.number(item) for item in value["b"]] == [math.inf, -math.inf]
    assert value["c"] == 0.1
    assert math.isnan(records.number(None))


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "a.json"
    write_json(path, {"old": 1})
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(OSError, match="No space"):
        write_json(path, {"new": 2})
    assert read_json(path) == {"old": 1}
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.json"]


def test_lines_wait_until_they_are_asked_for_or_are_many(tmp_path):
    path = tmp_path / "trace.jsonl"
    lines = Appender(path)
    lines.append({"step": 1})
    assert path.stat().st_size == 0
    assert lines.length == len('{"step": 1}\n')
    while lines.length < files.BUFFER:
        lines.append({"step": 2})
    assert path.stat().st_size == lines.length
    lines.append({"step": 3})
    lines.close()
    assert path.stat().st_size == lines.length
    assert RunDirectory(tmp_path).trace()[-1] == {"step": 3}


def test_notes_are_kept_beside_the_environment(tmp_path):
    run = RunDirectory(tmp_path)
    assert run.notes() == []
    run.write("environment.json", {"threads": 1})
    run.note("the disk is old")
    run.note("very old")
    assert run.notes() == ["the disk is old", "very old"]
    assert run.environment()["threads"] == 1
    run.write("environment.json", {"notes": "no list"})
    assert run.notes() == []


def test_progress_is_numbers_or_nothing(tmp_path):
    write_json(tmp_path / "progress.json", {"step": 3, "steps": "x", "time": [1]})
    assert RunDirectory(tmp_path).progress() == {"step": 3}
    (tmp_path / "progress.json").write_bytes(b"{")
    assert RunDirectory(tmp_path).progress() == {}


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\xff\xfe", b"[" * 100_000, b'"text"'])
def test_what_is_no_record_is_refused_by_name(tmp_path, content):
    path = tmp_path / "result.json"
    path.write_bytes(content)
    with pytest.raises(RecordError, match=r"result\.json.*remove it"):
        read_json(path)


def test_a_file_of_another_size_class_is_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "LARGEST", 100)
    path = tmp_path / "result.json"
    path.write_text(json.dumps({"a": "b" * 100}))
    with pytest.raises(RecordError, match="more than any record"):
        read_json(path)


def test_lines_are_cut_back_to_what_a_checkpoint_saw(tmp_path):
    run = RunDirectory(tmp_path)
    lines = Appender(tmp_path / "metrics.jsonl")
    lines.append({"step": 1, "loss": math.nan})
    lines.flush()
    length = lines.length
    lines.append({"step": 2})
    lines.close()
    with (tmp_path / "metrics.jsonl").open("ab") as file:
        file.write(b'{"step": 3, "lo')  # killed while writing
    assert [line["step"] for line in run.metrics()] == [1, 2]
    run.cut("metrics.jsonl", length)
    assert run.metrics() == [{"step": 1, "loss": "nan"}]
    with Appender(tmp_path / "metrics.jsonl")._file as file:
        assert file.tell() == length
    with pytest.raises(RecordError, match=r"has \d+ bytes, the checkpoint saw 1000"):
        run.cut("metrics.jsonl", 1000)


def test_a_broken_line_is_named(tmp_path):
    (tmp_path / "metrics.jsonl").write_bytes(b'{"step": 1}\nnonsense\n{"step": 2}\n')
    with pytest.raises(RecordError, match="line 2"):
        RunDirectory(tmp_path).metrics()
    (tmp_path / "metrics.jsonl").write_bytes(b"[]\n")
    with pytest.raises(RecordError, match="line 1"):
        RunDirectory(tmp_path).metrics()


def test_a_run_keeps_its_settings(tmp_path):
    run = RunDirectory(tmp_path / "runs" / "a")
    run.prepare({"optimizer": {"lr": 0.1}, "seed": 0})
    run.prepare({"optimizer": {"lr": 0.1}, "seed": 0})
    with pytest.raises(RecordError, match=r"optimizer was .*0\.1.*is now .*0\.2.*--dir"):
        run.prepare({"optimizer": {"lr": 0.2}, "seed": 0})
    assert run.config()["optimizer"] == {"lr": 0.1}


def test_states_of_a_run(tmp_path):
    run = RunDirectory(tmp_path)
    run.prepare({"seed": 0})
    assert run.state() == "waiting"
    (tmp_path / "metrics.jsonl").touch()
    assert run.state() == "started"
    run.write("failure.json", {"error": "E"})
    assert run.state() == "failed"
    run.write("result.json", {"steps": 1})
    assert run.state() == "done"


def test_a_study_takes_more_methods_and_seeds_but_no_other_settings(tmp_path):
    study = StudyDirectory(tmp_path)
    study.prepare(DESCRIPTION)
    study.prepare(DESCRIPTION | {"methods": ["adam"], "seeds": [0, 1], "commands": ["b"]})
    kept = study.description()
    assert (kept["methods"], kept["seeds"], kept["commands"]) == (["sgd", "adam"], [0, 1], ["a", "b"])
    for key, other in {
        "scale": "paper",
        "settings": {"steps": 3},
        "data": {"name": "mnist"},
        "study": "timing",
    }.items():
        with pytest.raises(RecordError, match=rf"{key}.*--dir"):
            study.prepare(DESCRIPTION | {key: other})


@pytest.mark.parametrize("name", ["..", ".", "", "a/b", "../elsewhere", "/etc"])
def test_names_of_runs_do_not_climb_out(tmp_path, name):
    with pytest.raises(RecordError, match="no name of a run"):
        StudyDirectory(tmp_path).run(name)


def test_studies_are_found_where_they_are(tmp_path):
    StudyDirectory(tmp_path / "b").prepare(DESCRIPTION)
    StudyDirectory(tmp_path / "a").prepare(DESCRIPTION)
    assert [study.path.name for study in find_studies(tmp_path)] == ["a", "b"]
    assert [study.path.name for study in find_studies(tmp_path / "a")] == ["a"]
    assert find_studies(tmp_path / "nowhere") == []


# ---- checksums ----


def test_a_changed_digit_in_a_result_is_noticed(tmp_path):
    run = RunDirectory(tmp_path)
    run.write("result.json", {"test": {"nll": 0.1234567890123456, "worst": math.inf}, "steps": 10})
    assert run.result() == {"test": {"nll": 0.1234567890123456, "worst": "inf"}, "steps": 10}
    path = tmp_path / "result.json"
    path.write_text(path.read_text().replace("0.12345", "0.12344"))
    with pytest.raises(RecordError, match=r"result\.json is not what was written: its checksum is wrong; remove it"):
        run.result()


def test_results_from_before_checksums_are_read(tmp_path):
    write_json(tmp_path / "result.json", {"steps": 10})
    assert RunDirectory(tmp_path).result() == {"steps": 10}


def test_what_a_terminal_would_obey_is_shown():
    assert files.printable("a\x1b[2J\u202eb\tc\nd\u00a0±") == "a\\x1b[2J\\u202eb\\tc\nd\u00a0±"
