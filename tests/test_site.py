"""What `make docs` ends with: a link of the site that leads nowhere is found."""

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def links():
    """docs/links.py, which is a script and not on the path."""
    specification = importlib.util.spec_from_file_location("links_of_the_site", ROOT / "docs" / "links.py")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def test_dead_links(links, tmp_path):
    """Of pages, anchors, pictures, and of what lies outside; those to the web are not looked at."""
    (tmp_path / "more").mkdir()
    (tmp_path / "a picture.png").write_bytes(b"")
    whole = '<a href="more/other.html#there"></a><a href="#here"></a><p id="here"><img src="a%20picture.png">'
    (tmp_path / "index.html").write_text(whole + '<a href="https://example.org/x"></a>')
    (tmp_path / "more" / "other.html").write_text('<h1 id="there"></h1><a href="../index.html"></a>')
    assert links.dead_links(tmp_path) == []
    wrong = ["more/none.html", "more/other.html#nowhere", "#gone", "../outside.html"]
    (tmp_path.parent / "outside.html").write_text("")
    (tmp_path / "index.html").write_text(whole + "".join(f'<a href="{link}"></a>' for link in wrong))
    assert links.dead_links(tmp_path) == [f"index.html: {link} leads nowhere" for link in sorted(wrong)]


def test_every_page_has_a_place():
    """Each document is in a table of contents, by name or by pattern: else the build ends with a warning."""
    contents = (ROOT / "docs" / "index.md").read_text(encoding="utf-8").splitlines()
    entries = [line for line in contents if re.fullmatch(r"[\w/*-]+", line)]
    listed = {page for entry in entries for page in (ROOT / "docs").glob(f"{entry}.md")}
    pages = {page for page in (ROOT / "docs").rglob("*.md") if not {"_build", "gallery", "studies"} & set(page.parts)}
    assert {page.relative_to(ROOT / "docs").as_posix() for page in pages - listed} == {"index.md"}
