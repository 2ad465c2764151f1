"""One set of tests over every row of `ctld.OPTIMIZERS`: what a user may expect of any method, whatever its algorithm.

What each method computes is in test_methods.py; what only CTLD does is in test_ctld.py and its neighbours.
"""

import copy
import inspect
import math
import re

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.nn import functional
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, OneCycleLR

import ctld
from ctld import OPTIMIZERS, Tempering, create
from targets import Classification, equal, saved

# What each row needs, with settings at which 20 steps on the small network cross every switch of phase.
OPTIONS = {
    "ctld": {"lr": 0.05, "momentum": 0.8, "num_data": 96, "exploration_steps": 12, "temperature": 0.3},
    "sgd": {"lr": 0.05},
    "rmsprop": {"lr": 0.02},
    "adam": {"lr": 0.05},
    "adadelta": {"lr": 1.0, "eps": 1e-3},
    "anneal_sgd": {"lr": 0.05, "momentum": 0.8, "noise_scale": 0.1},
    "sgld": {"lr": 0.05, "num_data": 96},
    "psgld": {"lr": 0.03, "num_data": 96, "temperature": 0.1},
    "sghmc": {"lr": 0.05, "momentum": 0.8, "num_data": 96},
    "sgnht": {"lr": 0.05, "momentum": 0.8, "num_data": 96},
    "langevin": {"lr": 0.05, "momentum": 0.8, "num_data": 96},
    "simulated_annealing": {"lr": 0.05, "num_data": 96},
    "santa": {"lr": 0.01, "num_data": 96, "exploration_steps": 12},
    "easgd": {"lr": 0.05, "period": 3},
    "eamsgd": {"lr": 0.05, "period": 3},
    "csghmc": {"lr": 0.05, "momentum": 0.8, "num_data": 96, "num_steps": 20, "num_cycles": 2, "exploration_share": 0.6},
    "baoab": {"lr": 0.05, "momentum": 0.8, "num_data": 96},
    "ubu": {"lr": 0.05, "momentum": 0.8, "num_data": 96},
}
FROM_TORCH = [
    name for name, method in OPTIMIZERS.items() if method.optimizer.__module__ == "ctld.optimizers.from_torch"
]
OURS = [name for name in OPTIMIZERS if name not in FROM_TORCH]
NOISY = [name for name, method in OPTIMIZERS.items() if method.noisy]
NEED_LOSS = [name for name, method in OPTIMIZERS.items() if method.needs_loss]
STEPS = 20

every_row = pytest.mark.parametrize("name", OPTIMIZERS)


def options_of(name):
    """What a constructor names, and those of its parents that are methods too, to which it hands the rest."""
    methods = {method.optimizer for method in OPTIMIZERS.values()}
    parents = [cls for cls in OPTIMIZERS[name].optimizer.__mro__ if cls in methods]
    named = [entry for cls in parents for entry in inspect.signature(cls).parameters.values()]
    return {entry.name for entry in named if entry.kind is not entry.VAR_KEYWORD and not entry.name.startswith("_")}


def build(name, params, seed=1, **options):
    options = OPTIONS[name] | options
    return create(name, params, **(options | {"seed": seed} if OPTIMIZERS[name].noisy else options))


def start(name, *, data_seed=0, dtype=torch.float64, **options):
    problem = Classification(seed=data_seed, dtype=dtype)
    return problem, build(name, problem.model.parameters(), **options)


def go_on(problem, optimizer, steps=range(STEPS), scheduler=None):
    """The README's loop: the same line for every method."""
    for step in steps:
        loss = problem.backward(step)
        optimizer.step(loss=loss)
        if scheduler is not None:
            scheduler.step()
    return problem.flat()


class TestTable:
    def test_these_tests_cover_it(self):
        assert set(OPTIONS) == set(OPTIMIZERS)
        assert len(OPTIMIZERS) == 18

    @every_row
    def test_row(self, name):
        method = OPTIMIZERS[name]
        assert name == name.lower()
        assert issubclass(method.optimizer, torch.optim.Optimizer)
        assert method.title
        assert re.search(r"\b(19|20)\d\d\b", method.paper)
        assert isinstance(start(name)[1], method.optimizer)
        # What is needed is what the constructor has no default for; what is not needed has one.
        assert {"lr"} | method.needs <= OPTIONS[name].keys()
        smallest = {key: OPTIONS[name][key] for key in {"lr", *method.needs}} | method.defaults
        if name == "ctld":
            smallest["weight_decay"] = 1e-2  # else it says that the posterior is improper
        method.optimizer(Classification().model.parameters(), **smallest)

    @pytest.mark.parametrize("name", OURS)
    def test_public(self, name):
        cls = OPTIMIZERS[name].optimizer
        assert getattr(ctld, cls.__name__) is getattr(ctld.optimizers, cls.__name__) is cls
        assert cls.__doc__
        assert cls.step.__doc__


