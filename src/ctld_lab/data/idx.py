"""The IDX format of MNIST: two zero bytes, a type, the number of dimensions, each as a big-endian 32-bit count, the data."""

import math
import struct

import numpy as np
from numpy.typing import NDArray

from ctld_lab.data.table import DataError

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
