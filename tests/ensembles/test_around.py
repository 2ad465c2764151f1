"""Ensemble.around: cycles, members, guard and prediction around any torch optimizer."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

import ctld
from ctld import CTLD, SGHMC, Ensemble
from targets import Classification, equal, saved

STEPS = 60


def adamw(problem, lr=0.01):
    return torch.optim.AdamW(problem.model.parameters(), lr, weight_decay=0.1)


def backward(problem, step):
    problem.model.zero_grad()
    chosen = torch.arange(16 * step, 16 * step + 16) % 96
    loss = functional.cross_entropy(problem.model(problem.inputs[chosen]), problem.labels[chosen])
    loss.backward()
    return loss


def build(problem, **options):
    return Ensemble.around(adamw(problem), problem.model, STEPS, **({"cycles": 3} | options))


def go_on(problem, ensemble, steps):
    return [ensemble.step(backward(problem, step)) for step in steps]


def test_it_is_the_optimizer_with_its_lr_in_cycles():
    problem, twin = Classification(), Classification()
    ensemble = build(problem)
    records = go_on(problem, ensemble, range(STEPS))
    optimizer, states, losses = adamw(twin), [], []
    for step in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = 0.01 * ctld.cycles.cycle_factor(step, cycle_steps=20, hold_steps=12)
        losses.append(backward(twin, step).item())
        optimizer.step()
        if step % 20 == 19:
            states.append(copy.deepcopy(twin.model.state_dict()))
    assert torch.equal(problem.flat(), twin.flat())
    assert [record.step for record in records if record] == [20, 40, 60]
    assert [record.loss for record in ensemble.records] == pytest.approx(
        [sum(losses[k - 2 : k]) / 2 for k in (20, 40, 60)]
    )
    assert all(equal(member.state, dict(state)) for member, state in zip(ensemble.collector, states, strict=True))
    assert ensemble.done
    assert ensemble.temperature == 0
    assert repr(ensemble).endswith("step 60 of 3 × 20, AdamW>")
    assert ensemble.task == "classification"
    found = ensemble.predict(problem.inputs)
    expected = torch.stack(
        [torch.func.functional_call(twin.model, dict(s), (problem.inputs,)).softmax(-1) for s in states]
    )
    torch.testing.assert_close(found.probabilities, expected.mean(0).detach())


@pytest.mark.parametrize("on_disk", [False, True])
@pytest.mark.parametrize("interruption", [13, 20, 47])
def test_resume_is_bit_for_bit(tmp_path, interruption, on_disk):
    whole, part, other = Classification(), Classification(), Classification()
    straight, ensemble = build(whole), build(part)
    go_on(whole, straight, range(STEPS))
    go_on(part, ensemble, range(interruption))
    if on_disk:
        ensemble.save(tmp_path / "saved")
        with pytest.raises(ValueError, match=r"is around AdamW, which is not saved; give load\(optimizer=...\)"):
            Ensemble.load(tmp_path / "saved", other.model)
        resumed = Ensemble.load(tmp_path / "saved", other.model, optimizer=adamw(other))
    else:
        state = saved(ensemble.state_dict())
        with torch.no_grad():
            other.model[0].weight.add_(1.0)
        resumed = build(other)
        resumed.load_state_dict(state)
    go_on(other, resumed, range(interruption, STEPS))
    assert equal(resumed.state_dict(), straight.state_dict())


@pytest.mark.parametrize("how", ["closure", "watch", "nothing"])
def test_whoever_steps_the_optimizer_trains_the_ensemble(how):
    one, two = Classification(), Classification()
    straight, ensemble = build(one), build(two)
    go_on(one, straight, range(STEPS))
    for step in range(STEPS):
        if how == "closure":
            ensemble.optimizer.step(lambda step=step: ensemble.watch(backward(two, step)))
            continue
        two.model.zero_grad()
        chosen = torch.arange(16 * step, 16 * step + 16) % 96
        loss = functional.cross_entropy(two.model(two.inputs[chosen]), two.labels[chosen])
        if how == "watch":
            loss = ensemble.watch(loss)
        loss.backward()
        ensemble.optimizer.step()
    assert torch.equal(one.flat(), two.flat())
    assert [record.step for record in ensemble.records] == [20, 40, 60]
    if how == "watch":
        assert [r.loss for r in ensemble.records] == pytest.approx([r.loss for r in straight.records])
    else:
        assert [r.loss for r in ensemble.records] == [None] * 3
    backward(two, 0)
    with pytest.warns(UserWarning, match=r"training goes on after the ensemble's 60 steps"):
        ensemble.optimizer.step()
    assert torch.equal(one.flat(), two.flat())  # lr is 0
    assert len(ensemble) == 3


def test_a_collapse_is_left_out_and_training_goes_on_from_the_last_member():
    problem = Classification()
    ensemble = build(problem)
    go_on(problem, ensemble, range(57))
    with torch.no_grad():
        problem.model[2].weight.mul_(-1000.0)
    with pytest.warns(UserWarning, match=r"a cycle has collapsed.*Give a lower lr \(it is 0.01\)"):
        go_on(problem, ensemble, range(57, 60))
    assert len(ensemble) == 2
    assert equal(dict(problem.model.named_parameters()), list(ensemble.collector)[-1].state)
    assert not any(state["exp_avg"].any() for state in ensemble.optimizer.state.values())


def test_other_samplers_and_what_is_refused():
    problem = Classification()
    sghmc = SGHMC(problem.model.parameters(), 1e-3, num_data=96, temperature=1e-4, weight_decay=1e-2, seed=0)
    ensemble = Ensemble.around(sghmc, problem.model, STEPS, cycles=3)
    go_on(problem, ensemble, range(STEPS))
    assert len(ensemble) == 3
    model = nn.Linear(3, 2)
    with pytest.raises(ValueError, match=r"got CTLD. Give Ensemble\(model, lr, num_data, ...\)"):
        Ensemble.around(CTLD(model.parameters(), 0.1, num_data=9, exploration_steps=4, temperature=0), model, STEPS)
    with pytest.raises(TypeError, match=r"must be a torch.optim.Optimizer, got Linear"):
        Ensemble.around(model, model, STEPS)
    with pytest.raises(ValueError, match=r"without a closure, got LBFGS"):
        Ensemble.around(torch.optim.LBFGS(model.parameters()), model, STEPS)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    torch.optim.lr_scheduler.StepLR(optimizer, 10)
    optimizer.zero_grad()
    with pytest.warns(UserWarning, match=r"the cycles will overwrite it. Leave the scheduler out"):
        Ensemble.around(optimizer, model, STEPS)
    with pytest.raises(ValueError, match=r"that is not the model's"):
        Ensemble.around(torch.optim.SGD(nn.Linear(2, 2).parameters(), 0.1), model, STEPS)
