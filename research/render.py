"""Write each study's findings.json, and render it between markers in documents: `python research/render.py`.

`findings.json` is made by the study from its stored tables:

    {"study": "traps", "title": "Bad minima",
     "findings": [{"id": "relu16", "problem": "...", "verdict": "ahead", "numbers": "74 % against 34 %"}, ...],
     "tables": {"success": {"head": [...], "rows": [[...], ...]}, ...}}

A document shows any of it between two markers, and what stands there is replaced:

    <!-- findings: traps -->               all findings of a study, as a table with links to its page
    <!-- findings: traps:relu16 peers -->  one finding, and all of another study, in one table
    <!-- findings: traps/success -->       one table of the study, as it is
    <!-- end -->
"""

import importlib
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

RESEARCH = Path(__file__).resolve().parent
MARKER = re.compile(r"(<!-- findings: (.+?) -->\n).*?(<!-- end -->)", re.DOTALL)


def write(path: Path, text: str) -> None:
    """Write a file whole: a reader sees the old one or the new one, also after a power cut."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, unfinished = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(unfinished, 0o644)
        os.replace(unfinished, path)
    finally:
        Path(unfinished).unlink(missing_ok=True)


def studies() -> list[str]:
    """Return the names of the studies that have stored results."""
    return sorted(path.parent.name for path in RESEARCH.glob("*/findings.json"))


def documents() -> list[Path]:
    """Return the documents of the repository, in which markers are looked for."""
    root = RESEARCH.parent
    folders = ("docs", "research", "benchmarks", "examples")
    below = [path for folder in folders for path in sorted((root / folder).rglob("*.md"))]
    return [*sorted(root.glob("*.md")), *(path for path in below if "_build" not in path.parts)]


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table."""
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, ["---"] * len(head), *rows))


def tabled(rows: Sequence[Mapping[str, str]], missing: str = "") -> dict[str, Any]:
    """Return head and rows of a table, given each row as column → text; columns come in the order of their first use."""
    head = list(dict.fromkeys(column for row in rows for column in row))
    return {"head": head, "rows": [[row.get(column, missing) for column in head] for row in rows]}


def finding(where: str, problem: str, verdict: str, numbers: str) -> dict[str, str]:
    """Return one finding, `where` being its id."""
    return {"id": where, "problem": problem, "verdict": verdict, "numbers": numbers}


def text_of(findings: Mapping[str, Any]) -> str:
    """Return all findings and tables of a study, for the terminal."""
    parts = [_verdicts([(row, None) for row in findings["findings"]])]
    parts += [f"{name}\n\n{table(**made)}" for name, made in findings["tables"].items()]
    return "\n\n".join(parts)


def _verdicts(found: Sequence[tuple[Mapping[str, str], str | None]]) -> str:
    rows = [
        [row["problem"], row["verdict"], row["numbers"] if page is None else f"[{row['numbers']}]({page})"]
        for row, page in found
    ]
    return table(["problem", "verdict", "numbers"], rows)


def rendered(text: str, folder: Path) -> str:
    """Return a document of this folder with everything between markers made anew."""

    def made(match: re.Match[str]) -> str:
        found: list[tuple[Mapping[str, str], str | None]] = []
        for item in match[2].split():
            study, kind, name = re.fullmatch(r"([\w-]+)(?:([:/])(.+))?", item).groups()  # type: ignore[union-attr]
            stored = json.loads((RESEARCH / study / "findings.json").read_text(encoding="utf-8"))
            if kind == "/":
                return f"{match[1]}{table(**stored['tables'][name])}\n{match[3]}"
            own = [row for row in stored["findings"] if name in (None, row["id"])]
            if not own:
                raise ValueError(
                    f"{item} must name a finding of {study}, got none of that id. See {study}/findings.json."
                )
            page = None if folder == RESEARCH / study else os.path.relpath(RESEARCH / study / "README.md", folder)
            found += [(row, page) for row in own]
        return f"{match[1]}{_verdicts(found)}\n{match[3]}"

    return MARKER.sub(made, text)


def outdated() -> list[Path]:
    """Return the documents whose rendered parts are not what findings.json says."""
    return [path for path in documents() if rendered(text := path.read_text("utf-8"), path.parent) != text]


def findings_of(study: str) -> dict[str, Any]:
    """Return the findings of a study, made from its stored tables."""
    module = importlib.import_module(study)
    made: dict[str, Any] = module.findings(getattr(module, "RESULTS", RESEARCH / study / "results"))
    return made


def publish(study: str, results: Path) -> None:
    """Replace the stored tables of a study by others, then its findings and what documents show of them."""
    stored = RESEARCH / study / "results"
    shutil.rmtree(stored, ignore_errors=True)
    shutil.copytree(results, stored)
    main([study])


def main(names: Sequence[str] = ()) -> None:
    """Write the findings of these studies, or of all, and render every document."""
    for study in names or studies():
        text = json.dumps(findings_of(study), indent=1, ensure_ascii=False)
        write(RESEARCH / study / "findings.json", text + "\n")
    for path in outdated():
        write(path, rendered(path.read_text(encoding="utf-8"), path.parent))
        print(f"{path.relative_to(RESEARCH.parent)} is up to date")


if __name__ == "__main__":
    main(sys.argv[1:])
