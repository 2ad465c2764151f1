"""What a GPU does with every method: its law beside the CPU's, how often a step waits for the device, and what a step costs.

    python -m benchmarks.gpu_check                      # on the GPU, about five minutes; writes gpu-check.json to send back
    python -m benchmarks.gpu_check --device cpu --quick # the same on a CPU, to see that it runs

20,000 independent elements have the same quadratic potential. After the same steps on the device and on the CPU, the variances
of both must agree: their ratio has a standard error of √(4/20,000) = 1.4 %, and five of them are allowed. Methods without noise
must agree element by element. Waits are counted by torch's own synchronisation warnings, on CUDA alone.
"""

import argparse
import json
import math
import platform
import sys
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import ctld

ELEMENTS = 20_000
ALLOWED = 5 * math.sqrt(4 / ELEMENTS)
LR, CURVATURE, NUM_DATA = 0.05, 1.0, 100.0
OPTIONS: dict[str, dict[str, Any]] = {
    "ctld": {"exploration_steps": 10**6, "temperature": 1.0, "tempering": ctld.Tempering.constant()},
    "csghmc": {"num_steps": 400, "num_cycles": 2},
    "santa": {"exploration_steps": 10**6, "lr": 1e-3, "epsilon": 1e-2},
    "psgld": {"epsilon": 0.1},
}


def build(name: str, parameters: Sequence[nn.Parameter], seed: int) -> Any:
    """Return the method with a step that is stable on the quadratic."""
    row = ctld.OPTIMIZERS[name]
    options = {"lr": LR, **OPTIONS.get(name, {})}
    if row.noisy:
        options |= {"seed": seed}
    if row.samples or name in ("ctld", "santa", "simulated_annealing"):
        options |= {"num_data": NUM_DATA}
    return ctld.create(name, parameters, **options)


def walk(name: str, device: torch.device, steps: int, seed: int) -> Tensor:
    """Return the parameters after so many steps on the quadratic, started at one place."""
    parameter = nn.Parameter(torch.full((ELEMENTS,), 0.1, device=device))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        optimizer = build(name, [parameter], seed)
        for _ in range(steps):
            take(optimizer, parameter)
    return parameter.detach().double().cpu()


def take(optimizer: Any, parameter: nn.Parameter) -> None:
    """Take a step on the mean loss k·θ²/2, a sum over elements that do not know of each other."""
    optimizer.zero_grad()
    loss = 0.5 * CURVATURE * parameter.square().sum()
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step(loss=loss.detach())


def agreement(here: Tensor, there: Tensor, *, noisy: bool) -> tuple[float, bool]:
    """Return the ratio of variances, or the largest difference, and True if it is small enough."""
    if noisy:
        ratio = float(here.var() / there.var())
        return ratio, abs(math.log(ratio)) < ALLOWED if ratio > 0 else False
    difference = float((here - there).abs().max())
    return difference, difference < 1e-5


def waits(name: str, device: torch.device) -> int | None:
    """Return how often one step waits for the device, zero_grad and backward among it; None where torch cannot tell."""
    if device.type != "cuda":
        return None
    parameter = nn.Parameter(torch.full((ELEMENTS,), 0.1, device=device))
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        optimizer = build(name, [parameter], 0)
        for _ in range(5):
            take(optimizer, parameter)
        seen.clear()
        torch.cuda.set_sync_debug_mode("warn")
        try:
            take(optimizer, parameter)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        return sum("synchroniz" in str(one.message) for one in seen)


def microseconds(optimizer: Any, parameters: Sequence[nn.Parameter], steps: int) -> float:
    """Return the median time of a step with given gradients; a step on a GPU is over when the device is idle."""
    device, times = parameters[0].device, []
    loss = torch.zeros((), device=device)
    for parameter in parameters:
        parameter.grad = torch.full_like(parameter, 1e-3)
    for _ in range(steps):
        began = time.perf_counter()
        optimizer.step(loss=loss) if isinstance(optimizer, ctld.CTLD | ctld.Langevin) else optimizer.step()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append(time.perf_counter() - began)
    return 1e6 * sorted(times)[len(times) // 2]


def timed(device: torch.device, steps: int) -> dict[str, float]:
    """Return microseconds of a step on 100 tensors of 65,536 elements, fused SGD beside two of ours."""
    found = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        for name in ("SGD, fused", "ctld", "langevin"):
            parameters = [nn.Parameter(torch.zeros(65_536, device=device)) for _ in range(100 if steps > 10 else 4)]
            fused = name == "SGD, fused"
            made = torch.optim.SGD(parameters, LR, 0.9, fused=True) if fused else build(name, parameters, 0)
            found[name] = round(microseconds(made, parameters, steps), 1)
    return found


def check(device: torch.device, *, steps: int, timing_steps: int) -> dict[str, Any]:
    """Return the report: a line for each method, the times, and the machine."""
    rows = []
    for name, row in ctld.OPTIMIZERS.items():
        if row.needs_process_group:
            continue
        noisy = row.noisy
        here, there = (walk(name, where, steps, seed) for where, seed in ((device, 1), (torch.device("cpu"), 2)))
        value, good = agreement(here, there, noisy=noisy)
        measure = "variance, device/CPU" if noisy else "largest difference"
        rows.append({"method": name, measure: value, "agrees": good, "waits": waits(name, device)})
    cuda = device.type == "cuda"
    return {
        "device": torch.cuda.get_device_name(device) if cuda else platform.machine(),
        "versions": {"torch": torch.__version__, "ctld": ctld.__version__, "cuda": torch.version.cuda},
        "methods": rows,
        "microseconds": timed(device, timing_steps),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--quick", action="store_true", help="fewer steps: it shows that the script runs")
    parser.add_argument("--output", type=Path, default=Path("gpu-check.json"))
    given = parser.parse_args(arguments)
    report = check(torch.device(given.device), steps=60 if given.quick else 400, timing_steps=5 if given.quick else 200)
    given.output.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    for row in report["methods"]:
        sys.stdout.write(f"{'ok  ' if row['agrees'] else 'FAIL'} {row}\n")
    sys.stdout.write(f"{report['microseconds']} microseconds a step; written to {given.output}\n")
    return 0 if all(row["agrees"] for row in report["methods"]) else 1


if __name__ == "__main__":
    sys.exit(main())
