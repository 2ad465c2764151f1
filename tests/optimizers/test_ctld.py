"""CTLD as a user of torch's optimizers expects it: groups, freezing, layouts, dtypes, hooks, schedulers, copies."""

import copy
import logging
import math
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR, LinearLR

from ctld import CTLD, Tempering, noise
from ctld.optimizers import StepRecord
from ctld.tempering import TemperatureControl
from targets import Classification, train

OPTIONS = {"lr": 0.05, "momentum": 0.8, "weight_decay": 1e-2, "num_data": 96, "exploration_steps": 20, "seed": 1}


def run(problem, optimizer, steps=30):
    train(problem, optimizer, range(steps))
    return problem.flat()


def build(problem=None, **options):
    problem = Classification() if problem is None else problem
    return problem, CTLD(problem.model.parameters(), **(OPTIONS | options))


class TestProperties:
    def test_what_is_in_force(self):
        problem, optimizer = build(temperature=0.5)
        assert optimizer.exploring
        assert optimizer.temperature == 0.5
        assert optimizer.temperature_ratio == 1.0
        assert optimizer.step_size == pytest.approx(math.sqrt(0.05 / 96))
        assert optimizer.friction == pytest.approx(0.2 / math.sqrt(0.05 / 96))
        assert optimizer.last is None
        run(problem, optimizer, 20)
        assert not optimizer.exploring
        assert optimizer.temperature_ratio == 1.0

    def test_the_papers_step_size(self):
        """Spec section 2: η = 8e-4 at N = 6e4 is lr = 0.038; 2.08e-5 at 9e7 is 0.039; temperature 1."""
        for step_size, num_data, lr in [(8e-4, 6e4, 0.0384), (2.08e-5, 9e7, 0.0389)]:
            optimizer = CTLD.from_step_size(
                [nn.Parameter(torch.ones(2))], step_size, 0.5, num_data=num_data, exploration_steps=10
            )
            assert optimizer.param_groups[0]["lr"] == pytest.approx(lr, rel=2e-3)
            assert optimizer.step_size == pytest.approx(step_size)
            assert optimizer.temperature == 1.0

    def test_record_of_a_step(self):
        problem, optimizer = build(temperature=0.5)
        before = problem.flat()
        loss = problem.backward(0)
        optimizer.step(loss=loss)
        last = optimizer.last
        momenta = torch.cat([optimizer.state[p]["momentum_buffer"].reshape(-1) for p in problem.model.parameters()])
        potential = 96 * (loss.item() + 0.01 * before.square().sum().item() / 2)
        assert last.potential == pytest.approx(potential, rel=1e-12)
        assert last.hamiltonian == pytest.approx((potential + 96 * momenta.square().sum().item() / 2) / 0.5, rel=1e-12)
        assert last.temperature_ratio == 1.0
        assert last.alpha == optimizer.tempering.alpha != 0.0

    def test_the_thermometer_reads_the_middle_of_two_momenta(self):
        problem, optimizer = build(temperature=0.5)
        buffers = [optimizer.state[p]["momentum_buffer"] for p in problem.model.parameters()]
        before = [b.clone() for b in buffers]
        optimizer.step(loss=problem.backward(0))
        middle = torch.cat([(a + b).reshape(-1) / 2 for a, b in zip(before, buffers, strict=True)])
        assert optimizer.last.kinetic_temperature == pytest.approx(96 * middle.square().mean().item(), rel=1e-12)

    def test_ratio_recorded_is_the_one_that_multiplied_the_noise(self):
        problem, optimizer = build(exploration_steps=300)
        seen = []
        for step in range(300):
            upcoming = optimizer.temperature_ratio
            train(problem, optimizer, range(step, step + 1))
            assert optimizer.last.temperature_ratio == upcoming
            seen.append(upcoming)
        assert max(seen) > 1.0

    def test_fine_tuning_record(self):
        problem, optimizer = build()
        run(problem, optimizer, 25)
        last, alpha = optimizer.last, optimizer.tempering.alpha
        expected = StepRecord(alpha, 1.0, groups=last.groups, steps_since_cold=last.steps_since_cold)
        assert last == expected
        assert optimizer.last.potential is optimizer.last.alpha_force is None

    def test_repr_hides_the_state(self):
        problem, optimizer = build()
        run(problem, optimizer, 3)
        optimizer.state_dict()
        text = repr(optimizer)
        assert "lr: 0.05" in text
        assert "ctld_" not in text
        assert len(text) < 400


