"""The paper at its own size: what is stored of it, and the document that tells of it."""

import csv
import json
from pathlib import Path

from ctld_lab.report import build

ROOT = Path(__file__).parents[2]
PAPER = ROOT / "results" / "paper"


def test_the_stored_page_is_made_from_the_stored_tables(tmp_path):
    build(PAPER, tmp_path)
    assert (tmp_path / "report.html").read_bytes() == (PAPER / "report.html").read_bytes()


def test_what_is_stored_names_its_commit_and_nobodys_directories():
    record = json.loads((PAPER / "sda" / "study.json").read_text(encoding="utf-8"))
    assert record["commands"][0].startswith("ctld run sda --scale paper")
    assert "/" not in record["commands"][0]
    assert "commit " in record["machine"]


def test_there_are_curves_of_the_layer_and_of_the_image():
    with (PAPER / "tables" / "sda-curves.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert {(row["split"], row["metric"]) for row in rows} == {("train", "mse"), ("test", "image_mse")}
    assert "ctld" in {row["method"] for row in rows}


def test_the_document_has_the_times_that_were_stored():
    """Milliseconds of each layer, hours of a run, and epochs in three hours: a step of the LSTM reads 1/18,000 of the text."""
    rows = json.loads((PAPER / "iterations.json").read_text())["rows"]
    text = (ROOT / "docs" / "paper-scale.md").read_text()
    for method in dict.fromkeys(row["method"] for row in rows):
        layers = [row for row in rows if (row["study"], row["method"]) == ("sda", method)]
        (lstm,) = [row for row in rows if (row["study"], row["method"]) == ("charrnn", method)]
        step = lstm["milliseconds"]["all"]
        cells = [f"{row['milliseconds']['all']:.1f}" for row in layers] + [f"{sum(row['hours'] for row in layers):.1f}"]
        cells += [f"{step:.0f}", f"{lstm['hours']:.1f}", f"{3 * 3.6e6 / step / 18_000:.1f}"]
        assert f"| `{method}` | {' | '.join(cells)} |" in text
    sgd = [row["milliseconds"] for row in rows if (row["study"], row["method"]) == ("sda", "sgd")]
    assert sum(each["optimizer"] for each in sgd) / sum(each["all"] for each in sgd) < 0.1
