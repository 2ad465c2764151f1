"""Steps by the engine: equal to torch's, whatever the sizes, threads and processor features; and what it refuses."""

import itertools
import math
import os
import subprocess
import sys

import pytest
import torch
from torch import nn

from ctld import compensation
from ctld.stepping import engine, foreach, native
from ctld.stepping.active import Active
from ctld.stepping.foreach import Noise, momentum_dtype
from ctld.stepping.integrators import INTEGRATORS, rest, sgd
from ctld.stepping.sweep import Compensation, Plan, PsgldPlan, SantaPlan, Sweep

LIBRARY = native.stepper()
needs_library = pytest.mark.skipif(LIBRARY is None, reason="the kernels were not built, or torch rounds otherwise")
levels = pytest.mark.parametrize(
    "level", range(len(native.LEVELS) if LIBRARY is None else LIBRARY.level + 1), ids=lambda n: native.LEVELS[n]
)
dtypes = pytest.mark.parametrize("dtype", list(native.TYPES), ids=lambda dtype: str(dtype).removeprefix("torch."))
# About the lanes, extents, passes and units of kernels.c, and enough for it to use threads.
SIZES = (0, 1, 15, 16, 17, 63, 64, 65, 255, 256, 257, 4095, 4096, 4097, 100_003)
# Sums of float32 are taken in float32 over 16 terms, then in float64; of bfloat16 likewise.
RELATIVE = {torch.float32: 1e-6, torch.bfloat16: 1e-6, torch.float64: 1e-12}
SWEEP = Sweep(0.9, -0.3, 0.3, 0.07)
PLANS = {
    "euler": Plan((SWEEP,), 0.01, measure=True),
    "ascending": Plan((SWEEP,), 0.01, True, True),
    "without noise": Plan((SWEEP._replace(deviation=0.0),), 0.01, measure=True),
    "baoab": INTEGRATORS["baoab"](0.09, 0.8, 0.02, decay=0.01, before=1.1, after=0.9),
    "ubu": INTEGRATORS["ubu"](0.09, 0.8, 0.02, decay=0.01, before=1.1, after=0.9),
    "sgd": sgd(0.1, 0.9, decay=0.01),
    "scaled": Plan((SWEEP,), 0.01, measure=True, scaled=True),
    "scaled baoab": INTEGRATORS["baoab"](0.09, 0.8, 0.02, decay=0.01, scaled=True),
    "compensated": Plan((SWEEP,), 0.01, measure=True, compensation=Compensation(0.09, 0.02)),
    "psgld": PsgldPlan(0.01, 0.1, 0.99, 1e-5, decay=0.01),
    "psgld at rest": PsgldPlan(0.01, 0.1, 0.99, 1e-5, adapt=False, ascend=True),
    "santa": SantaPlan(0.01, 0.01, 0.02, 0.95, 1e-8, symmetric=True, exploring=True, decay=0.01),
    "santa, euler": SantaPlan(0.01, 0.01, 0.02, 0.95, 1e-8, symmetric=False, exploring=True, ascend=True),
    "santa refining": SantaPlan(0.01, 0.01, 0.02, 0.4, 1e-8, symmetric=True, exploring=False),
    "santa, euler refining": SantaPlan(0.01, 0.01, 0.02, 0.95, 1e-8, symmetric=False, exploring=False, adapt=False),
}
EXACT = ("euler", "ascending", "without noise", "baoab", "ubu", "sgd")
"""Those whose every operation torch rounds as the kernels do; of the rest, roots and lerp have their own last bits."""
plans = pytest.mark.parametrize("plan", PLANS)


