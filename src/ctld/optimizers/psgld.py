"""pSGLD: SGLD with RMSprop's preconditioner (Li, Chen, Carlson and Carin, AAAI 2016).

Target: exp(−U/T), U = N·(mean loss + prior), in the limit of small steps and of a V that rests.

    V ← σ V + (1 − σ) ḡ²,     G = 1/(λ + √V)
    θ ← θ − (ε_t/2) G ∇U + sqrt(ε_t G T) z

In SGD's units lr = ε N/2; ḡ includes the prior's gradient, as in the authors' code. The term Γ = ∂G/∂θ is left out, as they do
in practice, so the law is wrong while V moves; `adapt=False` holds V. Then each element is SGLD with the learning rate lr·G.
"""

from typing import Any

import torch
from torch import Tensor

from ctld import dynamics
from ctld.checks import real
from ctld.movers import Movers
from ctld.optimizers.sgld import SGLD


class PSGLD(SGLD):
    """SGLD with RMSprop's preconditioner; the other parameters are SGLD's.

    Parameters
    ----------
    smoothing, epsilon
        σ and λ of V and G.
    adapt : bool
        Of a group: whether V goes on adapting. The sampled law is exact, for small steps, only while it does not.
    """

    def __init__(
        self,
        params: Any,
        lr: float,
        *,
        smoothing: float = 0.99,
        epsilon: float = 1e-5,
        adapt: bool = True,
        **options: Any,
    ) -> None:
        defaults = {"smoothing": smoothing, "epsilon": epsilon, "adapt": adapt}
        super().__init__(params, lr, _defaults=defaults, **options)

    def _precondition(self, group: dict[str, Any], movers: Movers) -> None:
        squares = [state["square_average"] for state in movers.states]
        if group["adapt"]:
            gradients = self._gradients(group, movers)
            torch._foreach_mul_(squares, group["smoothing"])
            torch._foreach_addcmul_(squares, gradients, gradients, 1.0 - group["smoothing"])
        scales = torch._foreach_sqrt(squares)
        torch._foreach_add_(scales, group["epsilon"])
        torch._foreach_reciprocal_(scales)
        movers.scale(list(scales))

    def _update(self, group: dict[str, Any], movers: Movers) -> None:
        super()._update(group, movers)
        self._known_movers.clear()  # they would keep the scales, as large as the parameters, until the next step

    def _check_group(self, group: dict[str, Any]) -> None:
        super()._check_group(group)
        real("smoothing", group["smoothing"], at_least=0, below=1)
        real("epsilon", group["epsilon"], above=0)

    def _initialize(self, group: dict[str, Any], parameter: Tensor, index: int) -> None:
        zeros = torch.zeros_like(parameter, dtype=dynamics.momentum_dtype(parameter), requires_grad=False)
        self.state[parameter] = {"square_average": zeros}
