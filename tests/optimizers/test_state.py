"""A run resumed from its state equals the uninterrupted one bit for bit: in either phase, across the switch, in a new
process, through torch.save and torch.distributed.checkpoint. A state that does not fit is refused and changes nothing."""

import contextlib
import copy
import json
import os
import subprocess
import sys

import pytest
import torch
import torch.distributed.checkpoint as dcp
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.optim.lr_scheduler import CosineAnnealingLR

from ctld import CTLD, Tempering
from ctld.optimizers import checkpoint
from targets import Classification, equal, saved, train

OPTIONS = {"lr": 0.05, "momentum": 0.8, "weight_decay": 1e-2, "num_data": 96, "exploration_steps": 20}


def build(problem, **options):
    return CTLD(problem.model.parameters(), **(OPTIONS | options))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("compensation", [False, True])
@pytest.mark.parametrize("interruption", [0, 1, 12, 19, 20, 21, 29])
def test_resume_is_bit_for_bit(interruption, compensation, dtype):
    options = {"noise_compensation": compensation, "temperature": 0.3}
    whole, half = Classification(dtype=dtype), Classification(dtype=dtype)
    whole_optimizer = build(whole, seed=3, **options)
    whole_scheduler = CosineAnnealingLR(whole_optimizer, 40)
    train(whole, whole_optimizer, range(30), whole_scheduler)

    optimizer = build(half, seed=3, **options)
    scheduler = CosineAnnealingLR(optimizer, 40)
    train(half, optimizer, range(interruption), scheduler)
    checkpoint = saved([half.model.state_dict(), optimizer.state_dict(), scheduler.state_dict()])

    # Another seed and other weights at first: the state's must win.
    resumed = Classification(seed=7, dtype=dtype)
    resumed.inputs, resumed.labels = whole.inputs, whole.labels
    resumed.model.load_state_dict(checkpoint[0])
    optimizer = build(resumed, seed=99, **options)
    scheduler = CosineAnnealingLR(optimizer, 40)
    scheduler.load_state_dict(checkpoint[2])
    optimizer.load_state_dict(checkpoint[1])
    train(resumed, optimizer, range(interruption, 30), scheduler)

    assert torch.equal(resumed.flat(), whole.flat())
    assert equal(optimizer.state_dict(), whole_optimizer.state_dict())


shapes = st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=3).map(tuple), min_size=1, max_size=4)


@settings(deadline=None, max_examples=40, derandomize=True)
@given(
    shapes=shapes,
    dtypes=st.lists(st.sampled_from([torch.float64, torch.float32, torch.bfloat16]), min_size=4, max_size=4),
    split=st.integers(0, 4),
    explore=st.booleans(),
    lrs=st.lists(st.sampled_from([0.0, 0.01, 0.1]), min_size=12, max_size=12),
    interruption=st.integers(0, 12),
    compensation=st.booleans(),
)
def test_resume_over_shapes_dtypes_groups_and_interruptions(
    shapes, dtypes, split, explore, lrs, interruption, compensation
):
    def start():
        generator = torch.Generator().manual_seed(1)
        parameters = [
            nn.Parameter(torch.randn(shape, generator=generator).to(dtype))
            for shape, dtype in zip(shapes, dtypes, strict=False)
        ]
        groups = [{"params": parameters[:split]}, {"params": parameters[split:], "momentum": 0.3, "explore": explore}]
        groups = [group for group in groups if group["params"]]
        optimizer = CTLD(
            groups, 0.1, num_data=10, exploration_steps=7, temperature=0.5, seed=4, noise_compensation=compensation
        )
        return parameters, optimizer

    def go_on(parameters, optimizer, steps):
        for step in steps:
            generator = torch.Generator().manual_seed(100 + step)
            for index, p in enumerate(parameters):
                p.grad = torch.randn(p.shape, generator=generator).to(p.dtype) if (index + step) % 5 else None
            optimizer.param_groups[0]["lr"] = lrs[step]
            optimizer.step(loss=float(step))

    whole, whole_optimizer = start()
    go_on(whole, whole_optimizer, range(12))
    half, half_optimizer = start()
    go_on(half, half_optimizer, range(interruption))
    state = saved(half_optimizer.state_dict())
    resumed, optimizer = start()
    with torch.no_grad():
        for p, q in zip(resumed, half, strict=True):
            p.copy_(q)
    optimizer.load_state_dict(state)
    go_on(resumed, optimizer, range(interruption, 12))
    assert all(torch.equal(p, q) for p, q in zip(resumed, whole, strict=True))
    assert equal(optimizer.state_dict(), whole_optimizer.state_dict())


