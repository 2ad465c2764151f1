"""Dead links of a built site, offline: `python docs/links.py docs/_build/html`. The build ends with it."""

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    """What a page refers to, and what in it can be referred to."""

    def __init__(self, path):
        super().__init__()
        self.anchors, self.links = set(), set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        """Notes ids, names, and the values of href and src."""
        found = dict(attributes)
        self.anchors |= {found[name] for name in ("id", "name") if found.get(name)}
        self.links |= {found[name] for name in ("href", "src") if found.get(name)}


def dead_links(folder):
    """Returns a line for each link between files of the folder that leads nowhere, anchors included."""
    folder = Path(folder).resolve()
    aside = {"_static", "_downloads"}  # not the site's own pages
    pages = {path: Page(path) for path in sorted(folder.rglob("*.html")) if not aside & set(path.parts)}
    dead = []
    for path, page in pages.items():
        for link in sorted(page.links):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            lost = not target.is_file() or not target.is_relative_to(folder)
            if not lost and parts.fragment and target in pages:
                lost = unquote(parts.fragment) not in pages[target].anchors
            if lost:
                dead.append(f"{path.relative_to(folder)}: {link} leads nowhere")
    return dead


if __name__ == "__main__":
    sys.exit("\n".join(dead_links(sys.argv[1])) or None)
