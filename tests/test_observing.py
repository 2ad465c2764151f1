"""The loss, however it reaches the optimizer: watched, observed, by position; and dropped where its step was not taken."""

import copy

import pytest
import torch
from torch import nn

from ctld import CTLD, OPTIMIZERS, create
from targets import Classification

OPTIONS = {"lr": 0.05, "momentum": 0.8, "weight_decay": 1e-2, "num_data": 96, "exploration_steps": 20, "seed": 1}
STEPS = 30


def build(**options):
    problem = Classification()
    return problem, CTLD(problem.model.parameters(), **(OPTIONS | {"temperature": 0.3} | options))


def loss_of(problem, step):
    inputs, labels = (problem._chosen(part, step) for part in (problem.inputs, problem.labels))
    return nn.functional.cross_entropy(problem.model(inputs), labels)


def path(way):
    """Where `STEPS` steps lead to, each taken by `way`; and the potentials of the exploring ones."""
    problem, optimizer = build()
    potentials = []
    for step in range(STEPS):
        optimizer.zero_grad()
        way(problem, optimizer, step)
        potentials.append(optimizer.last.potential)
    return problem.flat(), potentials


def plainly(problem, optimizer, step):
    loss = loss_of(problem, step)
    loss.backward()
    optimizer.step(loss=loss)


class TestWatch:
    def test_is_the_plain_loop(self):
        def watched(problem, optimizer, step):
            loss = loss_of(problem, step)
            assert optimizer.watch(loss) is loss
            loss.backward()
            optimizer.step()

        assert torch.equal(path(watched)[0], path(plainly)[0])

    def test_before_zero_grad(self):
        """The loss is observed in `backward`, so a `zero_grad` in between drops nothing."""

        def watched(problem, optimizer, step):
            loss = optimizer.watch(loss_of(problem, step))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

        assert torch.equal(path(watched)[0], path(plainly)[0])

    @pytest.mark.parametrize("watching", [True, False])
    def test_micro_batches_count_as_they_are_divided(self, watching):
        """Four of them, each divided by four, are the batch. The twin hands over the last one's loss, as Lightning does."""

        def in_parts(problem, optimizer, step):
            inputs, labels = (problem._chosen(part, step).chunk(4) for part in (problem.inputs, problem.labels))
            for part in range(4):
                loss = nn.functional.cross_entropy(problem.model(inputs[part]), labels[part])
                if watching:
                    optimizer.watch(loss)
                (loss / 4).backward()
            optimizer.step(lambda: loss / 4)

        (end, potentials), (expected, plain) = path(in_parts), path(plainly)
        assert torch.allclose(end, expected, rtol=1e-9, atol=1e-12) == watching
        assert (potentials[0] == pytest.approx(plain[0], rel=1e-12)) == watching

    def test_a_loss_that_is_divided_in_place(self):
        """As timm does it: the tensor that was watched has another value by the time of `backward`."""
        problem, optimizer = build()
        expected = loss_of(problem, 0).item()
        for _ in range(2):
            loss = optimizer.watch(loss_of(problem, 0))
            loss /= 2
            loss.backward()
        assert sum(optimizer.losses.pending) == pytest.approx(expected, rel=1e-12)

    def test_a_scale_is_divided_out(self):
        def scaled(problem, optimizer, step):
            loss = optimizer.watch(loss_of(problem, step), scaler=scaler)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()

        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        # Powers of two: nothing is rounded.
        assert torch.equal(path(scaled)[0], path(plainly)[0])

    def test_a_scale_that_is_not_declared_is_said_once(self):
        problem, optimizer = build()
        with pytest.warns(
            UserWarning, match=r"multiplied by 65536 before backward.*watch\(loss, scaler=scaler\)"
        ) as caught:
            for step in range(3):
                (65536.0 * optimizer.watch(loss_of(problem, step))).backward()
        assert len(caught) == 1

    def test_losses_of_several_elements(self):
        """As data parallelism makes them: a mean over them is what goes backward."""
        problem, optimizer = build()
        losses = torch.stack([loss_of(problem, 0), loss_of(problem, 1)])
        optimizer.watch(losses).mean().backward()
        assert optimizer.losses.pending == [pytest.approx(losses.mean().item(), rel=1e-12)]

    def test_what_needs_no_gradient_is_left_alone(self):
        problem, optimizer = build()
        with torch.no_grad():
            optimizer.watch(loss_of(problem, 0))
        optimizer.watch(torch.tensor(1.0))
        assert optimizer.losses.pending == []

    def test_not_in_fine_tuning(self):
        problem, optimizer = build(exploration_steps=0)
        optimizer.watch(loss_of(problem, 0)).backward()
        assert optimizer.losses.pending == []

    @pytest.mark.parametrize("name", ["adam", "sgld"])
    def test_methods_that_do_not_read_it(self, name):
        problem = Classification()
        optimizer = create(name, problem.model.parameters(), lr=0.01, num_data=96)
        loss = loss_of(problem, 0)
        assert optimizer.watch(loss) is loss
        loss.backward()
        optimizer.step()

    def test_a_copy_observes_for_itself(self):
        problem, optimizer = build()
        optimizer.watch(loss_of(problem, 0)).backward()
        twin = copy.deepcopy(optimizer)
        twin.zero_grad()
        assert (len(optimizer.losses.pending), twin.losses.pending) == (1, [])


