"""The C kernels under AddressSanitizer and UndefinedBehaviorSanitizer, on tensors of odd sizes, types and layouts.

`python tests/fuzz/kernels_under_sanitizers.py 200000` makes so many steps, each a call of the kernels, and ends with the
sanitizer's report at the first access that is not theirs. It needs gcc with its sanitizers.
"""

import os
import random
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

SOURCES = Path(__file__).parents[2] / "src" / "ctld" / "stepping"
FLAGS = [
    "-O1",
    "-g",
    "-std=gnu11",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-Wno-psabi",
    "-shared",
    "-fPIC",
    "-fopenmp",
]
SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
METHODS = ("ctld", "sgld", "psgld", "sghmc", "sgnht", "langevin", "santa")
SIZES = (0, 1, 2, 3, 5, 7, 15, 16, 17, 31, 33, 63, 65, 127, 1000, 4095, 4096, 4097, 9001)


def build(folder: Path) -> Path:
    library = folder / "_kernels.so"
    subprocess.run(["gcc", *FLAGS, *SANITIZERS, str(SOURCES / "kernels.c"), "-o", str(library), "-lm"], check=True)
    return library


def run(library: Path, count: int, *, overrun: bool = False) -> subprocess.CompletedProcess[str]:
    """In a process that has the sanitizer's allocator from the start."""
    runtimes = [
        subprocess.run(["gcc", f"-print-file-name={name}"], capture_output=True, text=True, check=True).stdout.strip()
        for name in ("libasan.so", "libubsan.so")
    ]
    environment = os.environ | {
        "LD_PRELOAD": " ".join(runtimes),
        "ASAN_OPTIONS": "detect_leaks=0",
        "OMP_NUM_THREADS": "2",
        "PYTHONPATH": str(SOURCES.parents[1]),
        "PYTHONMALLOC": "malloc",
    }
    command = [sys.executable, __file__, str(count), str(library), "overrun" if overrun else ""]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def steps(library: Path, count: int, overrun: bool) -> None:
    """Makes random optimizers and steps of them."""
    import torch

    import ctld
    from ctld.stepping import native

    native.LIBRARY = library
    found = native.load()
    assert found is not None
    if overrun:  # what should be noticed: a number written behind a tensor
        found.numbers("gaussian", 1, 1, 1, 0, 8)
        small = torch.empty(7, dtype=torch.float32)
        found._numbers(found.level, 1, 1, 1, 1, 0, 8, small.data_ptr())
    dice, done = random.Random(1), 0
    while done < count:
        dtype = dice.choice((torch.float32, torch.float64, torch.bfloat16))
        params = [torch.nn.Parameter(torch.randn(dice.choice(SIZES), dtype=dtype)) for _ in range(dice.randrange(1, 5))]
        if dice.random() < 0.3:
            params.append(torch.nn.Parameter(torch.randn(6, 5, dtype=dtype).t()))
        method = dice.choice(METHODS)
        options = {"num_data": 1e6, "lr": 1e-4, "weight_decay": dice.choice((0.0, 1e-3)), "seed": dice.randrange(2**62)}
        if method in ("ctld", "santa"):
            options["exploration_steps"] = dice.choice((0, 3, 100))
        if method == "ctld":
            options |= {
                "integrator": dice.choice(("euler", "baoab", "ubu")),
                "noise": dice.choice(("gaussian", "three_point")),
            }
            options |= {"temperature": 1.0, "check_gradients": dice.random() < 0.8}
            if options["integrator"] == "euler" and dice.random() < 0.3:
                options["noise_compensation"] = True
        optimizer = ctld.create(method, params, **options)
        torch.set_num_threads(dice.choice((1, 2)))
        for _ in range(10):
            for parameter in params:
                parameter.grad = torch.randn_like(parameter) if dice.random() < 0.95 else None
            optimizer.step(loss=1.0)
            done += 1
    print(f"{done} steps")  # noqa: T201


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    if len(sys.argv) > 2:
        steps(Path(sys.argv[2]), int(sys.argv[1]), sys.argv[3] == "overrun")
    else:
        with tempfile.TemporaryDirectory() as made:
            library = build(Path(made))
            twin = run(library, 10, overrun=True)
            if not (twin.returncode and "AddressSanitizer" in twin.stderr):
                sys.exit(f"a number behind a tensor was not noticed, so nothing would be: {twin.stderr[-1000:]}")
            ended = run(library, int(sys.argv[1]))
        sys.stdout.write(ended.stdout)
        sys.stderr.write(ended.stderr[-4000:])
        sys.exit(ended.returncode)
