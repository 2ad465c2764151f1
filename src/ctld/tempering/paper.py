"""The α-subsystem: the temperature 1/g(α) that moves by itself (Algorithm 1, the lines of α and r_α)."""

import math
import statistics
from typing import Any, Literal

from torch.distributed import ProcessGroup

from ctld.checks import integer, real
from ctld.stepping.alpha import Alpha, Hills, Smoothstep, Wall
from ctld.tempering.bias import Metadynamics
from ctld.tempering.calibrated import CalibratedTempering
from ctld.tempering.constant import ConstantTemperature
from ctld.tempering.control import Exploration, Leg, TemperatureControl, diverged
from ctld.tempering.driven import DrivenTemperature
from ctld.tempering.pieces import Bias, Piece, Scaling, Well
from ctld.tempering.scaling import TemperatureScaling
from ctld.tempering.walkers import SharedMetadynamics
from ctld.tempering.well import ConfiningWell

_LARGEST_FIRST_MOVE = 0.3  # of α by the first step's force; the paper's own experiments move it by 0.29 and 0.14
_SHARE_OUTSIDE_WARNED = 0.2
_STEPS_BEFORE_WARNING = 100
_FARTHEST = 1e100  # no run gets there, and squares are still numbers
_NUMBERS = ("alpha", "alpha_momentum", "step_size", "friction", "mass", "edge")
_COUNTS = ("steps", "steps_outside", "steps_clamped")
_WELLS, _BIASES = (ConfiningWell, type(None)), (Metadynamics, type(None))
"""Pieces that the kernels of CPUs know."""


