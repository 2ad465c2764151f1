"""A small training in float64, alone, under DDP or under FSDP2, whose batches are the same on any number of ranks."""

import math
import warnings
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import ctld
import methods

ROWS, STEPS, EXPLORATION = 24, 20, 14
LR = {"santa": 2e-4, "psgld": 1e-3}
OPTIONS = {"tact_hmc": {"alpha_step": 0.3}, "resgld": {"ratio": 1.1}}  # so that few steps temper, and swap


def network():
    """Widths that four ranks cannot share evenly; the last layer has fewer rows than they are."""
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(7, 6), nn.Tanh(), nn.Linear(6, 3)).double()


def batch(step, rank=0, size=1):
    """This rank's rows of the batch of a step."""
    generator = torch.Generator().manual_seed(step)
    rows = torch.randn(ROWS, 10, generator=generator, dtype=torch.float64)
    mine = rows[rank * ROWS // size : (rank + 1) * ROWS // size]
    return mine[:, :7], mine[:, 7:]


def wrapped(kind, size):
    """The network as it is trained: alone, "ddp", "fsdp", "columns" (Shard(1)), "hsdp", or "tensor" (parallel, and FSDP2)."""
    model = network()
    if kind == "ddp":
        return nn.parallel.DistributedDataParallel(model)
    if kind == "tensor":
        mesh = init_device_mesh("cpu", (size // 2, 2), mesh_dim_names=("data", "tensor"))
        parallelize_module(model, mesh["tensor"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
        return fully_shard(model, mesh=mesh["data"])
    if kind != "alone":
        options = {}
        if kind == "columns":
            options["shard_placement_fn"] = lambda parameter: Shard(1) if parameter.shape[1:] == (6,) else None
        if kind == "hsdp":
            options["mesh"] = init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("replicate", "shard"))
        fully_shard(model[0], **options)
        fully_shard(model, **options)
    return model


def optimizer_for(model, method="ctld", *, calibrated=False, **options):
    """With one group of parameters that explores and, for CTLD, one that does not."""
    if calibrated:
        options["tempering"] = ctld.tempering.CalibratedTempering(0.8, warm_up=100)
        options["tempering"]._least_warm_up = 10  # shorter than a user may have it
    needs = (ctld.OPTIMIZERS | methods.METHODS)[method].needs
    known = {"num_data": ROWS, "exploration_steps": EXPLORATION, "num_steps": STEPS, "num_cycles": 2}
    options = (
        {name: value for name, value in known.items() if name in needs}
        | {"weight_decay": 1e-2, "seed": 3}
        | OPTIONS.get(method, {})
        | options
    )
    parameters = list(model.parameters())
    groups = [{"params": parameters[:3]}, {"params": parameters[3:]} | ({"explore": False} if method == "ctld" else {})]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return methods.create(method, groups, **({"lr": LR.get(method, 0.05)} | options))


def loss_of(model, step, rank, size):
    inputs, targets = batch(step, rank, size)
    return (model(inputs) - targets).square().mean()


def train(model, optimizer, steps, rank=0, size=1):
    for step in steps:
        optimizer.zero_grad()
        loss = loss_of(model, step, rank, size)
        loss.backward()
        optimizer.step(loss=loss)


def whole(tensor):
    """Of a sharded tensor, all of it."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def outcome(model, optimizer):
    """What two runs are compared by."""
    found = {"parameters": torch.cat([whole(p.detach()).reshape(-1) for p in model.parameters()])}
    if isinstance(optimizer, ctld.CTLD):
        first = optimizer.state_dict()["param_groups"][0]
        found |= {"alpha": first["ctld_tempering_alpha"]}
        if "ctld_tempering_bias_values" in first:
            found |= {"bias": first["ctld_tempering_bias_values"]}
        (thermometer,) = optimizer.thermometers.groups.values()
        readings = thermometer.kinetic.numbers, thermometer.configurational.numbers
        found |= {"readings": torch.tensor(readings, dtype=torch.float64)}
        found |= {"temperature": optimizer.temperature, "step": first["ctld_step"], "clamped": first["ctld_clamped"]}
    if isinstance(optimizer, methods.TACTHMC | methods.ReSGLD):
        found |= {"tempered": optimizer.alpha if isinstance(optimizer, methods.TACTHMC) else optimizer.swaps}
    return found


def run(kind, rank=0, size=1, *, method="ctld", steps=STEPS, **options):
    model = wrapped(kind, size)
    optimizer = optimizer_for(model, method, **options)
    if kind == "tensor":  # two ranks see the same rows
        rank, size = rank // 2, size // 2
    train(model, optimizer, range(steps), rank, size)
    return outcome(model, optimizer)


def distance(one, other):
    """Relative, of the parameters."""
    a, b = one["parameters"], other["parameters"]
    assert math.isfinite(float(a.norm()))
    return float((a - b).abs().max() / b.abs().max())


def count_collectives(step):
    """The collectives of `step()`, as torch calls them: those of DTensors and of objects too, and barriers."""
    with CommDebugMode() as seen, mock.patch.object(dist, "barrier") as barrier:
        step()
    counts = seen.get_comm_counts().items()
    return [str(operation) for operation, times in counts for _ in range(times)] + ["barrier"] * barrier.call_count
