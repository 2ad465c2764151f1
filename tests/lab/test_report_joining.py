"""Runs that were made later, or elsewhere, beside what is published."""

import csv
import json

import pytest
import sample_records as sample

from ctld_lab import cli
from ctld_lab.records import RecordError, RunDirectory
from ctld_lab.report import add, build


def rows(path):
    with path.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def published(tmp_path, name, methods):
    """A report of these methods alone, with no trials."""
    sample.write_sda(tmp_path / name / "sda", methods=methods, wrong=False)
    return tmp_path / name


def lines_of(folder, table):
    return sorted((folder / "tables" / f"sda-{table}.csv").read_text(encoding="utf-8").splitlines())


def test_two_halves_that_are_joined_are_the_report_of_the_whole(tmp_path, undrawn):
    """Every table; the marks too, for which all methods must be there."""
    halves = published(tmp_path, "one", sample.METHODS[:3]), published(tmp_path, "other", sample.METHODS[3:])
    out = tmp_path / "out"
    for half in halves:
        add(half, out)
    build(published(tmp_path, "whole", sample.METHODS), tmp_path / "expected")
    names = {path.name for path in (tmp_path / "expected" / "tables").iterdir()}
    assert names == {path.name for path in (out / "tables").iterdir()}
    for name in names - {"sda-trace.csv"}:
        table = name.removeprefix("sda-").removesuffix(".csv")
        assert lines_of(out, table) == lines_of(tmp_path / "expected", table), table
    record = json.loads((out / "sda" / "study.json").read_text(encoding="utf-8"))
    assert set(record["methods"]) == set(sample.METHODS)
    assert record["published"].endswith("runs done")


def test_what_is_finished_is_not_replaced_by_what_is_not(tmp_path, undrawn):
    """A run that was begun anew elsewhere has a curve and no result: the published one stays, of both."""
    out = tmp_path / "out"
    add(published(tmp_path, "one", ("sgd", "ctld")), out)
    before = {table: lines_of(out, table) for table in ("final", "curves", "seeds", "temperature")}
    again = published(tmp_path, "other", ("sgd", "ctld"))
    for path in again.glob("sda/runs/ctld-*/result.json"):
        path.unlink()
    for path in again.glob("sda/runs/ctld-*/metrics.jsonl"):
        path.write_text("".join(path.read_text(encoding="utf-8").splitlines(True)[:5]), encoding="utf-8")
    add(again, out)
    assert {table: lines_of(out, table) for table in before} == before


def test_a_run_that_goes_on_has_its_longer_curve(tmp_path, undrawn):
    """Neither report has a result of it; the newer one is further."""
    out, half = tmp_path / "out", published(tmp_path, "one", ("sgd", "ctld"))
    whole = {path: path.read_text(encoding="utf-8") for path in half.glob("sda/runs/ctld-*/metrics.jsonl")}
    for path, text in whole.items():
        (path.parent / "result.json").unlink()
        path.write_text("".join(text.splitlines(True)[:5]), encoding="utf-8")
    add(half, out)
    short = len([row for row in rows(out / "tables" / "sda-curves.csv") if row["method"] == "ctld"])
    for path, text in whole.items():
        path.write_text("".join(text.splitlines(True)[:9]), encoding="utf-8")
    add(half, out)
    assert len([row for row in rows(out / "tables" / "sda-curves.csv") if row["method"] == "ctld"]) > short > 0


def test_more_seeds_are_not_replaced_by_fewer(tmp_path, undrawn):
    out = tmp_path / "out"
    add(published(tmp_path, "one", ("sgd",)), out)
    before = lines_of(out, "seeds")
    fewer = published(tmp_path, "other", ("sgd",))
    for path in fewer.glob("sda/runs/sgd-*-seed1/result.json"):
        path.unlink()
    add(fewer, out)
    assert lines_of(out, "seeds") == before


def test_what_has_no_methods_is_not_half_joined(tmp_path, undrawn):
    """And a study that cannot be read is not passed over."""
    sample.write_double_well(tmp_path / "one" / "double-well")
    add(tmp_path / "one", tmp_path / "out")
    with pytest.raises(RecordError, match=r"its table theorem(-points)? has no methods, and cannot be added to"):
        add(tmp_path / "one", tmp_path / "out")
    (tmp_path / "one" / "double-well" / "study.json").write_text("{", encoding="utf-8")
    with pytest.raises(RecordError, match=r"study\.json"):
        add(tmp_path / "one", tmp_path / "out")


def test_a_run_that_was_made_again_replaces_the_published_one(tmp_path, undrawn):
    out = tmp_path / "out"
    add(published(tmp_path, "one", ("sgd", "ctld")), out)
    again = published(tmp_path, "other", ("ctld",))
    for path in again.glob("sda/runs/ctld-*"):
        run = RunDirectory(path)
        result = run.result()
        run.write("result.json", result | {"test": result["test"] | {"image_mse": 0.125}})
    before = {tuple(row.items()) for row in rows(out / "tables" / "sda-seeds.csv") if row["method"] == "sgd"}
    add(again, out)
    found = rows(out / "tables" / "sda-seeds.csv")
    assert {row["value"] for row in found if (row["method"], row["metric"]) == ("ctld", "test image_mse")} == {"0.125"}
    assert {tuple(row.items()) for row in found if row["method"] == "sgd"} == before


def test_another_experiment_is_not_joined(tmp_path, undrawn):
    out = tmp_path / "out"
    add(published(tmp_path, "one", ("sgd",)), out)
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    other = published(tmp_path, "other", ("ctld",))
    path = other / "sda" / "study.json"
    record = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(record | {"scale": "paper"}), encoding="utf-8")
    with pytest.raises(RecordError, match=r"another experiment: it differs in scale; give another --output"):
        add(other, out)
    with pytest.raises(RecordError, match=r"holds runs, not a published report; give another --output"):
        add(other, tmp_path / "one")
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before


def test_the_command_shows_both(tmp_path, undrawn, capsys):
    out = tmp_path / "out"
    for half in ("sgd", "ctld"):
        with pytest.raises(SystemExit) as leaving:
            cli.main(["report", str(published(tmp_path, half, (half,))), "--output", str(out), "--add"])
        assert not leaving.value.code
        told = capsys.readouterr().out
    assert "SGD-M" in told
    assert "CTLD" in told
    for wrong in ([], ["--output", str(tmp_path / "sgd")]):
        with pytest.raises(SystemExit) as leaving:
            cli.main(["report", str(tmp_path / "sgd"), "--add", *wrong])
        assert leaving.value.code == 2
        assert "--add needs --output" in capsys.readouterr().err
