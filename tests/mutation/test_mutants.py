"""The mutants can still be made: where code has moved, they move along. `make mutation` runs them."""

from mutants import MUTANTS
from mutate import problem_of


def test_they_can_be_made():
    assert [problem for mutant in MUTANTS if (problem := problem_of(mutant))] == []
