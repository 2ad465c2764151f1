"""Base class of everything that moves the temperature for an optimizer; its defaults do nothing.

A tempering brackets the step of the parameters. `begin` comes first and says at which 1/g(α) the step is taken and by what
momenta are multiplied on the way; `end` comes last and hears the Hamiltonian H. The paper's α moves in `end`; the calibrated
one, which has to bring the momenta along, moves in `begin`; a schedule needs neither energy.

A temperature from a table of steps is all of this:

    class Tabulated(TemperatureControl):
        def __init__(self, ratios):
            self.ratios, self.steps = ratios, 0

        @property
        def temperature_ratio(self):
            return self.ratios[min(self.steps, len(self.ratios) - 1)]

        def end(self, hamiltonian, normal, hamiltonian_variance=0.0):
            self.steps += 1

        def state_dict(self):
            return {"steps": self.steps}

        def load_state_dict(self, state_dict):
            self.steps = int(state_dict["steps"])
"""

from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple

from ctld.stepping.alpha import Alpha


class Leg(NamedTuple):
    """Step of the parameters, as a tempering asks for it."""

    ratio: float = 1.0
    """1/g(α), the factor on the temperature at which momenta are refreshed."""
    before: float = 1.0
    """Factor on the momenta before they are refreshed."""
    after: float = 1.0
    """Factor on the momenta afterwards."""


class Exploration(NamedTuple):
    """Exploration of a run, as an optimizer describes it to a tempering, once, before the first step."""

    step_size: float
    """η = sqrt(lr/N) at the initial lr of the first group that explores."""
    normal: float
    """One standard normal number, for a momentum of α."""
    steps: int = 1
    """Number of steps that explore; in each cycle, if there are cycles."""
    cycles: bool = False
    integrator: str = "euler"
    noise_compensation: bool = False


class TemperatureControl(ABC):
    """Base class of everything that moves the temperature; all but `temperature_ratio` may be left as it is here."""

    alpha: float | None = None
    """α, if there is one; it is logged."""
    alpha_momentum: float | None = None
    remark: str | None = None
    """Warning to be given when the step is over; the optimizer that gives it removes it.

    A warning may be an error, and must not come between two halves of a step.
    """
    needs_potential: ClassVar[bool] = False
    """True if `begin` reads the potential. Then a step waits for the loss, and for one more look at the parameters."""
    remedy: ClassVar[str | None] = None
    """Remedy where the temperature moves too fast for the parameters to follow; None if it cannot."""

    @property
    @abstractmethod
    def temperature_ratio(self) -> float:
        """1/g(α) for the next step."""

    @property
    def mean_temperature_ratio(self) -> float:
        """⟨1/g⟩ over the whole exploration, by which `temperature="auto"` goes."""
        return self.temperature_ratio

    def prepare(self, exploration: Exploration) -> None:
        """Learn about the run; called once, by the one optimizer that this serves. May raise an error."""

    def begin(self, potential: float | None, normal: float) -> Leg:
        """Say how the step is taken.

        Parameters
        ----------
        potential : float or None
            U/T at the present parameters; None unless `needs_potential`.
        normal : float
            A standard normal number, new at each step; `end` is given the same.
        """
        return Leg(self.temperature_ratio)

    def end(self, hamiltonian: float, normal: float, hamiltonian_variance: float = 0.0) -> float | None:
        """Take in what the step found; return h, the force on α, if there is one.

        Parameters
        ----------
        hamiltonian : float
            H/T: potential before the step, and kinetic energy after the kick.
        normal : float
            The number that `begin` was given.
        hamiltonian_variance : float
            Minibatch variance of H/T, estimated for noise compensation; else 0.
        """
        return None

    def hand_over(self, normal: float, num_data: float, temperature: float, loss: float) -> Alpha | None:
        """Return α's step as numbers, for the kernel that moves the parameters to take it along; None: `end` is called.

        A shortcut, which must be `end` to the last bit; `loss` is the mean loss in the potential.
        """
        return None

    def take_back(self) -> float | None:
        """Take note that the kernel has taken the step that was handed over; return h."""
        return None

    def restart(self) -> None:
        """Take note that a new cycle begins."""

    def state_dict(self) -> dict[str, Any]:
        """Return everything that changes: numbers, strings and tensors by name."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over a state, or raise an error and stay unchanged."""


def diverged(hamiltonian: float) -> str:
    """Return what to say of momenta that have diverged: they have moved the parameters already."""
    return (
        f"the Hamiltonian is {hamiltonian}: the momenta have diverged and the parameters were moved by them; go back to "
        "the last checkpoint, with a lower lr"
    )


def checked_control(tempering: Any) -> TemperatureControl:
    """Return `tempering`, if an optimizer can use it."""
    if not isinstance(tempering, TemperatureControl):
        raise TypeError(
            f"tempering = {tempering!r} is none; give Tempering.paper(...), .calibrated(), .driven(period), .constant(), or "
            "a class of your own that derives from ctld.tempering.TemperatureControl"
        )
    return tempering
