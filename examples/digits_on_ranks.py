"""The laboratory's perceptron on digits, trained by several processes: each takes its rows of every batch.

    torchrun --standalone --nproc-per-node 2 examples/digits_on_ranks.py --steps 200
    torchrun --standalone --nproc-per-node 4 examples/digits_on_ranks.py --steps 400    # goes on, on four

Batches and noise do not depend on the number of processes, and CTLD averages the loss: all have one α, and one trajectory.
The first process writes the checkpoint, whole or not at all; killed at any moment, the same command goes on.
"""

import argparse
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import ctld
from ctld_lab import data
from ctld_lab.checkpoints import load_newest, save_checkpoint
from ctld_lab.streams import numpy_generator, stream_seed
from ctld_lab.workloads import MnistMLP

BATCH, EXPLORATION, SAVE_EVERY = 128, 150, 50


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--dir", type=Path, default=Path("digits-on-ranks"))
    options = parser.parse_args()
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    if BATCH % size:
        raise SystemExit(f"{size} processes cannot share {BATCH} rows evenly; take 1, 2, 4, ...")
    torch.set_num_threads(1)

    images = data.load_images("digits")
    train, test = (images.train, images.train_labels), (images.test, images.test_labels)
    workload = MnistMLP(train, test, held_out_name="test", seed=0, dtype="float64")  # the same weights everywhere
    model = DistributedDataParallel(workload.model)
    inputs, labels = torch.from_numpy(images.train).double() / 255, torch.from_numpy(images.train_labels).long()
    optimizer = ctld.CTLD(
        model.parameters(), lr=0.1, num_data=len(labels), exploration_steps=EXPLORATION, seed=stream_seed(0, "noise")
    )

    options.dir.mkdir(parents=True, exist_ok=True)
    path = options.dir / "checkpoint.safetensors"
    if rank == 0:
        load_newest(path)  # which sets a damaged one aside
    dist.barrier()
    step, found = 0, load_newest(path)
    if found is not None:
        step = found[0]["step"]
        workload.model.load_state_dict(found[0]["model"])
        optimizer.load_state_dict(found[0]["optimizer"])
    dist.barrier()  # nothing is saved until all have read

    while step < options.steps:
        rows = torch.from_numpy(numpy_generator(0, "data", step).permutation(len(labels))[:BATCH])
        mine = rows[rank * BATCH // size : (rank + 1) * BATCH // size]
        loss = nn.functional.cross_entropy(model(inputs[mine]), labels[mine])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step(loss=loss)  # this rank's mean loss; the optimizer averages it
        step += 1
        if rank == 0 and (step % SAVE_EVERY == 0 or step == options.steps):
            state = {"step": step, "model": workload.model.state_dict(), "optimizer": optimizer.state_dict()}
            save_checkpoint(path, state)

    if rank == 0:
        error = workload.evaluate(thorough=True)["test"]["error"]
        print(f"{size} processes, step {step}: error {error:.1f} %, alpha {optimizer.tempering.alpha:.9f}")  # type: ignore[attr-defined]
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
