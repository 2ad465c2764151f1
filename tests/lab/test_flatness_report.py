"""What the report says of flat minima: verdicts that follow the records, one section for all, and what broken records cost."""

import itertools
import os
import shutil

import numpy as np
import pytest
import sample_records as sample
from scipy import stats

from ctld_lab.records import read_json, write_json
from ctld_lab.report import build
from ctld_lab.report.flatness import (
    EIGENVALUE,
    FAILS,
    GAP,
    HOLDS,
    OPEN,
    SHARPNESS,
    TEST,
    TRACE,
    UNKNOWN,
    content,
    read_flatness,
    summary,
)
from ctld_lab.report.plots import render
from ctld_lab.report.reading import read_study
from ctld_lab.statistics import association

pytestmark = pytest.mark.usefixtures("undrawn")
SETTINGS = {"examples": None, "iterations": 25, "sizes": [0.03]}
WHAT = "nats per character of 4,000 characters of the training text"


def record(eigenvalue, *, trace=None, sharpness=None, rise=None):
    """As `ctld flatness` writes it; all measures the same, unless said otherwise."""
    return {
        "format": 1, "settings": SETTINGS, "sha256": "0" * 64, "data": {}, "examples": 4000, "what": WHAT, "metric": "nats",
        "parameters": 100, "loss": 2.0, "gradient_norm": 0.1, "eigenvalues": [eigenvalue, 0.5 * eigenvalue],
        "residuals": [1e-9, 1e-6], "trace": {"mean": eigenvalue if trace is None else trace, "standard_error": 0.1},
        "sharpness": eigenvalue if sharpness is None else sharpness,
        "rises": [{"size": 0.03, "mean": eigenvalue if rise is None else rise, "standard_error": 0.01}],
        "seconds": 1.0, "threads": 1, "torch": "2.13.0",
    }  # fmt: skip


def noise(run, scale=0.01):
    """Its own for each run, always the same."""
    return scale * np.random.default_rng([*run.name.encode()]).standard_normal()


def test_loss(run):
    return run.result()["test"]["nats"]


test_loss.__test__ = False


@pytest.fixture
def study(tmp_path):
    return sample.write_charrnn(tmp_path / "charrnn", variants=("tuned",))


def measure(study, value, **more):
    """Every run gets a record with `value(run)`."""
    for run in study.runs():
        run.write("flatness.json", record(float(value(run)), **{key: float(of(run)) for key, of in more.items()}))


def read(study):
    return read_flatness(read_study(study), "charrnn")


def by_seed(part, method, measure):
    own = part.frames["seeds"].query("method == @method and measure == @measure")
    return dict(zip(own["seed"], own["value"], strict=True))


def by_method(levels, otherwise=3.0):
    return lambda run: levels.get(run.config()["method"], otherwise) + noise(run)


# ---- verdicts ----


@pytest.mark.parametrize(
    ("level", "verdict", "mark"), [(2.0, HOLDS, "flatter"), (4.0, FAILS, "sharper"), (3.0, OPEN, "")]
)
def test_flatter_than_sgd_follows_the_records(study, level, verdict, mark):
    measure(study, by_method({"ctld": level}))
    part = read(study)
    assert set(part.flatter("tuned", "ctld").values()) == {verdict}
    (table,) = [table for table in content([part]).tables if table.name.endswith("differences")]
    assert {cell.mark for row in table.rows if row[0].text == "CTLD" for cell in row[2:]} == {mark}


def test_each_measure_has_its_own_verdict(study):
    measure(study, by_method({"ctld": 2.0}), trace=by_method({"ctld": 4.0}), sharpness=by_method({}))
    part = read(study)
    expected = {EIGENVALUE: HOLDS, TRACE: FAILS, SHARPNESS: OPEN, "rise at 0.03": HOLDS}
    assert part.flatter("tuned", "ctld") == expected
    assert "of 4 readings, 2 agree, 1 says the opposite and 1 decides nothing" in summary([part])[0]