class TestLoss:
    def test_every_way_to_hand_it_over(self):
        def with_keyword(problem, optimizer, step):
            optimizer.step(loss=problem.backward(step))

        def as_float(problem, optimizer, step):
            optimizer.step(loss=problem.backward(step).item())

        def one_element(problem, optimizer, step):
            optimizer.step(loss=problem.backward(step).reshape(1, 1))

        def with_closure(problem, optimizer, step):
            returned = optimizer.step(lambda: problem.backward(step))
            assert returned.numel() == 1

        def observed(problem, optimizer, step):
            optimizer.observe(problem.backward(step))
            optimizer.step()

        def in_halves(problem, optimizer, step):
            loss = problem.backward(step)
            optimizer.observe(0.5 * loss)
            optimizer.observe(0.5 * loss)
            optimizer.step()

        def observed_within_closure(problem, optimizer, step):
            """As under Lightning with accumulation, where the closure's own value is a part only."""

            def closure():
                loss = problem.backward(step)
                optimizer.observe(loss)
                return loss / 4

            optimizer.step(closure)

        results = []
        for way in (with_keyword, as_float, one_element, with_closure, observed, in_halves, observed_within_closure):
            problem, optimizer = build()
            for step in range(30):
                way(problem, optimizer, step)
            results.append(problem.flat())
        assert all(torch.equal(result, results[0]) for result in results)

    def test_step_returns_the_loss(self):
        problem, optimizer = build()
        loss = problem.backward(0)
        assert optimizer.step(loss=loss) is loss

    def test_not_needed_and_not_read_in_fine_tuning(self):
        problem, optimizer = build(exploration_steps=0)
        problem.backward(0)
        optimizer.step()
        optimizer.observe(torch.full((3,), math.nan))
        optimizer.step(loss=math.nan)

    def test_with_grad_scaler(self):
        """The unscaled loss goes with the step; gradients are unscaled by the scaler before it."""
        problem, optimizer = build()
        plain, plain_optimizer = build()
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        for step in range(25):
            problem.model.zero_grad()
            loss = nn.functional.cross_entropy(
                problem.model(problem._chosen(problem.inputs, step)), problem._chosen(problem.labels, step)
            )
            scaler.scale(loss).backward()
            scaler.step(optimizer, loss=loss)
            scaler.update()
        run(plain, plain_optimizer, 25)
        torch.testing.assert_close(problem.flat(), plain.flat(), rtol=1e-10, atol=1e-12)

    def test_the_users_tensor_may_change_before_the_step(self):
        problem, optimizer = build()
        loss = problem.backward(0)
        expected = loss.item()
        optimizer.observe(loss)
        loss.mul_(1000.0)
        optimizer.step()
        assert optimizer.last.potential < 96 * (expected + 1.0)

    def test_numpy_numbers(self):
        for number in (np.float32(1.0), np.float64(1.0), np.array(1.0), np.int64(1)):
            problem, optimizer = build()
            problem.backward(0)
            optimizer.step(loss=number)
            assert optimizer.last is not None


