"""Chains around a minimum w*, with one that rests there: the run of `learning_coefficient`."""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Callable, Iterable, Sequence, Sized
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from ctld.chains import NonFiniteChainsError
from ctld.diagnostics.errors import Estimate, estimate
from ctld.sampling.batches import Batches, seed_of
from ctld.sampling.chains_of import chains_of
from ctld.sampling.coefficient_found import LearningCoefficient
from ctld.sampling.learning_rate import top_curvature
from ctld.sampling.loss import batch_loss
from ctld.sampling.progress import Report
from ctld.sampling.run import PATIENCE, built_langevin

_log = logging.getLogger("ctld")

STEP, HEATED = 0.1, 0.04
"""lr·k at most, and the factor of (1 − μ)·T/M that bounds it where batches heat."""
LOOKS = (0.02, 0.1, 0.5, 1.0)
"""Shares of burn-in after which the curvature is looked at again: at a singular w* it is zero."""
NEARBY, HALVINGS = 2, 40
RETRIES = 6
WARM = 0.02
"""Excess of the temperature in burn-in, from the batches' noise, down to which lr is lowered."""
DRAWS = 1000
"""Number of means over stretches of each chain, by which R-hat and plots go."""
R_HAT_LIMIT, FAR, CERTAIN = 1.05, 0.05, 4.0


