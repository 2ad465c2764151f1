"""What a sampler needs that reads the loss in every step: the potential at θ, over all ranks, before anything moves."""

from collections.abc import Sequence

import torch

from ctld.observation import Observation, observe
from ctld.observing import Closure, Loss
from ctld.optimizers.base import TemperedSampler
from ctld.stepping import engine
from ctld.stepping.active import Active
from ctld.stepping.foreach import square_norm


class LossSampler(TemperedSampler):
    """A method with a constant temperature that is driven by the loss; a subclass says how in `_move_at`."""

    def _move_at(self, active: Active, potential: float) -> None:
        """Moves the parameters by one step; `potential` is U/N at the present ones."""
        raise AssertionError(f"{type(self).__name__} says how it moves in _move_at")

    @torch.no_grad()
    def _step(self, closure: Closure | Loss | None, loss: Loss | None) -> Loss | None:
        meets = self.ranks.meets()
        try:
            result = self._evaluate(closure, loss, needed=True)
            losses = self._taken()
            self._check_groups()
            active = self._active()
            if not losses:
                # Checkpointing tools (DCP) step once at lr = 0, without a loss, to have the state allocated.
                if all(float(group["lr"]) == 0 for group in self.param_groups):
                    return result
                raise ValueError(
                    f"{self._method} needs the loss, which moves the temperature; call step(loss=loss), step(closure), or "
                    "observe(loss) before step()"
                )
        except Exception as error:
            if meets:
                self._agree(meets, error)
            elif self.ranks.size > 1:
                self._see([0.0], None, error)  # the others are about to ask, and would wait in vain
            raise
        self._agree(meets)
        potential = self._see(losses, active)
        if any(float(group["lr"]) > 0 for group in self.param_groups):
            self._move_at(active, potential)
        self.clock.steps += 1
        return result

    def _see(self, losses: Sequence[Loss], active: Active | None, failure: Exception | None = None) -> float:
        """Returns U/N at the present parameters; raises, on every rank, the reason why a step is refused."""
        numbers = observe(
            list(losses),
            [] if active is None else [engine.finite(active)],
            prior=0.0 if active is None else self._prior_here(active),
            failed=failure is not None,
            ranks=self.ranks,
            device=self._device(),
            facts=self._facts,
        )
        about = self.ranks, self._device, self._facts, self._unfit_gradient
        scale = self.num_data / self.temperature if self.temperature else 1.0
        seen = Observation(numbers, *about, scale, True, failure)
        mean_loss = seen.accept()
        return (-mean_loss if self.defaults["maximize"] else mean_loss) + seen.prior

    def _prior_here(self, active: Active) -> float:
        """Returns this rank's share of λ‖θ‖²/2: the shares add up to the whole."""
        prior = 0.0
        for group, members in zip(self.param_groups, active.groups, strict=True):
            decay = float(group["weight_decay"])
            if decay and members.parameters:
                device = members.parameters[0].device
                prior += 0.5 * decay * float(square_norm(members.parameters, device, members.weights))
        return prior if self._sharded else prior / self.ranks.size

    def _check_group(self, group: dict[str, object]) -> None:
        super()._check_group(group)
        if group["maximize"] != self.defaults["maximize"]:
            raise ValueError(
                f"a group has maximize = {group['maximize']}, the optimizer {self.defaults['maximize']}: they share one "
                "potential; give maximize to the optimizer"
            )

    def _needs_loss(self) -> bool:
        return True
