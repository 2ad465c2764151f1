"""The documents: code that runs, links that lead somewhere, numbers that are those of the stored runs."""

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "research").rglob("*.md")])


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(document):
    for target in re.findall(r"\]\((?!https?:)([^)#]*)(?:#[^)]*)?\)", document.read_text()):
        made = target.startswith(("gallery/", "reference/"))  # by `make docs`
        assert not target or made or (document.parent / target).exists(), target


def test_anchors_exist():
    for document in DOCUMENTS:
        for target, anchor in re.findall(r"\]\(([^)#:]*)#([^)]*)\)", document.read_text()):
            headings = re.findall(
                r"^#+ (.*)$", ((document.parent / target) if target else document).read_text(), re.MULTILINE
            )
            slugs = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
            assert anchor in slugs, f"{document.name}: {target}#{anchor}"


@pytest.fixture(scope="module")
def tables():
    """docs/tables.py, which is a script and not on the path."""
    specification = importlib.util.spec_from_file_location("tables_of_documents", ROOT / "docs" / "tables.py")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def test_tables_are_the_stored_ones(tables):
    """After a study has been run again: `python docs/tables.py`."""
    for document in tables.PLACES:
        assert (ROOT / document).read_text(encoding="utf-8") == tables.rendered(document), document


def test_a_changed_digit_would_be_seen(tables, tmp_path, monkeypatch):
    """The twin: a table with one digit changed is not the stored one."""
    text = (ROOT / "docs" / "paper.md").read_text(encoding="utf-8")
    (tmp_path / "docs").mkdir()
    digit = re.search(r"\| SGD-M \| 0\.\d\d(\d)", text).start(1)
    changed = f"{text[:digit]}{(int(text[digit]) + 1) % 10}{text[digit + 1 :]}"
    assert changed != text
    (tmp_path / "docs" / "paper.md").write_text(changed, encoding="utf-8")
    monkeypatch.setattr(tables, "ROOT", tmp_path)
    assert tables.rendered("docs/paper.md") == text
