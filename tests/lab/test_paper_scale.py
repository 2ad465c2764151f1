"""The paper at its own size: what is stored of it, and the document that tells of it."""

import csv
import json
import math
import shutil
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


def values(method, variant="paper"):
    with (PAPER / "tables" / "sda-final.csv").open(encoding="utf-8") as file:
        chosen = [row for row in csv.DictReader(file) if (row["method"], row["variant"]) == (method, variant)]
    return {row["metric"]: float(row["mean"]) for row in chosen}


def test_what_the_documents_say_came_out():
    ctld, sgd = values("ctld"), values("sgd")
    assert 0.3 < ctld["train mse of layer 4"] / sgd["train mse of layer 4"] < 0.4
    for layer in (1, 2, 3, 4):
        assert ctld[f"test image_mse of layer {layer}"] > sgd[f"test image_mse of layer {layer}"]
        assert (ctld[f"train mse of layer {layer}"] < sgd[f"train mse of layer {layer}"]) == (layer in (2, 4))
    for page, words in {
        "paper-scale": "0.0073 beside 0.0204",
        "results": "0.89 beside 0.75",
        "which": "(0.89, SGD 0.75)",
        "LOG": "0.89 and 0.75",
    }.items():
        assert words in (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    assert [f"{x['train mse of layer 4']:.4f}" for x in (ctld, sgd)] == ["0.0073", "0.0204"]
    assert [f"{x['test image_mse']:.2f}" for x in (ctld, sgd)] == ["0.89", "0.75"]
    assert [f"{x['test image_mse of layer 1']:.2f}" for x in (ctld, sgd)] == ["0.43", "0.08"]
    with (PAPER / "tables" / "sda-curves.csv").open(encoding="utf-8") as file:
        first = {
            (row["method"], float(row["step"])): float(row["mean"])
            for row in csv.DictReader(file)
            if (row["variant"], row["metric"], row["stage"]) == ("paper", "mse", "1")
        }
    assert f"{first['ctld', 18000]:.2f}" == "0.68"
    assert first["sgd", 1000] < 0.43
    with (PAPER / "tables" / "sda-temperature.csv").open(encoding="utf-8") as file:
        row = next(csv.DictReader(file))
    assert [f"{float(row[name]):.2f}" for name in ("kinetic", "configurational")] == ["1.06", "0.03"]


def test_what_the_documents_say_of_the_order():
    """By the last layer on its own input, and by the image that comes back: nearly the reverse of each other."""
    found = {method: values(method) for method in ("anneal_sgd", "ctld", "sgd", "rmsprop", "adam")}
    layer = {method: each["train mse of layer 4"] for method, each in found.items()}
    image = {method: each["test image_mse"] for method, each in found.items()}
    assert sorted(layer, key=layer.__getitem__) == ["anneal_sgd", "ctld", "sgd", "rmsprop", "adam"]
    assert sorted(image, key=image.__getitem__) == ["rmsprop", "adam", "sgd", "anneal_sgd", "ctld"]
    assert [f"{layer[method]:.4f}" for method in ("anneal_sgd", "rmsprop")] == ["0.0063", "0.0378"]
    assert [f"{image[method]:.2f}" for method in ("anneal_sgd", "rmsprop")] == ["0.88", "0.45"]
    assert [f"{layer['adam']:.3f}", f"{image['adam']:.2f}"] == ["0.041", "0.48"]
    for number in (1, 2, 3):
        after = {method: each[f"test image_mse of layer {number}"] for method, each in found.items()}
        assert min(after, key=after.__getitem__) == "adam"
    assert f"{found['adam']['test image_mse of layer 1']:.3f}" == "0.053"
    for page, words in {
        "paper-scale": "AnnealSGD, CTLD, SGD, RMSprop, Adam; by the image it is RMSprop, Adam, SGD, AnnealSGD, CTLD",
        "results": "AnnealSGD, at 0.0063 and 0.88",
        "which": "RMSprop's at 0.45",
        "LOG": "AnnealSGD ends at 0.0063",
    }.items():
        assert words in (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")


def test_what_the_documents_say_of_settings_that_fit():
    ctld, sgd = values("ctld", "laptop"), values("sgd", "laptop")
    assert [f"{x['test image_mse']:.3f}" for x in (ctld, sgd)] == ["0.411", "0.419"]
    assert [f"{x['train mse']:.3f}" for x in (ctld, sgd)] == ["0.031", "0.031"]
    assert [f"{x['test image_mse of layer 1']:.2f}" for x in (ctld, sgd)] == ["0.14", "0.14"]
    with (PAPER / "tables" / "sda-temperature.csv").open(encoding="utf-8") as file:
        heats = [row for row in csv.DictReader(file) if row["variant"] == "laptop"]
    assert {f"{float(row['temperature']):.4f}" for row in heats} == {"0.0001", "0.0002"}
    assert round(float(heats[0]["minibatch_heat"])) == 15
    for page, words in {
        "paper-scale": "at 0.411, SGD's at 0.419",
        "results": "at 0.41 and 0.42, and their last layers at 0.031",
        "which": "at 0.41 and 0.42",
        "LOG": "0.41 with CTLD and at 0.42 with SGD",
    }.items():
        assert words in (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")


def curve(study, metric, split):
    with (PAPER / "tables" / f"{study}-curves.csv").open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if (row["metric"], row["split"]) == (metric, split)]
    return {(row["method"], row["variant"], float(row["step"])): float(row["mean"]) for row in rows}


def test_what_the_documents_say_of_santa_and_of_adams_other_rate():
    mse = curve("sda", "mse", "train")
    assert f"{mse['santa', 'paper', 4000]:.2f}" == "0.94"
    with (PAPER / "tables" / "sda-final.csv").open(encoding="utf-8") as file:
        assert {row["diverged"] for row in csv.DictReader(file) if row["method"] == "santa" and row["metric"]} == {"1"}
    adam = values("adam", "laptop")
    assert [f"{adam[name]:.2f}" for name in ("test image_mse of layer 1", "test image_mse")] == ["0.09", "0.54"]


def test_what_the_documents_say_of_the_lstm():
    bits = {place: nats / math.log(2) for place, nats in curve("charrnn", "nats", "test").items()}
    assert [f"{bits['ctld', 'paper-biases-0', step]:.2f}" for step in (9000, 18_000, 36_000)] == ["5.17"] * 3
    assert {(name, variant) for name, variant, step in bits if step > 18_000} == {("ctld", "paper-biases-0")}
    assert [f"{bits[name, 'paper-biases-0', 18_000]:.2f}" for name in ("adam", "rmsprop")] == ["5.20", "2.27"]
    page = (ROOT / "docs" / "paper-scale.md").read_text(encoding="utf-8")
    ctld, sgd = (f"{bits[name, 'laptop-biases-0', 18_000]:.2f}" for name in ("ctld", "sgd"))
    assert f"CTLD is where SGD-M is**: {ctld} bits beside {sgd}" in page
    before, last, adam = (
        f"{bits[name, 'laptop-biases-0', step]:.2f}"
        for name, step in (("rmsprop", 16_200), ("rmsprop", 18_000), ("adam", 18_000))
    )
    assert f"is at {before} before the last evaluation and at {last} at it" in page
    assert f"comes to {adam}, which is better than at the paper's 0.03" in page
    assert round(360_000 * (0.0389376 / 0.34) / (3.47 / 0.138), -1) == 1640
    assert f"{curve('charrnn', 'nats', 'train')['sgd', 'laptop-biases-0', 1800] / math.log(2):.2f}" == "2.61"


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
