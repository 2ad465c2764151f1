"""The engine against the movers and integrators that it replaces: to the bit, in parameters, momenta and sums.

It goes when they go.
"""

import itertools

import pytest
import torch
from torch import nn

from ctld import compensation, dynamics
from ctld.movers import Movers
from ctld.optimizers.integrators import Settings
from ctld.sharding import Block
from ctld.stepping import active as active_module
from ctld.stepping import engine, native
from ctld.stepping.active import Active
from ctld.stepping.foreach import Noise
from ctld.stepping.integrators import INTEGRATORS, rest, sgd

pytestmark = pytest.mark.skipif(
    native.stepper() is None, reason="the kernels were not built, or torch rounds otherwise"
)
SIZES = (0, 1, 17, 64, 65, 255, 256, 257, 4097, 70_003)
DTYPES = {
    "float32": (torch.float32,),
    "float64": (torch.float64,),
    "bfloat16": (torch.bfloat16,),
    "mixed": (torch.float32, torch.bfloat16, torch.float64),
    "with float16": (torch.float32, torch.float16),
}


class Run:
    """Two groups of tensors, the same each time, and gradients that change."""

    def __init__(self, dtypes, *, scaled=False, compensated=False):
        generator = torch.Generator().manual_seed(0)

        def draw(size, dtype):
            return torch.randn(size, generator=generator, dtype=torch.float64).to(dtype)

        self.parameters, self.state = [], {}
        for size, dtype in zip(SIZES, itertools.cycle(dtypes), strict=False):
            parameter = nn.Parameter(draw(size, dtype))
            wide = dynamics.momentum_dtype(parameter)
            self.state[parameter] = {"momentum_buffer": draw(size, wide)}
            if scaled:
                self.state[parameter]["scale"] = draw(size, wide).square() + 0.1
            if compensated:
                self.state[parameter] |= compensation.initial_state(parameter.detach().to(wide))
            self.parameters.append(parameter)
        self.groups = [self.parameters[:4], self.parameters[4:]]

    def new_gradients(self, step):
        generator = torch.Generator().manual_seed(100 + step)
        for parameter in self.parameters:
            drawn = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.grad = drawn.to(parameter.dtype)

    def tensors(self):
        states = [value for state in self.state.values() for value in state.values() if isinstance(value, torch.Tensor)]
        return [*self.parameters, *states]


def movers(run, scaled=False, ranks=1):
    made = [
        Movers(run.groups[0], run.state, 2, ranks=ranks),
        Movers(run.groups[1], run.state, 2 + len(run.groups[0]), ranks=ranks),
    ]
    for one in made:
        one.scale_by_state(scaled)
    return made


def assert_same(new, old, sums, expected):
    assert [tuple(row) for row in sums] == [tuple(map(float, row)) for row in expected]
    for mine, theirs in zip(new.tensors(), old.tensors(), strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("dtypes", DTYPES)
@pytest.mark.parametrize("name", INTEGRATORS)
@pytest.mark.parametrize(("decay", "ascend", "before", "after"), [(0.0, False, 1, 1), (0.01, True, 1.1, 0.7)])
@pytest.mark.parametrize("option", [None, "scaled", "compensated"])
def test_integrators(dtypes, name, decay, ascend, before, after, option):
    scaled, compensated = option == "scaled", option == "compensated"
    if compensated and name != "euler":
        pytest.skip("compensation goes with euler")
    new, old = (Run(DTYPES[dtypes], scaled=scaled, compensated=compensated) for _ in range(2))
    active = None
    for step, kind in enumerate(("gaussian", "three_point", "gaussian")):
        new.new_gradients(step)
        old.new_gradients(step)
        if active is None or not active.follow(new.groups, new.state):
            active = Active(new.groups, new.state, 2)
        assert active.native == (dtypes != "with float16")
        factors = {"before": before, "after": after, "decay": decay, "ascend": ascend}
        plan = INTEGRATORS[name](0.09, 0.8, 0.02 + step, compensate=compensated, scaled=scaled, **factors)
        sums = engine.run(active, [plan, plan], Noise(kind, 2**40 + 3, 17 + step), check=True)
        settings = Settings(0.09, 0.8, 0.02 + step, decay, ascend, before, after, compensated)
        source = dynamics.Noise(kind, 2**40 + 3, 17 + step)
        expected = [settings.step(name, one, source, check=False, refused=None) for one in movers(old, scaled)]
        assert_same(new, old, sums, expected)


@pytest.mark.parametrize("dtypes", DTYPES)
def test_groups_that_do_different_things(dtypes):
    """SGD without noise beside sampling, then a group at rest."""
    new, old = Run(DTYPES[dtypes]), Run(DTYPES[dtypes])
    new.new_gradients(0)
    old.new_gradients(0)
    active, (first, second) = Active(new.groups, new.state, 2), movers(old)
    source = dynamics.Noise("gaussian", 1, 2)
    plan = INTEGRATORS["baoab"](0.09, 0.8, 0.02, decay=0.01)
    sums = engine.run(active, [sgd(0.1, 0.9, decay=0.01), plan], Noise("gaussian", 1, 2))
    first.advance(None, retain=0.9, impulse=1.0, stride=-0.1, decay=0.01)
    expected = Settings(0.09, 0.8, 0.02, 0.01, False).step("baoab", second, source, check=False, refused=None)
    assert_same(new, old, sums, [(0.0, 0.0, 0.0, 0.0), expected])
    sums = engine.run(active, [rest(), plan], Noise("gaussian", 1, 3))
    source = source._replace(step=3)
    expected = Settings(0.09, 0.8, 0.02, 0.01, False).step("baoab", second, source, check=False, refused=None)
    assert_same(new, old, sums, [first.rest().detach(), expected])


@pytest.mark.parametrize("dtypes", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", INTEGRATORS)
def test_uneven_shards_and_weights(monkeypatch, dtypes, name):
    """Blocks that begin anywhere in the whole, of which other ranks have copies."""
    new, old = Run(DTYPES[dtypes]), Run(DTYPES[dtypes])
    offsets = {}

    def block(tensor):
        place = offsets.setdefault(id(tensor), len(offsets)) % len(SIZES)
        return Block(((37 * place, tensor.numel()),), 1 + place % 2)

    for where in ("ctld.movers", active_module.__name__):
        monkeypatch.setattr(f"{where}.block", block)
    for run in (new, old):
        run.new_gradients(0)
        for parameter in run.parameters:  # in this order
            block(parameter)
    active = Active(new.groups, new.state, 2, ranks=3)
    assert len(set(active.groups[1].weights)) == 2
    plan = INTEGRATORS[name](0.09, 0.8, 0.02, decay=0.01)
    sums = engine.run(active, [plan, plan], Noise("gaussian", 5, 6))
    settings = Settings(0.09, 0.8, 0.02, 0.01, False)
    source = dynamics.Noise("gaussian", 5, 6)
    expected = [settings.step(name, one, source, check=False, refused=None) for one in movers(old, ranks=3)]
    assert_same(new, old, sums, expected)
