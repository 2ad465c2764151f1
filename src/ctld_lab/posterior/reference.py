"""The reference: a long run of NUTS (blackjax, extra `posterior`) on each small posterior, and what it predicts.

`python -m ctld_lab.posterior.reference results/posterior/reference` computes what is missing. Stored are quantiles of what the
network predicts at each test input, R-hat and effective sizes of these predictions, and potentials at some draws, by which a
test holds the samplers' potential equal to the one that was sampled here.
"""

import io
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from ctld_lab.files import read_json, write_bytes, write_json
from ctld_lab.posterior.problems import PROBLEMS, Array, Problem, predicted, split

LEVELS = (np.arange(200) + 0.5) / 200
"""Of the stored quantiles: equal shares of the draws."""
CHAINS, WARM_UP, SEED = 8, 2000, 20261117
DRAWS = {"diabetes": 4000, "wine": 8000, "hats": 20_000}
"""Of each chain, after the warm-up."""
_KEPT = 8


def sample(
    problem: Problem, *, chains: int, warm_up: int, draws: int, seed: int
) -> tuple[Array, Array, dict[str, float]]:
    """Returns draws of θ of shape (chains, draws, dimension), their potentials, and how the sampler fared."""
    import blackjax
    import jax
    import jax.numpy as jnp

    jax.config.update("jax_enable_x64", True)  # type: ignore[no-untyped-call, unused-ignore]
    inputs, targets = jnp.asarray(problem.inputs), jnp.asarray(problem.targets)

    def log_density(theta: Any) -> Any:
        outputs = predicted(inputs, split(theta, problem.shapes), jnp.tanh)
        if problem.noise is None:
            loss = -jnp.take_along_axis(jax.nn.log_softmax(outputs), targets[:, None], axis=1).sum()
        else:
            loss = 0.5 * ((outputs - targets) ** 2).sum() / problem.noise**2
        return -loss - 0.5 * (theta**2).sum() / problem.prior_sd**2

    def chain(key: Any) -> Any:
        start_key, adaptation_key, key = jax.random.split(key, 3)
        start = problem.prior_sd * jax.random.normal(start_key, (problem.dimension,))
        adaptation = blackjax.window_adaptation(blackjax.nuts, log_density)
        (state, parameters), _ = adaptation.run(adaptation_key, start, num_steps=warm_up)
        kernel = blackjax.nuts(log_density, **parameters).step

        def step(state: Any, key: Any) -> Any:
            state, info = kernel(key, state)
            return state, (state.position, state.logdensity, info.num_integration_steps, info.is_divergent)

        return jax.lax.scan(step, state, jax.random.split(key, draws))[1]

    keys = jax.random.split(jax.random.PRNGKey(seed), chains)
    positions, densities, leaps, divergent = jax.jit(lambda keys: jax.lax.map(chain, keys))(keys)
    fared = {"gradients": float(leaps.sum()), "divergent": float(divergent.mean())}
    return np.asarray(positions), -np.asarray(densities), fared


def predictions(problem: Problem, theta: Array) -> Array:
    """Returns what draws predict at the test inputs: numbers, or probabilities of classes; (..., points, outputs)."""
    outputs = predicted(problem.test_inputs, split(theta, problem.shapes), np.tanh)
    if problem.noise is not None:
        return np.asarray(outputs)
    shares = np.exp(outputs - outputs.max(axis=-1, keepdims=True))
    normed: Array = shares / shares.sum(axis=-1, keepdims=True)
    return normed


def summary(problem: Problem, theta: Array) -> tuple[Array, dict[str, Array]]:
    """Returns quantiles of the predictions, (levels, points, outputs), and R-hat and effective sizes of each."""
    from ctld.diagnostics import convergence

    found = predictions(problem, theta)
    judged = found
    if problem.mirrored:
        # Every draw has a mirror image of the same density: they are added, and chains are judged by what is left of the two.
        flipped = found[:, :, ::-1]
        judged = np.concatenate([found + flipped, np.abs(found - flipped)], axis=2)
        middle = found.shape[2] // 2
        judged = np.delete(judged, found.shape[2] + middle, axis=2)  # |f(0) − f(0)|
        found = np.concatenate([found, flipped], axis=1)
    seen = convergence({"predictions": judged})["predictions"]
    flat = found.reshape(-1, *found.shape[2:])
    facts = {
        "r_hat": np.asarray(seen.r_hat),
        "ess_bulk": np.asarray(seen.ess_bulk),
        "ess_tail": np.asarray(seen.ess_tail),
    }
    return np.quantile(flat, LEVELS, axis=0), facts


def compute(problem: Problem, folder: Path, *, draws: int, chains: int = CHAINS, warm_up: int = WARM_UP) -> None:
    """Writes NAME.npz, the numbers, and NAME.json, where they come from."""
    from ctld_lab.jobs import environment

    begun = time.perf_counter()
    theta, potentials, fared = sample(problem, chains=chains, warm_up=warm_up, draws=draws, seed=SEED)
    quantiles, facts = summary(problem, theta)
    every = max(draws // _KEPT, 1)
    kept = {"theta": theta[0, ::every], "potential": potentials[0, ::every]}
    content = io.BytesIO()
    arrays: dict[str, Any] = {"quantiles": quantiles.astype(np.float32), **kept, **facts}
    np.savez_compressed(content, **arrays)
    folder.mkdir(parents=True, exist_ok=True)
    write_bytes(folder / f"{problem.name}.npz", content.getvalue())
    about = {
        "problem": problem.name,
        "chains": chains,
        "warm_up": warm_up,
        "draws": draws,
        "seed": SEED,
        **fared,
        "mean_potential": float(potentials.mean()),
        "variance_of_potential": float(potentials.var()),
        "worst_r_hat": float(facts["r_hat"].max()),
        "least_ess_bulk": float(facts["ess_bulk"].min()),
        "least_ess_tail": float(facts["ess_tail"].min()),
        "seconds": round(time.perf_counter() - begun, 1),
        "environment": environment(1),
    }
    write_json(folder / f"{problem.name}.json", about)
    print(about, flush=True)


def read(folder: Path, problem: Problem) -> tuple[Array, dict[str, Any]]:
    """Returns the quantiles that a problem's predictions are compared with, and where they come from."""
    name = problem.reference or problem.name
    path = folder / f"{name}.npz"
    if not path.exists():
        raise FileNotFoundError(
            f"there is no reference {path}; compute it by python -m ctld_lab.posterior.reference {folder}, which needs "
            'pip install -e ".[posterior]"'
        )
    with np.load(path, allow_pickle=False) as stored:
        quantiles: Array = stored["quantiles"].astype(np.float64)
    return quantiles, read_json(folder / f"{name}.json")


if __name__ == "__main__":
    for name, number in DRAWS.items():
        if not (Path(sys.argv[1]) / f"{name}.json").exists():
            compute(PROBLEMS[name](), Path(sys.argv[1]), draws=number)
