"""Engine: carries out plans of all groups at once, and returns their sums.

On CPUs that is one call of kernels.c, whatever the groups do; on GPUs one launch of Triton for each sweep, dtype and device;
torch does the rest (foreach.py), and is the definition of all of it.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from ctld.compensation import MEMORY
from ctld.sharding import local
from ctld.stepping import foreach, native, triton
from ctld.stepping.active import Active, ActiveGroup
from ctld.stepping.alpha import Alpha
from ctld.stepping.foreach import Noise
from ctld.stepping.sweep import NONE, SECOND_NOISE, AnyPlan, Plan, PsgldPlan, SantaPlan, Sums

_UNFIT = native.STATUS["UNFIT_GRADIENTS"]


def run(
    active: Active,
    plans: Sequence[AnyPlan],
    noise: Noise | None,
    *,
    check: bool = False,
    refused: Tensor | None = None,
    alpha: Alpha | None = None,
) -> list[Sums] | None:
    """Take one step of all groups.

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
        Whether nothing is to change after all; for an `active` that is `refusable`, whose device reads it.
    alpha : Alpha, optional
        α's own step, which the same call takes with the energies that it has found; for an `active` that is `native`.

    Returns
    -------
    The sums of each group: numbers on CPUs, else tensors. None if the gradients were looked at and are not fit for a step.
    """
    table, native_only = active.table, active.native
    known = table.plans
    for number, plan in enumerate(plans):
        if known[number] is not plan and not table.set_factors(number, plan) and known[number] != plan:
            _prepare(active, number, plan)
            native_only = active.native  # unless a buffer does not fit
    if alpha is not None and not native_only:
        raise ValueError("α moves in the kernels of CPUs only, and some parameters are not for them; leave alpha out")
    if refused is not None and not active.refusable:
        raise ValueError("`refused` is read on a GPU, and some parameters are not there; read it before the step")
    if check and not native_only:
        if not bool(finite(active)):
            return None
        check = False
    for number in active.counting:
        _count(active, active.groups[number], plans[number])
    resting: dict[int, Any] = _NOBODY
    if active.resting:
        resting = {number: _at_rest(active.groups[number], plans[number]) for number in active.resting}
    if table.units:
        for number, sums in resting.items() if alpha is not None else ():
            table.set_sums(number, sums)
        library: Any = native.load()
        kind, seed, step = noise or _NOWHERE
        address = 0 if alpha is None else alpha.address
        table.set_step(library.threads(), kind, seed, seed ^ SECOND_NOISE, step, check, address)
        if active.staged:
            _fetch(active)
        if library.run(table.address) == _UNFIT:
            return None
        if active.staged:
            _give_back(active, resting)
        increment_version(active.moved if not resting else _moving(active, resting))  # as torch's own writes do
    made: list[Sums] = []
    for number, plan in enumerate(plans):
        if number in resting:
            made.append(resting[number])
        elif native_only:
            made.append(table.reading(number, plan))
        else:
            made.append(_mixed(active, number, plan, noise, refused))
    for number in active.counting:
        _counted(active.groups[number], plans[number])
    return made


def finite(active: Active) -> bool | Tensor:
    """Return True if all gradients are fit for a step: no element is NaN or inf, or has an infinite square."""
    if active.table.units:
        library: Any = native.load()
        active.table.set_step(library.threads(), None, 0, 0, 0, True, 0)
        _fetch(active)
        if not library.fit(active.table.address):
            return False
    if active.native:
        return True
    gradients = []
    for group in active.groups:
        places = [*group.others, *(place for chosen in group.on_gpu.values() for place in chosen)]
        gradients += [local(group.owners[place].grad) for place in places]
    found = foreach.finite(gradients)
    return bool(found) if isinstance(found, Tensor) and found.is_cpu else found


def square_norms(active: Active, *, check: bool = False) -> list[float] | None:
    """Return Σθ² of each group, by the weights of its parameters; None if gradients were to be looked at and are not fit."""
    table = active.table
    if not active.native or not table.units:
        if check and not bool(finite(active)):
            return None
        return [_square_norm(group) for group in active.groups]
    library: Any = native.load()
    table.set_step(library.threads(), None, 0, 0, 0, check, 0)
    _fetch(active)
    return table.priors if library.square_norms(table.address) else None


@torch.no_grad()
def _square_norm(group: ActiveGroup) -> float:
    if not group.parameters:
        return 0.0
    return float(foreach.square_norm(group.parameters, group.parameters[0].device, group.weights))


_NOWHERE = (None, 0, 0)
_NOBODY: dict[int, Any] = {}


def _prepare(active: Active, number: int, plan: AnyPlan) -> None:
    """Tell the kernels what a group does, and where the buffers that it needs lie."""
    group = active.groups[number]
    if isinstance(plan, Plan):
        buffers: tuple[str, ...] = ("scale",) if plan.scaled else ()
        if plan.compensation is not None:
            buffers += ("previous_gradient", "gradient_variance")
    else:
        buffers = ("square_average",) if isinstance(plan, PsgldPlan) else ("square_average", "thermostat")
    if buffers != group.buffers:
        active.use(group, buffers)
    active.table.set_plan(number, plan)
    rests = isinstance(plan, Plan) and not plan.sweeps
    counts = isinstance(plan, SantaPlan) or (isinstance(plan, Plan) and plan.compensation is not None)
    for numbers, belongs in ((active.resting, rests), (active.counting, counts)):
        (numbers.add if belongs else numbers.discard)(number)


def _count(active: Active, group: ActiveGroup, plan: AnyPlan) -> None:
    """Tell the kernels of CPUs how many steps each parameter has had, where that matters."""
    states = group.states
    for place in group.on_cpu:
        state, row = states[place], active.row(group, place)
        if isinstance(plan, Plan):
            seen = state["gradients_seen"]
            row.memory = 1.0 / min(seen, MEMORY) if seen else 0.0
        else:
            row.first_step = state["steps"] == 0


def _counted(group: ActiveGroup, plan: AnyPlan) -> None:
    name = "gradients_seen" if isinstance(plan, Plan) else "steps"
    for owner in group.owners:
        group.state[owner][name] += 1


def _fetch(active: Active) -> None:
    """Have the kernels see what lies where they cannot read it."""
    for staged in active.staged.values():
        staged.fetch()


def _give_back(active: Active, resting: dict[int, Any]) -> None:
    rest = {id(active.groups[number]) for number in resting}
    for (group, _), staged in active.staged.items():
        if group not in rest:
            staged.give_back()


def _at_rest(group: ActiveGroup, plan: Any) -> Any:
    """Return the sums of a group that does not move, if they are wanted; by torch, since that is rare."""
    if not plan.measure or not group.parameters:
        return NONE
    return _numbers(foreach.advance(group.part(range(len(group.parameters))), plan, None)[0])


def _moving(active: Active, resting: dict[int, Sums]) -> list[Tensor]:
    groups = [group for number, group in enumerate(active.groups) if number not in resting]
    return [group.parameters[place] for group in groups for place in group.on_cpu]


def _mixed(active: Active, number: int, plan: AnyPlan, noise: Noise | None, refused: Tensor | None) -> Sums:
    """Move the rest of a group, which the kernels of CPUs have left; return the sums of all."""
    group = active.groups[number]
    there = _elsewhere(group, plan, noise, refused) if group.others or group.on_gpu else None
    if not isinstance(plan, Plan):
        return NONE
    rows = active.table.sums_of(number, len(plan.sweeps))
    if there is None:
        return plan.reading(rows)
    total = plan.reading([_added(*pair) if group.on_cpu else pair[1] for pair in zip(rows, there, strict=True)])
    sums: Sums = _numbers(total)
    return sums


def _elsewhere(group: ActiveGroup, plan: AnyPlan, noise: Noise | None, refused: Tensor | None) -> list[Tensor]:
    """Move what the kernels of CPUs do not take; return the sums of each sweep."""
    made: list[list[Tensor]] = []
    others = group.others
    for (_, _, weight), places in group.on_gpu.items():
        if isinstance(plan, Plan):
            rows = triton.advance(group.part(places), plan, noise, refused=refused)
            made.append(rows if weight == 1.0 else [weight * row for row in rows])
        else:
            others = sorted([*others, *places])
    if others:
        made.append(foreach.advance(group.part(others), plan, noise))
    # On a GPU, if one has a part of it: a copy from there to the host would have to be waited for before it is read.
    made.sort(key=lambda rows: rows[0].is_cpu)
    total = made[0]
    for rows in made[1:]:
        total = [row + sums.to(row.device, row.dtype, non_blocking=True) for row, sums in zip(total, rows, strict=True)]
    return total


def _added(here: Sums, there: Tensor) -> Tensor:
    return there + torch.as_tensor(here, dtype=there.dtype).to(there.device, non_blocking=True)


def _numbers(sums: Any) -> Any:
    """Return a tensor on the CPU as numbers, and any other as it is."""
    return tuple(sums.tolist()) if isinstance(sums, Tensor) and sums.is_cpu else sums
