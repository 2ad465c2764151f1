"""Steps by kernels.c: equal to torch's, whatever the sizes, threads and processor features; and what happens without it."""

import copy
import functools
import itertools
import logging
import math
import os
import pickle
import subprocess
import sys
from array import array
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ctld import CTLD, PSGLD, SGHMC, SGLD, SGNHT, Langevin, compensation, dynamics
from ctld.dynamics import Compensation, Noise
from ctld.kernels import native
from ctld.movers import Movers, _plain
from ctld.optimizers.thermometers import LIMIT, PROJECTIONS
from targets import Classification, train

LIBRARY = native.stepper()
needs_library = pytest.mark.skipif(LIBRARY is None, reason="the kernels were not built, or torch rounds otherwise")
levels = pytest.mark.parametrize(
    "level", range(len(native.LEVELS) if LIBRARY is None else LIBRARY.level + 1), ids=lambda n: native.LEVELS[n]
)
dtypes = pytest.mark.parametrize("dtype", list(native.TYPES), ids=lambda dtype: str(dtype).removeprefix("torch."))

# About the lanes, passes and units of kernels.c, and enough for it to use threads.
SIZES = (0, 1, 15, 16, 17, 127, 128, 129, 4095, 4096, 4097, 8193, 100_003)
FACTORS = {"retain": 0.9, "impulse": -0.3, "stride": 0.3, "deviation": 0.07}
# Sums of float32 are taken in float32 over 8 terms, then in float64; of bfloat16 likewise.
RELATIVE = {torch.float32: 1e-6, torch.bfloat16: 1e-6, torch.float64: 1e-12}


def tensors(dtype, sizes=SIZES, *, momenta=True, scales=False, compensated=False, seed=0):
    """Parameters with gradients, and what a step needs besides; the same at every call."""
    generator = torch.Generator().manual_seed(seed)

    def draw(size, of=dtype):
        return torch.randn(size, generator=generator, dtype=torch.float64).to(of)

    made = SimpleNamespace(parameters=[], momenta=[] if momenta else None, scales=[] if scales else None, states=[])
    for size, of in zip(sizes, itertools.repeat(dtype) if isinstance(dtype, torch.dtype) else dtype, strict=False):
        parameter = nn.Parameter(draw(size, of))
        parameter.grad = draw(size, of)
        made.parameters.append(parameter)
        wide = dynamics.momentum_dtype(parameter)
        if momenta:
            made.momenta.append(draw(size, wide))
        if scales:
            made.scales.append(draw(size, wide).square() + 0.1)
        if compensated:
            made.states.append(compensation.initial_state(parameter.detach().to(wide)))
    return made


def movers(made):
    state = {}
    for place, parameter in enumerate(made.parameters):
        state[parameter] = made.states[place] if made.states else {}
        if made.momenta is not None:
            state[parameter]["momentum_buffer"] = made.momenta[place]
    moving = Movers(made.parameters, state, 2)
    if made.scales is not None:
        moving.scale(made.scales)
    if made.states:
        moving.compensate(Compensation(lr=0.09, variance=0.02))
    return moving


def advance(made, source=None, **options):
    return movers(made).advance(source, **(FACTORS | options))


@pytest.fixture
def by_torch(monkeypatch):
    """`advance` without the kernels."""

    def run(made, source=None, **options):
        with monkeypatch.context() as patch:
            patch.setattr(native, "stepper", lambda: None)
            return advance(made, source, **options)

    return run


def same(left, right):
    return all(map(torch.equal, left, right))


