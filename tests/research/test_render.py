"""Findings in documents: what is rendered is up to date, and the engine finds what is not."""

import json
import sys
from types import ModuleType

import pytest

import render

FINDINGS = {
    "study": "fruit",
    "title": "Fruit",
    "findings": [
        {"id": "apples", "problem": "Apples", "verdict": "ahead", "numbers": "74 % against 34 %"},
        {"id": "pears", "problem": "Pears", "verdict": "tie", "numbers": "0.1 ± 0.2"},
    ],
    "tables": {"all": {"head": ["a", "b"], "rows": [["1", "2"]]}},
}


@pytest.fixture
def research(tmp_path, monkeypatch):
    monkeypatch.setattr(render, "RESEARCH", tmp_path / "research")
    render.write(tmp_path / "research/fruit/findings.json", json.dumps(FINDINGS))
    return tmp_path / "research"


def test_findings_have_links_to_their_study_from_anywhere(research):
    text = render.rendered("<!-- findings: fruit -->\n<!-- end -->", research.parent / "docs")
    assert "| Apples | ahead | [74 % against 34 %](../research/fruit/README.md) |\n| Pears |" in text
    text = render.rendered("<!-- findings: fruit:pears -->\nold\n<!-- end -->", research / "fruit")
    assert "| Pears | tie | 0.1 ± 0.2 |" in text
    assert "Apples" not in text
    assert "old" not in text


def test_tables_are_shown_as_they_are_and_text_around_stays(research):
    text = render.rendered("before\n<!-- findings: fruit/all -->\n<!-- end -->\nafter", research)
    assert text == ("before\n<!-- findings: fruit/all -->\n| a | b |\n| --- | --- |\n| 1 | 2 |\n<!-- end -->\nafter")
    assert render.rendered(text, research) == text


def test_a_finding_that_there_is_not_is_refused(research):
    with pytest.raises(ValueError, match="fruit:plums must name a finding of fruit"):
        render.rendered("<!-- findings: fruit:plums -->\n<!-- end -->", research)


def test_a_changed_finding_makes_documents_outdated(research):
    page = research / "fruit/README.md"
    render.write(page, "<!-- findings: fruit/all -->\n<!-- end -->\n")
    assert render.outdated() == [page]
    render.write(page, render.rendered(page.read_text(), page.parent))
    assert render.outdated() == []


def test_documents_are_up_to_date():
    assert render.outdated() == [], "run: python research/render.py"


@pytest.mark.parametrize("study", render.studies())
def test_findings_are_what_the_stored_tables_say(study):
    stored = (render.RESEARCH / study / "findings.json").read_text(encoding="utf-8")
    assert render.findings_of(study) == json.loads(stored), f"run: python research/render.py {study}"


def test_publishing_replaces_results_findings_and_what_documents_show(research, tmp_path, monkeypatch):
    fruit = ModuleType("fruit")
    fruit.findings = lambda results: (
        FINDINGS | {"tables": {"all": {"head": ["a"], "rows": [[(results / "a.csv").read_text()]]}}}
    )
    monkeypatch.setitem(sys.modules, "fruit", fruit)
    page = research / "fruit/README.md"
    render.write(page, "<!-- findings: fruit/all -->\n<!-- end -->\n")
    for folder, name, text in ((research / "fruit/results", "old.csv", "1"), (tmp_path / "made", "a.csv", "7")):
        render.write(folder / name, text)
    render.publish("fruit", tmp_path / "made")
    assert [path.name for path in (research / "fruit/results").iterdir()] == ["a.csv"]
    assert "| 7 |" in page.read_text()
    assert render.outdated() == []
