"""Methods compared on one workload: each at the paper's own learning rate, and each tuned at equal cost."""

from collections.abc import Iterator, Mapping
from typing import Any

from ctld import OPTIMIZERS
from ctld_lab import tuning
from ctld_lab.records import StudyDirectory
from ctld_lab.studies.study import Request, Run

TUNING_SEED = 1000  # far from the seeds of the runs that count

COMPARED = ("sgd", "rmsprop", "adam", "anneal_sgd", "santa", "ctld")
# Methods that a study has no space for are searched as another whose learning rates are of the same size.
AS = {
    "sghmc": "sgd",
    "sgnht": "sgd",
    "langevin": "sgd",
    "csghmc": "sgd",
    "sgld": "adadelta",
    "simulated_annealing": "adadelta",
    "psgld": "rmsprop",
}
OTHERS = tuple(name for name, method in OPTIMIZERS.items() if not method.needs_process_group and name not in COMPARED)


def compare(
    request: Request,
    directory: StudyDirectory,
    *,
    base: Mapping[str, Any],
    paper: Mapping[str, Mapping[str, Any]],
    spaces: Mapping[str, tuning.Space],
    metric: str,
    transferred: Mapping[str, Mapping[str, float]] | None = None,
) -> Iterator[list[Run]]:
    """Trials, the paper's settings and those `transferred` from another scale first; then what the trials chose.

    `base` is what all runs share. `paper` has the paper's options by method, under "optimizer", and more of the
    configuration where a method had it. `spaces` are searched. `transferred` has what laptop scale chose of them.
    """

    def run(name: str, method: str, variant: str, seed: int, role: str, **more: Any) -> Run:
        config = {
            "kind": "train",
            "role": role,
            "method": method,
            "variant": variant,
            "seed": seed,
            **base,
            "data": request.data,
            **more,
        }
        if role == "final":  # a few megabytes each, for `ctld flatness`; of trials nobody asks
            config["keep_parameters"] = True
        return Run(name, config)

    def fixed(method: str) -> dict[str, Any]:
        """Options that are not tuned."""
        return {"temperature": "auto"} if method == "ctld" else {}

    trials = request.settings["trials"]
    chosen_elsewhere = transferred or {}
    proposals: dict[str, list[dict[str, float]]] = {}
    searched: dict[str, tuning.Space] = {}
    for method in request.methods:
        searched[method] = spaces[method if method in spaces else AS[method]]
        proposals[method] = tuning.propose(searched[method], trials)
    # Trial by trial, method by method: an interrupted search has tried the same number of each.
    first = [
        run(
            f"tune-{method}-{index:02d}",
            method,
            "trial",
            TUNING_SEED,
            "tuning",
            optimizer=fixed(method) | tuning.options(proposals[method][index]),
            trial=index,
        )
        for index in range(trials)
        for method in request.methods
    ]
    first += [
        run(f"{method}-paper-seed{seed}", method, "paper", seed, "final", **paper[method])
        for seed in request.seeds
        for method in request.methods
        if method in paper
    ]
    first += [
        run(
            f"{method}-laptop-seed{seed}",
            method,
            "laptop",
            seed,
            "final",
            optimizer=fixed(method) | tuning.options(dict(chosen_elsewhere[method])),
        )
        for seed in request.seeds
        for method in request.methods
        if method in chosen_elsewhere
    ]
    yield first
    if not trials:
        return
    chosen = {}
    for method in request.methods:
        tried = [(directory.run(f"tune-{method}-{index:02d}"), proposals[method][index]) for index in range(trials)]
        # Where a trial failed its method waits for it to be mended; the others go on.
        if all(place.result() is not None for place, _ in tried):
            chosen[method] = tuning.choose(directory, method, searched[method], tried, metric=metric)
    yield [
        run(
            f"{method}-tuned-seed{seed}",
            method,
            "tuned",
            seed,
            "final",
            optimizer=fixed(method) | tuning.options(best),
        )
        for seed in request.seeds
        for method, best in chosen.items()
        if best is not None
    ]
