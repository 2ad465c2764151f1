"""The interface of a tempering: the documented example of one's own works, is saved and is resumed."""

import textwrap

import pytest
import torch
from torch import nn

from ctld import CTLD, Tempering
from ctld.tempering import Exploration, Leg, TemperatureControl, control


def documented() -> type[TemperatureControl]:
    """Runs the example in the module's docstring."""
    code = textwrap.dedent(control.__doc__.split("all of this:")[1])
    names = {"TemperatureControl": TemperatureControl}
    exec(code, names)
    return names["Tabulated"]


def trained(tempering: TemperatureControl, steps: int, *, state=None) -> tuple[CTLD, list[float]]:
    torch.manual_seed(0)
    weight = nn.Parameter(torch.ones(4, 3))
    optimizer = CTLD(
        [weight],
        lr=0.1,
        num_data=10,
        exploration_steps=6,
        temperature=1.0,
        weight_decay=0.1,
        seed=1,
        tempering=tempering,
    )
    if state is not None:
        optimizer.load_state_dict(state)
    ratios = []
    for _ in range(steps):
        loss = weight.square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step(loss=loss)
        ratios.append(optimizer.last.temperature_ratio)
    return optimizer, ratios


def test_the_documented_example_is_a_table_of_temperatures():
    tabulated = documented()
    _, ratios = trained(tabulated([4.0, 2.0, 1.5]), 8)
    assert ratios == [4.0, 2.0, 1.5, 1.5, 1.5, 1.5, 1.0, 1.0]


def test_the_documented_example_resumes():
    tabulated = documented()
    optimizer, _ = trained(tabulated([4.0, 3.0, 2.0, 1.5]), 2)
    _, ratios = trained(tabulated([4.0, 3.0, 2.0, 1.5]), 2, state=optimizer.state_dict())
    assert ratios == [2.0, 1.5]


def test_defaults_do_nothing():
    class Plain(TemperatureControl):
        temperature_ratio = 3.0

    plain = Plain()
    plain.prepare(Exploration(0.1, 0.2))
    plain.restart()
    assert plain.begin(None, 0.5) == Leg(3.0, 1.0, 1.0)
    assert plain.end(1.0, 0.5, 2.0) is None
    assert plain.mean_temperature_ratio == 3.0
    assert plain.state_dict() == {}
    assert (plain.alpha, plain.alpha_momentum, plain.needs_potential, plain.remedy) == (None, None, False, None)


@pytest.mark.parametrize(
    "made",
    [
        Tempering.paper(0.1, 10),
        Tempering.calibrated(0.5),
        Tempering.driven(10),
        Tempering.constant(2.0),
    ],
)
def test_all_temperings_derive_from_it(made):
    assert isinstance(made, TemperatureControl)


def test_what_does_not_derive_from_it_is_refused():
    with pytest.raises(TypeError, match=r"derives from ctld\.tempering\.TemperatureControl"):
        control.checked_control("hot")


def test_pieces_derive_from_their_base_classes():
    with pytest.raises(TypeError, match=r"well = 3 is none; derive its class from ctld\.tempering\.Well"):
        Tempering(well=3)
