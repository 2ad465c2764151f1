"""The study of photographs: gradients, that a row is torch's Adam or the library's CTLD, and what is stored."""

import json
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import cells
from ctld import CTLD
from ctld.tempering import FallingTemperature
from images import gaussians, pictures, tables
from images.methods import COLD, FINE_LR, LEVELS, LRS, MASS, METHODS, MOMENTUM, Setting, fit, relocate, setting
from images.study import COUNTS, SIZES, STUDY

STORED = Path(tables.__file__).parent / "results"
COUNT, BUDGET = 9, 50
EXPLORING = 30  # 60 % of it


def seeded(seed):
    return torch.Generator().manual_seed(seed)


@pytest.fixture(scope="module")
def target():
    return gaussians.normalised(pictures.load("china"))[0]


@pytest.fixture
def theta(target):
    return gaussians.start(target, COUNT, seeded(0))[None]


# ---- the problem ----


@pytest.mark.parametrize("name", [*pictures.TUNING, *pictures.FINAL])
def test_a_picture_is_there(name):
    picture = pictures.load(name)
    assert picture.shape == (3, 64 * 64)
    assert 0 <= picture.min() < picture.max() <= 1
    assert picture.std() > 0.05


def test_tuning_sees_no_picture_of_the_result():
    assert len(set(pictures.TUNING)) == 5
    assert len({*pictures.TUNING, *pictures.FINAL}) == 11


def test_a_package_that_is_missing_is_named(monkeypatch):
    monkeypatch.setitem(pictures._BUNDLED, "rocket", ("skimage_that_is_not_there", "data/rocket.jpg"))
    with pytest.raises(
        ModuleNotFoundError, match="picture 'rocket' is in skimage_that_is_not_there, not installed: pip"
    ):
        pictures.load("rocket")


def test_gradients_are_those_of_the_loss(target):
    start = gaussians.start(target, COUNT, seeded(0)).double()[None]
    start = start + 0.3 * torch.randn(start.shape, generator=seeded(1), dtype=torch.float64)  # ellipses at an angle
    wide, direction = target.double()[None], torch.randn(start.shape, generator=seeded(2), dtype=torch.float64)
    along = [gaussians.gradient(start + step * direction, wide)[0] for step in (1e-6, -1e-6)]
    slope = float((gaussians.gradient(start, wide)[1] * direction).sum())
    assert slope == pytest.approx(float(along[0] - along[1]) / 2e-6, rel=1e-5)


def test_the_picture_is_a_sum_of_gaussians():
    """Against scipy's density, for one ellipse at an angle."""
    from scipy.stats import multivariate_normal

    x, y, first, second, angle = 0.4, 0.7, -1.0, -0.3, 0.5
    theta = torch.tensor([[x], [y], [first], [second], [angle], [1.0], [2.0], [-1.0]])
    turn = np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
    covariance = turn @ np.diag(np.exp([2 * first, 2 * second])) @ turn.T + 0.3 / 64**2 * np.eye(2)
    law = multivariate_normal([x, y], covariance)
    expected = law.pdf(torch.stack([gaussians.X, gaussians.Y], 1).numpy()) / law.pdf([x, y])
    np.testing.assert_allclose(gaussians.draw(theta).numpy(), np.outer([1, 2, -1], expected), atol=2e-6)


def test_gaussians_below_a_pixel_do_no_harm():
    """Their polynomials cancelled to exponents above zero, and pictures to infinity, before variances had a least value."""
    theta = torch.tensor([[0.503], [0.497], [-30.0], [-12.0], [0.3], [1.0], [1.0], [1.0]])
    assert gaussians.draw(theta).max() <= 1.01
    assert gaussians.gradient(theta[None], torch.zeros(1, 3, 64 * 64))[1].isfinite().all()


def test_psnr_is_that_of_the_picture():
    picture = pictures.load("flower")
    target, deviation = gaussians.normalised(picture)
    theta = gaussians.start(target, COUNT, seeded(0))
    drawn = picture.mean(dim=1, keepdim=True) + deviation * gaussians.draw(theta)
    expected = -10 * math.log10((drawn - picture).square().mean())
    loss = gaussians.gradient(theta[None], target[None])[0][0]
    assert gaussians.psnr(loss, COUNT, deviation) == pytest.approx(expected, abs=1e-4)
    assert gaussians.psnr(torch.tensor(torch.nan), COUNT, deviation) == 0.0


# ---- methods ----


def by_torch(theta, target, build, steps, factor=lambda step: 1.0):
    """Carries on from `theta` with an optimizer of torch's or the library's, and the gradients of the study."""
    parts = [torch.nn.Parameter(part.clone()) for part in (theta[0, :2], theta[0, 2:])]
    optimizer = build(parts)
    for step in range(steps):
        losses, gradient, _ = gaussians.gradient(torch.cat([part.detach() for part in parts])[None], target[None])
        parts[0].grad, parts[1].grad = gradient[0, :2].clone(), gradient[0, 2:].clone()
        for group in optimizer.param_groups:
            group["lr"] = group.setdefault("first_lr", group["lr"]) * factor(step)
        optimizer.step(**({"loss": losses[0]} if isinstance(optimizer, CTLD) else {}))
    return torch.cat([part.detach() for part in parts])[None]


