"""
Several processes, one path
===========================

Noise is a function of (seed, step, parameter, element), so one process or two take the same path. This page
starts `examples/distributed.py` with `torchrun`, once on one process and once on two, and compares what they
print.
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt

script = Path.cwd().resolve()
while not (script / "examples" / "distributed.py").exists():
    script = script.parent
script = script / "examples" / "distributed.py"


def run(processes):
    """Accuracy and α that rank 0 prints."""
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        str(processes),
        str(script),
    ]
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [*command, "--checkpoint", f"{folder}/checkpoint"],
            capture_output=True,
            text=True,
            check=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
    found = re.search(r"accuracy ([\d.]+), alpha (-?[\d.]+)", done.stdout)
    return float(found[1]), float(found[2])


results = {processes: run(processes) for processes in (1, 2)}
for processes, (accuracy, alpha) in results.items():
    print(f"{processes} process{'es' if processes > 1 else ''}: accuracy {accuracy:.3f}, alpha {alpha:.4f}")

# %%
# The order in which gradients are summed is all that differs.

figure, axis = plt.subplots(figsize=(5, 2.2), layout="constrained")
axis.barh(["1 process", "2 processes"], [value[0] for value in results.values()], color=["lightgrey", "tab:blue"])
axis.set(xlabel="accuracy", xlim=(0, 1))
plt.show()