@needs_library
@dtypes
class TestAgainstTorch:
    """On a processor with fused multiply-adds torch uses them, and then the bits of an update are promised."""

    @pytest.mark.parametrize("kind", [None, "gaussian", "three_point"])
    @pytest.mark.parametrize(("decay", "ascend"), [(0.0, False), (0.01, False), (0.01, True), (0.0, True)])
    @pytest.mark.parametrize("momenta", [True, False])
    @pytest.mark.parametrize("measure", [True, False])
    def test_bits(self, by_torch, dtype, kind, decay, ascend, momenta, measure):
        source = Noise(kind, 2**40 + 3, 17) if kind else None
        options = {"decay": decay, "ascend": ascend, "measure": measure}
        ours, theirs = tensors(dtype, momenta=momenta), tensors(dtype, momenta=momenta)
        assert not movers(ours)._others
        for _ in range(2):
            advance(ours, source, **options)
            by_torch(theirs, source, **options)
        assert same(ours.parameters, theirs.parameters)
        assert not same(ours.parameters, tensors(dtype).parameters)
        if momenta:
            assert same(ours.momenta, theirs.momenta)
        untouched = tensors(dtype, momenta=momenta)
        assert same([p.grad for p in ours.parameters], [p.grad for p in untouched.parameters])

    @pytest.mark.parametrize("momenta", [True, False])
    @pytest.mark.parametrize("kind", [None, "gaussian"])
    def test_sums(self, by_torch, dtype, kind, momenta):
        source = Noise(kind, 5, 6) if kind else None
        made, before, other = (tensors(dtype, momenta=momenta) for _ in range(3))
        sums = advance(made, source, decay=0.01, measure=True)
        theirs = by_torch(other, source, decay=0.01, measure=True)
        assert all(isinstance(number, float) for number in sums)
        assert sums == pytest.approx(theirs.tolist(), rel=RELATIVE[dtype])
        expected = [sum(p.double().square().sum().item() for p in before.parameters)]
        if momenta:
            pairs = [(old.double(), new.double()) for old, new in zip(before.momenta, made.momenta, strict=True)]
            expected.append(sum(new.square().sum().item() for _, new in pairs))
            expected.append(sum((old + new).square().sum().item() for old, new in pairs))
        assert sums[: len(expected)] == pytest.approx(expected, rel=RELATIVE[dtype])
        assert sums[3] == 0.0

    def test_energies_of_scaled_momenta(self, by_torch, dtype):
        """p²/s: s is the inverse of a mass."""
        made, before, other = (tensors(dtype, scales=True) for _ in range(3))
        sums = advance(made, Noise("gaussian", 5, 6), decay=0.01, measure=True)
        theirs = by_torch(other, Noise("gaussian", 5, 6), decay=0.01, measure=True)
        assert sums == pytest.approx(theirs.tolist(), rel=RELATIVE[dtype])
        rows = list(zip(before.momenta, made.momenta, made.scales, strict=True))
        kinetic = sum((new.double().square() / scale.double()).sum().item() for _, new, scale in rows)
        midpoint = sum(((old + new).double().square() / scale.double()).sum().item() for old, new, scale in rows)
        assert sums[1:3] == pytest.approx((kinetic, midpoint), rel=RELATIVE[dtype])

    @pytest.mark.parametrize("momenta", [True, False])
    @pytest.mark.parametrize("kind", [None, "gaussian", "three_point"])
    def test_scales(self, by_torch, dtype, kind, momenta):
        source = Noise(kind, 1, 2) if kind else None
        ours, theirs = (tensors(dtype, momenta=momenta, scales=True) for _ in range(2))
        for _ in range(3):
            advance(ours, source, decay=0.01)
            by_torch(theirs, source, decay=0.01)
        # torch's √s may miss the last bit, and its addcmul rounds the product: some places of numbers of order 1. In
        # bfloat16 that turns into a whole place of the parameter where it lies next to a tie.
        epsilon = torch.finfo(torch.float64 if dtype == torch.float64 else torch.float32).eps
        for mine, other in zip(ours.momenta or [], theirs.momenta or [], strict=True):
            torch.testing.assert_close(mine, other, rtol=4 * epsilon, atol=4 * epsilon)
        epsilon = torch.finfo(dtype).eps
        for mine, other in zip(ours.parameters, theirs.parameters, strict=True):
            torch.testing.assert_close(mine, other, rtol=4 * epsilon, atol=4 * epsilon)
        if dtype == torch.bfloat16:
            different = sum(int((a != b).sum()) for a, b in zip(ours.parameters, theirs.parameters, strict=True))
            assert different < 0.001 * sum(SIZES)

    def test_scales_matter(self, dtype):
        plain, scaled = tensors(dtype), tensors(dtype, scales=True)
        plain.parameters = tensors(dtype, scales=True).parameters
        advance(plain, Noise("gaussian", 1, 2))
        advance(scaled, Noise("gaussian", 1, 2))
        assert not same(plain.parameters, scaled.parameters)

    def test_compensation(self, by_torch, dtype):
        ours, theirs = (tensors(dtype, compensated=True) for _ in range(2))
        # One parameter has had more gradients than the others, and so another memory.
        for made in (ours, theirs):
            made.states[5] |= {"gradients_seen": 40}
            made.states[5]["gradient_variance"].fill_(0.1)
        clamped = 0.0
        for step in range(5):
            sums = advance(ours, Noise("gaussian", 3, step), decay=0.01, measure=True)
            expected = by_torch(theirs, Noise("gaussian", 3, step), decay=0.01, measure=True)
            assert sums[3] == expected[3].item()
            clamped += sums[3]
            for made in (ours, theirs):
                generator = torch.Generator().manual_seed(step)
                for parameter in made.parameters:
                    parameter.grad = torch.randn(
                        parameter.shape, generator=generator, dtype=torch.float64
                    ).to(dtype)  # fmt: skip
        assert 0 < clamped < 5 * sum(SIZES)
        # torch rounds the last bit of √ and of lerp in ways of its own; variances and deviations are below 4.
        epsilon = torch.finfo(torch.float64 if dtype == torch.float64 else torch.float32).eps
        for mine, other in zip(ours.states, theirs.states, strict=True):
            assert torch.equal(mine["previous_gradient"], other["previous_gradient"])
            assert mine["gradients_seen"] == other["gradients_seen"]
            torch.testing.assert_close(
                mine["gradient_variance"], other["gradient_variance"], rtol=4 * epsilon, atol=4 * epsilon
            )
        for mine, other in zip(ours.momenta, theirs.momenta, strict=True):
            torch.testing.assert_close(mine, other, rtol=8 * epsilon, atol=8 * epsilon)
        epsilon = torch.finfo(dtype).eps
        for mine, other in zip(ours.parameters, theirs.parameters, strict=True):
            torch.testing.assert_close(mine, other, rtol=8 * epsilon, atol=8 * epsilon)

    def test_a_gradient_that_is_the_parameter_itself(self, by_torch, dtype):
        """As on a Gaussian of curvature 1, where nobody would make a copy."""
        ours, theirs = tensors(dtype), tensors(dtype)
        for made, run in ((ours, advance), (theirs, by_torch)):
            for parameter in made.parameters:
                parameter.grad = parameter.detach()
            run(made, Noise("gaussian", 1, 2))
        assert same(ours.parameters, theirs.parameters)