SCRIPT = """
import json, sys, torch
from targets import Classification, equal, saved, train
from ctld import CTLD
resumes, path = sys.argv[1] == "resume", sys.argv[2]
torch.set_num_threads(1)
torch.manual_seed(1 if resumes else 0)
problem = Classification()
optimizer = CTLD(problem.model.parameters(), 0.05, 0.8, weight_decay=1e-2, num_data=96, exploration_steps=20)
if resumes:
    model, state = torch.load(path, weights_only=True)
    problem.model.load_state_dict(model)
    optimizer.load_state_dict(state)
else:
    train(problem, optimizer, range(13))
    torch.save([problem.model.state_dict(), optimizer.state_dict()], path)
train(problem, optimizer, range(13, 30))
print(json.dumps(problem.flat().tolist()))
"""


@pytest.mark.slow
def test_resume_in_a_new_process(tmp_path):
    """The resuming process draws another seed; the state's wins."""

    def run(how):
        arguments = [sys.executable, "-W", "error", "-c", SCRIPT, how, str(tmp_path / "half.pt")]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
        output = subprocess.run(arguments, capture_output=True, text=True, check=True, env=environment)
        return json.loads(output.stdout)

    assert run("start") == run("resume")


class TestDistributedCheckpoint:
    @pytest.mark.filterwarnings("ignore::UserWarning:torch", "ignore::FutureWarning:torch")
    @pytest.mark.parametrize("flatten", [False, True])
    @pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
    def test_round_trip(self, tmp_path, flatten, dtype):
        options = StateDictOptions(flatten_optimizer_state_dict=flatten)
        whole = Classification(dtype=dtype)
        optimizer = build(whole, seed=3, temperature=0.3)
        train(whole, optimizer, range(13))
        model_state, optimizer_state = get_state_dict(whole.model, optimizer, options=options)
        dcp.save({"model": model_state, "optimizer": optimizer_state}, checkpoint_id=tmp_path, no_dist=True)
        train(whole, optimizer, range(13, 30))

        resumed = Classification(seed=8, dtype=dtype)
        resumed.inputs, resumed.labels = whole.inputs, whole.labels
        other = build(resumed, seed=77, temperature=0.3)
        model_state, optimizer_state = get_state_dict(resumed.model, other, options=options)
        loaded = {"model": model_state, "optimizer": optimizer_state}
        dcp.load(loaded, checkpoint_id=tmp_path, no_dist=True)
        set_state_dict(
            resumed.model,
            other,
            model_state_dict=loaded["model"],
            optim_state_dict=loaded["optimizer"],
            options=options,
        )
        assert other.seed == 3
        train(resumed, other, range(13, 30))
        assert torch.equal(resumed.flat(), whole.flat())
        assert equal(other.state_dict(), optimizer.state_dict())

    @pytest.mark.filterwarnings("ignore::UserWarning:torch", "ignore::FutureWarning:torch")
    def test_taking_a_state_does_not_step(self):
        problem = Classification()
        optimizer = build(problem, seed=3)
        before = copy.deepcopy(optimizer.state_dict())
        get_state_dict(problem.model, optimizer)
        assert equal(optimizer.state_dict(), before)

    @pytest.mark.filterwarnings("ignore::UserWarning:torch", "ignore::FutureWarning:torch")
    def test_frozen_parameters_are_left_out_and_come_back(self):
        """get_state_dict drops what does not require a gradient; its momentum is made anew when it thaws."""
        problem = Classification()
        optimizer = build(problem, seed=3, temperature=0.3)
        problem.model[0].weight.requires_grad_(False)
        train(problem, optimizer, range(5))
        model_state, optimizer_state = copy.deepcopy(get_state_dict(problem.model, optimizer))
        optimizer_state["state"].pop("0.weight", None)
        other_problem = Classification()
        other_problem.model[0].weight.requires_grad_(False)
        other = build(other_problem, seed=9, temperature=0.3)
        set_state_dict(other_problem.model, other, model_state_dict=model_state, optim_state_dict=optimizer_state)
        assert not other.state.get(other_problem.model[0].weight)
        other_problem.model[0].weight.requires_grad_(True)
        train(other_problem, other, range(5, 6))
        assert other.state[other_problem.model[0].weight]["momentum_buffer"].abs().sum() > 0