class TestCreate:
    @pytest.mark.parametrize(
        ("name", "nearest"),
        [
            ("sghcm", "sghmc"),
            ("SGHMC", "sghmc"),
            ("Adm", "adam"),
            ("anneal-sgd", "anneal_sgd"),
            ("lngevin", "langevin"),
        ],
    )
    def test_unknown_name_gets_the_nearest(self, name, nearest):
        with pytest.raises(ValueError, match=rf"no optimizer '{name}'.*did you mean '{nearest}'\?") as caught:
            create(name, [], lr=0.1)
        assert all(known in str(caught.value) for known in OPTIMIZERS)

    def test_unknown_name_without_a_near_one(self):
        with pytest.raises(ValueError, match="no optimizer 'zzz'") as caught:
            create("zzz", [], lr=0.1)
        assert "did you mean" not in str(caught.value)
        assert ", ".join(OPTIMIZERS) in str(caught.value)

    @every_row
    def test_what_is_missing_is_named(self, name):
        needed = sorted({"lr"} | OPTIMIZERS[name].needs)
        with pytest.raises(TypeError, match=f"^{name} needs {', '.join(needed)}; give {needed[0]}="):
            create(name, [nn.Parameter(torch.ones(2))])

    def test_one_missing(self):
        with pytest.raises(TypeError, match=r"^santa needs exploration_steps; give exploration_steps=$"):
            create("santa", [nn.Parameter(torch.ones(2))], lr=0.1, num_data=10)

    def test_defaults_of_the_table(self):
        parameters = [nn.Parameter(torch.ones(2))]
        assert create("sgd", parameters, lr=0.1).param_groups[0]["momentum"] == 0.9
        assert create("sgd", parameters, lr=0.1, momentum=0.5).param_groups[0]["momentum"] == 0.5
        assert OPTIMIZERS["sgd"].defaults == {"momentum": 0.9}  # not written to by the caller's

    @every_row
    def test_misspelt_option_is_refused(self, name):
        # An option that is taken as a group's and ignored would leave the run at T = 1.
        with pytest.raises(TypeError, match="temprature"):
            create(name, [nn.Parameter(torch.ones(2))], **OPTIONS[name], temprature=0.0)


@every_row
def test_descends_a_convex_problem(name):
    """Linear regression; the loss of a sampler ends near its thermal d·T/(2N) = 0.026, below 1 % of where it starts."""
    inputs = torch.randn(96, 5, dtype=torch.float64)
    targets = inputs @ torch.tensor([3.0, -2.0, 1.5, 4.0, -3.0], dtype=torch.float64)
    weights = nn.Parameter(torch.zeros(5, dtype=torch.float64))
    optimizer = build(name, [weights])
    losses = []
    for _ in range(250):
        optimizer.zero_grad()
        loss = 0.5 * functional.mse_loss(inputs @ weights, targets)
        loss.backward()
        optimizer.step(loss=loss)
        losses.append(loss.item())
    assert sum(losses[-50:]) / 50 < 0.01 * losses[0]


