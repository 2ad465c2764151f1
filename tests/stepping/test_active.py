"""Which parameters take a step, who moves them, and when a table that was made once no longer holds."""

import pytest
import torch
from torch import nn

from ctld.stepping import native
from ctld.stepping.active import Active, fits, plain

pytestmark = pytest.mark.skipif(native.load() is None, reason="there are no kernels to have a table for")


def parameters(*shapes, dtype=torch.float32):
    made = [
        nn.Parameter(torch.arange(1.0, 1.0 + torch.Size(shape).numel()).reshape(shape).to(dtype)) for shape in shapes
    ]
    for parameter in made:
        parameter.grad = torch.ones_like(parameter)
    return made


def state_of(made):
    return {parameter: {"momentum_buffer": torch.zeros_like(parameter)} for parameter in made}


@pytest.fixture
def known():
    """Two groups that have taken a step: their parameters, state and table."""
    made = parameters((3, 2), (4,), (5,))
    state = state_of(made)
    groups = [made[:2], made[2:]]
    return groups, state, Active(groups, state, 2)


class TestWhoMoves:
    def test_parameters_with_a_gradient_by_group_and_their_streams(self):
        made = parameters((3,), (2, 2), (6,))
        made[1].grad = None
        active = Active([made[:2], made[2:]], state_of(made), 7)
        assert [group.owners for group in active.groups] == [[made[0]], [made[2]]]
        assert [group.streams for group in active.groups] == [[7], [9]]  # of all parameters, with a gradient or not
        assert [group.numel for group in active.groups] == [3, 6]
        assert active.native

    @pytest.mark.parametrize("dtype", [torch.float8_e5m2, torch.complex64])
    def test_a_dtype_that_the_kernels_do_not_know_goes_by_torch(self, dtype):
        made = parameters((3,), dtype=dtype)
        active = Active([made], state_of(made), 2)
        assert active.groups[0].others == [0]
        assert not active.native

    def test_what_does_not_lie_in_one_piece_is_copied_for_the_kernels(self):
        made = [nn.Parameter(torch.zeros(4, 3).t()), *parameters((3, 4), (3, 4))]
        made[0].grad, made[1].grad = torch.zeros(3, 4), torch.zeros(4, 3).t()
        active = Active([made], state_of(made), 2)
        assert active.native
        assert [place for _, place in active.staged] == [0, 1]

    def test_a_momentum_of_another_dtype_goes_by_torch(self):
        made = parameters((3,))
        state = {made[0]: {"momentum_buffer": torch.zeros(3, dtype=torch.float64)}}
        assert Active([made], state, 2).groups[0].others == [0]
        assert not fits(torch.zeros(3, dtype=torch.float64), made[0])
        assert not fits(torch.zeros(4), made[0])
        assert fits(torch.zeros(3), made[0])

    def test_a_gradient_that_is_no_plain_tensor_goes_by_torch(self):
        parameter = nn.Parameter(torch.zeros(3))
        assert plain(parameter, torch.zeros(3), None)
        assert not plain(parameter, nn.Parameter(torch.zeros(3)), None)
        assert not plain(parameter, torch.zeros(3, dtype=torch.float64), None)

    def test_a_sparse_gradient_is_refused(self):
        made = parameters((3, 2))
        made[0].grad = torch.zeros(3, 2).to_sparse()
        with pytest.raises(ValueError, match="sparse"):
            Active([made], state_of(made), 2)


# What may have happened between two steps.


def change_memory(groups, state):
    groups[0][0].data = groups[0][0].data.clone()


def cut_short(groups, state):
    groups[0][1].data = groups[0][1].data[:3]
    groups[0][1].grad = torch.zeros(3)


def cut_short_with_its_gradient_as_it_was(groups, state):
    groups[0][1].data = groups[0][1].data[:3]


def transpose(groups, state):
    groups[0][0].data = groups[0][0].data.view(2, 3).t()


def drop_a_gradient(groups, state):
    groups[1][0].grad = None


def another_dtype(groups, state):
    groups[1][0].data = groups[1][0].data.double()
    groups[1][0].grad = torch.zeros(5, dtype=torch.float64)


def gradient_in_pieces(groups, state):
    groups[1][0].grad = torch.zeros(10)[::2]


def gradient_of_another_class(groups, state):
    groups[1][0].grad = nn.Parameter(torch.zeros(5))


def gradient_with_its_sign_to_be_flipped(groups, state):
    groups[1][0].grad = torch.ones(5, dtype=torch.complex64).conj().imag.detach()


def another_momentum(groups, state):
    state[groups[0][0]]["momentum_buffer"] = torch.zeros(3, 2)


def another_state(groups, state):
    state[groups[0][0]] = {"momentum_buffer": torch.zeros(3, 2)}


def another_parameter(groups, state):
    (groups[1][0],) = new = parameters((5,))
    state |= state_of(new)


def one_parameter_more(groups, state):
    groups[1] += (new := parameters((2,)))
    state |= state_of(new)


def one_group_more(groups, state):
    groups.append(new := parameters((2,)))
    state |= state_of(new)


def one_group_less(groups, state):
    groups.pop()


def state_dropped(groups, state):
    state.clear()  # as fastai does


CHANGES = (
    change_memory, cut_short, cut_short_with_its_gradient_as_it_was, transpose, drop_a_gradient, another_dtype,
    gradient_in_pieces, gradient_of_another_class, gradient_with_its_sign_to_be_flipped, another_momentum, another_state,
    another_parameter, one_parameter_more, one_group_more, one_group_less, state_dropped,
)  # fmt: skip


class TestFollowing:
    """`follow` takes over new gradients, and says no where anything else has changed: kernels write where the table points."""

    def test_new_gradients_are_taken_over(self, known):
        groups, state, active = known
        for parameter in (*groups[0], *groups[1]):
            parameter.grad = torch.full_like(parameter, 2.0)
        assert active.follow(groups, state)
        assert [row.gradient for row in active.table.rows] == [p.grad.data_ptr() for p in (*groups[0], *groups[1])]

    @pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
    def test_a_change_is_noticed(self, known, change):
        groups, state, active = known
        assert active.follow(groups, state)
        change(groups, state)
        assert not active.follow(groups, state)

    def test_a_parameter_that_gets_its_first_gradient_is_noticed(self):
        made = parameters((3,), (2,))
        made[1].grad = None
        active = Active([made], state := state_of(made), 2)
        assert active.follow([made], state)
        made[1].grad = torch.zeros(2)
        assert not active.follow([made], state)

    def test_one_that_goes_by_torch_is_looked_at_each_time(self):
        made = parameters((3,), dtype=torch.float16)
        active = Active([made], state := state_of(made), 2)
        assert not active.follow([made], state)

    def test_a_state_in_another_mapping_is_followed_and_a_loaded_one_is_not(self, known):
        groups, state, active = known
        copied = dict(state)
        assert active.follow(groups, copied)
        assert all(group.state is copied for group in active.groups)
        assert not active.follow(groups, {parameter: dict(entries) for parameter, entries in state.items()})
