"""One algorithm, one file; every one is a `torch.optim.Optimizer`."""

from ctld.optimizers.ctld import CTLD, StepRecord

__all__ = ["CTLD", "StepRecord"]
