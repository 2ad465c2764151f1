"""Carries out plans, of all groups at once, and returns their sums."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from ctld.stepping import foreach
from ctld.stepping.active import Active, ActiveGroup
from ctld.stepping.foreach import Noise
from ctld.stepping.sweep import NONE, SECOND_NOISE, AnyPlan, Plan, SantaPlan, Sums


def run(
    active: Active,
    plans: Sequence[AnyPlan],
    noise: Noise | None,
    *,
    check: bool = False,
    refused: Tensor | None = None,
) -> list[Sums] | None:
    """One step of all groups.

    Parameters
    ----------
    active : Active
        What moves.
    plans : sequence of plans
        One for each group.
    noise : Noise, optional
        Left out: nobody gets noise.
    check : bool
        Whether to look at all gradients first; if one is not finite, or so large that sums would not be, nothing changes.
    refused : Tensor of one bool, optional
        Whether nothing is to change after all; heeded if `active.refusable`, on the device.

    Returns
    -------
    The sums of each group; None if the gradients were looked at and are not fit for a step.
    """
    if check and not bool(finite(active)):
        return None
    return [
        _group(group, plan, noise, refused) if group.parameters else NONE
        for group, plan in zip(active.groups, plans, strict=True)
    ]


def finite(active: Active) -> bool | Tensor:
    """Returns whether all gradients are fit for a step: neither NaN nor inf, nor so large that their squares are."""
    return foreach.finite([gradient for group in active.groups for gradient in group.gradients])


def _group(group: ActiveGroup, plan: AnyPlan, noise: Noise | None, refused: Tensor | None) -> Sums:
    if not isinstance(plan, Plan):
        every = range(len(group.parameters))
        sums: Sums = foreach.advance(_part(group, every), plan, noise)[0]
        if isinstance(plan, SantaPlan):
            for state in group.states:
                state["steps"] += 1
        return sums
    movers = group.movers
    movers.scale_by_state(plan.scaled)
    if not plan.sweeps:
        return movers.rest() if plan.measure else NONE
    if plan.compensation is not None:
        movers.compensate(plan.compensation)  # type: ignore[arg-type]
    rows: list[Any] = []
    for sweep in plan.sweeps:
        drawn = noise if sweep.deviation or plan.compensation is not None else None
        if drawn is not None and sweep.second_noise:
            drawn = drawn._replace(seed=drawn.seed ^ SECOND_NOISE)
        rows.append(
            movers.advance(
                drawn,  # type: ignore[arg-type]
                retain=sweep.retain,
                impulse=sweep.impulse,
                stride=sweep.stride,
                deviation=sweep.deviation,
                decay=plan.decay if sweep.impulse else 0.0,
                ascend=plan.ascend,
                measure=plan.measure,
                refused=refused,
            )
        )
    return plan.reading(rows)


def _part(group: ActiveGroup, places: Sequence[int]) -> foreach.Part:
    gradients, states, momenta = group.gradients, group.states, group.momenta
    return foreach.Part(
        [group.parameters[place] for place in places],
        [gradients[place] for place in places],
        None if momenta is None else [momenta[place] for place in places],
        [states[place] for place in places],
        [group.streams[place] for place in places],
        [group.blocks[place] for place in places],
        [group.weights[place] for place in places],
    )
