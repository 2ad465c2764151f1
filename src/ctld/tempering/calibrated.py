"""Tempering that keeps its promise: uniform α, and at g(α) = 1 the law of the posterior (spec section 9).

Target: p(θ, r, α) ∝ exp(−g(α) U(θ)/T − rᵀr/2T + F(α)), F chosen so that α is uniform in ±edge. It differs from the paper's
tempering in what it tempers and in how it finds F.

    potential only    the θ-step runs at temperature T/g, and r ← r·sqrt(g_old/g_new) whenever α moves. The force on α,
                      −g′(α)(U − ⟨U⟩_α)/T, then has no ‖r‖² in it, whose fluctuations are friction on α
    geometric g       1 on the plateau, then (1 − depth)^z, z = (|α| − plateau)/(edge − plateau)
    adaptive force    ⟨U⟩ at this α is measured, as A + B/g(α) plus a residual for each bin: no hills, no height
    reflecting walls  no confining potential
    warm-up           α rests at 0 while U/T is watched, until that has been for many correlation times τ, or for half of the
                      exploration. The variance B of U/T and τ give the mass, and the depth
    noise on U        ν², from second differences of U; what it heats α by is left out of the injected noise

α has units of its own: its clock ticks once a step, α ← α + p/m, with m = max(B·max(g′/g)²/0.4², 400) and p forgotten by
c = e^{−0.2}. Nothing depends on the scale of θ: U(sθ) with lr/s² gives the same path.

Cost: fluctuations of U are friction on α, so a half-trip (0 to edge) takes about Γℓ²/2 steps, ℓ = −ln(1 − depth),
Γ = Var(U/T)·τ + 0.7ν². Derived in docs/tempering.md. What fits into n steps with k half-trips is
depth = 1 − exp(−sqrt(2n/((k + 12)Γ))): `depth="auto"`. Trips that stay away are noticed while the run goes on, and said.
"""

import logging
import math
from typing import Any, Literal

import numpy as np
import torch

from ctld.checks import NonFiniteError, integer, real, warn_user
from ctld.tempering.control import Exploration, Leg, TemperatureControl
from ctld.tempering.means import BinnedMeans
from ctld.tempering.trips import TRIPS, Trips
from ctld.tempering.warm_up import MANY, WarmUp

_log = logging.getLogger("ctld")

DEEPEST = 0.85
"""Largest depth of `depth="auto"`: the paper's."""
_FORGETTING = math.exp(-0.2)
_LARGEST_KICK = 0.4  # of p by B's typical force, relative to its thermal size
_LEAST_MASS = 400.0
_FARTHEST = 1e100  # of U/T: no run gets there, and squares are still numbers
NO_SWITCHES = (
    "Half-trips say that α moves, not that modes are left: compare chains from different starts by R-hat "
    "(ctld.sample, ctld.diagnostics.convergence)"
)
_SHALLOW = 0.05  # a temperature that rises by less is no tempering


