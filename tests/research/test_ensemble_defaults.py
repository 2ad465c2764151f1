"""The study of the default temperature: what counts, and the published numbers."""

import math
from pathlib import Path

import pytest

import ensemble_defaults

STORED = Path(ensemble_defaults.__file__).parent / "ensemble_defaults" / "results"


@pytest.mark.parametrize(
    ("mine", "word"),
    [
        ([0.90, 0.91, 0.90], "ahead"),
        ([1.10, 1.11, 1.10], "behind"),
        ([1.00, 1.01, 0.99], "tie"),
        ([0.80, 1.30, 1.00], "undecided"),
        ([0.90, math.nan, 0.90], "undecided"),
    ],
)
def test_verdicts(mine, word):
    assert ensemble_defaults.compared(mine, [1.0, 1.0, 1.0])[1] == word


def test_a_run_that_failed_is_counted_and_not_averaged():
    assert ensemble_defaults.mean([0.2, math.nan, 0.4]) == "0.300, 1 of 3 failed"
    assert ensemble_defaults.mean([math.nan]) == "1 of 1 failed"


def test_published_numbers_are_those_of_the_stored_runs():
    rows = {row[0]: row[1:] for row in ensemble_defaults.findings(STORED)["tables"]["nll"]["rows"]}
    assert len(rows) == 9
    assert rows["mlp N=500 lr=0.1 decay=0.01"] == ["0.425", "0.423", "0.378", "−10.7 % (−18.6 to −2.1)", "ahead"]
    assert rows["mlp N=60000 lr=0.1 decay=0.001"] == ["0.086", "0.108", "0.109", "+0.5 % (−1.4 to +2.4)", "tie"]
