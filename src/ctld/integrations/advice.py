"""Advice on a framework's settings that harm a sampler, given once before training."""

from collections.abc import Iterable

from ctld.checks import warn_user
from ctld.observing import TakesLoss
from ctld.optimizers import OPTIMIZERS

SAMPLERS = tuple(method.optimizer for method in OPTIMIZERS.values() if method.samples)


class SettingsWarning(UserWarning):
    """A setting of a framework changes what is sampled."""


def about_clipping(option: str, value: float | None, off: str) -> str | None:
    """Return a warning of a bound on the norm of gradients; None if there is no bound."""
    if not value:
        return None
    return (
        f"{option} = {value:g} clips gradients: where the bound is reached, another law is sampled than the posterior, and the "
        f"thermometers cannot see it. Give {off}, or a bound that is seldom reached"
    )


def about_length(optimizer: TakesLoss, total_steps: float) -> str | None:
    """Return a warning if training ends while the optimizer explores or within the first cycle; else None."""
    exploration = getattr(optimizer, "exploration_steps", 0)
    cycle = getattr(optimizer, "cycle_steps", None)
    if cycle is None and 0 < total_steps <= exploration:
        return (
            f"training ends after {total_steps:g} steps, all within exploration_steps = {exploration}: what is left is "
            "a noisy sample, not a fine-tuned one. Explore for less, or train for longer"
        )
    if cycle is not None and 0 < total_steps < cycle:
        return (
            f"training ends after {total_steps:g} steps, before the first cycle of {cycle} does: no cycle is completed. "
            "Give shorter cycles"
        )
    return None


def about_decay(optimizer: TakesLoss) -> str | None:
    """Return a warning if a framework has replaced the weight decay that was given; else None."""
    given = float(optimizer.defaults.get("weight_decay", 0.0))
    found = sorted({float(group.get("weight_decay", given)) for group in optimizer.param_groups})
    if given in found or not given:
        return None
    return (
        f"weight_decay = {given:g} was given to the optimizer, but its groups have {', '.join(f'{x:g}' for x in found)}: "
        "the framework makes them from its own setting, and another prior is sampled. Set it there too "
        "(TrainingArguments(weight_decay=...)), or build the optimizer yourself"
    )


def say(optimizer: TakesLoss, messages: Iterable[str | None]) -> None:
    """Give each warning, if the optimizer is a sampler."""
    if isinstance(optimizer, SAMPLERS):
        for message in filter(None, messages):
            warn_user(message, SettingsWarning)
