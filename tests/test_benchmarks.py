"""The benchmarks: each runs, at tiny sizes, and README.md has the numbers of the stored results."""

import json
import random
import re
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # benchmarks is a folder of scripts, not installed

from benchmarks import (  # noqa: E402
    chains,
    choices,
    document,
    end_to_end,
    loop,
    memory,
    noise,
    paper_iterations,
    ranks,
    steps,
    stored,
    timing,
)

from ctld.stepping import native  # noqa: E402
from ctld_lab import workloads  # noqa: E402
from ctld_lab.streams import stream_seed  # noqa: E402

RESULTS = sorted(path.stem for path in stored.FOLDER.glob("*.json"))
README = document.README.read_text(encoding="utf-8")


@pytest.fixture(autouse=True)
def threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


class Fixed(timing.Contender):
    """Takes the seconds that it is told to take."""

    def __init__(self, seconds, **options):
        super().__init__(**options)
        self.planned, self.runs = seconds, []

    def run(self, steps):
        self.runs.append(steps)
        return self.planned


# ---- timing ----


def test_everyone_takes_turns_and_is_divided_by_the_reference():
    reference, slow, rare = Fixed(0.001), Fixed(0.003), Fixed(0.002, every=3)
    assert timing.interleave([reference, slow, rare], rounds=7, block_seconds=0.006) == 7
    assert list(slow.seconds) == list(range(7))
    assert list(rare.seconds) == [0, 3, 6]
    assert reference.runs[-1] == 6
    assert slow.runs[-1] == 2
    found = timing.summary(rare, reference)
    assert found["rounds"] == 3
    assert found["relative"] == {"lower": 2.0, "median": 2.0, "upper": 2.0}


def test_a_budget_ends_it():
    assert timing.interleave([Fixed(1e-3)], budget=0.0) == timing.FEWEST_ROUNDS
    with pytest.raises(ValueError, match="rounds or a budget"):
        timing.interleave([Fixed(1e-3)])


def test_disturbed_rounds_do_not_count_if_there_are_enough_others():
    reference, other = Fixed(1.0), Fixed(1.0)
    for number in range(8):
        disturbed = number >= 5
        reference.seconds[number], reference.waiting[number] = (9.0, 0.5) if disturbed else (1.0, 0.0)
        other.seconds[number], other.waiting[number] = 2.0, 0.0
    assert timing.summary(other, reference)["interval"] == {"low": 2.0, "median": 2.0, "high": 2.0}
    reference.waiting[0] = 0.5
    assert timing.summary(other, reference)["rounds"] == 8


def test_the_interval_of_the_median_covers_it_as_often_as_it_says():
    """2,000 samples of 37: a standard error of 0.5 %, and the law of order statistics says 95.3 %."""
    source = random.Random(0)
    covered = 0
    for _ in range(2000):
        interval = timing.median_interval([source.expovariate(1.0) for _ in range(37)])
        covered += interval["low"] <= 0.693147 <= interval["high"]
    assert 0.935 < covered / 2000 < 0.97
    assert timing.median_interval([3.0, 1.0, 2.0]) == {"low": 1.0, "median": 2.0, "high": 3.0}


def test_verdicts():
    interval = {"low": 0.9, "median": 1.0, "high": 1.1}
    assert [timing.verdict(interval, target) for target in (0.8, 1.0, 1.1)] == ["not met", "undecided", "met"]


# ---- each benchmark ----


def test_steps():
    torch.set_num_threads(1)
    made = steps.measure("tiny", (8, 6, 4, 3), rounds=2, steps=2)
    names = [row["name"] for row in made["rows"]]
    assert names[0] == choices.FUSED_SGD.name
    for choice, base, _ in steps.TARGETS:
        row = next(row for row in made["rows"] if row["name"] == choice.name)
        assert row["to"][base.name]["median"] > 0
    assert {"sghmc", "santa", "csghmc"} <= set(names)
    assert made["tensors"] == 6
    assert all(row["relative"]["median"] > 0 for row in made["rows"])
    assert {row["name"] for row in made["rows"] if "gigabytes_per_second" in row} == set(steps.STREAMED)
    assert set(made["peers"]) == {"posteriors", "torch_sgld"}


