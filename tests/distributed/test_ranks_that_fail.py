"""What goes wrong on one rank is known to all of them: none hangs, none goes on alone."""

import math

import pytest
import torch

import ctld
import parallel_runs as jobs
from ctld import DriftError, NonFiniteError, ranks
from worlds import in_world

pytestmark = [pytest.mark.xdist_group("faults"), pytest.mark.filterwarnings("ignore::DeprecationWarning")]


def refusals(rank, size):
    """Odd values on the last rank alone: the message on each rank, and whether anything changed."""
    found = {}
    for kind in ("ddp", "fsdp"):
        model = jobs.wrapped(kind, size)
        optimizer = jobs.optimizer_for(model)
        jobs.train(model, optimizer, range(5), rank, size)
        for name in ("loss", "gradient"):
            before = jobs.outcome(model, optimizer)
            loss = jobs.loss_of(model, 5, rank, size)
            optimizer.zero_grad()
            loss.backward()
            if rank == size - 1 and name == "loss":
                loss = loss * math.nan
            if rank == size - 1 and name == "gradient":  # after the reduction, as a defect of one machine would be
                gradient = next(iter(model.parameters())).grad
                getattr(gradient, "_local_tensor", gradient)[0, 0] = math.inf
            try:
                optimizer.step(loss=loss)
                message = "taken"
            except NonFiniteError as error:
                message = str(error)
            after = jobs.outcome(model, optimizer)
            same = all(torch.equal(torch.as_tensor(before[key]), torch.as_tensor(after[key])) for key in before)
            found[f"{kind} {name}"] = (message, same)
        jobs.train(model, optimizer, range(5, jobs.STEPS), rank, size)  # it goes on as if nothing had been
        found[kind] = jobs.outcome(model, optimizer)
    return found


def failing(rank, size):
    """The last rank has an error of its own; what each says, and whether they go on together afterwards."""
    found = {}
    for kind in ("ddp", "fsdp"):
        model = jobs.wrapped(kind, size)
        optimizer = jobs.optimizer_for(model)
        for step in range(6):
            optimizer.zero_grad()
            loss = jobs.loss_of(model, step, rank, size)
            loss.backward()
            odd = step in (0, 3) and rank == size - 1
            try:
                optimizer.step(loss=None if odd else loss)
            except ValueError as error:
                found[f"{kind} {step}"] = str(error)
        found[kind] = jobs.outcome(model, optimizer)
    return found


def drifting(rank, size):
    """What each rank says when the last one has another value."""
    found = {}

    def advance(optimizer, model, step):
        try:
            jobs.train(model, optimizer, [step], rank, size)
        except DriftError as error:
            return str(error)
        return ""

    for name in ("seed", "step", "alpha", "temperature", "parameter"):
        model = jobs.wrapped("ddp", size)
        optimizer = jobs.optimizer_for(model)
        jobs.train(model, optimizer, range(3), rank, size)
        if rank == size - 1:
            if name == "alpha":
                optimizer.tempering.alpha += 1e-15
            elif name == "parameter":
                next(iter(model.parameters())).data.add_(1e-6)
            else:
                holders = {"seed": (optimizer, "seed"), "step": (optimizer.clock, "steps")}
                holder, attribute = (holders | {"temperature": (optimizer._posterior, "value")})[name]
                setattr(holder, attribute, getattr(holder, attribute) + 1)
        found[name] = [advance(optimizer, model, step) for step in (3, 4)]
    # Options that differ, of sharded parameters: no copy could show it.
    others = {"lr": {"lr": 0.04}, "momentum": {"momentum": 0.5}, "noise": {"noise": "three_point"}}
    others |= {"integrator": {"integrator": "baoab"}, "kind": {"tempering": ctld.Tempering.constant()}}
    for name, options in others.items():
        model = jobs.wrapped("fsdp", size)
        optimizer = jobs.optimizer_for(model, **(options if rank == size - 1 else {}))
        found[f"fsdp {name}"] = [advance(optimizer, model, 0)]
    model = jobs.wrapped("ddp", size)
    optimizer = jobs.optimizer_for(model, "langevin", temperature=1.0 + (rank == size - 1))
    found["hotter"] = [advance(optimizer, model, 0)]
    # A method that has no reduction in its steps looks now and then, and at the first step after loading.
    model = jobs.wrapped("ddp", size)
    optimizer = jobs.optimizer_for(model, "langevin")
    jobs.train(model, optimizer, range(2), rank, size)
    optimizer.seed += rank
    said = [advance(optimizer, model, step) for step in range(2, ranks.PERIOD + 1)]
    found["langevin"] = [sum(map(bool, said)), said[-1]]
    optimizer = jobs.optimizer_for(model, "langevin")
    state = optimizer.state_dict()
    state["param_groups"][0]["ctld_step"] += rank
    optimizer.load_state_dict(state)
    found["loaded"] = advance(optimizer, model, 0)
    # Ranks that load states of other phases would wait for each other forever.
    model = jobs.wrapped("ddp", size)
    optimizer = jobs.optimizer_for(model)
    state = optimizer.state_dict()
    state["param_groups"][0]["ctld_step"] += jobs.EXPLORATION * rank
    optimizer.load_state_dict(state)
    found["phases"] = advance(optimizer, model, 0)
    return found


