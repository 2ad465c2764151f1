"""Processes that torchrun has started, each with the same command: rank 0 follows the plan, and the others its orders.

Orders are JSON in the store through which torchrun's processes find each other. When a rank dies, torchrun ends the others, and
with --max-restarts starts the command again, which goes on from the last checkpoint.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

from ctld_lab import jobs
from ctld_lab.control import Control
from ctld_lab.executors import cores, listening
from ctld_lab.records import RunDirectory

SHARED = ("CTLD_DATA", jobs.OWN)  # what rank 0 has made of its command
FAREWELL = 10.0  # seconds
LOOK = 0.05  # seconds between two looks for an order
PLACES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def launched() -> bool:
    """Whether this process is one of several of torchrun's, or of another launcher that speaks as it does."""
    return all(name in os.environ for name in PLACES) and size() > 1


def size() -> int:
    return int(os.environ["WORLD_SIZE"])


class Link:
    """The store, and how many orders have gone through it."""

    def __init__(self) -> None:
        import torch.distributed as dist

        self.store, self.rank, self.size = next(dist.rendezvous("env://"))
        # After a restart the store may still hold the orders of those who came before.
        self.prefix = f"ctld{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
        self.count = 0

    def order(self, **order: Any) -> None:
        self.store.set(f"{self.prefix}/order{self.count}", json.dumps(order))
        self.count += 1

    def next_order(self) -> dict[str, Any]:
        """Without a limit of time, since between runs rank 0 may be busy for long; torchrun sees to it that it lives."""
        import torch.distributed as dist

        key = f"{self.prefix}/order{self.count}"
        parent = os.getppid()
        try:
            while not self.store.check([key]):  # to wait for it would warn of every timeout
                time.sleep(LOOK)
                if os.getppid() != parent:
                    return {"leave": 1}
        except dist.DistError:  # who keeps the store is gone
            return {"leave": 1}
        self.count += 1
        order: dict[str, Any] = json.loads(self.store.get(key))
        return order

    def say_farewell(self) -> None:
        """Rank 0, which may keep the store, is the last to leave."""
        with suppress(RuntimeError):  # who is gone already has no use for it
            self.store.set(f"{self.prefix}/left{self.rank}", "")
            if self.rank == 0:
                self.store.wait([f"{self.prefix}/left{rank}" for rank in range(self.size)], timedelta(seconds=FAREWELL))

    def ranks(self) -> Any:
        """For the run of the last order."""
        import torch.distributed as dist

        from ctld_lab.ranks import Ranks

        return Ranks(self.rank, self.size, dist.PrefixStore(f"{self.prefix}/run{self.count}", self.store))


_links: list[Link] = []


def carry_out(command: Callable[[], int]) -> int:
    """The command on rank 0, its orders on the others; the exit code is the same on all."""
    link = Link()
    _links.append(link)
    code = 1
    try:
        if link.rank > 0:
            code = _follow(link)
        else:
            try:
                code = command()
            finally:
                link.order(leave=code)
    finally:
        link.say_farewell()
    return code


def run_all(paths: Sequence[Path], *, threads: int | None, control: Control) -> dict[Path, str]:
    """On rank 0: the state of each; see `executors.run_all`. After an interruption no other is begun."""
    (link,) = _links
    states = dict.fromkeys(paths, "waiting")
    threads = threads or max(1, cores() // int(os.environ.get("LOCAL_WORLD_SIZE", link.size)))
    with listening(control):
        for path in paths:
            if control.stopping:
                break
            link.order(
                path=str(path.absolute()), environment={name: os.environ[name] for name in SHARED if name in os.environ}
            )
            control.ranks = link.ranks()
            states[path] = jobs.execute(path, threads=threads, control=control)
            if states[path] == "interrupted":
                break
    return states


class Follower(Control):
    """Rank 0 writes what went wrong as it sees it; what this rank saw goes to its error output."""

    def fail(self, directory: RunDirectory, failure: dict[str, Any]) -> None:
        ranks = self.ranks or "a rank"
        print(f"ctld: {ranks}: {directory.path}: {failure['error']}", file=sys.stderr, flush=True)


def _follow(link: Link) -> int:
    control = Follower()
    control.listen()
    while True:
        order = link.next_order()
        if "leave" in order:
            return int(order["leave"])
        os.environ.update(order["environment"])
        control.ranks = link.ranks()
        jobs.follow(Path(order["path"]), control=control)