def test_sizes_are_those_of_the_targets():
    counts = [sum(p.numel() for p in steps.given(widths)) for widths in list(steps.SIZES.values())[:3]]
    assert counts == pytest.approx([10_000, 250_000, 1_600_000], rel=0.1)
    inputs, first, second, outputs = steps.SIZES["25M"]
    assert inputs * first + first * second + second * outputs == pytest.approx(25e6, rel=0.1)
    assert all(len(targets) == len(steps.SIZES) for _, _, targets in steps.TARGETS)


def test_calibrated_steps_are_timed_beyond_their_warm_up():
    parameter = torch.nn.Parameter(torch.randn(97))
    optimizer = choices.CALIBRATED.build([parameter])
    for _ in range(steps.SETTLING):
        parameter.grad = torch.randn(97)
        optimizer.step(loss=float(parameter.grad.square().mean()))
    assert not optimizer.tempering.warming_up
    assert optimizer.tempering.alpha != 0


def test_small_steps():
    torch.set_num_threads(1)
    made = steps.measure_small("97", steps.SMALL["97"], rounds=2, steps=2)
    assert made["parameters"] == 97
    assert [row["name"] for row in made["rows"]] == [choice.name for choice in steps.SMALL_CHOICES]
    assert all(row["microseconds"]["median"] > 0 for row in made["rows"])
    lines = "\n".join(steps._small_steps([made]))
    assert "97 parameters" in lines


def test_targets_are_judged_by_what_was_measured():
    interval = {"low": 1.0, "median": 1.1, "high": 1.15}
    rows = [
        {"name": choice.name, "to": {}} for choice in {choice.name: choice for choice, _, _ in steps.TARGETS}.values()
    ]
    for row in rows:
        row["to"] = {base.name: interval for choice, base, _ in steps.TARGETS if choice.name == row["name"]}
    sizes = [{"size": size, "rows": rows} for size in steps.SIZES]
    text = "\n".join(steps._against_targets(sizes))
    assert "1.100 [1.000, 1.150] ≤ 1.2: met" in text
    assert "1.100 [1.000, 1.150] ≤ 1.1: undecided" in text
    assert steps._against_targets([{"size": "10k", "rows": [{"name": "psgld"}, {"name": "santa"}]}]) == []


@pytest.mark.parametrize("name", end_to_end.NETWORKS)
def test_end_to_end(name):
    torch.set_num_threads(1)
    build = end_to_end.NETWORKS[name]
    made = end_to_end.measure(name, lambda: build(batch=2), rounds=1, steps=1)
    judged = [row["name"] for row in made["rows"] if "verdict" in row]
    assert judged == list(end_to_end.JUDGED)
    assert {"rmsprop", "adam", "adadelta", "sgld"} < {row["name"] for row in made["rows"]}


def test_the_noise_is_not_flagged_and_its_twins_are(monkeypatch):
    torch.set_num_threads(1)
    monkeypatch.setattr(noise, "CHUNK", 1 << 18)
    samples = noise.examine(2)
    kinds = ["gaussian", "three_point", "words"]
    assert [name for name, found in samples.items() if not found["flagged"]] == kinds
    assert len(samples) == 2 * len(kinds)
    assert samples["gaussian"]["samples"] == 2 * noise.CHUNK


def test_noise_that_repeats_itself_is_flagged():
    """A second twin, right in its distribution: every other number is that of a fixed step, as if the step were not used."""
    torch.set_num_threads(1)
    make = noise.numbers_of("gaussian")

    def stuck(seed, step, stream, count):
        made = make(seed, step, stream, count)
        made[::2] = make(seed, 0, stream, count)[::2]
        return made

    found = noise.examine_numbers("gaussian", stuck, 2)
    assert found["flagged"]
    assert found["p"]["next step"] < 1e-20


