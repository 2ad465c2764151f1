"""Tests against the real frameworks: `make integrations` installs them and runs this folder."""

import pytest


def pytest_collection_modifyitems(items):
    """Their own warnings are theirs; ours are errors, unless a test expects them."""
    for item in items:
        if "integrations" in item.path.parts:
            item.add_marker(pytest.mark.filterwarnings("ignore"))
            item.add_marker(pytest.mark.filterwarnings("error::ctld.TemperatureWarning"))
            item.add_marker(pytest.mark.filterwarnings("error::ctld.integrations.advice.SettingsWarning"))


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    """Frameworks leave logs where they run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
