"""What every test starts from: one thread, so that runs repeat to the bit whatever the machine, and a fixed seed.

What starts processes or samples for long is marked slow, by its place: `make quick` leaves it out, `make test` does not.
"""

import os
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent
SLOW = {
    *(
        "distributed",
        "torture",
        "statistical",
        "crosschecks",
        "test_examples.py",
        "test_benchmarks.py",
        "test_chains.py",
    ),
    *(f"lab/test_{name}.py" for name in ("studies", "own_study", "ranks", "faults", "cli_signals", "executors")),
    *("lab/test_ensemble_study.py", "lab/test_tempering_study.py", "optimizers/test_elastic.py"),
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        place = item.path.relative_to(HERE)
        if SLOW & {str(place), str(place.parent), place.parts[0]}:
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session", autouse=True)
def _no_waiting_for_the_disk():
    """What is written is not forced to the disk, milliseconds a file: no test cuts the power, and one that did not return
    from there would be seen where processes are killed, which have the real one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: None)
        yield


@pytest.fixture(autouse=True)
def _repeatable() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(20171204)