class TestGradients:
    @every_row
    def test_without_one_a_parameter_rests(self, name):
        problem, optimizer = start(name, weight_decay=0.1)
        frozen, unused = problem.model[0].weight.requires_grad_(False), problem.model[2].bias
        before = {p: p.detach().clone() for p in problem.model.parameters()}
        for step in range(STEPS):
            loss = problem.backward(step)
            unused.grad = None
            optimizer.step(loss=loss)
        for p, value in before.items():
            assert torch.equal(p, value) == (p is frozen or p is unused)
        unused.requires_grad_(True)
        go_on(problem, optimizer, range(STEPS, STEPS + 5))
        assert not torch.equal(unused, before[unused])
        assert problem.flat().isfinite().all()

    @every_row
    def test_none_at_all(self, name):
        problem, optimizer = start(name)
        before = problem.flat()
        optimizer.step(loss=1.0)
        assert torch.equal(problem.flat(), before)
        assert go_on(problem, optimizer).isfinite().all()

    @every_row
    def test_frozen_mid_run(self, name):
        # For easgd and eamsgd: the exchange must not move what is frozen either.
        problem, optimizer = start(name)
        go_on(problem, optimizer, range(8))
        frozen = problem.model[0].weight.requires_grad_(False)
        before = frozen.detach().clone()
        go_on(problem, optimizer, range(8, STEPS))
        assert torch.equal(frozen, before)

    @every_row
    @pytest.mark.parametrize("options", [{}, {"weight_decay": 0.1, "maximize": True}])
    def test_are_left_alone(self, name, options):
        problem, optimizer = start(name, **options)
        for step in range(STEPS):
            loss = problem.backward(step)
            before = [p.grad.clone() for p in problem.model.parameters()]
            optimizer.step(loss=loss)
            for p, gradient in zip(problem.model.parameters(), before, strict=True):
                assert torch.equal(p.grad, gradient)

    @pytest.mark.parametrize("name", OURS)
    def test_sparse_ones_are_refused(self, name):
        embedding = nn.Embedding(5, 2, sparse=True)
        optimizer = build(name, embedding.parameters())
        loss = embedding(torch.tensor([1, 2])).sum()
        loss.backward()
        before = copy.deepcopy([optimizer.state_dict(), embedding.state_dict()])
        with pytest.raises(ValueError, match=r"sparse .*nn.Embedding\(sparse=False\)"):
            optimizer.step(loss=loss)
        assert equal([optimizer.state_dict(), embedding.state_dict()], before)

    @every_row
    def test_maximize(self, name):
        """Up the loss by maximize, down its negative: the same run."""
        up, ascending = start(name, maximize=True, weight_decay=0.1)
        down, descending = start(name, weight_decay=0.1)
        for step in range(STEPS):
            ascending.step(loss=up.backward(step))
            loss = down.backward(step)
            for p in down.model.parameters():
                p.grad.neg_()
            descending.step(loss=-loss)
        torch.testing.assert_close(up.flat(), down.flat(), rtol=1e-12, atol=1e-14)


class TestGroups:
    @staticmethod
    def path(name, first, second):
        """Both layers after each of 8 steps, under gradients that do not depend on where the other layer is."""
        problem = Classification()
        layers = [list(problem.model[0].parameters()), list(problem.model[2].parameters())]
        # α held: through it, one layer of CTLD feels the energy of the other.
        held = {"tempering": Tempering(alpha=0.0, alpha_momentum=0.0, mass=1e30)} if name == "ctld" else {}
        optimizer = build(name, [{"params": layers[0]} | first, {"params": layers[1]} | second], **held)
        generator = torch.Generator().manual_seed(5)
        path = [[], []]
        for _ in range(8):
            for p in problem.model.parameters():
                p.grad = torch.randn(p.shape, generator=generator, dtype=p.dtype)
            optimizer.step(loss=1.0)
            for layer, seen in zip(layers, path, strict=True):
                seen.append(torch.cat([p.detach().reshape(-1) for p in layer]))
        return [torch.stack(seen) for seen in path]

    @every_row
    def test_own_lr_and_weight_decay(self, name):
        """In a run with two settings each group does what it does in a run where both have its setting."""
        own = {"lr": 0.3 * OPTIONS[name]["lr"], "weight_decay": 0.2}
        mixed, plain, changed = self.path(name, {}, own), self.path(name, {}, {}), self.path(name, own, own)
        torch.testing.assert_close(mixed[0], plain[0], rtol=1e-12, atol=1e-14)
        torch.testing.assert_close(mixed[1], changed[1], rtol=1e-12, atol=1e-14)
        assert (mixed[1] - plain[1]).abs().max() > 1e-3

    @every_row
    def test_added_mid_run(self, name):
        problem = Classification()
        optimizer = build(name, problem.model[0].parameters())
        go_on(problem, optimizer, range(5))
        before = problem.model[2].weight.detach().clone()
        optimizer.add_param_group({"params": problem.model[2].parameters(), "lr": 0.5 * OPTIONS[name]["lr"]})
        go_on(problem, optimizer, range(5, STEPS))
        assert problem.flat().isfinite().all()
        assert not torch.equal(problem.model[2].weight, before)

    @pytest.mark.parametrize("name", OURS)
    def test_refused_group_leaves_no_trace(self, name):
        problem, optimizer = start(name)
        before = copy.deepcopy(optimizer.state_dict())
        with pytest.raises(ValueError, match=r"lr = -1\.0"):
            optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2))], "lr": -1.0})
        assert equal(optimizer.state_dict(), before)
        go_on(problem, optimizer)

    @every_row
    def test_named_parameters(self, name):
        problem = Classification()
        optimizer = build(name, problem.model.named_parameters())
        assert torch.equal(go_on(problem, optimizer), go_on(*start(name)))

    @every_row
    def test_two_hundred_small_tensors(self, name):
        """All alike, under the same gradient: noise has a stream for each, and without noise they move alike."""
        parameters = [nn.Parameter(torch.full((3,), 0.5)) for _ in range(200)]
        optimizer = build(name, parameters)
        for _ in range(2):
            for p in parameters:
                p.grad = 0.1 * p.detach()
            optimizer.step(loss=1.0)
        ends = torch.stack([p.detach() for p in parameters])
        assert ends.isfinite().all()
        assert (ends != 0.5).all()
        assert len(ends.unique(dim=0)) == (200 if name in NOISY else 1)