class _Rest(torch.optim.Optimizer):
    """The optimizer of the chain that rests at w*."""

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        super().__init__(parameters, {})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Do nothing."""


class Around:
    """Chains around w*."""

    def __init__(
        self,
        model: nn.Module,
        loss_fn: Callable[..., Tensor],
        loader: Iterable[Any],
        *,
        num_data: float,
        num_chains: int,
        num_steps: int,
        burn_in: float,
        localization: float,
        nbeta: float | None,
        lr: float | None,
        momentum: float,
        control: bool,
        names: Sequence[str] | None,
        compile: bool,
        seed: int,
    ) -> None:
        self.compile = compile
        if not isinstance(model, nn.Module):
            raise TypeError(
                f"model must be a torch.nn.Module, got {type(model).__name__}. Give the model at its minimum"
            )
        if num_data <= 1:
            raise ValueError(f"num_data must be above 1, got {num_data}. Give the number of examples")
        self.loader, self.loss, self.num_data, self.seed = loader, batch_loss(loss_fn), num_data, seed
        self.num_chains, self.num_steps, self.burned = num_chains, num_steps, int(burn_in * num_steps)
        self.nbeta = num_data / math.log(num_data) if nbeta is None else nbeta
        self.localization, self.lr, self.momentum, self.control = localization, lr, momentum, control
        self.automatic = lr is None
        self.temperature = num_data / self.nbeta
        self.spring = localization / self.nbeta
        """κ, in the units of weight decay."""
        self.top = 0.0
        self.rest = _trained(model, names)
        self.device = next(self.rest.parameters()).device
        Batches(loader, 1, seed=seed, device=self.device)  # refuses what is no loader before any work
        self.stars = [parameter.detach().clone() for parameter in self._moving(self.rest)]

    def _moving(self, model: nn.Module) -> list[Tensor]:
        return [parameter for parameter in model.parameters() if parameter.requires_grad]

    def carry_out(self, report: Report) -> LearningCoefficient:
        """Sample, with a lower lr again where chains are lost to a curvature that was not met at w*."""
        slope, few = self._slope(), self._few()
        if self.lr is None:
            around = (self.rest, *self._nearby(few))
            self.lr = self._rule(max(top_curvature(each, self.loss, few, prior=self.spring) for each in around), few)
            for _ in range(RETRIES):
                try:
                    return self._sampled(slope, few, report)
                except FloatingPointError as error:
                    _log.info("%s. Once more with a quarter of it", error)
                    self.lr *= 0.25
        return self._sampled(slope, few, report)

    def _sampled(self, slope: Sequence[Tensor], few: Sequence[Any], report: Report) -> LearningCoefficient:
        assert self.lr is not None
        torch.manual_seed(seed_of(self.seed, "model"))
        models = [copy.deepcopy(self.rest) for _ in range(self.num_chains + 1)]
        optimizers = [self._optimizer(model, chain) for chain, model in enumerate(models[:-1])]
        batches = Batches(self.loader, 1, seed=self.seed, device=self.device)
        chains = chains_of(
            models, [*optimizers, _Rest(self._moving(models[-1]))], self.loss, batches, compile=self.compile
        )
        looks = {max(1, int(share * self.burned)) for share in LOOKS} if self.automatic and self.burned else set()
        rises = np.empty((self.num_chains, self.num_steps - self.burned))
        in_a_row = 0
        for step in range(self.num_steps):
            losses = chains.backward(batches.next())
            if step >= self.burned:
                rises[:, step - self.burned] = (losses[:-1] - losses[-1]).cpu().double().numpy()
            self._correct(models, slope)
            try:
                chains.step()
                in_a_row = 0
            except NonFiniteChainsError as error:
                in_a_row += 1
                if in_a_row == PATIENCE:
                    raise FloatingPointError(
                        f"{PATIENCE} steps in a row were refused with lr = {self.lr:.3g}: the parameters are lost. Lower lr, "
                        "or raise localization"
                    ) from error
            if step + 1 in looks:
                self._look(models[:-1], optimizers, few)
            if step + 1 == self.burned:
                for optimizer in optimizers:
                    optimizer.thermometers.restart()
            if step % 20 == 0:
                report(step, f"loss {float(losses[-1]):.4g}")
        _log.info("lr = %.3g, nβ = %.4g, γ = %.3g", self.lr, self.nbeta, self.localization)
        return self._found(rises, optimizers, slope)

    def _optimizer(self, model: nn.Module, chain: int) -> Any:
        assert self.lr is not None
        return built_langevin(
            self._moving(model),
            self.lr,
            "baoab",
            momentum=self.momentum,
            num_data=self.num_data,
            weight_decay=self.spring,
            temperature=self.temperature,
            num_steps=self.num_steps,
            seed=seed_of(self.seed, "noise", chain),
        )

    def _look(self, models: Sequence[nn.Module], optimizers: Sequence[Any], few: Sequence[Any]) -> None:
        """Lower lr if the curvature at the chains, or the heat of what is left of the batches' noise, asks for it."""
        assert self.lr is not None
        self.top = max(top_curvature(model, self.loss, few, prior=self.spring) for model in models)
        lr = min(self.lr, self._rule(self.top, few))
        heat = _mean_temperature(optimizers)
        if heat is not None and heat.mean - 1.0 - 2.0 * heat.standard_error > WARM:
            lr = min(lr, self.lr * max(WARM / (heat.mean - 1.0), 0.1))
        self.lr = lr
        for optimizer in optimizers:
            optimizer.param_groups[0]["lr"] = lr
            optimizer.thermometers.restart()

    # ---- parts ----

    def _few(self) -> list[Any]:
        source = Batches(self.loader, 1, seed=seed_of(self.seed, "curvature"), device=self.device)
        return [source.next() for _ in range(min(4, len(self.loader)) if isinstance(self.loader, Sized) else 4)]

    def _slope(self) -> list[Tensor]:
        """Return the gradient of the mean loss over all data at w*, by one pass through the loader."""
        moving = self._moving(self.rest)
        total = [torch.zeros_like(parameter) for parameter in moving]
        weight = 0.0
        count = len(self.loader) if isinstance(self.loader, Sized) else 0
        source = Batches(self.loader, 1, seed=seed_of(self.seed, "slope"), device=self.device)
        number = 0
        while source.epoch == 0:
            batch = source.next()
            if source.epoch or (count and number == count):
                break
            number += 1
            rows = float(_rows(batch))
            with torch.enable_grad():
                found = torch.autograd.grad(self.loss(self.rest, batch), moving, materialize_grads=True)
            torch._foreach_add_(total, [rows * gradient for gradient in found])
            weight += rows
        return [part / weight for part in total]

    @torch.no_grad()
    def _nearby(self, few: Sequence[Any]) -> list[nn.Module]:
        """Return models beside w*, as far away as the chains will be: at a singular w* itself the curvature may be zero.

        In a random direction they lie where nβ times the rise of the loss, and the spring, are half a unit for each parameter.
        """
        generator = torch.Generator().manual_seed(seed_of(self.seed, "nearby"))
        found = []
        for _ in range(NEARBY):
            twin = copy.deepcopy(self.rest)
            moving = self._moving(twin)
            directions = [torch.randn(star.shape, generator=generator).to(star) for star in self.stars]
            count = sum(star.numel() for star in self.stars)
            width = 1.0 / math.sqrt(self.localization)
            for _ in range(HALVINGS):
                for parameter, star, direction in zip(moving, self.stars, directions, strict=True):
                    parameter.copy_(star + width * direction)
                rise = sum(float(self.loss(twin, batch)) - float(self.loss(self.rest, batch)) for batch in few) / len(
                    few
                )
                if self.nbeta * rise <= 0.5 * count:
                    break
                width *= 0.5
            found.append(twin)
        return found

    def _rule(self, top: float, few: Sequence[Any]) -> float:
        if not top > 0.0:
            raise ValueError(
                f"the curvature at w* and its spring must be positive, got {top:.3g}. Train to a minimum first"
            )
        step = STEP
        if not self.control:
            step = min(step, HEATED * (1.0 - self.momentum) * _rows(few[0]) * self.temperature / self.num_data)
        return step / top

    @torch.no_grad()
    def _correct(self, models: Sequence[nn.Module], slope: Sequence[Tensor]) -> None:
        """Make gradients those about w*: the optimizer adds κw, and here −κw* and the control variate."""
        resting = [parameter.grad for parameter in self._moving(models[-1])]
        shift = []
        for star, own, whole in zip(self.stars, resting, slope, strict=True):
            shift.append(whole - self.spring * star - own if self.control and own is not None else -self.spring * star)
        for model in models[:-1]:
            gradients, moved = [], []
            for parameter, change in zip(self._moving(model), shift, strict=True):
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                gradients.append(parameter.grad)
                moved.append(change)
            torch._foreach_add_(gradients, moved)

    # ---- the answer ----

    def _found(
        self, rises: NDArray[np.float64], optimizers: Sequence[Any], slope: Sequence[Tensor]
    ) -> LearningCoefficient:
        assert self.lr is not None
        series = self.nbeta * rises
        finite = np.isfinite(series)
        if not finite.all():
            raise FloatingPointError("the loss was not finite after burn-in. Lower lr, or raise localization")
        value = float(series.mean())
        # Chains see the same batches: what these do to all of them shows in the mean over chains alone.
        error = max(estimate(series).standard_error, estimate(series.mean(axis=0)).standard_error)
        stretch = max(1, series.shape[1] // DRAWS)
        kept = series.shape[1] // stretch * stretch
        draws = series[:, :kept].reshape(len(series), -1, stretch).mean(axis=2)
        heat = _mean_temperature(optimizers)
        found = LearningCoefficient(
            value, error, heat, draws, self.num_data, self.nbeta, self.localization, self.lr, ()
        )
        return replace(found, remarks=tuple(self._remarks(found, slope)))

    def _remarks(self, found: LearningCoefficient, slope: Sequence[Tensor]) -> list[str]:
        said = []
        if found.r_hat > R_HAT_LIMIT:
            said.append(
                f"R-hat of the loss is {found.r_hat:.2f}: the chains have not mixed, and the learning coefficient is "
                "uncertain. Raise num_steps, or localization"
            )
        heat = found.kinetic_temperature
        if heat is not None and heat.mean - 1.0 > FAR + CERTAIN * heat.standard_error:
            knob = "Lower lr" if self.control else "Give control_variate=True, or lower lr"
            said.append(
                f"the chains have a temperature of {heat.mean:.2f} times the right one, and the learning coefficient is too "
                f"high. {knob}, take larger batches, or raise localization"
            )
        fall = 0.5 * self.nbeta * sum(float(part.square().sum()) for part in slope) / max(self.top, self.spring)
        if fall > 0.05 * abs(found.value) + 2.0 * found.error or found.value < -2.0 * found.error:
            said.append(
                f"the parameters are no minimum: along the gradient nβ·loss falls by {fall:.2g} at least, and the learning "
                "coefficient is too low. Train on until the gradient vanishes"
            )
        return said


def _trained(model: nn.Module, names: Sequence[str] | None) -> nn.Module:
    """Return a copy in which only the named parameters are trained."""
    twin = copy.deepcopy(model)
    if names is not None:
        known = dict(twin.named_parameters())
        odd = [name for name in names if name not in known]
        if odd or not names:
            raise ValueError(f"parameters must be names of {', '.join(known)}, got {odd or names}. Give some of them")
        for name, parameter in known.items():
            parameter.requires_grad_(name in names)
    return twin


def _rows(batch: Any) -> int:
    return next((len(leaf) for leaf in tree_leaves(batch) if isinstance(leaf, Tensor) and leaf.ndim), 1)


def _mean_temperature(optimizers: Sequence[Any]) -> Estimate | None:
    """Return the mean of the chains' kinetic temperatures."""
    groups = [optimizer.last.groups[0] for optimizer in optimizers if optimizer.last is not None]
    known = [group.kinetic for group in groups if group is not None and group.kinetic is not None]
    if not known:
        return None
    mean = sum(each.mean for each in known) / len(known)
    return Estimate(mean, math.sqrt(sum(each.standard_error**2 for each in known)) / len(known))