def cosine(step):
    return 0.5 * (1 + math.cos(math.pi * max(step - EXPLORING, 0) / (BUDGET - EXPLORING)))


def test_a_row_of_adam_is_torchs(theta, target):
    mine, _ = fit(METHODS["adam"], [Setting(0.05)], theta, target[None], budget=BUDGET, seeds=[0])
    expected = by_torch(theta, target, lambda parts: torch.optim.Adam(parts, 0.05), BUDGET, cosine)
    torch.testing.assert_close(mine, expected, rtol=1e-4, atol=1e-4)
    wrong = by_torch(theta, target, lambda parts: torch.optim.Adam(parts, 0.05), BUDGET)
    assert (mine - wrong).abs().max() > 1e-2


@pytest.mark.parametrize("name", ["ctld-zero", "ctld-falling"])
def test_a_row_of_ctld_is_the_librarys(name, theta, target):
    point = Setting(0.05, 0.0 if name == "ctld-zero" else 0.03)
    mine, _ = fit(METHODS[name], [point], theta, target[None], budget=BUDGET, seeds=[3])

    def explore(parts, temperature=point.temperature):
        groups = [{"params": parts[:1]}, {"params": parts[1:], "explore": False}]
        options = {"exploration_steps": EXPLORING, "num_data": 1.0, "temperature": temperature, "seed": 3}
        return CTLD(groups, 0.05, MOMENTUM, tempering=FallingTemperature(EXPLORING), **options)

    def rest(explored):
        tail = lambda step: cosine(step + EXPLORING)  # noqa: E731
        return by_torch(explored, target, lambda parts: torch.optim.Adam(parts, FINE_LR), BUDGET - EXPLORING, tail)

    torch.testing.assert_close(mine, rest(by_torch(theta, target, explore, EXPLORING)), rtol=1e-3, atol=1e-3)
    other = rest(by_torch(theta, target, lambda parts: explore(parts, 0.01), EXPLORING))
    assert (mine - other).abs().max() > 1e-2


def test_with_mass_everything_explores(theta, target):
    """By the library with its preconditioner; without it, or with positions exploring alone, it is another fit."""
    budget, point = 50, Setting(0.005, 1e-3)
    exploring = round(0.6 * budget)
    mine, _ = fit(METHODS["mass-falling"], [point], theta, target[None], budget=budget, seeds=[3])

    def rest(**options):
        def explore(parts):
            groups = [{"params": parts[:1]}, {"params": parts[1:], "explore": options.pop("everything", True)}]
            given = {"exploration_steps": exploring, "num_data": 1.0, "temperature": point.temperature, "seed": 3}
            return CTLD(groups, point.lr, MOMENTUM, tempering=FallingTemperature(exploring), **given | options)

        def tail(step):
            return 0.5 * (1 + math.cos(math.pi * step / (budget - exploring)))

        explored = by_torch(theta, target, explore, exploring)
        return by_torch(explored, target, lambda parts: torch.optim.Adam(parts, FINE_LR), budget - exploring, tail)

    torch.testing.assert_close(mine, rest(preconditioner=MASS), rtol=1e-3, atol=1e-3)
    assert (mine - rest()).abs().max() > 1e-2
    assert (mine - rest(preconditioner=MASS, everything=False)).abs().max() > 1e-2


def test_noise_moves_positions_by_the_temperature(theta, target):
    """After one step, the end of a fall, noise has moved positions alone, by 2 lr T in the mean square."""
    rows, targets, point = theta.expand(400, -1, -1), target.expand(400, -1, -1), Setting(0.05, 0.01)
    plain, noisy = (
        fit(METHODS[name], [point] * 400, rows, targets, budget=1, seeds=range(400))[0]
        for name in ("adam", "noisy-adam")
    )
    assert torch.equal(noisy[:, 2:], plain[:, 2:])
    moved = float((noisy - plain)[:, :2].square().mean()) / (2 * 0.05 * 0.01 * COLD)
    assert abs(moved - 1) < 4 * math.sqrt(2 / 7200)  # 7,200 squares of normal numbers, each of variance two
    assert abs(2 * moved - 1) > 4 * math.sqrt(2 / 7200)  # without the 2 it would show


def test_relocation_takes_the_weakest_to_the_worst(target, theta):
    row = theta[0].clone()
    row[5:, 4] = 1e-6  # invisible
    errors = gaussians.draw(row) - target
    worst = int(errors.square().sum(0).argmax())
    assert relocate(row, errors, 0.1).tolist() == [4]
    assert row[:2, 4].tolist() == pytest.approx([3 * gaussians.X[worst].item(), 3 * gaussians.Y[worst].item()])
    after = (gaussians.draw(row) - target).square().sum(0)[worst]
    assert after < 0.5 * errors.square().sum(0)[worst]
    kept = [each for each in range(COUNT) if each != 4]
    assert torch.equal(row[:, kept], theta[0][:, kept])


