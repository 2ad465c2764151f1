"""The paper at its own size: what is stored of it."""

import csv
import json
import shutil
from pathlib import Path

from ctld_lab.report import build

ROOT = Path(__file__).parents[2]
PAPER = ROOT / "results" / "paper"


def test_the_stored_page_is_made_from_the_stored_tables(tmp_path):
    build(PAPER, tmp_path)
    assert (tmp_path / "report.html").read_bytes() == (PAPER / "report.html").read_bytes()


def test_what_is_stored_names_its_commit_and_nobodys_directories():
    for study in ("sda", "charrnn"):
        record = json.loads((PAPER / study / "study.json").read_text(encoding="utf-8"))
        assert record["commands"][0].startswith(f"ctld run {study} --scale paper")
        assert "/" not in record["commands"][0]
        assert "commit " in record["machine"]


def test_there_are_curves_of_the_layer_and_of_the_image():
    with (PAPER / "tables" / "sda-curves.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert {(row["split"], row["metric"]) for row in rows} == {("train", "mse"), ("test", "image_mse")}
    assert "ctld" in {row["method"] for row in rows}


def test_runs_of_the_lstm_with_and_without_forget_biases_have_different_names():
    """char-rnn's initialization is that of the study at this size; runs from before that are kept apart."""
    record = json.loads((PAPER / "charrnn" / "study.json").read_text(encoding="utf-8"))
    assert record["settings"]["network"] == {"forget_bias": 1.0}
    with (PAPER / "tables" / "charrnn-curves.csv").open(encoding="utf-8") as file:
        assert {row["variant"] for row in csv.DictReader(file)} >= {"paper", "paper-biases-0", "laptop-biases-0"}


def test_a_figure_has_what_was_run_and_names_what_was_not(tmp_path):
    """A run that was begun is drawn, and said to be not finished."""
    autoencoder = (PAPER / "report.html").read_text(encoding="utf-8").split("Character-level LSTM</h")[0]
    assert "Missing so far" not in autoencoder
    assert "Not finished" not in autoencoder
    copy = tmp_path / "paper"
    shutil.copytree(PAPER, copy)
    curves = copy / "tables" / "sda-curves.csv"
    lines = [line for line in curves.read_text(encoding="utf-8").splitlines() if ",santa," not in line]
    lines += ["laptop,test,image_mse,rmsprop,1,0.0,1.9,,,1", "laptop,test,image_mse,rmsprop,1,1000.0,0.7,,,1", ""]
    curves.write_text("\n".join(lines), encoding="utf-8")
    build(copy, tmp_path / "out")
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert "Missing so far: Santa. Not finished: RMSprop (chosen at laptop size)." in page
    assert "Image, test data, chosen at laptop size" in page