@needs_library
class TestLists:
    MIXED = (torch.float32, torch.float64, torch.bfloat16, torch.float16)

    def test_mixed_dtypes(self, by_torch):
        """Some in the kernels, by dtype, and float16 by torch; the sums are those of all."""
        ours, theirs = (tensors(itertools.cycle(self.MIXED)) for _ in range(2))
        assert len(movers(ours)._tables) == 3
        assert movers(ours)._others == [3, 7, 11]
        sums = advance(ours, Noise("gaussian", 4, 5), decay=0.1, measure=True)
        expected = by_torch(theirs, Noise("gaussian", 4, 5), decay=0.1, measure=True)
        assert same(ours.parameters, theirs.parameters)
        assert same(ours.momenta, theirs.momenta)
        assert sums.tolist() == pytest.approx(expected.tolist(), rel=1e-6)

    def test_nothing_to_move(self):
        empty = Movers([], {}, 2)
        assert empty.finite() is True
        assert empty.advance(Noise("gaussian", 1, 2), **FACTORS, measure=True) == (0.0, 0.0, 0.0, 0.0)

    @pytest.mark.parametrize("count", [70, 300])
    def test_many_small_tensors(self, by_torch, count):
        """More units than there is room for on the stack, empty tensors among them."""
        sizes = [place % 7 for place in range(count)] + [50_000, 0]
        ours, theirs = tensors(torch.float32, sizes), tensors(torch.float32, sizes)
        sums = advance(ours, Noise("three_point", 4, 5), decay=0.1, measure=True)
        expected = by_torch(theirs, Noise("three_point", 4, 5), decay=0.1, measure=True)
        assert same(ours.parameters, theirs.parameters)
        assert sums == pytest.approx(expected.tolist(), rel=1e-6)

    @dtypes
    def test_no_memory_but_its_own_is_written(self, dtype):
        """Each tensor lies within a larger one, at an address that no vector instruction likes."""
        made, guarded = (tensors(dtype, scales=True, compensated=True) for _ in range(2))
        memory = []

        def guard(tensor):
            memory.append(torch.full((tensor.numel() + 130,), 77.0, dtype=tensor.dtype))
            inside = memory[-1][65 : 65 + tensor.numel()]
            return inside.copy_(tensor.detach())

        for place, parameter in enumerate(guarded.parameters):
            gradient = guard(parameter.grad)
            parameter.data = guard(parameter)
            parameter.grad = gradient
            guarded.momenta[place] = guard(guarded.momenta[place])
            guarded.scales[place] = guard(guarded.scales[place])
            for name in ("previous_gradient", "gradient_variance"):
                guarded.states[place][name] = guard(guarded.states[place][name])
        advance(made, Noise("gaussian", 4, 5), decay=0.1)
        advance(guarded, Noise("gaussian", 4, 5), decay=0.1)
        assert same(made.parameters, guarded.parameters)
        assert same(made.momenta, guarded.momenta)
        assert all((whole[:65] == 77).all() and (whole[-65:] == 77).all() for whole in memory)

    @dtypes
    @pytest.mark.parametrize("options", [{}, {"scales": True}, {"compensated": True}, {"momenta": False}])
    def test_threads_do_not_matter(self, dtype, options):
        results = []
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            made = tensors(dtype, **options)
            sums = advance(made, Noise("gaussian", 4, 5), decay=0.1, measure=True)
            results.append((sums, made.parameters + (made.momenta or [])))
        for sums, moved in results[1:]:
            assert sums == results[0][0]
            assert same(moved, results[0][1])

    @levels
    @dtypes
    @pytest.mark.parametrize("kind", [None, "gaussian", "three_point"])
    @pytest.mark.parametrize("options", [{}, {"scales": True}, {"compensated": True}])
    def test_levels_do_not_matter(self, monkeypatch, level, dtype, kind, options):
        source = Noise(kind, 2**62 + 1, 2**32 - 1) if kind else None
        made, expected = tensors(dtype, **options), tensors(dtype, **options)
        sums = advance(expected, source, decay=0.1, measure=True)
        monkeypatch.setattr(LIBRARY, "level", level)
        assert advance(made, source, decay=0.1, measure=True) == sums
        assert same(made.parameters, expected.parameters)
        assert same(made.momenta, expected.momenta)
        for state, other in zip(made.states, expected.states, strict=True):
            assert torch.equal(state["gradient_variance"], other["gradient_variance"])


