"""The house: imports go one way, and importing the library stays light."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src"

LOOP = {"ctld_lab.control", "ctld_lab.records", "ctld_lab.streams"}
# Each part, and the parts of this project that it may import besides itself.
ARROWS = {
    "ctld.checks": set(),
    "ctld.sharding": set(),
    "ctld.schedules": {"ctld.checks"},
    "ctld.clock": {"ctld.checks"},
    "ctld.compensation": {"ctld.checks"},
    "ctld.diagnostics": {"ctld.checks", "ctld.sampling"},  # imported when the learning coefficient is asked for
    "ctld.chains": {"ctld.checks"},
    "ctld.observing": {"ctld.checks", "ctld.sharding"},
    "ctld.ranks": {"ctld.checks", "ctld.sharding"},
    # The library of kernels, and α's own numbers, know nothing of the rest of `stepping`.
    "ctld.stepping.native": {"ctld.stepping"},
    "ctld.stepping.alpha": {"ctld.stepping", "ctld.stepping.native"},
    "ctld.noise": {"ctld.stepping", "ctld.stepping.native"},
    "ctld.stepping": {
        *("ctld.compensation", "ctld.noise", "ctld.sharding", "ctld.stepping.alpha", "ctld.stepping.native"),
    },
    "ctld.observation": {"ctld.checks", "ctld.observing", "ctld.ranks", "ctld.stepping"},
    "ctld.mass": {"ctld.checks", "ctld.stepping"},
    "ctld.thermometers": {"ctld.checks", "ctld.diagnostics", "ctld.noise", "ctld.sharding", "ctld.stepping"},
    "ctld.tempering": {"ctld.checks", "ctld.stepping", "ctld.stepping.alpha", "ctld.stepping.native"},
    "ctld.optimizers": {
        f"ctld.{part}"
        for part in (
            *("checks", "clock", "compensation", "mass", "noise", "observation", "observing", "ranks"),
            *("schedules", "sharding", "stepping", "stepping.alpha", "tempering", "thermometers"),
        )
    },
    "ctld.cycles": {"ctld.optimizers"},
    "ctld.ensembles": {
        f"ctld.{part}" for part in ("checks", "cycles", "observing", "optimizers", "stepping", "tempering")
    },
    "ctld.sampling": {
        f"ctld.{part}"
        for part in ("chains", "checks", "diagnostics", "ensembles", "optimizers", "tempering", "thermometers")
    },
    "ctld.integrations": {"ctld", "ctld.checks", "ctld.ensembles", "ctld.observing", "ctld.optimizers"},
    "ctld": {
        "ctld.chains",
        "ctld.checks",
        "ctld.cycles",
        "ctld.ensembles",
        "ctld.noise",
        "ctld.sampling",
        "ctld.schedules",
        "ctld.diagnostics",
        "ctld.tempering",
        "ctld.optimizers",
    },
    # The laboratory: command → studies → training → workloads and records; the report reads records alone.
    "ctld_lab.files": set(),
    "ctld_lab.records": {"ctld_lab.files"},
    "ctld_lab.data": set(),
    "ctld_lab.streams": set(),
    "ctld_lab.stopwatch": set(),
    "ctld_lab.statistics": set(),
    "ctld_lab.control": {"ctld_lab.records"},
    "ctld_lab.checkpoints": {"ctld_lab.records"},
    "ctld_lab.tensorboard": {"ctld_lab.records"},
    "ctld_lab.report": {"ctld_lab.files", "ctld_lab.records", "ctld_lab.statistics"},
    "ctld_lab.heat": {"ctld"},
    "ctld_lab.methods": {"ctld", "ctld.cycles", "ctld_lab.streams"},
    "ctld_lab.workloads": {"ctld.ensembles", "ctld_lab.data", "ctld_lab.streams"},
    "ctld_lab.paper": {"ctld_lab.files", "ctld_lab.records", "ctld_lab.report"},
    "ctld_lab.tuning": {"ctld_lab.records", "ctld_lab.streams", "ctld_lab.report"},
    "ctld_lab.train": {"ctld", "ctld.ensembles", "ctld_lab.workloads", "ctld_lab.checkpoints"}
    | {f"ctld_lab.{part}" for part in ("heat", "methods")}
    | LOOP,
    "ctld_lab.timing": {"ctld", "ctld_lab.workloads", "ctld_lab.stopwatch"} | LOOP,
    "ctld_lab.sampling": {"ctld", "ctld.diagnostics", "ctld.optimizers"} | LOOP,
    "ctld_lab.check": {
        "ctld",
        "ctld.diagnostics",
        "ctld.stepping",
        "ctld.optimizers",
        "ctld_lab.sampling",
        "ctld_lab.streams",
    },
    "ctld_lab.flatness": {
        *("ctld", "ctld.diagnostics", "ctld_lab.checkpoints", "ctld_lab.records"),
        "ctld_lab.workloads",
    },
    "ctld_lab.jobs": {"ctld", "ctld_lab.control", "ctld_lab.records"},  # what it executes is named in a table
    "ctld_lab.studies": {"ctld", "ctld_lab.data", "ctld_lab.records", "ctld_lab.tuning", "ctld_lab.timing"}
    | {
        "ctld_lab.files",
        "ctld_lab.jobs",
        "ctld_lab.report",
        "ctld_lab.workloads",
    },
    "ctld_lab.executors": {f"ctld_lab.{part}" for part in ("control", "files", "jobs", "records")},
    "ctld_lab": {
        f"ctld_lab.{part}"
        for part in (
            *(
                "check",
                "checkpoints",
                "control",
                "data",
                "executors",
                "files",
                "flatness",
                "jobs",
                "paper",
                "records",
                "report",
                "sampling",
                "studies",
            ),
            "statistics",
            "tensorboard",
            "tuning",
        )
    },
}
LIGHT = {"torch", "numpy"}
# Imported by nobody but their users.
FRAMEWORKS = {"ctld.integrations": {"keras", "lightning", "sklearn", "transformers"}}


def part_of(module):
    """The longest name in ARROWS that `module` is or lies below."""
    found = [part for part in ARROWS if module == part or module.startswith(part + ".")]
    return max(found, key=len) if found else None


def imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: write the whole name"
            below = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name if part_of(name) not in (None, part_of(node.module)) else node.module for name in below)


FILES = sorted(SOURCE.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_arrows_point_one_way(path):
    module = ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")
    here = part_of(module)
    for name in imports(path):
        there = part_of(name)
        assert there is None or there == here or there in ARROWS[here], f"{module} imports {name}"
        if not here.startswith("ctld_lab"):
            outside = name.split(".")[0]
            allowed = LIGHT | FRAMEWORKS.get(here, set()) | sys.stdlib_module_names
            assert there or outside in allowed, f"{module} imports {name}"


def test_the_walk_would_see_a_wrong_arrow(tmp_path):
    wrong = tmp_path / "wrong.py"
    wrong.write_text("from ctld import optimizers\nimport ctld_lab.report\nfrom ctld.noise import normal\n")
    assert {part_of(name) for name in imports(wrong)} == {"ctld.optimizers", "ctld_lab.report", "ctld.noise"}


def test_import_is_light():
    """Neither the laboratory's libraries nor heavy parts of torch that torch itself does not load."""
    script = (
        "import sys, torch, torch.optim, torch.distributed\nbefore = set(sys.modules)\nimport ctld\n"
        "print(*sorted({name.split('.')[0] for name in set(sys.modules) - before}))"
    )
    output = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    added = {name for name in output.stdout.split() if name not in sys.stdlib_module_names}
    assert added <= {"ctld", "numpy"}