def buffers(optimizer):
    """The velocities as they are now."""
    return [state["momentum_buffer"].clone() for state in optimizer.state.values()]


class TestSchedulers:
    @every_row
    def test_lr_is_followed(self, name):
        problem, optimizer = start(name)
        scheduler = CosineAnnealingLR(optimizer, STEPS)
        end = go_on(problem, optimizer, scheduler=scheduler)
        assert optimizer.param_groups[0]["lr"] == pytest.approx(0.0, abs=1e-12)
        assert end.isfinite().all()
        assert not torch.equal(end, go_on(*start(name)))

    @every_row
    def test_one_cycle(self, name):
        """It writes the momentum too, where there is one."""
        problem, optimizer = start(name)
        has_momentum = "momentum" in optimizer.defaults or "betas" in optimizer.defaults
        scheduler = OneCycleLR(optimizer, OPTIONS[name]["lr"], total_steps=STEPS, cycle_momentum=has_momentum)
        assert go_on(problem, optimizer, range(STEPS - 1), scheduler).isfinite().all()
        if has_momentum:
            group = optimizer.param_groups[0]
            assert (group["momentum"] if "momentum" in group else group["betas"][0]) == pytest.approx(0.95, abs=0.01)

    @every_row
    def test_lr_zero(self, name):
        """A legal step, at which parameters rest; so do velocities of SGHMC's kind, which would coast on."""
        rests = name in ("sghmc", "csghmc", "sgnht", "santa")
        problem, optimizer = start(name)
        scheduler = LambdaLR(optimizer, lambda step: 0.0 if step in (4, 5) else 1.0)
        for step in range(STEPS):
            before, velocities = problem.flat(), buffers(optimizer) if rests else None
            go_on(problem, optimizer, range(step, step + 1), scheduler)
            unmoved = step in (4, 5)
            assert torch.equal(problem.flat(), before) == unmoved
            if rests:
                assert equal(buffers(optimizer), velocities) == unmoved
        assert problem.flat().isfinite().all()

    @every_row
    def test_lr_as_tensor(self, name):
        lr = torch.tensor(OPTIONS[name]["lr"], dtype=torch.float64)
        options = {"foreach": False} if name in FROM_TORCH else {}  # torch's condition
        problem, optimizer = start(name, lr=lr, **options)
        torch.testing.assert_close(go_on(problem, optimizer), go_on(*start(name, **options)), rtol=1e-12, atol=1e-14)


