"""What `pip install` of a wheel has to bring: run by the Python of a fresh environment, outside of the source tree.

The kernels are there and give the right numbers; an ensemble is trained, predicts and is measured, with torch and numpy alone.
"""

import importlib.metadata
import sys
from pathlib import Path

import torch

import ctld
from ctld.stepping import native

ROOT = Path(__file__).parents[2]


def main() -> None:
    """Raises an error at the first thing that is missing."""
    assert not Path(ctld.__file__).is_relative_to(ROOT / "src"), f"{ctld.__file__} is the source tree's"
    assert native.LIBRARY.exists(), f"{native.LIBRARY} is missing"
    assert native.load() is not None, "the kernels do not load, or give wrong numbers"
    assert "matplotlib" not in sys.modules
    metadata = importlib.metadata.metadata("ctld")
    assert metadata["Version"] == ctld.__version__
    description = metadata.get_payload()
    assert "## Try it" in description
    assert "](docs/" not in description, "the long description has relative links"
    torch.manual_seed(0)
    inputs = torch.randn(200, 4)
    labels = (inputs.sum(1) > 0).long()
    model = torch.nn.Linear(4, 2)
    ensemble = ctld.Ensemble(model, lr=0.1, num_data=200, total_steps=60, cycles=2, seed=0)
    while not ensemble.done:
        loss = torch.nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        ensemble.step(loss)
    metrics = ensemble.predict(inputs).metrics(labels)
    assert metrics.keys() >= {"nll", "error", "brier", "ece"}
    assert metrics["error"] < 0.1, metrics
    print(f"ctld {ctld.__version__}: {native.LEVELS[native.load().level]} kernels, {metrics}")


if __name__ == "__main__":
    main()
