"""The arrays that kernels.c works on: made once for a set of tensors, then written to where a step differs from the last."""

from array import array

import torch

from ctld.stepping import native
from ctld.stepping.sweep import NONE, ONLY, AnyPlan, Plan, PsgldPlan, SantaPlan, Sums, Sweep

_ROW, _ACCOUNT, _GROUP = native.LAYOUTS["ROW"], native.LAYOUTS["ACCOUNT"], native.LAYOUTS["GROUP"]
_SUMS, _JOB = native.LAYOUTS["SUMS"], native.LAYOUTS["JOB"]
_THIS_STEP = _JOB.packer("threads", "alpha")
_FACTORS, _RETAIN = _GROUP.packer("retain", _GROUP.fields[-1]), _GROUP.place["retain"]
_PLAN = _GROUP.packer(_GROUP.fields[0], _GROUP.fields[-1])
_METHODS, _READINGS = native.CHOICES["METHOD"], {name.lower(): n for name, n in native.CHOICES["READING"].items()}
_REFRESHED = _SUMS.place["refreshed"]
_SWEEPS = _METHODS["SWEEPS"]
_AT_REST = (_METHODS["RESTS"], *[0] * (_GROUP.size - 1))


class Table:
    """Rows for tensors, accounts for their sums, and a job that points to all of it."""

    def __init__(self, groups: int) -> None:
        self.rows = array("q")
        self.groups = array("q", bytes(8 * _GROUP.size * groups))
        self.sums = array("d", bytes(8 * _SUMS.size * groups))
        self.plans: list[AnyPlan | None] = [None] * groups
        """What `groups` holds of each."""
        self.units = self.elements = 0
        self._accounts = array("q")
        self._job = array("q", bytes(8 * _JOB.size))
        self.address = native.address(self._job)
        for number in range(groups):
            _PLAN.pack_into(self.groups, 8 * _GROUP.size * number, *_AT_REST)

    def open_account(self, group: int, dtype: torch.dtype, weight: float) -> None:
        """Begins an account, to which the rows that follow belong."""
        fields = {"group": group, "type": native.TYPES[dtype].number, "weight": native.bits(weight)}
        self._accounts.extend(fields[name] for name in _ACCOUNT.fields)

    def add_row(self, **fields: int) -> int:
        """Adds a tensor; returns where its row begins. What is left out is zero."""
        fields |= {"account": len(self._accounts) // _ACCOUNT.size - 1, "first_unit": self.units}
        first = len(self.rows)
        self.rows.extend(fields.get(name, 0) for name in _ROW.fields)
        self.units += -(-fields["numel"] // native.UNIT)
        self.elements += fields["numel"]
        return first

    def close(self) -> None:
        """Makes room for the sums of units, and has the job point to everything. No rows can be added from here on."""
        library = native.load()
        self._unit_sums = array("d", bytes(8 * _SUMS.size * max(self.units, 1)))
        fields = {
            "level": 0 if library is None else library.level,
            "rows": native.address(self.rows) if self.rows else 0,
            "row_count": len(self.rows) // _ROW.size,
            "accounts": native.address(self._accounts) if self._accounts else 0,
            "account_count": len(self._accounts) // _ACCOUNT.size,
            "groups": native.address(self.groups) if self.groups else 0,
            "group_count": len(self.plans),
            "units": self.units,
            "elements": self.elements,
            "unit_sums": native.address(self._unit_sums),
            "group_sums": native.address(self.sums) if self.sums else 0,
        }
        for name, value in fields.items():
            self._job[_JOB.place[name]] = value

    def set_step(
        self, threads: int, kind: str | None, seed: int, second_seed: int, step: int, check: bool, alpha: int
    ) -> None:
        """Writes what is the same for all groups; `alpha` is the address of α's own numbers."""
        _THIS_STEP.pack_into(self._job, 0, threads, native.KINDS[kind], seed, second_seed, step, check, alpha)

    def set_factors(self, number: int, plan: AnyPlan) -> bool:
        """Writes the factors of a plan that differs from the group's last in nothing else; False, if it does."""
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
        _, times, over = plan.reading
        factors = *_factors(plan.sweeps), 0.0, 0.0, 0.0, 0.0, 0.0, times, over
        _FACTORS.pack_into(self.groups, 8 * (_GROUP.size * number + _RETAIN), *factors)
        self.plans[number] = plan
        return True

    def set_plan(self, number: int, plan: AnyPlan) -> None:
        """Writes what a group does."""
        if isinstance(plan, Plan):
            fields = _sweeps(plan)
        elif isinstance(plan, PsgldPlan):
            fields = _psgld(plan)
        else:
            fields = _santa(plan)
        _PLAN.pack_into(self.groups, 8 * _GROUP.size * number, *fields)
        self.plans[number] = plan

    def set_sums(self, number: int, sums: tuple[float, ...]) -> None:
        """Writes the sums of a group that rests, for α."""
        first = _SUMS.size * number
        self.sums[first : first + len(sums)] = array("d", sums)

    def reading(self, number: int, plan: AnyPlan) -> Sums:
        """Returns the sums of a group, if its plan wants them."""
        if type(plan) is not Plan or not (plan.measure or plan.compensation):
            return NONE
        if plan.reading is ONLY:
            first, sums = _SUMS.size * number, self.sums
            return sums[first], sums[first + 1], sums[first + 2], sums[first + 3]
        return plan.reading(self.sums_of(number, len(plan.sweeps)))

    def sums_of(self, number: int, sweeps: int) -> list[Sums]:
        """Returns the sums of each of a group's sweeps."""
        first = _SUMS.size * number
        sums = self.sums
        rows: list[Sums] = [(sums[first], sums[first + 1], sums[first + 2], sums[first + 3])]
        return rows if sweeps < 2 else [*rows, (0.0, sums[first + _REFRESHED], 0.0, 0.0)]

    @property
    def priors(self) -> list[float]:
        """Σθ² of each group."""
        return self.sums[_SUMS.place["prior"] :: _SUMS.size].tolist()

    def set_level(self, level: int) -> None:
        """Has another of the library's levels work, as tests do."""
        self._job[_JOB.place["level"]] = level


# Tuples in this order are written at every step; dictionaries would take three times as long.
_ORDER = (
    "method", "sweeps", "measure", "scaled", "compensated", "reading", "adapt", "exploring", "decay", "sign",
    "retain", "impulse", "stride", "deviation", "second_noise",
    "again_retain", "again_stride", "again_deviation", "again_second_noise",
    "variance", "share", "smoothing", "epsilon", "target", "times", "over",
)  # fmt: skip
if _GROUP.fields != _ORDER or _SUMS.fields[:4] != ("prior", "kinetic", "midpoint", "clamped"):
    raise ImportError("layout.h has other fields than ctld.stepping.table writes; install ctld again")


def _sweeps(plan: Plan) -> tuple[float, ...]:
    sweeps, decay, ascend, measure, scaled, compensation, (kind, times, over) = plan
    if not sweeps:
        return (_METHODS["RESTS"], 0, measure, *[0] * 5, decay, *[0] * (_GROUP.size - 9))
    if len(sweeps) > 1 and compensation is not None:
        raise ValueError(f"{plan} has noise compensation and two sweeps; give it one")
    share, variance = (0.0, 0.0) if compensation is None else compensation
    return (
        _SWEEPS, len(sweeps), measure, scaled, compensation is not None, _READINGS[kind], 0, 0,
        decay, -1.0 if ascend else 1.0, *_factors(sweeps), variance, share, 0.0, 0.0, 0.0, times, over,
    )  # fmt: skip


def _factors(sweeps: tuple[Sweep, ...]) -> tuple[float, ...]:
    """Returns the fields from `retain` to `again_second_noise`."""
    if len(sweeps) == 1:
        return *sweeps[0], 0.0, 0.0, 0.0, 0
    first, (retain, impulse, *again) = sweeps[0], sweeps[-1]
    if len(sweeps) > 2 or impulse:
        raise ValueError(f"{sweeps} are none for the kernels: give at most two, of which the second has no impulse")
    return *first, retain, *again


def _psgld(plan: PsgldPlan) -> tuple[float, ...]:
    lr, deviation, smoothing, epsilon, adapt, decay, ascend = plan
    return (
        _METHODS["PSGLD"], 1, 0, 0, 0, 0, adapt, 0, decay, -1.0 if ascend else 1.0, 0.0, -lr, 1.0, deviation, 0,
        0.0, 0.0, 0.0, 0, 0.0, 0.0, smoothing, epsilon, 0.0, 1.0, 1.0,
    )  # fmt: skip


def _santa(plan: SantaPlan) -> tuple[float, ...]:
    lr, target, variance, smoothing, epsilon, symmetric, exploring, adapt, decay, ascend = plan
    method = _METHODS["SANTA_SYMMETRIC" if symmetric else "SANTA_EULER"]
    return (
        method, 1, 0, 0, 0, 0, adapt, exploring, decay, -1.0 if ascend else 1.0, 0.0, -lr, 1.0, 0.0, 0,
        0.0, 0.0, 0.0, 0, variance, 0.0, smoothing, epsilon, target, 1.0, 1.0,
    )  # fmt: skip
