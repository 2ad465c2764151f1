"""Samplers beside NUTS on four posteriors of posteriordb: `python research/posteriordb.py --scale smoke`.

varied   BAOAB, Langevin, calibrated tempering (BAOAB) and NUTS; ten chains each
fixed    20,000 gradients a chain, NUTS's adaptation included; starts from U(−2, 2) in unconstrained variables, as Stan's

posteriordb/README.md has the protocol and the findings. Data: `python research/posteriordb.py --fetch`.
"""

import hashlib
import json
import math
import sys
import urllib.request
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from scipy.stats import wasserstein_distance
from torch import nn

import ctld
from cells import Cell, Found, Study, main, origins, packed, read, read_csv
from ctld.diagnostics import convergence
from ctld_lab.data import search_path
from render import finding, tabled

CHAINS, BURN_IN, THIN, MOMENTUM = 10, 0.25, 10, 0.9
LEVELS = (np.arange(200) + 0.5) / 200
WRONG, OFF = 0.2, 0.1  # mean W1 in units of the reference's deviation, and distance of the odds from ½
TITLES = {"baoab": "BAOAB", "langevin": "Langevin", "calibrated": "calibrated", "nuts": "NUTS"}
HOME = "https://raw.githubusercontent.com/stan-dev/posteriordb/master/posterior_database"
FILES = {
    "arK.json.zip": "6f2acbacb04655927bfc9173c42e51fc330bf08c6184242a62b7e39c22abe410",
    "arK-arK.draws.json.zip": "7ddb947e6c1ac5380f9c1e1fa101833a1236ef03de30f2cf5ece7b5b71841530",
    "eight_schools.json.zip": "8e37cc01fe05b0e1779255e9bd386261f3d61daf7f75f02f72f38cdc9750531c",
    "eight_schools-eight_schools_noncentered.draws.json.zip": (
        "0858641e630c877103dba2b78beaf6bc1f39435fc43d2894c4dff5d609c7a264"
    ),
    "low_dim_gauss_mix.json.zip": "9b5ea284321417a7816b0426a0c96788a6824e6ceb4ec4ecd89493779720b8f9",
    "low_dim_gauss_mix-low_dim_gauss_mix.draws.json.zip": (
        "422de750b20aef29c7b86f6bfa88dd9759050b6ffeb3588c004d6a4861c1e776"
    ),
    "low_dim_gauss_mix_collapse.json.zip": "13bed61589755ffd3824635189191a66d55647dad61942ca0441d8934506c860",
}


# ---- data ----


@lru_cache
def contents(name: str) -> Any:
    """Return what a file of posteriordb holds, found in the folders of data and checked."""
    places = [folder / "posteriordb" / name for folder in search_path()]
    path = next((place for place in places if place.is_file()), None)
    if path is None:
        raise SystemExit(
            f"posteriordb/{name} must be in {places[-1].parent}. Run: python research/posteriordb.py --fetch"
        )
    with zipfile.ZipFile(BytesIO(checked(name, path.read_bytes(), str(path)))) as packed:
        return json.loads(packed.read(packed.namelist()[0]))


def checked(name: str, content: bytes, where: str) -> bytes:
    if (digest := hashlib.sha256(content).hexdigest()) != FILES[name]:
        raise SystemExit(f"{where} must have SHA-256 {FILES[name]}, got {digest}. Fetch it again.")
    return content


def fetch(home: str = HOME) -> None:
    """Download what is missing into the user's folder of data."""
    folder = search_path()[-1] / "posteriordb"
    for name in FILES:
        if not (folder / name).is_file():
            part = "reference_posteriors/draws/draws" if ".draws." in name else "data/data"
            url = f"{home}/{part}/{name.replace('.draws', '')}"
            with urllib.request.urlopen(url, timeout=60) as answer:
                content = checked(name, answer.read(2**22), url)
            folder.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)
            print(folder / name)


# ---- posteriors ----


