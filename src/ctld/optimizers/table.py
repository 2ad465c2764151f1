"""The one table of methods, and `create`, which builds from it."""

import difflib
import inspect
from dataclasses import dataclass, field
from typing import Any

from ctld.checks import refuse_options
from ctld.observing import TakesLoss
from ctld.optimizers import from_torch
from ctld.optimizers.anneal_sgd import AnnealSGD
from ctld.optimizers.baoab import BAOAB, UBU
from ctld.optimizers.csghmc import CSGHMC
from ctld.optimizers.ctld import CTLD
from ctld.optimizers.easgd import EAMSGD, EASGD
from ctld.optimizers.langevin import Langevin
from ctld.optimizers.psgld import PSGLD
from ctld.optimizers.santa import Santa
from ctld.optimizers.sghmc import SGHMC
from ctld.optimizers.sgld import SGLD
from ctld.optimizers.sgnht import SGNHT
from ctld.optimizers.simulated_annealing import SimulatedAnnealing


@dataclass(frozen=True)
class Method:
    """Row of the table of methods."""

    optimizer: type[TakesLoss]
    title: str
    paper: str
    defaults: dict[str, Any] = field(default_factory=dict)
    """Options that `create` gives if the caller does not, where they differ from the constructor's own."""
    needs: frozenset[str] = frozenset()
    """Options without a default that the caller has to give, besides `lr`."""
    needs_loss: bool = False
    """True if `step` has to be given the loss."""
    needs_process_group: bool = False
    """True if it is made for several processes; alone it works too."""
    samples: bool = False
    """True if there is a distribution that it samples; else it minimises."""
    noisy: bool = True
    """True if it draws random numbers of its own, and so takes a seed."""


_NUM_DATA = frozenset({"num_data"})

OPTIMIZERS: dict[str, Method] = {
    "ctld": Method(
        CTLD,
        "CTLD",
        "Ye, Zhu, Mantiuk 2017",
        needs=frozenset({"num_data", "exploration_steps"}),
        needs_loss=True,
        samples=True,
    ),
    "sgd": Method(from_torch.SGD, "SGD-M", "Polyak 1964; torch", {"momentum": 0.9}, noisy=False),
    "rmsprop": Method(from_torch.RMSprop, "RMSprop", "Tieleman, Hinton 2012; torch", noisy=False),
    "adam": Method(from_torch.Adam, "Adam", "Kingma, Ba 2015; torch", noisy=False),
    "adadelta": Method(from_torch.Adadelta, "AdaDelta", "Zeiler 2012; torch", noisy=False),
    "anneal_sgd": Method(AnnealSGD, "AnnealSGD", "Neelakantan et al. 2015"),
    "sgld": Method(SGLD, "SGLD", "Welling, Teh 2011", needs=_NUM_DATA, samples=True),
    "psgld": Method(PSGLD, "pSGLD", "Li et al. 2016", needs=_NUM_DATA, samples=True),
    "sghmc": Method(SGHMC, "SGHMC", "Chen, Fox, Guestrin 2014", needs=_NUM_DATA, samples=True),
    "sgnht": Method(SGNHT, "SGNHT", "Ding et al. 2014", needs=_NUM_DATA, samples=True),
    "langevin": Method(Langevin, "Langevin", "Eq. 1 of Ye, Zhu, Mantiuk 2017", needs=_NUM_DATA, samples=True),
    "baoab": Method(BAOAB, "BAOAB", "Leimkuhler, Matthews 2013", needs=_NUM_DATA, samples=True),
    "ubu": Method(UBU, "UBU", "Sanz-Serna, Zygalakis 2021", needs=_NUM_DATA, samples=True),
    "simulated_annealing": Method(SimulatedAnnealing, "simulated annealing", "Geman, Hwang 1986", needs=_NUM_DATA),
    "santa": Method(Santa, "Santa", "Chen et al. 2016", needs=frozenset({"num_data", "exploration_steps"})),
    "easgd": Method(EASGD, "EASGD", "Zhang, Choromanska, LeCun 2015", needs_process_group=True, noisy=False),
    "eamsgd": Method(EAMSGD, "EAMSGD", "Zhang, Choromanska, LeCun 2015", needs_process_group=True, noisy=False),
    "csghmc": Method(CSGHMC, "cSGHMC", "Zhang et al. 2020", needs=frozenset({"num_data", "num_steps"}), samples=True),
}
"""Name → method. Names are lower case with underscores."""

MOVED = {"tact_hmc": "TACTHMC", "resgld": "ReSGLD"}
"""Methods that were in the table, and their classes: they are in research/methods of the repository."""


SHARED = frozenset({"num_data", "seed"})
"""Options that `create` takes for every method, and leaves out where nothing depends on them."""


def create(name: str, params: Any, **options: Any) -> TakesLoss:
    """The optimizer of this name, with the table's defaults; every one takes `step(loss=loss)`, `num_data` and `seed`.

    >>> optimizer = ctld.create("sghmc", model.parameters(), lr=0.1, num_data=60_000)          # doctest: +SKIP
    """
    if name in MOVED:
        raise ValueError(
            f"optimizer must be one of {', '.join(OPTIMIZERS)}, got {name!r}, which is no longer in ctld. It is "
            f"{MOVED[name]} in research/methods/{name}.py of the repository"
        )
    if name not in OPTIMIZERS:
        near = difflib.get_close_matches(str(name).lower().replace("-", "_"), OPTIMIZERS, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else "."
        raise ValueError(f"there is no optimizer {name!r}{hint} Known: {', '.join(OPTIMIZERS)}")
    method = OPTIMIZERS[name]
    missing = sorted(({"lr"} | method.needs) - options.keys())
    if missing:
        raise TypeError(f"{name} needs {', '.join(missing)}; give {', '.join(f'{option}=' for option in missing)}")
    constructor: Any = method.optimizer  # each has options of its own
    return constructor(params, **(method.defaults | _fitting(name, method, options)))  # type: ignore[no-any-return]


def _fitting(name: str, method: Method, options: dict[str, Any]) -> dict[str, Any]:
    """The options that the method has; an error for one that it has not."""
    known = _options(method.optimizer)
    refuse_options(name, {option: options[option] for option in options.keys() - known - SHARED}, known)
    return {option: value for option, value in options.items() if option in known}


def _options(optimizer: type) -> set[str]:
    """Return the keywords of a constructor, including those that it passes on to its base."""
    found: set[str] = set()
    for cls in (cls for cls in optimizer.__mro__ if "__init__" in vars(cls)):
        parameters = inspect.signature(cls.__init__).parameters  # type: ignore[misc]
        found |= {name for name in parameters if not name.startswith("_")}
        if all(parameter.kind != parameter.VAR_KEYWORD for parameter in parameters.values()):
            break
    return found - {"self", "params", "options"}
