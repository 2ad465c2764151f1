"""Statistics of the noise on 10⁸ numbers, of the words that it is made of, and what a number costs.

    python benchmarks/noise.py

`ctld.noise.numbers`, float32, of both kinds: moments, the whole distribution, tails, and correlations between neighbours
(lags 1 to 64), successive steps, streams and seeds, of numbers and of their squares. Words: frequencies of bits and bytes,
runs, correlations between bits. Each test gives a p-value; a sample is flagged if the smallest, times their number, is below
1 in 1,000. Each kind has a twin that is wrong on purpose, by as much as so many numbers can show (a deviation of 1.001 at
10⁸), and goes through the same code: it must be flagged, else the tests are worth nothing.

Time per number is that of one thread, by processor features, beside torch and numpy.
"""

import math
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1]))  # as a script, it has only its own folder

from benchmarks import timing
from benchmarks.steps import Repeated
from benchmarks.stored import Result, heading, main, table, where
from ctld import noise
from ctld.stepping import native

SEED = 2017
CHUNK = 1 << 20
BINS = 1 << 16
LAGS = range(1, 65)
FLAG = 1e-3
TIMED = 1 << 16
"""Numbers in a timed call: a quarter of a megabyte, which stays in the caches."""
PARTNERS = {"next step": (0, 1, 0), "next stream": (0, 0, 1), "next seed": (1, 0, 0)}
"""What is added to seed, step and stream."""
SIDE = 10_923 / 65_536
"""Probability of either outer value of three-point noise."""

Make = Callable[[int, int, int, int], Tensor]
"""(seed, step, stream, how many) → numbers."""
Words = NDArray[np.uint32]


@dataclass
class Tests:
    """Outcomes, by name."""

    z: dict[str, float] = field(default_factory=dict)
    p: dict[str, float] = field(default_factory=dict)

    def normal(self, name: str, z: float) -> None:
        self.z[name] = round(z, 2)
        self.p[name] = math.erfc(abs(z) / math.sqrt(2))

    def normals(self, name: str, values: Iterable[float]) -> None:
        """A family: whether the largest is too large, and whether all together are."""
        found = [float(value) for value in values]
        largest = max(found, key=abs)
        self.z[f"{name}, largest of {len(found)}"] = round(largest, 2)
        single = math.erfc(abs(largest) / math.sqrt(2))
        self.p[f"{name}, largest of {len(found)}"] = -math.expm1(len(found) * math.log1p(-min(single, 1 - 1e-16)))
        self.chi_square(f"{name}, sum of squares", math.fsum(z * z for z in found), len(found))

    def chi_square(self, name: str, value: float, freedom: int) -> None:
        halves = (torch.tensor(0.5 * each, dtype=torch.float64) for each in (freedom, value))
        self.p[name] = float(torch.special.gammaincc(*halves))

    def poisson(self, name: str, count: int, expected: float) -> None:
        """Two-sided, by the exact law: five deviations out there are a few dozen of 10⁸."""
        self.z[name] = round((count - expected) / math.sqrt(expected), 2)
        rate = torch.tensor(expected, dtype=torch.float64)
        at_most = float(torch.special.gammaincc(torch.tensor(count + 1.0, dtype=torch.float64), rate))
        at_least = (
            float(torch.special.gammainc(torch.tensor(float(count), dtype=torch.float64), rate)) if count else 1.0
        )
        self.p[name] = min(1.0, 2 * min(at_most, at_least))

    def result(self) -> dict[str, Any]:
        worst = min(self.p, key=lambda name: self.p[name])
        return {
            "flagged": self.p[worst] * len(self.p) < FLAG,
            "tests": len(self.p),
            "smallest": {"test": worst, "p": timing.rounded(self.p[worst])},
            "z": self.z,
            "p": {name: timing.rounded(p) for name, p in self.p.items()},
        }


# ---- numbers ----