@dataclass(frozen=True)
class Posterior:
    """A log density in unconstrained variables, for torch and jax alike (`xp`), and the way back to the model's own."""

    title: str
    dimension: int
    log_density: Callable[[Any, Any], Any]
    constrained: Callable[[Any], Any]
    """Return parameters (..., d) of the model from unconstrained ones, in numpy."""
    reference: str = ""
    """posteriordb's draws; without a name, NUTS makes them."""
    names: Sequence[str] = ()
    mirrored: bool = False
    """True for mixtures without an order, whose mirror image has the same density."""


def ark() -> Posterior:
    """Return y_t ~ N(α + Σ β_k y_{t−k}, σ); α, β ~ N(0, 10), σ ~ half-Cauchy(0, 2.5)."""
    data = contents("arK.json.zip")
    order, y = data["K"], np.array(data["y"])
    past = np.stack([y[order - k : len(y) - k] for k in range(1, order + 1)], axis=1)

    def log_density(xp: Any, q: Any) -> Any:
        weights, log_sigma = q[: order + 1], q[order + 1]
        mean = weights[0] + xp.asarray(past) @ weights[1:]
        away = (xp.asarray(y[order:]) - mean) / xp.exp(log_sigma)
        prior = -0.5 * (weights**2).sum() / 100 - xp.log1p((xp.exp(log_sigma) / 2.5) ** 2) + log_sigma
        return -0.5 * (away**2).sum() - len(past) * log_sigma + prior

    names = ["alpha", *(f"beta[{k}]" for k in range(1, order + 1)), "sigma"]
    return Posterior(
        "arK, one mode", order + 2, log_density, lambda q: _exp_last(q, (order + 1,)), "arK-arK.draws.json.zip", names
    )


def eight_schools() -> Posterior:
    """Return y_j ~ N(θ_j, σ_j), θ_j ~ N(μ, τ), μ ~ N(0, 5), τ ~ half-Cauchy(0, 5), centred: a funnel."""
    data = contents("eight_schools.json.zip")
    y, sigma = np.array(data["y"], float), np.array(data["sigma"], float)

    def log_density(xp: Any, q: Any) -> Any:
        theta, mu, log_tau = q[:8], q[8], q[9]
        likelihood = -0.5 * (((xp.asarray(y) - theta) / xp.asarray(sigma)) ** 2).sum()
        schools = -0.5 * (((theta - mu) / xp.exp(log_tau)) ** 2).sum() - 8 * log_tau
        return likelihood + schools - 0.5 * mu**2 / 25 - xp.log1p((xp.exp(log_tau) / 5) ** 2) + log_tau

    names = [*(f"theta[{j}]" for j in range(1, 9)), "mu", "tau"]
    draws = "eight_schools-eight_schools_noncentered.draws.json.zip"
    return Posterior("eight schools, a funnel", 10, log_density, lambda q: _exp_last(q, (9,)), draws, names)


def mixture(data: str, title: str, reference: str = "") -> Posterior:
    """Return y ~ θ N(μ₁, σ₁) + (1 − θ) N(μ₂, σ₂), μ ~ N(0, 2), σ ~ half-N(0, 2), θ ~ Beta(5, 5), without an order."""
    y = np.array(contents(data)["y"])

    def log_density(xp: Any, q: Any) -> Any:
        mu, log_sigma, logit = q[:2], q[2:4], q[4]
        logs = -xp.logaddexp(0 * logit, -logit), -xp.logaddexp(0 * logit, logit)  # log θ, log(1 − θ)
        parts = [logs[k] - 0.5 * ((xp.asarray(y) - mu[k]) / xp.exp(log_sigma[k])) ** 2 - log_sigma[k] for k in (0, 1)]
        prior = -(mu**2).sum() / 8 - (xp.exp(log_sigma) ** 2).sum() / 8 + log_sigma.sum() + 5 * (logs[0] + logs[1])
        return xp.logaddexp(*parts).sum() + prior

    def constrained(q: Any) -> Any:
        found = _exp_last(q, (2, 3))
        found[..., 4] = 1 / (1 + np.exp(-q[..., 4]))
        return found

    names = ["mu[1]", "mu[2]", "sigma[1]", "sigma[2]", "theta"]
    return Posterior(title, 5, log_density, constrained, reference, names, mirrored=True)