class TestState:
    @every_row
    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
    def test_resume_is_bit_for_bit(self, name, dtype):
        """Interrupted at the start, within either phase, before and after the switch, and before the last step."""

        def begin(**options):
            problem, optimizer = start(name, dtype=dtype, **options)
            return problem, optimizer, CosineAnnealingLR(optimizer, 2 * STEPS)

        whole, whole_optimizer, scheduler = begin()
        checkpoints = {}
        for step in range(STEPS):
            if step in (0, 1, 7, 11, 12, 13, 19):
                parts = (whole.model, whole_optimizer, scheduler)
                checkpoints[step] = saved([part.state_dict() for part in parts])
            go_on(whole, whole_optimizer, range(step, step + 1), scheduler)
        for interruption, (model_state, optimizer_state, scheduler_state) in checkpoints.items():
            # Another seed and other weights at first: the state's must win.
            resumed, optimizer, scheduler = begin(data_seed=7, seed=99)
            resumed.inputs, resumed.labels = whole.inputs, whole.labels
            resumed.model.load_state_dict(model_state)
            scheduler.load_state_dict(scheduler_state)
            optimizer.load_state_dict(optimizer_state)
            assert equal(optimizer.state_dict(), optimizer_state)
            go_on(resumed, optimizer, range(interruption, STEPS), scheduler)
            assert torch.equal(resumed.flat(), whole.flat()), interruption
            assert equal(optimizer.state_dict(), whole_optimizer.state_dict())

    @pytest.mark.filterwarnings("ignore::UserWarning:torch", "ignore::FutureWarning:torch")
    @every_row
    def test_through_torchs_distributed_checkpoint(self, name, tmp_path):
        """Flattened, as for a change of the number of ranks: names and numbers only."""
        options = StateDictOptions(flatten_optimizer_state_dict=True)
        whole, whole_optimizer = start(name)
        go_on(whole, whole_optimizer, range(7))
        states = dict(
            zip(("model", "optimizer"), get_state_dict(whole.model, whole_optimizer, options=options), strict=True)
        )
        dcp.save(states, checkpoint_id=tmp_path, no_dist=True)
        go_on(whole, whole_optimizer, range(7, STEPS))

        resumed, optimizer = start(name, data_seed=7, seed=99)
        resumed.inputs, resumed.labels = whole.inputs, whole.labels
        model_state, optimizer_state = get_state_dict(resumed.model, optimizer, options=options)
        dcp.load({"model": model_state, "optimizer": optimizer_state}, checkpoint_id=tmp_path, no_dist=True)
        states = {"model_state_dict": model_state, "optim_state_dict": optimizer_state}
        set_state_dict(resumed.model, optimizer, **states, options=options)
        assert torch.equal(go_on(resumed, optimizer, range(7, STEPS)), whole.flat())
        assert equal(optimizer.state_dict(), whole_optimizer.state_dict())

    @every_row
    def test_taking_or_loading_one_changes_nothing(self, name):
        problem, optimizer = start(name)
        twin, other = start(name)
        for step in range(STEPS):
            optimizer.load_state_dict(optimizer.state_dict())
            go_on(problem, optimizer, range(step, step + 1))
        assert torch.equal(problem.flat(), go_on(twin, other))

    @every_row
    def test_is_a_snapshot(self, name):
        """Of what is optimizer-wide or a group's; tensors of a parameter are torch's to alias, and it does."""
        problem, optimizer = start(name)
        go_on(problem, optimizer, range(5))
        groups = optimizer.state_dict()["param_groups"]
        before = copy.deepcopy(groups)
        go_on(problem, optimizer, range(5, 15))
        assert equal(groups, before)

    @every_row
    def test_of_other_parameters_is_refused(self, name):
        problem, optimizer = start(name)
        go_on(problem, optimizer, range(3))
        other = build(name, nn.Linear(3, 3).parameters())
        self.refused(other, optimizer.state_dict(), "parameter")

    @pytest.mark.parametrize("name", [name for name in OURS if name not in ("sgld", "simulated_annealing")])
    def test_of_other_shapes_is_refused(self, name):
        """SGLD remembers nothing of a parameter; torch's own do not look."""
        problem, optimizer = start(name)
        go_on(problem, optimizer, range(3))
        model = nn.Sequential(nn.Linear(12, 9), nn.Linear(9, 3)).double()
        state = optimizer.state_dict()
        self.refused(build(name, model.parameters()), state, r"has shape \(10, 12\) in the state, \(9, 12\)")

    @pytest.mark.parametrize("name", OURS)
    def test_of_torchs_sgd_is_refused(self, name):
        problem, optimizer = start(name)
        go_on(problem, optimizer, range(3))
        twin, sgd = start("sgd")
        go_on(twin, sgd, range(3))
        self.refused(optimizer, sgd.state_dict(), f"not one of {type(optimizer).__name__}")

    @pytest.mark.parametrize("name", OURS)
    def test_of_another_generator_is_refused(self, name):
        problem, optimizer = start(name)
        go_on(problem, optimizer, range(3))
        state = copy.deepcopy(optimizer.state_dict())
        state["param_groups"][0]["ctld_generator"] = "dice"
        self.refused(optimizer, state, "noise comes from 'dice'")

    @pytest.mark.parametrize(
        ("there", "here"),
        [
            ("sghmc", "sgnht"),
            ("sgld", "psgld"),
            ("ctld", "langevin"),
            ("langevin", "ctld"),
            # Of one shape but in other units (v, v/√lr and torch's −v/lr).
            ("sghmc", "langevin"),
            ("anneal_sgd", "sghmc"),
        ],
    )
    def test_of_another_method_is_refused(self, there, here):
        problem, optimizer = start(there)
        go_on(problem, optimizer, range(3))
        self.refused(start(here)[1], optimizer.state_dict(), "state")

    @pytest.mark.parametrize("name", [name for name in OURS if "temperature" in options_of(name)])
    def test_holds_the_temperature(self, name):
        """Spec section 7 has a temperature outside the state among the defects of public code."""
        # The temperature of the run that was saved, as its lr and momentum.
        problem, optimizer = start(name, temperature=0.25)
        go_on(problem, optimizer, range(3))
        other = start(name, temperature=0.5)[1]
        other.load_state_dict(saved(optimizer.state_dict()))
        assert other.temperature == 0.25

    @staticmethod
    def refused(optimizer, state, message):
        parameters = [p.detach().clone() for group in optimizer.param_groups for p in group["params"]]
        before = copy.deepcopy(optimizer.state_dict())
        with pytest.raises(ValueError, match=message):
            optimizer.load_state_dict(state)
        assert equal(optimizer.state_dict(), before)
        assert equal([p.detach() for group in optimizer.param_groups for p in group["params"]], parameters)


