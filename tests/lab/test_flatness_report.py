"""What the report says of flat minima: verdicts that follow the numbers, one section for all, and what broken records cost."""

import os
import shutil

import numpy as np
import pytest
import sample_records as sample

from ctld_lab.records import StudyDirectory, read_json, write_json
from ctld_lab.report import build, tidy
from ctld_lab.report.flatness import FAILS, HOLDS, OPEN, UNKNOWN, Part, content, summary
from ctld_lab.report.minima import EIGENVALUE, GAP, SHARPNESS, TEMPERED, TEST, TRACE
from ctld_lab.report.reading import StudyRecord, read_study

pytestmark = pytest.mark.usefixtures("undrawn")
METHODS = ("sgd", "ctld", "adam", "santa", "rmsprop", "anneal_sgd")
SETTINGS = {"examples": None, "iterations": 25, "sizes": [0.03]}


def noise(method, seed, scale=0.01):
    """Its own for each run, always the same."""
    return scale * np.random.default_rng([METHODS.index(method), seed]).standard_normal()


def part(values, *, methods=METHODS, seeds=3, variant="tuned", **facts):
    """What `values(method, seed)` says of each run: measure → value."""
    lines = [
        [method, variant, "", tidy.MINIMUM, name, str(seed), value]
        for method in methods
        for seed in range(seeds)
        for name, value in values(method, seed).items()
    ]
    description = {"study": "charrnn", "flatness": facts}
    return Part(StudyRecord(StudyDirectory(sample.Path("charrnn")), description, tidy.frame(lines)), "charrnn")


def levels(of, *, otherwise=3.0, measures=(TRACE,)):
    """The same level for each measure, with noise; a test loss that has nothing to do with it."""
    return lambda method, seed: {
        TEST: 2.0 + noise(method, seed + 10),
        **{name: of.get(method, otherwise) + noise(method, seed) for name in measures},
    }


# ---- verdicts ----


@pytest.mark.parametrize(
    ("level", "verdict", "mark"), [(2.0, HOLDS, "flatter"), (4.0, FAILS, "sharper"), (3.0, OPEN, "")]
)
def test_flatter_than_sgd_follows_the_numbers(level, verdict, mark):
    found = part(levels({"ctld": level}))
    assert found.flatter("tuned", "ctld") == {TRACE: verdict}
    (table,) = [table for table in content([found]).tables if table.name.endswith("differences")]
    assert {cell.mark for row in table.rows if row[0].text == "CTLD" for cell in row[2:]} == {mark}


def test_each_measure_has_its_own_verdict():
    level = {EIGENVALUE: 2.0, TRACE: 4.0, SHARPNESS: 3.0}
    found = part(
        lambda method, seed: {x: (y if method == "ctld" else 3.0) + noise(method, seed) for x, y in level.items()}
    )
    assert found.flatter("tuned", "ctld") == {EIGENVALUE: HOLDS, TRACE: FAILS, SHARPNESS: OPEN}


def test_the_difference_is_paired_by_seed():
    """Seeds differ a hundred times more than methods do."""
    near = levels({"ctld": 2.9})
    assert part(lambda method, seed: {TRACE: 10.0 * seed + near(method, seed)[TRACE]}).flatter("tuned", "ctld") == {
        TRACE: HOLDS
    }


def test_too_little_tells_nothing():
    assert part(levels({"ctld": 2.0}), seeds=1).flatter("tuned", "ctld") == {TRACE: UNKNOWN}
    assert part(levels({"ctld": 2.0}), methods=METHODS[1:]).flatter("tuned", "ctld") == {TRACE: UNKNOWN}
    assert part(lambda method, seed: {TRACE: seed + 1.0, TEST: seed + 1.0}, methods=METHODS[:3]).goes_with(
        "tuned", TEST
    ) == {TRACE: UNKNOWN}