class TestGroups:
    @staticmethod
    def two_groups(**second):
        problem = Classification()
        groups = [
            {"params": list(problem.model[0].parameters())},
            {"params": list(problem.model[2].parameters())} | second,
        ]
        return problem, CTLD(groups, **(OPTIONS | {"temperature": 0.1}))

    def test_two_equal_groups_are_one(self):
        problem, optimizer = self.two_groups()
        one, one_optimizer = build(temperature=0.1)
        torch.testing.assert_close(run(problem, optimizer), run(one, one_optimizer), rtol=1e-10, atol=1e-12)

    def test_own_lr_is_a_mass_matrix(self):
        problem, optimizer = self.two_groups(lr=0.01)
        loss = problem.backward(0)
        optimizer.step(loss=loss)
        kinetic = 0.0
        for group in optimizer.param_groups:
            for p in group["params"]:
                velocity = optimizer.state[p]["momentum_buffer"] * math.sqrt(group["lr"])
                kinetic += 96 / group["lr"] * velocity.square().sum().item() / 2
        assert optimizer.last.hamiltonian == pytest.approx((optimizer.last.potential + kinetic) / 0.1, rel=1e-12)

    def test_a_group_that_does_not_explore_is_trained_by_sgd(self):
        problem, optimizer = self.two_groups(explore=False, weight_decay=0.0)
        resting = optimizer.param_groups[1]["params"]
        start = [p.detach().clone() for p in resting]
        sgd_parameters = [nn.Parameter(value) for value in start]
        sgd = torch.optim.SGD(sgd_parameters, 0.05, 0.8)
        for step in range(30):
            loss = problem.backward(step)
            for p, twin in zip(resting, sgd_parameters, strict=True):
                twin.grad = p.grad.clone()
            sgd.step()
            optimizer.step(loss=loss)
        for p, twin in zip(resting, sgd_parameters, strict=True):
            assert torch.equal(p, twin)

    def test_a_group_that_does_not_explore_has_no_share_in_the_hamiltonian(self):
        problem, optimizer = self.two_groups(explore=False)
        loss = problem.backward(0)
        weights = [p.detach().clone() for p in optimizer.param_groups[0]["params"]]
        optimizer.step(loss=loss)
        prior = 0.01 * sum(w.square().sum().item() for w in weights) / 2
        assert optimizer.last.potential == pytest.approx(96 * (loss.item() + prior), rel=1e-12)
        assert not optimizer.state[optimizer.param_groups[1]["params"][0]]["momentum_buffer"].isnan().any()

    def test_added_mid_run(self):
        problem = Classification()
        optimizer = CTLD(problem.model[0].parameters(), **(OPTIONS | {"temperature": 0.1}))
        train(problem, optimizer, range(5))
        optimizer.add_param_group({"params": problem.model[2].parameters(), "lr": 0.01})
        buffer = optimizer.state[problem.model[2].weight]["momentum_buffer"]
        # r ~ N(0, T): the spread of v/√lr is sqrt(T/N); 30 numbers give it within 13 %.
        assert buffer.std() == pytest.approx(math.sqrt(0.1 / 96), rel=0.4)
        before = problem.model[2].weight.detach().clone()
        train(problem, optimizer, range(5, 30))
        assert not torch.equal(problem.model[2].weight, before)
        optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2, dtype=torch.float64))]})
        assert not optimizer.state[optimizer.param_groups[-1]["params"][0]]["momentum_buffer"].any()

    def test_a_group_at_rest_keeps_its_share_in_the_hamiltonian(self):
        problem, optimizer = self.two_groups()
        resting = optimizer.param_groups[1]
        resting["lr"] = 0.0
        loss = problem.backward(0)
        weights = problem.flat()
        buffer = optimizer.state[resting["params"][0]]["momentum_buffer"].clone()
        optimizer.step(loss=loss)
        momenta = torch.cat([optimizer.state[p]["momentum_buffer"].reshape(-1) for p in problem.model.parameters()])
        assert optimizer.last.potential == pytest.approx(96 * (loss.item() + 0.005 * weights.square().sum().item()))
        kinetic = 96 * momenta.square().sum().item() / 2
        assert optimizer.last.hamiltonian == pytest.approx((optimizer.last.potential + kinetic) / 0.1, rel=1e-12)
        assert torch.equal(optimizer.state[resting["params"][0]]["momentum_buffer"], buffer)

    def test_a_group_that_never_moved_is_not_kicked_in_fine_tuning(self):
        problem, optimizer = self.two_groups()
        optimizer.param_groups[1]["lr"] = 0.0
        train(problem, optimizer, range(20))
        optimizer.param_groups[1]["lr"] = 0.05
        optimizer.param_groups[1]["weight_decay"] = 0.0
        before = problem.model[2].weight.detach().clone()
        problem.backward(0)
        problem.model[2].weight.grad.zero_()
        optimizer.step()
        assert torch.equal(problem.model[2].weight, before)

    def test_automatic_temperature_waits_for_a_group_that_explores(self):
        problem = Classification()
        optimizer = CTLD(
            [{"params": problem.model[0].parameters(), "explore": False}], **(OPTIONS | {"exploration_steps": 40})
        )
        train(problem, optimizer, range(5))
        assert not optimizer.exploring
        assert optimizer.temperature == 0.0
        optimizer.add_param_group({"params": problem.model[2].parameters()})
        assert optimizer.exploring
        assert optimizer.temperature > 0.0
        train(problem, optimizer, range(5, 45))
        assert not optimizer.exploring

    def test_explore_switched_on_mid_run(self):
        problem = Classification()
        optimizer = CTLD([{"params": problem.model.parameters(), "explore": False}], **OPTIONS)
        train(problem, optimizer, range(5))
        optimizer.param_groups[0]["explore"] = True
        train(problem, optimizer, range(5, 30))
        assert optimizer.temperature > 0.0
        assert optimizer.tempering.steps == 15

    def test_refused_group_leaves_no_trace(self):
        problem, optimizer = build()
        with pytest.raises(ValueError, match=r"momentum = 1\.5"):
            optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2))], "momentum": 1.5})
        assert len(optimizer.param_groups) == 1
        run(problem, optimizer)

    def test_named_parameters(self):
        problem, twin = Classification(), Classification()
        named = CTLD(problem.model.named_parameters(), **OPTIONS)
        plain = CTLD(twin.model.parameters(), **OPTIONS)
        assert torch.equal(run(problem, named), run(twin, plain))