def numbers_of(kind: str, scale: float = 1.0) -> Make:
    """The noise, or a twin of another deviation."""

    def make(seed: int, step: int, stream: int, count: int) -> Tensor:
        made = noise.numbers(kind, seed, step, stream, count)
        return made if scale == 1.0 else made * scale

    return make


def even_moments(kind: str) -> list[float]:
    """Of orders 0, 2, …, 12."""
    if kind == "gaussian":
        return [math.prod(range(1, order, 2)) for order in range(0, 13, 2)]
    return [1.0, *((2 * SIDE) ** (1 - half) for half in range(1, 7))]


def examine_numbers(kind: str, make: Make, chunks: int) -> dict[str, Any]:
    """All tests of numbers, on so many chunks, each of another step and of one of six streams."""
    tests, count = Tests(), chunks * CHUNK
    moments = even_moments(kind)
    powers = torch.zeros(6, dtype=torch.float64)
    bins = torch.zeros(BINS if kind == "gaussian" else 3, dtype=torch.int64)
    tails = {(sign, bound): 0 for bound in (3, 4, 5) for sign in (-1, 1)}
    lagged = {"neighbours": np.zeros(len(LAGS)), "squares of neighbours": np.zeros(len(LAGS))}
    crossed = {name: np.zeros(2) for name in PARTNERS}
    progress = timing.Progress(f"noise, {kind}")
    for chunk in range(chunks):
        name = (SEED, chunk, 2 + chunk % 6)
        x = make(*name, CHUNK)
        power = wide = x.double()
        powers[0] += power.sum()
        for order in range(1, 6):
            power = power * wide
            powers[order] += power.sum()
        if kind == "gaussian":
            place = (torch.special.ndtr(wide) * BINS).long().clamp_(max=BINS - 1)
            bins += torch.bincount(place, minlength=BINS)
            for sign, bound in tails:
                tails[sign, bound] += int((sign * x > bound).sum())
        else:
            bins += torch.bincount(x.sign().long() + 1, minlength=3)
        square = _squared(x, moments)
        for values, sums in zip((x, square), lagged.values(), strict=True):
            head = values[: CHUNK - len(LAGS)]
            for lag in LAGS:
                sums[lag - 1] += float(torch.dot(head, values[lag : lag + len(head)]))
        for partner, moved in PARTNERS.items():
            y = make(*_moved(name, moved), CHUNK)
            crossed[partner] += (float(torch.dot(x, y)), float(torch.dot(square, _squared(y, moments))))
        progress.show(f"{(chunk + 1) * CHUNK:,} of {count:,}")
    for order in range(1, 7):
        mean = 0.0 if order % 2 else moments[order // 2]
        deviation = math.sqrt(moments[order] - mean**2)
        tests.normal(f"moment {order}", (float(powers[order - 1]) / count - mean) * math.sqrt(count) / deviation)
    if kind == "gaussian":
        _distribution(tests, bins, count)
        for (sign, bound), found in tails.items():
            tests.poisson(f"beyond {sign * bound} σ", found, 0.5 * count * math.erfc(bound / math.sqrt(2)))
    else:
        expected = count * torch.tensor([SIDE, 1 - 2 * SIDE, SIDE], dtype=torch.float64)
        tests.chi_square("three values, chi-square", float(((bins - expected) ** 2 / expected).sum()), 2)
    terms = chunks * (CHUNK - len(LAGS))
    for what, sums in lagged.items():
        tests.normals(what, sums / math.sqrt(terms))
    for partner, both in crossed.items():
        tests.normal(partner, float(both[0]) / math.sqrt(count))
        tests.normal(f"{partner}, squares", float(both[1]) / math.sqrt(count))
    return {"samples": count} | tests.result()


def _squared(x: Tensor, moments: list[float]) -> Tensor:
    """x², of mean 0 and variance 1."""
    return (x * x - 1.0).div_(math.sqrt(moments[2] - 1.0))


def _distribution(tests: Tests, bins: Tensor, count: int) -> None:
    """Chi-square over bins of equal probability, and Kolmogorov-Smirnov at their edges.

    Between two of so many edges the distance could grow by some 1e-7 only, where chance makes 1e-4.
    """
    expected = count / BINS
    tests.chi_square(f"{BINS:,} bins, chi-square", float(((bins - expected) ** 2).sum()) / expected, BINS - 1)
    edges = torch.arange(1, BINS + 1, dtype=torch.float64) / BINS
    distance = float((bins.cumsum(0) / count - edges).abs().max()) * math.sqrt(count)
    series = (2 * (-1) ** (k - 1) * math.exp(-2 * (k * distance) ** 2) for k in range(1, 101))
    # The series does not converge at distances that are too small to be of interest.
    tests.p["Kolmogorov-Smirnov"] = min(1.0, max(0.0, math.fsum(series))) if distance > 0.2 else 1.0


def _moved(name: tuple[int, int, int], by: tuple[int, int, int]) -> tuple[int, int, int]:
    return name[0] + by[0], name[1] + by[1], name[2] + by[2]


# ---- words ----


def words_of(seed: int, step: int, stream: int, count: int) -> Words:
    """By numpy, hence fewer than of the numbers; on CPUs the kernels make the same (tests/noise)."""
    return noise.words(seed, step, stream, torch.arange(count // 4)).numpy().astype(np.uint32)


def examine_words(make: Callable[[int, int, int, int], Words], chunks: int) -> dict[str, Any]:
    """All tests of words."""
    tests, count = Tests(), chunks * CHUNK
    pairs = np.zeros((32, 32))
    following = np.zeros((32, 32))
    ones, changes, total_changes = np.zeros(32), {name: np.zeros(32) for name in PARTNERS}, 0
    octets = np.zeros((4, 256))
    progress = timing.Progress("noise, words")
    for chunk in range(chunks):
        name = (SEED, chunk, 2 + chunk % 6)
        words = make(*name, CHUNK)
        bits = _bits(words)
        ones += bits.sum(0, dtype=np.float64)
        signs = torch.from_numpy(2 * bits.astype(np.float32) - 1)  # sums of ±1 below 2²⁴ are exact in float32
        pairs += (signs.T @ signs).numpy()
        following += (signs[:-1].T @ signs[1:]).numpy()
        stream = bits.reshape(-1)
        total_changes += int(np.count_nonzero(stream[1:] != stream[:-1]))
        for place, octet in enumerate(words.view(np.uint8).reshape(-1, 4).T):
            octets[place] += np.bincount(octet, minlength=256)
        for partner, moved in PARTNERS.items():
            other = make(*_moved(name, moved), CHUNK)
            changes[partner] += _bits(words ^ other).sum(0, dtype=np.float64)
        progress.show(f"{(chunk + 1) * CHUNK:,} of {count:,}")
    half = math.sqrt(count) / 2
    tests.normals("ones in each bit", (ones - count / 2) / half)
    for place, found in enumerate(octets):
        expected = count / 256
        tests.chi_square(f"byte {place}, chi-square", float(((found - expected) ** 2).sum() / expected), 255)
    tests.normals("pairs of bits", (pairs[np.triu_indices(32, 1)] / math.sqrt(count)).tolist())
    terms = chunks * (CHUNK - 1)
    tests.normals("bits of successive words", (following / math.sqrt(terms)).ravel().tolist())
    boundaries = chunks * (32 * CHUNK - 1)
    tests.normal("runs of bits", (total_changes - boundaries / 2) / (math.sqrt(boundaries) / 2))
    for partner, changed in changes.items():
        tests.normals(f"bits changed by the {partner}", (changed - count / 2) / half)
    return {"samples": count} | tests.result()


def _bits(words: Words) -> NDArray[np.uint8]:
    """One row for each word, the highest bit first."""
    return np.unpackbits(words.astype(">u4").view(np.uint8)).reshape(-1, 32)


# ---- time ----


def time_numbers(**turns: Any) -> list[dict[str, Any]]:
    """Nanoseconds per number on one thread."""
    library = native.load()
    generator = np.random.default_rng(0)
    everyone = [
        Repeated(name="torch.randn", call=lambda: torch.randn(TIMED)),
        Repeated(name="numpy standard_normal", call=lambda: generator.standard_normal(TIMED, dtype=np.float32)),
    ]

    def at(level: int, kind: str) -> Callable[[], Tensor]:
        def make() -> Tensor:
            if library is not None:
                library.level = level
            return noise.numbers(kind, 0, 0, 2, TIMED)

        return make

    best = library.level if library is not None else 0
    try:
        for kind in noise.KINDS:
            for level in range(best + 1):
                name = native.LEVELS[level] if library is not None else "torch"
                everyone.append(Repeated(name=f"{kind}, {name}", call=at(level, kind)))
        timing.interleave(everyone, label="noise, time", **turns)
    finally:
        if library is not None:
            library.level = best
    rows = []
    for one in everyone:
        calm = [one.seconds[each] for each in timing.calm_rounds(one, one)]
        rows.append({"name": one.name, "nanoseconds": timing.quartiles(calm, 1e9 / TIMED)})
    return rows


def run(*, effort: float = 1.0, command: str = "") -> Result:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # two threads gain little here, and on a busy machine wait for each other
    try:
        result = heading("statistics and cost of the noise", command, effort=effort)
        samples = examine(max(2, round(96 * min(effort, 1.0))))
        return result | {"samples": samples, "time": time_numbers(budget=10.0 * effort)}
    finally:
        torch.set_num_threads(threads)


def examine(chunks: int) -> dict[str, Any]:
    """Both kinds of numbers and the words, each followed by its twin."""
    made = {}
    for kind in noise.KINDS:
        scale = 1 + round(10 / math.sqrt(chunks * CHUNK), 4)
        made[kind] = examine_numbers(kind, numbers_of(kind), chunks)
        made[f"{kind}, deviation {scale:g}"] = examine_numbers(kind, numbers_of(kind, scale), chunks)
    few = max(2, chunks // 12)  # numpy's words are slow
    every = round(math.sqrt(few * CHUNK) / 16)

    def biased(seed: int, step: int, stream: int, count: int) -> Words:
        words = words_of(seed, step, stream, count)
        words[::every] |= 1
        return words

    made["words"] = examine_words(words_of, few)
    made[f"words, a bit set in 1 of {every:,}"] = examine_words(biased, few)
    return made


# ---- tables ----


def tables(result: Result) -> list[str]:
    """For README.md."""
    samples = result["samples"]
    lines = []
    for name, found in samples.items():
        outcome = "flagged" if found["flagged"] else "not flagged"
        smallest = f"{found['smallest']['p']:.2g} ({found['smallest']['test']})"
        lines.append([name, f"{found['samples']:,}", str(found["tests"]), smallest, outcome])
    made = [
        *where(result),
        "",
        *table(["sample", "size", "tests", "smallest p", "flagged if p × tests < 0.001"], lines),
    ]
    for first, second in (("gaussian", "three_point"), ("words", None)):
        chosen = [name for name in samples if name.startswith(first) or (second and name.startswith(second))]
        tests = list(dict.fromkeys(test for name in chosen for test in samples[name]["p"]))
        made += [
            "",
            *table(["z, or p", *chosen], [[test, *(_cell(samples[name], test) for name in chosen)] for test in tests]),
        ]
    rows = [
        [row["name"], "{median:.2f} ({lower:.2f} to {upper:.2f})".format(**row["nanoseconds"])]
        for row in result["time"]
    ]
    return [*made, "", *table(["one thread", "nanoseconds per number"], rows)]


def _cell(sample: dict[str, Any], test: str) -> str:
    if test in sample["z"]:
        return f"{sample['z'][test]:+.2f}"
    return f"p = {sample['p'][test]:.2g}" if test in sample["p"] else "–"


if __name__ == "__main__":
    main("noise", "Statistics and cost of the noise.", run, tables)
