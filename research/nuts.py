"""Run NUTS (blackjax) on a density in jax: the reference of the studies of posteriors."""

from collections.abc import Callable
from typing import Any

import numpy as np


def sample(
    log_density: Callable[[Any], Any], starts: Callable[[Any], Any], *, chains: int, warm_up: int, draws: int, seed: int
) -> tuple[Any, Any, dict[str, Any]]:
    """Return draws of shape (chains, draws, d), their log densities, and how each chain fared.

    `starts` makes a start from a key of jax. Gradients and divergences are those after the warm-up, as totals and by draw;
    `adaptation` has the gradients of the warm-up.
    """
    import blackjax
    import jax

    jax.config.update("jax_enable_x64", True)

    def chain(key: Any) -> Any:
        start_key, adaptation_key, key = jax.random.split(key, 3)
        adaptation = blackjax.window_adaptation(blackjax.nuts, log_density)
        (state, parameters), warming = adaptation.run(adaptation_key, starts(start_key), num_steps=warm_up)
        kernel = blackjax.nuts(log_density, **parameters).step

        def step(state: Any, key: Any) -> Any:
            state, info = kernel(key, state)
            return state, (state.position, state.logdensity, info.num_integration_steps, info.is_divergent)

        spent = warming.info.num_integration_steps.sum()
        return *jax.lax.scan(step, state, jax.random.split(key, draws))[1], spent

    keys = jax.random.split(jax.random.PRNGKey(seed), chains)
    positions, densities, leaps, divergent, spent = jax.jit(lambda keys: jax.lax.map(chain, keys))(keys)
    fared = {"gradients": np.asarray(leaps.sum(axis=1)), "divergent": np.asarray(divergent.mean(axis=1))}
    fared |= {"leaps": np.asarray(leaps), "divergences": np.asarray(divergent), "adaptation": np.asarray(spent)}
    return np.asarray(positions), np.asarray(densities), fared