def test_the_difference_is_paired_by_seed(study):
    """Seeds differ a hundred times more than methods do."""
    measure(study, lambda run: 10.0 * run.config()["seed"] + by_method({"ctld": 2.9})(run))
    assert read(study).flatter("tuned", "ctld")[TRACE] == HOLDS


def test_one_seed_tells_nothing(tmp_path):
    study = sample.write_charrnn(tmp_path / "charrnn", seeds=1, variants=("tuned",))
    measure(study, by_method({"ctld": 2.0}))
    assert set(read(study).flatter("tuned", "ctld").values()) == {UNKNOWN}


def test_without_sgd_or_without_ctld_nothing_is_claimed(study):
    measure(study, by_method({"ctld": 2.0}))
    for run in study.runs():
        if run.config()["method"] == "sgd":
            (run.path / "flatness.json").unlink()
    assert set(read(study).flatter("tuned", "ctld").values()) == {UNKNOWN}
    for run in study.runs():
        if run.config()["method"] == "ctld":
            (run.path / "flatness.json").unlink()
    assert "CTLD ends in flatter minima" not in summary([read(study)])[0]


@pytest.mark.parametrize(("sign", "verdict"), [(1, HOLDS), (-1, FAILS)])
def test_whether_flat_is_good_follows_the_records(study, sign, verdict):
    measure(study, lambda run: 10 + sign * test_loss(run))
    part = read(study)
    known = part.frames["correlations"].query("measure == @TRACE and quality == @TEST")
    assert known["rho"].tolist() == [pytest.approx(sign)]
    assert (known["runs"].tolist(), known["methods"].tolist()) == ([18], [6])
    assert set(part.goes_with("tuned", TEST).values()) == {verdict}


def test_chance_decides_nothing(study):
    measure(study, lambda run: 3 + noise(run))
    assert set(read(study).goes_with("tuned", TEST).values()) == {OPEN}


def test_three_methods_are_too_few(study):
    for run in study.runs():
        if run.config()["method"] in ("sgd", "ctld", "adam"):
            run.write("flatness.json", record(test_loss(run)))
    assert set(read(study).goes_with("tuned", TEST).values()) == {UNKNOWN}


def test_a_run_that_judged_several_models_is_taken_by_its_last(study):
    measure(study, by_method({}))
    run = study.run("ctld-tuned-seed0")
    result = run.result()
    result["test"] |= {"last_nll": 7.0}
    run.write("result.json", result)
    part = read(study)
    assert by_seed(part, "ctld", TEST)[0] == 7.0
    assert by_seed(part, "ctld", GAP)[0] == 5.0
    assert by_seed(part, "ctld", TEST)[1] == test_loss(study.run("ctld-tuned-seed1"))


def configure(study, chosen, **changes):
    for run in study.runs():
        config = run.config()
        if config["method"] == chosen:
            write_json(run.path / "config.json", config | changes)


def test_a_constant_temperature_is_not_counted_as_tempering(study):
    """Where a study calls CTLD otherwise, all that are made with it are asked; not its controls."""
    measure(study, by_method({"adam": 2.0, "santa": 4.0, "rmsprop": 4.0}))
    options = {"lr": 0.1, "temperature": 0.01}
    configure(study, "adam", algorithm="ctld", optimizer=options | {"tempering": {"kind": "driven"}})
    configure(study, "santa", algorithm="ctld", optimizer=options | {"tempering": {"kind": "constant", "ratio": 2.1}})
    configure(study, "rmsprop", algorithm="ctld", optimizer=options | {"temperature": 0})
    configure(study, "ctld", method="other", algorithm="sgd")
    text = summary([read(study)])
    assert "CTLD ends in flatter minima than SGD-M: of 4 readings, 4 agree." in text[0]
    assert "weight decay" not in text[0]


def test_another_weight_decay_is_told_beside_the_count(study):
    measure(study, by_method({"ctld": 2.0}))
    configure(study, "ctld", optimizer={"lr": 0.1, "weight_decay": 1e-3})
    assert "4 agree. In Character-level LSTM SGD-M has another weight decay than CTLD" in summary([read(study)])[0]


