"""The runner of studies: resumes, locks, refusals, status; and what research/ may import."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest
from filelock import FileLock

import cells
import ctld
from cells import Cell, Study

RESEARCH = Path(cells.__file__).parent


def three_parts(found, stop_after=3):
    for part in range(len(found.get("parts", ())), 3):
        if part == stop_after:
            raise KeyboardInterrupt
        found.setdefault("parts", []).append(part)
        yield f"part {part}"


def test_a_cell_goes_on_where_it_was_stopped(tmp_path):
    stopped = Cell("a/one", {"size": 3}, lambda found: three_parts(found, stop_after=2))
    with pytest.raises(KeyboardInterrupt):
        cells.run(tmp_path, [stopped], say=lambda line: None)
    assert cells.read(tmp_path, "a/one")["parts"] == [0, 1]
    assert not cells.complete(tmp_path, "a/one")

    lines = []
    whole = Cell("a/one", {"size": 3}, three_parts)
    cells.run(tmp_path, [whole], say=lines.append)
    assert cells.read(tmp_path, "a/one")["parts"] == [0, 1, 2]
    assert len(lines) == 1  # the first two parts are not computed again
    cells.run(tmp_path, [whole], say=lines.append)
    assert len(lines) == 1
    assert list(tmp_path.glob("a/.one.json.*")) == [tmp_path / "a/.one.json.lock"]


def test_every_part_is_on_disk_before_it_is_announced(tmp_path):
    seen = []
    cell = Cell("one", {}, three_parts)
    cells.run(tmp_path, [cell], say=lambda line: seen.append(len(cells.read(tmp_path, "one")["parts"])))
    assert seen == [1, 2, 3]


def test_a_file_of_other_facts_is_refused(tmp_path):
    cells.run(tmp_path, [Cell("one", {"size": 3}, three_parts)], say=lambda line: None)
    with pytest.raises(SystemExit, match=r"must be about .'size': 4., got .'size': 3."):
        cells.run(tmp_path, [Cell("one", {"size": 4}, three_parts)])


@pytest.mark.parametrize("content", ["[]", '{"parts": [0', ""])
def test_a_damaged_file_is_refused_by_name(tmp_path, content):
    (tmp_path / "one.json").write_text(content)
    with pytest.raises(SystemExit, match=r"one\.json must"):
        cells.run(tmp_path, [Cell("one", {}, three_parts)])
    assert (tmp_path / "one.json").read_text() == content


def test_a_cell_that_another_process_holds_is_left_to_it(tmp_path):
    held = FileLock(tmp_path / ".one.json.lock", is_singleton=False)
    both = [Cell("one", {}, three_parts), Cell("two", {}, three_parts)]
    with held:
        lines = []
        cells.run(tmp_path, both, say=lines.append)
        assert "one: another process is at it" in lines
        assert "one: running" in cells.status(tmp_path, both)
    assert not cells.complete(tmp_path, "one")
    assert cells.complete(tmp_path, "two")
    assert cells.status(tmp_path, both).startswith("one: not begun")


def test_a_cell_waits_for_what_it_needs(tmp_path):
    needy = Cell("needy", {}, three_parts, needs=["first"])
    cells.run(tmp_path, [needy], say=lambda line: None)
    assert not cells.complete(tmp_path, "needy")
    cells.run(tmp_path, [Cell("first", {}, three_parts), needy], say=lambda line: None)
    assert cells.complete(tmp_path, "needy")


def test_what_made_a_number_is_stored_and_numbers_that_json_lacks_are_words(tmp_path):
    def work(found):
        found["loss"] = float("inf")
        yield "done"

    cells.run(tmp_path, [Cell("one", {}, work)], say=lambda line: None)
    found = json.loads((tmp_path / "one.json").read_text())
    assert found["loss"] == "inf"
    (stamp,) = found["environments"]
    assert stamp["versions"]["ctld"] == ctld.__version__
    assert stamp["threads"] == 1


def study(directory):
    def pack(source, results):
        names = [name for name in ("a/one", "b/two") if cells.complete(source, name)]
        results.mkdir(exist_ok=True)
        (results / "parts.csv").write_text("\n".join(names))

    def findings(results):
        return {"findings": [{"id": "x", "problem": "p", "verdict": "tie", "numbers": "1"}], "tables": {}}

    plan = [Cell("a/one", {}, three_parts), Cell("b/two", {}, three_parts)]
    return Study("fruit", {"smoke": lambda _: plan}, pack, findings)


def test_the_command_line_computes_what_is_asked_for_and_says_what_is_missing(tmp_path, capsys):
    command = ["--scale", "smoke", "--dir", str(tmp_path)]
    cells.main(study(tmp_path), [*command, "--only", "a/*"])
    assert "1 of 2 cells are missing" in capsys.readouterr().out
    cells.main(study(tmp_path), [*command, "--status"])
    assert "b/two: not begun" in capsys.readouterr().out
    cells.main(study(tmp_path), command)
    assert "| p | tie | 1 |" in capsys.readouterr().out
    assert (tmp_path / "results/parts.csv").read_text() == "a/one\nb/two"
    with pytest.raises(SystemExit):
        cells.main(study(tmp_path), [*command, "--only", "c/*"])
    assert "--only must match one of a/one, b/two, got c/*" in capsys.readouterr().err


# ---- what research/ may import ----

DOORS = {
    "ctld_lab.data",
    "ctld_lab.records",
    "ctld_lab.report.chains",
    "ctld_lab.report.reading",
    "ctld_lab.statistics",
    "ctld_lab.streams",
    "ctld_lab.studies",
    "ctld_lab.tuning",
}
"""Parts of the laboratory that research/ may use: data, statistics, stored tables, and the declaration of a study."""


def names_imported(source):
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom):
            yield from ((node.module, alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names)


def strangers(source):
    """Imports of this project that are not public."""
    for module, name in names_imported(source):
        words = (module or "").split(".")
        if words[0] == "ctld":
            private = any(word.startswith("_") for word in [*words, name or ""])
            public = getattr(sys.modules.get(module) or __import__(module, fromlist=["x"]), "__all__", None)
            if private or (public is not None and name is not None and name not in public):
                yield f"{module}.{name}"
        elif words[0] == "ctld_lab" and not any(f"{module}.{name}.".startswith(f"{door}.") for door in DOORS):
            yield f"{module}.{name}"


@pytest.mark.parametrize("path", sorted(RESEARCH.rglob("*.py")), ids=lambda path: str(path.relative_to(RESEARCH)))
def test_research_uses_the_public_interface_alone(path):
    assert list(strangers(path.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize(
    "source",
    ["from ctld_lab.jobs import environment", "from ctld import _x", "from ctld.tempering import nothing_public"],
)
def test_that_test_finds_what_is_not_public(source):
    assert list(strangers(source))


def test_the_package_does_not_contain_research():
    command = [sys.executable, "-c", "import importlib.util as u; print([u.find_spec(n) for n in ('cells', 'render')])"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd="/")
    assert done.stdout.strip() == "[None, None]"
