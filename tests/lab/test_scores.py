"""What members predict together is judged as the library judges it; schedules and averages are what they say."""

import math

import pytest
import torch
from torch import nn

import ctld
from ctld.ensembles import Metrics, Prediction
from ctld_lab.methods import relative_rate
from ctld_lab.workloads.workload import averaged, in_percent, mean_state


def test_metrics_are_those_of_a_whole_prediction_whatever_the_batches():
    generator = torch.Generator().manual_seed(0)
    logits = [3 * torch.randn(500, 7, generator=generator) for _ in range(4)]
    labels = torch.randint(7, (500,), generator=generator)
    judged = Metrics()
    for start, stop in ((0, 130), (130, 131), (131, 500)):
        judged.add(averaged([each[start:stop] for each in logits]), labels[start:stop])
    mean = torch.stack([each.double().softmax(-1) for each in logits]).mean(0)
    expected = Prediction(mean.log(), torch.zeros(500), 4).metrics(labels)
    del expected["smooth_ece"]  # needs all confidences at once
    assert judged.compute() == pytest.approx(expected, rel=1e-5)
    found = in_percent(judged)
    assert found["nll"] == pytest.approx(expected["nll"], rel=1e-12)
    assert found["error"] == pytest.approx(100 * expected["error"])
    assert found["ece"] == pytest.approx(100 * expected["ece"], rel=1e-5)


def test_certainty_beyond_probabilities_has_a_finite_nll():
    judged = Metrics()
    judged.add(averaged([torch.tensor([[2000.0, 0.0]])]), torch.tensor([1]))
    assert in_percent(judged) == {"nll": 2000.0, "error": 100.0, "ece": 100.0, "brier": 2.0}


def test_metrics_of_nothing_and_of_another_shape_are_refused():
    with pytest.raises(ValueError, match="Call add first"):
        Metrics().compute()
    with pytest.raises(ValueError, match="labels must have shape"):
        Metrics().add(torch.zeros(3, 2), torch.zeros(2, dtype=torch.int64))


def test_mean_of_models_is_summed_in_double_precision():
    values = (1e8, 1.0, -1e8)  # in single precision the one is lost
    averages = mean_state([{"weight": torch.tensor([value])} for value in values])
    assert averages["weight"].dtype == torch.float32
    assert float(averages["weight"]) == pytest.approx(sum(values) / 3, rel=1e-7)


@pytest.mark.filterwarnings("ignore:Detected call of")
def test_cycles_are_those_of_the_librarys_scheduler():
    parameter = nn.Parameter(torch.zeros(3))
    optimizer = ctld.CTLD([parameter], lr=0.4, num_data=10, exploration_steps=6, cycle_steps=10, temperature=0.0)
    scheduler = ctld.CycleLR(optimizer)
    schedule = {"kind": "cycles", "cycle_steps": 10, "hold_steps": 6}
    for step in range(25):
        assert optimizer.param_groups[0]["lr"] == 0.4 * relative_rate(schedule, step)
        parameter.grad = torch.ones(3)
        optimizer.step(loss=1.0)
        scheduler.step()


def test_other_schedules():
    settle = {"kind": "settle", "settle_steps": 100, "factor": 0.2}
    assert [relative_rate(settle, step) for step in (0, 50, 100, 150)] == pytest.approx([1.0, 0.6, 0.2, 0.2])
    cosine = {"kind": "cycles", "cycle_steps": 100, "hold_steps": 0}
    assert relative_rate(cosine, 25) == pytest.approx(0.5 * (1 + math.cos(math.pi / 4)))
    assert relative_rate({"every": 8, "factor": 0.5}, 17) == 0.25
    with pytest.raises(ValueError, match="no schedule of kind 'linear'"):
        relative_rate({"kind": "linear"}, 0)
