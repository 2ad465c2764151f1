"""One trajectory on 1, 2 or 4 processes, sharded or not, for every method of the table."""

from functools import cache

import pytest
import torch
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

import ctld
import methods
import parallel_runs as jobs
from worlds import in_world

pytestmark = [
    pytest.mark.xdist_group("same answer"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:calibrated tempering may not fit"),
]

SIZES = (1, 2, 4)
KINDS = {
    1: ("ddp", "fsdp"),
    2: ("ddp", "fsdp", "columns"),
    4: ("ddp", "fsdp", "hsdp", "tensor"),
}  # torch has no uneven columns
SHORT = 8  # steps of the other methods
LONGER = {"resgld": 50}  # which cannot swap before the 24th
# Those whose plan is not one of sweeps, that sum over ranks, or that have parameters of their own.
SPECIAL = ("santa", "psgld", "sgnht", "tact_hmc", "resgld")
METHODS = [name for name, method in ctld.OPTIMIZERS.items() if method.noisy] + [*methods.METHODS]
# Of the order in which gradients are summed; by the end it has grown by a few powers of ten at most.
TOLERANCE = 1e-6
VARIANTS = {
    "plain": {},
    "compensated": {"noise_compensation": True},
    "three-point": {"noise": "three_point"},
    "unchecked": {"check_gradients": False},
    "by_baoab": {"integrator": "baoab"},
    "calibrated": {"integrator": "ubu", "calibrated": True},
    # It adapts from the twentieth gradient on.
    "preconditioned": {"preconditioner": ctld.RMSPreconditioner(every=1), "exploration_steps": 24, "steps": 26},
}
# What has buffers or sums of its own; the others differ from "plain" in what each rank does by itself, and are run on two.
RARE_KINDS, RARE_VARIANTS = ("columns", "hsdp", "tensor"), ("plain", "compensated", "calibrated", "preconditioned")
PAIRS = [
    (kind, variant)
    for kind in ("ddp", "fsdp", *RARE_KINDS)
    for variant in (RARE_VARIANTS if kind in RARE_KINDS else VARIANTS)
]


def everything(rank, size):
    """All runs of a world in one start of its processes, which is what takes the time."""
    found = {}
    for kind in KINDS[size]:
        for of_kind, variant in PAIRS:
            # A world of one sums nothing; and the rare kinds are on four ranks with all that has sums or buffers.
            chosen = {
                1: ("plain",),
                2: VARIANTS,
                4: RARE_VARIANTS if kind in RARE_KINDS else ("plain", "preconditioned"),
            }[size]
            if of_kind == kind and variant in chosen:
                found[f"{kind} {variant}"] = jobs.run(kind, rank, size, **VARIANTS[variant])
    for kind in KINDS[size] if size > 1 else ():
        for method in METHODS if kind in ("ddp", "fsdp") and size == 2 else SPECIAL:
            found[f"{kind} {method}"] = jobs.run(kind, rank, size, method=method, steps=LONGER.get(method, SHORT))
    found["collectives"] = collectives(rank, size)
    found["mixed"] = mixed_precision(rank, size)
    return found


def collectives(rank, size):
    """By kind, in a step of exploration and in one of fine-tuning."""
    found = {}
    for kind in ("ddp", "fsdp"):
        model = jobs.wrapped(kind, size)
        optimizer = jobs.optimizer_for(model)
        jobs.train(model, optimizer, range(3), rank, size)
        for phase, steps in {"exploration": (3,), "fine-tuning": (jobs.EXPLORATION,)}.items():
            jobs.train(
                model, optimizer, range(optimizer.state_dict()["param_groups"][0]["ctld_step"], steps[0]), rank, size
            )
            loss = jobs.loss_of(model, steps[0], rank, size)
            loss.backward()
            found[f"{kind} {phase}"] = jobs.count_collectives(lambda o=optimizer, v=loss: o.step(loss=v))
    return found


def mixed_precision(rank, size):
    """Parameters in float32, forward and backward in bfloat16."""
    model = jobs.network().float()
    fully_shard(model, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32))
    optimizer = jobs.optimizer_for(model)
    for step in range(jobs.STEPS):
        optimizer.zero_grad()
        inputs, targets = jobs.batch(step, rank, size)
        loss = (model(inputs.float()) - targets.float()).square().mean()
        loss.backward()
        optimizer.step(loss=loss)
    kinds = {str(jobs.whole(state["momentum_buffer"]).dtype) for state in optimizer.state.values()}
    return jobs.outcome(model, optimizer) | {"kinds": sorted(kinds)}