def _exp_last(q: Any, places: Sequence[int]) -> Any:
    found = np.array(q, float)
    found[..., list(places)] = np.exp(found[..., list(places)])
    return found


POSTERIORS: Mapping[str, Callable[[], Posterior]] = {
    "arK": ark,
    "eight_schools": eight_schools,
    "mixture": lambda: mixture(
        "low_dim_gauss_mix.json.zip", "mixture, far modes", "low_dim_gauss_mix-low_dim_gauss_mix.draws.json.zip"
    ),
    "collapse": lambda: mixture("low_dim_gauss_mix_collapse.json.zip", "collapse, near modes"),
}


def mirror(draws: Any) -> Any:
    """Return the mirror image of draws of a mixture."""
    found = draws[..., [1, 0, 3, 2, 4]]
    found[..., 4] = 1 - found[..., 4]
    return found


def quantiles(posterior: Posterior, draws: Any) -> Any:
    """Return quantiles of each parameter, (levels, d), with the mirror images where there are such."""
    flat = draws.reshape(-1, posterior.dimension)
    return np.quantile(np.concatenate([flat, mirror(flat)]) if posterior.mirrored else flat, LEVELS, axis=0)


def published(posterior: Posterior) -> Any:
    """Return the quantiles of posteriordb's draws."""
    chains = contents(posterior.reference)
    return quantiles(
        posterior, np.array([[chain[name] for name in posterior.names] for chain in chains]).swapaxes(1, 2)
    )


# ---- samplers ----


class Energy(nn.Module):
    """−log density of a vector, which starts somewhere in U(−2, 2)."""

    def __init__(self, posterior: Posterior, seed: int) -> None:
        super().__init__()
        start = (
            4 * torch.rand(posterior.dimension, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) - 2
        )
        self.q, self.posterior = nn.Parameter(start), posterior

    def forward(self) -> torch.Tensor:
        return -self.posterior.log_density(torch, self.q)


def by_ctld(
    posterior: Posterior, sampler: str, gradients: int, lr: float | None
) -> tuple[Any, dict[str, Any], list[Any]]:
    """Return draws (chains, draws, d), what `ctld.sample` said, and what each chain knows of its tempering."""
    made: list[Any] = []

    def calibrated(parameters: Any, lr: float, seed: int) -> Any:
        given = {"num_data": 1, "temperature": 1.0, "exploration_steps": gradients, "integrator": "baoab", "seed": seed}
        made.append(ctld.CTLD(parameters, lr, MOMENTUM, tempering=ctld.Tempering.calibrated(), **given))
        return made[-1]

    models = [Energy(posterior, chain) for chain in range(CHAINS)]
    given = {"num_data": 1, "num_steps": gradients, "burn_in": BURN_IN, "thin": THIN, "seed": 1, "progress": False}
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        found = ctld.sample(
            models,
            lambda model, batch: model(),
            [torch.zeros(1)],
            sampler=calibrated if sampler == "calibrated" else sampler,
            lr=lr or "auto",
            **given,
        )
    told = {"lr": found.settings["lr"], "r_hat": found.r_hat, "ess": found.ess, "chains_lost": len(found.counts.lost)}
    told |= {"temperature": found.hottest.mean if found.hottest else math.nan, "refused": sum(found.counts.refused)}
    told["said"] = " ".join(dict.fromkeys([*found.remarks, *(str(one.message) for one in seen)]))
    names = ("half_trips", "promised_half_trips", "warned")
    kept = [each for chain, each in enumerate(made) if chain not in found.counts.lost]
    trips = [{name: getattr(each.tempering, name, None) for name in names} for each in kept]
    return found.parameters["q"], told, trips


