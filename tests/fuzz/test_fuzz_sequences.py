"""Some random sequences of calls on all methods; tests/fuzz/api_sequences.py runs more."""

from fuzz import api_sequences
from fuzz.damaged_states import METHODS


def test_a_resumed_run_is_the_same_run():
    counts, wrong = api_sequences.fuzz(len(METHODS))
    assert wrong == []
    assert counts["resumes"] > 2 * len(METHODS)


def test_a_seed_that_is_not_resumed_would_be_seen(monkeypatch):
    """The twin: a resumed run that draws other noise."""
    resumed = api_sequences.resumed

    def forgetful(*arguments):
        optimizer, params = resumed(*arguments)
        optimizer.seed += 1
        return optimizer, params

    monkeypatch.setattr(api_sequences, "resumed", forgetful)
    _, wrong = api_sequences.fuzz(3, first=METHODS.index("ctld"))
    assert len(wrong) == 3
    assert all("has left the other" in words for words in wrong)