class TestSeed:
    @pytest.mark.parametrize("name", NOISY)
    def test_decides_the_run(self, name):
        first, again, another = (go_on(*start(name, seed=seed)) for seed in (4, 4, 5))
        assert torch.equal(first, again)
        assert not torch.equal(first, another)

    @pytest.mark.parametrize("name", NOISY)
    def test_is_drawn_from_torch_and_nothing_else_is(self, name):
        ends = []
        for seed in (5, 5, 6):
            torch.manual_seed(seed)
            problem, optimizer = start(name, seed=None)
            state = torch.get_rng_state()
            ends.append(go_on(problem, optimizer))
            assert torch.equal(torch.get_rng_state(), state)
        assert torch.equal(ends[0], ends[1])
        assert not torch.equal(ends[0], ends[2])

    @pytest.mark.parametrize("name", [name for name in OPTIMIZERS if name not in NOISY])
    def test_is_not_needed_without_noise(self, name):
        ends = []
        for seed in (5, 6):
            torch.manual_seed(seed)
            ends.append(go_on(*start(name)))
        assert torch.equal(*ends)


class TestPrecision:
    @every_row
    def test_float32_follows_float64(self, name):
        """For a few steps: noise agrees within 1e-4 of its size, and dividing by a small gradient amplifies rounding."""
        (double, double_end), (single, single_end) = (
            (problem, go_on(problem, optimizer, range(5)))
            for problem, optimizer in (start(name, dtype=dtype) for dtype in (torch.float64, torch.float32))
        )
        assert {p.dtype for p in double.model.parameters()} == {torch.float64}
        assert {p.dtype for p in single.model.parameters()} == {torch.float32}
        torch.testing.assert_close(single_end.double(), double_end, rtol=1e-3, atol=1e-3)

    @pytest.mark.parametrize("name", OURS)
    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
    def test_what_is_remembered_is_float32_at_least(self, name, dtype):
        problem, optimizer = start(name, dtype=dtype)
        go_on(problem, optimizer)
        tensors = [x for state in optimizer.state.values() for x in state.values() if isinstance(x, torch.Tensor)]
        assert {x.dtype for x in tensors} <= {torch.float64 if dtype == torch.float64 else torch.float32}
        assert {p.dtype for p in problem.model.parameters()} == {dtype}


