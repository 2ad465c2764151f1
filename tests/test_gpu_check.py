"""The report that a GPU is asked for, made on a CPU; and a law that is wrong on purpose."""

import json

import pytest
import torch
from benchmarks import gpu_check

import ctld


def test_it_runs_and_every_method_agrees(tmp_path, monkeypatch, capsys):
    few = {name: ctld.OPTIMIZERS[name] for name in ("ctld", "sgd", "baoab", "psgld")}
    monkeypatch.setattr(ctld, "OPTIMIZERS", few)
    monkeypatch.setattr(gpu_check, "timed", lambda device, steps: {"SGD, fused": 1.0})
    assert gpu_check.main(["--device", "cpu", "--quick", "--output", str(tmp_path / "report.json")]) == 0
    report = json.loads((tmp_path / "report.json").read_text())
    assert [row["method"] for row in report["methods"]] == list(few)
    assert all(row["agrees"] and row["waits"] is None for row in report["methods"])
    assert capsys.readouterr().out.count("ok  ") == len(few)


@pytest.mark.parametrize("factor", [1.0, 1.1])
def test_noise_that_is_a_tenth_too_loud_is_found(factor):
    """The twin: the standard error of the ratio is 1.4 %, five are allowed, and 1.1² is 21 % too wide."""
    there = gpu_check.walk("baoab", torch.device("cpu"), 60, seed=2)
    here = factor * gpu_check.walk("baoab", torch.device("cpu"), 60, seed=1)
    ratio, good = gpu_check.agreement(here, there, noisy=True)
    assert good == (factor == 1.0), ratio


def test_a_method_without_noise_must_agree_element_by_element():
    there = gpu_check.walk("sgd", torch.device("cpu"), 20, seed=0)
    assert gpu_check.agreement(there, there, noisy=False) == (0.0, True)
    assert not gpu_check.agreement(there + 1e-4, there, noisy=False)[1]
