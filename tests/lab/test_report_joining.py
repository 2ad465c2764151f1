"""Runs that were made later, or elsewhere, beside what is published: `ctld report --add`."""

import json

import pytest
import sample_records as sample

from ctld_lab import cli
from ctld_lab.records import RecordError
from ctld_lab.report import add, build, tidy

pytestmark = pytest.mark.usefixtures("undrawn")


def published(tmp_path, name, methods):
    """Runs of these methods alone, with no trials."""
    sample.write_sda(tmp_path / name / "sda", methods=methods, wrong=False)
    return tmp_path / name


def test_two_halves_that_are_joined_are_the_report_of_the_whole(tmp_path):
    halves = published(tmp_path, "one", sample.METHODS[:3]), published(tmp_path, "other", sample.METHODS[3:])
    out = tmp_path / "out"
    for half in halves:
        add(half, out)
    build(published(tmp_path, "whole", sample.METHODS), tmp_path / "expected")
    joined, whole = (tidy.read(root / "tables" / "sda.csv") for root in (out, tmp_path / "expected"))
    assert set(joined.itertuples(index=False, name=None)) == set(whole.itertuples(index=False, name=None))
    record = json.loads((out / "sda" / "study.json").read_text(encoding="utf-8"))
    assert set(record["methods"]) == set(sample.METHODS)
    assert record["published"] == "36 final runs done"
    pages = [(root / "report.html").read_text(encoding="utf-8") for root in (out, tmp_path / "expected")]
    best = [page.count('class="best"') for page in pages]
    assert best[0] == best[1] > 0


def test_what_cannot_be_read_or_is_another_experiment_changes_nothing(tmp_path):
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
    path.write_text("{", encoding="utf-8")
    with pytest.raises(RecordError, match=r"study\.json"):
        add(other, out)
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before


def test_the_command_shows_both(tmp_path, capsys):
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