class TestLoss:
    @every_row
    def test_every_way_to_hand_it_over(self, name):
        def with_keyword(problem, optimizer, step):
            loss = problem.backward(step)
            assert optimizer.step(loss=loss) is loss

        def as_float(problem, optimizer, step):
            loss = problem.backward(step).item()
            assert optimizer.step(loss=loss) == loss

        def with_closure(problem, optimizer, step):
            losses = []

            def closure():
                assert torch.is_grad_enabled()
                losses.append(problem.backward(step))
                return losses[-1]

            returned = optimizer.step(closure)
            assert len(losses) == 1
            assert returned is losses[0]

        def with_both(problem, optimizer, step):
            loss = problem.backward(step)
            assert optimizer.step(lambda: loss, loss=loss.item()) is loss

        def without(problem, optimizer, step):
            problem.backward(step)
            assert optimizer.step() is None

        ways = [with_keyword, as_float, with_closure, with_both]
        ends = []
        for way in ways if OPTIMIZERS[name].needs_loss else [*ways, without]:
            problem, optimizer = start(name)
            for step in range(STEPS):
                way(problem, optimizer, step)
            ends.append(problem.flat())
        assert all(torch.equal(end, ends[0]) for end in ends)

    def test_those_that_temper_need_it(self):
        assert NEED_LOSS == ["ctld"]

    @pytest.mark.parametrize("name", NEED_LOSS)
    def test_without_it_the_step_is_refused(self, name):
        problem, optimizer = start(name)
        problem.backward(0)
        with pytest.raises(ValueError, match="needs the loss"):
            optimizer.step()

    @pytest.mark.parametrize("name", [name for name in OPTIMIZERS if not OPTIMIZERS[name].needs_loss])
    def test_else_it_is_not_read(self, name):
        problem, optimizer = start(name)
        for step in range(STEPS):
            problem.backward(step)
            optimizer.step(loss=torch.full((3,), math.nan))
        assert torch.equal(problem.flat(), go_on(*start(name)))

    @pytest.mark.parametrize("name", OURS)
    def test_can_be_observed(self, name):
        problem, optimizer = start(name)
        for step in range(STEPS):
            optimizer.observe(problem.backward(step))
            optimizer.step()
        assert torch.equal(problem.flat(), go_on(*start(name)))


class TestTorchMachinery:
    @staticmethod
    def calls(optimizer, **arguments):
        """What the hooks say in two steps."""
        calls = []
        optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
        optimizer.register_step_post_hook(lambda *_: calls.append("after"))
        for _ in range(2):
            optimizer.step(**arguments)
        return calls

    @every_row
    def test_hooks_run_once(self, name):
        assert self.calls(start(name)[1], loss=1.0) == ["before", "after"] * 2

    @pytest.mark.parametrize("name", FROM_TORCH)
    def test_hooks_run_once_whether_or_not_torchs_own_has_been_built(self, name, monkeypatch):
        """Building one wraps `step` of its class, to run the hooks; ours calls that `step` within its own."""
        ours = OPTIMIZERS[name].optimizer
        torchs = next(cls for cls in ours.__mro__ if cls.__module__.startswith("torch.optim"))
        assert torchs.__module__.startswith("torch.optim")
        untouched = torchs.step.__wrapped__ if hasattr(torchs.step, "hooked") else torchs.step
        parameters = [nn.Parameter(torch.ones(2))]
        monkeypatch.setattr(torchs, "step", untouched)
        assert self.calls(ours(parameters, lr=0.1), loss=1.0) == ["before", "after"] * 2
        assert self.calls(torchs(parameters, lr=0.1)) == ["before", "after"] * 2
        assert torchs.step.hooked
        assert self.calls(ours(parameters, lr=0.1), loss=1.0) == ["before", "after"] * 2
        users = type("Users", (ours,), {})
        assert self.calls(users(parameters, lr=0.1), loss=1.0) == ["before", "after"] * 2

    @every_row
    def test_deepcopy_goes_on_alike(self, name):
        problem, optimizer = start(name)
        go_on(problem, optimizer, range(7))
        twin, other = copy.deepcopy((problem, optimizer))
        assert other.param_groups[0]["params"][0] is twin.model[0].weight
        middle = twin.flat()
        end = go_on(problem, optimizer, range(7, STEPS))
        assert torch.equal(twin.flat(), middle)
        assert torch.equal(go_on(twin, other, range(7, STEPS)), end)

    @every_row
    def test_compiled_model(self, name):
        torch._dynamo.reset()
        problem, optimizer = start(name)
        twin = Classification()
        plain, twin.model = twin.model, torch.compile(twin.model, backend="eager")
        other = build(name, twin.model.parameters())
        end = go_on(problem, optimizer, range(6))
        torch.testing.assert_close(go_on(twin, other, range(6)), end, rtol=1e-9, atol=1e-11)
        assert other.param_groups[0]["params"][0] is plain[0].weight

    @every_row
    def test_repr(self, name):
        problem, optimizer = start(name)
        go_on(problem, optimizer, range(3))
        optimizer.state_dict()
        text = repr(optimizer)
        assert text.startswith(f"{OPTIMIZERS[name].optimizer.__name__} (")
        assert f"lr: {OPTIONS[name]['lr']}" in text
        assert "ctld_" not in text
        assert len(text) < 500

    @every_row
    def test_zero_grad(self, name):
        problem, optimizer = start(name)
        go_on(problem, optimizer, range(1))
        optimizer.zero_grad()
        assert all(p.grad is None for p in problem.model.parameters())


