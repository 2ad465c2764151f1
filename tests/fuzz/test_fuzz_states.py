"""A few hundred damaged states of all methods; tests/fuzz/damaged_states.py runs more."""

from fuzz.damaged_states import fuzz


def test_a_damaged_state_is_refused_or_goes_on():
    outcomes, wrong = fuzz(300)
    assert wrong == []
    assert outcomes["refused"] > 150  # else the damage is too slight to tell
    assert outcomes["loaded"] > 10
