"""Bad input gets an error that names the value and the remedy, before anything has changed."""

import copy
import math

import pytest
import torch
from torch import nn

import ctld
from ctld import CTLD, NonFiniteError, create
from targets import Classification, train

OPTIONS = {"lr": 0.05, "momentum": 0.8, "weight_decay": 1e-2, "num_data": 96, "exploration_steps": 20, "seed": 1}


def parameter(**options):
    return nn.Parameter(torch.full((3, 2), 0.5, **options))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"lr": -0.1}, ValueError, r"lr = -0.1 is out of range; give a finite number >= 0"),
        ({"lr": math.nan}, ValueError, r"lr = nan"),
        ({"lr": math.inf}, ValueError, r"lr = inf"),
        ({"lr": 0.0}, ValueError, r"lr = 0.0 .* let a scheduler lower it"),
        ({"lr": "fast"}, TypeError, r"lr = 'fast' is not a number"),
        ({"momentum": 1.0}, ValueError, r"momentum = 1.0 is out of range; give a finite number >= 0 and < 1"),
        ({"momentum": -0.1}, ValueError, r"momentum = -0.1"),
        ({"momentum": math.nan}, ValueError, r"momentum = nan"),
        ({"num_data": 0}, ValueError, r"num_data = 0.0 is out of range; give a finite number > 0"),
        ({"num_data": -5}, ValueError, r"num_data = -5"),
        ({"num_data": math.nan}, ValueError, r"num_data = nan"),
        ({"num_data": None}, TypeError, r"num_data = None"),
        ({"num_data": True}, TypeError, r"num_data = True"),
        ({"exploration_steps": -1}, ValueError, r"exploration_steps = -1 is out of range; give an int >= 0"),
        ({"exploration_steps": 2.5}, TypeError, r"exploration_steps = 2.5 is not a whole number"),
        ({"exploration_steps": math.nan}, TypeError, r"exploration_steps = nan"),
        ({"exploration_steps": "100"}, TypeError, r"exploration_steps = '100'"),
        ({"temperature": -1.0}, ValueError, r"temperature = -1.0 is out of range"),
        ({"temperature": math.nan}, ValueError, r"temperature = nan"),
        ({"temperature": "hot"}, ValueError, r'temperature = \'hot\' is unknown; give "auto" or a number >= 0'),
        ({"temperature": None}, TypeError, r"temperature = None"),
        ({"weight_decay": -1e-3}, ValueError, r"weight_decay = -0.001"),
        ({"weight_decay": math.nan}, ValueError, r"weight_decay = nan"),
        ({"seed": -1}, ValueError, r"seed = -1"),
        ({"seed": 2**63}, ValueError, r"seed = 9223372036854775808"),
        ({"seed": "lucky"}, TypeError, r"seed = 'lucky'"),
        ({"tempering": "hot"}, TypeError, r"tempering = 'hot' is none"),
    ],
)
def test_hyperparameters(options, error, message):
    with pytest.raises(error, match=message):
        CTLD([parameter()], **(OPTIONS | options))


@pytest.mark.parametrize("step_size", [0.0, -1.0, math.nan])
def test_step_size(step_size):
    with pytest.raises(ValueError, match="step_size = "):
        CTLD.from_step_size([parameter()], step_size, num_data=10, exploration_steps=5)


def test_group_options_are_checked_too():
    with pytest.raises(ValueError, match=r"weight_decay = -1\.0"):
        CTLD([{"params": [parameter()], "weight_decay": -1.0}], **OPTIONS)
    with pytest.raises(ValueError, match=r"maximize = True, the optimizer False"):
        CTLD([{"params": [parameter()], "maximize": True}], **OPTIONS)
    CTLD([{"params": [parameter()]}, {"params": [parameter()], "maximize": True, "explore": False}], **OPTIONS)


def test_a_refused_constructor_leaves_the_tempering_free():
    tempering = ctld.Tempering()
    zeros = nn.Parameter(torch.zeros(3, 3))
    with pytest.raises(ValueError, match="give temperature="):
        CTLD([zeros], **OPTIONS, tempering=tempering)
    with pytest.raises(ValueError, match="temperature = -1"):
        CTLD([zeros], **OPTIONS, temperature=-1.0, tempering=tempering)
    CTLD([zeros], **OPTIONS, temperature=1.0, tempering=tempering)


def test_calibrated_tempering_measures_the_noise_itself():
    with pytest.raises(TypeError, match=r"noise_compensation does not go with Tempering\.calibrated"):
        CTLD([parameter()], **OPTIONS, noise_compensation=True, tempering=ctld.Tempering.calibrated(0.5))