class CalibratedTempering(TemperatureControl):
    """α moves by itself, and the law is right; see `Tempering.calibrated`."""

    needs_potential = True
    alpha: float
    alpha_momentum: float

    def __init__(
        self,
        depth: float | Literal["auto"] = "auto",
        *,
        plateau: float = 0.4,
        edge: float = 1.5,
        warm_up: int = 4000,
        num_bins: int = 60,
    ) -> None:
        self.edge = real("edge", edge, above=0)
        self.plateau = real("plateau", plateau, at_least=0, below=self.edge)
        self.depth = None if depth == "auto" else real("depth", depth, above=0, below=1)
        self._known_slope: tuple[float | None, float] = (None, 0.0)
        self._least_warm_up = integer("warm_up", warm_up, at_least=100)
        self.num_bins = integer("num_bins", num_bins, at_least=3)
        self.alpha = self.alpha_momentum = 0.0
        self.mass = math.nan
        self.steps = self.steps_clamped = 0
        self._trips = Trips(self.plateau, self.edge)
        self._exploration_steps: int | None = None
        self._euler = self._cycles = False
        self._warm_up = WarmUp(self._least_warm_up)
        self._means: BinnedMeans | None = None
        self._taken = False

    # ---- g ----

    @property
    def _slope(self) -> float:
        """|g′/g| beyond the plateau."""
        if self.depth != self._known_slope[0]:
            depth = self.depth or 0.0
            self._known_slope = self.depth, -math.log1p(-depth) / (self.edge - self.plateau)
        return self._known_slope[1]

    def scaling(self, alpha: float) -> float:
        """g(α)."""
        beyond = abs(alpha) - self.plateau
        return math.exp(-self._slope * beyond) if beyond > 0.0 else 1.0

    def derivative(self, alpha: float, scaling: float) -> float:
        """g′(α), where g(α) is `scaling`."""
        return -math.copysign(self._slope, alpha) * scaling if abs(alpha) > self.plateau else 0.0

    @property
    def temperature_ratio(self) -> float:
        """1/g(α)."""
        return 1.0 / self.scaling(self.alpha)

    @property
    def mean_temperature_ratio(self) -> float:
        """⟨1/g⟩ over uniform α; with depth "auto", of the deepest that it may become."""
        depth = DEEPEST if self.depth is None else self.depth
        length = -math.log1p(-depth)
        share = self.plateau / self.edge
        return share + (1.0 - share) * math.expm1(length) / length

    @property
    def warm_up_steps(self) -> int:
        """Number of steps of the warm-up, as far as is known; it may grow while the warm-up lasts."""
        return self._warm_up.until

    @property
    def warming_up(self) -> bool:
        """True while α rests at 0, in the warm-up."""
        return not self._warm_up.over

    @property
    def half_trips(self) -> int:
        """Number of times that α has travelled between cold and hot."""
        return self._trips.count

    @property
    def promised_half_trips(self) -> float:
        """Number of half-trips that there should have been by now."""
        return self._trips.promised(self.steps) if self._warm_up.over else 0.0

    @property
    def warned(self) -> bool:
        """True if a warning was given: half-trips stay away or will not fit, or the warm-up could not tell."""
        return self._trips.warned

    # ---- a step ----

    def prepare(self, exploration: Exploration) -> None:
        """Learn how long the exploration is. Neither η nor the number drawn matters: α has its own clock."""
        if self._taken:
            raise ValueError("this tempering serves an optimizer already; build one for each optimizer")
        if exploration.noise_compensation:
            raise TypeError(
                "noise_compensation does not go with Tempering.calibrated(), which measures the noise of the potential "
                "itself; leave one of them out"
            )
        self._taken = True
        self._exploration_steps, self._cycles = exploration.steps, exploration.cycles
        self._euler = exploration.integrator == "euler"
        if not exploration.cycles:  # else nobody knows how much exploration there will be
            self._warm_up = WarmUp(self._least_warm_up, exploration.steps // 2)
        steps, needed = exploration.steps, self.warm_up_steps
        if steps and steps < needed + (not exploration.cycles):
            lost = f"all {steps} steps of exploration pass in the warm-up of {needed}"
            if exploration.cycles:
                lost = f"the warm-up takes {needed} steps, the exploration of {math.ceil(needed / steps)} cycles of {steps}"
            warn_user(
                f"{lost}. In the warm-up α rests and the temperature stays at T. Explore for longer, or give "
                "Tempering.driven(period)"
            )

    def begin(self, potential: float | None, normal: float) -> Leg:
        """Move α by one step, from U/T at the present parameters and one standard normal number."""
        assert potential is not None, "it is asked for, by needs_potential"
        if not abs(potential) < _FARTHEST:
            raise NonFiniteError(
                f"U/T is {potential:g}; the step was refused and nothing has changed. Skip the batch, or lower lr, if it "
                "happens again"
            )
        self.steps += 1
        if self._means is None:
            self._warm_up.observe(potential)
            if self._warm_up.over:
                self._calibrate(normal)
            return Leg()
        begin = self.scaling(self.alpha)
        slope = self.derivative(self.alpha, begin)
        noise = self._warm_up.observe_noise(potential)
        force = -slope * self._means.deviation(abs(self.alpha), 1.0 / begin, potential)
        variance, keep = self._injected(slope, noise)
        if self._euler:
            self.alpha_momentum = keep * self.alpha_momentum + force + math.sqrt(variance) * normal
            self._drift(self.alpha_momentum / self.mass)
            middle = begin
        else:
            self.alpha_momentum += force
            self._drift(0.5 * self.alpha_momentum / self.mass)
            middle = self.scaling(self.alpha)
            self.alpha_momentum = keep * self.alpha_momentum + math.sqrt(variance) * normal
            self._drift(0.5 * self.alpha_momentum / self.mass)
        self._count()
        end = self.scaling(self.alpha)
        return Leg(1.0 / middle, math.sqrt(begin / middle), math.sqrt(middle / end))

    def _injected(self, slope: float, noise: float) -> tuple[float, float]:
        """Variance of the noise on p, less what minibatches bring in; and the factor on p."""
        keep = _FORGETTING
        share = 1.0 if self._euler else 0.25 * (1.0 + keep) ** 2
        whole = 2.0 * (1.0 - keep) * self.mass if self._euler else (1.0 - keep**2) * self.mass
        variance = whole - share * slope**2 * noise
        self.steps_clamped += variance < 0
        return max(variance, 0.0), keep

    def _drift(self, move: float) -> None:
        """α ← α + move, reflected at ±edge as often as it takes."""
        alpha = self.alpha + move
        if abs(alpha) > 9.0 * self.edge:  # thrown far out: whole round trips, 4·edge each, change nothing
            alpha = math.remainder(alpha, 4.0 * self.edge)
        while abs(alpha) > self.edge:
            alpha = math.copysign(2.0 * self.edge, alpha) - alpha
            self.alpha_momentum = -self.alpha_momentum
        self.alpha = alpha

    def _count(self) -> None:
        if self._trips.visit(abs(self.alpha), self.steps) and (said := self._trips.look(self.steps)) is not None:
            self.remark = (
                f"calibrated tempering made {said} by what the warm-up of {self.warm_up_steps} steps saw; averages at T need "
                f"{TRIPS}. U/T moves more slowly, or by more, than in the warm-up. Give more exploration_steps, a longer "
                f"Tempering.calibrated(warm_up=...), a smaller depth= (it is {self.depth:.3g}), or the schedule "
                f"Tempering.driven(period). {NO_SWITCHES}"
            )
        if self._trips.made_up(self.steps):
            _log.info("calibrated tempering made %d half-trips after all: averages at T have enough", self.half_trips)

    # ---- calibration ----

    def _calibrate(self, normal: float) -> None:
        """Mass and depth, from what the warm-up has seen."""
        seen = self._warm_up.result
        left = self._exploration_steps or 1
        if not self._cycles:  # else trips begin at 0 in each, and have to fit into one
            left = max(left - self.steps, 1)
        if self.depth is None:
            self.depth = min(DEEPEST, -math.expm1(-math.sqrt(2.0 * left / ((TRIPS + 12) * seen.friction))))
        steepest = self._slope  # max|g′| too: g is 1 where it begins to fall
        self.mass = max(seen.variance * (steepest / _LARGEST_KICK) ** 2, _LEAST_MASS)
        if seen.noise:
            self.mass = max(self.mass, 1.2 * steepest**2 * seen.noise * (1 + _FORGETTING) / (4 * (1 - _FORGETTING)))
        self.alpha_momentum = math.sqrt(self.mass) * normal
        self._means = BinnedMeans(self, seen)
        self._promise()
        trips = self._trips.promised(self.steps + left)
        facts = (
            f"U/T = {seen.mean:.5g} with variance {seen.variance:.4g} beside {seen.noise:.3g} of minibatch noise and a "
            f"correlation time of {seen.correlation_time:.3g} steps: depth {self.depth:.3g} (temperatures up to "
            f"{1 / (1 - self.depth):.3g} T), mass {self.mass:.4g}, about {trips:.3g} half-trips in {left} steps"
        )
        _log.info("calibrated tempering, after a warm-up of %d steps: %s", self.warm_up_steps, facts)
        if trips < TRIPS or self.depth < _SHALLOW or not seen.enough:
            self._trips.warned = True
            if not seen.enough:
                facts += (
                    f". The last {seen.steps} steps of the warm-up, which may take half of the exploration, hold "
                    f"{seen.steps / seen.correlation_time:.3g} of these correlation times, where {MANY} tell what they are"
                    f"{'' if seen.settled else ', and have another mean than the steps before'}: the number of trips is a guess"
                )
            self.remark = (
                f"calibrated tempering may not fit into this exploration: {facts}. Averages at T need {TRIPS} half-trips and "
                "a depth that matters. The estimate is cautious: look at `half_trips` at the end. If they are too few, give "
                "more exploration_steps, or the schedule Tempering.driven(period). "
                f"{NO_SWITCHES}"
            )

    def _promise(self) -> None:
        """Tell the trips how long one takes: Γℓ²/2 steps, and what α of this mass would take if U were constant."""
        assert self.depth is not None
        memory = 0.5 + _FORGETTING / (1.0 - _FORGETTING)
        alone = 0.5 * self.edge**2 * self.mass / memory
        length = alone + 0.5 * self._warm_up.result.friction * math.log1p(-self.depth) ** 2
        end = 0 if self._cycles or self._exploration_steps is None else self._exploration_steps
        self._trips.promise(begin=self.warm_up_steps, length=length, end=end)

    # ---- state ----

    def restart(self) -> None:
        """α returns to 0, where a cycle begins; momenta and means are kept."""
        self.alpha = 0.0
        self._trips.hot = False
        self._warm_up.interrupt()

    def state_dict(self) -> dict[str, Any]:
        means = self._means
        return {
            "alpha": self.alpha,
            "momentum": self.alpha_momentum,
            "mass": self.mass,
            "depth": math.nan if self.depth is None else self.depth,
            "steps": self.steps,
            "steps_clamped": self.steps_clamped,
            "half_trips": self.half_trips,
            "side": int(self._trips.hot),
            "warm_up_steps": self._least_warm_up,
            "plateau": self.plateau,
            "edge": self.edge,
            "warm_up": torch.tensor(self._warm_up.numbers(), dtype=torch.float64),
            "window": torch.tensor([*self._warm_up.window(), *self._trips.numbers], dtype=torch.float64),
            "means": torch.from_numpy(np.zeros((5, self.num_bins)) if means is None else means.numbers()),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over a state, or refuse it and stay unchanged. One of version 0.1 has no window."""
        if state_dict.keys() | {"window"} != self.state_dict().keys():
            raise ValueError("the state is not that of a calibrated tempering; build the tempering as it was saved")
        bins = state_dict["means"].shape[1]
        if bins != self.num_bins:
            remedy = f"build it with num_bins={bins}"
            raise ValueError(f"the state has {bins} bins, this tempering {self.num_bins}; {remedy}")
        built = {"warm_up_steps": self._least_warm_up, "plateau": self.plateau, "edge": self.edge}
        for name, here in built.items():
            if state_dict[name] != here:
                there, option = state_dict[name], name.removesuffix("_steps")
                remedy = f"build it as it was, Tempering.calibrated({option}={there:g})"
                raise ValueError(f"the state has {name} = {there:g}, this tempering {here:g}; {remedy}")
        window = state_dict.get("window", torch.zeros(WarmUp.NUMBERS + 2, dtype=torch.float64))
        shapes = {"warm_up": (self._least_warm_up + 8,), "means": (5, self.num_bins), "window": (WarmUp.NUMBERS + 2,)}
        for name, shape in shapes.items():
            value = window if name == "window" else state_dict[name]
            if not isinstance(value, torch.Tensor) or value.dtype != torch.float64 or tuple(value.shape) != shape:
                raise ValueError(
                    f"{name} of the state is no tensor of numbers of shape {shape}; load one that was saved"
                )
        alpha = real("alpha", state_dict["alpha"], at_least=-self.edge, below=math.nextafter(self.edge, math.inf))
        momentum = real("momentum", state_dict["momentum"])
        unknown = {
            name: isinstance(state_dict[name], float) and math.isnan(state_dict[name]) for name in ("mass", "depth")
        }
        mass = math.nan if unknown["mass"] else real("mass", state_dict["mass"], above=0)
        depth = None if unknown["depth"] else real("depth", state_dict["depth"], above=0, below=1)
        names = ("steps", "steps_clamped", "half_trips", "side")
        counts = [integer(name, state_dict[name], at_least=0) for name in names]
        said = window[WarmUp.NUMBERS :].tolist()
        if counts[3] > 1 or not {*said} <= {0.0, 1.0}:
            raise ValueError(
                f"side = {counts[3]} or what was said, {said}, is neither 0 nor 1; load one that was saved"
            )
        of_window = window.tolist()[: WarmUp.NUMBERS] if "window" in state_dict else None
        warm_up = WarmUp.from_numbers(
            self._least_warm_up, state_dict["warm_up"].tolist(), of_window, self._warm_up.at_most
        )
        if warm_up.over and (unknown["mass"] or unknown["depth"]):
            raise ValueError(f"the state has no mass or depth after {counts[0]} steps; load one that was saved")
        self._warm_up = warm_up
        self.alpha, self.alpha_momentum, self.mass, self.depth = alpha, momentum, mass, depth
        self.steps, self.steps_clamped = counts[:2]
        self._means = None
        if warm_up.over:
            self._means = BinnedMeans(self, warm_up.result)
            self._means.load(state_dict["means"].to("cpu", torch.float64).numpy())
            self._promise()
        self._trips.go_on(counts[2], bool(counts[3]), said, self.steps)

    def __repr__(self) -> str:
        depth = "auto" if self.depth is None else f"{self.depth:.4g}"
        return f"Tempering.calibrated(depth={depth}, alpha={self.alpha:.4g}, half_trips={self.half_trips})"
