"""Saved by torch.distributed.checkpoint in one world, resumed in another: the trajectory goes on as if nothing had happened."""

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

import parallel_runs as jobs
from worlds import in_world

pytestmark = [
    pytest.mark.xdist_group("elastic"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"),
]

# In exploration, in a warm-up if there is one; and in fine-tuning.
INTERRUPTIONS = (7, 17)
METHODS = ("ctld", "calibrated", "santa", "sgnht", "tact_hmc", "resgld")


# CTLD goes every way; of the others, whose buffers are sharded alike, those that are named here.
FEW = ("fsdp 2 -> fsdp 4", "ddp 2 -> fsdp 1", "fsdp 4 -> alone 1", "fsdp 2 -> fsdp 2")


def methods(way):
    return METHODS if way in FEW else METHODS[:1]


def interruptions(method):
    """Other methods have one phase, or are in the first of their two throughout."""
    return INTERRUPTIONS if method in ("ctld", "calibrated") else INTERRUPTIONS[:1]


# Each world: what it saves, and which checkpoints it resumes in which way. Every kind is resumed, and by another size.
PLAN = [
    (2, ["ddp", "fsdp"], []),
    (4, ["fsdp", "hsdp"], [("ddp 2", "fsdp"), ("fsdp 2", "fsdp"), ("fsdp 2", "ddp")]),
    (1, ["alone", "fsdp"], [("ddp 2", "fsdp"), ("fsdp 2", "alone"), ("fsdp 4", "alone"), ("hsdp 4", "fsdp")]),
    (2, [], [("fsdp 2", "fsdp"), ("fsdp 4", "fsdp"), ("hsdp 4", "ddp"), ("alone 1", "fsdp"), ("fsdp 1", "ddp")]),
]


def options(method):
    """Of a run; "calibrated" is CTLD too, first interrupted in its warm-up."""
    return {
        "ctld": {"method": "ctld", "noise_compensation": True},
        "calibrated": {"method": "ctld", "calibrated": True, "integrator": "baoab"},
    }.get(method, {"method": method})


def save(rank, size, kind, folder):
    needed = any(way.startswith(f"{kind} {size} ->") for way in FEW)
    for method in METHODS if needed else METHODS[:1]:
        model = jobs.wrapped(kind, size)
        optimizer = jobs.optimizer_for(model, **options(method))
        done = 0
        for interruption in interruptions(method):
            jobs.train(model, optimizer, range(done, interruption), rank, size)
            done = interruption
            weights, state = get_state_dict(model, optimizer)
            dcp.save(
                {"model": weights, "optimizer": state}, checkpoint_id=f"{folder}/{kind} {size} {method} {interruption}"
            )


def resume(rank, size, kind, source, folder):
    """By method and interruption; from other weights, other momenta and another seed, all of which the state replaces."""
    found = {}
    for method in methods(f"{source} -> {kind} {size}"):
        for interruption in interruptions(method):
            model = jobs.wrapped(kind, size)
            optimizer = jobs.optimizer_for(model, seed=99, **options(method))
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.add_(1.0)
            weights, state = get_state_dict(model, optimizer)
            loaded = {"model": weights, "optimizer": state}
            dcp.load(loaded, checkpoint_id=f"{folder}/{source} {method} {interruption}")
            set_state_dict(model, optimizer, model_state_dict=loaded["model"], optim_state_dict=loaded["optimizer"])
            jobs.train(model, optimizer, range(interruption, jobs.STEPS), rank, size)
            found[f"{method} {interruption}"] = jobs.outcome(model, optimizer)
    return found


def world(rank, size, kinds, sources, folder):
    found = {}
    for source, kind in sources:
        found[f"{source} -> {kind} {size}"] = resume(rank, size, kind, source, folder)
    dist.barrier()
    for kind in kinds:
        save(rank, size, kind, folder)
    return found


@pytest.fixture(scope="module")
def resumed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoints")
    return [in_world(world, size, kinds, sources, str(folder)) for size, kinds, sources in PLAN]


@pytest.fixture(scope="module")
def uninterrupted():
    return {method: jobs.run("alone", **options(method)) for method in METHODS}


@pytest.mark.parametrize("method", METHODS)
def test_the_trajectory_goes_on(resumed, uninterrupted, method):
    compared = set()
    for ranks in resumed:
        for found in ranks:
            for way, runs in found.items():
                for interruption in interruptions(method) if method in methods(way) else ():
                    outcome = runs[f"{method} {interruption}"]
                    assert jobs.distance(outcome, uninterrupted[method]) < 1e-6, (way, interruption)
                    if method == "ctld":
                        assert outcome["alpha"] == pytest.approx(uninterrupted[method]["alpha"], abs=1e-6)
                        assert outcome["step"] == jobs.STEPS
                    compared.add(way)
    ways = {f"{source} -> {kind} {size}" for size, _, sources in PLAN for source, kind in sources}
    assert compared == (ways if method == "ctld" else set(FEW))


def test_on_as_many_ranks_it_goes_on_to_the_same_bits(resumed):
    """Sharded twice alike: not one bit differs from the run that was not interrupted."""
    reference = in_world(straight_on, 2)
    for rank, found in enumerate(resumed[-1]):
        for method in METHODS:
            for interruption in interruptions(method):
                outcome = found["fsdp 2 -> fsdp 2"][f"{method} {interruption}"]
                assert torch.equal(outcome["parameters"], reference[rank][method]["parameters"])


def straight_on(rank, size):
    return {method: jobs.run("fsdp", rank, size, **options(method)) for method in METHODS}


def test_a_plain_state_of_a_sharded_parameter_is_refused(tmp_path):
    (message,) = in_world(load_plain, 1, str(tmp_path))
    assert "momentum_buffer of parameter 0 is not sharded in the state, unlike here" in message
    assert "set_state_dict" in message


def load_plain(rank, size, folder):
    whole = jobs.optimizer_for(jobs.wrapped("alone", size))
    optimizer = jobs.optimizer_for(jobs.wrapped("fsdp", size))
    torch.save(whole.state_dict(), Path(folder, "plain.pt"))
    try:
        optimizer.load_state_dict(torch.load(Path(folder, "plain.pt"), weights_only=True))
    except ValueError as error:
        return str(error)
    return "accepted"
