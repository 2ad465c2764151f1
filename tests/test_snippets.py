"""Every snippet of README, pages and docstrings runs when it is copied into an empty file."""

import ast
import doctest
import importlib
import pkgutil
import re
import sys
import types
import warnings
from pathlib import Path

import pytest
import torch

import ctld

ROOT = Path(__file__).parents[1]
FOLDERS = ("docs", "research")
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md")),
    *(page for folder in FOLDERS for page in sorted((ROOT / folder).rglob("*.md")) if "_build" not in page.parts),
]
BLOCK = re.compile(r"^ *```python\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
EXTRAS = {"accelerate", "arviz", "keras", "lightning", "matplotlib", "peft", "sklearn", "skorch", "transformers"}


def snippets():
    for page in PAGES:
        for number, block in enumerate(BLOCK.findall(page.read_text(encoding="utf-8")), 1):
            yield pytest.param(page, block, id=f"{page.relative_to(ROOT)}-{number}")


def run(code, name):
    for module in EXTRAS & set(re.findall(r"^\s*(?:from|import) (\w+)", code, re.MULTILINE)):
        pytest.importorskip(module)
    made = types.ModuleType("__main__")  # classes look their module up
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        warnings.simplefilter("ignore", ctld.TemperatureWarning)  # a short run may earn one
        patch.setitem(sys.modules, "__main__", made)
        exec(compile(code, name, "exec"), made.__dict__)
    return made.__dict__


@pytest.mark.parametrize(("page", "code"), [*snippets()])
def test_a_snippet_runs_alone(page, code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run(code, str(page))


PRELUDE = """
import torch
from torch.nn.functional import cross_entropy
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.utils.data import DataLoader, TensorDataset
import ctld
torch.manual_seed(0)
train_set = TensorDataset(torch.randn(120, 4), torch.randint(3, (120,)))
loader, epochs, test_inputs = DataLoader(train_set, batch_size=20), 10, torch.randn(7, 4)
model = torch.nn.Linear(4, 3)
"""


@pytest.mark.parametrize(("side", "result"), [("-", "probabilities"), ("+", "prediction")])
def test_both_sides_of_the_readmes_diff_run(side, result):
    (diff,) = re.findall(r"```diff\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    lines = [line[1:] for line in diff.splitlines() if line[0] in (side, " ")]
    made = run(PRELUDE + "\n".join(lines), "README.md")[result]
    assert (made if isinstance(made, torch.Tensor) else made.probabilities).shape == (7, 3)


MODULES = sorted(
    found.name
    for found in pkgutil.walk_packages(ctld.__path__, "ctld.")
    if not found.name.startswith(("ctld.integrations", "ctld.stepping.triton", "ctld.stepping._kernels"))
)


@pytest.mark.parametrize("name", MODULES)
def test_examples_of_docstrings(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    failed, _ = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
    assert not failed


WORN = re.compile(
    r"^(Of|What|Whoever|Nobody|Those that|As it comes|That it|To have|With which|By which|In which|Whether)\b"
)


@pytest.mark.parametrize("path", sorted((ROOT / "src").rglob("*.py")), ids=lambda path: path.name)
def test_docstrings_open_with_a_verb_or_a_noun(path):

    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    nodes = [node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, documented)]
    assert [text for node in nodes if (text := ast.get_docstring(node)) and WORN.match(text)] == []
