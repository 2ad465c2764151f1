"""One algorithm, one file; every one is a `torch.optim.Optimizer`. `OPTIMIZERS` is the table of them all.

`Sampler` and the names beside it are what a method of one's own is built from (CONTRIBUTING.md).
"""

from typing import Any

from ctld.mass import RMSPreconditioner
from ctld.observation import Observation
from ctld.optimizers.anneal_sgd import AnnealSGD
from ctld.optimizers.baoab import BAOAB, UBU
from ctld.optimizers.checkpoint import Part
from ctld.optimizers.csghmc import CSGHMC
from ctld.optimizers.ctld import CTLD
from ctld.optimizers.easgd import EAMSGD, EASGD
from ctld.optimizers.from_torch import SGD, Adadelta, Adam, RMSprop
from ctld.optimizers.langevin import Langevin
from ctld.optimizers.psgld import PSGLD
from ctld.optimizers.record import StepRecord
from ctld.optimizers.sampler import Sampler
from ctld.optimizers.santa import Santa
from ctld.optimizers.sghmc import SGHMC
from ctld.optimizers.sgld import SGLD
from ctld.optimizers.sgnht import SGNHT
from ctld.optimizers.simulated_annealing import SimulatedAnnealing
from ctld.optimizers.table import MOVED, OPTIMIZERS, Method, create
from ctld.ranks import Facts
from ctld.sharding import local
from ctld.stepping.active import Active
from ctld.stepping.engine import run
from ctld.stepping.foreach import Noise, momentum_dtype, wide_dtype, zero_momentum
from ctld.stepping.sweep import Plan, Sums, Sweep
from ctld.thermometers import GroupTemperatures

__all__ = [
    "BAOAB",
    "CSGHMC",
    "CTLD",
    "EAMSGD",
    "EASGD",
    "OPTIMIZERS",
    "PSGLD",
    "SGD",
    "SGHMC",
    "SGLD",
    "SGNHT",
    "UBU",
    "Active",
    "Adadelta",
    "Adam",
    "AnnealSGD",
    "Facts",
    "GroupTemperatures",
    "Langevin",
    "Method",
    "Noise",
    "Observation",
    "Part",
    "Plan",
    "RMSPreconditioner",
    "RMSprop",
    "Sampler",
    "Santa",
    "SimulatedAnnealing",
    "StepRecord",
    "Sums",
    "Sweep",
    "create",
    "local",
    "momentum_dtype",
    "run",
    "wide_dtype",
    "zero_momentum",
]


def __getattr__(name: str) -> Any:
    for method in MOVED:
        if name == MOVED[method]:
            raise AttributeError(
                f"{name} is no longer in ctld. It is in research/methods/{method}.py of the repository"
            )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
