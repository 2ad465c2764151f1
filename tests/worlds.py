"""Real processes with a process group: `in_world(function, size, ...)` gives what the function returned on each rank."""

import multiprocessing
import os
import signal
import tempfile
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

PATIENCE = 240.0  # seconds, on a machine that is busy; nothing here takes a tenth of it

# Ranks are forked from a process that has imported what takes three seconds and has computed nothing: to import it on each
# rank would be most of the time that these tests take.
multiprocessing.set_forkserver_preload(
    [
        "torch.distributed.fsdp",
        "torch.distributed.checkpoint.state_dict",
        "torch.distributed.tensor.parallel",
        "torch.nn.parallel",
        "torch._dynamo",  # FSDP asks for it at its first step
        "ctld",
    ]
)


def in_world(function, size, *arguments):
    """Results by rank; they travel as `torch.save`d values that weights_only loading takes. No process outlives this."""
    with tempfile.TemporaryDirectory() as folder:
        context = mp.start_processes(
            _enter, args=(function, size, folder, arguments), nprocs=size, join=False, start_method="forkserver"
        )
        give_up = time.monotonic() + PATIENCE
        try:
            while not context.join(timeout=1.0):  # raises what a rank has raised
                if time.monotonic() > give_up:
                    raise TimeoutError(f"{function.__name__} on {size} ranks did not end")
        finally:
            for process in context.processes:
                if process.is_alive():
                    os.kill(process.pid, signal.SIGKILL)
        return [torch.load(Path(folder, f"{rank}.pt"), weights_only=True) for rank in range(size)]


def _enter(rank, function, size, folder, arguments):
    torch.set_num_threads(1)
    # A file, not a port: another test may take the port in between.
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=size, timeout=timedelta(seconds=60)
    )
    torch.save(function(rank, size, *arguments), f"{folder}/{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()
