"""Each example of the gallery runs; `make docs` runs them too, and shows what they draw."""

import runpy
from pathlib import Path

import matplotlib
import pytest
import torch

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted((ROOT / "examples" / "gallery").glob("plot_*.py"))


@pytest.mark.slow
@pytest.mark.xdist_group("examples")
@pytest.mark.filterwarnings("ignore:FigureCanvasAgg is non-interactive", "ignore:Animation was deleted")
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_it_runs(example, capsys):
    matplotlib.use("Agg")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        runpy.run_path(str(example), run_name="__main__")
    finally:
        torch.set_num_threads(threads)
        matplotlib.pyplot.close("all")
    printed = capsys.readouterr().out
    assert printed.strip()
    assert "nan" not in printed


def test_the_gallery_is_whole():
    topics = {"swap_sgd", "ensemble_images", "ensemble_text", "regression", "out_of_distribution", "multimodal"}
    topics |= {"own_tempering", "ddp", "resume"}
    assert {path.stem.removeprefix("plot_") for path in EXAMPLES} == topics
    order = runpy.run_path(str(ROOT / "docs" / "reading_order.py"))["ORDER"]
    assert sorted(order) == sorted(topics)
