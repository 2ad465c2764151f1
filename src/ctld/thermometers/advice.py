"""Advice on a wrong temperature: its likely cause in the settings, and the option to change."""

import math

from ctld.thermometers.group import GroupThermometer

FAR = 0.1
CERTAIN = 4.0  # standard errors
ENOUGH = 18  # batches
MEMORIES = 4.0  # of the kinetic energy, 1/(1 − momentum) steps, in a batch


def kinetic_share(integrator: str, momentum: float) -> float:
    """Return the share of the minibatches' heat in the kinetic temperature: momenta are read before or after it comes in."""
    if integrator == "baoab":
        return 2.0 * (1.0 + momentum**2) / (1.0 + momentum) ** 2
    if integrator == "ubu" and 0.0 < momentum < 1.0:
        return 2.0 * momentum**2 * -math.log(momentum) / (1.0 - momentum**2)
    return 1.0


def advice(
    number: int,
    group: GroupThermometer,
    *,
    integrator: str,
    momentum: float,
    of_tempering: str | None,
    compensated: bool,
    can_compensate: bool,
    in_epochs: bool = False,
    remaining: float | None = None,
) -> str | None:
    """Return what is wrong with the temperature of group `number`, and what helps; None if nothing is known to be wrong.

    `of_tempering` is what helps where α moves too fast, if it can. Where batches come `in_epochs`, a `remaining` share of
    their heat stays in the parameters, though the momenta have all of it.
    """
    kinetic, heat = group.temperatures.kinetic, group.temperatures.minibatch_heat
    if kinetic is None or heat is None or len(group.kinetic.settled) < ENOUGH:
        return None
    if group.kinetic.length * (1.0 - momentum) < 0.999 * MEMORIES:
        return None  # batches that do not forget the one before have errors that are too small
    excess, brought = kinetic.mean - 1.0, kinetic_share(integrator, momentum) * heat.mean
    if abs(excess) > FAR + CERTAIN * kinetic.standard_error:
        found = (
            f"at the lowest temperature that it visits, group {number} has a kinetic temperature of {kinetic.mean:.2f} ± "
            f"{kinetic.standard_error:.2f} times what it should be"
        )
        if excess < 0.0:
            cause = (
                "too much noise was taken away for that of the minibatches" if compensated else "lr may be too large"
            )
            return (
                f"{found}: {cause}, and what it samples is not the posterior. "
                f"Give a lower lr{', or noise_compensation=False' if compensated else ''}"
            )
        # More than the whole excess is motion that looks like noise, at steps too large for it. In epochs it may be more:
        # momenta that remember as long undo some of it themselves.
        if 0.5 * excess < brought and (in_epochs or brought < 2.0 * excess):
            if in_epochs:
                # θᵀ∇U of a batch that the parameters have not met in this epoch is no independent reading either.
                left = None if remaining is None else remaining * heat.mean
                if left is None or left <= FAR + CERTAIN * kinetic.standard_error:
                    return None
                found += f", and the parameters have one of {1.0 + left:.2f}"
            knobs = "larger batches" + (
                ", a lower lr or noise_compensation=True" if can_compensate else " or a lower lr"
            )
            told = (
                ""
                if in_epochs
                else ". If batches come in epochs, give steps_per_epoch=len(loader): less of it stays then"
            )
            return (
                f"{found}; the noise of the minibatches adds {brought:.2f}, and what it samples is hotter than the posterior. "
                f"Take {knobs}{told}"
            )
        if of_tempering is not None:
            return (
                f"{found}: α moves faster than the parameters follow, or they are still on their way. They explore all the "
                f"same, but what they sample is not the posterior. To average over samples take {of_tempering}"
            )
        return (
            f"{found}: the parameters are still on their way, or lr is too large for the curvature. What it samples is not the "
            "posterior. Explore for longer, or give a lower lr"
        )
    configurational = group.temperatures.configurational
    if (
        configurational is not None
        and len(group.configurational.settled) >= ENOUGH
        and configurational.mean - 1.0 > FAR + CERTAIN * configurational.standard_error
        and group.configurational.steady  # else the parameters are still on their way
    ):
        other = ', or integrator="baoab"' if integrator == "euler" and not compensated else ""
        return (
            f"at the lowest temperature that it visits, group {number} has a configurational temperature of "
            f"{configurational.mean:.2f} ± {configurational.standard_error:.2f} times what it should be: its parameters are "
            f"spread too far for their potential, and what it samples is not the posterior. Give a lower lr{other}"
        )
    return None
