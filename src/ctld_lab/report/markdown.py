"""Tables of documents: as text, and in their places."""

import re
from collections.abc import Mapping, Sequence


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, ["---"] * len(head), *rows))


def document(text: str, tables: Mapping[str, str]) -> str:
    """Return the text with these tables in place of what is between their marks."""
    for name, made in tables.items():
        pattern = re.compile(rf"(<!-- begin {name} -->\n).*?(<!-- end {name} -->)", re.DOTALL)
        if not pattern.search(text):
            raise ValueError(
                f"the document has no place for {name!r}; write <!-- begin {name} --> and <!-- end {name} -->"
            )
        text = pattern.sub(lambda match, made=made: f"{match[1]}{made}\n{match[2]}", text)  # type: ignore[misc]
    return text
