"""The pages on frameworks: links that lead somewhere, anchors that exist, and code that is in the examples, line by line."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "integrations"
PAGES = sorted(FOLDER.glob("*.md"))
EXAMPLES = sorted((ROOT / "examples" / "integrations").glob("*_digits.py"))


def slugs(page):
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_links_and_anchors(page):
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)", page.read_text(encoding="utf-8")):
        there = (page.parent / target).resolve() if target else page
        assert there.exists(), target
        assert not anchor or anchor in slugs(there), f"{target}#{anchor}"


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if page.name != "README.md" and "```python" in page.read_text(encoding="utf-8")],
    ids=lambda path: path.name,
)
def test_code_is_the_examples(page):
    source = {line.strip() for example in EXAMPLES for line in example.read_text(encoding="utf-8").splitlines()}
    for quoted in re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
        for line in quoted.splitlines():
            assert line.strip() in source | {"", "..."}, line


def test_every_example_has_a_link():
    text = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert all(f"(../../examples/integrations/{example.name})" in text for example in EXAMPLES)
