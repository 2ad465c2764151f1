"""What a temperature that is wrong says about the settings, and which knob to turn."""

from ctld.optimizers.thermometers import GroupThermometer

FAR = 0.1
CERTAIN = 4.0  # standard errors
ENOUGH = 18  # batches
MEMORIES = 4.0  # of the kinetic energy, 1/(1 − momentum) steps, in a batch


def remedy(
    number: int, group: GroupThermometer, *, momentum: float, of_tempering: str | None, euler: bool, compensated: bool
) -> str | None:
    """What is wrong with the temperature of group `number`, and what helps; None if nothing is, as far as can be told.

    `of_tempering` is what helps where α moves too fast, if it can.
    """
    kinetic, configurational = group.temperatures.kinetic, group.temperatures.configurational
    heat = group.temperatures.minibatch_heat
    if kinetic is None or heat is None or len(group.kinetic.settled) < ENOUGH:
        return None
    if group.kinetic.length < MEMORIES / (1.0 - momentum):
        return None  # batches that do not forget the one before have errors that are too small
    excess = kinetic.mean - 1.0
    if abs(excess) > FAR + CERTAIN * kinetic.standard_error:
        found = (
            f"at the lowest temperature that it visits, group {number} has a kinetic temperature of {kinetic.mean:.2f} ± "
            f"{kinetic.standard_error:.2f} times what it should be"
        )
        if excess > 0 and heat.mean > 0.5 * excess:
            knobs = "larger batches, a lower lr" + ("" if compensated or not euler else ", noise_compensation=True")
            return (
                f"{found}; the noise of the minibatches adds {heat.mean:.2f}. Remedies: {knobs}, a higher temperature"
            )
        if of_tempering is not None:
            return (
                f"{found}: α moves faster than the parameters follow. They explore all the same, but what they sample is not "
                f"the posterior. To average over samples take {of_tempering}"
            )
        return f"{found}. Remedy: a lower lr"
    if (
        configurational is not None
        and len(group.configurational.settled) >= ENOUGH
        and configurational.mean - 1.0 > FAR + CERTAIN * configurational.standard_error
        and group.configurational.steady  # else the parameters are still on their way
    ):
        return (
            f"at the lowest temperature that it visits, group {number} has a configurational temperature of "
            f"{configurational.mean:.2f} ± {configurational.standard_error:.2f} times what it should be: its parameters are "
            "spread too far for their potential. Remedy: a lower lr" + (', or integrator="baoab"' if euler else "")
        )
    return None