# Option → values out of its range. A row is tried with every option that its constructor, or its parent's, names.
BAD = {
    "lr": [-0.1, math.nan, math.inf, "fast"],
    "weight_decay": [-1e-3, math.nan],
    "momentum": [1.0, 1.5, -0.1, math.nan],
    "num_data": [0.0, -5.0, math.nan, None],
    "temperature": [-1.0, math.nan, math.inf],
    "noise": ["uniform", None, 1.0],
    "seed": [-1, 2**63, "lucky", 0.5],
    "smoothing": [1.0, -0.1, math.nan],
    "epsilon": [0.0, -1e-8, math.nan],
    "exponent": [-0.1, math.nan],
    "noise_scale": [-0.01, math.nan],
    "noise_estimate": [-0.1, math.nan, 0.3],  # 0.3 > (1 − momentum)·T = 0.2
    "exploration_steps": [-1, 2.5, math.nan],
    "cycle_steps": [0, 12, 2.5],
    "friction": [-1.0, math.nan],
    "integrator": ["verlet", None],
    "noise_variance": ["big", 1.0],
    "cooling": ["quick", None, 0.5],
    "period": [0, -1, 2.5],
    "elasticity": [-0.1, math.nan],
    "num_steps": [0, 2.5],
    "num_cycles": [0, -1, 1.5],
    "exploration_share": [-0.1, 1.1, math.nan],
    "localization": [-0.1, math.nan],
    "adapt_steps": [0, 1.5, math.nan],
    "steps_per_epoch": [0, 2.5],
}


class TestBadHyperparameters:
    @pytest.mark.parametrize(
        ("name", "option", "value"),
        [
            (name, option, value)
            for name in OURS
            for option, values in BAD.items()
            if option in options_of(name)
            for value in values
        ],
    )
    def test_is_refused_with_its_name_and_value(self, name, option, value):
        # By the name that the caller gave, not by that of an inner function's argument.
        with pytest.raises((ValueError, TypeError), match=rf"^{option} = {re.escape(repr(value))}"):
            create(name, [nn.Parameter(torch.ones(2))], **(OPTIONS[name] | {option: value}))

    def test_every_option_with_a_range_has_been_tried(self):
        known = set().union(*map(options_of, OURS)) - {"params"}
        objects = {"schedule", "inverse_temperature", "tempering", "process_group", "preconditioner"}
        assert known - objects - {"maximize", "adapt", "noise_compensation", "check_gradients"} == BAD.keys()

    @pytest.mark.parametrize("name", FROM_TORCH)
    @pytest.mark.parametrize("options", [{"lr": -0.1}, {"weight_decay": -0.1}])
    def test_torchs_own_are_torchs(self, name, options):
        with pytest.raises(ValueError, match=r"-0\.1"):
            create(name, [nn.Parameter(torch.ones(2))], **(OPTIONS[name] | options))

    @pytest.mark.parametrize("name", OURS)
    def test_of_a_group(self, name):
        with pytest.raises(ValueError, match=r"weight_decay = -1\.0"):
            build(name, [{"params": [nn.Parameter(torch.ones(2))], "weight_decay": -1.0}])

    @pytest.mark.parametrize("name", OURS)
    def test_written_by_a_scheduler(self, name):
        """Refused at the step, before anything has changed."""
        problem, optimizer = start(name)
        go_on(problem, optimizer, range(3))
        loss = problem.backward(3)
        before = copy.deepcopy([optimizer.state_dict(), problem.model.state_dict()])
        optimizer.param_groups[0]["lr"] = math.nan
        with pytest.raises(ValueError, match="lr = nan"):
            optimizer.step(loss=loss)
        optimizer.param_groups[0]["lr"] = OPTIONS[name]["lr"]
        assert equal([optimizer.state_dict(), problem.model.state_dict()], before)

    @pytest.mark.parametrize("name", OURS)
    def test_parameters(self, name):
        with pytest.raises(ValueError, match="no parameters to train"):
            build(name, [{"params": []}])
        with pytest.raises(ValueError, match=r"dtype torch\.int64; only real floating-point"):
            build(name, [torch.ones(3, dtype=torch.int64)])
