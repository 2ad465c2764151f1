"""The table of docs/ensembles.md is that of the stored runs."""

import json
from pathlib import Path

from benchmarks.ensemble_defaults import table

ROOT = Path(__file__).parents[2]


def test_the_table_of_the_defaults_is_the_stored_one():
    stored = json.loads((ROOT / "results" / "ensemble-defaults" / "final.json").read_text(encoding="utf-8"))
    assert stored["missing"] == 0
    assert "\n".join(table(stored)) in (ROOT / "docs" / "ensembles.md").read_text(encoding="utf-8")
