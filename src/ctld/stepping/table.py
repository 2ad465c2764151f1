"""The structures that kernels.c reads: made once for a set of tensors, then written to where a step differs from the last."""

import ctypes
from array import array
from typing import Any

import torch

from ctld.stepping import native
from ctld.stepping.sweep import NONE, ONLY, AnyPlan, Plan, PsgldPlan, Sums, Sweep

_Row, _Account, _Group = (native.STRUCTURES[name] for name in ("ROW", "ACCOUNT", "GROUP"))
_Sums, _Job = native.STRUCTURES["SUMS"], native.STRUCTURES["JOB"]
_GRADIENT, _WIDTH = _Row.gradient.offset // 8, ctypes.sizeof(_Row) // 8
_STEP, _AT_STEP = native.packed(_Job, "threads", "noise", "seed", "second_seed", "step", "check", "alpha")
_SWEEP, _AT_SWEEP = native.packed(_Group, *Sweep._fields)
_AGAIN, _AT_AGAIN = native.packed(_Group, "again_retain", "again_stride", "again_deviation", "again_second_noise")
_MEASURED, _AT_MEASURED = native.packed(_Sums, "prior", "kinetic", "midpoint", "clamped")
_METHODS, _READINGS = native.CHOICES["METHOD"], {name.lower(): n for name, n in native.CHOICES["READING"].items()}


