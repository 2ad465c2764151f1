"""The page: one file, with its figures in it, and the figures as files of their own."""

import base64
from importlib.resources import files
from pathlib import Path

import jinja2
from markupsafe import Markup

from ctld_lab.files import write_bytes
from ctld_lab.paper import experiments as ours
from ctld_lab.paper import theorems
from ctld_lab.paper.items import Item
from ctld_lab.paper.stored import Stored

MAKERS = (
    *(ours.fig_1, ours.fig_2, ours.table_1, ours.fig_3, ours.table_2, ours.fig_4, ours.table_3),
    *(theorems.theorem_1, theorems.theorem_2),
)
"""The paper's order."""


def items(results: Path) -> list[Item]:
    """Return every item of the paper, from the tables below `results`."""
    stored = Stored(results)
    return [make(stored) for make in MAKERS]


def write(results: Path, output: Path) -> Path:
    """Write figures.html and its figures as SVG. Return the path of the page."""
    found = items(results)
    output.mkdir(parents=True, exist_ok=True)
    for item in found:
        for picture in (*item.pictures, *item.unseen):
            write_bytes(output / f"{picture.name}.svg", picture.svg.encode())
    page = output / "figures.html"
    write_bytes(page, render(found).encode())
    return page


def render(found: list[Item]) -> str:
    """Return the page's HTML."""
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    template = environment.from_string(files("ctld_lab.paper").joinpath("page.html").read_text(encoding="utf-8"))
    return template.render(items=found, inline=inline)


def inline(svg: str) -> Markup:
    """Return an image that holds the SVG: names within it cannot clash with those of another."""
    return Markup("data:image/svg+xml;base64," + base64.b64encode(svg.encode()).decode())
