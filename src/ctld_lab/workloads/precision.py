"""In which numbers a workload computes."""

import torch

DTYPES = {"float32": torch.float32, "float64": torch.float64}


def floating_point(name: str) -> torch.dtype:
    if name not in DTYPES:
        raise ValueError(f"dtype = {name!r} is unknown; give one of {', '.join(map(repr, DTYPES))}")
    return DTYPES[name]
