"""Real posteriors: how near samplers come to a long NUTS run, and what they predict on the UCI regression sets.

varied   the sampler, with and without tempering; on UCI's data SGD with momentum and `ctld.Ensemble` beside them
tuned    lr at three levels for each sampler; on UCI's data lr and prior, four trials for each method and split
fixed    T = 1, the number of gradients, network and batches
"""

from collections.abc import Sequence
from pathlib import Path

from cells import Cell, Study
from ctld_lab.data import uci

from . import agreement, regression
from .problems import PROBLEMS
from .samplers import SAMPLERS
from .tables import LONG, findings, pack

SETS = [name for name in uci.DATA if name != "diabetes20"]


def near(problem: str, sampler: str, steps: int, tuning: int, final: int) -> Cell:
    facts = {"problem": problem, "sampler": sampler, "steps": steps, "tuning_chains": tuning, "final_chains": final}
    return Cell(
        f"agreement/{problem}/{sampler}",
        facts,
        lambda found: agreement.work(found, problem, sampler, steps, tuning, final),
    )


def fits(data: str, method: str, steps: int, splits: int = uci.SPLITS) -> Cell:
    facts = {"problem": data, "method": method, "steps": steps, "splits": splits}
    name = f"regression/{data}{'-long' if steps == LONG else ''}/{method}"
    return Cell(name, facts, lambda found: regression.work(found, data, method, steps, splits))


def smoke(directory: Path) -> Sequence[Cell]:
    some = [near("hats", name, 1400, 1, 2) for name in ("baoab", "resgld")]
    return some + [fits("diabetes20", name, 60, 2) for name in ("sgd", "ensemble", "baoab")]


def laptop(directory: Path) -> Sequence[Cell]:
    part_1 = [near(problem, sampler, 20_000, 1, 4) for problem in PROBLEMS for sampler in SAMPLERS]
    part_2 = [fits(data, method, 3000) for data in SETS for method in regression.METHODS]
    part_3 = [fits(data, method, LONG) for data in ("concrete", "energy") for method in ("baoab", "calibrated")]
    return part_1 + part_2 + part_3


STUDY = Study("posterior", {"smoke": smoke, "laptop": laptop}, pack, findings)