def by_nuts(posterior: Posterior, gradients: int) -> tuple[Any, dict[str, Any], list[Any]]:
    """Return the draws that a chain's gradients allow, adaptation included, cut to those of the shortest chain."""
    import jax
    import jax.numpy as jnp

    import nuts

    drawn, _, fared = nuts.sample(
        lambda q: posterior.log_density(jnp, q),
        lambda key: jax.random.uniform(key, (posterior.dimension,), minval=-2.0, maxval=2.0),
        chains=CHAINS,
        warm_up=500,
        draws=gradients // 3,
        seed=1,
    )
    spent = fared["adaptation"][:, None] + np.cumsum(fared["leaps"], axis=1)
    count = int((spent <= gradients).sum(axis=1).min())
    found = convergence({"q": drawn[:, :count]})["q"]
    told = {"r_hat": float(np.max(found.r_hat)), "ess": float(np.min([found.ess_bulk, found.ess_tail]))}
    divergent = fared["divergences"][:, :count].sum(axis=1)
    told |= {"said": f"{divergent.sum()} divergent steps" if divergent.any() else "", "divergent": int(divergent.sum())}
    return drawn[:, :count], told, []


# ---- the study ----


def work(found: Found, name: str, sampler: str, gradients: int, directory: Path) -> Iterator[str]:
    """Sample, then compare each chain and all together with the reference."""
    posterior = POSTERIORS[name]()
    own = np.array(read(directory, f"{name}/reference").get("quantiles", ()))
    truth = published(posterior) if posterior.reference else own
    if sampler == "nuts":
        drawn, told, trips = by_nuts(posterior, gradients)
    else:
        lr = read(directory, f"{name}/baoab")["all"]["lr"] if sampler == "calibrated" else None
        drawn, told, trips = by_ctld(posterior, sampler, gradients, lr)
    draws = posterior.constrained(drawn)
    found["all"] = score(posterior, draws.reshape(-1, posterior.dimension), truth) | told
    found["chains"] = [score(posterior, chain, truth) for chain in draws]
    if trips:
        found["chains"] = [row | trip for row, trip in zip(found["chains"], trips, strict=True)]
    found["all"]["switches"] = sum(row.get("switches", 0) for row in found["chains"])
    yield f"W1 {found['all']['w1']:.3f}, R-hat {told['r_hat']:.3f}"


def score(posterior: Posterior, draws: Any, truth: Any) -> dict[str, Any]:
    """Return W1, mean over parameters in units of the reference's deviation; odds and switches of modes."""
    each = [wasserstein_distance(mine, other) for mine, other in zip(draws.T, truth.T, strict=True)]
    found: dict[str, Any] = {"w1": float(np.mean(np.array(each) / truth.std(axis=0))), "draws": len(draws)}
    if posterior.mirrored:
        first = draws[:, 0] < draws[:, 1]
        found |= {"share": float(first.mean()), "switches": int((first[1:] != first[:-1]).sum())}
    return found


def make_reference(found: Found, name: str, draws: int) -> Iterator[str]:
    """Run NUTS long; draws are completed by their mirror images, so that it need not change modes."""
    import jax
    import jax.numpy as jnp

    import nuts

    posterior = POSTERIORS[name]()
    drawn, _, _ = nuts.sample(
        lambda q: posterior.log_density(jnp, q),
        lambda key: jax.random.uniform(key, (posterior.dimension,), minval=-2.0, maxval=2.0),
        chains=4,
        warm_up=1000,
        draws=draws,
        seed=2,
    )
    made = posterior.constrained(drawn)
    folded = np.where(made[..., :1] < made[..., 1:2], made, mirror(made))
    found["r_hat"] = float(np.max(convergence({"folded": folded})["folded"].r_hat))
    found["quantiles"] = quantiles(posterior, made).tolist()
    yield f"R-hat of the folded draws {found['r_hat']:.4f}"