class TestParameters:
    def test_none(self):
        with pytest.raises(ValueError, match="empty parameter list"):
            CTLD([], **OPTIONS)
        with pytest.raises(ValueError, match="no parameters to train"):
            CTLD([{"params": []}], **OPTIONS)

    @pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.complex64])
    def test_not_real(self, dtype):
        with pytest.raises(ValueError, match=rf"dtype {dtype}; only real floating-point"):
            CTLD([torch.ones(3, dtype=dtype)], **OPTIONS)

    def test_sparse_gradient(self):
        embedding = nn.Embedding(5, 2, sparse=True)
        optimizer = CTLD(embedding.parameters(), **OPTIONS)
        loss = embedding(torch.tensor([1, 2])).sum()
        loss.backward()
        before = snapshot(optimizer, embedding)
        with pytest.raises(ValueError, match=r"sparse .*nn.Embedding\(sparse=False\)"):
            optimizer.step(loss=loss)
        assert_unchanged(before, optimizer, embedding)


def snapshot(optimizer, model):
    return copy.deepcopy((optimizer.state_dict(), model.state_dict(), optimizer.last))


def assert_unchanged(before, optimizer, model):
    state, parameters, last = before
    for key, value in model.state_dict().items():
        assert torch.equal(value, parameters[key])
    after = optimizer.state_dict()
    for key, entry in state["state"].items():
        assert torch.equal(entry["momentum_buffer"], after["state"][key]["momentum_buffer"])
    for old, new in zip(state["param_groups"], after["param_groups"], strict=True):
        for key, value in old.items():
            same = torch.equal(value, new[key]) if isinstance(value, torch.Tensor) else value == new[key]
            assert same or (value != value and new[key] != new[key]), key
    assert optimizer.last == last


