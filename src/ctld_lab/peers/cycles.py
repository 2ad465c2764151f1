"""`ctld.Ensemble` in its kinds: T by itself, given or tuned; constant within an exploration, or moving."""

from collections.abc import Callable

from torch import Tensor

from ctld import Ensemble
from ctld.ensembles.temperings import Named
from ctld_lab.peers.problems import Problem
from ctld_lab.peers.training import MOMENTUM, Noted, Options, Predict, descend, together
from ctld_lab.streams import stream_seed


def cycles(temperature: float | str, tempering: Named = "constant") -> Callable[[Problem, Options, int], Predict]:
    """`ctld.Ensemble`; its T is what was given, or tuned where "tuned" was."""

    def train(problem: Problem, options: Options, seed: int) -> Predict:
        model = problem.model(seed)
        ensemble = Ensemble(
            model,
            options["lr"],
            problem.num_data,
            problem.size.steps,
            cycles=problem.size.cycles,
            momentum=MOMENTUM,
            weight_decay=options["weight_decay"],
            temperature=options["temperature"] if temperature == "tuned" else temperature,  # type: ignore[arg-type]
            tempering=tempering,
            seed=stream_seed(seed, "noise"),
        )
        ratios = []

        def advance(gradient: Callable[[], Tensor]) -> None:
            if ensemble.optimizer.exploring:
                ratios.append(ensemble.optimizer.temperature_ratio)
            ensemble.step(gradient())

        descend(problem, model, advance, seed)
        if not ensemble:
            raise FloatingPointError("every cycle has collapsed")
        members = together(model, [sample.state for sample in ensemble.collector])
        if not ratios:
            return members  # at T = 0 it does not explore
        # What it came to, where it is adapted; and how hot it was on average, beside the T that was asked for.
        return Noted(members, {"temperature": ensemble.temperature, "mean_ratio": sum(ratios) / len(ratios)})

    return train