def test_p_values_of_known_statistics():
    tests = noise.Tests()
    tests.normal("two", 1.959964)
    tests.chi_square("one", 3.841459, 1)
    tests.chi_square("many", 65535.0, 65535)
    tests.poisson("few", 3, 3.0)
    assert tests.p["two"] == pytest.approx(0.05, rel=1e-5)
    assert tests.p["one"] == pytest.approx(0.05, rel=1e-5)
    assert tests.p["many"] == pytest.approx(0.5, abs=0.01)
    assert tests.p["few"] == 1.0


def test_time_of_numbers_leaves_the_kernels_as_they_were():
    torch.set_num_threads(1)
    level = native.load().level if native.load() else None
    names = [row["name"] for row in noise.time_numbers(rounds=1, steps=1)]
    assert names[0] == "torch.randn"
    assert (native.load().level if native.load() else None) == level


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux")
def test_memory():
    found = memory.weigh_apart(choices.FINE_TUNING.name, (500, 2000, 100))
    assert found["parameters"] == 500 * 2000 + 2000 + 2000 * 100 + 100
    assert found["state"] == pytest.approx(4 * found["parameters"], abs=10_000)
    assert found["held"] == pytest.approx(4 * found["parameters"], rel=0.1)


def test_bytes_per_parameter_and_the_constant():
    few, many = (
        {"parameters": n, "state": 4 * n, "held": 4 * n + 10**6, "during_step": extra * n, "while_made": 0}
        for n, extra in ((1000, 1), (2000, 1))
    )
    row = memory._line(choices.GAUSSIAN.name, few, many)
    assert row["held"] == {"bytes_per_parameter": 4.0, "constant_megabytes": 1.0}
    assert row["during_step"] == {"bytes_per_parameter": 1.0, "constant_megabytes": 0.0}
    assert row["verdict"] == "not met"


@pytest.mark.filterwarnings("ignore:exploring at T")  # without a prior; nothing is sampled
@pytest.mark.parametrize("method", loop.METHODS)
@pytest.mark.parametrize("study", loop.STUDIES)
def test_the_loops_train_alike(study, method, tmp_path):
    config = loop.configuration(study, method)
    training = loop.Training(loop.RunDirectory(tmp_path), config, loop.Control())
    training.begin_stage()
    recorded = loop.Recorded(training)
    workload = workloads.build(config)
    bare = loop.Bare(workload, training.build_optimizer(workload.begin(0)))
    for contender in (recorded, bare):
        torch.manual_seed(stream_seed(0, "dropout"))
        contender.run(3)
    training.close()
    pairs = zip(training.parameters, bare.optimizer.param_groups[0]["params"], strict=True)
    assert all(torch.equal(mine, theirs) for mine, theirs in pairs)


@pytest.mark.filterwarnings("ignore:exploring at T")
def test_parts_of_the_loop(tmp_path):
    training = loop.Training(loop.RunDirectory(tmp_path), loop.configuration("sda", "ctld"), loop.Control())
    parts = loop.parts(training, 0.01)
    training.close()
    assert 0 < parts["added"]["median"] < parts["step"]["median"]
    assert (tmp_path / "checkpoint.safetensors").exists()
    assert (tmp_path / "progress.json").exists()
    # A step of 1 ms to which the loop adds 10 µs, a checkpoint of 0.1 s in 20 s, a word of 1 ms in a second.
    known = {"step": 1e-3, "added": 1e-5, "save": 0.1, "word": 1e-3}
    middle = {name: {"low": value, "median": value, "high": value} for name, value in known.items()}
    assert loop.share(middle)["median"] == pytest.approx(1.0 + 0.01 + 0.005 + 0.001)
    wide = middle | {"step": {"low": 5e-4, "median": 1e-3, "high": 2e-3}}
    assert loop.share(wide) == pytest.approx({"low": 1.011, "median": 1.016, "high": 1.026})


