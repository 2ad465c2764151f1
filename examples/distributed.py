"""CTLD on several processes, with checkpoints that another number of processes can take up.

    torchrun --standalone --nproc-per-node 2 examples/distributed.py                     # DDP
    torchrun --standalone --nproc-per-node 2 examples/distributed.py --sharded           # FSDP2
    torchrun --standalone --nproc-per-node 4 examples/distributed.py --sharded --resume  # goes on, on four

The batch of a step is the same on any number of processes that divides it, each taking its rows; so is the noise, and the run.
"""

import argparse
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from ctld import CTLD

BATCH, STEPS, EXPLORATION, NUM_DATA = 64, 400, 200, 2048


def data() -> tuple[Tensor, Tensor]:
    """Points of three noisy spirals, the same on every process."""
    generator = torch.Generator().manual_seed(0)
    label = torch.randint(3, (NUM_DATA,), generator=generator)
    radius = torch.rand(NUM_DATA, generator=generator)
    angle = 4.0 * radius + 2.1 * label + 0.15 * torch.randn(NUM_DATA, generator=generator)
    return torch.stack((radius * angle.cos(), radius * angle.sin()), 1), label


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--sharded", action="store_true", help="FSDP2 in place of DDP")
    parser.add_argument("--checkpoint", default="distributed-checkpoint", help="a directory")
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint")
    parser.add_argument("--stop-after", type=int, default=STEPS, help="steps, as if something had happened then")
    options = parser.parse_args()

    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    if BATCH % size:
        raise SystemExit(f"{size} processes cannot share {BATCH} rows evenly; take 1, 2, 4, ...")
    torch.set_num_threads(1)

    torch.manual_seed(1)  # the same weights everywhere
    network = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3))
    if options.sharded:
        model: nn.Module = fully_shard(network)
    else:
        model = DistributedDataParallel(network)
    # After the model is wrapped, as with every optimizer. Seed and temperature are rank 0's on all ranks.
    optimizer = CTLD(
        model.parameters(), lr=0.2, weight_decay=1e-3, num_data=NUM_DATA, exploration_steps=EXPLORATION, seed=2
    )

    first = 0
    folder = Path(options.checkpoint)
    if options.resume:
        # `.metadata` is written last: a checkpoint that has it is whole.
        newest = max((found.parent for found in folder.glob("*/.metadata")), default=None)
        if newest is None:
            raise SystemExit(f"there is no checkpoint in {folder}; start without --resume")
        weights, state = get_state_dict(model, optimizer)
        loaded = {"model": weights, "optimizer": state, "step": 0}
        dcp.load(loaded, checkpoint_id=newest)
        set_state_dict(model, optimizer, model_state_dict=loaded["model"], optim_state_dict=loaded["optimizer"])
        first = loaded["step"]

    inputs, labels = data()
    for step in range(first, min(STEPS, options.stop_after)):
        rows = torch.randperm(NUM_DATA, generator=torch.Generator().manual_seed(step))[:BATCH]
        mine = rows[rank * BATCH // size : (rank + 1) * BATCH // size]
        loss = nn.functional.cross_entropy(model(inputs[mine]), labels[mine])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step(loss=loss)  # this rank's mean loss; the optimizer averages it

    weights, state = get_state_dict(model, optimizer)
    saved = {"model": weights, "optimizer": state, "step": max(first, min(STEPS, options.stop_after))}
    if saved["step"] > first:
        dcp.save(saved, checkpoint_id=folder / f"{saved['step']:06d}")  # a new one each time: the last is never at risk

    with torch.no_grad():
        accuracy = float((model(inputs).argmax(1) == labels).double().mean())
    if rank == 0:
        print(f"{size} processes, step {saved['step']}: accuracy {accuracy:.4f}, alpha {optimizer.tempering.alpha:.6f}")  # type: ignore[attr-defined]
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
