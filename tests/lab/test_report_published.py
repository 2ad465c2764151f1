"""What is stored in the repository: pages and figures again from their tables, and times from their rounds."""

import json
import math
import re
from pathlib import Path

import pytest

from ctld_lab import timing
from ctld_lab.report import build, tidy
from ctld_lab.report.reading import read_study
from ctld_lab.report.tables import final_table
from ctld_lab.statistics import estimate, paired_difference, word

ROOT = Path(__file__).parents[2]
LAPTOP, PAPER = ROOT / "results" / "laptop", ROOT / "results" / "paper"
STUDIES = sorted(path.parent for root in (LAPTOP, PAPER) for path in root.glob("*/study.json"))
pytestmark = [pytest.mark.xdist_group("published"), pytest.mark.usefixtures("undrawn")]


@pytest.mark.parametrize("root", [LAPTOP, PAPER], ids=["laptop", "paper"])
def test_a_stored_page_is_made_from_the_stored_tables(root, tmp_path):
    """`ctld report results/laptop`, after a table has changed: every number, mark and word of the page."""
    build(root, tmp_path)
    names = {path.name for path in (root / "tables").iterdir()}
    assert names == {path.name for path in (tmp_path / "tables").iterdir()}
    for name in names:
        assert (tmp_path / "tables" / name).read_bytes() == (root / "tables" / name).read_bytes(), name
    assert {path.name for path in (root / "figures").iterdir()} == {x.name for x in (tmp_path / "figures").iterdir()}
    assert (tmp_path / "report.html").read_bytes() == (root / "report.html").read_bytes()


@pytest.mark.parametrize("folder", STUDIES, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_a_stored_study_names_commit_machine_and_command_and_nobodys_directories(folder):
    record = json.loads((folder / "study.json").read_text(encoding="utf-8"))
    assert record["commands"][0].startswith(f"ctld run {folder.name} --scale {folder.parent.name}")
    assert not re.search(r"(?<!results)/(?!laptop)", " ".join(record["commands"]))
    assert "commit " in record["machine"]
    assert "torch" in record["machine"]


@pytest.mark.parametrize("folder", STUDIES, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_no_number_is_stored_twice(folder):
    table = read_study(folder).table
    assert not table.duplicated(tidy.COLUMNS[:-1]).any()


def test_times_and_their_intervals_follow_from_the_rounds():
    study = read_study(LAPTOP / "timing")
    lines = {}
    for row in study.places(["seconds", "waiting"]).itertuples():
        lines.setdefault(int(row.round), {"seconds": {}, "waiting": {}})[row.metric][row.method] = row.value
    settings = study.settings
    assert len(lines) == settings["rounds"]
    epochs = settings["batches"] / math.ceil(60_000 / 128)
    found = timing.summary(list(lines.values()), epochs=epochs, exploration_share=settings["exploration_share"])
    stored = final_table(study)
    assert {row.method for row in stored} == found.keys()
    for row in stored:
        own, ratio = found[row.method], row.estimate("ratio")
        assert [ratio.mean, *ratio.ends, ratio.count] == [own[x] for x in ("ratio", "low", "high", "rounds")]
        assert row.estimate("seconds per epoch").mean == pytest.approx(own["seconds_per_epoch"], rel=1e-12)


def test_on_the_digits_the_default_ties():
    """From values by seed."""
    by_method = {}
    for run in json.loads((ROOT / "results" / "digits.json").read_text(encoding="utf-8"))["runs"]:
        by_method.setdefault(run["method"], {})[run["seed"]] = run["nll"]
    plain = by_method["SGD-M"]
    mean = estimate(list(plain.values())).mean
    assert word(paired_difference(by_method["CTLD, T auto"], plain), mean) == "tie"
    assert word(paired_difference(by_method["CTLD, T = 1"], plain), mean) == "higher"
