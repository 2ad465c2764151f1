"""The library's Euler step of CTLD, SGD with momentum and Adam, for many replicas at once; one row is one replica.

In SGD's units, v = η r (docs/conventions.md), with the temperature τ = T/N in units of the loss:

    exploring     v ← μ v − lr ∇loss + sqrt(2(1 − μ) lr τ/g) ε;    θ ← θ + v
    else          v ← μ (lr_t/lr_{t−1}) v − lr_t ∇loss;            θ ← θ + v

A row of this equals `ctld.CTLD` with the same noise, to rounding.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from traps import temperatures
from traps.methods import SHARE, Method, Setting
from traps.problem import Instance, Problem, chosen

NUM_DATA = 1000.0
"""N. Where T/N is given it decides nothing but how fast the paper's α moves, through η = sqrt(lr/N)."""
LOOK = 50
"""Gradients between looks at the exact loss where gradients come from minibatches, and at who is solved and can rest."""
BETA2, EPSILON = 0.999, 1e-8


class Noise:
    """Standard normal numbers for parameters and for α."""

    def __init__(self, generator: torch.Generator) -> None:
        self._generator = generator

    def of_theta(self, like: Tensor) -> Tensor:
        return torch.randn(like.shape, generator=self._generator, dtype=like.dtype)

    def of_alpha(self, rows: int) -> temperatures.Array:
        values: temperatures.Array = torch.randn(rows, generator=self._generator, dtype=torch.float64).numpy()
        return values


@dataclass(frozen=True)
class Outcome:
    """The end of each row."""

    solved_at: list[int]
    """Gradients until the loss was below the threshold; 0 if that never happened."""
    loss: list[float]
    """The exact loss when solved, or at the end."""
    theta: Tensor
    """The parameters then."""


@torch.no_grad()
def run(
    problem: Problem,
    method: Method,
    settings: Sequence[Setting],
    instance: Instance,
    start: Callable[[int], Tensor],
    *,
    budget: int,
    noise: Noise,
    batches: torch.Generator,
) -> Outcome:
    """Spend `budget` gradients on each row.

    Parameters
    ----------
    settings, instance
        One for each row.
    start
        Return the initial weights of all rows for the run of this number; all begin with those of run 0.
    """
    walk = Walk(method, settings, start, budget, noise)
    solved, losses = torch.zeros(len(settings), dtype=torch.long), torch.zeros(len(settings))
    final = walk.theta.clone()
    for step in range(budget):
        walk.begin_runs(step)
        loss, gradient = problem.gradient(instance, walk.theta, batches)
        looks = problem.exact or step % LOOK == 0
        judged = loss
        if not problem.exact and (looks or walk.compares(step)):
            judged = problem.loss(instance, walk.theta)
        if looks and bool((found := judged < problem.threshold).any()):
            rows = walk.rows[found]
            fresh = solved[rows] == 0
            solved[rows[fresh]] = step + 1
            losses[rows[fresh]] = judged[found][fresh].to(losses.dtype)
            final[rows[fresh]] = walk.theta[found][fresh]
        if walk.compares(step):
            loss, gradient = walk.keep_best(judged, gradient)
        walk.move(step, loss, gradient)
        if step % LOOK == LOOK - 1:
            left = solved[walk.rows] == 0
            if not left.any():
                break
            if left.float().mean() < 0.9:  # what is solved needs no more gradients
                walk.keep(left)
                instance = chosen(instance, left)
    left = solved[walk.rows] == 0
    if left.any():
        rows, theta = walk.rows[left], walk.theta[left]
        losses[rows] = problem.loss(chosen(instance, left), theta).to(losses.dtype)
        final[rows] = theta
    return Outcome(solved.tolist(), losses.tolist(), final)


