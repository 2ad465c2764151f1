"""Each study at smoke scale, run once for all tests that look at what it left; and reports that are not drawn."""

import json
import shlex
from pathlib import Path

import pytest
import smoke

from ctld_lab import cli, jobs, studies
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
        patch.setattr(page, "render", lambda plot: json.dumps(as_data(plot)).encode())
        yield


@pytest.fixture
def ctld(capsys):
    """The command, in this process."""

    def call(*words):
        """Exit code, and what was printed. One word is a whole line."""
        with pytest.raises(SystemExit) as leaving:
            cli.main(shlex.split(words[0]) if len(words) == 1 else list(words))
        caught = capsys.readouterr()
        return leaving.value.code, caught.out + caught.err

    return call


@pytest.fixture
def fake_study(monkeypatch, tmp_path):
    """The study "fake" is known, and this process is in a directory of its own, without data."""
    monkeypatch.syspath_prepend(Path(__file__).parent / "fakes")
    for module, names in ((studies, ("get", "names", "describe")), (jobs, ("_set_threads", "environment"))):
        for name in names:
            monkeypatch.setattr(module, name, getattr(module, name))  # so that it is put back
    monkeypatch.setitem(jobs.KINDS, "train", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.chdir(tmp_path)
    import fake_lab

    fake_lab.register()