@cache
def alone(name):
    """The run of a single process, of a variant of CTLD or of another method, made once."""
    return jobs.run("alone", **VARIANTS.get(name, {"method": name, "steps": LONGER.get(name, SHORT)}))


@pytest.fixture(scope="module")
def worlds():
    return {size: in_world(everything, size) for size in SIZES}


def agree(worlds, name, expected):
    """The run of this name, in all worlds that have it, is the one of a single process."""
    seen = 0
    for size, ranks in worlds.items():
        for found in ranks:
            if name in found:
                seen += 1
                assert jobs.distance(found[name], expected) < TOLERANCE, size
                # To the last bit: what α is on one rank, it is on all.
                for key in found[name].keys() - {"parameters"}:
                    assert torch.equal(torch.as_tensor(found[name][key]), torch.as_tensor(ranks[0][name][key])), key
                assert torch.equal(found[name]["parameters"], ranks[0][name]["parameters"])
                if "alpha" in expected:
                    assert found[name]["alpha"] == pytest.approx(expected["alpha"], abs=TOLERANCE)
                    assert found[name]["clamped"] == expected["clamped"]
                    torch.testing.assert_close(
                        found[name]["readings"], expected["readings"], rtol=TOLERANCE, atol=TOLERANCE
                    )
                    assert found[name]["temperature"] == pytest.approx(expected["temperature"], rel=1e-14)
    assert seen


@pytest.mark.parametrize(("kind", "variant"), PAIRS)
def test_ctld(worlds, kind, variant):
    expected = alone(variant)
    assert expected["step"] == VARIANTS[variant].get("steps", jobs.STEPS)
    assert expected["alpha"] != 0.0
    if variant != "calibrated":
        assert expected["bias"].any()
    assert expected["readings"][:, 3].any()  # batches
    if variant == "compensated":
        assert expected["clamped"] > 0
    agree(worlds, f"{kind} {variant}", expected)


@pytest.mark.parametrize(
    ("kind", "method"),
    [(kind, method) for kind in ("ddp", "fsdp") for method in METHODS]
    + [(kind, method) for kind in RARE_KINDS for method in SPECIAL],
)
def test_every_method(worlds, kind, method):
    if method in jobs.OPTIONS:
        assert abs(alone(method)["tempered"]) > 0.2  # it has, or has swapped
    agree(worlds, f"{kind} {method}", alone(method))


@pytest.mark.parametrize("method", METHODS)
def test_another_noise_would_be_seen(method):
    """The twin: another seed, as if a rank drew its own."""
    assert jobs.distance(jobs.run("alone", method=method, steps=SHORT, seed=4), alone(method)) > 1e3 * TOLERANCE


@pytest.mark.parametrize("size", SIZES)
def test_collectives_of_a_step(worlds, size):
    for found in worlds[size]:
        assert found["collectives"] == {
            "ddp exploration": ["c10d.allreduce_"] * (size > 1),
            "ddp fine-tuning": [],
            "fsdp exploration": ["c10d.allreduce_"] * 2 * (size > 1),
            "fsdp fine-tuning": [],
        }


@pytest.mark.parametrize("size", SIZES)
def test_mixed_precision(worlds, size):
    first = worlds[size][0]["mixed"]
    assert first["kinds"] == ["torch.float32"]
    assert first["step"] == jobs.STEPS
    for found in worlds[size]:
        assert found["mixed"]["alpha"] == first["alpha"]
        assert torch.equal(found["mixed"]["bias"], first["bias"])
        assert torch.equal(found["mixed"]["parameters"], first["parameters"])
    # bfloat16 has three digits, and gradients are rounded on each rank before they are added.
    assert jobs.distance(first, worlds[1][0]["mixed"]) < 0.05
