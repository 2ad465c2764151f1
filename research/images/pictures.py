"""Eleven photographs that installed packages bring, as 64 × 64 pixels in colour."""

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

SIDE = 64

_BUNDLED = {
    "china": ("sklearn", "datasets/images/china.jpg"),
    "flower": ("sklearn", "datasets/images/flower.jpg"),
    "hopper": ("matplotlib", "mpl-data/sample_data/grace_hopper.jpg"),
    "astronaut": ("skimage", "data/astronaut.png"),
    "chelsea": ("skimage", "data/chelsea.png"),
    "coffee": ("skimage", "data/coffee.png"),
    "hubble": ("skimage", "data/hubble_deep_field.jpg"),
    "ihc": ("skimage", "data/ihc.png"),
    "motorcycle": ("skimage", "data/motorcycle_left.png"),
    "retina": ("skimage", "data/retina.jpg"),
    "rocket": ("skimage", "data/rocket.jpg"),
}
TUNING = ("china", "chelsea", "coffee", "retina", "rocket")
FINAL = ("astronaut", "flower", "hopper", "hubble", "ihc", "motorcycle")


def load(name: str) -> Tensor:
    """Return the square in the middle of a photograph, averaged over boxes: 3 × 4,096 numbers from 0 to 1."""
    package, file = _BUNDLED[name]
    found = find_spec(package)  # the package is not imported: all we want is its folder
    if found is None or found.submodule_search_locations is None:
        distribution = {"skimage": "scikit-image", "sklearn": "scikit-learn"}.get(package, package)
        raise ModuleNotFoundError(
            f"the picture {name!r} is in {distribution}, not installed: pip install {distribution}"
        )
    with Image.open(Path(found.submodule_search_locations[0]) / file) as image:
        side = min(image.size)
        left, top = (image.width - side) // 2, (image.height - side) // 2
        box = (left, top, left + side, top + side)
        small = image.convert("RGB").resize((SIDE, SIDE), Image.Resampling.BOX, box=box)
    return torch.from_numpy(np.array(small)).float().reshape(-1, 3).T.contiguous() / 255.0