@pytest.mark.parametrize("other", ["what", "network", "nothing"])
def test_different_networks_are_not_correlated_together(tmp_path, other):
    study = sample.write_charrnn(tmp_path / "charrnn")
    measure(study, by_method({"ctld": 2.0}))
    for run in study.runs():
        config = run.config()
        if config["variant"] == "paper":
            if other == "what":
                run.write("flatness.json", record(3.0) | {"what": "mean cross-entropy of 1,000 training images"})
            if other == "network":
                write_json(run.path / "config.json", config | {"workload": {"name": "char_lstm", "hidden": 9}})
    (table,) = [table for table in content([read(study)]).tables if table.name.endswith("correlations")]
    expected = {"tuned", "paper"} | ({"all together"} if other == "nothing" else set())
    assert {row[1].text for row in table.rows} == expected


def test_the_last_of_several_models_is_said_to_be_that(study):
    measure(study, by_method({}))
    assert not any("the last one alone" in note for note in content([read(study)]).tables[0].notes)
    run = study.run("ctld-tuned-seed0")
    run.write("result.json", run.result() | {"members": 6})
    assert any("the last one alone" in note for note in content([read(study)]).tables[0].notes)


# ---- rank correlation ----


def test_the_correlation_is_spearmans_and_its_chance_that_of_exchanged_methods():
    generator = np.random.default_rng(3)
    one = np.round(generator.standard_normal((5, 3)), 1)  # with ties
    other = one + generator.standard_normal((5, 3))
    found = association([(dict(enumerate(a)), dict(enumerate(b))) for a, b in zip(one, other, strict=True)])
    expected = stats.spearmanr(one.ravel(), other.ravel()).statistic
    assert found.rho == pytest.approx(expected, rel=1e-12)
    orders = [
        stats.spearmanr(one.ravel(), other[list(order)].ravel()).statistic for order in itertools.permutations(range(5))
    ]
    assert found.probability == np.mean([abs(rho) >= abs(expected) - 1e-12 for rho in orders])
    assert (found.methods, found.runs) == (5, 15)


def test_many_methods_are_shuffled_always_alike():
    generator = np.random.default_rng(4)
    pairs = [({0: x, 1: x + 1}, {0: x, 1: x + 1.1}) for x in generator.standard_normal(12)]
    found = association(pairs)
    assert found == association(pairs)
    assert 0 < found.probability < 1e-3


def test_alike_seeds_are_not_independent():
    """Three methods in a row are one order of six, however many seeds there are."""
    pairs = [({seed: place + 0.01 * seed for seed in range(20)},) * 2 for place in (1.0, 2.0, 3.0)]
    assert association(pairs).probability >= 1 / 6


@pytest.mark.parametrize(
    "pairs",
    [[], [({0: 1.0}, {0: 2.0})], [({0: 1.0}, {0: 2.0}), ({1: 1.0}, {1: 2.0})], [({0: 1.0}, {0: 2.0}), ({0: 1.0}, {0: 3.0})],
     [({0: float("nan")}, {0: 2.0}), ({0: 1.0}, {0: 3.0})]],
)  # fmt: skip
def test_where_nothing_can_be_correlated(pairs):
    assert association(pairs) is None


# ---- the page ----


def page(root):
    return build(root).read_text(encoding="utf-8")


def section(text):
    return text.partition('<section id="flat-minima">')[2].partition("</section>")[0]


def test_no_section_where_nothing_was_measured(study):
    assert "flat-minima" not in page(study.path)


