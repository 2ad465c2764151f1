"""Sampling a posterior: `ctld.sample` runs several chains on a model, a loss and a loader, and says how far to trust them.

draws = ctld.sample(model, loss_fn, loader, weight_decay=1e-3, predict=test_inputs)
draws.r_hat, draws.ess, draws.thermometers          # do the chains agree, and are they as hot as they should be?
draws.predictions.mean(axis=(0, 1))                 # arrays of shape (chains, draws, ...)
"""

from ctld.sampling.draws import Counts, Draws
from ctld.sampling.driver import ConvergenceWarning, sample

__all__ = ["ConvergenceWarning", "Counts", "Draws", "sample"]