class TestRefused:
    @staticmethod
    def refused(optimizer, state, message):
        before = copy.deepcopy(optimizer.state_dict())
        with pytest.raises(ValueError, match=message):
            optimizer.load_state_dict(state)
        assert equal(optimizer.state_dict(), before)

    @pytest.fixture
    def state(self):
        problem = Classification()
        optimizer = build(problem, seed=3)
        train(problem, optimizer, range(5))
        return copy.deepcopy(optimizer.state_dict())

    @pytest.fixture
    def optimizer(self):
        problem = Classification()
        optimizer = build(problem, seed=4)
        train(problem, optimizer, range(3))
        return optimizer

    def test_other_number_of_bins(self, state):
        tempering = Tempering.paper(0.02, 20, num_bins=150)
        optimizer = build(Classification(), tempering=tempering)
        self.refused(optimizer, state, "bias of 300 bins over ±1.5, this one has 150")

    def test_other_tempering(self, state):
        self.refused(build(Classification(), tempering=Tempering()), state, "on one side only")

    def test_other_number_of_parameters(self, state):
        model = nn.Linear(3, 3)
        optimizer = CTLD(model.parameters(), **OPTIONS)
        self.refused(optimizer, state, r"groups of \[4\] parameters, this optimizer has \[2\]")

    def test_other_number_of_groups(self, state):
        problem = Classification()
        groups = [{"params": problem.model[0].parameters()}, {"params": problem.model[2].parameters()}]
        self.refused(CTLD(groups, **OPTIONS), state, r"groups of \[4\] parameters, this optimizer has \[2, 2\]")

    def test_other_shapes(self, state):
        model = nn.Sequential(nn.Linear(12, 9), nn.Linear(9, 3))
        optimizer = CTLD(model.parameters(), **OPTIONS)
        self.refused(optimizer, state, r"momentum_buffer of parameter 0 has shape \(10, 12\) in the state, \(9, 12\)")

    def test_newer_format(self, state, optimizer):
        state["param_groups"][0]["ctld_format"] = 3
        self.refused(optimizer, state, "format 3, this version of ctld reads up to 2; update ctld")

    def test_other_generator(self, state, optimizer):
        state["param_groups"][0]["ctld_generator"] = "dice"
        self.refused(optimizer, state, "noise comes from 'dice'")

    def test_state_of_sgd(self, optimizer):
        sgd = torch.optim.SGD(Classification().model.parameters(), 0.1, 0.9)
        self.refused(optimizer, sgd.state_dict(), "not one of CTLD")

    def test_missing_momenta(self, state, optimizer):
        del state["state"][1]
        self.refused(optimizer, state, r"state of parameter 1 has \[\], expected \['momentum_buffer'\]")

    def test_state_with_compensation_into_one_without(self, optimizer):
        other = build(Classification(), noise_compensation=True)
        self.refused(optimizer, other.state_dict(), "saved with noise_compensation = True")

    def test_other_number_of_data(self, state):
        optimizer = build(Classification(), num_data=5000)
        self.refused(optimizer, state, r"num_data = 96\.0, this optimizer has 5000\.0")

    @pytest.mark.parametrize(
        ("entry", "value"),
        [("ctld_temperature", None), ("ctld_tempering_alpha", "hot"), ("ctld_tempering_bias_height", None)],
    )
    def test_nonsense_is_refused_whole(self, state, optimizer, entry, value):
        state["param_groups"][0][entry] = value
        self.refused(optimizer, state, "the state does not fit")

    def test_group_without_an_entry(self, state, optimizer):
        del state["param_groups"][0]["langevin"]
        self.refused(optimizer, state, r"group 0 of the state lacks \['langevin'\]")

    def test_float_in_place_of_a_momentum(self, state, optimizer):
        state["state"][0]["momentum_buffer"] = 0.0
        self.refused(optimizer, state, "momentum_buffer of parameter 0 is a float")

    def test_group_option_out_of_range(self, state, optimizer):
        state["param_groups"][0]["momentum"] = 1.5
        self.refused(optimizer, state, "momentum = 1.5")

    def test_saved_without_a_scheduler_loaded_with_one(self, state, optimizer):
        CosineAnnealingLR(optimizer, 10)
        optimizer.load_state_dict(state)
        assert optimizer.seed == 3

    def test_users_hook_is_seen(self, state, optimizer):
        """A pre-hook that adapts a state is applied before it is judged."""
        state["param_groups"][0]["ctld_format"] = 3

        def adapt(_, candidate):
            candidate = copy.deepcopy(candidate)
            candidate["param_groups"][0]["ctld_format"] = 2
            return candidate

        optimizer.register_load_state_dict_pre_hook(adapt)
        optimizer.load_state_dict(state)
        assert optimizer.seed == 3


