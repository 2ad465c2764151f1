"""CollapseWatch by numbers: what it calls a collapse, what it only notes, and how it changes the temperature."""

import math

import pytest
import torch

from ctld.ensembles.collapse import CollapseWatch, MeanLoss, size_of_weights

CPU = torch.device("cpu")


def trained(hot=0.3, end=0.06):
    """After a first cycle that began at a loss of 2.3, explored at `hot` and ended at `end`."""
    watch = CollapseWatch("Do this", 0.1, CPU, guard=True)
    for _ in range(20):
        watch.hear(2.3, exploring=True)
    for _ in range(20):
        watch.hear(hot, exploring=True, late=True)
    return watch, watch.cycle_ended(end, 0.2)


def test_the_reported_collapse():
    """Losses 0.06, 2.30, 2.31, 2.30 at the ends of cycles; the RMS of the weights from 0.15 to 4.3."""
    watch, (good, _) = trained()
    assert good
    with pytest.warns(
        UserWarning, match=r"loss of 2.3, after 0.06 in the best one before and 2.3 at the start.*Do this"
    ):
        assert not watch.cycle_ended(2.30, 4.3)[0]
    assert not watch.cycle_ended(2.31, 4.3)[0]  # said once
    assert watch.cycle_ended(0.5, 0.2)[0]  # worse, and alive
    assert not watch.cycle_ended(math.nan, 0.2)[0]


def test_weights_that_run_away():
    watch, _ = trained()
    watch.noise_ended(1.0, 0.3)  # less than three times what the noise explains
    with pytest.warns(UserWarning, match=r"weights run away: their RMS went from 0.2 to 4.3 in one exploration"):
        watch.noise_ended(4.3, 0.3)


def test_exploration_that_has_undone_everything():
    watch, _ = trained()
    for loss in (4.7, 0.1, 4.7, 0.1):  # a bad spell is no collapse
        for _ in range(20):
            watch.hear(loss, exploring=True)
    with pytest.warns(UserWarning, match=r"exploration is at a loss of 4.7, far above the 2.3 at the start"):
        factors = [watch.hear(4.7, exploring=True) for _ in range(40)]
    assert {factor for factor in factors if factor != 1} == {0.25}  # and brakes


def test_one_that_never_learned():
    watch = CollapseWatch("Do this", 0.1, CPU, guard=True)
    for _ in range(5):
        watch.hear(2.3, exploring=False)
    with pytest.warns(UserWarning, match=r"the first cycle ended at a loss of 2.31, no better than 2.3 at the start"):
        assert watch.cycle_ended(2.31, 0.1)[0]


@pytest.mark.parametrize(
    ("hot", "factor"),
    [(0.284, 1.0), (0.06 + 0.448, 0.5), (0.06 + 0.112, 2.0), (0.06, 3.0), (4.0, 0.1)],
)
def test_exploring_may_undo_a_tenth(hot, factor):
    """Training has gained 2.3 − 0.06 = 2.24 nats: 0.224 may be undone, and what is undone goes with T."""
    assert trained(hot)[1][1] == pytest.approx(factor)


def test_without_noise_nothing_is_changed():
    watch = CollapseWatch("Do this", 0.1, CPU, guard=True)
    assert {watch.hear(2.3, exploring=False) for _ in range(50)} == {1.0}
    assert watch.cycle_ended(0.1, 0.1) == (True, 1.0)


def test_a_state_goes_on_in_the_middle_of_a_window():
    watch, other = trained()[0], CollapseWatch("Do this", 0.7, CPU, guard=True)
    for step in range(9):
        watch.hear(torch.tensor(0.1 * step), exploring=True, late=True)
    other.load_state_dict(watch.state_dict())
    for step in range(9, 20):
        for each in (watch, other):
            each.hear(torch.tensor(0.1 * step), exploring=True, late=True)
    assert other.state_dict() == watch.state_dict()
    assert other.cycle_ended(0.1, 0.3) == watch.cycle_ended(0.1, 0.3)


def test_means_and_sizes():
    mean = MeanLoss()
    assert math.isnan(mean.read())
    mean.add(1.0)
    mean.add(torch.tensor([2.0], requires_grad=True))
    assert mean.read() == 1.5
    weights = [torch.full((2, 2), 3.0), torch.full((5,), 9.0)]
    assert size_of_weights(weights) == 3.0
    assert size_of_weights(weights[1:]) == 9.0
    assert size_of_weights([torch.zeros(2, 2)]) == 0.0
