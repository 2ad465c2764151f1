"""The generator's words before dieharder, the battery of tests of R. G. Brown (a Debian package of that name).

    python benchmarks/dieharder.py

words.c streams them: the words of kernels.c, first compared with `ctld.noise.words`. Every test gets a seed of its own. Two
orders are tested: that of a training run, and by steps, one element's numbers in the course of a run. dieharder calls a p
below 0.005 or above 0.995 weak, which one in a hundred is by chance; such a test is repeated with another seed and five
times the words, and only what is weak again counts as failed. It takes an hour, so `python -m benchmarks` leaves it out;
the result is stored after every test, and a run that was interrupted goes on where it stopped, if the code is the same.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))  # as a script, it has only its own folder

from benchmarks import timing
from benchmarks.stored import FOLDER, Result, finish, heading, load, read, store, table, where
from ctld import noise

SEED = 2017
FLAGS = ["-O3", "-std=gnu11", "-ffp-contract=off", "-fno-math-errno", "-Wno-psabi"]
ORDERS = ("run", "steps")
# Every test that dieharder calls good, by its number. Of the lagged sums, a few of 33 lags: they take an hour alone.
LAGS = ("0", "1", "3", "15", "16", "31")
TESTS: list[tuple[str, ...]] = [
    *(("-d", str(number)) for number in (0, 1, 2, 3, 4, 8, 9, 10, 11, 12, 13, 15, 16, 17, 100, 101, 102)),
    *(("-d", "200", "-n", str(bits)) for bits in (1, 2, 4, 8, 12)),
    *(("-d", "201", "-n", str(dimensions)) for dimensions in (2, 3, 5)),
    *(("-d", "202", "-n", str(words)) for words in (2, 5)),
    *(("-d", "203", "-n", lag) for lag in LAGS),
    *(("-d", str(number)) for number in (204, 205, 206, 207, 208, 209)),
]
TWIN_TEST = ("-d", "100")


def build(folder: Path) -> Path:
    """words.c as a program."""
    program, compiler = folder / "words", shutil.which("cc") or "gcc"
    source = Path(__file__).with_name("words.c")
    subprocess.run([compiler, *FLAGS, str(source), "-o", str(program), "-lm"], check=True)
    return program


def check(program: Path, blocks: int = 1024) -> None:
    """What is streamed is what the noise is made of."""
    streams, bytes_per_page = range(2, 8), 16 * blocks
    every = torch.arange(blocks)
    for order in ORDERS:
        made = np.frombuffer(_first(program, order, len(streams) * bytes_per_page), dtype=np.uint32)
        if order == "run":
            pages = [noise.words(SEED, 0, stream, every) for stream in streams]
        else:
            first = every[:1]
            pages = [noise.words(SEED, int(step), stream, first) for stream in streams for step in every]
        if not np.array_equal(made, torch.cat(pages).numpy()):
            raise RuntimeError(f"words.c does not stream the words of ctld.noise in the order {order!r}")


def _first(program: Path, order: str, count: int) -> bytes:
    with subprocess.Popen([program, order, str(SEED)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        made = process.stdout.read(count)
        process.kill()
    return made


def examine(program: Path, order: str, seed: int, test: tuple[str, ...], dieharder: str) -> list[dict[str, Any]]:
    """One test; some give several p-values."""
    # -k 2 is exact p-values, -c "," a line that is easily split.
    command = [dieharder, "-g", "200", "-k", "2", *test, "-c", ",", "-D", "test_name", "-D", "ntuple"]
    command += ["-D", "pvalues", "-D", "assessment"]
    with subprocess.Popen([program, order, str(seed)], stdout=subprocess.PIPE) as words:
        made = subprocess.run(command, stdin=words.stdout, capture_output=True, text=True, check=True)
        words.kill()
    found = []
    for line in made.stdout.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) == 4 and cells[0] != "test_name":
            found.append({"test": cells[0], "size": int(cells[1]), "p": float(cells[2]), "assessment": cells[3]})
    if not found:
        raise RuntimeError(f"{' '.join(command)} said nothing that can be read: {made.stdout}{made.stderr}")
    return found


def run(*, dieharder: str, command: str, path: Path, tests: list[tuple[str, ...]] | None = None) -> Result:
    result = heading("p-values of dieharder on the words of the generator", command, effort=1.0)
    result["machine"]["load_after"] = load()
    version = subprocess.run([dieharder, "-h"], capture_output=True, text=True).stdout.split("version ", 1)[-1].split()
    chosen = [(order, test) for test in (TESTS if tests is None else tests) for order in ORDERS]
    result |= {"dieharder": version[0] if version else "", "tests": len(chosen), "tests_done": 0}
    rows = _rows_before(result, path)
    progress, start = timing.Progress("dieharder"), time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        program = build(Path(folder))
        check(program)
        twin = examine(program, "biased", SEED, TWIN_TEST, dieharder)
        result["twin_failed"] = any(row["assessment"] == "FAILED" for row in twin)
        for number, (order, test) in enumerate(chosen):
            options = " ".join(test)
            if not any((row["order"], row["options"]) == (order, options) for row in rows):
                found = examine(program, order, SEED + 1 + number, test, dieharder)
                if any(row["assessment"] != "PASSED" for row in found):
                    repeated = examine(program, order, SEED - 1 - number, (*test, "-p", "500"), dieharder)
                    for row, again in zip(found, repeated, strict=True):
                        if row["assessment"] != "PASSED":
                            row |= {"again": again["p"], "assessment": _verdict(row, again)}
                rows += [{"order": order, "options": options} | row for row in found]
            result |= {
                "tests_done": number + 1,
                "failed": sum(row["assessment"] == "FAILED" for row in rows),
                "weak": sum(row["assessment"] == "WEAK" for row in rows),
                "rows": rows,
            }
            store(result, path)
            progress.show(f"{number + 1} of {len(chosen)}, {time.monotonic() - start:.0f} s")
    return result


def _rows_before(result: Result, path: Path) -> list[dict[str, Any]]:
    """Of a run of the same code that was interrupted; none otherwise."""
    before = read(path.stem, path.parent)
    if before is None or before["commit"] != result["commit"] or before["tests_done"] == before["tests"]:
        return []
    rows: list[dict[str, Any]] = before["rows"]
    return rows


def _verdict(row: dict[str, Any], again: dict[str, Any]) -> str:
    return "WEAK" if again["assessment"] == "PASSED" and row["assessment"] == "WEAK" else "FAILED"


def tables(result: Result) -> list[str]:
    """For README.md."""
    rows = result["rows"]
    names = list(dict.fromkeys(row["test"] for row in rows))
    lines = []
    for name in names:
        chosen = [row for row in rows if row["test"] == name]
        worst = min(chosen, key=lambda row: min(row["p"], 1 - row["p"]))
        states = {row["assessment"].lower() for row in chosen}
        outcome = "failed" if "failed" in states else "weak, passed when repeated" if "weak" in states else "passed"
        lines.append([name, str(len(chosen)), f"{worst['p']:.4f}", outcome])
    seen = "failed, as it must" if result["twin_failed"] else "NOT SEEN"
    done, wanted = result["tests_done"], result["tests"]
    return [
        *where(result),
        *([f"Interrupted: {done} of {wanted} tests."] if done < wanted else []),
        f"{len(rows)} p-values of dieharder {result['dieharder']}: {result['failed']} failed, {result['weak']} were weak "
        f"and passed when repeated. "
        f"Words with a bias in one bit of 512: {seen}.",
        "",
        *table(["test", "p-values", "most extreme", ""], lines),
    ]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="dieharder on the words of the generator.")
    parser.add_argument("--dieharder", default="dieharder", help="the program")
    found = shutil.which(parser.parse_args().dieharder)
    if found is None:
        raise SystemExit("dieharder is not installed: on Debian, apt-get install dieharder")
    made = run(dieharder=found, command="python benchmarks/dieharder.py", path=FOLDER / "dieharder.json")
    finish("dieharder", made, tables)
