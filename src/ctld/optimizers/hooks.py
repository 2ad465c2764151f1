"""torch's hooks around a step, only where there are any to serve."""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import _global_optimizer_post_hooks as _global_post_hooks
from torch.optim.optimizer import _global_optimizer_pre_hooks as _global_pre_hooks


def quick_hooks(step: Callable[..., Any]) -> Callable[..., Any]:
    """Return `step` with torch's hooks and profiling around it where there are any, since they cost ten microseconds."""
    served = Optimizer.profile_hook_step(step)

    @functools.wraps(step)
    def quick(self: Any, *arguments: Any, **options: Any) -> Any:
        hooks = self._optimizer_step_pre_hooks or self._optimizer_step_post_hooks
        if hooks or _global_pre_hooks or _global_post_hooks or torch.autograd._profiler_enabled():
            return served(self, *arguments, **options)
        return step(self, *arguments, **options)

    quick.hooked = True  # type: ignore[attr-defined]  # else torch wraps it once more
    return quick