@needs_library
@levels
@dtypes
@pytest.mark.parametrize("kind", ["gaussian", "three_point"])
def test_shards_move_as_the_whole(monkeypatch, level, dtype, kind):
    """A row's offset says where in the parameter its elements lie: any cut, aligned or not, gives the same numbers."""
    monkeypatch.setattr(LIBRARY, "level", level)
    start = 2**34 - 5000  # so that the block passes 2**32 on the way

    def run(cuts):
        made = tensors(dtype, [9001])
        parameter, momentum = made.parameters[0].detach(), made.momenta[0]
        gradient = made.parameters[0].grad
        rows = []
        for first, last in itertools.pairwise([0, *cuts, 9001]):
            pointers = [each[first:].data_ptr() for each in (parameter, gradient, momentum)]
            rows += [*pointers, 0, 0, 0, last - first, start + first, 4, 0, 0]
        assert len(rows) % native.COLUMNS == 0
        factors = [0.9, -0.3, 0.07, 0.3, 0.01, 1.0, 0.0, 0.0]
        sums = LIBRARY.step(dtype, array("q", rows), factors, kind, 2**62 + 9, 2**32 - 1, True)
        return parameter, momentum, sums

    parameter, momentum, sums = run([])
    for cuts in ([4096], [1, 2, 3], [17, 4096, 4097, 8999], [31, 32, 33, 160, 161]):
        cut_parameter, cut_momentum, cut_sums = run(cuts)
        assert torch.equal(cut_parameter, parameter)
        assert torch.equal(cut_momentum, momentum)
        # Lanes are added in another order.
        assert cut_sums == pytest.approx(sums, rel=RELATIVE[dtype])


