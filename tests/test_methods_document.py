"""docs/methods.md: a row for every method, and the costs that the stored benchmark has."""

import importlib.util
import json
import re
from pathlib import Path

import pytest

import ctld

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs" / "methods.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", TEXT, re.MULTILINE | re.DOTALL))
RESULT = json.loads((ROOT / "benchmarks" / "results" / "methods.json").read_text(encoding="utf-8"))
TABLES = ["Update rules", "When to use it, and what is wrong with it"]


def rows(section):
    return [line for line in SECTIONS[section].splitlines() if line.startswith("| `")]


def names(section):
    """Of the first column, each once: a method has a line for each of its phases."""
    return list(dict.fromkeys(re.match(r"\| `(.*?)` \|", row)[1] for row in rows(section)))


@pytest.fixture(scope="module")
def benchmark():
    """benchmarks/methods.py, which is a script and not on the path."""
    specification = importlib.util.spec_from_file_location("benchmark_of_methods", ROOT / "benchmarks" / "methods.py")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


@pytest.mark.parametrize("section", TABLES)
def test_every_method_has_its_row(section):
    assert sorted(names(section)) == sorted(ctld.OPTIMIZERS)


def test_costs_are_those_of_the_stored_benchmark(benchmark):
    """After a new run: `python benchmarks/methods.py --document`."""
    assert rows("Cost") == benchmark.document_rows(RESULT)


def test_the_document_names_the_machine():
    assert RESULT["machine"]["cpu"] in SECTIONS["Cost"]


def test_the_stored_benchmark_has_both_phases_and_nothing_of_the_machine_but_its_kind():
    phases = {row["phase"] for row in RESULT["rows"] if row["method"] == "ctld"}
    assert phases == {"exploration", "fine-tuning"}
    assert set(RESULT["machine"]) == {
        "cpu",
        "cores",
        "torch_threads",
        "torch",
        "python",
        "load_before",
        "load_after",
        "undisturbed_blocks",
    }


def test_memory_is_that_of_the_state(benchmark):
    """Measured anew, which needs no clock: a method that keeps more than it did has to say so."""
    stored = {(row["method"], row["phase"]): row["state_bytes_per_parameter"] for row in RESULT["rows"]}
    contenders = benchmark.contenders()
    for contender in contenders:
        contender.run(1)
    measured = {(one.method, one.phase): round(one.state_bytes_per_parameter(), 3) for one in contenders}
    assert measured == stored