def test_no_two_test_files_have_one_name():
    """pytest would import the first in place of the second, though only when one process collects both."""
    names = [path.name for path in Path(__file__).parent.rglob("test_*.py")]
    assert len(names) == len(set(names))


LONG = 450


@pytest.mark.parametrize(
    "path", sorted((SOURCE / "ctld").rglob("*.py")), ids=lambda path: str(path.relative_to(SOURCE))
)
def test_a_file_that_is_long_says_why_and_minds_its_own_names(path):
    text = path.read_text()
    assert reason_given(text)
    assert list(private_names_of_others(ast.parse(text))) == []


def reason_given(text):
    """True if a file is short, or its first line says why it is long."""
    lines = text.splitlines()
    return len(lines) <= LONG or str(LONG) in lines[0]


def test_a_long_file_without_a_reason_would_be_seen():
    assert not reason_given('"""A concept."""\n' + "x = 1\n" * LONG)
    assert reason_given('"""A concept. Past 450 lines: one class."""\n' + "x = 1\n" * LONG)


def bases(files):
    """Class → names of its bases."""
    found = {}
    for path in files:
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef):
                found[node.name] = [ast.unparse(base).split(".")[-1] for base in node.bases]
    return found


def test_few_classes_lie_between_ctld_and_torchs_optimizer():
    """Each of them is a concept that several methods need."""
    found = bases((SOURCE / "ctld").rglob("*.py"))
    line, name = [], "CTLD"
    while name in found and found[name][0] != "Optimizer":
        name = found[name][0]
        line.append(name)
    assert found[name][0] == "Optimizer"
    assert line == ["Sampler", "Resumable", "TakesLoss"]
    assert sum("Sampler" in above for above in found.values()) > 5


OF_OTHERS = {"_replace", "_fields", "_fields_", "_make", "_asdict", "_local_tensor", "_getframe", "_BatchNorm"} | {
    "_non_persistent_buffers_set"
}
"""Names with an underscore that are public: those of named tuples, and the ones by which torch hands out what we need."""


def private_names_of_others(tree):
    """Imports of private names of this package, and private attributes of anything but self, cls, super() and torch."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("ctld"):
            yield from (alias.name for alias in node.names if alias.name.startswith("_"))
        if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
            owner = ast.unparse(node.value)
            mine = owner in ("self", "cls", "super()", "made", "twin", "collector") or owner.startswith("torch")
            if not mine and node.attr not in OF_OTHERS:
                yield f"{owner}.{node.attr}"


def test_a_private_name_of_another_would_be_seen():
    code = "from ctld.noise import _page\nother._x = 1\nself._y = 2\ntorch._foreach_mul_(a, 2)\nn._replace(a=1)"
    assert list(private_names_of_others(ast.parse(code))) == ["_page", "other._x"]