@needs_library
@dtypes
class TestFinite:
    SIZES = (1, 0, 5, 4096, 8193, 200_001)  # the last makes it use threads

    def test_finite(self, dtype):
        made = tensors(dtype, self.SIZES)
        largest = torch.finfo(dtype).max
        for parameter in made.parameters:
            parameter.grad.fill_(largest)  # the norm overflows; no element has
        assert movers(made).finite() is True

    @pytest.mark.parametrize("threads", [1, 3])
    @pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
    def test_one_bad_element_is_found_anywhere(self, dtype, bad, threads):
        torch.set_num_threads(threads)
        made = tensors(dtype, self.SIZES)
        for place, parameter in enumerate(made.parameters):
            for element in {0, parameter.numel() // 2, parameter.numel() - 1} if parameter.numel() else ():
                kept = parameter.grad[element].item()
                parameter.grad[element] = bad
                assert movers(made).finite() is False, (place, element)
                parameter.grad[element] = kept
        assert movers(made).finite() is True

    def test_beside_tensors_that_torch_looks_at(self, dtype):
        made = tensors(itertools.cycle([dtype, torch.float16]), [100, 100])
        assert bool(movers(made).finite())
        for parameter in made.parameters:
            parameter.grad[7] = float("nan")
            assert not movers(made).finite()
            parameter.grad[7] = 0.0


@needs_library
class TestOtherTensors:
    """What the kernels cannot take goes to torch, and agrees."""

    SHAPE = (6, 5, 4, 3)

    def moved(self, parameter, gradient, momentum):
        parameter = nn.Parameter(parameter)
        parameter.grad = gradient
        made = SimpleNamespace(parameters=[parameter], momenta=[momentum], scales=None, states=[])
        others = movers(made)._others
        sums = advance(made, Noise("gaussian", 8, 9), decay=0.1, measure=True)
        numbers = sums.tolist() if isinstance(sums, torch.Tensor) else sums
        return others, parameter.detach(), momentum, numbers

    def triple(self):
        generator = torch.Generator().manual_seed(1)
        return [torch.randn(self.SHAPE, generator=generator) for _ in range(3)]

    LAYOUTS = {
        "channels last": lambda x: x.to(memory_format=torch.channels_last),
        "transposed": lambda x: x.transpose(0, 3).contiguous().transpose(0, 3),
        "every second": lambda x: torch.stack((x, x), -1)[..., 0],
    }

    @pytest.mark.parametrize("layout", LAYOUTS)
    @pytest.mark.parametrize("which", [(0,), (1,), (2,), (0, 1, 2)])
    def test_layouts(self, layout, which):
        others, *expected = self.moved(*self.triple())
        assert others == []
        arranged = [self.LAYOUTS[layout](x) if place in which else x for place, x in enumerate(self.triple())]
        others, *actual = self.moved(*arranged)
        assert others == [0]
        # Where memory is not in one piece torch goes element by element, and may round a·b + c twice.
        for mine, other in zip(actual, expected, strict=True):
            torch.testing.assert_close(mine, other, rtol=1e-6, atol=1e-6)

    def test_subclasses_and_other_dtypes(self):
        class Special(torch.Tensor):
            pass

        parameter, gradient, momentum = self.triple()
        assert _plain(nn.Parameter(parameter), gradient, momentum)
        assert not _plain(parameter, gradient.double(), momentum)
        assert not _plain(parameter.as_subclass(Special), gradient, momentum)
        assert not _plain(parameter, gradient.as_subclass(Special), momentum)

    def test_negative_bit(self):
        """A lazily negated gradient has the other sign in memory."""
        parameter, gradient, momentum = self.triple()
        _, *expected = self.moved(parameter.clone(), -gradient, momentum.clone())
        others, *actual = self.moved(parameter, torch._neg_view(gradient), momentum)
        assert others == [0]
        for mine, other in zip(actual, expected, strict=True):
            torch.testing.assert_close(mine, other, rtol=1e-6, atol=1e-6)


@needs_library
class TestTensorsThatDoNotFit:
    """The kernels are handed addresses: what torch would refuse they must never see."""

    def optimizer(self):
        parameter = nn.Parameter(torch.zeros(64))
        optimizer = SGHMC([parameter], 0.1, num_data=10.0, seed=1)
        parameter.grad = torch.ones(256)[:64]  # with more behind it, should someone read on
        return parameter, optimizer

    def test_momentum_of_another_size(self):
        parameter, optimizer = self.optimizer()
        memory = torch.zeros(64)
        optimizer.state[parameter]["momentum_buffer"] = memory[:4]
        with pytest.raises(RuntimeError, match="size"):
            optimizer.step()
        assert not memory.any()

    def test_gradient_of_another_size(self):
        parameter, optimizer = self.optimizer()
        parameter.data = torch.zeros(128)
        optimizer.state[parameter]["momentum_buffer"] = torch.zeros(128)
        with pytest.raises(RuntimeError, match="size"):
            optimizer.step()

    def test_parameter_that_shrinks_between_steps(self):
        """At the same address, as pruning does it."""
        parameter, optimizer = self.optimizer()
        optimizer.step()
        parameter.data = parameter.data[:4]
        parameter.grad = torch.ones(256)[:4]
        with pytest.raises(RuntimeError, match="size"):
            optimizer.step()

    def test_momentum_on_another_device(self):
        parameter, optimizer = self.optimizer()
        momentum = optimizer.state[parameter]["momentum_buffer"]
        assert _plain(parameter, parameter.grad, momentum)
        assert not _plain(parameter, parameter.grad, momentum.to("meta"))

    def test_momentum_that_moves_in_memory(self):
        """As when it has been away on another device: the tensor is the same, its memory is not."""
        parameter, optimizer = self.optimizer()
        optimizer.step()
        momentum = optimizer.state[parameter]["momentum_buffer"]
        kept = momentum.data
        before = kept.clone()
        momentum.data = before.clone()
        optimizer.step()
        assert torch.equal(kept, before)
        assert not torch.equal(momentum, before)

    @pytest.mark.parametrize("pickled", [False, True])
    def test_copy_does_not_write_to_the_original(self, pickled):
        """Not even if its parameter comes to lie where the original's lay: that is where the allocator puts it."""
        parameter, optimizer = self.optimizer()
        optimizer.step()
        twin = pickle.loads(pickle.dumps(optimizer)) if pickled else copy.deepcopy(optimizer)  # noqa: S301 - our own
        (copied,) = twin.param_groups[0]["params"]
        copied.data = parameter.data
        copied.grad = parameter.grad
        theirs, own = (of.state[p]["momentum_buffer"] for of, p in ((optimizer, parameter), (twin, copied)))
        before = own.clone()
        twin.step()
        assert torch.equal(theirs, before)
        assert not torch.equal(own, before)

    @pytest.mark.parametrize("change", ["layout", "dtype"])
    def test_scales_of_another_layout_or_dtype(self, by_torch, change):
        """As after a change of the model's, which leaves an optimizer's buffers alone."""
        ours, theirs = (tensors(torch.float32, [128], scales=True) for _ in range(2))
        for made in (ours, theirs):
            for name in ("parameters", "momenta", "scales"):
                (tensor,) = getattr(made, name)
                shaped = tensor.detach().view(2, 4, 4, 4)
                setattr(made, name, [nn.Parameter(shaped) if name == "parameters" else shaped])
            made.parameters[0].grad = torch.ones(2, 4, 4, 4)
            (scale,) = made.scales
            made.scales = [scale.double() if change == "dtype" else scale.to(memory_format=torch.channels_last)]
        advance(ours, Noise("gaussian", 1, 2))
        by_torch(theirs, Noise("gaussian", 1, 2))
        torch.testing.assert_close(ours.parameters[0], theirs.parameters[0], rtol=1e-6, atol=1e-6)

    def test_gradient_without_memory(self):
        """torch has tensors of zeros that are nowhere."""
        parameter, optimizer = self.optimizer()
        parameter.grad = torch._efficientzerotensor(64)
        optimizer.step()
        assert parameter.isfinite().all()

    def test_buffer_of_another_shape(self):
        parameter, optimizer = self.optimizer()
        parameter.data, parameter.grad = torch.zeros(4, 16), torch.ones(4, 16)
        with pytest.raises(RuntimeError, match="size"):
            optimizer.step()

    def test_without_decay_an_infinite_parameter_is_left_alone(self):
        parameter, optimizer = self.optimizer()
        with torch.no_grad():
            parameter[3] = math.inf
        optimizer.step()
        assert parameter[3] == math.inf

    def test_autograd_notices_that_parameters_have_changed(self):
        """As with any optimizer: a second backward through a graph of before the step would be wrong."""
        parameter, optimizer = self.optimizer()
        loss = parameter.square().sum()
        loss.backward(retain_graph=True)
        optimizer.step()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


METHODS = {
    "CTLD": lambda p, n: CTLD(p, 0.05, num_data=n, exploration_steps=8, temperature=0.1, weight_decay=0.01, seed=3),
    "CTLD compensated": lambda p, n: CTLD(
        p, 0.05, num_data=n, exploration_steps=8, temperature=0.1, noise_compensation=True, seed=3
    ),
    "CTLD three-point": lambda p, n: CTLD(
        p, 0.05, num_data=n, exploration_steps=8, temperature=0.1, noise="three_point", seed=3
    ),
    "Langevin": lambda p, n: Langevin(p, 0.05, num_data=n, seed=3),
    "SGHMC": lambda p, n: SGHMC(p, 0.05, num_data=n, weight_decay=0.01, seed=3),
    "SGNHT": lambda p, n: SGNHT(p, 0.05, num_data=n, seed=3),
    "SGLD": lambda p, n: SGLD(p, 0.05, num_data=n, seed=3),
    "PSGLD": lambda p, n: PSGLD(p, 0.001, num_data=n, seed=3),
}


@needs_library
@pytest.mark.parametrize("method", METHODS)
def test_methods_take_the_same_path(monkeypatch, method):
    def run():
        problem = Classification()
        train(problem, METHODS[method](problem.model.parameters(), problem.num_data), range(12))
        return problem.flat()

    by_kernels = run()
    monkeypatch.setattr(native, "stepper", lambda: None)
    # The sums differ in the last bits, and so does what they drive; 12 steps of a small network magnify that little.
    torch.testing.assert_close(by_kernels, run(), rtol=1e-10, atol=1e-12)


class Largest(TorchDispatchMode):
    """The largest tensor for which an operation of torch has taken new memory."""

    def __init__(self):
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        result = function(*arguments, **(keywords or {}))
        old = {x.untyped_storage().data_ptr() for x in self.tensors((arguments, keywords))}
        for made in self.tensors(result):
            if made.untyped_storage().data_ptr() not in old:
                self.numel = max(self.numel, made.numel())
        return result

    @staticmethod
    def tensors(tree):
        return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


class TestMemory:
    """A step makes no tensor of a parameter's size, not even for the noise; the thermometers have one of constant size."""

    LOOKED_AT = PROJECTIONS * 2 * LIMIT

    def largest(self, create, steps=3):
        parameters = [nn.Parameter(torch.ones(size)) for size in (20_000, 70)]
        optimizer = create(parameters, 100.0)
        for parameter in parameters:
            parameter.grad = torch.ones_like(parameter)
        with Largest() as mode:
            for step in range(steps):
                optimizer.step(loss=1.0 + 0.1 * step)
        return mode.numel

    @needs_library
    @pytest.mark.parametrize("method", [name for name in METHODS if name != "PSGLD"])
    def test_only_scalars(self, method):
        assert self.largest(METHODS[method]) <= (self.LOOKED_AT if "CTLD" in method else 4)

    @needs_library
    def test_only_scalars_in_fine_tuning(self):
        assert self.largest(METHODS["CTLD"], steps=12) <= self.LOOKED_AT

    def test_torch_would_be_seen(self, monkeypatch):
        monkeypatch.setattr(native, "stepper", lambda: None)
        assert self.largest(METHODS["CTLD"]) >= 20_000


@pytest.fixture
def forgotten(monkeypatch):
    """As before anything has asked for the library; afterwards the old one is back."""
    monkeypatch.setattr(native, "load", functools.cache(native.load.__wrapped__))
    monkeypatch.setattr(native, "stepper", functools.cache(native.stepper.__wrapped__))


@pytest.mark.usefixtures("forgotten")
class TestWithoutTheLibrary:
    def messages(self, caplog):
        return [record.getMessage() for record in caplog.records if "kernels" in record.getMessage()]

    def run(self):
        problem = Classification(dtype=torch.float32)
        optimizer = METHODS["CTLD"](problem.model.parameters(), problem.num_data)
        train(problem, optimizer, range(12))
        return problem.flat()

    def test_missing_library_is_said_once_and_done_without(self, monkeypatch, caplog, tmp_path):
        expected = self.run()
        caplog.clear()
        monkeypatch.setattr(native, "LIBRARY", tmp_path / "missing.so")
        native.load.cache_clear()
        native.stepper.cache_clear()
        with caplog.at_level(logging.WARNING, logger="ctld"):
            # The sums of float32 differ in the seventh place, and H drives the temperature.
            torch.testing.assert_close(self.run(), expected, rtol=1e-4, atol=1e-5)
            self.run()
        assert native.stepper() is None
        assert len(self.messages(caplog)) == 1
        assert "ten to twenty times slower; install ctld again" in self.messages(caplog)[0]
        assert "missing.so" in self.messages(caplog)[0]

    @pytest.mark.parametrize("content", [b"", b"no library at all"])
    def test_file_that_is_no_library(self, monkeypatch, caplog, tmp_path, content):
        path = tmp_path / "_kernels.so"
        path.write_bytes(content)
        monkeypatch.setattr(native, "LIBRARY", path)
        assert native.load() is None
        assert len(self.messages(caplog)) == 1

    @pytest.mark.skipif(sys.platform != "linux", reason="needs a library that is known to be there")
    def test_library_of_something_else(self, monkeypatch, caplog):
        monkeypatch.setattr(native, "LIBRARY", "libm.so.6")
        assert native.load() is None
        assert len(self.messages(caplog)) == 1

    @needs_library
    @pytest.mark.parametrize("kind", ["gaussian", "three_point"])
    def test_library_that_gives_wrong_numbers_is_refused(self, monkeypatch, caplog, kind):
        made = native.Library.numbers

        def wrong(self, which, *arguments):
            numbers = made(self, which, *arguments)
            return numbers.nextafter(torch.tensor(9.0)) if which == kind else numbers

        monkeypatch.setattr(native.Library, "numbers", wrong)
        assert native.load() is None
        assert native.stepper() is None
        assert self.messages(caplog) == [
            "ctld's kernels do not give the known numbers, so torch does their work; install ctld again"
        ]

    @needs_library
    def test_torch_that_rounds_otherwise_is_not_mixed_with_kernels(self, monkeypatch):
        """Fine-tuning is SGD to the last bit, so the kernels step only where torch rounds a·b + c once."""
        add = torch.add
        monkeypatch.setattr(torch, "add", lambda x, y, *, alpha: add(x, alpha * y))
        assert native.stepper() is None
        assert native.load() is not None


@needs_library
@pytest.mark.usefixtures("forgotten")
def test_default_dtype_does_not_matter():
    try:
        torch.set_default_dtype(torch.float64)
        assert native.stepper() is not None
    finally:
        torch.set_default_dtype(torch.float32)


@needs_library
def test_no_memory_for_the_sums(monkeypatch):
    made, expected = tensors(torch.float32, [100]), tensors(torch.float32, [100])
    monkeypatch.setattr(LIBRARY, "_step", lambda *arguments: 1)
    with pytest.raises(MemoryError, match="nothing has changed"):
        advance(made, Noise("gaussian", 1, 2))
    assert same(made.parameters, expected.parameters)


FORKING = """
import os, torch
from ctld import dynamics
from ctld.movers import Movers, _plain
from ctld.optimizers.thermometers import LIMIT, PROJECTIONS
from ctld.kernels import native

torch.set_num_threads(2)

def prepared():
    parameter = torch.zeros(300_000)
    parameter.grad = torch.ones(300_000)
    return Movers([parameter], {parameter: {"momentum_buffer": torch.zeros(300_000)}}, 2)

def step(movers):
    assert not movers._others and movers.finite()
    return movers.advance(dynamics.Noise("gaussian", 1, 2), retain=0.9, impulse=-1.0, stride=1.0, measure=True)

# Before the fork: torch's own operations would ask for threads, too.
first, second, third = prepared(), prepared(), prepared()
expected = step(first)
tasks = "/proc/self/task"
assert not os.path.exists(tasks) or len(os.listdir(tasks)) > 1, "the parent was to use threads"
child = os.fork()
if child == 0:
    os._exit(0 if step(second) == expected and native.load()._threads() == 1 else 1)
assert os.waitpid(child, 0)[1] == 0
assert step(third) == expected and native.load()._threads() == torch.get_num_threads()
print("both")
"""


@needs_library
@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_forked_child_does_without_threads():
    """OpenMP's threads do not survive a fork: a child that asked for them would hang."""
    result = subprocess.run([sys.executable, "-c", FORKING], capture_output=True, text=True, timeout=60)
    assert result.stdout == "both\n", result.stderr
