"""cSGHMC: cyclical SGHMC (Zhang, Li, Zhang, Chen and Wilson, ICLR 2020).

In each of M cycles of ⌈K/M⌉ steps the learning rate falls as a cosine; the first part of a cycle explores by SGD with
momentum, the last one samples by SGHMC:

    lr_k = (lr/2)(cos(π mod(k − 1, ⌈K/M⌉)/⌈K/M⌉) + 1)
    v ← momentum·v − lr_k ∇ + [sampling] N(0, 2(1 − momentum) lr_k T/N),     θ ← θ + v

Target: exp(−U/T), one mode per cycle; the law holds as lr_k goes to zero.
"""

from typing import Any

from ctld.checks import real
from ctld.optimizers.sghmc import SGHMC
from ctld.schedules import cosine_cycles, cycle_position


class CSGHMC(SGHMC):
    """SGHMC in cycles; the other parameters are SGHMC's.

    Parameters
    ----------
    num_steps, num_cycles : int
        K and M: steps in all, and cycles.
    exploration_share : float
        Share of each cycle without noise.
    """

    def __init__(
        self,
        params: Any,
        lr: float,
        momentum: float = 0.9,
        *,
        num_steps: int,
        num_cycles: int = 4,
        exploration_share: float = 0.8,
        **options: Any,
    ) -> None:
        self.exploration_share = real("exploration_share", exploration_share, at_least=0)
        if self.exploration_share > 1:
            raise ValueError(f"exploration_share = {exploration_share} is out of range; give a share from 0 to 1")
        self._factor = cosine_cycles(num_steps, num_cycles)
        self._position = cycle_position(num_steps, num_cycles)
        self._options = {"num_steps": int(num_steps), "num_cycles": int(num_cycles)}
        super().__init__(params, lr, momentum, **options)

    @property
    def sampling(self) -> bool:
        """True if the next step injects noise: collect samples while it does."""
        return self._position(self.steps) >= self.exploration_share

    @property
    def is_draw(self) -> bool:
        return super().is_draw and self._position(self.steps - 1) >= self.exploration_share

    def _learning_rate(self, group: dict[str, Any]) -> float:
        return float(group["lr"]) * self._factor(self.steps)

    def _temperature_now(self) -> float:
        return self.temperature if self.sampling else 0.0

    def _settings(self) -> dict[str, Any]:
        return super()._settings() | self._options | {"exploration_share": self.exploration_share}
