"""One algorithm, one file; every one is a `torch.optim.Optimizer`. `OPTIMIZERS` is the table of them all."""

from ctld.mass import RMSPreconditioner
from ctld.optimizers.anneal_sgd import AnnealSGD
from ctld.optimizers.csghmc import CSGHMC
from ctld.optimizers.ctld import CTLD
from ctld.optimizers.easgd import EAMSGD, EASGD
from ctld.optimizers.from_torch import SGD, Adadelta, Adam, RMSprop
from ctld.optimizers.langevin import Langevin
from ctld.optimizers.psgld import PSGLD
from ctld.optimizers.record import StepRecord
from ctld.optimizers.resgld import ReSGLD
from ctld.optimizers.santa import Santa
from ctld.optimizers.sghmc import SGHMC
from ctld.optimizers.sgld import SGLD
from ctld.optimizers.sgnht import SGNHT
from ctld.optimizers.simulated_annealing import SimulatedAnnealing
from ctld.optimizers.table import OPTIMIZERS, Method, create
from ctld.optimizers.tact_hmc import TACTHMC
from ctld.thermometers import GroupTemperatures

__all__ = [
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
    "TACTHMC",
    "Adadelta",
    "Adam",
    "AnnealSGD",
    "GroupTemperatures",
    "Langevin",
    "Method",
    "RMSPreconditioner",
    "RMSprop",
    "ReSGLD",
    "Santa",
    "SimulatedAnnealing",
    "StepRecord",
    "create",
]
