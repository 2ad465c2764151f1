"""The page on sampling: its snippets run when copied one below the other."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "sampling.md"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ctld.sampling.ConvergenceWarning")
def test_the_snippets_run(capsys):
    names = {}
    for snippet in re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL):
        exec(compile(snippet, PAGE.name, "exec"), names)
    assert names["draws"].r_hat < 1.05
    assert abs(names["found"].value - 2.0) < 5.0 * names["found"].error + 0.1
    assert "<Draws: 4 chains" in capsys.readouterr().out
