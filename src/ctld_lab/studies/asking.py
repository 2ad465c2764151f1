"""What is asked of a study that keeps a file for each problem and method: names that it has."""

from collections.abc import Collection, Mapping, Sequence

Asked = Mapping[str, tuple[Sequence[str], Collection[str]]]
"""Of what kind they are → names that were given, and those that there are."""


class NotKnown(ValueError):
    """A name that there is not, or not here; the message has those that there are, or the remedy."""


def refuse_unknown(asked: Asked) -> None:
    """Before anything is computed."""
    for kind, (given, known) in asked.items():
        if unknown := [name for name in given if name not in known]:
            raise NotKnown(f"there is no {kind} {unknown[0]!r}; known are {', '.join(known)}")
