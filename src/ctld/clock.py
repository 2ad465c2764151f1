"""Clock of a run: the step, and its phase. Exploration comes first, then fine-tuning; once, or in cycles."""

from typing import Any

from ctld.checks import integer

LAST_STEP = 2**32 - 1
"""The noise has no numbers for later ones."""


class Clock:
    """Counts steps.

    Parameters
    ----------
    exploration_steps : int
        L_s: how many steps explore, in each cycle if there are cycles.
    cycle_steps : int, optional
        Exploration and fine-tuning repeat every so many steps. Left out: once.
    """

    def __init__(self, exploration_steps: int = 0, cycle_steps: int | None = None) -> None:
        self.exploration_steps = integer("exploration_steps", exploration_steps, at_least=0)
        self.cycle_steps = None if cycle_steps is None else integer("cycle_steps", cycle_steps, at_least=1)
        if self.cycle_steps is not None and self.cycle_steps <= self.exploration_steps:
            raise ValueError(
                f"cycle_steps = {self.cycle_steps} leaves no fine-tuning after exploration_steps = {self.exploration_steps}: "
                "give more"
            )
        self.steps = 0

    @property
    def cycle_step(self) -> int:
        """Number of steps done in the present cycle; without cycles, in the whole run."""
        return self.steps if self.cycle_steps is None else self.steps % self.cycle_steps

    @property
    def exploring(self) -> bool:
        """True if the next step is one of exploration."""
        length = self.cycle_steps  # not by `cycle_step`: every step asks, and a property more is time
        return (self.steps if length is None else self.steps % length) < self.exploration_steps

    @property
    def explored(self) -> bool:
        """True if the last step was one of exploration."""
        last, length = self.steps - 1, self.cycle_steps
        return last >= 0 and (last if length is None else last % length) < self.exploration_steps

    @property
    def cycle_begins(self) -> bool:
        """True if the next step is the first of a cycle, but not of the run."""
        return self.cycle_steps is not None and self.steps > 0 and self.steps % self.cycle_steps == 0

    def state_dict(self) -> dict[str, Any]:
        return {"step": self.steps}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        steps = integer("step", state_dict["step"], at_least=0)
        if steps > LAST_STEP:
            raise ValueError(f"step = {steps} is out of range; give an int from 0 to {LAST_STEP}")
        self.steps = steps