class Tensors:
    """Parameters with gradients and all that a plan may need, the same each time."""

    def __init__(self, dtype, sizes=SIZES, *, momenta=True, seed=0):
        generator = torch.Generator().manual_seed(seed)

        def draw(size, of):
            return torch.randn(size, generator=generator, dtype=torch.float64).to(of)

        self.parameters, self.state = [], {}
        kinds = itertools.repeat(dtype) if isinstance(dtype, torch.dtype) else itertools.cycle(dtype)
        for size, of in zip(sizes, kinds, strict=False):
            parameter = nn.Parameter(draw(size, of))
            parameter.grad = draw(size, of)
            wide = momentum_dtype(parameter)
            state = compensation.initial_state(torch.zeros(size, dtype=wide)) | {"steps": 0}
            state |= {"scale": draw(size, wide).square() + 0.1, "square_average": draw(size, wide).square() * 0.1}
            state |= {"thermostat": 0.5 * draw(size, wide)}
            if momenta:
                state["momentum_buffer"] = draw(size, wide)
            self.parameters.append(parameter)
            self.state[parameter] = state

    def active(self):
        return Active([self.parameters], self.state, 2)

    def tensors(self):
        states = [value for state in self.state.values() for value in state.values() if isinstance(value, torch.Tensor)]
        return [parameter.detach() for parameter in self.parameters] + states

    def counts(self):
        return [(state["steps"], state["gradients_seen"]) for state in self.state.values()]


def run(made, plan, source=None, *, level=None, **options):
    active = made.active()
    if level is not None:
        active.table.set_level(level)
    return engine.run(active, [plan], source, **options)


@pytest.fixture
def by_torch(monkeypatch):
    """`run` without the kernels."""

    def without(made, plan, source=None, **options):
        with monkeypatch.context() as patch:
            patch.setattr(native, "stepper", lambda: None)
            assert not made.active().native
            return run(made, plan, source, **options)

    return without


def same(left, right):
    return all(map(torch.equal, left, right))


@needs_library
@dtypes
class TestAgainstTorch:
    """On a processor with fused multiply-adds torch uses them, and then the bits of an update are promised."""

    @pytest.mark.parametrize("plan", EXACT)
    @pytest.mark.parametrize("kind", ["gaussian", "three_point"])
    @pytest.mark.parametrize("momenta", [True, False])
    def test_bits(self, by_torch, dtype, plan, kind, momenta):
        ours, theirs = Tensors(dtype, momenta=momenta), Tensors(dtype, momenta=momenta)
        assert ours.active().native
        if not momenta and len(PLANS[plan].sweeps) == 2:
            pytest.skip("the second sweep would start from no momentum")
        for step in range(2):
            sums = run(ours, PLANS[plan], Noise(kind, 2**40 + 3, step))
            expected = by_torch(theirs, PLANS[plan], Noise(kind, 2**40 + 3, step))
            assert all(type(number) is float for number in (*sums[0], *expected[0]))
            assert sums[0] == pytest.approx(expected[0], rel=RELATIVE[dtype])
        assert same(ours.tensors(), theirs.tensors())
        assert not same(ours.tensors(), Tensors(dtype, momenta=momenta).tensors())
        untouched = Tensors(dtype, momenta=momenta)
        assert same([p.grad for p in ours.parameters], [p.grad for p in untouched.parameters])

    @pytest.mark.parametrize("plan", [name for name in PLANS if name not in EXACT])
    def test_all_but_the_last_bits(self, by_torch, dtype, plan):
        ours, theirs = Tensors(dtype), Tensors(dtype)
        assert ours.active().native
        for step in range(3):
            sums = run(ours, PLANS[plan], Noise("gaussian", 3, step))
            expected = by_torch(theirs, PLANS[plan], Noise("gaussian", 3, step))
            assert sums[0] == pytest.approx(expected[0], rel=RELATIVE[dtype])
        assert ours.counts() == theirs.counts()
        # Numbers are of order one; u, which is divided by √V, up to a hundred.
        epsilon = torch.finfo(torch.float64 if dtype == torch.float64 else torch.float32).eps
        for mine, other in zip(ours.tensors(), theirs.tensors(), strict=True):
            if mine.dtype is torch.bfloat16:  # an error next to a tie turns into a whole place
                different = (mine != other).sum()
                assert different <= 3 + 0.001 * mine.numel()
            else:
                torch.testing.assert_close(mine, other, rtol=64 * epsilon, atol=64 * epsilon)
        assert not same(ours.tensors(), Tensors(dtype).tensors())

    def test_a_gradient_that_is_the_parameter_itself(self, by_torch, dtype):
        """As on a Gaussian of curvature 1, where nobody would make a copy."""
        ours, theirs = Tensors(dtype), Tensors(dtype)
        for made, step in ((ours, run), (theirs, by_torch)):
            for parameter in made.parameters:
                parameter.grad = parameter.detach()
            step(made, PLANS["euler"], Noise("gaussian", 1, 2))
        assert same(ours.tensors(), theirs.tensors())

    def test_sums(self, dtype):
        before, made = Tensors(dtype), Tensors(dtype)
        (sums,) = run(made, PLANS["scaled"], Noise("gaussian", 5, 6))
        rows = [(before.state[p], made.state[q]) for p, q in zip(before.parameters, made.parameters, strict=True)]
        expected = [sum(p.double().square().sum().item() for p in before.parameters), 0.0, 0.0]
        for old, new in rows:
            after = new["momentum_buffer"].double()
            expected[1] += (after.square() / new["scale"].double()).sum().item()
            middle = old["momentum_buffer"].double() + after
            expected[2] += (middle.square() / new["scale"].double()).sum().item()
        assert sums == pytest.approx((*expected, 0.0), rel=RELATIVE[dtype])


