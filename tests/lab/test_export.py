"""`ctld export`: what a study has so far, as tables, a page and a figure that say what is missing."""

import json
from pathlib import Path

import pytest

from ctld_lab import cli
from ctld_lab.commands import export, export_page
from ctld_lab.records import Appender, StudyDirectory

ROOT = Path(__file__).parents[2]
STORED = sorted(path.stem for path in (ROOT / "results" / "paper").glob("*.md") if path.stem != "README")
PAPER = {"metric": "mse", "split": "train", "values": {"ctld": "0.006", "sgd": "0.03–0.05"}}


@pytest.fixture
def study(tmp_path):
    """Two layers of 20 steps: CTLD is done, SGD-M is in its second layer, RMSprop has not begun, Adam diverged."""
    directory = StudyDirectory(tmp_path / "sda-paper")
    methods = {"ctld": "CTLD", "sgd": "SGD-M", "rmsprop": "RMSprop", "adam": "Adam"}
    directory.prepare({
        "study": "sda", "scale": "paper", "data": {}, "settings": {}, "methods": list(methods), "titles": methods, "seeds": [0],
        "commands": ["ctld run sda --scale paper --data-dir '/a secret place' --trials 0"], "paper": PAPER,
    })  # fmt: skip
    for method in methods:
        run = directory.run(f"{method}-paper-seed0")
        config = {"kind": "train", "role": "final", "method": method, "variant": "paper", "seed": 0, "steps": [20, 20]}
        run.prepare(config | {"optimizer": {"lr": 0.1}})
        reached = {"ctld": 40, "sgd": 30, "rmsprop": -1, "adam": 10}[method]
        if reached < 0:
            continue
        run.write(
            "environment.json", {"commit": "c" * 40, "machine": "a machine", "threads": 1, "versions": {"torch": "2"}}
        )
        lines = Appender(run.path / "metrics.jsonl")
        for step in range(0, reached + 1, 10):
            for stage in {0: (1,), 20: (1, 2), 40: (2,)}.get(step, (1 + step // 20,)):
                lines.append(_line(step, stage))
        lines.close()
        if method == "ctld":
            trace = Appender(run.path / "trace.jsonl")
            for stage in (1, 2):
                for step, ratio in ((1, 1.0), (2, 6.6667), (3, 1.0), (4, 1.0)):
                    read = {"0": {"kinetic": {"mean": 1.0625, "error": 0.1}}}
                    trace.append({"step": 20 * stage - 20 + step, "stage": stage, "alpha": 0.5, "temperature_ratio": ratio,
                                  "kinetic_temperature": 1.0, "potential": 3.0, "thermometers": read})  # fmt: skip
            trace.close()
            ends = [{"train": {"mse": 0.5, "image_mse": 0.5}, "test": {"mse": 0.6, "image_mse": 0.625}},
                    {"train": {"mse": 0.00712345, "image_mse": 0.9}, "test": {"mse": 0.008, "image_mse": 1.125}}]  # fmt: skip
            seconds = {"train": 7200.0, "log": 0.0}
            run.write("result.json", ends[-1] | {"steps": 40, "diverged": False, "stages": ends, "seconds": seconds})
        if method == "adam":
            run.write("result.json", {"steps": 13, "diverged": True, "stages": [], "seconds": {"train": 1.0}})
    trial = directory.run("tune-sgd-00")
    trial.prepare(
        {"kind": "train", "role": "tuning", "method": "sgd", "variant": "trial", "seed": 1000, "steps": [20, 20]}
    )
    return directory


def _line(step, stage):
    value = {"mse": 1.0 / (step + 1), "image_mse": 2.0 / (step + 1)}
    place = {"step": step, "stage": stage, "stage_step": step - 20 * (stage - 1), "epoch": step / 10}
    return place | {"train": value, "test": value, "lr": 0.1, "seconds": {"train": 2.0 * step, "evaluate": 0.5}}


def exported(study, folder):
    with pytest.raises(SystemExit) as leaving:
        cli.main(["export", str(study.path), "--to", str(folder)])
    assert not leaving.value.code
    return {name: export.read_csv(folder / f"sda-{name}.csv") for name in export.TABLES}


def test_runs_say_how_far_they_are_and_what_made_them(study, tmp_path):
    rows = {row["method"]: row for row in exported(study, tmp_path / "to")["runs"]}
    assert {method: (row["state"], row["step"]) for method, row in rows.items()} == {
        "ctld": ("done", "40"), "sgd": ("partial", "30"), "rmsprop": ("not begun", "0"), "adam": ("diverged", "13"),
    }  # fmt: skip
    assert rows["ctld"]["commit"] == "c" * 40
    assert (rows["ctld"]["machine"], rows["ctld"]["threads"], rows["ctld"]["paper"]) == ("a machine", "1", "0.006")
    assert rows["ctld"]["command"] == "ctld run sda --scale paper --trials 0"  # without the place of somebody's data


def test_final_errors_are_those_of_the_result_and_partial_ones_are_called_so(study, tmp_path):
    rows = exported(study, tmp_path / "to")["finals"]
    found = {(row["method"], row["stage"], row["split"], row["metric"]): row for row in rows}
    last = found["ctld", "2", "train", "mse"]
    assert (last["evaluation"], last["value"], last["paper"]) == ("end", "0.00712345", "0.006")
    assert (
        found["ctld", "2", "test", "mse"]["paper"] == ""
    )  # the paper's number is of training data, and of the last layer
    assert found["ctld", "1", "train", "mse"]["paper"] == ""
    assert found["ctld", "2", "test", "image_mse"]["value"] == "1.125"
    first, second = found["sgd", "1", "train", "mse"], found["sgd", "2", "train", "mse"]
    assert (first["evaluation"], float(first["value"])) == ("end of curve", pytest.approx(1 / 21))
    assert (second["evaluation"], float(second["value"])) == ("partial", pytest.approx(1 / 31))
    assert "rmsprop" not in {row["method"] for row in rows}


def test_the_papers_pairs_are_told_apart():
    """ "1.99 / 1.91" is training and test text."""
    assert export._printed("1.99 / 1.91", "train", {}) == "1.99"
    assert export._printed("1.99 / 1.91", "test", {}) == "1.91"
    assert export._printed("0.006", "test", {"split": "train"}) == ""


def test_the_page_says_what_is_missing_and_brackets_what_is_not_done(study, tmp_path):
    tables = exported(study, tmp_path / "to")
    page = (tmp_path / "to" / "sda.md").read_text()
    assert "2 of 4 runs are done. Partial: SGD-M (30 of 40). Missing: RMSprop." in page
    assert "| CTLD | lr 0.1 | 40 | 0.5 | 0.007123 | 1.125 | 0.006 |" in page
    assert "| SGD-M | lr 0.1 | 30 | (0.04762) | (0.03226) | (0.06452) | 0.03–0.05 |" in page
    assert "| RMSprop | lr 0.1 | 0 | – | – | – | – |" in page
    assert "| Adam | lr 0.1 | 13 (diverged) |" in page
    assert "| ctld-paper-seed0 | 2 | 4 | 75 % | 6.67 | 1.06 | – |" in page
    assert "CTLD 2.00" in page  # hours
    done = [row for row in tables["runs"] if row["state"] == "done"]
    assert export_page.missing(done) == ""
    for kind, start in (("png", b"\x89PNG"), ("pdf", b"%PDF")):
        assert (tmp_path / "to" / f"sda.{kind}").read_bytes().startswith(start)


def test_an_unfinished_last_line_of_a_live_run_is_no_row(study, tmp_path):
    before = exported(study, tmp_path / "to")["curves"]
    with (study.run("sgd-paper-seed0").path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 40, "sta')
    assert exported(study, tmp_path / "to")["curves"] == before


@pytest.mark.parametrize("name", STORED)
def test_the_stored_page_is_what_the_stored_tables_say(name):
    folder = ROOT / "results" / "paper"
    tables = {table: export.read_csv(folder / f"{name}-{table}.csv") for table in export.TABLES}
    assert (folder / f"{name}.md").read_text() == export_page.page(name, tables)
    assert not any("/" in row["command"] for row in tables["runs"])


def test_there_is_something_stored():
    assert "sda" in STORED


def test_the_document_has_the_times_that_were_stored():
    """Milliseconds of each layer, hours of a run, and epochs in three hours: a step of the LSTM reads 1/18,000 of the text."""
    rows = json.loads((ROOT / "results" / "paper" / "iterations.json").read_text())["rows"]
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