class TestFreezing:
    def test_a_parameter_without_gradient_rests(self):
        problem, optimizer = build(temperature=0.1)
        frozen = problem.model[0].weight.requires_grad_(False)
        before = frozen.detach().clone()
        loss = problem.backward(0)
        optimizer.step(loss=loss)
        assert torch.equal(frozen, before)
        moving = [p for p in problem.model.parameters() if p is not frozen]
        momenta = [optimizer.state[p]["momentum_buffer"] for p in moving]
        kinetic = optimizer.last.hamiltonian * 0.1 - optimizer.last.potential
        assert kinetic == pytest.approx(96 * sum(m.square().sum().item() for m in momenta) / 2, rel=1e-9)

    def test_unfreezing_mid_run(self):
        problem, optimizer = build(temperature=0.1)
        frozen = problem.model[0].weight.requires_grad_(False)
        train(problem, optimizer, range(5))
        before = frozen.detach().clone()
        frozen.requires_grad_(True)
        train(problem, optimizer, range(5, 25))
        assert not torch.equal(frozen, before)

    def test_no_gradients_at_all(self):
        problem, optimizer = build()
        before = problem.flat()
        optimizer.step(loss=1.0)
        assert torch.equal(problem.flat(), before)
        assert optimizer.last.kinetic_temperature is None

    def test_gradients_are_never_modified(self):
        problem, optimizer = build(exploration_steps=3, noise_compensation=True)
        for step in range(6):
            loss = problem.backward(step)
            before = [p.grad.clone() for p in problem.model.parameters()]
            optimizer.step(loss=loss)
            for p, gradient in zip(problem.model.parameters(), before, strict=True):
                assert torch.equal(p.grad, gradient)