@pytest.fixture(scope="module")
def refused():
    return in_world(refusals, 2)


@pytest.fixture(scope="module")
def drifted():
    return in_world(drifting, 3)


def test_an_error_of_one_rank_is_known_to_all():
    """Also at the very first step, where the ranks look at each other once more."""
    found = in_world(failing, 2)
    for kind in ("ddp", "fsdp"):
        for step in (0, 3):
            assert "another rank has refused the step" in found[0][f"{kind} {step}"]
            assert "needs the loss" in found[1][f"{kind} {step}"]
        assert found[0][kind]["step"] == found[1][kind]["step"] == 4
        assert found[0][kind]["alpha"] == found[1][kind]["alpha"]
        assert torch.equal(found[0][kind]["parameters"], found[1][kind]["parameters"])


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_odd_values_of_one_rank_are_refused_by_all(refused, kind):
    for rank, found in enumerate(refused):
        message, same = found[f"{kind} loss"]
        assert "the loss is nan; the step was refused" in message
        assert same
        message, same = found[f"{kind} gradient"]
        assert ("the gradient of parameter 0" if rank == 1 else "another rank has refused the step") in message
        assert same
        assert jobs.distance(found[kind], jobs.run("alone")) < 1e-6


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("seed", "seed is 3 on ranks 0, 1 and 4 on rank 2"),
        ("step", "step is 3 on ranks 0, 1 and 4 on rank 2"),
        ("alpha", "alpha is "),
        ("temperature", "temperature is "),
        ("fsdp lr", "lr is 0.05 on ranks 0, 1 and 0.04 on rank 2"),
        ("fsdp momentum", "options is "),
        ("fsdp noise", "options is "),
        ("fsdp integrator", "options is "),
        ("fsdp kind", "alpha is "),
        ("hotter", "temperature is 1.0 on ranks 0, 1 and 2.0 on rank 2"),
    ],
)
def test_a_rank_that_has_drifted_is_named_by_all(drifted, name, words):
    for found in drifted:
        assert words in found[name][0]
        assert "on rank 2" in found[name][0]


def test_parameters_that_differ_show_in_the_hamiltonian(drifted):
    """One step later, since the mark of a step is made of what is known before it."""
    for found in drifted:
        first, second = found["parameter"]
        assert first == ""
        assert "hamiltonian is " in second


def test_methods_without_a_reduction_look_now_and_then(drifted):
    for found in drifted:
        count, last = found["langevin"]
        assert count == 1
        assert "seed is 3 on rank 0 and 4 on rank 1 and 5 on rank 2" in last
        assert "step is 0 on rank 0 and 1 on rank 1 and 2 on rank 2" in found["loaded"]


def test_ranks_in_different_phases_do_not_wait_for_each_other(drifted):
    for found in drifted:
        assert f"step is 0 on rank 0 and {jobs.EXPLORATION} on rank 1" in found["phases"]