def test_one_section_for_all_studies(study, tmp_path):
    measure(study, by_method({"ctld": 2.0}))
    shutil.copytree(study.path, tmp_path / "other")
    text = page(tmp_path)
    assert text.count('<section id="flat-minima">') == 1
    assert '<a href="#flat-minima">Flat minima</a>' in text
    assert "36 runs measured" in text
    own = section(text)
    assert "of 8 readings, 8 agree" in own
    assert "ctld flatness charrnn" in own
    for table in ("values", "differences", "correlations"):
        for label in ("charrnn", "other"):
            assert (tmp_path / "tables" / f"flat-minima-{label}-{table}.csv").stat().st_size > 100
    assert (tmp_path / "figures" / "flat-minima-scatter.png").stat().st_size > 1000
    values = (tmp_path / "tables" / "flat-minima-charrnn-differences.csv").read_text().splitlines()
    line = next(line for line in values if line.startswith("ctld,tuned,trace"))
    assert float(line.split(",")[3]) == pytest.approx(-1.0, abs=0.05)
    assert page(tmp_path) == text  # the same records, the same bytes


BROKEN = {
    "not json": "{",
    "a list": "[1]",
    "eigenvalues missing": {"eigenvalues": None},
    "no eigenvalue": {"eigenvalues": []},
    "words": {"trace": {"mean": "<script>alert(1)</script>"}},
    "a number too many": {"rises": 3},
    "settings": {"settings": [1]},
    "deep": "[" * 60 + "]" * 60,
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_record_is_told_and_costs_itself_alone(study, name):
    measure(study, by_method({"ctld": 2.0}))
    path = study.run("adam-tuned-seed1").path / "flatness.json"
    if isinstance(BROKEN[name], str):
        path.write_text(BROKEN[name])
    else:
        write_json(path, read_json(path) | BROKEN[name])
    part = read_flatness(read_study(study))
    assert [problem[0] for problem in part.problems] == ["adam-tuned-seed1"]
    assert part.runs == 17
    if name in ("words", "deep"):
        own = section(page(study.path))
        assert "<code>adam-tuned-seed1</code>" in own
        assert "<script" not in own
        assert "4 agree" in own


def test_all_records_broken_still_make_a_page(study):
    measure(study, by_method({}))
    for run in study.runs():
        (run.path / "flatness.json").write_text("{}{")
    own = section(page(study.path))
    assert own.count("<code>") == 18


def test_numbers_that_are_none_are_no_numbers(study):
    """NaN and infinity, as JSON has them here."""
    measure(study, by_method({"ctld": 2.0}))
    for name, value in (("adam-tuned-seed0", "nan"), ("santa-tuned-seed0", "inf"), ("rmsprop-tuned-seed0", -1.0)):
        path = study.run(name).path / "flatness.json"
        write_json(path, read_json(path) | {"eigenvalues": [value, value], "sharpness": value})
    found = content([read(study)])
    assert "of 4 readings, 4 agree" in found.summary[0]
    assert all(all(render(plot)) for plot in found.plots)


def test_a_pipe_is_not_read(study):
    measure(study, by_method({}))
    path = study.run("adam-tuned-seed0").path / "flatness.json"
    path.unlink()
    os.mkfifo(path)
    assert [name for name, _ in read_flatness(read_study(study)).problems] == ["adam-tuned-seed0"]


def test_other_settings_are_not_mixed_in(study):
    measure(study, by_method({}))
    run = study.run("adam-tuned-seed0")
    run.write("flatness.json", record(3.0) | {"settings": SETTINGS | {"examples": 10}})
    part = read_flatness(read_study(study))
    assert part.runs == 17
    assert part.problems == [
        ("adam-tuned-seed0", "was measured with other settings than most; measure all alike, with --again")
    ]


def test_diverged_runs_are_left_out(study):
    measure(study, by_method({}))
    run = study.run("adam-tuned-seed0")
    run.write("result.json", run.result() | {"diverged": True})
    assert read_flatness(read_study(study)).runs == 17


def test_an_eigenvalue_that_was_not_found_is_told(study):
    measure(study, by_method({}))
    run = study.run("adam-tuned-seed0")
    run.write("flatness.json", record(3.0) | {"residuals": [0.2, 0.3]})
    notes = content([read(study)]).tables[0].notes
    assert "The largest eigenvalue is not found to 1 % in adam-tuned-seed0." in notes