@needs_library
class TestEveryWay:
    """The bits depend neither on threads nor on the processor."""

    @levels
    @dtypes
    @plans
    def test_levels_do_not_matter(self, level, dtype, plan):
        source = Noise("three_point" if plan == "baoab" else "gaussian", 2**62 + 1, 2**32 - 1)
        made, expected = Tensors(dtype), Tensors(dtype)
        for _ in range(2):
            sums = run(expected, PLANS[plan], source)
            assert run(made, PLANS[plan], source, level=level) == sums
        assert same(made.tensors(), expected.tensors())

    @dtypes
    @plans
    def test_threads_do_not_matter(self, dtype, plan):
        results = []
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            made = Tensors(dtype)
            results.append((run(made, PLANS[plan], Noise("gaussian", 4, 5), check=True), made.tensors()))
        for sums, tensors in results[1:]:
            assert sums == results[0][0]
            assert same(tensors, results[0][1])

    @dtypes
    @plans
    def test_no_memory_but_its_own_is_written(self, dtype, plan):
        """Each tensor lies within a larger one, at an address that no vector instruction likes."""
        made, guarded, memory = Tensors(dtype), Tensors(dtype), []

        def guard(tensor):
            memory.append(torch.full((tensor.numel() + 130,), 77.0, dtype=tensor.dtype))
            return memory[-1][65 : 65 + tensor.numel()].copy_(tensor.detach())

        for parameter in guarded.parameters:
            parameter.data, parameter.grad = guard(parameter), guard(parameter.grad)
            state = guarded.state[parameter]
            state |= {name: guard(value) for name, value in state.items() if isinstance(value, torch.Tensor)}
        assert guarded.active().native
        run(made, PLANS[plan], Noise("gaussian", 4, 5))
        run(guarded, PLANS[plan], Noise("gaussian", 4, 5))
        assert same(made.tensors(), guarded.tensors())
        assert all((whole[:65] == 77).all() and (whole[-65:] == 77).all() for whole in memory)

    @pytest.mark.parametrize("name", ["euler", "baoab", "ubu", "psgld", "santa"])
    def test_one_call_or_many(self, name):
        """Groups of a list take the steps that they would take by themselves."""
        together, apart = Tensors(torch.float32), Tensors(torch.float32)
        cuts = [together.parameters[:5], together.parameters[5:9], together.parameters[9:]]
        engine.run(Active(cuts, together.state, 2), [PLANS["sgd"], PLANS[name], rest()], Noise("gaussian", 8, 9))
        first = Active([apart.parameters[:5]], apart.state, 2)
        second = Active([apart.parameters[5:9]], apart.state, 2 + 5)
        engine.run(first, [PLANS["sgd"]], Noise("gaussian", 8, 9))
        engine.run(second, [PLANS[name]], Noise("gaussian", 8, 9))
        assert same(together.tensors(), apart.tensors())


