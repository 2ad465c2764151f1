"""Which elements a block has."""

import math

import torch
from hypothesis import given
from hypothesis import strategies as st

from ctld.sharding import Block, _runs, block, local
from ctld.stepping import foreach


@st.composite
def blocks(draw):
    whole = draw(st.lists(st.integers(1, 5), min_size=0, max_size=4))
    start = [draw(st.integers(0, size)) for size in whole]
    shape = [draw(st.integers(0, size - first)) for size, first in zip(whole, start, strict=True)]
    return whole, shape, start


@given(blocks())
def test_runs_are_the_elements_of_the_block(given):
    whole, shape, start = given
    numbers = torch.arange(math.prod(whole)).reshape(whole)
    chosen = numbers[tuple(slice(first, first + size) for first, size in zip(start, shape, strict=True))].reshape(-1)
    found = [first + i for first, count in _runs(whole, shape, start) for i in range(count)]
    assert found == chosen.tolist()


def test_rows_are_one_run():
    assert _runs((10, 3, 2), (4, 3, 2), (2, 0, 0)) == ((12, 24),)
    assert len(_runs((10, 3), (10, 1), (0, 1))) == 10


def test_a_whole_tensor_is_its_own_block():
    tensor = torch.zeros(3, 4)
    assert block(tensor) == Block(((0, 12),), 1)
    assert local(tensor) is tensor
    assert local(None) is None


def test_noise_of_a_block_is_cut_out_of_the_whole():
    source, whole = foreach.Noise("gaussian", 4, 7), torch.empty(6, 50)
    numbers = source.like(whole, 3, block(whole)).view(6, 50)
    part = source.like(torch.empty(2, 17), 3, Block(_runs((6, 50), (2, 17), (3, 31)), 3)).view(2, 17)
    assert torch.equal(part, numbers[3:5, 31:48])
    assert source.like(torch.empty(0, 50), 3, Block((), 3)).numel() == 0
