"""pSGLD: SGLD with RMSprop's preconditioner (Li, Chen, Carlson and Carin, AAAI 2016).

Target: exp(−U/T), U = N·(mean loss + prior), in the limit of small steps and of a V that rests.

    V ← σ V + (1 − σ) ḡ²,     G = 1/(λ + √V)
    θ ← θ − (ε_t/2) G ∇U + sqrt(ε_t G T) z

In SGD's units lr = ε N/2; ḡ includes the prior's gradient, as in the authors' code. The term Γ = ∂G/∂θ is left out, as they do
in practice, so the law is wrong while V moves; `adapt_steps` freezes V. Then each element is SGLD with the learning rate lr·G.
"""

from typing import Any

from torch import Tensor

from ctld.checks import flag, integer, real
from ctld.optimizers.sgld import SGLD
from ctld.stepping.foreach import zero_momentum
from ctld.stepping.sweep import PsgldPlan


class PSGLD(SGLD):
    """SGLD with RMSprop's preconditioner; the other parameters are SGLD's.

    Parameters
    ----------
    smoothing, epsilon
        σ and λ of V and G.
    adapt : bool
        Of a group: whether V goes on adapting. The sampled law is exact, for small steps, only while it does not.
    adapt_steps : int, optional
        After so many steps V is frozen. The steps before are no draws then (`is_draw`). Left out: V adapts for ever.
    """

    def __init__(
        self,
        params: Any,
        lr: float,
        *,
        smoothing: float = 0.99,
        epsilon: float = 1e-5,
        adapt: bool = True,
        adapt_steps: int | None = None,
        **options: Any,
    ) -> None:
        self.adapt_steps = None if adapt_steps is None else integer("adapt_steps", adapt_steps, at_least=1)
        defaults = {"smoothing": smoothing, "epsilon": epsilon, "adapt": adapt}
        super().__init__(params, lr, _defaults=defaults, **options)

    def _plan(self, group: dict[str, Any]) -> PsgldPlan:
        lr, deviation = self._lr_and_deviation(group)
        options = {"decay": float(group["weight_decay"]), "ascend": group["maximize"], "adapt": self._adapts(group)}
        return PsgldPlan(lr, deviation, group["smoothing"], group["epsilon"], **options)

    def _adapts(self, group: dict[str, Any]) -> bool:
        adapts: bool = group["adapt"]
        return adapts and (self.adapt_steps is None or self.steps < self.adapt_steps)

    @property
    def is_draw(self) -> bool:
        return super().is_draw and (self.adapt_steps is None or self.steps > self.adapt_steps)

    def _settings(self) -> dict[str, Any]:
        return super()._settings() | ({} if self.adapt_steps is None else {"adapt_steps": self.adapt_steps})

    def _check_group(self, group: dict[str, Any]) -> None:
        super()._check_group(group)
        real("smoothing", group["smoothing"], at_least=0, below=1)
        real("epsilon", group["epsilon"], above=0)
        flag("adapt", group["adapt"])

    def _initialize(self, group: dict[str, Any], parameter: Tensor, index: int) -> None:
        zeros = zero_momentum(parameter)
        self.state[parameter] = {"square_average": zeros}
