"""ARS against the vectors published with Random123 (kat_vectors), and the counter that `words` gives it."""

import numpy as np
import pytest
import torch

from ctld import noise
from ctld.noise.ars import ars

# Rounds, counter, key and words as published: 32-bit words, the least significant first.
VECTORS = """
7 | 00000001 00000000 00000000 00000000 | 00000001 00000000 00000000 00000000 | 3523162b dc14d20c 79184077 72184193
7 | 886a3f24 d308a385 2e8a1913 44737003 | 00000001 00000000 00000000 00000000 | bb4006c7 33dbc0db 1ea0a1c9 7f9541e3
7 | e6212845 7713d038 cf6654be 6c0ce934 | 00000100 00000000 00000000 00000000 | 5f2bd4b2 d3e5db14 64a054e9 1a7f038c
10 | 00000000 00000000 00000000 00000000 | 00000000 00000000 00000000 00000000 | 8d73ee19 506401ef 13c2dbe4 0cbe9c0d
10 | ffffffff ffffffff ffffffff ffffffff | ffffffff ffffffff 00000000 00000000 | bb3743b1 9f635551 ecbc87fc a19478a9
10 | 243f6a88 85a308d3 13198a2e 03707344 | a4093822 299f31d0 082efa98 ec4e6c89 | a516e7d6 8357ad74 5b59b3ec 8763fff3
"""


def parsed(line):
    rounds, *fields = line.split("|")
    counter, key, words = ([int(word, 16) for word in field.split()] for field in fields)
    return int(rounds), counter, (key[0] | key[1] << 32, key[2] | key[3] << 32), words


PARSED = [parsed(line) for line in VECTORS.strip().splitlines()]


@pytest.mark.parametrize(("rounds", "counter", "key", "words"), PARSED)
def test_published_vectors(rounds, counter, key, words):
    many = np.array(counter, dtype=np.uint32)[:, None].repeat(5, axis=1)
    assert ars(many, key, rounds).T.tolist() == [words] * 5
    assert many.T.tolist() == [counter] * 5, "the counter was written to"


def test_seven_rounds_unless_told():
    counter = np.arange(8, dtype=np.uint32).reshape(4, 2)
    assert np.array_equal(ars(counter, (3, 4)), ars(counter, (3, 4), rounds=7))
    assert not np.array_equal(ars(counter, (3, 4)), ars(counter, (3, 4), rounds=6))


@pytest.mark.parametrize("vector", [0, 2])
def test_where_seed_step_stream_and_block_go(vector):
    """The counter is (block, step, stream), block in its two lower words, and the seed is the lower half of the key."""
    _, counter, (seed, _), expected = PARSED[vector]
    low, high, step, stream = counter
    block = torch.tensor([low | high << 32, 7])
    assert noise.words(seed, step, stream, block)[:4].tolist() == expected


def test_blocks_are_in_order():
    blocks = torch.tensor([2**32 - 1, 2**32, 2**32 + 1, 2**40])
    whole = noise.words(5, 6, 7, blocks).view(4, 4)
    assert torch.equal(whole, torch.stack([noise.words(5, 6, 7, block[None]) for block in blocks]))
    assert len(set(whole.flatten().tolist())) == 16
    assert whole.min() >= 0
    assert whole.max() < 2**32
