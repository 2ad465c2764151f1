"""Builds the C kernels when the package is installed; without a C compiler that can, the package installs all the same.

Makes the package's long description of README.md, too: nothing that is read away from the repository may link into it.
``python hatch_build.py`` builds them in place, which is what is left to do after a change of kernels.c in an editable install.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
    from hatchling.metadata.plugin.interface import MetadataHookInterface
except ImportError:  # in place
    BuildHookInterface = MetadataHookInterface = object

# No fused multiply-adds and nothing of -ffast-math: the numbers are to be the same bits on every machine. No -march either:
# the code chooses among processor features when it runs.
FLAGS = ["-O3", "-std=gnu11", "-ffp-contract=off", "-fno-math-errno", "-Wno-psabi", "-shared", "-fPIC"]
FOLDER = Path("src") / "ctld" / "stepping"
FAILURE = "_kernels.failure.txt"
"""Beside the library that is missing: why, in the words of native.py's warning."""


class Kernels(BuildHookInterface):
    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        built = build(Path(self.root) / FOLDER, self.app.display_warning)
        build_data["artifacts"] += [f"{FOLDER.as_posix()}/{name}" for name in ("_kernels.so", FAILURE)]
        if built:
            build_data["pure_python"] = False
            # Plain C through ctypes: tied to the platform, not to a version of Python.
            build_data["tag"] = "py3-none-" + sysconfig.get_platform().replace("-", "_").replace(".", "_")


class LongDescription(MetadataHookInterface):
    PLUGIN_NAME = "custom"

    def update(self, metadata: dict[str, Any]) -> None:
        repository = metadata.get("urls", {}).get("Repository")
        place = f"{repository}/blob/v{metadata['version']}" if repository else None
        text = long_description((Path(self.root) / "README.md").read_text(encoding="utf-8"), place)
        metadata["readme"] = {"content-type": "text/markdown", "text": text}


def long_description(readme: str, place: str | None) -> str:
    """Returns the README with absolute links to `place`; if there is none, files are named and pictures left out."""

    def changed(found: re.Match[str]) -> str:
        picture, words, target = found.groups()
        if place:
            return f"{picture}[{words}]({place}/{target}{'?raw=true' if picture else ''})"
        if picture:
            return ""
        path = target.partition("#")[0]
        return f"`{path}`" if words == path else f"{words} (`{path}`)"

    return re.sub(r"(!?)\[([^\]]*)\]\((?!https?:|#)([^)]+)\)", changed, readme)


def build(folder: Path, warn: Callable[[str], None]) -> bool:
    """Makes the library of a folder; returns whether that went well, and says loudly if not."""
    library, failure = folder / "_kernels.so", folder / FAILURE
    library.unlink(missing_ok=True)  # a stale one would be worse than none
    failure.unlink(missing_ok=True)
    if os.environ.get("CTLD_NO_NATIVE"):
        failure.write_text(
            "CTLD_NO_NATIVE was set when ctld was installed: install it again without\n", encoding="utf-8"
        )
        return False
    errors = []
    for compiler in compilers(warn):
        for threads in (["-fopenmp"], []):  # a compiler may lack OpenMP: one thread is better than none
            unfinished = library.with_suffix(".unfinished.so")
            command = [*compiler, *FLAGS, *threads, str(folder / "kernels.c"), "-o", str(unfinished), "-lm"]
            try:
                result = subprocess.run(command, capture_output=True, text=True)
            except OSError as error:
                errors.append(f"{shlex.join(compiler)} cannot be run: {error}")
                break
            if result.returncode == 0:
                if not threads:
                    warn(f"ctld: {shlex.join(compiler)} has no OpenMP; steps will use one thread")
                os.replace(unfinished, library)
                return True
            unfinished.unlink(missing_ok=True)
            errors.append(f"{shlex.join(command)} failed:\n{result.stderr.strip()}")
    if errors:
        warn(
            "ctld: THE KERNELS WERE NOT BUILT, and torch will do the steps, ten to twenty times slower\n"
            + "\n".join(errors)
        )
        tried = (
            "the compilers that there were failed when ctld was installed: see what `pip install -v` says, or set CC"
        )
        first = errors[-1].splitlines()
        failure.write_text(f"{tried}; the last one said: {' '.join(first[:4])[:600]}\n", encoding="utf-8")
    else:
        warn(
            "ctld: NO C COMPILER WAS FOUND, and torch will do the steps, ten to twenty times slower: install gcc or clang"
        )
        failure.write_text(
            "there was no C compiler when ctld was installed: install gcc or clang, then ctld again\n", encoding="utf-8"
        )
    return False


def compilers(warn: Callable[[str], None]) -> list[list[str]]:
    """Returns the commands to try: CC, if it names a program, and those that are usually there."""
    found = []
    chosen = shlex.split(os.environ.get("CC", ""))
    if chosen and shutil.which(chosen[0]) is None:
        warn(f"ctld: CC = {os.environ['CC']!r} names no program; another compiler is tried")
    elif chosen:
        found.append(chosen)
    if sys.platform != "win32":
        found += [[path] for name in ("cc", "gcc", "clang") if (path := shutil.which(name))]
    return found


if __name__ == "__main__":
    made = build(Path(__file__).parent / FOLDER, lambda text: print(text, file=sys.stderr))  # noqa: T201
    sys.exit(0 if made else 1)
