"""The gallery has what it should; `make docs` runs each example, where a warning is an error."""

import runpy
from pathlib import Path

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted((ROOT / "examples" / "gallery").glob("plot_*.py"))


def test_the_gallery_is_whole():
    topics = {"swap_sgd", "ensemble_images", "ensemble_text", "regression", "out_of_distribution", "multimodal"}
    topics |= {"bad_minima", "posterior", "own_tempering", "ddp", "resume"}
    assert {path.stem.removeprefix("plot_") for path in EXAMPLES} == topics
    order = runpy.run_path(str(ROOT / "docs" / "reading_order.py"))["ORDER"]
    assert sorted(order) == sorted(topics)