def test_a_row_that_diverges_disturbs_no_other(theta, target):
    for name in METHODS:
        points = [Setting(0.05, 0.0), Setting(1e20, 0.0)]
        both, losses = fit(
            METHODS[name], points, theta.repeat(2, 1, 1), target.repeat(2, 1, 1), budget=40, seeds=[1, 2]
        )
        alone, _ = fit(METHODS[name], points[:1], theta, target[None], budget=40, seeds=[1])
        torch.testing.assert_close(both[:1], alone)
        assert torch.isfinite(losses[0])
        assert not torch.isfinite(losses[1])
        assert both[1].isfinite().all()  # it stays where it is


def test_every_method_has_nine_points():
    points = [(rate, level) for rate in range(len(LRS)) for level in range(LEVELS)]
    for method in METHODS:
        assert len({setting(method, *point) for point in points}) == 9


# ---- runs ----


@pytest.mark.slow
def test_the_study_runs_goes_on_and_packs_what_its_cells_hold(tmp_path, capsys):
    cells.main(STUDY, ["--scale", "smoke", "--dir", str(tmp_path)])
    assert "| CTLD, falling T, then Adam against Adam |" in capsys.readouterr().out
    before = cells.read(tmp_path, "k9/ctld-falling")
    (tmp_path / "k9/ctld-falling.json").write_text(json.dumps({"tuning": before["tuning"]}))
    cells.main(STUDY, ["--scale", "smoke", "--dir", str(tmp_path), "--only", "*/ctld-falling"])
    assert cells.read(tmp_path, "k9/ctld-falling")["final"] == before["final"]
    fits = tables.load(tmp_path / "results")[9].query("method == 'ctld-falling' and stage == 'final'")
    assert {row.picture: [row.db] for row in fits.itertuples()} == before["final"]["db"]
    assert (tmp_path / "results/pictures.jpg").stat().st_size > 10_000


def made_up(differences):
    """Fits of six pictures in which CTLD with falling T differs from all others by this."""
    rows = [
        {"method": method, "stage": "final", "picture": name, "start": 0, "rate": 0, "level": 0, "db": 20.0 + place}
        for method in METHODS
        for place, name in enumerate(pictures.FINAL)
    ]
    frame = pd.DataFrame(rows)
    frame.loc[frame["method"] == "ctld-falling", "db"] += np.array(differences)
    return frame


def verdict(differences, results=None):
    found = tables.compare(results or {64: made_up(differences)}).set_index(["k", "method", "against"])
    return found.loc[(64, "ctld-falling", "adam")]


def test_verdicts():
    assert verdict([1.0, 1.1, 0.9, 1.2, 0.8, 1.0])["verdict"] == "ahead"
    assert verdict([-1.0, -1.1, -0.9, -1.2, -0.8, -1.0])["verdict"] == "behind"
    assert verdict([0.1, -0.1, 0.05, -0.05, 0.02, -0.02])["verdict"] == "tie"
    assert verdict([2.0, -2.0, 3.0, -1.0, 0.0, 1.0])["verdict"] == "undecided"


def test_what_was_planned_later_is_corrected_by_itself():
    made = made_up([1.0, 1.1, 0.9, 1.2, 0.8, 1.0])
    alone, with_later = verdict((), {64: made}), verdict((), {64: made, 256: made})
    assert with_later["corrected_p"] == alone["corrected_p"]
    assert verdict((), {64: made, 128: made})["corrected_p"] > alone["corrected_p"]


# ---- what is stored ----


def test_published_tables_are_those_of_the_stored_fits():
    for name, frame in tables.frames(tables.load(STORED)).items():
        published = (STORED / "tables" / f"{name}.csv").read_text(encoding="utf-8")
        assert frame.to_csv(index=False, float_format="%.5g") == published, name


def test_stored_fits_are_whole():
    results = tables.load(STORED)
    assert tuple(results) == COUNTS["laptop"]
    for fits in results.values():
        sizes = fits.groupby(["method", "stage"]).size().unstack()
        assert set(sizes["tuning"]) == {9 * len(pictures.TUNING)}
        assert set(sizes["final"]) == {SIZES["laptop"].seeds * len(pictures.FINAL)}
    for stamp in json.loads((STORED / "environments.json").read_text()):
        assert stamp["dirty"] is False
        assert len(stamp["commit"]) == 40
    # the point that was chosen has the highest mean in tuning
    chosen = tables.chosen(results).set_index(["k", "method"])["tuning_db"]
    for count, fits in results.items():
        for method, own in fits.groupby("method"):
            rate, level = own[own["stage"] == "final"][["rate", "level"]].iloc[0]
            tuned = own[(own["stage"] == "tuning") & (own["rate"] == rate) & (own["level"] == level)]["db"].mean()
            assert tuned == pytest.approx(chosen[count, method], abs=1e-12)
