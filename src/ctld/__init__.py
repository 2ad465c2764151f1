"""Langevin dynamics with continuous tempering for training deep neural networks, on PyTorch.

`CTLD` takes the place of `torch.optim.SGD`: it explores by sampling at a temperature that moves by itself, then
fine-tunes by SGD with momentum. `OPTIMIZERS` lists it with every method that it is compared with, and `create` builds
any of them by name. `tempering` holds the temperature's dynamics, `noise` the counter-based Gaussian noise, `schedules`
the schedules, `diagnostics` what turns recorded arrays into numbers.
"""

from ctld import diagnostics, noise, schedules, tempering
from ctld.checks import NonFiniteError
from ctld.optimizers import (
    CSGHMC,
    CTLD,
    EAMSGD,
    EASGD,
    OPTIMIZERS,
    PSGLD,
    SGHMC,
    SGLD,
    SGNHT,
    AnnealSGD,
    Langevin,
    Santa,
    SimulatedAnnealing,
    StepRecord,
    create,
)
from ctld.tempering import ConfiningWell, Metadynamics, TemperatureScaling, Tempering

__version__ = "0.1.0"

__all__ = [
    "CSGHMC",
    "CTLD",
    "EAMSGD",
    "EASGD",
    "OPTIMIZERS",
    "PSGLD",
    "SGHMC",
    "SGLD",
    "SGNHT",
    "AnnealSGD",
    "ConfiningWell",
    "Langevin",
    "Metadynamics",
    "NonFiniteError",
    "Santa",
    "SimulatedAnnealing",
    "StepRecord",
    "TemperatureScaling",
    "Tempering",
    "__version__",
    "create",
    "diagnostics",
    "noise",
    "schedules",
    "tempering",
]
