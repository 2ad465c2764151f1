"""The page on frameworks has a link to every example."""

from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_every_example_has_a_link():
    text = (ROOT / "docs" / "integrations.md").read_text(encoding="utf-8")
    examples = sorted(path.name for path in (ROOT / "examples" / "integrations").glob("*_digits.py"))
    assert examples
    assert [name for name in examples if f"examples/integrations/{name})" not in text] == []
