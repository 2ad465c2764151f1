"""README.md: prose by hand, and tables of the stored results between markers."""

import re
from pathlib import Path

from benchmarks import chains, draws, end_to_end, generators, loop, memory, noise, ranks, steps, stored

README = Path(__file__).with_name("README.md")
TABLES = {
    "steps": steps.tables,
    "end_to_end": end_to_end.tables,
    "noise": noise.tables,
    "generators": generators.tables,
    "memory": memory.tables,
    "loop": loop.tables,
    "chains": chains.tables,
    "draws": draws.tables,
    "ranks": ranks.tables,
}


def rendered(text: str, folder: Path = stored.FOLDER) -> str:
    """The text with the tables of what is stored."""
    for name, tables in TABLES.items():
        result = stored.read(name, folder)
        lines = ["Not measured yet."] if result is None else tables(result)
        block = "\n".join([f"<!-- {name}: from results/{name}.json -->", "", *lines, "", f"<!-- end of {name} -->"])
        pattern = re.compile(f"<!-- {name}: .*?<!-- end of {name} -->", re.DOTALL)
        if len(pattern.findall(text)) != 1:
            raise ValueError(
                f"README.md has no place, or more than one, for the tables of {name}: give it its two markers"
            )
        text = pattern.sub(lambda _, block=block: block, text)  # type: ignore[misc]
    return text


def update() -> None:
    """Bring README.md up to date."""
    README.write_text(rendered(README.read_text(encoding="utf-8")), encoding="utf-8")