@pytest.mark.parametrize(("sign", "verdict"), [(1, HOLDS), (-1, FAILS)])
def test_whether_flat_is_good_follows_the_numbers(sign, verdict):
    loss = {(method, seed): METHODS.index(method) + 0.1 * seed for method in METHODS for seed in range(3)}
    found = part(lambda method, seed: {TEST: loss[method, seed], TRACE: 10 + sign * loss[method, seed]})
    seen = found.correlation("tuned", TRACE, TEST)
    assert (seen.rho, seen.runs, seen.methods) == (pytest.approx(sign), 18, 6)
    assert found.goes_with("tuned", TEST) == {TRACE: verdict}
    assert part(levels({})).goes_with("tuned", TEST) == {TRACE: OPEN}


def test_different_networks_are_not_correlated_together():
    for alike in (True, False):
        both = [part(levels({}), variant=variant) for variant in ("tuned", "paper")]
        lines = [row for each in both for row in each.study.table.itertuples(index=False, name=None)]
        study = StudyRecord(both[0].study.directory, {"flatness": {"alike": alike}}, tidy.frame(map(list, lines)))
        (table,) = [table for table in content([Part(study, "x")]).tables if table.name.endswith("correlations")]
        assert {row[1].text for row in table.rows} == {"tuned", "paper"} | ({"all together"} if alike else set())


# ---- from records ----


def record(eigenvalue):
    """As `ctld flatness` writes it; all measures the same."""
    return {
        "format": 1, "settings": SETTINGS, "sha256": "0" * 64, "data": {}, "examples": 4000, "what": "nats per character",
        "metric": "nats", "parameters": 100, "loss": 2.0, "gradient_norm": 0.1, "eigenvalues": [eigenvalue, 0.5 * eigenvalue],
        "residuals": [1e-9, 1e-6], "trace": {"mean": eigenvalue, "standard_error": 0.1}, "sharpness": eigenvalue,
        "rises": [{"size": 0.03, "mean": eigenvalue, "standard_error": 0.01}], "seconds": 1.0, "threads": 1, "torch": "2.13.0",
    }  # fmt: skip


@pytest.fixture
def study(tmp_path):
    """Every run has a record: CTLD is flatter."""
    made = sample.write_charrnn(tmp_path / "charrnn", variants=("tuned",))
    for run in made.runs():
        config = run.config()
        level = 2.0 if config["method"] == "ctld" else 3.0
        run.write("flatness.json", record(level + noise(config["method"], config["seed"])))
    return made


def read(study):
    return Part(read_study(study), "charrnn")


def broken(study):
    return [name for name, _ in read_study(study).broken]


def test_a_run_that_judged_several_models_is_taken_by_its_last(study):
    run = study.run("ctld-tuned-seed0")
    result = run.result()
    run.write("result.json", result | {"test": result["test"] | {"last_nll": 7.0}, "members": 6})
    found = read(study)
    assert found.by_seed("tuned", "ctld", TEST)[0] == 7.0
    assert found.by_seed("tuned", "ctld", GAP)[0] == 5.0
    assert found.by_seed("tuned", "ctld", TEST)[1] == study.run("ctld-tuned-seed1").result()["test"]["nats"]
    assert found.facts["several"]


def configure(study, chosen, **changes):
    for run in study.runs():
        config = run.config()
        if config["method"] == chosen:
            write_json(run.path / "config.json", config | changes)


def test_a_constant_temperature_is_not_counted_as_tempering(study):
    """Where a study calls CTLD otherwise, all that are made with it are asked; not its controls."""
    options = {"lr": 0.1, "temperature": 0.01}
    configure(study, "adam", algorithm="ctld", optimizer=options | {"tempering": {"kind": "driven"}})
    configure(study, "santa", algorithm="ctld", optimizer=options | {"tempering": {"kind": "constant", "ratio": 2.1}})
    configure(study, "rmsprop", algorithm="ctld", optimizer=options | {"temperature": 0})
    configure(study, "ctld", method="other", algorithm="sgd")
    found = read(study)
    assert found.tempered("tuned") == ["adam"]
    assert found.by_seed("tuned", "santa", TEMPERED) == {0: 0.0, 1: 0.0, 2: 0.0}