class TestSteps:
    """Refused whole: parameters, momenta, α, bias and counters unchanged, the observed loss dropped."""

    @pytest.fixture
    def running(self):
        problem = Classification()
        optimizer = CTLD(problem.model.parameters(), **OPTIONS)
        train(problem, optimizer, range(5))
        return problem, optimizer

    @staticmethod
    def refused(problem, optimizer, error, message, **arguments):
        before = snapshot(optimizer, problem.model)
        with pytest.raises(error, match=message):
            optimizer.step(**arguments)
        assert_unchanged(before, optimizer, problem.model)
        assert optimizer.losses.pending == []
        # And it goes on.
        train(problem, optimizer, range(5, 25))
        assert problem.flat().isfinite().all()

    def test_lr_of_a_refused_step_is_forgotten(self, running):
        """The momenta are still those of the last step that was taken."""
        problem, optimizer = running
        (group,) = optimizer.param_groups
        taken = group["momentum_lr"]
        loss = problem.backward(5)
        problem.model[0].weight.grad[0, 0] = math.nan
        group["lr"] *= 0.5
        with pytest.raises(NonFiniteError):
            optimizer.step(loss=loss)
        assert group["momentum_lr"] == taken

    def test_without_a_loss(self, running):
        problem, optimizer = running
        problem.backward(5)
        self.refused(problem, optimizer, ValueError, r"step\(loss=loss\), step\(closure\), or observe\(loss\)")

    def test_closure_that_returns_nothing(self, running):
        problem, optimizer = running
        self.refused(problem, optimizer, ValueError, "needs the loss", closure=lambda: None)

    def test_loss_with_several_elements(self, running):
        problem, optimizer = running
        loss = problem.backward(5)
        self.refused(problem, optimizer, ValueError, r"4 elements \(shape \(2, 2\)\)", loss=loss.expand(2, 2))

    def test_loss_that_is_no_number(self, running):
        problem, optimizer = running
        self.refused(problem, optimizer, TypeError, "the loss is 'low'", loss="low")

    @pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
    def test_loss_that_is_not_finite(self, running, value):
        problem, optimizer = running
        problem.backward(5)
        self.refused(problem, optimizer, NonFiniteError, "the loss is .* nothing has changed", loss=value)

    @pytest.mark.parametrize("value", [math.nan, math.inf])
    def test_gradient_that_is_not_finite(self, running, value):
        problem, optimizer = running
        loss = problem.backward(5)
        problem.model[2].weight.grad[1, 3] = value
        self.refused(problem, optimizer, NonFiniteError, "gradient of parameter 2 has 1 of 30 elements", loss=loss)

    def test_named_in_the_message(self):
        problem = Classification()
        optimizer = CTLD(problem.model.named_parameters(), **OPTIONS)
        loss = problem.backward(0)
        problem.model[2].bias.grad[0] = math.nan
        with pytest.raises(NonFiniteError, match=r"gradient of 2\.bias has 1 of 3"):
            optimizer.step(loss=loss)

    def test_a_gradient_whose_square_overflows_is_refused_before_anything_moves(self):
        """Elements of 1e20 are finite in float32, Σu² is not: the Hamiltonian would be found infinite after the step."""
        weights = nn.Parameter(torch.ones(4))
        optimizer = CTLD([weights], **(OPTIONS | {"temperature": 1.0}))
        weights.grad = torch.full((4,), 1e20)
        with pytest.raises(NonFiniteError, match="4 of 4 elements that are so large that their squares overflow"):
            optimizer.step(loss=1.0)
        assert torch.equal(weights.detach(), torch.ones(4))
        weights.grad = torch.full((4,), 1e17)
        optimizer.step(loss=1.0)
        assert math.isfinite(optimizer.last.hamiltonian)

    def test_the_class_of_the_error_can_be_caught(self):
        assert issubclass(ctld.NonFiniteError, ValueError)

    def test_loss_whose_potential_overflows(self, running):
        problem, optimizer = running
        problem.backward(5)
        self.refused(problem, optimizer, NonFiniteError, "overflows", loss=1e307)

    def test_complex_loss(self, running):
        problem, optimizer = running
        self.refused(problem, optimizer, TypeError, "give a real number", loss=torch.tensor(1.0 + 1.0j))

    def test_observations_of_a_refused_step_are_dropped(self, running):
        problem, optimizer = running
        optimizer.observe(problem.backward(5))
        self.refused(problem, optimizer, ValueError, "2 elements", loss=torch.ones(2))

    def test_observations_of_a_closure_that_fails_are_dropped(self, running):
        problem, optimizer = running

        def closure():
            optimizer.observe(problem.backward(5))
            raise ValueError("out of data")

        self.refused(problem, optimizer, ValueError, "out of data", closure=closure)

    def test_scheduler_that_writes_nonsense(self, running):
        problem, optimizer = running
        loss = problem.backward(5)
        before = snapshot(optimizer, problem.model)
        optimizer.param_groups[0]["lr"] = math.nan
        with pytest.raises(ValueError, match="lr = nan"):
            optimizer.step(loss=loss)
        optimizer.param_groups[0]["lr"] = 0.05
        assert_unchanged(before, optimizer, problem.model)

    def test_gradients_in_fine_tuning_are_as_torch_treats_them(self):
        """No check there, as in SGD: reading a norm would cost a synchronisation per step."""
        problem = Classification()
        optimizer = CTLD(problem.model.parameters(), **(OPTIONS | {"exploration_steps": 0}))
        problem.backward(0)
        problem.model[2].weight.grad[1, 3] = math.nan
        optimizer.step()
        assert problem.model[2].weight.isnan().any()


class TestStrangeTensors:
    def test_wrapper_subclasses_get_a_sentence(self):
        from torch.testing._internal.two_tensor import TwoTensor

        wrapped = TwoTensor(torch.ones(3), torch.ones(3))
        with pytest.raises(
            ValueError, match="a plain tensor, got a TwoTensor, which keeps its numbers in other tensors"
        ):
            CTLD([nn.Parameter(wrapped)], **OPTIONS)

    def test_a_captured_step_is_refused(self, monkeypatch):
        parameter = nn.Parameter(torch.ones(3))
        optimizer = CTLD([parameter], **OPTIONS)
        parameter.grad = torch.ones(3)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
        with pytest.raises(RuntimeError, match="must not be captured in a CUDA graph"):
            optimizer.step(loss=1.0)
        assert torch.equal(parameter, torch.ones(3))


class TestTwins:
    @pytest.mark.parametrize(("start", "seed", "said"), [(0.0, 1, True), (1.0, 1, False), (0.0, 2, False)])
    def test_one_seed_for_two_models_is_said(self, caplog, start, seed, said):
        first = create("sgld", [nn.Parameter(torch.ones(3))], lr=0.1, num_data=9, seed=1)
        create("sgld", [nn.Parameter(torch.full((3,), start))], lr=0.1, num_data=9, seed=seed)
        assert first.seed == 1
        assert ("both get the same noise" in caplog.text) == said

    def test_without_noise_there_is_nothing_to_say(self, caplog):
        for value in (0.0, 1.0):
            kept = CTLD([nn.Parameter(torch.full((3,), value))], 0.1, num_data=9, exploration_steps=0)  # noqa: F841
            create("easgd", [nn.Parameter(torch.full((3,), value))], lr=0.1)
        assert not caplog.text
