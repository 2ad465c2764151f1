"""Nanoseconds for a random word by the generators that the noise could have: ARS-7, Philox 4x32-7 and Philox 4x32-10.

    python benchmarks/generators.py

generators.c has each as fast as it can be written with AVX-512, and fills the first cache with words over and over, in one
thread. The three take turns; medians and quartiles are over rounds. Where the processor lacks the
instructions there is no result.
"""

import ctypes
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # as a script, it has only its own folder

from benchmarks.stored import Result, heading, main, say, table, where

NAMES = {"ars_7": "ARS-7", "philox_7": "Philox 4x32-7", "philox_10": "Philox 4x32-10"}
WORDS = 1024
REPEATS = 200


def run(*, effort: float, command: str) -> Result:
    result = heading("nanoseconds for a random word, one thread", command, effort=effort)
    result["generators"] = []
    with tempfile.TemporaryDirectory() as folder:
        library = _build(Path(folder))
        if library is None:
            say("no compiler, or a processor without AVX-512 and VAES: nothing to compare")
            return result
        times: dict[str, list[float]] = {name: [] for name in NAMES}
        rounds = max(20, int(2000 * effort))
        for _ in range(rounds):
            for name, measured in times.items():
                start = time.perf_counter()
                getattr(library, name)(REPEATS)
                measured.append(1e9 * (time.perf_counter() - start) / (REPEATS * WORDS))
    result["rounds"] = rounds
    for name, measured in times.items():
        low, median, high = statistics.quantiles(measured, n=4)
        result["generators"].append({"name": NAMES[name], "median": median, "quartiles": [low, high]})
    return result


def tables(result: Result) -> list[str]:
    rows = [
        (each["name"], f"{each['median']:.3f} ({each['quartiles'][0]:.3f} to {each['quartiles'][1]:.3f})")
        for each in result["generators"]
    ]
    return [*where(result), "", *table(("generator", "ns for a word"), rows)]


def _build(folder: Path) -> ctypes.CDLL | None:
    compiler = shutil.which("cc") or shutil.which("gcc")
    source, library = Path(__file__).with_suffix(".c"), folder / "generators.so"
    if compiler is None:
        return None
    built = subprocess.run([compiler, "-O3", "-shared", "-fPIC", str(source), "-o", str(library)], capture_output=True)
    if built.returncode:
        return None
    loaded = ctypes.CDLL(str(library))
    if not loaded.supported():
        return None
    for name in NAMES:
        getattr(loaded, name).argtypes = [ctypes.c_int64]
    return loaded


if __name__ == "__main__":
    main("generators", "Nanoseconds for a random word, by generator.", run, tables)
