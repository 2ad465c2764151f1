"""Real posteriors: how near samplers come to a long NUTS run, and what they predict on the UCI regression sets.

varied   the sampler, with and without tempering; on UCI's data SGD with momentum and `ctld.Ensemble` beside them
tuned    lr at three levels for each sampler; on UCI's data lr and prior, four trials for each method and split
fixed    T = 1, the number of gradients, network and batches

The protocol is docs/protocols/posterior.md, what came out docs/posterior.md. Tables are made anew, without running anything, by
`python -m ctld_lab.studies.posterior results/posterior docs/posterior.md`.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from ctld_lab.data import uci
from ctld_lab.files import write_bytes
from ctld_lab.posterior import agreement, regression, tables
from ctld_lab.posterior.problems import PROBLEMS
from ctld_lab.posterior.samplers import available
from ctld_lab.report.markdown import document
from ctld_lab.studies.asking import refuse_unknown

AGREEMENT = {
    "smoke": agreement.Size(steps=400, tuning=1, final=1),
    "laptop": agreement.Size(steps=20_000, tuning=1, final=4),
    "paper": agreement.Size(steps=200_000, tuning=4, final=20),
}
REGRESSION = {
    "smoke": regression.Size(steps=60, splits=2),
    "laptop": regression.Size(steps=3000, splits=20),
    "paper": regression.Size(steps=40_000, splits=20),
}
STORED = Path(__file__).parents[3] / "results" / "posterior" / "reference"
"""The references of a clone of the repository."""


def execute(
    scale: str,
    directory: Path,
    methods: Sequence[str] = (),
    problems: Sequence[str] = (),
    data_dir: Path | None = None,
) -> None:
    """Computes what is missing in `directory`: all problems, data sets and methods, unless some are named."""
    import torch

    from ctld_lab.jobs import environment

    torch.set_num_threads(1)  # chains are many and small: threads would wait for each other
    samplers, ways = [*available()], [*regression.METHODS]
    known = {"scale": ([scale], AGREEMENT), "problem": (problems, [*PROBLEMS, *uci.DATA])}
    refuse_unknown(known | {"method": (methods, list(dict.fromkeys([*samplers, *ways])))})
    about = environment(1) | {"command": " ".join(["ctld", *sys.argv[1:]])}
    references = directory / "reference" if (directory / "reference").is_dir() else STORED
    for name in problems or (["hats"] if scale == "smoke" else PROBLEMS):
        chosen = [sampler for sampler in samplers if not methods or sampler in methods]
        if name in PROBLEMS and chosen:
            folder = directory / "agreement"
            agreement.carry_out(PROBLEMS[name](), folder, references, AGREEMENT[scale], chosen, about)
    for name in problems or uci.found(data_dir):
        chosen = [way for way in ways if not methods or way in methods]
        if name in uci.DATA and chosen:
            folder = directory / "regression"
            regression.carry_out(name, folder, REGRESSION[scale], chosen, about, data_dir)
    tables.write(directory, references)


if __name__ == "__main__":
    texts = tables.write(Path(sys.argv[1]), Path(sys.argv[1]) / "reference")
    for page in map(Path, sys.argv[2:]):
        write_bytes(page, document(page.read_text(encoding="utf-8"), texts).encode())
