"""Places in which files are looked for: the folder given, then `$CTLD_DATA`, then the user's cache folder.

In each of these the folder of the data set's name comes first, because that is where fetching puts files: what was just
fetched is found before what lay elsewhere.
"""

import os
import shlex
import sys
from pathlib import Path

from ctld_lab.data.table import DataError, DataFile, DataSet

DATA_VARIABLE = "CTLD_DATA"


def search_path(data_dir: Path | None = None) -> list[Path]:
    """The folders to look in, in order. A folder given must exist; the others may not."""
    roots = [cache_folder()]
    if os.environ.get(DATA_VARIABLE):
        roots.insert(0, Path(os.environ[DATA_VARIABLE]))
    if data_dir is not None:
        if not os.path.isdir(data_dir):
            state = "is not a folder" if os.path.lexists(data_dir) else "does not exist"
            raise DataError(f"the data folder {data_dir} {state}; make it, or give another")
        roots.insert(0, Path(data_dir))
    return list(dict.fromkeys(roots))


def destination(data_dir: Path | None = None) -> Path:
    """Return where `fetch` puts files: the first folder to look in. One that does not exist is made then."""
    return Path(data_dir) if data_dir is not None else search_path()[0]


def cache_folder() -> Path:
    """Return the folder where this system keeps a user's downloads."""
    if sys.platform == "win32":
        local = os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local"
        return Path(local) / "ctld" / "ctld" / "Cache"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "ctld"
    return Path(os.environ.get("XDG_CACHE_HOME", "").strip() or Path.home() / ".cache") / "ctld"


def lookup(dataset: DataSet, file: DataFile, roots: list[Path]) -> tuple[Path | None, list[Path]]:
    """The first regular file that may be `file`, and what has such a name but is none: a folder, a broken link."""
    obstacles: list[Path] = []
    for root in roots:
        for folder in (root / dataset.name, *(root / name for name in dataset.folders), root):
            for form in file.forms:
                path = folder / form
                if os.path.isfile(path):  # follows links; a loop or a link to nowhere is none
                    return path, obstacles
                # DATA/enwik8 as the folder of enwik8 is in nobody's way.
                if os.path.lexists(path) and path != root / dataset.name:
                    obstacles.append(path)
    return None, obstacles


def find(dataset: DataSet, file: DataFile, data_dir: Path | None = None) -> Path:
    """The path of `file`, or an error that says where it was looked for and how to get it."""
    roots = search_path(data_dir)
    path, obstacles = lookup(dataset, file, roots)
    if path is not None:
        return path
    lines = [f"{dataset.name}: there is no {' or '.join(file.forms)} in"]
    for root in roots:
        folders = " or ".join(f"{name}/" for name in (dataset.name, *dataset.folders))
        lines.append(f"  {root}" + (f", nor in its {folders}" if root.is_dir() else " (which does not exist)"))
    lines += [f"  ({path} is not a readable regular file)" for path in obstacles]
    lines.append(f"To download it: {fetch_command(dataset, data_dir)}")
    raise DataError("\n".join(lines))


def fetch_command(dataset: DataSet, data_dir: Path | None, *, force: bool = False) -> str:
    """Return what to type so that the next look finds good files, even in a shell without `$CTLD_DATA`."""
    root = destination(data_dir)
    folder = "" if root == cache_folder() else f" --data-dir {shlex.quote(str(root))}"
    return f"ctld data fetch {dataset.name}{' --force' if force else ''}{folder}"