@pytest.mark.parametrize("name", chains.NETWORKS)
def test_chains(name):
    cell = chains.measure(name, 2, 1, rounds=2, steps=1)
    assert cell["interval"]["median"] > 0
    assert 0 < cell["steps_microseconds"]["median"] < cell["microseconds"]["median"]
    result = {"commit": None, "command": "", "effort": 1, "machine": stored.machine() | {"load_after": 0}}
    assert any(line.startswith(f"| {name}; 1 thread |") for line in chains.tables(result | {"cells": [cell]}))


def test_ranks(monkeypatch):
    monkeypatch.setattr(ranks, "STEPS", 1)
    result = ranks.run(effort=0.02, command="")
    result["machine"]["load_after"] = 0
    assert [row["method"] for row in result["rows"]] == [*ranks.METHODS] * 4
    assert all(0 < row["step"]["median"] < row["microseconds"]["median"] for row in result["rows"])
    assert any(line.startswith("| MLP 1.6M, batch 128; FSDP2; CTLD") for line in ranks.tables(result))


def test_chains_together_are_those_one_by_one():
    build, shape = chains.NETWORKS["MLP 2-32-32-10, batch 64"]
    sides = [kind(build, shape, 2) for kind in (chains.Together, chains.OneByOne)]
    for side in sides:
        side.run(3)
    for together, alone in zip(*(side.models for side in sides), strict=True):
        for mine, theirs in zip(together.parameters(), alone.parameters(), strict=True):
            torch.testing.assert_close(mine, theirs)


# ---- what is stored ----


def test_the_document_is_the_stored_results():
    """After a new run that was not by `python -m benchmarks`: `python -m benchmarks --document`."""
    assert document.rendered(README) == README


@pytest.mark.parametrize("name", RESULTS)
def test_a_stored_result_says_where_it_is_from_and_nothing_of_the_machine_but_its_kind(name):
    text = (stored.FOLDER / f"{name}.json").read_text(encoding="utf-8")
    result = json.loads(text)
    assert result["command"].startswith("python ")
    assert not re.search(r"/(home|root|tmp|work|usr)/", text)
    if name != "methods":
        assert set(result["machine"]) == {*stored.machine(), "load_after"}
        assert re.fullmatch(r"[0-9a-f]{40}\+?", result["commit"] or "0" * 40)


def test_rows_have_as_many_cells_as_their_header():
    header = None
    for line in README.splitlines():
        cells = line.count("|") if line.startswith("|") else None
        assert cells in (None, header) or header is None, line
        header = cells if header is None or cells is None else header


def test_links_lead_somewhere():
    for target in re.findall(r"\]\((?!https?:)([^)#]*)(?:#[^)]*)?\)", README):
        assert (document.README.parent / target).exists(), target


def test_every_benchmark_is_in_the_document():
    named = set(re.findall(r"\]\((\w+)\.py\)", README))
    assert {*document.TABLES, "methods", "timing"} <= named


# ---- iterations at the paper's size ----


def test_iterations_are_timed_part_by_part(tmp_path):
    given = ["--scale", "smoke", "--blocks", "1", "--steps", "2", "--output", str(tmp_path / "iterations.json")]
    record = paper_iterations.main(given)
    assert json.loads((tmp_path / "iterations.json").read_text()) == record
    stages = [(row["study"], row["method"], row["stage"]) for row in record["rows"]]
    layers = [("sda", method, stage) for method in paper_iterations.METHODS for stage in (1, 2, 3, 4)]
    assert stages == layers + [("charrnn", method, 1) for method in paper_iterations.METHODS]
    for row in record["rows"]:
        parts = row["milliseconds"]
        assert parts["all"] == pytest.approx(sum(parts[part] for part in paper_iterations.PARTS), abs=0.002)
        assert row["hours"] == pytest.approx(parts["all"] * row["steps"] / 3.6e6, abs=0.001)