class Tempering(TemperatureControl):
    """α moves in its own Langevin dynamics, driven by the Hamiltonian H of the parameters; the temperature is T/g(α).

        α   ← α + η r_α/m
        V_b ← V_b + a hill at α
        h   = −g′(α) H + m·(well.force(α) + bias.force(α))
        r_α ← (1 − η γ_α) r_α + η h + sqrt(2 η γ_α m) ε_α

    What is left out (`step_size`, `friction`, `mass`, `alpha_momentum`) is filled in when an optimizer takes the
    tempering; one tempering serves one optimizer.

    Parameters
    ----------
    scaling, well, bias
        g, φ and V_b; pieces of your own derive from `ctld.tempering.Scaling`, `Well` and `Bias`.
        `well=None` and `bias=None` leave φ and V_b out. Forces of the well and the bias are per unit of mass.
    step_size : float, optional
        η. Left out: the optimizer's, sqrt(lr/num_data).
    friction : float, optional
        γ_α. Left out: 1/η, which forgets r_α at every step, as the paper suggests.
    mass : float or "auto"
        m. The paper has 1. "auto" is max(1, η² max|g′| |H₁|/0.3), H₁ being the Hamiltonian of the first step: 1
        wherever the paper's own step was stable, and otherwise what keeps one step from throwing α out of the well.
    alpha, alpha_momentum : float
        Where α starts, and r_α. The momentum, left out, is drawn from N(0, 1).
    edge : float, optional
        α is meant to stay within ±edge. Left out: the edge of the well, the bias or the scaling, the first that has one.
    """

    remedy = (
        "Tempering.constant(), or Tempering.calibrated() if modes are separate and parameters few, a thousand or less"
    )
    alpha: float

    def __init__(
        self,
        *,
        scaling: Scaling | None = None,
        well: Well | None = None,
        bias: Bias | None = None,
        step_size: float | None = None,
        friction: float | None = None,
        mass: float | Literal["auto"] = "auto",
        alpha: float = 0.0,
        alpha_momentum: float | None = None,
        edge: float | None = None,
    ) -> None:
        self.scaling: Scaling = TemperatureScaling() if scaling is None else scaling
        self.well = well
        self.bias = bias
        self.step_size = None if step_size is None else real("step_size", step_size, above=0)
        self.friction = None if friction is None else real("friction", friction, at_least=0)
        # None until the first step has measured the Hamiltonian.
        self.mass = None if mass == "auto" else real("mass", mass, above=0)
        self.alpha = real("alpha", alpha)
        self.alpha_momentum = None if alpha_momentum is None else real("alpha_momentum", alpha_momentum)
        for name, piece, kind in (("scaling", self.scaling, Scaling), ("well", well, Well), ("bias", bias, Bias)):
            if not isinstance(piece, kind | None):
                raise TypeError(f"{name} = {piece!r} is none; derive its class from ctld.tempering.{kind.__name__}")
        known = [piece.edge for piece in (well, bias, self.scaling) if piece is not None and piece.edge is not None]
        if edge is None and not known:
            raise ValueError("neither the well, the bias nor the scaling has an `edge`; give Tempering(edge=...)")
        self.edge = real("edge", known[0] if edge is None else edge, above=0)
        self.steps = 0
        self.steps_outside = 0
        self.steps_clamped = 0
        self._taken = False
        self._warned = False
        self._handed: tuple[Any, Alpha] | None = None

    @classmethod
    def paper(
        cls,
        step_size: float,
        exploration_steps: int,
        mass: float | Literal["auto"] = "auto",
        *,
        plateau: float = 0.4,
        edge: float = 1.5,
        depth: float = 0.85,
        width: float = 0.04,
        num_bins: int = 300,
        height_factor: float = 20.0,
        walkers: ProcessGroup | None = None,
    ) -> "Tempering":
        """The paper's formulas (its supplement, "Hyperparameter Settings"), all from the step size η.

        C = δ′/η², w = 20/(η² L_s K), γ_α = 1/η; `height_factor` is the 20, which Fig. 4 of the paper calls w.
        `mass=1` is the print. With `walkers`, a process group, replicas share one bias (`SharedMetadynamics`).
        """
        step_size = real("step_size", step_size, above=0)
        exploration_steps = integer("exploration_steps", exploration_steps, at_least=1)
        num_bins = integer("num_bins", num_bins, at_least=1)
        height = real("height_factor", height_factor, at_least=0) / (step_size**2 * exploration_steps * num_bins)
        bias = (
            Metadynamics(height, width, num_bins, edge)
            if walkers is None
            else SharedMetadynamics(height, width, num_bins, edge, walkers=walkers)
        )
        return cls(
            scaling=TemperatureScaling(plateau, edge, depth),
            well=ConfiningWell(edge, edge / step_size**2),
            bias=bias,
            step_size=step_size,
            friction=1.0 / step_size,
            mass=mass,
        )

    @staticmethod
    def calibrated(depth: float | Literal["auto"] = "auto", **options: Any) -> CalibratedTempering:
        """α moves by itself and what is sampled at g = 1 is the posterior; `options` are `CalibratedTempering`'s."""
        return CalibratedTempering(depth, **options)

    @staticmethod
    def constant(ratio: float = 1.0) -> ConstantTemperature:
        """A temperature that stays at `ratio`·T: the control."""
        return ConstantTemperature(ratio)

    @staticmethod
    def driven(period: int, *, scaling: Scaling | None = None) -> DrivenTemperature:
        """α swept as a triangle wave of `period` steps: a schedule, blind to the energy."""
        return DrivenTemperature(period, TemperatureScaling() if scaling is None else scaling)

    def prepare(self, exploration: Exploration) -> None:
        """Fill in what was left out; an optimizer calls this once, when it takes the tempering."""
        if self._taken:
            raise ValueError("this tempering serves an optimizer already; build one Tempering for each optimizer")
        if self.bias is not None:
            self.bias.meet(exploration.normal)
        self._taken = True
        self.step_size = exploration.step_size if self.step_size is None else self.step_size
        self.friction = 1.0 / self.step_size if self.friction is None else self.friction
        self.alpha_momentum = exploration.normal if self.alpha_momentum is None else self.alpha_momentum

    def restart(self) -> None:
        """α returns to 0, where a cycle begins; its momentum and the bias are kept."""
        self.alpha = 0.0

    @property
    def temperature_ratio(self) -> float:
        """1/g(α), the factor on the temperature."""
        return 1.0 / self.scaling.value(self.alpha)

    @property
    def mean_temperature_ratio(self) -> float:
        """⟨1/g⟩ over an α that is uniform in ±edge."""
        return statistics.fmean(1.0 / self.scaling.value(alpha) for alpha in self._grid())

    @property
    def share_outside(self) -> float:
        """Share of the steps so far that α spent beyond ±edge."""
        return self.steps_outside / self.steps if self.steps else 0.0

    def begin(self, potential: float | None, normal: float) -> Leg:
        return Leg(1.0 / self.scaling.value(self.alpha))

    def end(self, hamiltonian: float, normal: float, hamiltonian_variance: float = 0.0) -> float:
        """Move α and r_α by one step; return h, the force on α.

        Parameters
        ----------
        hamiltonian : float
            H, in units of the temperature.
        normal : float
            ε_α, one standard normal number.
        hamiltonian_variance : float
            Minibatch variance of H. Its force adds η² g′² times it to the variance of r_α, and the injected noise is
            lowered by as much (erratum 3: the paper prints g′), down to zero at most.
        """
        if self.step_size is None or self.friction is None or self.alpha_momentum is None:
            raise ValueError(
                "step_size, friction or alpha_momentum is missing; call prepare(Exploration(step_size, normal)) first"
            )
        step_size, friction = self.step_size, self.friction
        if self.mass is None:
            steepest = max(abs(self.scaling.derivative(alpha)) for alpha in self._grid())
            self.mass = max(1.0, float(step_size**2 * steepest * abs(hamiltonian) / _LARGEST_FIRST_MOVE))

        self.alpha += step_size * self.alpha_momentum / self.mass
        slope = self.scaling.derivative(self.alpha)
        acceleration = 0.0
        if self.well is not None:
            acceleration += self.well.force(self.alpha)
        if self.bias is not None:
            self.bias.deposit(self.alpha)
            acceleration += self.bias.force(self.alpha)
        # A piece of the user's own may compute with numpy or torch; the state holds plain numbers.
        force = float(-slope * hamiltonian + self.mass * acceleration)

        noise_variance = 2.0 * step_size * friction * self.mass
        if hamiltonian_variance:
            noise_variance -= float(step_size * slope) ** 2 * hamiltonian_variance
        self.steps_clamped += noise_variance < 0
        self.alpha_momentum = (
            (1.0 - step_size * friction) * self.alpha_momentum
            + step_size * force
            + math.sqrt(max(noise_variance, 0.0)) * normal
        )
        self._count()
        return force

    def hand_over(self, normal: float, num_data: float, temperature: float, loss: float) -> Alpha | None:
        """Return `end` as numbers for the kernel, if all pieces are the paper's; not before the mass is known."""
        if self.mass is None or self.step_size is None or self.alpha_momentum is None or type(self) is not Tempering:
            return None
        scaling, well, bias = self.scaling, self.well, self.bias
        if type(scaling) is not TemperatureScaling or type(well) not in _WELLS or type(bias) not in _BIASES:
            return None
        numbers: list[Any] = [scaling.plateau, scaling.edge, scaling.depth, well, bias]
        if type(well) is ConfiningWell:
            numbers += well.edge, well.strength
        if type(bias) is Metadynamics:
            numbers += bias.edge, bias.height, bias.width
        if self._handed is None or self._handed[0] != numbers:
            wall = Wall(well.edge, well.strength) if type(well) is ConfiningWell else None
            hills = Hills(*bias.grid, bias.edge, bias.height, bias.width) if type(bias) is Metadynamics else None
            self._handed = numbers, Alpha(Smoothstep(scaling.plateau, scaling.edge, scaling.depth), wall, hills)
        made = self._handed[1]
        friction = 1.0 / self.step_size if self.friction is None else self.friction
        made.set(
            self.alpha, self.alpha_momentum, self.mass, self.step_size, friction, normal, 0.0, num_data, temperature, loss
        )  # fmt: skip
        return made

    def take_back(self) -> float:
        """Take over α, r_α and the hills from the kernel; return h."""
        assert self._handed is not None
        alpha, momentum, _, hamiltonian, force, clamped = self._handed[1].outcome
        if not math.isfinite(hamiltonian):
            raise FloatingPointError(diverged(hamiltonian))
        self.alpha, self.alpha_momentum = alpha, momentum
        self.steps_clamped += clamped
        self._count()
        return force

    def state_dict(self) -> dict[str, Any]:
        """Return numbers and tensors only. A value not known yet is NaN."""
        state: dict[str, Any] = {
            name: math.nan if getattr(self, name) is None else getattr(self, name) for name in _NUMBERS
        }
        state |= {name: getattr(self, name) for name in _COUNTS}
        for prefix, piece in self._pieces().items():
            state |= {prefix + key: value for key, value in piece.state_dict().items()}
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over a state, the constants of the pieces included, or refuse it and stay unchanged."""
        if state_dict.keys() != self.state_dict().keys():
            differing = sorted(state_dict.keys() ^ self.state_dict().keys())
            raise ValueError(
                f"the state is not that of this Tempering: {differing} are on one side only; build the tempering of the same "
                "pieces as when the state was saved"
            )
        pieces = self._pieces()
        before = {prefix: piece.state_dict() for prefix, piece in pieces.items()}
        try:
            for prefix, piece in pieces.items():
                keys = [key for key in state_dict if key.startswith(prefix)]
                piece.load_state_dict({key.removeprefix(prefix): state_dict[key] for key in keys})
            numbers = {name: _checked(name, state_dict[name]) for name in _NUMBERS} | {
                name: integer(name, state_dict[name], at_least=0) for name in _COUNTS
            }
            if self._taken and None in (numbers[name] for name in _NUMBERS if name != "mass"):
                raise ValueError("the state has no step_size, friction or momentum of α; load one that a run has saved")
        except Exception:
            for prefix, piece in pieces.items():
                piece.load_state_dict(before[prefix])
            raise
        for name, value in numbers.items():
            setattr(self, name, value)

    def _pieces(self) -> dict[str, Piece]:
        """Scaling, well and bias, by the prefix of their entries in a state."""
        pieces = {"scaling_": self.scaling, "well_": self.well, "bias_": self.bias}
        return {prefix: piece for prefix, piece in pieces.items() if piece is not None}

    def _grid(self) -> list[float]:
        # Fine enough for an integral, and with the paper's steepest point, (δ + δ′)/2 = 0.95, among its nodes.
        return [self.edge * k / 1500 for k in range(-1500, 1500)]

    def _count(self) -> None:
        self.steps += 1
        self.steps_outside += abs(self.alpha) > self.edge
        if self._warned or self.steps < _STEPS_BEFORE_WARNING or self.share_outside <= _SHARE_OUTSIDE_WARNED:
            return
        self._warned = True
        self.remark = (
            f"alpha spent {self.share_outside:.0%} of {self.steps} steps beyond ±{self.edge:g}, so the temperature is "
            f"not under control. Give a larger mass (it is {self.mass:.3g}), or a smaller lr"
        )

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_handed": None}  # addresses of the original's memory

    def __repr__(self) -> str:
        return f"Tempering(scaling={self.scaling!r}, well={self.well!r}, bias={self.bias!r}, alpha={self.alpha:.4g})"


def _checked(name: str, value: Any) -> float | None:
    """Return a number of a state; None, saved as NaN, is one that is not known yet."""
    unknown = isinstance(value, float) and math.isnan(value)
    if unknown and name not in ("alpha", "edge"):
        return None
    if name in ("alpha", "alpha_momentum"):
        return real(name, value, above=-_FARTHEST, below=_FARTHEST)
    return real(name, value, at_least=0) if name == "friction" else real(name, value, above=0, below=_FARTHEST)
