"""How many of the mutants do the tests find? `python tests/mutation/mutate.py` makes each in a copy of src/ and runs its tests.

For developers, not part of `make test`: about half an hour on two cores. A mutant is killed if its tests fail and survives if they
pass; first the tests are run on the copy as it is, where all must pass. A mutant whose text is no longer found ends the script.

    python tests/mutation/mutate.py --check              only see that every mutant can be made
    python tests/mutation/mutate.py --area noise         those of one area
    python tests/mutation/mutate.py --sample 30          so many of them, always the same
    python tests/mutation/mutate.py --output scores.json
"""

import argparse
import json
import os
import platform
import random
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from pathlib import Path

from mutants import MUTANTS, Mutant

ROOT = Path(__file__).parents[2]
PASSED, FAILED = 0, 1  # exit codes of pytest; anything else says that the tests did not run


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--area", choices=sorted({mutant.area for mutant in MUTANTS}))
    parser.add_argument("--sample", type=int, default=len(MUTANTS))
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 1) // 2))
    parser.add_argument("--slow", action="store_true", help="with the tests of minutes too")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    lost = [problem for mutant in MUTANTS if (problem := problem_of(mutant))]
    if lost:
        print("\n".join(lost), file=sys.stderr)
        return 2
    print(f"{len(MUTANTS)} mutants can be made: {dict(Counter(mutant.area for mutant in MUTANTS))}")
    if options.check:
        return 0
    chosen = [mutant for mutant in MUTANTS if options.area in (None, mutant.area)]
    chosen = random.Random(0).sample(chosen, min(options.sample, len(chosen)))
    with ThreadPoolExecutor(options.jobs) as pool:
        selections = sorted({mutant.tests for mutant in chosen})
        for tests, (code, said) in zip(
            selections, pool.map(lambda tests: _run(None, tests, options.slow), selections), strict=True
        ):
            if code != PASSED:
                print(f"without any mutant, {tests} do not pass:\n{said}", file=sys.stderr)
                return 2
        found = list(pool.map(lambda mutant: _run(mutant, mutant.tests, options.slow)[0], chosen))
    rows = []
    for mutant, code in zip(chosen, found, strict=True):
        outcome = {PASSED: "survived", FAILED: "killed"}.get(code, f"tests did not run (exit code {code})")
        rows.append(mutant._asdict() | {"outcome": outcome})
        print(f"{outcome:9} {mutant.area:13} {mutant.file}: {mutant.old.strip().splitlines()[0][:60]}", flush=True)
    counts = Counter(row["outcome"] for row in rows)
    print(", ".join(f"{count} {outcome}" for outcome, count in counts.items()))
    if options.output is not None:
        commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout.strip()
        made = {"commit": commit, "machine": f"{platform.machine()}, {os.cpu_count()} cores", "date": f"{date.today()}"}
        scores = {"known": len(MUTANTS), "counts": counts, "mutants": rows}
        unfinished = options.output.with_suffix(".unfinished")
        unfinished.write_text(json.dumps(made | scores, indent=1) + "\n", encoding="utf-8")
        unfinished.replace(options.output)
    return 0


def problem_of(mutant: Mutant) -> str | None:
    path = ROOT / "src" / "ctld" / mutant.file
    if not path.exists():
        return f"{mutant.file} is gone; write its mutants again, for where the code went"
    times = path.read_text(encoding="utf-8").count(mutant.old)
    if times != 1:
        return f"{mutant.file} has {mutant.old!r} {times} times, not once; write this mutant again"
    gone = [tests for tests in mutant.tests.split() if not (ROOT / tests).exists()]
    return (
        f"{' and '.join(gone)} of a mutant of {mutant.file} are gone; name the tests that took over" if gone else None
    )


def _run(mutant: Mutant | None, tests: str, slow: bool) -> tuple[int, str]:
    """Exit code and last words of pytest, on a copy of src/ with one mistake in it."""
    with tempfile.TemporaryDirectory(prefix="ctld-mutant-") as folder:
        source = Path(folder) / "src"
        shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__"))
        if mutant is not None:
            path = source / "ctld" / mutant.file
            path.write_text(path.read_text(encoding="utf-8").replace(mutant.old, mutant.new), encoding="utf-8")
        words = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests.split()]
        words += [] if slow else ["-m", "not slow"]
        environment = os.environ | {"PYTHONPATH": str(source), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        try:
            done = subprocess.run(
                words, cwd=ROOT, env=environment, capture_output=True, text=True, encoding="utf-8", timeout=1800
            )
        except subprocess.TimeoutExpired:
            return FAILED, "did not end"
        return done.returncode, done.stdout[-2000:]


if __name__ == "__main__":
    sys.exit(main())
