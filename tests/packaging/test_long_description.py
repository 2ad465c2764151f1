"""The long description of the package: what a reader away from the repository can follow."""

import importlib.util
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def hook():
    """hatch_build.py, which is a script and not on the path."""
    specification = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def relative(text):
    return re.findall(r"\]\((?!https?:)[^)]*\)", text)


def test_no_link_is_relative(hook):
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(relative(readme)) > 10
    assert relative(hook.long_description(readme, None)) == []
    absolute = hook.long_description(readme, "https://example.org/ctld/blob/v1")
    assert relative(absolute) == []
    assert "](https://example.org/ctld/blob/v1/docs/figures/cycles.png?raw=true)" in absolute
    assert "(https://example.org/ctld/blob/v1/docs/maths.md#what-the-papers-settings-sample)" in absolute


def test_without_a_place_files_are_named(hook):
    text = "![a picture](p.png) see [Traps](docs/traps.md#where), [LICENSE](LICENSE) and [the paper](https://a.b)."
    assert hook.long_description(text, None) == " see Traps (`docs/traps.md`), `LICENSE` and [the paper](https://a.b)."


def test_versions_agree():
    """Of the package, of what is to be cited, of the changelog's newest entry."""
    import ctld

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["version"] == ctld.__version__
    assert f"\nversion: {ctld.__version__}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    newest = re.search(r"^## \[([\d.]+)\]", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert newest[1] == ctld.__version__
