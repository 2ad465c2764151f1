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

    def run(name: str, method: str, variant: str, seed: int, **more: Any) -> Run:
        final = variant != "trial"
        config = {
            "kind": "train",
            "role": "final" if final else "tuning",
            "method": method,
            "variant": variant,
            "seed": seed,
        }
        # Parameters are a few megabytes each, for `ctld flatness`; of trials nobody asks.
        kept = {"keep_parameters": True} if final else {}
        return Run(name, config | {**base, "data": request.data} | more | kept)

    def options(method: str, parameters: Mapping[str, float]) -> dict[str, Any]:
        """With those that are not tuned."""
        return ({"temperature": "auto"} if method == "ctld" else {}) | tuning.options(parameters)

    trials, methods, seeds = request.settings["trials"], request.methods, request.seeds
    searched = {method: spaces[method if method in spaces else AS[method]] for method in methods}
    searches = tuning.Searches(directory, searched, trials, metric=metric, stored=request.stored_trials)
    first = [
        run(name, x, "trial", TUNING_SEED, optimizer=options(x, tried), trial=place)
        for x, name, place, tried in searches.trials()
    ]
    first += [
        run(f"{x}-paper-seed{seed}", x, "paper", seed, **paper[x]) for seed in seeds for x in methods if x in paper
    ]
    first += [
        run(f"{x}-laptop-seed{seed}", x, "laptop", seed, optimizer=options(x, (transferred or {})[x]))
        for seed in seeds
        for x in methods
        if x in (transferred or {})
    ]
    yield first
    chosen = searches.chosen()
    yield [
        run(f"{x}-tuned-seed{seed}", x, "tuned", seed, optimizer=options(x, best))
        for seed in seeds
        for x, best in chosen.items()
    ]
