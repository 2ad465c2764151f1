"""Training in which something goes wrong on one rank: config["sabotage"] says what, on which rank, and after which step.

Random images in the place of the digits, which take seconds to read.
"""

import math
import os
import signal

import numpy as np

from ctld_lab import jobs, train, workloads
from ctld_lab.data import Images
from ctld_lab.executors import team

SIGNALS = {"kill": signal.SIGKILL, "hang": signal.SIGSTOP, "terminate": signal.SIGTERM}


_work_as_rank = team.work_as_rank


def work_as_rank(*arguments, timeout):
    """In a forked process, which has not read sitecustomize.py, and has the environment of the one it was forked from."""
    jobs.KINDS["train"] = "sabotaged"
    os.environ["CTLD_TIMEOUT"] = timeout
    _work_as_rank(*arguments)


def images(name, sha256):
    generator = np.random.default_rng(0)
    pixels = generator.integers(0, 256, (120, 784), dtype=np.uint8) * (generator.random((1, 784)) < 0.5)
    return Images(name, sha256, pixels[:90], np.zeros(90, np.uint8), pixels[90:], np.zeros(30, np.uint8))


def run(directory, config, control):
    """As `train.run`; whoever trains in the same process later finds everything as it was."""
    load_images, workloads.load_images = workloads.load_images, images
    try:
        return _run(directory, config, control)
    finally:
        workloads.load_images = load_images


def _run(directory, config, control):
    rank = control.ranks.rank if control.ranks else 0
    (directory.path / f"pid{rank}").write_text(str(os.getpid()))
    wanted = config.get("sabotage")
    # Once: what is left behind keeps the next attempt from it.
    done = directory.path / "sabotaged"
    if wanted is not None and rank == wanted["rank"] and not done.exists():
        build = workloads.build

        def sabotaged(config):
            workload = build(config)
            loss, counted = workload.loss, [0]

            def worse(step):
                counted[0] += 1
                if counted[0] < wanted["step"]:
                    return loss(step)
                if wanted["how"] == "nan":
                    return loss(step) * math.nan
                if counted[0] == wanted["step"]:
                    done.touch()
                    if wanted["how"] == "raise":
                        raise ArithmeticError("as it was asked to")
                    os.kill(os.getpid(), SIGNALS[wanted["how"]])
                return loss(step)

            workload.loss = worse
            return workload

        workloads.build = sabotaged
        try:
            return train.run(directory, config, control)
        finally:
            workloads.build = build
    return train.run(directory, config, control)
