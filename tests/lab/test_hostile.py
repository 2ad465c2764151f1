"""A stranger's files are data: nothing in them executes, leads out of its directory, or takes all memory or time."""

import gzip
import io
import json
import os
import pickle
import re
import shutil
import struct
import tracemalloc
import zipfile
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import sample_records as sample
import small_run
import torch
from rich.console import Console

from ctld_lab import tensorboard
from ctld_lab.checkpoints import load_checkpoint, previous, save_checkpoint
from ctld_lab.commands.carry_out import conclude
from ctld_lab.data import DataError, containers
from ctld_lab.records import RecordError, RunDirectory, StudyDirectory, read_json, write_bytes, write_json
from ctld_lab.report.sections import TEMPLATES

MEGABYTE = 2**20


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    small_run.install(monkeypatch.setattr)
    state = torch.get_rng_state()
    yield
    torch.set_rng_state(state)


@pytest.fixture(autouse=True)
def _here(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")


# ---- pickles ----


class Creates:
    """Makes a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (Path.touch, (self.path,))


def pickles(marker):
    """In each form in which torch or Python would execute it."""
    for legacy in (True, False):
        stream = io.BytesIO()
        torch.save({"weight": Creates(marker)}, stream, _use_new_zipfile_serialization=not legacy)
        yield stream.getvalue()
    yield from (pickle.dumps(Creates(marker), protocol) for protocol in range(6))


def test_the_pickles_do_execute(tmp_path):
    marker = tmp_path / "marker"
    for content in pickles(marker):
        if content.startswith(b"PK") or b"weight" in content:
            torch.load(io.BytesIO(content), weights_only=False)
        else:
            pickle.loads(content)  # noqa: S301
        marker.unlink()


@pytest.mark.slow
def test_no_pickle_executes_wherever_it_lies(tmp_path, ctld):
    marker = tmp_path / "marker"
    study = sample.describe(tmp_path / "study", "sda")
    run = study.run("a")
    for content in pickles(marker):
        run = small_run.prepare(tmp_path / "study" / "runs" / "a")
        for name in ("checkpoint.safetensors", "checkpoint.previous.safetensors"):
            (run.path / name).write_bytes(content)
        assert small_run.execute(run) == "failed"
        assert "remove both, and the run starts anew" in run.failure()["error"]
        for name in ("result.json", "failure.json", "environment.json", "metrics.jsonl", "trace.jsonl", "config.json"):
            (run.path / name).write_bytes(content)
            small_run.execute(run)
            ctld("report", "study")
            ctld("list", ".")
            (run.path / name).unlink(missing_ok=True)
        for path in (study.path / "study.json", study.path / "tuning" / "sgd.json"):
            path.parent.mkdir(exist_ok=True)
            kept = path.read_bytes() if path.exists() else None
            path.write_bytes(content)
            for command in ("report", "resume", "status"):
                ctld(command, "study")
            path.unlink() if kept is None else path.write_bytes(kept)
    assert not marker.exists()


# ---- paths that climb out ----


@pytest.mark.parametrize(
    "name", ["..", ".", "", "a/b", "../elsewhere", "/etc", "a\0b", "../../etc/x", "\x1b[2J", "a\nb"]
)
def test_names_do_not_climb_out(tmp_path, name):
    with pytest.raises(RecordError, match="no name of a run"):
        StudyDirectory(tmp_path).run(name)
    if name not in ("", ".", ".."):
        with pytest.raises(RecordError, match="no file of"):
            RunDirectory(tmp_path).cut(name, 0)


def test_lengths_in_a_checkpoint_name_no_other_file(tmp_path):
    run = small_run.prepare(tmp_path / "run")
    small_run.execute(run, small_run.StopAt(5))
    victim = tmp_path / "victim"
    victim.write_text("precious")
    state = load_checkpoint(run.checkpoint)
    lengths = {"../victim": 0, str(victim): 0, "config.json": 0}
    save_checkpoint(run.checkpoint, state | {"lengths": state["lengths"] | lengths})
    config = (run.path / "config.json").read_bytes()
    assert small_run.execute(run) == "done"
    assert victim.read_text() == "precious"
    assert (run.path / "config.json").read_bytes() == config


@pytest.mark.parametrize("length", [-1, 10**30, "all", None, [1], float("inf")])
def test_lengths_that_are_none(tmp_path, length):
    run = small_run.prepare(tmp_path / "run")
    small_run.execute(run, small_run.StopAt(5))
    state = load_checkpoint(run.checkpoint)
    before = (run.path / "metrics.jsonl").read_bytes()
    save_checkpoint(run.checkpoint, state | {"lengths": state["lengths"] | {"metrics.jsonl": length}})
    assert small_run.execute(run) == "failed"
    assert (run.path / "metrics.jsonl").read_bytes() == before


# ---- links ----


def test_a_linked_checkpoint_is_replaced_and_not_written_through(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    run = small_run.prepare(tmp_path / "run")
    run.checkpoint.symlink_to(victim)
    previous(run.checkpoint).symlink_to(victim)
    assert small_run.execute(run) == "failed"
    save_checkpoint(run.checkpoint, {"step": 1})
    save_checkpoint(run.checkpoint, {"step": 2})
    assert load_checkpoint(run.checkpoint) == {"step": 2}
    assert not run.checkpoint.is_symlink()
    assert not previous(run.checkpoint).is_symlink()
    assert victim.read_text() == "precious"


@pytest.mark.parametrize("content", ["precious\n" * 1000, ""], ids=["cut", "appended to"])
@pytest.mark.parametrize("name", ["metrics.jsonl", "trace.jsonl"])
def test_lines_are_not_written_through_a_link(tmp_path, name, content):
    victim = tmp_path / "victim"
    victim.write_text(content)
    run = small_run.prepare(tmp_path / "run")
    (run.path / name).symlink_to(victim)
    assert small_run.execute(run) == "failed"
    assert f"{run.path / name} is a link" in run.failure()["error"]
    assert victim.read_text() == content


def test_whole_files_replace_a_link_and_what_they_are_first_written_to(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    for name in ("result.json", f".result.json.{os.getpid()}.unfinished"):
        (tmp_path / name).symlink_to(victim)
        write_json(tmp_path / "result.json", {"a": 1})
        assert read_json(tmp_path / "result.json") == {"a": 1}
        assert victim.read_text() == "precious"
    write_bytes(tmp_path / "page.html", b"page", durable=False)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["page.html", "result.json", "victim"]


def test_the_lock_does_not_empty_what_it_is_linked_to(tmp_path, ctld):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    run = small_run.prepare(tmp_path / "run")
    (run.path / ".lock").symlink_to(victim)
    code, out = ctld("resume", "run", "--engine", "local")
    assert code == 2
    assert "cannot be written" in out
    assert victim.read_text() == "precious"


# ---- records that ask too much ----

DEEP = '{"a":' * 900 + "1" + "}" * 900
RECORDS = {
    "not text": b"\xff\xfe{}",
    "deep": DEEP.encode(),
    "deeper": b"[" * 10**6,
    "huge integer": b'{"steps": ' + b"9" * 10**5 + b"}",
    "large integer": b'{"steps": ' + b"9" * 400 + b"}",
    "huge float": b'{"steps": 1e400}',
    "nan": b'{"steps": NaN}',
    "infinity": b'{"steps": -Infinity}',
    "list": b"[1]",
    "two": b"{}{}",
    "nul": b'{"a": "\0"}',
}


@pytest.mark.parametrize("content", RECORDS.values(), ids=RECORDS)
def test_records_are_refused_by_name(tmp_path, content):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(content)
    with pytest.raises(RecordError, match=r"metrics\.jsonl .*remove it and run again"):
        read_json(path)
    path.write_bytes(content + b"\n")
    with pytest.raises(RecordError, match=r"metrics\.jsonl, line 1.*remove"):
        RunDirectory(tmp_path).metrics()


def test_large_files_and_pipes_are_not_read(tmp_path):
    for name in ("config.json", "metrics.jsonl"):
        with (tmp_path / name).open("wb") as file:
            file.truncate(2**40)
    with little_memory():
        for read in (RunDirectory(tmp_path).config, RunDirectory(tmp_path).metrics):
            with pytest.raises(RecordError, match="1,099,511,627,776 bytes, more than any record has; remove it"):
                read()
    for name in ("config.json", "metrics.jsonl"):
        (tmp_path / name).unlink()
        os.mkfifo(tmp_path / name)
    for read in (RunDirectory(tmp_path).config, RunDirectory(tmp_path).metrics):
        with pytest.raises(RecordError, match="is no file"):
            read()


@contextmanager
def little_memory(limit=4 * MEGABYTE):
    """Also of what raises."""
    tracemalloc.start()
    try:
        yield
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < limit


# ---- the commands, on a stranger's directory ----

SCRIPT = "<script>alert('evil')</script>"
NAMES = [
    SCRIPT.replace("/", ""),
    "a'\"><img src=x onerror=alert(1)>",
    "[red]x[nothing]",
    "$\\frac{$",
    "=1+1",
    "🦆" * 60,
]


def hostile_study(path):
    """Everything that a record may say, said badly."""
    study = sample.describe(
        path,
        "sda",
        title=SCRIPT,
        figure=SCRIPT,
        methods=[SCRIPT, "sgd", *NAMES],
        titles={"sgd": SCRIPT},
        varied=SCRIPT,
        data={"name": f"../../{SCRIPT}", "sha256": SCRIPT, "path": "/etc/passwd"},
        settings={SCRIPT: SCRIPT, "deep": json.loads("[" * 40 + "]" * 40)},
        commands=[SCRIPT],
    )
    for name in NAMES:
        metrics = [{"step": 0, "stage": 1, "train": {"mse": 1.0}, "test": {"mse": 1.0}}]
        result = {"steps": 1, "train": {"mse": 0.5, SCRIPT: 1.0}, "test": {"mse": 0.5}, "seconds": {SCRIPT: 1.0}}
        sample.write_run(
            study,
            name,
            {"kind": "train", "role": "final", "method": name, "variant": SCRIPT, "seed": 0},
            result=result,
            metrics=metrics,
        )
        run = study.run(name)
        write_json(
            run.path / "environment.json",
            {"versions": {SCRIPT: SCRIPT}, "machine": SCRIPT, "threads": 1, "notes": [SCRIPT]},
        )
    (study.path / "tuning").mkdir()
    write_json(
        study.path / "tuning" / "sgd.json",
        {"trials": [{"run": "../../x", "parameters": {SCRIPT: 1.0}, "value": 1}], "search": SCRIPT},
    )
    (study.path / "tuning" / f"{NAMES[0]}.json").write_text(DEEP)
    (study.path / "runs" / "\x1b[2J").mkdir()
    shutil.copy(study.run(NAMES[0]).path / "config.json", study.path / "runs" / "\x1b[2J")
    os.mkfifo(study.path / ".lock")
    return study


@pytest.mark.filterwarnings("ignore:Glyph:UserWarning")
def test_report_escapes_whatever_a_record_says(tmp_path, ctld):
    study = hostile_study(tmp_path / "study")
    code, out = ctld("report", "study", "--output", "page")
    assert code == 0, out
    page = (tmp_path / "page" / "report.html").read_text()
    assert page.count("&lt;script&gt;") > 40  # it was shown, not left out
    assert "a&#39;&#34;&gt;&lt;img src=x onerror=alert(1)&gt;: &lt;script&gt;" in page  # name of a run, and a note
    own = (TEMPLATES / "page.js").read_text(encoding="utf-8")
    assert not re.search(r"<script|<img[^>]*onerror", page.replace(f"<script>{own}</script>", ""))
    written = {path.relative_to(tmp_path).parts[0] for path in tmp_path.rglob("*") if path.is_file()}
    assert written == {"study", "page"}
    kinds = {path.suffix for path in (tmp_path / "page").rglob("*") if path.is_file()}
    assert kinds <= {".html", ".csv", ".json", ".svg"}
    written = (tmp_path / "page" / "sda" / "study.json").read_text()
    assert "/etc/passwd" not in written
    for command in (["list", "."], ["compare", "study", "study"], ["status", "study"]):
        code, out = ctld(*command)
        assert code in (0, 1), out
    with suppress(RecordError):
        tensorboard.export(study)
    assert study.path.exists()


WRONG = {
    "steps": ["x", [[]], {"a": 1}, -5, [1, "x"], None, True, 2**62],
    "seed": ["x", None, [], -1],
    "method": [3, None, [], {}, "../../x", "\0"],
    "kind": [3, [], "os.system", None],
    "role": [3, [], {}],
    "point": [3, "x"],
    "optimizer": [3, None, {"lr": "x"}, {"lr": 0.1, "__class__": 1}],
    "checkpoint_seconds": ["x", None],
}


@pytest.mark.parametrize("key", WRONG)
def test_a_config_of_wrong_kinds_fails_its_run_alone(tmp_path, ctld, key):
    """Whatever a run's configuration says: a sentence, and no traceback, of any command."""
    study = sample.describe(tmp_path / "study", "sda")
    for value in WRONG[key]:
        run = small_run.prepare(study.path / "runs" / "a")
        write_json(run.path / "config.json", run.config() | {key: value, "exploration_steps": 1, "evaluations": 1})
        if key != "steps" or value != 2**62:
            code, out = ctld("resume", "study/runs/a", "--engine", "local", "--threads", "1")
            assert code in (0, 1), (value, out)
            assert "Traceback" not in out
        for command in (["list", "."], ["report", "study"]):
            code, out = ctld(*command)
            assert code == 0, (value, out)
        for path in run.path.iterdir():
            path.unlink()


@pytest.mark.parametrize("content", RECORDS.values(), ids=RECORDS)
def test_a_broken_record_costs_its_own_row(tmp_path, ctld, content):
    for file in (
        "study.json",
        "runs/a/config.json",
        "runs/a/result.json",
        "runs/a/metrics.jsonl",
        "runs/a/environment.json",
    ):
        good = sample.describe(tmp_path / "studies" / "good", "timing")
        bad = sample.describe(tmp_path / "studies" / "bad", "sda")
        small_run.prepare(bad.path / "runs" / "a")
        (bad.path / file).write_bytes(content + b"\n")
        code, out = ctld("report", "studies", "--output", "page")
        assert code == 0, out
        assert 'id="timing"' in (tmp_path / "page" / "report.html").read_text()
        code, out = ctld("list", "studies")
        assert code == 0, out
        assert "studies/good" in out
        code, out = ctld("compare", "studies/bad", "studies/bad")
        assert code in (0, 1, 2), out
        code, out = ctld("resume", "studies/bad/runs/a", "--engine", "local", "--threads", "1")
        assert code in (0, 1), out
        for path in sorted(bad.path.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        assert good.description()["study"] == "timing"


# ---- archives; what is tested in test_data_containers is left out ----


def zip_of(path, *entries):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in entries:
            archive.writestr(name, content)
    return path


def refused(path, size):
    with little_memory(), pytest.raises(DataError) as caught:
        containers.read(path, size=size, member="text")
    assert path.name in str(caught.value)


def test_a_bomb_within_a_bomb_is_not_opened(tmp_path):
    inner = zip_of(tmp_path / "inner.zip", ("text", bytes(32 * MEGABYTE))).read_bytes()
    for _ in range(3):
        inner = zip_of(tmp_path / "text.zip", ("text", inner)).read_bytes()
    refused(tmp_path / "text.zip", 1_000_000)
    # One level is what is asked for; the archive inside it is bytes like any other.
    with zipfile.ZipFile(tmp_path / "text.zip") as archive:
        size = archive.getinfo("text").file_size
    assert containers.read(tmp_path / "text.zip", size=size, member="text")[0][:2].tobytes() == b"PK"


def test_a_gzip_within_a_gzip_is_not_opened(tmp_path):
    path = tmp_path / "text.gz"
    inner = gzip.compress(gzip.compress(bytes(32 * MEGABYTE)))
    path.write_bytes(inner)
    refused(path, 1000)


def test_a_gzip_of_many_members_ends_where_it_should(tmp_path):
    path = tmp_path / "text.gz"
    path.write_bytes(gzip.compress(bytes(1000)) * 2000)
    refused(path, 100_000)


def test_overlapping_entries_are_read_once_or_not_at_all(tmp_path):
    """The quine of bombs: a table of contents with a thousand entries, all of them the same bytes."""
    content = os.urandom(1000)
    path = zip_of(tmp_path / "text.zip", ("text", content))
    whole = path.read_bytes()
    start = whole.index(b"PK\1\2")
    end = whole.index(b"PK\5\6")
    table = whole[start:end] * 1000
    path.write_bytes(whole[:start] + table + struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, 1000, 1000, len(table), start, 0))
    with little_memory(), suppress(DataError):  # newer versions of Python refuse it
        assert containers.read(path, size=1000, member="text")[0].tobytes() == content


@pytest.mark.parametrize("claimed", [0, 1, 999, 1001, 2**31, 2**32 - 2])
def test_a_zip_with_a_wrong_size_is_refused(tmp_path, claimed):
    path = zip_of(tmp_path / "text.zip", ("text", bytes(1000)))
    lying = path.read_bytes().replace(struct.pack("<I", 1000), struct.pack("<I", claimed))
    path.write_bytes(lying)
    for size in {1000, min(claimed, 10_000)}:
        refused(path, size)


# ---- what reaches the terminal, and what ends a command ----


@pytest.mark.filterwarnings("ignore:Glyph:UserWarning")
def test_nothing_of_a_strangers_records_is_obeyed_by_the_terminal(tmp_path, ctld):
    study = hostile_study(tmp_path / "studies" / "one")
    hostile = {"study": "\x1b[2Jsda", "scale": "\x1b]0;title\x07", "titles": {"sgd": "\x1b[31m"}}
    write_json(study.path / "study.json", read_json(study.path / "study.json") | hostile)
    for words in (("list", "studies"), ("report", "studies/one", "--output", "page"), ("resume", "studies/one")):
        _, out = ctld(*words)
        assert not [letter for letter in out if ord(letter) < 32 and letter != "\n"], words


@pytest.mark.parametrize("threads", [3_000_000, 0, "many", 1.5])
def test_an_absurd_number_of_threads_is_refused(tmp_path, ctld, threads):
    run = small_run.prepare(tmp_path / "run")
    write_json(run.path / "environment.json", {"threads": threads})
    code, out = ctld("resume", "run", "--engine", "local")
    assert code == 1
    assert "of the number of threads; remove it" in out


def test_a_damaged_environment_does_not_end_a_command_before_its_report(tmp_path):
    run = small_run.prepare(tmp_path / "run")
    (run.path / "environment.json").write_text("{")
    console = Console(file=io.StringIO(), width=200)
    assert conclude({run.path: "done"}, set(), console, again="again") == 0
    assert "environment.json cannot be read as JSON" in console.file.getvalue()


def test_a_directory_that_is_not_a_studys_is_left_alone(tmp_path, ctld):
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.tex").write_text("precious")
    code, out = ctld("run", "double-well", "--scale", "smoke", "--dir", "home")
    assert code == 2
    assert "home holds 'thesis.tex' and is no study's (no study.json); give another --dir" in out
    assert [path.name for path in (tmp_path / "home").iterdir()] == ["thesis.tex"]