class Walk:
    """Parameters and momenta of all rows, and the clock of each."""

    def __init__(
        self,
        method: Method,
        settings: Sequence[Setting],
        start: Callable[[int], Tensor],
        budget: int,
        noise: Noise,
    ) -> None:
        self.theta = start(0).clone()
        self.rows = torch.arange(len(settings))
        """The row of the settings that each is."""
        self._method, self._start, self._noise, self._budget = method, start, noise, budget
        dtype = self.theta.dtype
        self._lr = torch.tensor([each.lr for each in settings], dtype=dtype)[:, None]
        self._momentum = torch.tensor([each.momentum for each in settings], dtype=dtype)[:, None]
        self._tau = torch.tensor([each.temperature for each in settings], dtype=dtype)[:, None]
        self._fading = torch.tensor([each.fading for each in settings], dtype=dtype)[:, None]
        self._fades = bool((self._fading != 1.0).any())
        self._deviation = (2.0 * (1.0 - self._momentum) * self._lr * self._tau).sqrt()
        self._length = torch.tensor([budget // each.runs for each in settings])
        self._explores = method.temperature is not None
        self._exploration = (SHARE * self._length).long() if self._explores else torch.zeros_like(self._length)
        self._v = torch.zeros_like(self.theta)
        self._squares = torch.zeros_like(self.theta) if method.adam else None
        self._phase = torch.zeros_like(self._length)
        self._best: tuple[Tensor, Tensor, Tensor] | None = None
        self._ends = {step for length in set(self._length.tolist()) for step in range(0, budget, length)}
        if method.temperature is not None:
            self._temperatures = temperatures.build(
                method.temperature,
                np.sqrt(self._lr[:, 0].double().numpy() / NUM_DATA),
                int(self._exploration[0]),
                lambda: noise.of_alpha(len(self.rows)),
            )

    def keep(self, rows: Tensor) -> None:
        """Go on with these rows alone."""
        names = "rows theta _v _lr _momentum _tau _fading _deviation _length _exploration"
        for name in names.split():
            setattr(self, name, getattr(self, name)[rows])
        if self._squares is not None:
            self._squares = self._squares[rows]
        if self._best is not None:
            self._best = (self._best[0][rows], self._best[1][rows], self._best[2][rows])
        if self._method.temperature is not None:
            self._temperatures.keep(rows.numpy())

    def begin_runs(self, step: int) -> None:
        """Give new weights to rows whose run begins, if the method has it so, and momenta to those that jump."""
        self._phase = step % self._length
        if step not in self._ends:
            return
        begins = self._phase == 0
        if self._method.keep == "new" and step:
            numbers = step // self._length
            for number in set(numbers[begins].tolist()):
                rows = begins & (numbers == number)
                self.theta[rows] = self._start(number)[self.rows[rows]]
        if step == 0 or self._method.keep != "state":
            self._v[begins] = 0.0
            if self._explores:  # r ~ N(0, T)
                self._v[begins] = ((self._lr * self._tau).sqrt() * self._noise.of_theta(self._v))[begins]

    def compares(self, step: int) -> bool:
        return self._method.keep == "best" and step in self._ends

    def keep_best(self, loss: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
        """Go back to the best beginning of a cycle so far; return its loss and gradient."""
        if self._best is not None:
            before, theta, slope = self._best
            better = loss < before  # False for what has diverged
            loss = torch.where(better, loss, before)
            self.theta = torch.where(better[:, None], self.theta, theta)
            gradient = torch.where(better[:, None], gradient, slope)
        self._best = loss.clone(), self.theta.clone(), gradient.clone()
        return loss, gradient

    def move(self, step: int, loss: Tensor, gradient: Tensor) -> None:
        if self._squares is not None:
            self._adam(step, gradient, self._squares)
            return
        lr, retain = self._lr, self._momentum
        if self._fades:
            lr = lr * self._fading ** (step / self._budget)
            if step:
                retain = retain * self._fading ** (1.0 / self._budget)
        exploring = self._phase < self._exploration
        self._v.mul_(retain).sub_(lr * gradient)
        if self._explores and bool(exploring.any()):
            self._explore(loss, exploring)
        else:
            self.theta += self._v

    def _explore(self, loss: Tensor, exploring: Tensor) -> None:
        """Add the noise, move, and let the temperature move. Rows with exploration have it at the same time."""
        control = self._temperatures
        tau = self._tau[:, 0].double()
        potential = (loss.double() / tau).numpy()
        phase = (self._phase.double() / self._exploration).numpy()
        ratio, scale = control.begin(phase, potential if control.needs_energy else None)
        factor = torch.from_numpy(np.where(exploring.numpy(), ratio, 0.0)).to(self._v.dtype)[:, None]
        self._v.addcmul_(self._deviation * factor.sqrt(), self._noise.of_theta(self._v))
        self.theta += self._v
        if control.needs_energy:
            kinetic = (self._v.square() / (2.0 * self._lr)).sum(1).double() / tau
            control.end(potential + kinetic.numpy())
        if scale is not None:
            self._v *= torch.from_numpy(scale).to(self._v.dtype)[:, None]

    def _adam(self, step: int, gradient: Tensor, squares: Tensor) -> None:
        """Take the step of torch.optim.Adam; the momentum is β₁."""
        beta1 = self._momentum
        self._v.mul_(beta1).add_((1.0 - beta1) * gradient)
        squares.mul_(BETA2).addcmul_(gradient, gradient, value=1.0 - BETA2)
        lr = self._lr * self._fading ** (step / self._budget)
        corrected = (squares / (1.0 - BETA2 ** (step + 1))).sqrt_() + EPSILON
        self.theta -= lr * self._v / ((1.0 - beta1 ** (step + 1)) * corrected)
