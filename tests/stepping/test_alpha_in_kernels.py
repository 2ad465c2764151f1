"""α's step in kernels.c against `Tempering`, to the bit."""

import math
import random
from array import array

import pytest
import torch

from ctld.stepping import engine, native
from ctld.stepping.active import Active
from ctld.stepping.alpha import Alpha, Hills, Smoothstep, Wall
from ctld.stepping.foreach import Noise
from ctld.stepping.integrators import INTEGRATORS, rest, sgd
from ctld.tempering import ConfiningWell, Metadynamics, TemperatureScaling, Tempering

pytestmark = pytest.mark.skipif(
    native.stepper() is None, reason="the kernels were not built, or torch rounds otherwise"
)


def advance(tempering, *arguments, **options):
    """The definition's step, by its present or its former name."""
    return (tempering.end if hasattr(tempering, "end") else tempering.advance)(*arguments, **options)


def parameters(count=3, size=40):
    generator = torch.Generator().manual_seed(1)
    made = [torch.nn.Parameter(torch.randn(size, generator=generator)) for _ in range(count)]
    state = {}
    for parameter in made:
        parameter.grad = torch.randn(size, generator=generator)
        state[parameter] = {"momentum_buffer": torch.randn(size, generator=generator)}
    return made, state


class Pair:
    """A tempering, and the same numbers for the kernel."""

    def __init__(self, *, well=True, bias=True, step_size=0.05, friction=3.0, mass=2.0):
        self.tempering = Tempering(
            scaling=TemperatureScaling(0.4, 1.5, 0.85),
            well=ConfiningWell(1.5, 70.0) if well else None,
            bias=Metadynamics(0.3, 0.04, 300, 1.5) if bias else None,
            step_size=step_size,
            friction=friction,
            mass=mass,
            alpha_momentum=0.7,
        )
        of = self.tempering.bias
        self.hills = None
        if bias:
            self.hills = Hills(array("d", of.values), array("d", of.nodes), of.edge, of.height, of.width)
        self.alpha = Alpha(Smoothstep(0.4, 1.5, 0.85), Wall(1.5, 70.0) if well else None, self.hills)

    def set(self, *, normal, loss, variance=0.0, num_data=50.0, temperature=0.7):
        of = self.tempering
        self.alpha.set(
            of.alpha,
            of.alpha_momentum,
            of.mass,
            of.step_size,
            of.friction,
            normal,
            variance,
            num_data,
            temperature,
            loss,
        )

    def same(self, force):
        of = self.tempering
        assert self.alpha.outcome[:2] == (of.alpha, of.alpha_momentum)
        assert self.alpha.outcome[4] == force
        if self.hills is not None:
            assert list(self.hills.values) == of.bias.values.tolist()


def energies(plans, sums, loss, num_data, temperature):
    """H as the optimizer has it, from the sums."""
    prior = kinetic = 0.0
    for plan, row in zip(plans, sums, strict=True):
        if plan.measure:
            prior += 0.5 * plan.decay * row[0]
            kinetic += 0.5 * row[1]
    potential = num_data * (loss + prior)
    return potential, (potential + num_data * kinetic) / temperature


@pytest.mark.filterwarnings("ignore:alpha spent")
@pytest.mark.parametrize("integrator", INTEGRATORS)
@pytest.mark.parametrize(("well", "bias"), [(True, True), (True, False), (False, True), (False, False)])
@pytest.mark.parametrize("variance", [0.0, 0.4, 2000.0])
def test_equals_the_definition_to_the_bit(integrator, well, bias, variance):
    draw = random.Random(f"{integrator}{well}{bias}{variance}")
    pair = Pair(well=well, bias=bias)
    made, state = parameters()
    groups = [made[:1], made[1:2], made[2:]]
    active = Active(groups, state, 2)
    visited = set()
    for step in range(150):
        if step % 3 == 0:  # all over the place, the plateau, the slopes and beyond the edge on both sides
            pair.tempering.alpha, pair.tempering.alpha_momentum = draw.uniform(-2.5, 2.5), draw.gauss(0.0, 3.0)
        loss, normal = draw.gauss(0.0, 1.0), draw.gauss(0.0, 1.0)
        pair.set(normal=normal, loss=loss, variance=variance)
        options = {"decay": draw.random(), "before": 1.0 + 0.1 * draw.random(), "after": 1.0 - 0.1 * draw.random()}
        moving = INTEGRATORS[integrator](0.01, 0.9, 0.02, **options)
        plans = [moving, sgd(0.01, 0.9), rest(decay=0.3)]
        sums = engine.run(active, plans, Noise("gaussian", 3, step), alpha=pair.alpha)
        potential, hamiltonian = energies(plans, sums, loss, 50.0, 0.7)
        assert pair.alpha.outcome[2:4] == (potential, hamiltonian)
        clamped = pair.tempering.steps_clamped
        pair.same(advance(pair.tempering, hamiltonian, normal, hamiltonian_variance=variance))
        assert pair.alpha.outcome[5] == pair.tempering.steps_clamped - clamped
        visited.add((pair.tempering.alpha > 0, abs(pair.tempering.alpha) > 1.5, abs(pair.tempering.alpha) > 0.4))
    assert len(visited) == 6


def test_a_hamiltonian_that_is_not_finite_leaves_alpha_alone():
    pair, (made, state) = Pair(), parameters()
    pair.set(normal=0.3, loss=math.inf)
    before = list(pair.hills.values)
    engine.run(Active([made], state, 2), [INTEGRATORS["euler"](0.01, 0.9, 0.02)], None, alpha=pair.alpha)
    assert not math.isfinite(pair.alpha.outcome[3])
    assert pair.alpha.outcome[:2] == (pair.tempering.alpha, pair.tempering.alpha_momentum)
    assert list(pair.hills.values) == before


def test_refused_gradients_leave_alpha_alone():
    pair, (made, state) = Pair(), parameters()
    made[1].grad[3] = math.nan
    pair.set(normal=0.3, loss=1.0)
    plans = [INTEGRATORS["euler"](0.01, 0.9, 0.02)]
    assert engine.run(Active([made], state, 2), plans, None, check=True, alpha=pair.alpha) is None
    assert pair.alpha.outcome[:2] == (pair.tempering.alpha, pair.tempering.alpha_momentum)


def test_only_where_the_kernels_do_all():
    pair, (made, state) = Pair(), parameters()
    made[0].data, made[0].grad = made[0].data.cfloat(), made[0].grad.cfloat()
    with pytest.raises(ValueError, match="leave alpha out"):
        engine.run(Active([made], state, 2), [sgd(0.1, 0.9)], None, alpha=pair.alpha)


def test_a_bias_of_two_lengths_is_refused():
    with pytest.raises(ValueError, match="3 values at 2 nodes"):
        Alpha(Smoothstep(0.4, 1.5, 0.85), None, Hills(array("d", [0, 0, 0]), array("d", [0, 1]), 1.0, 1.0, 0.1))
