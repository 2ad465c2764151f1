"""Every example of examples/integrations runs and learns; within one process, since importing the frameworks takes longest."""

import re
import runpy
import sys
from pathlib import Path

import pytest
import torch

FOLDER = Path(__file__).parents[2] / "examples" / "integrations"
EXAMPLES = sorted(path.name for path in FOLDER.glob("*_digits.py"))


@pytest.mark.parametrize("name", EXAMPLES)
def test_runs_and_learns(name, capsys, monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.setattr(sys, "argv", [name])
    torch.manual_seed(0)
    runpy.run_path(str(FOLDER / name), run_name="__main__")
    found = re.search(r"accuracy ([\d.]+)", capsys.readouterr().out)
    assert found
    assert float(found[1]) > 0.93


def test_there_is_one_for_each():
    frameworks = {name.removesuffix("_digits.py") for name in EXAMPLES}
    assert frameworks == {"accelerate", "fabric", "keras", "lightning", "peft", "skorch", "sklearn", "transformers"}
