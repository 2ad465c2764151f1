"""A study at smoke scale, as a user runs it."""

import contextlib
import io
from dataclasses import dataclass
from pathlib import Path

import pytest

from ctld_lab import cli, studies, timing
from ctld_lab.records import StudyDirectory

ROOT = Path(__file__).parents[2]
# Less than the smoke scale has, where a part shows the same: the other methods of `ensemble` are those of other studies, and
# what several seeds are for, the report's tests have in made-up records.
LESS = {
    "sda": ("--seeds", "1"),
    "charrnn": ("--seeds", "1"),
    "sensitivity": ("--seeds", "1"),
    "research/ensemble.py": (
        "--seeds",
        "1",
        "--methods",
        "cycles_paper,cycles_calibrated,cycles_constant,santa,csghmc,swa,deep",
    ),
}


@dataclass(frozen=True)
class Ran:
    study: StudyDirectory
    words: tuple[str, ...]
    """The command, to give it again."""
    out: str


def call(*words):
    """The command in this process, which is eight times torch's import less than processes of its own."""
    said = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        patch.delenv("CTLD_DATA", raising=False)
        patch.setenv(studies.OWN, "")  # so that it is put back to nothing
        patch.delenv(studies.OWN)
        patch.setenv("COLUMNS", "100")
        patch.setattr(timing, "nanoseconds_waited", lambda: 0)  # one attempt, however busy the machine is
        with pytest.raises(SystemExit) as leaving:
            cli.main([str(word) for word in words])
    return leaving.value.code, said.getvalue()


def run(name: str, directory: Path) -> Ran:
    study = str(ROOT / name) if name.endswith(".py") else name
    words = ("run", study, "--scale", "smoke", "--dir", str(directory), "--engine", "local", "--threads", "1")
    words += LESS.get(name, ())
    code, out = call(*words)
    assert code == 0, out
    return Ran(StudyDirectory(directory), words, out)