@needs_library
class TestLists:
    MIXED = (torch.float32, torch.float64, torch.bfloat16, torch.float16)

    @pytest.mark.parametrize("plan", ["euler", "baoab", "sgd"])
    def test_mixed_dtypes(self, by_torch, plan):
        """float16 by copies in float32; the sums are those of all."""
        ours, theirs = Tensors(self.MIXED), Tensors(self.MIXED)
        assert [place for _, place in ours.active().staged] == [3, 7, 11]
        sums = run(ours, PLANS[plan], Noise("gaussian", 4, 5))
        expected = by_torch(theirs, PLANS[plan], Noise("gaussian", 4, 5))
        if plan == "baoab":  # float16 is rounded once, where torch rounds after each sweep
            for mine, other in zip(ours.parameters[3::4], theirs.parameters[3::4], strict=True):
                torch.testing.assert_close(mine, other, rtol=2e-3, atol=1e-3)
                mine.data = other.data
        assert same(ours.tensors(), theirs.tensors())
        assert sums[0] == pytest.approx(expected[0], rel=1e-6)

    def test_nothing_to_move(self):
        empty = Active([[], []], {}, 2)
        assert engine.finite(empty) is True
        plans = [PLANS["euler"], rest()]
        assert engine.run(empty, plans, Noise("gaussian", 1, 2), check=True) == [(0.0, 0.0, 0.0, 0.0)] * 2

    def test_many_small_tensors(self, by_torch):
        sizes = [place % 7 for place in range(300)] + [50_000, 0]
        ours, theirs = Tensors(torch.float32, sizes), Tensors(torch.float32, sizes)
        sums = run(ours, PLANS["euler"], Noise("three_point", 4, 5))
        assert sums[0] == pytest.approx(by_torch(theirs, PLANS["euler"], Noise("three_point", 4, 5))[0], rel=1e-6)
        assert same(ours.tensors(), theirs.tensors())


class TestPlans:
    @needs_library
    def test_a_plan_may_change_from_step_to_step(self):
        once, anew = Tensors(torch.float32), Tensors(torch.float32)
        active = once.active()
        for step, plan in enumerate([*PLANS.values(), *PLANS.values()]):
            left = engine.run(active, [plan], Noise("gaussian", 1, step))
            assert left == run(anew, plan, Noise("gaussian", 1, step))
            assert active.follow([once.parameters], once.state)
        assert same(once.tensors(), anew.tensors())
        assert once.counts() == anew.counts()

    @needs_library
    def test_rest_measures_and_moves_nothing(self):
        made = Tensors(torch.float32)
        version = made.parameters[5]._version
        (sums,) = run(made, rest(scaled=True), Noise("gaussian", 1, 2), check=True)
        expected = sum((s["momentum_buffer"].double().square() / s["scale"]).sum().item() for s in made.state.values())
        assert sums[1:] == pytest.approx((expected, 0.0, 0.0), rel=1e-6)
        assert same(made.tensors(), Tensors(torch.float32).tensors())
        assert made.parameters[5]._version == version

    @needs_library
    def test_a_buffer_that_does_not_fit_goes_by_torch(self):
        ours, theirs = Tensors(torch.float32), Tensors(torch.float32)
        state = ours.state[ours.parameters[4]]
        state["scale"] = state["scale"].double()
        active = ours.active()
        sums = engine.run(active, [PLANS["scaled"]], Noise("gaussian", 1, 2))
        assert not active.native
        expected = run(theirs, PLANS["scaled"], Noise("gaussian", 1, 2))
        assert sums[0] == pytest.approx(expected[0], rel=1e-6)

    @needs_library
    @pytest.mark.parametrize("sweeps", [(SWEEP, SWEEP), (SWEEP, SWEEP._replace(impulse=0.0), SWEEP)])
    def test_sweeps_that_the_kernels_cannot_do(self, sweeps):
        with pytest.raises(ValueError, match="at most two"):
            run(Tensors(torch.float32), Plan(sweeps), None)

    def test_refused_is_for_gpus(self):
        with pytest.raises(ValueError, match="read it before the step"):
            run(Tensors(torch.float32), PLANS["euler"], None, refused=torch.tensor(False))

    @needs_library
    def test_an_impulse_of_zero_reads_no_gradient(self):
        made = Tensors(torch.float32)
        for parameter in made.parameters:
            parameter.grad.fill_(math.nan)
        run(made, Plan((Sweep(0.5, 0.0, 0.1),)), None)
        assert all(parameter.isfinite().all() for parameter in made.parameters)

    def test_autograd_notices_that_parameters_have_changed(self):
        made = Tensors(torch.float32)
        loss = sum(parameter.square().sum() for parameter in made.parameters)
        loss.backward(retain_graph=True)
        run(made, PLANS["euler"], None)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