class TestLayouts:
    @staticmethod
    def conv_run(memory_format, transpose=False):
        torch.manual_seed(0)
        weight = torch.randn(4, 3, 3, 3, dtype=torch.float64)
        weight = weight.permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0) if transpose else weight
        parameter = nn.Parameter(weight.clone(memory_format=memory_format))
        inputs = torch.randn(2, 3, 8, 8, dtype=torch.float64)
        optimizer = CTLD([parameter], lr=0.01, num_data=10, exploration_steps=6, temperature=1.0, seed=2)
        for _ in range(9):
            optimizer.zero_grad()
            loss = nn.functional.conv2d(inputs, parameter).square().mean()
            loss.backward()
            optimizer.step(loss=loss)
        return parameter

    def test_memory_format_does_not_matter(self):
        plain = self.conv_run(torch.contiguous_format)
        last = self.conv_run(torch.channels_last)
        strided = self.conv_run(torch.preserve_format, transpose=True)
        assert last.stride() != plain.stride() != strided.stride()
        torch.testing.assert_close(last, plain, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(strided, plain, rtol=1e-10, atol=1e-12)

    def test_tied_parameters_count_once(self):
        model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
        model[1].weight = model[0].weight
        optimizer = CTLD(model.parameters(), **OPTIONS)
        assert len(optimizer.state) == 1
        loss = model(torch.ones(2, 4)).square().mean()
        loss.backward()
        optimizer.step(loss=loss)

    def test_disjoint_views_of_one_memory_are_fine(self):
        memory = torch.randn(10)
        halves = [nn.Parameter(memory[:5]), nn.Parameter(memory[5:])]
        combs = [nn.Parameter(torch.randn(10)[0::2])]
        interleaved = torch.randn(10)
        CTLD(halves + combs, **OPTIONS)
        CTLD([nn.Parameter(interleaved[0::2]), nn.Parameter(interleaved[1::2])], **OPTIONS)

    def test_empty_parameters_are_fine(self):
        parameter, empty = nn.Parameter(torch.ones(3)), nn.Parameter(torch.empty(0, 4))
        optimizer = CTLD([parameter, empty], **OPTIONS)
        parameter.grad, empty.grad = torch.ones(3), torch.empty(0, 4)
        optimizer.step(loss=1.0)

    def test_many_small_tensors(self):
        parameters = [nn.Parameter(torch.full((3,), 0.1 + index)) for index in range(200)]
        optimizer = CTLD(parameters, **OPTIONS)
        for _ in range(2):
            for p in parameters:
                p.grad = 0.01 * p.detach()
            optimizer.step(loss=1.0)
        moved = torch.stack([p.detach() - 0.1 - i for i, p in enumerate(parameters)])
        assert moved.unique(dim=0).shape[0] == 200  # each has a stream of its own


class TestPrecision:
    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
    def test_momentum_is_kept_in_float32(self, dtype):
        problem = Classification(dtype=dtype)
        optimizer = CTLD(problem.model.parameters(), **(OPTIONS | {"temperature": 1.0}))
        train(problem, optimizer, range(25))
        assert {state["momentum_buffer"].dtype for state in optimizer.state.values()} == {torch.float32}
        assert problem.model[0].weight.dtype == dtype
        assert problem.flat().isfinite().all()

    def test_warns_once_when_rounding_eats_the_noise(self):
        problem = Classification(dtype=torch.bfloat16)
        with pytest.warns(UserWarning, match=r"bfloat16 parameter .* less than its rounding") as caught:
            optimizer = CTLD(problem.model.parameters(), **(OPTIONS | {"temperature": 1e-6}))
            train(problem, optimizer, range(25))
        assert len(caught) == 1

    def test_no_such_warning_in_float32(self):
        CTLD(Classification(dtype=torch.float32).model.parameters(), **(OPTIONS | {"temperature": 1e-6}))


class TestSchedulers:
    def test_zero_lr_in_exploration_rests(self):
        problem, optimizer = build(temperature=0.1)
        scheduler = LambdaLR(optimizer, lambda step: 0.0 if step in (0, 4, 5) else 1.0)
        before, momenta = problem.flat(), copy.deepcopy(optimizer.state_dict()["state"])
        bias = optimizer.tempering.bias.values
        optimizer.step(loss=problem.backward(0))
        scheduler.step()
        assert torch.equal(problem.flat(), before)
        assert optimizer.tempering.alpha == 0.0
        assert (optimizer.tempering.bias.values == bias).all()
        after = optimizer.state_dict()
        assert after["param_groups"][0]["ctld_step"] == 1
        for key, entry in after["state"].items():
            assert torch.equal(entry["momentum_buffer"], momenta[key]["momentum_buffer"])
        train(problem, optimizer, range(1, 30), scheduler)
        assert problem.flat().isfinite().all()

    def test_a_dry_run_without_loss_changes_nothing(self):
        """torch.distributed.checkpoint steps with lr = 0 and zero gradients to make the state appear."""
        problem, optimizer = build(temperature=0.1)
        optimizer.param_groups[0]["lr"] = 0.0
        for p in problem.model.parameters():
            p.grad = torch.zeros_like(p)
        before = copy.deepcopy(optimizer.state_dict())
        optimizer.step(closure=None)
        after = optimizer.state_dict()
        assert after["param_groups"][0]["ctld_step"] == 0
        for key, entry in before["state"].items():
            assert torch.equal(entry["momentum_buffer"], after["state"][key]["momentum_buffer"])

    def test_warm_up_from_nothing_across_the_switch(self):
        """The buffer is turned into torch's by the last lr that was not zero."""
        problem, optimizer = build(temperature=0.1, exploration_steps=4)
        scheduler = LambdaLR(optimizer, lambda step: 0.0 if step >= 3 else 1.0)
        train(problem, optimizer, range(4), scheduler)
        buffers = {p: optimizer.state[p]["momentum_buffer"].clone() for p in problem.model.parameters()}
        loss = problem.backward(4)
        optimizer.step(loss=loss)
        for p, u in buffers.items():
            expected = 0.8 * -u / math.sqrt(0.05) + p.grad + 0.01 * p.detach()
            torch.testing.assert_close(optimizer.state[p]["momentum_buffer"], expected)

    def test_constants_of_alpha_come_from_the_initial_lr(self):
        _, plain = build()
        _, optimizer = build()
        LinearLR(optimizer, start_factor=0.1)
        assert optimizer.param_groups[0]["lr"] == pytest.approx(0.005)
        assert optimizer.tempering.step_size == plain.tempering.step_size
        assert optimizer.tempering.well.strength == plain.tempering.well.strength

    def test_lr_as_tensor(self):
        problem, optimizer = build(lr=torch.tensor(0.05, dtype=torch.float64))
        twin, other = build()
        assert torch.equal(run(problem, optimizer), run(twin, other))


class TestTorchMachinery:
    def test_hooks(self):
        problem, optimizer = build()
        calls = []
        optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
        optimizer.register_step_post_hook(lambda *_: calls.append("after"))
        run(problem, optimizer, 2)
        assert calls == ["before", "after"] * 2

    def test_deepcopy_goes_on_alike(self):
        problem, optimizer = build()
        train(problem, optimizer, range(7))
        twin, twin_optimizer = copy.deepcopy((problem, optimizer))
        assert twin_optimizer.param_groups[0]["params"][0] is twin.model[0].weight
        train(problem, optimizer, range(7, 30))
        train(twin, twin_optimizer, range(7, 30))
        assert torch.equal(problem.flat(), twin.flat())
        assert twin_optimizer.tempering is not optimizer.tempering

    def test_deepcopy_under_a_scheduler(self):
        problem, optimizer = build()
        scheduler = LinearLR(optimizer)
        train(problem, optimizer, range(3), scheduler)
        twin, twin_optimizer = copy.deepcopy((problem, optimizer))
        train(twin, twin_optimizer, range(3, 5))
        assert optimizer.state_dict()["param_groups"][0]["ctld_step"] == 3
        assert twin_optimizer.state_dict()["param_groups"][0]["ctld_step"] == 5

    def test_compiled_model(self):
        problem, optimizer = build()
        twin, other = build()
        twin.model.forward = torch.compile(twin.model.forward, backend="eager")
        torch.testing.assert_close(run(problem, optimizer), run(twin, other), rtol=1e-9, atol=1e-11)

    @pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
    def test_compiled_training_step(self):
        """Tracing stops at `step`: a traced one would replay its noise, and pile up losses."""
        problem, optimizer = build()
        twin, other = build()

        def training_step(step):
            loss = twin.backward(step)
            other.step(loss=loss)

        compiled = torch.compile(training_step, backend="eager")
        for step in range(25):
            compiled(step)
        assert torch.equal(run(problem, optimizer, 25), twin.flat())

    def test_post_hook_of_loading_sees_the_loaded_state(self):
        problem = Classification(dtype=torch.bfloat16)
        optimizer = CTLD(problem.model.parameters(), **(OPTIONS | {"temperature": 0.3}))
        train(problem, optimizer, range(5))
        state = copy.deepcopy(optimizer.state_dict())
        other = CTLD(Classification(dtype=torch.bfloat16).model.parameters(), **(OPTIONS | {"temperature": 0.3}))
        seen = []
        other.register_load_state_dict_post_hook(
            lambda o: seen.append((o.steps, {s["momentum_buffer"].dtype for s in o.state.values()}))
        )
        other.load_state_dict(state)
        assert seen == [(5, {torch.float32})]


class TestWarnings:
    """A warning names the line of the user's that caused it."""

    def test_of_the_constructor(self):
        with pytest.warns(UserWarning, match="improper posterior") as caught:
            build(weight_decay=0.0)
        assert caught[0].filename == __file__
        with pytest.warns(UserWarning, match="less than its rounding") as caught:
            CTLD(Classification(dtype=torch.bfloat16).model.parameters(), **(OPTIONS | {"temperature": 1e-6}))
        assert caught[0].filename == __file__

    def test_of_the_step_under_a_scheduler(self):
        problem, optimizer = build(exploration_steps=200)
        LinearLR(optimizer)
        optimizer.tempering.alpha = 1e9
        optimizer.tempering.well = None
        with pytest.warns(UserWarning, match="beyond ±1.5") as caught:
            for step in range(120):
                optimizer.step(loss=problem.backward(step))
        assert caught[0].filename == __file__

    @pytest.mark.parametrize("tempering", [None, Tempering.calibrated])
    def test_one_that_is_an_error_comes_when_the_step_is_over(self, tempering):
        """The optimizer is where a twin is that was only warned, and goes on from there."""
        found = []
        for kind in ("error", "ignore"):
            problem, optimizer = build(exploration_steps=2000, tempering=tempering and tempering(warm_up=100), seed=3)
            if tempering is None:
                optimizer.tempering.alpha, optimizer.tempering.well = 1e9, None
            raised = 0
            for step in range(120):
                problem.model.zero_grad()
                loss = problem.backward(step)
                try:
                    with warnings.catch_warnings():
                        warnings.simplefilter(kind)
                        optimizer.step(loss=loss)
                except UserWarning:
                    raised += 1
                assert optimizer.steps == step + 1
            found.append((problem.flat(), optimizer.tempering.alpha, raised))
        (interrupted, alpha, raised), (whole, alpha_of_whole, _) = found
        assert raised
        assert torch.equal(interrupted, whole)
        assert alpha == alpha_of_whole


class TestSeed:
    def test_fixed_by_manual_seed(self):
        results = []
        for seed in (5, 5, 6):
            torch.manual_seed(seed)
            results.append(run(*build(seed=None)))
        assert torch.equal(results[0], results[1])
        assert not torch.equal(results[0], results[2])

    def test_given_seed_does_not_touch_torchs_generator(self):
        before = torch.get_rng_state()
        run(*build(seed=4))
        assert torch.equal(torch.get_rng_state(), before)

    def test_streams_of_one_step_differ(self):
        """One seed reused for every layer is a defect seen in public code."""
        a, b = nn.Parameter(torch.zeros(50)), nn.Parameter(torch.zeros(50))
        optimizer = CTLD([a, b], 0.1, num_data=10, exploration_steps=5, temperature=1.0, seed=0)
        a.grad, b.grad = torch.zeros(50), torch.zeros(50)
        optimizer.step(loss=0.0)
        assert abs(torch.corrcoef(torch.stack([a.detach(), b.detach()]))[0, 1]) < 0.5
        assert noise.parameter_stream(0) not in (noise.ALPHA, noise.INITIAL_MOMENTA)


class TestTemperature:
    @staticmethod
    def digits_network():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))

    def test_automatic_is_the_number_of_the_spec(self, caplog):
        """0.0032 for 5,000 digits with λ = 1e-3: T/(Nλ) = mean square of the weights."""
        model = self.digits_network()
        with caplog.at_level(logging.INFO, logger="ctld"):
            optimizer = CTLD(model.parameters(), 0.1, num_data=5000, exploration_steps=2000, weight_decay=1e-3)
        weights = torch.cat([p.detach().reshape(-1) for p in model.parameters() if p.dim() >= 2])
        assert optimizer.temperature == pytest.approx(5000 * 1e-3 * weights.square().mean().item(), rel=1e-5)
        assert optimizer.temperature == pytest.approx(0.0032, abs=1e-4)
        assert [record for record in caplog.records if "0.003" in record.getMessage()]

    def test_without_a_prior_diffusion_decides_and_it_is_said(self):
        model = self.digits_network()
        with pytest.warns(UserWarning, match="improper posterior") as caught:
            optimizer = CTLD(model.parameters(), 0.1, num_data=5000, exploration_steps=2000)
        assert len(caught) == 1
        weights = torch.cat([p.detach().reshape(-1) for p in model.parameters() if p.dim() >= 2])
        spread = 2 * 0.1 * 2000 * optimizer.tempering.mean_temperature_ratio / (5000 * 0.1)
        assert optimizer.temperature == pytest.approx(weights.square().mean().item() / spread, rel=1e-5)
        # Spec section 2: at T = 1 free weights diffuse by about 1.3.
        assert math.sqrt(spread) == pytest.approx(1.3, abs=0.05)

    def test_who_gives_a_temperature_is_not_warned(self):
        CTLD(self.digits_network().parameters(), 0.1, num_data=5000, exploration_steps=2000, temperature=1.0)

    def test_never_above_the_posterior(self):
        assert build(num_data=1e9)[1].temperature == 1.0

    def test_smallest_of_the_groups(self):
        problem = Classification()
        layers = [list(problem.model[0].parameters()), list(problem.model[2].parameters())]
        alone = [build(weight_decay=decay)[1].temperature for decay in (1e-2, 1e-3)]
        both = CTLD(
            [{"params": layers[0], "weight_decay": 1e-2}, {"params": layers[1], "weight_decay": 1e-3}], **OPTIONS
        )
        assert both.temperature == pytest.approx(min(alone))

    def test_vectors_only_and_zero_weights(self):
        """Biases at zero do not count while there are weights; without weights all count; all zero is refused."""
        vector = nn.Parameter(torch.full((4,), 0.5))
        options = OPTIONS | {"exploration_steps": 2000}
        assert CTLD([vector], **options).temperature == pytest.approx(96 * 0.01 * 0.25)
        with_zeros = CTLD([nn.Parameter(torch.zeros(3, 3)), vector], **options)
        assert with_zeros.temperature == pytest.approx(96 * 0.01 * 0.25 * 4 / 13)
        with pytest.raises(ValueError, match="all zero; give temperature="):
            CTLD([nn.Parameter(torch.zeros(3))], **OPTIONS)

    def test_resting_groups_do_not_count(self):
        big, small = nn.Parameter(torch.full((4, 4), 0.5)), nn.Parameter(torch.full((4, 4), 1e-3))
        options = OPTIONS | {"exploration_steps": 2000}
        optimizer = CTLD([{"params": [big]}, {"params": [small], "explore": False}], **options)
        assert optimizer.temperature == pytest.approx(96 * 0.01 * 0.25)

    def test_initial_momenta_are_thermal(self):
        parameter = nn.Parameter(torch.ones(40_000))
        optimizer = CTLD([parameter], 0.1, num_data=50, exploration_steps=5, temperature=0.5, seed=3)
        velocity = optimizer.state[parameter]["momentum_buffer"] * math.sqrt(0.1)
        # A variance of n numbers has the relative error sqrt(2/n) = 0.7 %.
        assert velocity.var().item() == pytest.approx(0.5 * 0.1 / 50, rel=0.03)
        assert velocity.var().item() != pytest.approx(1.1 * 0.5 * 0.1 / 50, rel=0.03)


