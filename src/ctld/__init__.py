"""Langevin dynamics with continuous tempering for training deep neural networks, on PyTorch.

`Ensemble` trains in cycles, each of which explores with noise and then fine-tunes, and predicts by the models at their
ends. `CTLD` is the optimizer inside, the paper's method, and is called as `torch.optim.SGD` is: it explores by sampling at
a temperature that may move by itself, then fine-tunes by SGD with momentum. `OPTIMIZERS` lists it with every method that
it is compared with, and `create` builds any of them by name. `tempering` holds the temperature's dynamics, `noise` the
counter-based Gaussian noise, `schedules` the schedules, `chains` several runs side by side in one process, `ensembles` what
is kept along a run and predicts together, `diagnostics` what turns recorded arrays into numbers and measures how flat a
minimum is.
"""

from typing import Any

from ctld import chains, diagnostics, ensembles, noise, optimizers, sampling, schedules, tempering
from ctld.checks import DisagreementError, DriftError, NonFiniteError, TemperatureWarning
from ctld.cycles import CycleLR
from ctld.ensembles import Ensemble, SampleCollector, fit_ensemble, predict
from ctld.optimizers import (
    BAOAB,
    CSGHMC,
    CTLD,
    EAMSGD,
    EASGD,
    OPTIMIZERS,
    PSGLD,
    SGHMC,
    SGLD,
    SGNHT,
    UBU,
    AnnealSGD,
    GroupTemperatures,
    Langevin,
    RMSPreconditioner,
    Santa,
    SimulatedAnnealing,
    StepRecord,
    create,
)
from ctld.sampling import Draws, sample
from ctld.tempering import ConfiningWell, Metadynamics, SharedMetadynamics, TemperatureScaling, Tempering

__version__ = "0.3.0"

__all__ = [
    "BAOAB",
    "CSGHMC",
    "CTLD",
    "EAMSGD",
    "EASGD",
    "OPTIMIZERS",
    "PSGLD",
    "SGHMC",
    "SGLD",
    "SGNHT",
    "UBU",
    "AnnealSGD",
    "ConfiningWell",
    "CycleLR",
    "DisagreementError",
    "Draws",
    "DriftError",
    "Ensemble",
    "GroupTemperatures",
    "Langevin",
    "Metadynamics",
    "NonFiniteError",
    "RMSPreconditioner",
    "SampleCollector",
    "Santa",
    "SharedMetadynamics",
    "SimulatedAnnealing",
    "StepRecord",
    "TemperatureScaling",
    "TemperatureWarning",
    "Tempering",
    "__version__",
    "chains",
    "create",
    "diagnostics",
    "ensembles",
    "fit_ensemble",
    "noise",
    "predict",
    "sample",
    "sampling",
    "schedules",
    "tempering",
]


def __getattr__(name: str) -> Any:
    return getattr(optimizers, name)  # raises an error that says where a name has moved