class TestSkippedSteps:
    def test_zero_grad_drops_what_was_observed(self):
        """A GradScaler that finds an inf does not call `step`: the loss must not be added to the next one's."""
        problem, optimizer = build()
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        for spoilt in (True, False):
            optimizer.zero_grad()
            loss = loss_of(problem, 0)
            optimizer.observe(loss)
            scaler.scale(loss).backward()
            if spoilt:
                problem.model[0].weight.grad[0, 0] = torch.inf
            scaler.step(optimizer)
            scaler.update()
            assert (optimizer.last is None) == spoilt
        other, plain = build()
        plainly(other, plain, 0)
        assert optimizer.last.potential == pytest.approx(plain.last.potential, rel=1e-12)

    def test_a_refusal_leaves_nothing_behind(self):
        problem, optimizer = build()
        optimizer.observe(loss_of(problem, 0))

        def closure():
            raise KeyError("data")

        with pytest.raises(KeyError):
            optimizer.step(closure)
        assert optimizer.losses.pending == []


class TestByPosition:
    @pytest.mark.parametrize("what", ["tensor", "float", "keyword named closure"])
    def test_is_the_plain_loop(self, what):
        def by_position(problem, optimizer, step):
            loss = loss_of(problem, step)
            loss.backward()
            if what == "keyword named closure":
                assert optimizer.step(closure=loss) is loss
            else:
                optimizer.step(loss if what == "tensor" else loss.item())

        assert torch.equal(path(by_position)[0], path(plainly)[0])

    @pytest.mark.parametrize("name", OPTIMIZERS)
    def test_every_method(self, name):
        parameter = nn.Parameter(torch.ones(3))
        needed = {"num_data": 9, "exploration_steps": 2, "num_steps": 9}
        options = {option: needed[option] for option in OPTIMIZERS[name].needs}
        optimizer = create(name, [parameter], lr=1e-3, weight_decay=1e-2, **options)
        loss = parameter.square().sum()
        loss.backward()
        assert optimizer.step(loss) is loss

    @pytest.mark.parametrize("name", ["ctld", "adam", "sgld"])
    def test_nonsense_is_named(self, name):
        options = {"num_data": 9, "weight_decay": 1e-2} | ({"exploration_steps": 2} if name == "ctld" else {})
        optimizer = create(name, [nn.Parameter(torch.ones(3))], lr=1e-3, **options)
        with pytest.raises(TypeError, match="step was given 'loss'; give a closure"):
            optimizer.step("loss")
        with pytest.raises(TypeError, match="the loss twice"):
            optimizer.step(1.0, loss=2.0)


class Imitation:
    """What Lightning and Fabric put around an optimizer: its class, and its attributes one by one."""

    def __init__(self, optimizer):
        self._optimizer = optimizer
        self.__class__ = type("Imitation" + type(optimizer).__name__, (type(self), type(optimizer)), {})

    def step(self, *arguments, **options):
        return self._optimizer.step(*arguments, **options)

    def __getattr__(self, name):
        return getattr(self._optimizer, name)


@pytest.mark.parametrize("name", ["ctld", "santa", "csghmc"])
def test_a_wrapper_that_imitates_our_class_says_what_we_say(name):
    problem = Classification()
    needed = {"num_data": 96, "exploration_steps": 4, "num_steps": 12}
    options = {option: needed[option] for option in OPTIMIZERS[name].needs} | {"weight_decay": 1e-2, "seed": 1}
    optimizer = create(name, problem.model.parameters(), lr=1e-3, **options)
    wrapper = Imitation(optimizer)
    assert isinstance(wrapper, OPTIMIZERS[name].optimizer)
    for step in range(6):
        wrapper.zero_grad()
        wrapper.watch(loss_of(problem, step)).backward()
        wrapper.step()
        assert wrapper.state_dict()["param_groups"][0]["ctld_step"] == step + 1
        if name != "csghmc":
            assert wrapper.exploring == optimizer.exploring == (step + 1 < 4)
    # A wrapper's state goes into the optimizer itself, and the other way round.
    optimizer.load_state_dict(wrapper.state_dict())