class TestTemperingOfTheUsersOwn:
    def test_the_small_interface_is_enough(self):
        class Fixed(TemperatureControl):
            temperature_ratio = 2.0

            def __init__(self):
                self.seen = []

            def end(self, hamiltonian, normal, hamiltonian_variance=0.0):
                self.seen.append(hamiltonian)

            def state_dict(self):
                return {"count": len(self.seen)}

            def load_state_dict(self, state_dict):
                self.seen = [0.0] * int(state_dict["count"])

        tempering = Fixed()
        problem, optimizer = build(tempering=tempering)
        run(problem, optimizer, 25)
        assert len(tempering.seen) == 20
        assert optimizer.last.alpha is None
        state = optimizer.state_dict()
        assert state["param_groups"][0]["ctld_tempering_count"] == 20
        _, other = build(tempering=Fixed())
        other.load_state_dict(state)
        assert len(other.tempering.seen) == 20

    def test_without_well_and_bias(self):
        problem, optimizer = build(tempering=Tempering())
        run(problem, optimizer)
        assert optimizer.tempering.step_size == pytest.approx(math.sqrt(0.05 / 96))

    def test_one_tempering_one_optimizer(self):
        tempering = Tempering()
        build(tempering=tempering)
        with pytest.raises(ValueError, match="one Tempering for each optimizer"):
            build(tempering=tempering)


def test_maximize_explores_the_negated_loss():
    problem, twin = Classification(), Classification()
    down = CTLD(problem.model.parameters(), **OPTIONS)
    up = CTLD(twin.model.parameters(), **OPTIONS, maximize=True)
    for step in range(30):
        loss = problem.backward(step)
        down.step(loss=loss)
        loss = twin.backward(step)
        for p in twin.model.parameters():
            p.grad.neg_()
        up.step(loss=-loss)
    assert torch.equal(problem.flat(), twin.flat())


def test_defaults_emit_no_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(*build())


def test_a_parameter_that_shrank_in_place_is_not_written_beyond_its_end():
    """Its address is the same, and its old gradient still fits the old size."""
    parameter = torch.nn.Parameter(torch.ones(8))
    whole = parameter.data
    optimizer = CTLD([parameter], lr=0.1, num_data=10, exploration_steps=0)
    parameter.grad = torch.ones(8)
    optimizer.step()
    before = whole.clone()
    parameter.data = whole[:3]
    with pytest.raises(RuntimeError):
        optimizer.step()
    assert torch.equal(whole, before)
