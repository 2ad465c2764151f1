"""Model, data, loss and metric of each experiment; nothing about optimizers. `build` makes the one that a run asks for."""

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctld_lab import data
from ctld_lab.streams import numpy_generator
from ctld_lab.workloads.char_lstm import CharLSTM
from ctld_lab.workloads.mnist_mlp import MnistMLP
from ctld_lab.workloads.sda import SdA
from ctld_lab.workloads.workload import Workload, judged, mean_state

__all__ = ["CharLSTM", "MnistMLP", "SdA", "Workload", "build", "judged", "mean_state"]


def __getattr__(name: str) -> Any:
    if name == "OneModel":  # until 0.4
        raise ImportError("ctld_lab.workloads.OneModel is ctld_lab.workloads.Workload now")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


OWN: dict[str, Callable[[dict[str, Any]], Workload]] = {}
"""Those of a study of the user's own, by name: `ctld_lab.studies.load`."""


def build(config: dict[str, Any]) -> Workload:
    """Make the workload of a run. While tuning, what is held out comes from the training data; test data stay unseen."""
    options = dict(config["workload"])
    name = options.pop("name")
    if name in OWN:
        return OWN[name](config)
    tuning = config["role"] == "tuning"
    shared: dict[str, Any] = {"seed": int(config["seed"]), "held_out_name": "valid" if tuning else "test"}
    if name == "sda":
        images = load_images(config["data"]["name"], config["data"]["sha256"])
        train, held_out = images.train, images.test
        if tuning:
            kept = len(train) - len(train) // 12  # 5,000 of MNIST's 60,000
            train, held_out = train[:kept], train[kept:]
        return SdA(train, held_out, **shared, **options)
    if name == "mnist_mlp":
        images = load_images(config["data"]["name"], config["data"]["sha256"])
        return _mnist_mlp(images, tuning=tuning, **shared, **options)
    if name == "char_lstm":
        text, alphabet = load_text(config["data"]["name"], config["data"].get("path"), config["data"]["sha256"])
        characters = options.pop("train_characters", None)
        held_out = text.valid if tuning else text.test
        return CharLSTM(text.train[:characters], held_out, alphabet=alphabet, **shared, **options)
    raise ValueError(
        f"there is no workload {name!r}; known: {', '.join(('sda', 'mnist_mlp', 'char_lstm', *OWN))}. Runs of a study of your "
        "own go on by its own command, ctld run FILE.py"
    )


def _mnist_mlp(
    images: data.Images,
    *,
    tuning: bool,
    seed: int,
    valid_images: int = 0,
    train_images: int | None = None,
    split_by_seed: bool = False,
    **options: Any,
) -> MnistMLP:
    """The last `valid_images` of the training set are never trained on: final runs have as many data as those of tuning.

    Of the others, `train_images` are drawn, others for each seed; all of them, if left out. `split_by_seed` first deals the
    images out anew among training and test set: then a seed is a replicate of the data too.
    """
    pixels, labels = [images.train, images.test], [images.train_labels, images.test_labels]
    if split_by_seed:
        cut = len(images.train)
        order = numpy_generator(seed, "subset", 1).permutation(cut + len(images.test))
        pixels, labels = ([array[order[:cut]], array[order[cut:]]] for array in map(np.concatenate, (pixels, labels)))
    rest = len(pixels[0]) - valid_images
    count = rest if train_images is None else train_images
    if not 0 < count <= rest:
        raise ValueError(
            f"train_images = {train_images} and valid_images = {valid_images} do not fit {images.name}, which has "
            f"{len(images.train)} to train on"
        )
    rows = numpy_generator(seed, "subset").permutation(rest)[:count]
    held_out = (pixels[0][rest:], labels[0][rest:]) if tuning else (pixels[1], labels[1])
    return MnistMLP((pixels[0][rows], labels[0][rows]), held_out, seed=seed, **options)


@lru_cache(maxsize=1)
def load_images(name: str, sha256: str) -> data.Images:
    """Load the images that the study began with, once for all runs of a process."""
    images = data.load_images(name)
    _check(name, images.sha256, sha256)
    return images


@lru_cache(maxsize=1)
def load_text(name: str, path: str | None, sha256: str) -> tuple[data.Text, NDArray[np.uint8]]:
    """Load a text, as `load_images` does, with the bytes that occur in it."""
    text = data.load_text(name) if path is None else data.load_text_file(Path(path))
    _check(path or name, text.sha256, sha256)
    occurs = np.zeros(256, dtype=bool)
    for part in (text.train, text.valid, text.test):
        occurs[part] = True
    return text, np.flatnonzero(occurs).astype(np.uint8)


def _check(name: str, found: str, expected: str) -> None:
    if found != expected:
        raise data.DataError(
            f"{name} has changed since the study began: SHA-256 {found[:16]}…, not {expected[:16]}…; "
            "bring the old data back, or begin anew in another --dir"
        )
