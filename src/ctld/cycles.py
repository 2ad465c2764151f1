"""A learning rate that goes with the cycles of `CTLD(..., cycle_steps=...)`: held while it explores, then lowered to zero."""

import math

from torch.optim.lr_scheduler import LRScheduler

from ctld.optimizers import CTLD


class CycleLR(LRScheduler):
    """Hold lr during exploration; in fine-tuning lower it along half a cosine, to zero by the end of each cycle.

    The optimizer's own steps count, not the calls of the scheduler: a step that was refused does not put them out of step.

    >>> optimizer = CTLD(..., exploration_steps=600, cycle_steps=1000)             # doctest: +SKIP
    >>> scheduler = CycleLR(optimizer)                                             # doctest: +SKIP
    >>> optimizer.step(loss=loss); scheduler.step()                                # doctest: +SKIP
    """

    optimizer: CTLD

    def __init__(self, optimizer: CTLD, last_epoch: int = -1) -> None:
        if getattr(optimizer, "cycle_steps", None) is None:
            raise ValueError(f"{type(optimizer).__name__} has no cycles; give CTLD(..., cycle_steps=...)")
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:  # type: ignore[override]
        return [self._factor() * float(base) for base in self.base_lrs]

    def _factor(self) -> float:
        assert self.optimizer.cycle_steps is not None
        explored = self.optimizer.exploration_steps
        return cycle_factor(self.optimizer.cycle_step, cycle_steps=self.optimizer.cycle_steps, hold_steps=explored)


def cycle_factor(step: int, *, cycle_steps: int, hold_steps: int = 0) -> float:
    """Return the factor on lr at a step, counted from 0: 1 for `hold_steps` of every cycle, then half a cosine to zero.

    One cycle of the whole training is a plain cosine.
    """
    done = step % cycle_steps - hold_steps
    return 1.0 if done < 0 else 0.5 * (1.0 + math.cos(math.pi * done / (cycle_steps - hold_steps)))
