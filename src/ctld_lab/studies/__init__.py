"""One short file per figure or table of the paper: what is varied, what is tuned, what is fixed."""

import difflib
import importlib
from typing import Any

from ctld_lab.studies.study import SCALES, Request, Run, Study

__all__ = ["SCALES", "Request", "Run", "Study", "describe", "get", "names"]

# Imported when asked for: they know the methods, hence torch, which takes seconds.
_MODULES = {
    "sda": "ctld_lab.studies.sda",
    "charrnn": "ctld_lab.studies.charrnn",
    "sensitivity": "ctld_lab.studies.sensitivity",
    "timing": "ctld_lab.studies.timing",
    "double-well": "ctld_lab.studies.double_well",
    "ensemble": "ctld_lab.studies.ensemble",
    "tempering": "ctld_lab.studies.tempering",
    "digits": "ctld_lab.studies.digits",
}


def names() -> dict[str, str]:
    """Name → what it rebuilds, in the order of the paper; without importing anything."""
    return {
        "sda": "Figure 2: stacked denoising autoencoder on MNIST",
        "charrnn": "Figure 3: character-level LSTM on Wikipedia",
        "sensitivity": "Figure 4: CTLD's own constants, on War and Peace",
        "timing": "Table 3: time of an epoch, beside SGD-M",
        "double-well": "Theorem 2, and what the paper's sampler samples",
        "ensemble": "Cycles, averaged: does the tempering deserve the credit?",
        "tempering": "Temperings compared where the answer is known",
        "digits": "The default beside SGD with momentum, on 5,000 digits",
    }


def get(name: str) -> Study:
    if name not in _MODULES:
        near = difflib.get_close_matches(name, _MODULES, n=1, cutoff=0.5)
        hint = f"; did you mean {near[0]}?" if near else "."
        raise ValueError(f"there is no study {name!r}{hint} Known: {', '.join(_MODULES)}")
    study: Study = importlib.import_module(_MODULES[name]).STUDY
    return study


def describe(study: Study, request: Request, command: str) -> dict[str, Any]:
    """What study.json holds."""
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
