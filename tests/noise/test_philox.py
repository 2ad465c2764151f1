"""Philox 4x32-10 against the vectors published with Random123 (kat_vectors)."""

import pytest
import torch

from ctld.noise.philox import philox

VECTORS = [
    ([0, 0, 0, 0], (0, 0), [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
    ([0xFFFFFFFF] * 4, (0xFFFFFFFF, 0xFFFFFFFF), [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
    (
        [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
        (0xA4093822, 0x299F31D0),
        [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
    ),
]


@pytest.mark.parametrize(("counter", "key", "words"), VECTORS)
def test_published_vectors(counter, key, words):
    many = torch.tensor(counter).unsqueeze(1).repeat(1, 5)
    assert philox(many, key).T.tolist() == [words] * 5


def test_the_counter_is_not_written_to():
    counter = torch.zeros(4, 8, dtype=torch.int64)
    philox(counter, (1, 2))
    assert not counter.any()
