"""Loading: images with labels, and text as bytes, each split the same way every time."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ctld_lab.data import containers, embedded, idx
from ctld_lab.data.locate import fetch_command, find
from ctld_lab.data.table import DATASETS, DataError, DataFile, DataSet, dataset_named

SMALLEST_TEXT = 1_000  # bytes: 50 each are left to validate and to test
LARGEST_TEXT = 4 * 10**9  # bytes; it is read into memory
_DIGITS_TO_TRAIN_ON = 4_000


@dataclass(frozen=True)
class Images:
    """Pixels of shape (n, 784) and labels 0 to 9 of shape (n,), all unsigned bytes."""

    name: str
    sha256: str
    train: NDArray[np.uint8]
    train_labels: NDArray[np.uint8]
    test: NDArray[np.uint8]
    test_labels: NDArray[np.uint8]


@dataclass(frozen=True)
class Text:
    """Bytes as symbols: the first 90 % to train on, 5 % to validate, 5 % to test. The three are views of one buffer."""

    name: str
    sha256: str
    train: NDArray[np.uint8]
    valid: NDArray[np.uint8]
    test: NDArray[np.uint8]


def load_images(name: str, data_dir: Path | None = None) -> Images:
    """A data set of images, checked against its SHA-256."""
    dataset = dataset_named(name, "images")
    if dataset.embedded:
        images, labels, sha256 = embedded.digits()
        cut = _DIGITS_TO_TRAIN_ON
        return Images(name, sha256, images[:cut], labels[:cut], images[cut:], labels[cut:])
    paths = [find(dataset, file, data_dir) for file in dataset.files]
    contents = [_read_known(dataset, file, path, data_dir) for file, path in zip(dataset.files, paths, strict=True)]
    train, train_labels = idx.parse_pair(
        contents[0], contents[1], images_source=str(paths[0]), labels_source=str(paths[1])
    )
    test, test_labels = idx.parse_pair(
        contents[2], contents[3], images_source=str(paths[2]), labels_source=str(paths[3])
    )
    return Images(name, identify(name), train, train_labels, test, test_labels)


def load_text(name: str, data_dir: Path | None = None) -> Text:
    """A data set of text, checked against its SHA-256 if it has files."""
    dataset = dataset_named(name, "text")
    if dataset.embedded:
        content = embedded.help_topics()
        # A copy, because numpy will not write to bytes, and torch warns of arrays that cannot be written to.
        return _split(name, hashlib.sha256(content).hexdigest(), np.frombuffer(content, np.uint8).copy())
    (file,) = dataset.files
    return _split(name, file.sha256, _read_known(dataset, file, find(dataset, file, data_dir), data_dir))


def load_text_file(path: Path) -> Text:
    """Any file, taken as bytes; its name is the path."""
    path = Path(path)
    size = _checked_text_size(path)
    # Whatever the name ends in, the bytes are taken as they are.
    content, sha256 = containers.read(path, size=size, plain=True)
    return _split(str(path), sha256, content)


def identify(name_or_path: str | Path) -> str:
    """The SHA-256 that loading would report, without loading: from the table, or from one pass over the file.

    A string that names a data set is that data set; a Path is always a file.
    """
    if isinstance(name_or_path, str) and name_or_path in DATASETS:
        known = DATASETS[name_or_path].sha256
        return known if known is not None else hashlib.sha256(embedded.help_topics()).hexdigest()
    path = Path(name_or_path)
    if isinstance(name_or_path, str) and not path.exists():
        raise DataError(f"{name_or_path!r} is neither a file nor one of the data sets {', '.join(DATASETS)}")
    _checked_text_size(path)
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from error


def _read_known(dataset: DataSet, file: DataFile, path: Path, data_dir: Path | None) -> NDArray[np.uint8]:
    remedy = f"To replace it: {fetch_command(dataset, data_dir, force=True)}"
    try:
        content, found = containers.read(path, size=file.size, member=file.name)
    except DataError as damage:
        raise DataError(f"{damage}.\n{remedy}") from damage
    if found != file.sha256:
        raise DataError(
            f"{path}: is damaged, or is another file: SHA-256 {found}, expected {file.sha256} "
            f"(of the {file.size:,} plain bytes).\n{remedy}"
        )
    return content


def _checked_text_size(path: Path) -> int:
    size = containers.regular_file_size(path)
    if size == 0:
        raise DataError(f"{path}: is empty; give a text of at least {SMALLEST_TEXT:,} bytes")
    if size < SMALLEST_TEXT:
        raise DataError(f"{path}: has {size} bytes, too few to split; give a text of at least {SMALLEST_TEXT:,}")
    if size > LARGEST_TEXT:
        raise DataError(f"{path}: has {size:,} bytes, too many; give a text of at most {LARGEST_TEXT:,}")
    return size


def _split(name: str, sha256: str, content: NDArray[np.uint8]) -> Text:
    train_end, valid_end = len(content) * 90 // 100, len(content) * 95 // 100
    return Text(name, sha256, content[:train_end], content[train_end:valid_end], content[valid_end:])
