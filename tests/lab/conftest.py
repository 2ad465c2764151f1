"""Each study at smoke scale, run once for all tests that look at what it left; and reports that are not drawn."""

import json
from pathlib import Path

import pytest
import smoke

from ctld_lab.report import page
from ctld_lab.report.plots import as_data


@pytest.fixture(scope="session")
def smoke_study(tmp_path_factory):
    """By name. All tests that ask for one have one worker (tests/conftest.py)."""
    made = {}

    def of(name):
        if name not in made:
            made[name] = smoke.run(name, tmp_path_factory.mktemp("smoke") / Path(name).stem)
        return made[name]

    return of


@pytest.fixture(scope="module")
def undrawn():
    """For a module: the data of a figure in its place, which is half the time of a report. test_report_page.py draws all."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(page, "render", lambda plot: (json.dumps(as_data(plot)).encode(), b""))
        yield
