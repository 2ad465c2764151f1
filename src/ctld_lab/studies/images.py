"""Images: a photograph fitted by k Gaussians. Does noise on their positions keep the fit out of bad minima?

varied   the first 60 % of the gradients: Adam, Adam with relocations, Adam with noise, CTLD's exploration at three kinds of T,
         and, if they are named, CTLD at a lower lr and with a mass
tuned    lr (three values, the same for all) and three levels of T, of relocation or of finer lr: nine trials for each
fixed    the number of gradients, momentum, Adam at a falling lr for the rest of them

The protocol is docs/protocols/images.md, what came out docs/images.md. Tables and the figure are made anew, without running
anything, by `python -m ctld_lab.studies.images results/images docs/images.md`.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from ctld_lab.files import MissingRecord, write_bytes
from ctld_lab.images import show
from ctld_lab.images.methods import EVERY_METHOD, METHODS
from ctld_lab.images.study import Size, carry_out
from ctld_lab.report.markdown import document
from ctld_lab.studies.asking import refuse_unknown

COUNTS = {"smoke": (9,), "laptop": (64, 128, 256), "paper": (64, 128, 256)}
"""Gaussians, in the order in which they are computed."""
SIZES = {
    "smoke": Size(budget=40, seeds=1, tuning=("china",), final=("china", "flower")),
    "laptop": Size(budget=600, seeds=3),
    "paper": Size(budget=5000, seeds=10),
}


def execute(scale: str, directory: Path, methods: Sequence[str] = (), problems: Sequence[str] = ()) -> None:
    """Computes what is missing in `directory`; all methods and numbers of Gaussians unless some are named."""
    import torch

    from ctld_lab.jobs import environment

    refuse_unknown({"scale": ([scale], SIZES), "method": (methods, EVERY_METHOD)})
    counts = {str(count): count for count in COUNTS[scale]}
    refuse_unknown({"number of Gaussians": (problems, counts)})
    torch.set_num_threads(1)  # matrices are thin: threads would wait for each other
    about = environment(1) | {"command": " ".join(["ctld", *sys.argv[1:]])}
    for count in map(int, problems or counts):
        for method in methods or METHODS:
            carry_out(directory, count, method, SIZES[scale], about)
    try:
        show.write(directory)
    except MissingRecord as error:  # some of the methods were asked for, and that is what was done
        print(error)


if __name__ == "__main__":
    texts = show.write(Path(sys.argv[1]))
    for page in map(Path, sys.argv[2:]):
        write_bytes(page, document(page.read_text(encoding="utf-8"), texts).encode())
