"""What every test starts from: one thread, so that runs repeat to the bit whatever the machine, and a fixed seed.

What starts processes or samples for long is marked slow, by its place: `make quick` leaves it out, `make test` does not.
"""

import os
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

# Read when triton is imported, which other people's packages do before tests/stepping/test_triton.py can say it.
os.environ.setdefault("TRITON_INTERPRET", "1")

HERE = Path(__file__).parent
SLOW = {
    *("distributed", "torture", "statistical", "crosschecks"),
    *("research/test_rivals_between_modes.py", "research/test_rivals_laws.py"),
    *("test_examples.py", "test_benchmarks.py", "test_chains.py", "test_clipping.py", "test_documents.py"),
    *("ensembles/test_prediction.py", "optimizers/test_live_thermometers.py"),
    *("ensembles/test_ensembles_on_ranks.py", "optimizers/test_distributed.py", "optimizers/test_elastic.py"),
    *(f"lab/test_{name}.py" for name in ("check", "cli_signals", "faults", "flatness_command", "own_study")),
    *(f"lab/test_{name}.py" for name in ("executors", "executors_ray", "report_page", "report_published", "timing")),
    *(f"research/test_{name}.py" for name in ("images", "peers", "posterior", "posteriordb", "traps", "traps_tables")),
    *(f"lab/test_{name}.py" for name in ("studies", "double_well_study", "ensemble_study", "tempering_study")),
    *(f"lab/test_{name}.py" for name in ("hostile", "report_tables")),
}
SHARES = ("xdist_group(", 'scope="module"', "functools.cache", "import cache")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Tests of a file go to one worker where they share something that took long to make, else one by one.

    pytest-xdist's own groups, by marks, do nothing with pytest 9.2, which keeps the names of tests elsewhere.
    """
    if config.getvalue("dist") != "loadgroup":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class Together(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return shared_by(nodeid.partition("::")[0]) or nodeid

    return Together(config, log)


@cache
def shared_by(file: str) -> str | None:
    """What its tests have to have one worker for, if anything."""
    text = (HERE.parent / file).read_text(encoding="utf-8")
    if "smoke_study" in text:
        return "smoke studies"
    return file if any(word in text for word in SHARES) else None


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
