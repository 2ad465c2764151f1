"""The documents: code that runs, links that lead somewhere, numbers that are those of the stored runs."""

import importlib.util
import re
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "research").rglob("*.md")])


@pytest.mark.slow
def test_the_readmes_snippet_prints_what_it_says(capsys):
    """SGD against the ensemble, on real digits: the ensemble is ahead, by as much as the README has it."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (snippet,) = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        exec(compile(snippet, "README.md", "exec"), {})
    finally:
        torch.set_num_threads(threads)
    printed = [float(value) for value in re.findall(r"nll ([\d.]+)", capsys.readouterr().out)]
    claimed = [float(value) for value in re.findall(r"`\w+: nll ([\d.]+), error", readme)]
    assert len(printed) == len(claimed) == 2
    assert printed[1] < printed[0]
    # A rounding error grows: nine runs whose first weights differed by a millionth had a standard deviation of 0.0039 in the
    # ensemble's nll, 0.0005 in SGD's. Another machine is such a run: four deviations, and half a digit of what is claimed.
    assert printed[0] == pytest.approx(claimed[0], abs=0.007)
    assert printed[1] == pytest.approx(claimed[1], abs=0.021)


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