@dtypes
class TestCheck:
    SIZES = (1, 0, 5, 4096, 8193, 200_001)  # the last makes it use threads

    @pytest.mark.parametrize("threads", [1, 3])
    @pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, "large", "-large"])
    def test_one_bad_element_is_found_anywhere(self, dtype, bad, threads):
        """NaN, inf, and what is so large that the sums of squares would not be finite."""
        torch.set_num_threads(threads)
        made, untouched = Tensors(dtype, self.SIZES), Tensors(dtype, self.SIZES)
        value = bad if isinstance(bad, float) else foreach.largest(dtype) * (-1 if bad.startswith("-") else 1)
        active = made.active()
        for place, parameter in enumerate(made.parameters):
            for element in {0, parameter.numel() // 2, parameter.numel() - 1} if parameter.numel() else ():
                kept = parameter.grad[element].item()
                parameter.grad[element] = value
                assert engine.finite(active) is False, (place, element)
                assert engine.run(active, [PLANS["baoab"]], Noise("gaussian", 1, 2), check=True) is None
                parameter.grad[element] = kept
        assert same(made.tensors(), untouched.tensors())
        assert engine.finite(active) is True

    def test_what_is_just_small_enough_passes(self, dtype):
        made = Tensors(dtype, self.SIZES)
        for parameter in made.parameters:
            parameter.grad.fill_(0.99 * foreach.largest(dtype))
        assert engine.finite(made.active()) is True
        plan = Plan((Sweep(0.0, -1.0, 0.0),), measure=True)
        (sums,) = run(made, plan, None, check=True)
        assert all(map(math.isfinite, sums))

    def test_beside_tensors_that_torch_looks_at(self, dtype):
        made = Tensors((dtype, torch.float16), [100, 100])
        assert engine.finite(made.active()) is True
        for parameter in made.parameters:
            parameter.grad[7] = math.nan
            assert engine.finite(made.active()) is False
            assert run(made, PLANS["euler"], None, check=True) is None
            parameter.grad[7] = 0.0


FORKING = """
import os, torch
from ctld.stepping import engine, native
from ctld.stepping.active import Active
from ctld.stepping.foreach import Noise
from ctld.stepping.integrators import euler

torch.set_num_threads(2)

def prepared():
    parameter = torch.zeros(300_000)
    parameter.grad = torch.ones(300_000)
    return Active([[parameter]], {parameter: {"momentum_buffer": torch.zeros(300_000)}}, 2)

def step(active):
    assert active.native
    return engine.run(active, [euler(0.1, 0.9, 0.01)], Noise("gaussian", 1, 2), check=True)

# Before the fork: torch's own operations would ask for threads, too.
first, second, third = prepared(), prepared(), prepared()
expected = step(first)
tasks = "/proc/self/task"
assert not os.path.exists(tasks) or len(os.listdir(tasks)) > 1, "the parent was to use threads"
child = os.fork()
if child == 0:
    os._exit(0 if step(second) == expected and native.load().threads() == 1 else 1)
assert os.waitpid(child, 0)[1] == 0
assert step(third) == expected and native.load().threads() == torch.get_num_threads()
print("both")
"""


@needs_library
@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_forked_child_does_without_threads():
    """OpenMP's threads do not survive a fork: a child that asked for them would hang."""
    result = subprocess.run([sys.executable, "-c", FORKING], capture_output=True, text=True, timeout=120)
    assert result.stdout == "both\n", result.stderr


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_square_norms_are_those_of_torch(dtype):
    """Σθ² of each group in one call, whatever the sizes; also on every level of the processor, to the bit."""
    generator = torch.Generator().manual_seed(3)
    shapes = [[(97,), (4096,), (5, 7)], [(10_001,)], [(0,), (1,)]]
    groups = [[torch.randn(shape, generator=generator).to(dtype) for shape in row] for row in shapes]
    for tensor in itertools.chain.from_iterable(groups):
        tensor.grad = torch.zeros_like(tensor)
    state = {tensor: {} for tensor in itertools.chain.from_iterable(groups)}
    active = Active(groups, state, 0)
    found = engine.square_norms(active)
    expected = [sum(float(tensor.double().square().sum()) for tensor in row) for row in groups]
    assert found == pytest.approx(expected, rel=1e-14)
    if not active.native:
        return
    for level in range(native.load().level):
        active.table.set_level(level)
        assert engine.square_norms(active) == found
