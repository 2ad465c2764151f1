"""Random streams that do not touch each other: changing the method changes neither the weights at the start nor the batches."""

import numpy as np
import torch

# The order is part of every stored result: append, never insert.
STREAMS = ("initialisation", "data", "dropout", "noise", "tuning", "subset")


def stream_seed(seed: int, stream: str, *more: int) -> int:
    """A seed of 63 bits for one stream of a run; `more` tells stages and epochs apart."""
    sequence = np.random.SeedSequence([seed, STREAMS.index(stream), *more])
    return int(sequence.generate_state(1, np.uint64)[0] >> 1)


def torch_generator(seed: int, stream: str, *more: int) -> torch.Generator:
    return torch.Generator().manual_seed(stream_seed(seed, stream, *more))


def numpy_generator(seed: int, stream: str, *more: int) -> np.random.Generator:
    return np.random.default_rng(stream_seed(seed, stream, *more))
