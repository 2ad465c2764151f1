"""Langevin dynamics with continuous tempering for training deep neural networks, on PyTorch.

`CTLD` takes the place of `torch.optim.SGD`: it explores by sampling at a temperature that moves by itself, then
fine-tunes by SGD with momentum. `tempering` holds the temperature's dynamics, `noise` the counter-based Gaussian
noise, `diagnostics` what turns recorded arrays into numbers.
"""

from ctld import diagnostics, noise, tempering
from ctld.checks import NonFiniteError
from ctld.optimizers import CTLD, StepRecord
from ctld.tempering import ConfiningWell, Metadynamics, TemperatureScaling, Tempering

__version__ = "0.1.0"

__all__ = [
    "CTLD",
    "ConfiningWell",
    "Metadynamics",
    "NonFiniteError",
    "StepRecord",
    "TemperatureScaling",
    "Tempering",
    "__version__",
    "diagnostics",
    "noise",
    "tempering",
]