def test_another_weight_decay_is_told_beside_the_count(study):
    assert not read(study).other_decay("tuned")
    before = summary([read(study)])[0]
    configure(study, "ctld", optimizer={"lr": 0.1, "weight_decay": 1e-3})
    assert read(study).other_decay("tuned")
    assert len(summary([read(study)])[0]) > len(before)


BROKEN = {
    "not json": "{",
    "a list": "[1]",
    "eigenvalues missing": {"eigenvalues": None},
    "no eigenvalue": {"eigenvalues": []},
    "words": {"trace": {"mean": "<script>alert(1)</script>"}},
    "a number too many": {"rises": 3},
    "settings": {"settings": [1]},
    "deep": "[" * 60 + "]" * 60,
    "other settings": {"settings": SETTINGS | {"examples": 10}, "checksum": None},
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_record_is_told_and_costs_itself_alone(study, name):
    path = study.run("adam-tuned-seed1").path / "flatness.json"
    if isinstance(BROKEN[name], str):
        path.write_text(BROKEN[name])
    else:
        write_json(path, read_json(path) | BROKEN[name])
    assert broken(study) == ["adam-tuned-seed1/flatness.json"]
    found = read(study)
    assert found.facts["runs"] == 17
    assert set(found.by_seed("tuned", "adam", TRACE)) == {0, 2}


def test_a_pipe_is_not_read_and_a_diverged_run_is_left_out(study):
    path = study.run("adam-tuned-seed0").path / "flatness.json"
    path.unlink()
    os.mkfifo(path)
    run = study.run("adam-tuned-seed1")
    run.write("result.json", run.result() | {"diverged": True})
    assert broken(study) == ["adam-tuned-seed0/flatness.json"]
    assert set(read(study).by_seed("tuned", "adam", TRACE)) == {2}


def test_an_eigenvalue_that_was_not_found_is_told(study):
    run = study.run("adam-tuned-seed0")
    run.write("flatness.json", record(3.0) | {"residuals": [0.2, 0.3]})
    assert read(study).facts["loose"] == ["adam-tuned-seed0"]
    assert any("adam-tuned-seed0" in note for note in content([read(study)]).tables[0].notes)


# ---- the page ----


def section(root):
    return build(root).read_text(encoding="utf-8").partition('<section id="flat-minima">')[2].partition("</section>")[0]


def test_one_section_for_all_studies_and_none_where_nothing_was_measured(study, tmp_path):
    shutil.copytree(study.path, tmp_path / "other")
    own = section(tmp_path)
    assert own.count("<table>") == 6
    assert (tmp_path / "figures" / "flat-minima-scatter.svg").stat().st_size > 1000
    for run in (run for root in (study.path, tmp_path / "other") for run in StudyDirectory(root).runs()):
        (run.path / "flatness.json").unlink()
    assert not section(tmp_path)


def test_all_records_broken_still_make_a_page(study):
    for run in study.runs():
        (run.path / "flatness.json").write_text("{}{<script>")
    own = section(study.path)
    assert own.count("<code>") == 18
    assert "<script" not in own


def test_numbers_that_are_none_are_no_numbers(study):
    """NaN and infinity, as JSON has them here."""
    for name, value in (("adam-tuned-seed0", "nan"), ("santa-tuned-seed0", "inf"), ("rmsprop-tuned-seed0", -1.0)):
        path = study.run(name).path / "flatness.json"
        write_json(path, read_json(path) | {"eigenvalues": [value, value], "sharpness": value})
    assert set(read(study).flatter("tuned", "ctld").values()) == {HOLDS}
    assert section(study.path)
