"""The examples do what their first lines say."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "examples" / "distributed.py"


def torchrun(size, example, *options):
    """What rank 0 printed: the step, how good the model is, and α."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(size)]
    words = [*command, str(EXAMPLE.with_name(example)), *map(str, options)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    found = re.search(r"(\d) processes, step (\d+): \w+ ([\d.]+)[ %]*, alpha (-?[\d.]+)", done.stdout)
    assert found, done.stdout
    assert int(found[1]) == size
    return int(found[2]), float(found[3]), float(found[4])


@pytest.mark.xdist_group("examples")
def test_digits_on_ranks(tmp_path):
    """Two processes that stop and are started again, and one that was never stopped: one run."""
    assert torchrun(2, "digits_on_ranks.py", "--steps", 30, "--dir", tmp_path / "two")[0] == 30
    step, error, alpha = torchrun(2, "digits_on_ranks.py", "--steps", 60, "--dir", tmp_path / "two")
    whole = torchrun(1, "digits_on_ranks.py", "--steps", 60, "--dir", tmp_path / "one")
    assert (step, error) == whole[:2]
    assert alpha == pytest.approx(whole[2], abs=2e-9)  # sums are taken in another order, in float64
    assert error < 30


@pytest.mark.long
@pytest.mark.xdist_group("examples")
def test_distributed(tmp_path):
    """Two processes with whole parameters; two with shards that are stopped, and four that take them up: one run."""
    step, accuracy, alpha = torchrun(2, "distributed.py", "--checkpoint", tmp_path / "whole")
    assert step == 400
    assert accuracy > 0.9
    assert (
        torchrun(2, "distributed.py", "--sharded", "--stop-after", 150, "--checkpoint", tmp_path / "shards")[0] == 150
    )
    options = "--sharded", "--resume", "--checkpoint", tmp_path / "shards"
    step, resumed_accuracy, resumed_alpha = torchrun(4, "distributed.py", *options)
    assert step == 400
    # In float32 the order of sums shows in the seventh digit; the printed α has six.
    assert resumed_alpha == pytest.approx(alpha, abs=1e-4)
    assert resumed_accuracy == pytest.approx(accuracy, abs=2e-3)
