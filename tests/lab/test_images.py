"""The study of images: gradients, that a row is torch's Adam or the library's CTLD, and that the page says what is stored."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from ctld import CTLD
from ctld.tempering.falling import FallingTemperature
from ctld_lab.cli import main
from ctld_lab.files import RecordError, read_json, read_of
from ctld_lab.images import gaussians, pictures, show
from ctld_lab.images.methods import (
    COLD,
    EVERY_METHOD,
    FINE_LR,
    LEVELS,
    LRS,
    MASS,
    METHODS,
    MOMENTUM,
    Setting,
    fit,
    relocate,
    setting,
)
from ctld_lab.images.study import about
from ctld_lab.report.markdown import document
from ctld_lab.studies.images import COUNTS, SIZES, execute
from ctld_lab.traps.study import cell_path

ROOT = Path(__file__).parents[2]
STORED = ROOT / "results" / "images"
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
    mine, _ = fit(EVERY_METHOD["mass-falling"], [point], theta, target[None], budget=budget, seeds=[3])

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
    for name in EVERY_METHOD:
        points = [Setting(0.05, 0.0), Setting(1e20, 0.0)]
        both, losses = fit(
            EVERY_METHOD[name], points, theta.repeat(2, 1, 1), target.repeat(2, 1, 1), budget=40, seeds=[1, 2]
        )
        alone, _ = fit(EVERY_METHOD[name], points[:1], theta, target[None], budget=40, seeds=[1])
        torch.testing.assert_close(both[:1], alone)
        assert torch.isfinite(losses[0])
        assert not torch.isfinite(losses[1])
        assert both[1].isfinite().all()  # it stays where it is


def test_every_method_has_nine_points():
    points = [(rate, level) for rate in range(len(LRS)) for level in range(LEVELS)]
    for method in EVERY_METHOD.values():
        assert len({setting(method, *point) for point in points}) == 9


# ---- runs ----


def test_a_study_is_run_gone_on_with_and_shown(tmp_path, capsys):
    with pytest.raises(SystemExit) as left:
        main(["run", "images", "--scale", "smoke", "--dir", str(tmp_path)])
    assert left.value.code == 0
    path = cell_path(tmp_path, "k9", "ctld-falling")
    before = read_json(path)
    assert len(before["tuning"]["trials"]) == 9
    path.unlink()
    capsys.readouterr()
    execute("smoke", tmp_path)
    assert [line.split(" is ")[0] for line in capsys.readouterr().out.splitlines()] == [
        "k9 ctld-falling: tuning",
        "k9 ctld-falling: final",
    ]
    after = read_json(path)
    assert [after[stage] for stage in ("tuning", "final")] == [before[stage] for stage in ("tuning", "final")]
    assert (tmp_path / "pictures.png").stat().st_size > 10_000
    with pytest.raises(RecordError, match="give another directory, or remove it"):
        read_of(path, about(9, "adam", SIZES["smoke"]))


def test_what_is_not_known_is_refused(tmp_path):
    with pytest.raises(ValueError, match="no method 'adan'; known are adam"):
        execute("smoke", tmp_path, ["adan"])
    with pytest.raises(RecordError, match="no number of Gaussians is complete"):
        show.write(tmp_path)


def made_up(differences):
    """Results of six pictures in which CTLD with falling T differs from all others by this."""
    names = pictures.FINAL
    gain = dict.fromkeys(METHODS, np.zeros(6)) | {"ctld-falling": np.array(differences)}
    db = {
        method: {name: [20.0 + place + gain[method][place]] for place, name in enumerate(names)} for method in METHODS
    }
    return {64: {method: {"final": {"db": db[method]}} for method in METHODS}}


def test_verdicts():
    def verdict(differences):
        return show.compare(made_up(differences))[64, "ctld-falling", "adam"][2]

    assert verdict([1.0, 1.1, 0.9, 1.2, 0.8, 1.0]) == "ahead"
    assert verdict([-1.0, -1.1, -0.9, -1.2, -0.8, -1.0]) == "behind"
    assert verdict([0.1, -0.1, 0.05, -0.05, 0.02, -0.02]) == "tie"
    assert verdict([2.0, -2.0, 3.0, -1.0, 0.0, 1.0]) == "undecided"


# ---- what is stored ----


def test_the_document_says_what_is_stored():
    page = (ROOT / "docs" / "images.md").read_text(encoding="utf-8")
    assert document(page, show.texts(show.load(STORED), show.load(STORED, EVERY_METHOD))) == page


def test_the_findings_are_those_of_the_tables():
    """The sentences of docs/images.md under "What came out"."""
    results = show.load(STORED)
    found = {place[1:]: each for place, each in show.compare(results).items() if place[0] == 64}
    assert found["noisy-adam", "adam"][2] == "tie"
    assert [pair for pair, (_, p, _) in found.items() if p < 0.05] == [("ctld-falling", "relocation")]
    assert found["ctld-falling", "relocation"][2] == "behind"
    db = {method: show.decibels(cell) for method, cell in results[64].items()}
    assert all(max(db, key=lambda method: db[method][name]) == "relocation" for name in pictures.FINAL)
    assert sum(db["ctld-falling"][name] > db["ctld-zero"][name] for name in pictures.FINAL) == 3
    gains = {name: db["relocation"][name] - db["adam"][name] for name in pictures.FINAL}
    assert max(gains, key=gains.__getitem__) == "hubble"
    assert round(gains["hubble"], 2) == 0.92
    trials = {
        method: [np.mean(trial["db"]) for trial in cell["tuning"]["trials"]] for method, cell in results[64].items()
    }
    assert round(max(trials["noisy-adam"]) - max(trials["adam"]), 2) == 0.14
    assert max(trials["ctld-zero"][6:]) < 17 < 28 < min(trials["adam"][6:8])
    more = {place[1:]: each for place, each in show.compare(results).items() if place[0] == 128}
    assert not [pair for pair, (_, p, _) in more.items() if p < 0.05]
    assert [pair for pair, (_, _, word) in more.items() if word == "tie"] == [
        ("ctld-falling", "ctld-constant"),
        ("noisy-adam", "adam"),
    ]
    assert round(more["ctld-falling", "relocation"][0].mean, 2) == -1.06
    assert round(more["ctld-falling", "relocation"][1], 3) == 0.055
    assert round(more["relocation", "adam"][0].mean, 2) == 0.71
    db = {method: show.decibels(cell) for method, cell in results[128].items()}
    assert all(max(db, key=lambda method: db[method][name]) == "relocation" for name in pictures.FINAL)


def test_the_findings_at_a_lower_lr_and_with_mass():
    """Ten comparisons that were planned later, corrected by themselves."""
    found = show.compare(show.load(STORED, EVERY_METHOD), show.ADDED)
    assert len(found) == 10
    told = {place: (f"{each.mean:+.2f}", word) for place, (each, _, word) in found.items()}
    assert told[64, "low-falling", "low-zero"] == ("+0.07", "undecided")
    assert told[128, "low-falling", "low-zero"] == ("-0.22", "undecided")
    assert told[64, "mass-falling", "mass-zero"] == ("+0.10", "undecided")
    assert told[128, "mass-falling", "mass-zero"] == ("+0.03", "tie")
    assert [told[count, "low-falling", "adam"] for count in (64, 128)] == [("-0.22", "undecided"), ("-0.51", "behind")]
    assert [told[count, "mass-falling", "adam"] for count in (64, 128)] == [("-0.28", "behind"), ("-0.48", "behind")]
    assert [told[count, "mass-falling", "relocation"][0] for count in (64, 128)] == ["-0.68", "-1.19"]
    page = (ROOT / "docs" / "images.md").read_text(encoding="utf-8")
    assert "+0.07 and −0.22 dB at the lower lr, +0.10 and +0.03 with mass" in page


def test_the_findings_with_256():
    results = show.load(STORED)
    found = {place[1:]: each for place, each in show.compare(results).items() if place[0] == 256}
    words = {pair: word for pair, (_, _, word) in found.items() if word != "undecided"}
    assert words == {
        ("ctld-falling", "relocation"): "behind",
        ("ctld-falling", "ctld-constant"): "tie",
        ("noisy-adam", "adam"): "tie",
        ("noisy-adam", "relocation"): "behind",
        ("relocation", "adam"): "ahead",
    }
    assert round(found["relocation", "adam"][0].mean, 2) == 0.66
    assert round(found["relocation", "adam"][1], 3) == 0.042
    db = {method: show.decibels(cell) for method, cell in results[256].items()}
    assert all(max(db, key=lambda method: db[method][name]) == "relocation" for name in pictures.FINAL)
    gains = {name: db["ctld-falling"][name] - db["ctld-zero"][name] for name in pictures.FINAL}
    assert round(gains.pop("hubble"), 1) == 3.7
    assert sum(gains.values()) < 0
    starts = {method: results[256][method]["final"]["db"]["hubble"] for method in ("ctld-zero", "ctld-falling")}
    assert max(starts["ctld-zero"]) < min(starts["ctld-falling"])


def test_what_was_planned_later_is_corrected_by_itself():
    results = {count: show.load(STORED)[64] for count in (64, 128, 256)}
    found = show.compare(results)
    once, twice = (found[count, "ctld-falling", "relocation"] for count in (256, 64))
    assert once[0] == twice[0]
    assert twice[1] == pytest.approx(2 * once[1])  # the smallest of seven, and of twice seven


def test_stored_runs_are_whole():
    results = show.load(STORED)
    assert results
    for count, cells in results.items():
        assert count in COUNTS["laptop"]
        for method, cell in cells.items():
            assert cell | about(count, method, SIZES["laptop"]) == cell
            assert len(cell["tuning"]["trials"]) == 9
            assert {len(values) for values in cell["final"]["db"].values()} == {SIZES["laptop"].seeds}
            assert cell["environment"]["dirty"] is False
            assert len(cell["environment"]["commit"]) == 40
            assert cell["environment"]["command"].startswith("ctld run images")


def test_a_stored_picture_has_its_stored_error():
    """The Gaussians that the figure shows are those of the first start, to the four digits that are kept of them."""
    for count, cells in show.load(STORED).items():
        for cell in cells.values():
            target, deviation = gaussians.normalised(pictures.load("flower"))
            theta = torch.tensor(cell["final"]["theta"]["flower"])
            again = gaussians.psnr(gaussians.gradient(theta[None], target[None])[0][0], count, deviation)
            assert again == pytest.approx(cell["final"]["db"]["flower"][0], abs=0.1)
