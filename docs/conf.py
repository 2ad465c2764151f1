"""Sphinx: `make docs` builds the site into docs/_build/html, without a warning."""

import os
import re
import sys
import warnings
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
os.environ.setdefault("OMP_NUM_THREADS", "1")

import tomllib

from links import dead_links
from sphinx.errors import ExtensionError

PROJECT = tomllib.loads((HERE.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]

project, author, release = "ctld", "the ctld developers", PROJECT["version"]
copyright = f"{author}; MIT licence"
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = ["_build", "gallery/*.ipynb", "gallery/*.py.md5"]
html_theme = "furo"
html_title = "ctld"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
templates_path = ["_templates"]

# ---- documents ----

myst_enable_extensions = ["smartquotes"]
myst_heading_anchors = 3
smartquotes = False

# ---- reference ----

autosummary_generate = True
autodoc_default_options = {"members": True, "member-order": "bysource"}
autodoc_typehints = "none"
autodoc_mock_imports = []
default_role = "code"
napoleon_google_docstring = False
napoleon_use_rtype = False

# ---- gallery ----

sphinx_gallery_conf = {
    "examples_dirs": str(HERE.parent / "examples" / "gallery"),
    "gallery_dirs": "gallery",
    "filename_pattern": r"/plot_",
    "image_scrapers": ("moving_pictures",),
    "write_computation_times": False,
    "abort_on_example_error": True,
    "remove_config_comments": True,
    "show_memory": False,
    "download_all_examples": False,
    "show_signature": False,
    "within_subsection_order": "reading_order.ReadingOrder",
    "min_reported_time": 1,
}
warnings.filterwarnings("ignore", message="FigureCanvasAgg is non-interactive")

RESEARCH = HERE.parent / "research"
STUDIES = HERE / "studies"
TARGET = re.compile(r"(?<=\]\()(?!https?:|#)([^)#]+)")


def write_the_studies(app):
    """Copy each study's page to where the site can show it, with links that lead from there to the same places."""
    STUDIES.mkdir(exist_ok=True)
    for page in [*RESEARCH.glob("*/README.md"), RESEARCH / "LOG.md"]:
        text = TARGET.sub(
            lambda found, folder=page.parent: os.path.relpath(folder / found[1], STUDIES),
            page.read_text(encoding="utf-8"),
        )
        place = page_of_study(page)
        if not place.exists() or place.read_text(encoding="utf-8") != text:
            place.write_text(text, encoding="utf-8")


def page_of_study(target):
    """Return the page of the site that shows a document of research/."""
    return STUDIES / f"{(target.stem if target.parent == RESEARCH else target.parent.name).lower()}.md"


LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^):#]+)(?:#[^)]*)?\)")


def leave_out_links_that_lead_out(app, name, content):
    """Names folders and pages of the repository that the site does not have; its other files can be downloaded."""
    folder = Path(app.env.doc2path(name)).parent

    def plain(found):
        target = (folder / found[2]).resolve()
        if target.is_relative_to(RESEARCH) and page_of_study(target).exists() and target.suffix == ".md":
            return found[0].replace(found[2], os.path.relpath(page_of_study(target), folder))
        if target.is_relative_to(HERE) or not (target.is_dir() or target.suffix == ".md"):
            return found[0]
        path = target.relative_to(HERE.parent).as_posix()
        return f"`{path}`" if found[1] in (path, target.name) else f"{found[1]} (`{path}`)"

    content[0] = LINK.sub(plain, content[0])
    # A pattern in a table of contents that no page fits yet would be a warning.
    content[0] = re.sub(
        r"^([a-z/-]+\*)\n", lambda found: found[0] * any(HERE.glob(found[1])), content[0], flags=re.MULTILINE
    )


def literal_formulas(app, what, name, obj, options, lines):
    """Docstrings are written to be read: their bars are no substitutions, and what they indent is shown as it stands."""
    made, literal = [], False
    sections = next((at for at, line in enumerate(lines) if re.fullmatch(r"-{4,}\s*", line)), len(lines))
    for at, line in enumerate(lines):
        indented = line.startswith("    ")
        if indented and not literal and at < sections and made and not made[-1].strip():
            made += ["::", ""]
            literal = True
        elif line.strip() and not indented:
            literal = False
        name = at >= sections and not indented  # of a parameter or attribute: `classes_` is one
        made.append(line if literal or name or line.lstrip().startswith(">>>") else escaped(line))
    lines[:] = made


def escaped(line):
    """Bars and lone stars or underscores outside of backticks mean themselves."""
    pieces = line.split("`")
    pieces[::2] = [re.sub(r"(\||(?<=\w)_(?=\W|$)|\*(?=\w))", r"\\\1", piece) for piece in pieces[::2]]
    return "`".join(pieces)


def write_the_papers_page(app):
    """The paper beside the stored results, which docs/paper.md shows."""
    from ctld_lab.paper import write

    write(HERE.parent / "results", HERE / "_static" / "paper")


def refuse_dead_links(app, error):
    """Ends the build with an error if a link leads nowhere."""
    if error is None and app.builder.name == "html" and (dead := dead_links(app.outdir)):
        raise ExtensionError("\n".join(dead))


def setup(app):
    app.connect("builder-inited", write_the_papers_page)
    app.connect("builder-inited", write_the_studies)
    app.connect("source-read", leave_out_links_that_lead_out)
    app.connect("autodoc-process-docstring", literal_formulas, priority=400)
    app.connect("build-finished", refuse_dead_links, priority=900)  # the theme has work to finish before
