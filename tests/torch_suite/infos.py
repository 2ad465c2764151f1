"""An `OptimizerInfo` for every method of ours: what torch's own suite of optimizers, `TestOptimRenewed`, starts from.

The suite itself, test/test_optim.py, is no part of torch's wheel; test_torch_suite.py asks the same in words of our own, with
the inputs, schedulers and errors that the wheel does have.
"""

import torch
from torch.testing._internal.common_optimizers import OptimizerInfo, OptimizerInput

from ctld import OPTIMIZERS

NEEDED = {"num_data": 1e6, "exploration_steps": 10, "num_steps": 40}
"""So many data that the noise is small beside the gradients: the loss has to fall in 20 steps."""
LR = {"santa": 1e-5, "psgld": 1e-3, "rmsprop": 1e-3}


def options(name):
    """The least that a method has to be given, with a seed, so that two of them take the same path."""
    method = OPTIMIZERS[name]
    given = {"lr": LR.get(name, 1e-2)} | {option: NEEDED[option] for option in method.needs}
    if method.noisy:
        given["seed"] = 1
    if name == "ctld":
        given["temperature"] = 1.0
    if name == "simulated_annealing":
        given["temperature"] = 1e-3
    return given


def inputs(name):
    """As `optim_inputs_func` of torch's infos: the options that the suite tries."""

    def function(device, dtype=None):
        plain = options(name)
        momentum = {"momentum": 0.5} if "momentum" in OPTIMIZERS[name].optimizer.__init__.__code__.co_varnames else {}
        return [
            OptimizerInput(params=None, kwargs=plain, desc="the least"),
            OptimizerInput(params=None, kwargs=plain | {"weight_decay": 0.1}, desc="weight decay"),
            OptimizerInput(params=None, kwargs=plain | momentum | {"maximize": True}, desc="maximize"),
            OptimizerInput(
                params=None, kwargs=plain | {"lr": torch.tensor(plain["lr"], dtype=torch.float64)}, desc="tensor lr"
            ),
        ]

    return function


INFOS = {
    name: OptimizerInfo(
        method.optimizer,
        optim_inputs_func=inputs(name),
        supported_impls=(),  # one implementation, which the step chooses by itself
        supports_complex=False,
        supports_sparse=False,
    )
    for name, method in OPTIMIZERS.items()
    if method.optimizer.__module__ != "ctld.optimizers.from_torch"
}
