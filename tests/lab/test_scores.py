"""Scores summed up batch by batch are the library's; members and schedules are what they say."""

import math

import pytest
import torch
from torch import nn

import ctld
from ctld.ensembles import Prediction
from ctld_lab.members import Members
from ctld_lab.schedules import relative_rate
from ctld_lab.scores import Scores, copies


def test_scores_are_those_of_the_library_whatever_the_batches():
    generator = torch.Generator().manual_seed(0)
    logits = [3 * torch.randn(500, 7, generator=generator) for _ in range(4)]
    labels = torch.randint(7, (500,), generator=generator)
    scores = Scores()
    for start, stop in ((0, 130), (130, 131), (131, 500)):
        scores.add([each[start:stop] for each in logits], labels[start:stop])
    mean = torch.stack([each.double().softmax(-1) for each in logits]).mean(0)
    expected = Prediction(mean.log(), torch.zeros(500), 4).metrics(labels)
    found = scores.metrics()
    assert found["nll"] == pytest.approx(expected["nll"], rel=1e-12)
    assert found["error"] == pytest.approx(100 * expected["error"])
    assert found["brier"] == pytest.approx(expected["brier"], rel=1e-6)
    assert found["ece"] == pytest.approx(100 * expected["ece"], rel=1e-5)


def test_certainty_beyond_probabilities_has_a_finite_nll():
    scores = Scores()
    scores.add([torch.tensor([[2000.0, 0.0]])], torch.tensor([1]))
    assert scores.metrics() == {"nll": 2000.0, "error": 100.0, "ece": 100.0, "brier": 2.0}


def test_members_are_copies_and_their_mean_is_exact():
    model = nn.Linear(2, 1)
    each, mean = Members({"steps": [2, 3]}), Members({"steps": [1, 2, 3], "average": True})
    values = (1.0, 1e-9, 4.0)
    for step, value in enumerate(values, start=1):
        nn.init.constant_(model.weight, value)
        each.update(step, model)
        mean.update(step, model)
    assert [float(state["weight"][0, 0]) for state in each.states(model)] == [torch.tensor(1e-9).item(), 4.0]
    (averaged,) = mean.states(model)
    assert averaged["weight"].dtype == torch.float32
    assert float(averaged["weight"][0, 0]) == pytest.approx(sum(values) / 3, rel=1e-7)
    again = Members({"steps": [1, 2, 3], "average": True})
    again.load_state(mean.state())
    assert torch.equal(again.states(model)[0]["weight"], averaged["weight"])
    twins = copies(model, each.states(model))
    assert [twin.weight[0, 0].item() for twin in twins] == [torch.tensor(1e-9).item(), 4.0]
    assert model.weight[0, 0].item() == 4.0


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
