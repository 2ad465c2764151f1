"""Check that tensors are still of the kind that they were: type, dtype, device, sizes and strides.

`torch.compile` asks the same before each call, of all tensors at once and in C; one by one, from Python, that takes as long as
a small step. Where torch has no such guard they are asked one by one; also where it says no, since it goes by autocast and the
like too, which do not matter here.
"""

import logging
from collections.abc import Callable, Sequence
from functools import cache
from operator import attrgetter
from typing import Any

from torch import Tensor

_log = logging.getLogger("ctld")
_numel, _is_contiguous, _is_neg, _dtype = Tensor.numel, Tensor.is_contiguous, Tensor.is_neg, attrgetter("dtype")


class SameKind:
    """Remembers tensors that lie in one piece, and says whether others can take their places."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._types = [*map(type, tensors)]
        self._dtypes = [*map(_dtype, tensors)]
        self._sizes = [*map(_numel, tensors)]
        self._guard = _guard_of(tensors)

    def __call__(self, tensors: Sequence[Any]) -> bool:
        """True if each tensor is of the kind of the one in its place and in one piece, and there are as many."""
        return self._guard(*tensors) or (
            [*map(type, tensors)] == self._types
            and [*map(_dtype, tensors)] == self._dtypes
            and [*map(_numel, tensors)] == self._sizes
            and all(map(_is_contiguous, tensors))
            and not any(map(_is_neg, tensors))
        )


def _guard_of(tensors: Sequence[Tensor]) -> Callable[..., bool]:
    """Return torch's guard; one that always says no, where there is none, or not for these tensors."""
    try:
        from torch._C._dynamo.guards import TensorGuards  # private: it may go, or change what it takes

        sizes: Any = [list(tensor.size()) for tensor in tensors]
        strides: Any = [list(tensor.stride()) for tensor in tensors]
        check: Callable[..., bool] = TensorGuards(
            *tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides
        ).check
        if check(*tensors) is True:
            return check
    except Exception as error:  # whatever a private class may raise
        _say_once(f"{type(error).__name__}: {error}")
    return _never


@cache
def _say_once(reason: str) -> None:
    _log.info("torch's guard of tensors cannot be used, so each step looks at them one by one (%s)", reason)


def _never(*_: Tensor) -> bool:
    return False
