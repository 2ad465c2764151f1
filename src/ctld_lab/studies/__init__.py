"""One short file per figure or table of the paper: what is varied, what is tuned, what is fixed."""

import difflib
import importlib
import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

from ctld_lab.studies.study import SCALES, Request, Run, Study

__all__ = ["MOVED", "SCALES", "Request", "Run", "Study", "describe", "get", "load", "names"]

OWN = "CTLD_STUDY"
"""Where the processes of a command find the file of a study of the user's own."""

# Name → what it rebuilds, in the order of the paper; and its module, if that is not called the same. Imported when asked for:
# they know the methods, hence torch, which takes seconds.
_STUDIES = {
    "sda": "Figure 2: stacked denoising autoencoder on MNIST",
    "charrnn": "Figure 3: character-level LSTM on Wikipedia",
    "sensitivity": "Figure 4: CTLD's own constants, on War and Peace",
    "timing": "Table 3: time of an epoch, beside SGD-M",
    "double-well": "Theorem 2, and what the paper's sampler samples",
    "digits": "The default beside SGD with momentum, on 5,000 digits",
}
MOVED = {name: f"python research/{name}.py" for name in ("images", "peers", "posterior", "traps")}
MOVED |= {name: f"ctld run research/{name}.py" for name in ("ensemble", "tempering")}
"""Study that was here up to version 0.2 → the command that runs it now, in a clone of the repository."""


def names() -> dict[str, str]:
    """Name → what it rebuilds; without importing anything."""
    return dict(_STUDIES)


def get(name: str) -> Study:
    if name not in _STUDIES:
        near = difflib.get_close_matches(name, _STUDIES, n=1, cutoff=0.5)
        hint = f"; did you mean {near[0]}?" if near else "."
        raise ValueError(f"there is no study {name!r}{hint} Known: {', '.join(_STUDIES)}")
    study: Study = importlib.import_module(f"ctld_lab.studies.{name.replace('-', '_')}").STUDY
    return study


def load(path: Path) -> Study:
    """The study of a file of the user's own, whose workloads runs can name from now on, in the processes of this command too.

    It is the command that names the file, never a record: what a directory holds must not execute.
    """
    name = f"ctld_own_study_{path.stem}"
    if name not in sys.modules:
        found = importlib.util.spec_from_file_location(name, path)
        if found is None or found.loader is None:
            raise ValueError(f"{path} is no Python file")
        module = importlib.util.module_from_spec(found)
        sys.modules[name] = module
        try:
            found.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
    study = getattr(sys.modules[name], "STUDY", None)
    if not isinstance(study, Study):
        raise ValueError(f"{path} has no STUDY; let it end with STUDY = Study(...), as CONTRIBUTING.md shows")
    if study.name in names():
        raise ValueError(f"{path} calls its study {study.name!r}, which is taken; give it another name")
    from ctld_lab import workloads

    workloads.OWN.update(study.workloads)
    os.environ[OWN] = str(path.absolute())
    return study


def describe(study: Study, request: Request, command: str) -> dict[str, Any]:
    """Return the content of study.json."""
    from ctld import OPTIMIZERS

    return {
        "study": study.name,
        "scale": request.scale,
        "title": study.title,
        "figure": study.figure,
        "varied": study.varied,
        "tuned": study.tuned,
        "fixed": study.fixed,
        "methods": list(request.methods),
        "titles": {name: OPTIMIZERS[name].title for name in OPTIMIZERS} | dict(study.titles),
        "seeds": list(request.seeds),
        "data": request.data,
        "settings": dict(request.settings),
        "paper": dict(study.paper),
        "commands": [command],
    }