class Table:
    """Rows for tensors, accounts for their sums, and a job that points to all of it."""

    def __init__(self, groups: int) -> None:
        self.rows: list[Any] = []
        """One for each tensor; fields are those of layout.h."""
        self.plans: list[AnyPlan | None] = [None] * groups
        """Plans that the structures of the groups hold."""
        self.units = self.elements = 0
        self._cells = array("q")
        self._accounts: list[Any] = []
        self._group_array, self._sum_array = (_Group * groups)(), (_Sums * groups)()
        self._groups, self._sums = list(self._group_array), list(self._sum_array)
        self._job = _Job()
        self.address = ctypes.addressof(self._job)
        for group in self._groups:
            group.method = _METHODS["RESTS"]

    def open_account(self, group: int, dtype: torch.dtype, weight: float) -> None:
        """Begin an account, to which the rows that follow belong."""
        self._accounts.append(_Account(group=group, type=native.TYPES[dtype].number, weight=weight))

    def add_row(self, **fields: int) -> int:
        """Add a tensor; return the number of its row. What is left out is zero."""
        self.rows.append(_Row(**fields, account=len(self._accounts) - 1, first_unit=self.units))
        self.units += -(-fields["numel"] // native.UNIT)
        self.elements += fields["numel"]
        return len(self.rows) - 1

    def close(self) -> None:
        """Make room for the sums of units, and have the job point to everything. No rows can be added from here on."""
        library = native.load()
        rows = (_Row * len(self.rows))(*self.rows)
        self._cells = array("q", bytes(rows))
        if self.rows:
            self.rows = list((_Row * len(self.rows)).from_buffer(self._cells))
        self._account_array = (_Account * len(self._accounts))(*self._accounts)
        self._unit_sums = (_Sums * max(self.units, 1))()
        job = self._job
        job.level = 0 if library is None else library.level
        job.rows, job.row_count = native.address(self._cells), len(self.rows)
        job.accounts, job.account_count = ctypes.addressof(self._account_array), len(self._accounts)
        job.groups, job.group_count = ctypes.addressof(self._group_array), len(self.plans)
        job.units, job.elements = self.units, self.elements
        job.unit_sums, job.group_sums = ctypes.addressof(self._unit_sums), ctypes.addressof(self._sum_array)

    def set_gradients(self, addresses: list[int]) -> None:
        """Write where the gradients of all rows lie."""
        self._cells[_GRADIENT::_WIDTH] = array("q", addresses)

    def set_step(
        self, threads: int, kind: str | None, seed: int, second_seed: int, step: int, check: bool, alpha: int
    ) -> None:
        """Write what is the same for all groups; `alpha` is the address of α's own numbers."""
        _STEP.pack_into(self._job, _AT_STEP, threads, native.KINDS[kind], seed, second_seed, step, check, alpha)

    def set_factors(self, number: int, plan: AnyPlan) -> bool:
        """Write the factors of a plan that differs from the group's last in nothing else; False, if it does."""
        known = self.plans[number]
        if (
            type(plan) is not Plan
            or type(known) is not Plan
            or plan[1:5] != known[1:5]
            or not plan.compensation is known.compensation is None
            or plan.reading[0] != known.reading[0]
            or not len(plan.sweeps) == len(known.sweeps) > 0
        ):
            return False
        group = self._groups[number]
        _write_sweeps(group, plan.sweeps)
        if plan.reading is not known.reading:
            _, group.times, group.over = plan.reading
        self.plans[number] = plan
        return True

    def set_plan(self, number: int, plan: AnyPlan) -> None:
        """Write what a group does."""
        group = self._groups[number]
        ctypes.memset(ctypes.addressof(group), 0, ctypes.sizeof(group))
        group.times = group.over = 1.0
        group.decay, group.sign = plan.decay, -1.0 if plan.ascend else 1.0
        if isinstance(plan, Plan):
            _write_plan(group, plan)
        else:
            group.sweeps, group.impulse, group.stride = 1, -plan.lr, 1.0
            group.adapt, group.smoothing, group.epsilon = plan.adapt, plan.smoothing, plan.epsilon
            if isinstance(plan, PsgldPlan):
                group.method, group.deviation = _METHODS["PSGLD"], plan.deviation
            else:
                group.method = _METHODS["SANTA_SYMMETRIC" if plan.symmetric else "SANTA_EULER"]
                group.exploring, group.variance, group.target = plan.exploring, plan.variance, plan.target
        self.plans[number] = plan

    def set_sums(self, number: int, sums: tuple[float, ...]) -> None:
        """Write the sums of a group that rests, for α."""
        to = self._sums[number]
        to.prior, to.kinetic, to.midpoint, to.clamped = sums

    def reading(self, number: int, plan: AnyPlan) -> Sums:
        """Return the sums of a group, if its plan wants them."""
        if type(plan) is not Plan or not (plan.measure or plan.compensation):
            return NONE
        if plan.reading is ONLY:
            return _MEASURED.unpack_from(self._sums[number], _AT_MEASURED)
        return plan.reading(self.sums_of(number, len(plan.sweeps)))

    def sums_of(self, number: int, sweeps: int) -> list[Sums]:
        """Return the sums of each of a group's sweeps."""
        sums = self._sums[number]
        rows: list[Sums] = [(sums.prior, sums.kinetic, sums.midpoint, sums.clamped)]
        return rows if sweeps < 2 else [*rows, (0.0, sums.refreshed, 0.0, 0.0)]

    @property
    def priors(self) -> list[float]:
        """Σθ² of each group."""
        return [sums.prior for sums in self._sums]

    def set_level(self, level: int) -> None:
        """Have another of the library's levels work, as tests do."""
        self._job.level = level


def _write_plan(group: Any, plan: Plan) -> None:
    if len(plan.sweeps) > 1 and plan.compensation is not None:
        raise ValueError(f"{plan} has noise compensation and two sweeps; give it one")
    group.method = _METHODS["SWEEPS" if plan.sweeps else "RESTS"]
    group.sweeps, group.measure, group.scaled = len(plan.sweeps), plan.measure, plan.scaled
    kind, group.times, group.over = plan.reading
    group.reading = _READINGS[kind]
    if plan.compensation is not None:
        group.compensated, (group.share, group.variance) = True, plan.compensation
    if plan.sweeps:
        _write_sweeps(group, plan.sweeps)


def _write_sweeps(group: Any, sweeps: tuple[Sweep, ...]) -> None:
    _SWEEP.pack_into(group, _AT_SWEEP, *sweeps[0])
    if len(sweeps) == 1:
        return
    if len(sweeps) > 2 or sweeps[1].impulse:
        raise ValueError(f"{sweeps} are none for the kernels: give at most two, of which the second has no impulse")
    again = sweeps[1]
    _AGAIN.pack_into(group, _AT_AGAIN, again.retain, again.stride, again.deviation, again.second_noise)