def test_constants_of_the_tempering_come_from_the_state():
    """As with torch's SGD, the lr and other options of the new constructor do not matter."""
    whole = Classification()
    optimizer = build(whole, seed=3, temperature=0.3)
    train(whole, optimizer, range(7))
    state, weights = saved(optimizer.state_dict()), copy.deepcopy(whole.model.state_dict())
    train(whole, optimizer, range(7, 30))
    resumed = Classification()
    resumed.model.load_state_dict(weights)
    tempering = Tempering.paper(0.5, 1000, depth=0.3, width=0.1)
    other = build(resumed, lr=0.02, momentum=0.1, temperature=1.0, tempering=tempering)
    other.load_state_dict(state)
    train(resumed, other, range(7, 30))
    assert torch.equal(resumed.flat(), whole.flat())
    assert equal(other.state_dict(), optimizer.state_dict())


def test_everything_is_in_the_groups_or_the_state():
    problem = Classification()
    optimizer = build(problem, seed=3)
    train(problem, optimizer, range(5))
    state = optimizer.state_dict()
    first = state["param_groups"][0]
    assert set(state) == {"state", "param_groups"}
    assert first["ctld_tempering_bias_values"].dtype == torch.float64
    assert first["ctld_tempering_alpha"] == optimizer.tempering.alpha
    assert first["ctld_temperature"] == optimizer.temperature
    assert (first["ctld_seed"], first["ctld_step"]) == (3, 5)


def test_a_state_is_a_snapshot():
    problem = Classification()
    optimizer = build(problem, seed=3)
    train(problem, optimizer, range(5))
    values = optimizer.state_dict()["param_groups"][0]["ctld_tempering_bias_values"]
    before = values.clone()
    train(problem, optimizer, range(5, 10))
    assert torch.equal(values, before)


def test_float32_momenta_of_bfloat16_parameters_survive():
    problem = Classification(dtype=torch.bfloat16)
    optimizer = build(problem, seed=3, temperature=0.3)
    train(problem, optimizer, range(5))
    other = build(Classification(dtype=torch.bfloat16), temperature=0.3)
    other.load_state_dict(saved(optimizer.state_dict()))
    assert equal(other.state_dict(), optimizer.state_dict())
    assert other.state[other.param_groups[0]["params"][0]]["momentum_buffer"].dtype == torch.float32


def without_float64(value):
    """Moves a state as Accelerate does, to a device that has no float64."""
    if isinstance(value, dict):
        return {key: without_float64(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(without_float64(entry) for entry in value)
    if isinstance(value, torch.Tensor):
        assert value.dtype is not torch.float64, "this device has no float64"
        return value.clone()
    return value


@pytest.mark.parametrize("tempering", [None, Tempering.calibrated])
def test_a_state_moves_to_a_device_without_float64(monkeypatch, tempering):
    """There, tensors of the parts are lists; a run goes on from either, to the bit, here and there."""
    problems = [Classification(dtype=torch.float32) for _ in range(2)]
    with pytest.warns(UserWarning, match="warm-up") if tempering else contextlib.nullcontext():
        made = [build(problem, seed=3, tempering=tempering and tempering(warm_up=100)) for problem in problems]
    for problem, optimizer in zip(problems, made, strict=True):
        train(problem, optimizer, range(10))
    with pytest.raises(AssertionError, match="no float64"):
        without_float64(made[0].state_dict())
    with monkeypatch.context() as there:
        there.setattr(checkpoint, "wide_dtype", lambda device: torch.float32)
        moved = without_float64(made[0].state_dict())
        made[0].load_state_dict(moved)
        train(problems[0], made[0], range(10, 15))
        back = saved(made[0].state_dict())
    made[0].load_state_dict(back)
    train(problems[0], made[0], range(15, 25))
    train(problems[1], made[1], range(10, 25))
    assert torch.equal(problems[0].flat(), problems[1].flat())
    assert equal(made[0].state_dict(), made[1].state_dict())
    back["param_groups"][0]["ctld_thermometers"] = [[1.0], [2.0, 3.0]]
    with pytest.raises(ValueError, match="does not fit"):
        made[0].load_state_dict(back)
    assert equal(made[0].state_dict(), made[1].state_dict())
