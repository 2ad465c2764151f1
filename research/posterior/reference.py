"""The reference: a long run of NUTS on each small posterior, and what it predicts.

`make posterior` computes what is missing in a folder of its own. Stored are quantiles of what the network predicts at each
test input, R-hat and effective sizes of these predictions, and potentials at some draws: a test compares the samplers'.
"""

import io
import json
import time
from pathlib import Path
from typing import Any

import numpy as np

from ctld.diagnostics import convergence

from .problems import PROBLEMS, Array, Problem, predicted, predictions, split

STORED = Path(__file__).parent / "reference"
LEVELS = (np.arange(200) + 0.5) / 200
"""Levels of the stored quantiles: equal shares of the draws."""
CHAINS, WARM_UP, SEED, KEPT = 8, 2000, 20261117, 8
DRAWS = {"diabetes": 4000, "wine": 8000, "hats": 20_000}
"""Draws of each chain, after the warm-up."""


def sample(
    problem: Problem, *, chains: int, warm_up: int, draws: int, seed: int
) -> tuple[Array, Array, dict[str, Any]]:
    """Return draws of θ of shape (chains, draws, dimension), their potentials, and how the sampler fared."""
    import jax
    import jax.numpy as jnp

    import nuts

    jax.config.update("jax_enable_x64", True)
    inputs, targets = jnp.asarray(problem.inputs), jnp.asarray(problem.targets)

    def log_density(theta: Any) -> Any:
        outputs = predicted(inputs, split(theta, problem.shapes), jnp.tanh)
        if problem.noise is None:
            loss = -jnp.take_along_axis(jax.nn.log_softmax(outputs), targets[:, None], axis=1).sum()
        else:
            loss = 0.5 * ((outputs - targets) ** 2).sum() / problem.noise**2
        return -loss - 0.5 * (theta**2).sum() / problem.prior_sd**2

    def start(key: Any) -> Any:
        return problem.prior_sd * jax.random.normal(key, (problem.dimension,))

    theta, densities, fared = nuts.sample(log_density, start, chains=chains, warm_up=warm_up, draws=draws, seed=seed)
    return theta, -densities, fared


def summary(problem: Problem, theta: Array) -> tuple[Array, dict[str, Array]]:
    """Return quantiles of the predictions, (levels, points, outputs), and R-hat and effective sizes of each."""
    found = predictions(problem, theta)
    judged = found
    if problem.mirrored:
        # Every draw has a mirror image of the same density: it is added, and chains are judged by functions of both.
        flipped = found[:, :, ::-1]
        judged = np.concatenate([found + flipped, np.abs(found - flipped)], axis=2)
        judged = np.delete(judged, found.shape[2] + found.shape[2] // 2, axis=2)  # |f(0) − f(0)|
        found = np.concatenate([found, flipped], axis=1)
    seen = convergence({"predictions": judged})["predictions"]
    facts = {name: np.asarray(getattr(seen, name)) for name in ("r_hat", "ess_bulk", "ess_tail")}
    return np.quantile(found.reshape(-1, *found.shape[2:]), LEVELS, axis=0), facts


def compute(problem: Problem, folder: Path, *, draws: int, chains: int = CHAINS, warm_up: int = WARM_UP) -> None:
    """Write NAME.npz, the numbers, and NAME.json, where they come from."""
    from cells import environment

    begun = time.perf_counter()
    theta, potentials, fared = sample(problem, chains=chains, warm_up=warm_up, draws=draws, seed=SEED)
    quantiles, facts = summary(problem, theta)
    every = max(draws // KEPT, 1)
    content = io.BytesIO()
    kept = {"theta": theta[0, ::every], "potential": potentials[0, ::every]}
    np.savez_compressed(content, quantiles=quantiles.astype(np.float32), **kept, **facts)
    folder.mkdir(parents=True, exist_ok=True)
    about = {"problem": problem.name, "chains": chains, "warm_up": warm_up, "draws": draws, "seed": SEED}
    about |= {"gradients": float(fared["gradients"].sum()), "divergent": float(fared["divergent"].mean())}
    about |= {"worst_r_hat": float(facts["r_hat"].max()), "least_ess_bulk": float(facts["ess_bulk"].min())}
    about |= {"least_ess_tail": float(facts["ess_tail"].min()), "seconds": round(time.perf_counter() - begun, 1)}
    about |= {"mean_potential": float(potentials.mean()), "variance_of_potential": float(potentials.var())}
    (folder / f"{problem.name}.npz").write_bytes(content.getvalue())
    (folder / f"{problem.name}.json").write_text(json.dumps(about | {"environment": environment()}, indent=1) + "\n")
    print(about, flush=True)


def read(problem: Problem, folder: Path = STORED) -> tuple[Array, dict[str, Any]]:
    """Return the quantiles that a problem's predictions are compared with, and where they come from."""
    name = problem.reference or problem.name
    with np.load(folder / f"{name}.npz", allow_pickle=False) as stored:
        quantiles: Array = stored["quantiles"].astype(np.float64)
    return quantiles, json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))


def compute_missing(folder: Path) -> None:
    for name, number in DRAWS.items():
        if not (folder / f"{name}.json").exists():
            compute(PROBLEMS[name](), folder, draws=number)