def cells(directory: Path, posteriors: Sequence[str], gradients: int, samplers: Sequence[str]) -> Sequence[Cell]:
    found = []
    for name in posteriors:
        own = name == "collapse"
        if own:
            facts = {"problem": name, "gradients": gradients}
            make = lambda found, name=name: make_reference(found, name, gradients // 2)  # noqa: E731
            found.append(Cell(f"{name}/reference", facts, make))
        for sampler in samplers:
            facts = {"problem": name, "sampler": sampler, "gradients": gradients, "number_of_chains": CHAINS}
            needs = [f"{name}/reference"] * own + [f"{name}/baoab"] * (sampler == "calibrated")
            make = lambda found, key=(name, sampler): work(found, *key, gradients, directory)  # noqa: E731
            found.append(Cell(f"{name}/{sampler}", facts, make, needs))
    return found


def pack(directory: Path, results: Path) -> None:
    """Write all.csv, a row for each posterior and sampler; chains.csv, a row for each chain; origins.csv."""
    tables: dict[str, list[dict[str, Any]]] = {"all": [], "chains": [], "origins": origins(directory)}
    for _, cell in packed(directory):
        if "all" in cell:
            key = {"problem": cell["problem"], "sampler": cell["sampler"]}
            tables["all"].append(key | cell["all"] | {"gradients": cell["gradients"], "seconds": cell["seconds"]})
            tables["chains"] += [key | {"chain": number} | row for number, row in enumerate(cell["chains"])]
    results.mkdir(parents=True, exist_ok=True)
    for name, rows in tables.items():
        pd.DataFrame(rows).to_csv(results / f"{name}.csv", index=False)


def findings(results: Path) -> dict[str, Any]:
    """Say of each posterior and sampler whether the answer is right, and whether anything said that it was not."""
    whole, chains, rows, told = read_csv(results, "all"), read_csv(results, "chains"), [], []
    for name, sampler in ((name, sampler) for name in POSTERIORS for sampler in TITLES):
        found = whole[(whole.problem == name) & (whole.sampler == sampler)]
        if found.empty:
            continue
        one, mine = found.iloc[0].dropna(), chains[(chains.problem == name) & (chains.sampler == sampler)]
        right = one.w1 < WRONG and not abs(one.get("share", 0.5) - 0.5) > OFF
        spoke = one.get("r_hat", 1.0) > 1.05 or "said" in one
        verdict, problem = (
            f"{'right' if right else 'wrong'}, {'told' if spoke else 'silent'}",
            f"{name}: {TITLES[sampler]}",
        )
        row = {"": problem, "W1": f"{one.w1:.3g}"}
        if "share" in one:
            off = math.sqrt(float(((mine.share - 0.5) ** 2).mean()))
            row |= {"odds": f"{one.share:.2f}", "rms off ½": f"{off:.2f}", "switches": f"{one.switches:.0f}"}
        if one.get("chains_lost", 0):
            row["chains lost"] = f"{one.chains_lost:.0f} of {CHAINS}"
        row |= {of: f"{one[key]:.2f}" for of, key in (("R-hat", "r_hat"), ("temperature", "temperature")) if key in one}
        if "half_trips" in mine and mine.half_trips.notna().all():
            row["half-trips of promised"] = f"{mine.half_trips.median():.0f} of {mine.promised_half_trips.median():.0f}"
            row["warned"] = f"{mine.warned.astype(bool).sum()} of {len(mine)}"
        rows.append(row | {"answer": verdict})
        told.append(
            finding(f"{name}-{sampler}", problem, verdict, f"W1 {one.w1:.3g}, R-hat {one.get('r_hat', math.nan):.2f}")
        )
    short: dict[str, dict[str, str]] = {}
    for row in rows:
        name, title = row[""].split(": ")
        short.setdefault(name, {"W1": name})[title] = f"{row['W1']}, {row['answer']}"
    tables = {"summary": tabled(list(short.values()), missing="–"), "all": tabled(rows, missing="–")}
    return {"study": "posteriordb", "title": "Four posteriors of posteriordb", "findings": told, "tables": tables}


STUDY = Study(
    "posteriordb",
    {
        "smoke": lambda where: cells(where, ("arK", "mixture"), 600, ("baoab", "calibrated")),
        "laptop": lambda where: cells(where, tuple(POSTERIORS), 20_000, tuple(TITLES)),
    },
    pack,
    findings,
)

if __name__ == "__main__":
    fetch() if "--fetch" in sys.argv else main(STUDY)
