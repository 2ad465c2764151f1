"""The study on posteriordb: densities against torch.distributions, mirror images, scores, downloads, verdicts."""

import numpy as np
import pandas as pd
import pytest
import torch
from torch.distributions import Beta, Cauchy, HalfCauchy, HalfNormal, MixtureSameFamily, Normal

import posteriordb

DATA = {
    "arK.json.zip": {"K": 2, "T": 6, "y": [0.7, 0.2, -0.3, 0.5, 0.1, 0.4]},
    "eight_schools.json.zip": {"J": 8, "y": [28, 8, -3, 7, -1, 1, 18, 12], "sigma": [15, 10, 16, 11, 9, 11, 10, 18]},
    "low_dim_gauss_mix.json.zip": {"N": 4, "y": [-1.0, 0.3, 2.0, 1.5]},
}


@pytest.fixture(autouse=True)
def small_data(monkeypatch):
    monkeypatch.setattr(posteriordb, "contents", DATA.__getitem__)


def ark(q):
    y, scale = torch.tensor(DATA["arK.json.zip"]["y"], dtype=torch.float64), q[3].exp()
    mean = q[0] + q[1] * y[1:-1] + q[2] * y[:-2]
    return (
        Normal(mean, scale).log_prob(y[2:]).sum()
        + Normal(0, 10).log_prob(q[:3]).sum()
        + HalfCauchy(2.5).log_prob(scale)
        + q[3]
    )


def schools(q):
    data, tau = DATA["eight_schools.json.zip"], q[9].exp()
    y, sigma = (torch.tensor(data[name], dtype=torch.float64) for name in ("y", "sigma"))
    found = Normal(q[:8], sigma).log_prob(y).sum() + Normal(q[8], tau).log_prob(q[:8]).sum()
    return found + Normal(0, 5).log_prob(q[8]) + HalfCauchy(5.0).log_prob(tau) + q[9]


def mixture(q):
    y = torch.tensor(DATA["low_dim_gauss_mix.json.zip"]["y"], dtype=torch.float64)
    sigma, theta = q[2:4].exp(), q[4].sigmoid()
    weights = torch.distributions.Categorical(torch.stack([theta, 1 - theta]))
    found = MixtureSameFamily(weights, Normal(q[:2], sigma)).log_prob(y).sum() + Normal(0, 2).log_prob(q[:2]).sum()
    found = found + HalfNormal(2.0).log_prob(sigma).sum() + q[2:4].sum()
    return found + Beta(5.0, 5.0).log_prob(theta) + (theta * (1 - theta)).log()


@pytest.mark.parametrize(("name", "density"), [("arK", ark), ("eight_schools", schools), ("mixture", mixture)])
def test_log_densities_are_those_of_the_models_but_for_a_constant(name, density):
    posterior = posteriordb.POSTERIORS[name]()
    points = torch.randn(20, posterior.dimension, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    away = torch.stack([posterior.log_density(torch, q) - density(q) for q in points])
    torch.testing.assert_close(away, away[:1].expand(20))
    wrong = torch.stack(
        [posterior.log_density(torch, q) - density(q) + Cauchy(0.0, 1.0).log_prob(q[0]) for q in points]
    )
    assert wrong.std() > 0.1  # the twin: one prior more is seen


def test_mirror_images_have_the_same_density_and_quantiles():
    posterior = posteriordb.POSTERIORS["mixture"]()
    q = torch.tensor([0.3, -1.0, 0.2, -0.4, 0.9], dtype=torch.float64)
    flipped = torch.stack([q[1], q[0], q[3], q[2], -q[4]])
    torch.testing.assert_close(posterior.log_density(torch, q), posterior.log_density(torch, flipped))
    draws = posterior.constrained(q.numpy()[None])
    np.testing.assert_allclose(posteriordb.mirror(draws), posterior.constrained(flipped.numpy()[None]))
    np.testing.assert_allclose(posteriordb.mirror(posteriordb.mirror(draws)), draws)


def test_scores_see_a_missing_mode_and_count_switches():
    posterior = posteriordb.POSTERIORS["mixture"]()
    half = np.random.default_rng(0).normal([-1.0, 1.0, 1.0, 1.0, 0.5], 0.05, size=(400, 5))
    truth = posteriordb.quantiles(posterior, half)
    both = np.concatenate([half, posteriordb.mirror(half)])
    found = posteriordb.score(posterior, both, truth)
    assert found["w1"] < 0.05
    assert (found["share"], found["switches"]) == (0.5, 1)
    assert posteriordb.score(posterior, half, truth)["w1"] > 0.3


def test_downloads_are_checked(tmp_path, monkeypatch):
    (tmp_path / "data/data").mkdir(parents=True)
    (tmp_path / "data/data/arK.json.zip").write_bytes(b"not this")
    monkeypatch.setattr(posteriordb, "search_path", lambda: [tmp_path / "mine"])
    with pytest.raises(SystemExit, match=r"arK\.json\.zip must have SHA-256 6f2acbac.*, got "):
        posteriordb.fetch(tmp_path.as_uri())
    assert not (tmp_path / "mine").exists()


def test_verdicts_say_whether_it_was_right_and_whether_it_spoke(tmp_path):
    row = {
        "problem": "collapse",
        "sampler": "baoab",
        "w1": 0.1,
        "share": 0.5,
        "switches": 9,
        "r_hat": 1.0,
        "said": None,
    }
    rows = [row, row | {"sampler": "langevin", "share": 0.7}, row | {"sampler": "nuts", "w1": 0.5, "r_hat": 1.2}]
    pd.DataFrame(rows).to_csv(tmp_path / "all.csv", index=False)
    chains = [{"problem": "collapse", "sampler": each["sampler"], "share": 0.4} for each in rows]
    pd.DataFrame(chains).to_csv(tmp_path / "chains.csv", index=False)
    words = [row["verdict"] for row in posteriordb.findings(tmp_path)["findings"]]
    assert words == ["right, silent", "wrong, silent", "wrong, told"]
