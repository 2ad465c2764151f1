"""kill -9 of a run, at random moments, again and again; each time it is resumed, and ends where it would have, to the bit.

    python tests/torture/kill_and_resume.py --workload sda --kills 100 --seed 0

A kill hits the process that trains, the command, or both; while starting, training, or writing a checkpoint.
"""

import argparse
import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from ctld_lab.checkpoints import load_newest
from ctld_lab.data import identify
from ctld_lab.jobs import environment
from ctld_lab.records import RecordError, RunDirectory, write_json

STEPS_PER_KILL = 90  # more than most attempts take before they are killed
LONGEST = 120.0  # seconds that anything here may take; a machine under load is slow


def configuration(workload, seed, kills):
    """CTLD on an autoencoder of three stages, or on text with a carried state; each stage is half exploration."""
    steps = max(450, STEPS_PER_KILL * kills)
    if workload == "sda":
        stages, data = [steps // 3] * 3, "digits"
        network = {"widths": [784, 24, 16, 10], "batch_size": 33, "curve_rows": 50}
    else:
        stages, data = [steps], "pydoc"
        network = {"hidden": 12, "layers": 2, "batch_size": 7, "length": 12, "train_characters": 50_000}
        network |= {"curve_characters": 500, "held_out_characters": 2000}
    return {
        "kind": "train", "role": "final", "method": "ctld", "seed": seed, "steps": stages, "keep_parameters": True,
        "data": {"name": data, "sha256": identify(data)}, "workload": {"name": workload, "dtype": "float64"} | network,
        "optimizer": {"lr": 0.02, "momentum": 0.5, "temperature": 0.003}, "exploration_steps": stages[0] // 2,
        "evaluations": 5, "checkpoint_seconds": 0.02,
    }  # fmt: skip


# ---- processes ----


class Attempt:
    """`ctld resume RUN`, in a session of its own."""

    def __init__(self, path):
        self.path = path
        self.live = []
        words = [sys.executable, "-m", "ctld_lab", "resume", str(path), "--threads", "1"]
        self.began = time.time_ns()
        self.command = subprocess.Popen(
            words, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
        )

    def workers(self):
        """The process that trains; none before it is started."""
        found = []
        for place in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                parent = int((place / "stat").read_text().rpartition(")")[2].split()[1])
                if parent == self.command.pid and b"spawn_main" in (place / "cmdline").read_bytes():
                    found.append(int(place.name))
        return found

    def over(self):
        return self.command.poll() is not None

    def has_saved(self):
        with contextlib.suppress(OSError):
            return RunDirectory(self.path).checkpoint.stat().st_mtime_ns > self.began
        return False

    def is_saving(self):
        return self.has_saved() and any(self.path.glob(".checkpoint*.unfinished"))

    def kill(self, victim):
        """`victim` is "worker", "command" or "both"."""
        self.live = self.workers()
        if victim == "worker" and self.live:
            os.kill(self.live[0], signal.SIGKILL)
        elif victim == "both":
            os.killpg(self.command.pid, signal.SIGKILL)
        else:
            self.command.kill()

    def finish(self):
        """Wait for it, and return what it printed. Nothing may be left of it soon after."""
        out, _ = self.command.communicate(timeout=LONGEST)
        wait_for(lambda: not any(map(alive, self.live)), f"a worker outlives the command: {self.live}")
        return out


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_for(condition, what, pause=0.05):
    end = time.monotonic() + LONGEST
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"after {LONGEST:g} s: {what}")
        time.sleep(pause)


# ---- what is compared ----


def parameters(path):
    found, _ = load_newest(path / "parameters.safetensors")
    return torch.cat([tensor.flatten() for tensor in found.values()])


def records(path):
    """Curves and traces, times excepted."""
    run = RunDirectory(path)
    lines = run.metrics()
    for line in lines:
        del line["seconds"]
    return lines, run.trace()


def step_of(path):
    """That from which the run will go on."""
    try:
        found = load_newest(RunDirectory(path).checkpoint)
    except RecordError:
        return None
    return (
        0 if found is None else sum(RunDirectory(path).config()["steps"][: found[0]["stage"]]) + found[0]["stage_step"]
    )


# ---- torture ----


def torture(workload, kills, seed, root, say=print):
    """A summary. As many runs, one after the other, as it takes for all kills to hit a live one."""
    chance = random.Random(f"{workload} {seed}")
    began, hits, runs = time.monotonic(), [], 0
    while len(hits) < kills:
        config = configuration(workload, seed + runs, kills - len(hits))
        whole, tortured = RunDirectory(root / f"whole-{runs}"), RunDirectory(root / f"tortured-{runs}")
        for run in (whole, tortured):
            run.prepare(config)
        Attempt(whole.path).finish()
        assert whole.result() is not None, whole.failure()
        while tortured.result() is None:
            hit = one_attempt(tortured, chance, hurt=len(hits) < kills)
            if hit is not None:
                hits.append(hit)
                say(f"{workload} {len(hits):3d}: {hit['victim']} while {hit['moment']} → step {hit['step']}")
        assert torch.equal(parameters(tortured.path), parameters(whole.path))
        assert records(tortured.path) == records(whole.path)
        left = [path.name for path in tortured.path.iterdir() if "checkpoint" in path.name or "unfinished" in path.name]
        assert not left, f"left behind: {left}"
        runs += 1
    summary = {
        "workload": workload, "kills": len(hits), "runs": runs, "steps": sum(config["steps"]), "seed": seed,
        "differing_bits": 0, "seconds": round(time.monotonic() - began, 1), "hits": hits,
    }  # fmt: skip
    say(f"{workload}: {len(hits)} kills, {runs} run(s), no bit differs, {summary['seconds']} s")
    return summary


def one_attempt(run, chance, *, hurt):
    """Resume, and kill if `hurt`. What was hit; None if the run was done before, or was left in peace."""
    attempt = Attempt(run.path)
    try:
        if not hurt:
            out = attempt.finish()
            assert run.result() is not None, (out, run.failure())
            return None
        moment = chance.choices(("starting", "training", "saving"), (1, 4, 3))[0]
        victim = chance.choice(("worker", "worker", "command", "both"))
        delay = chance.random()
        if moment == "starting":
            time.sleep(3.0 * delay)
        elif moment == "training":
            wait_for(lambda: attempt.has_saved() or attempt.over(), "no checkpoint")
            time.sleep(0.2 * delay)
        else:
            wait_for(lambda: attempt.is_saving() or attempt.over(), "no checkpoint was being written", pause=0.001)
        if attempt.over():
            assert run.result() is not None, (attempt.finish(), run.failure())
            return None
        attempt.kill(victim)
        attempt.finish()
        if run.result() is not None:  # it came too late
            return None
        return {"victim": victim, "moment": moment, "step": step_of(run.path)}
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(attempt.command.pid, signal.SIGKILL)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", choices=["sda", "char_lstm", "both"], default="both")
    parser.add_argument("--kills", type=int, default=100, help="of each workload")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, help="a summary, as JSON")
    options = parser.parse_args()
    sys.stdout.reconfigure(line_buffering=True)
    summaries = []
    for workload in ("sda", "char_lstm") if options.workload == "both" else [options.workload]:
        with tempfile.TemporaryDirectory(prefix="ctld-torture-", ignore_cleanup_errors=True) as place:
            summaries.append(torture(workload, options.kills, options.seed, Path(place)))
    if options.output is not None:
        made = environment(1)
        about = {key: made[key] for key in ("versions", "commit", "dirty", "machine", "cores", "started")}
        write_json(options.output, about | {"torture": summaries})


if __name__ == "__main__":
    main()
