"""Where the answer is known: does the paper's sampler have the law of Theorem 1, and are the rates of Theorem 2 seen?

The double well of `ctld_lab.sampling.targets`, with exact answers. Two kinds of runs: single chains, tempered and not,
against quadrature (`ctld_lab.sampling.double_well`), and many chains at once for the rates (`ctld_lab.sampling.theorem`).
"""

from collections.abc import Iterator
from typing import Any

from ctld_lab.records import StudyDirectory
from ctld_lab.studies.study import Request, Run, Study

STEP_SIZE = 0.02
"""Of the runs over the number of steps."""


def _theorem(
    replicas: tuple[int, int], time: tuple[float, float], none: list[float], others: list[float]
) -> dict[str, Any]:
    """Chains of Theorem 2 by tempering: replicas, time Lη, and the step sizes compared, without tempering and with it."""
    tempered = {"replicas": replicas[1], "time": time[1], "step_sizes": others}
    return {
        "none": {"replicas": replicas[0], "time": time[0], "step_sizes": none},
        "paper": tempered,
        "fixed": tempered,
    }


def _noise(replicas: int, time: float, sizes: list[float]) -> dict[str, Any]:
    """Chains of Theorem 2 with minibatch noise, in one dimension and in ten: as many chains in all."""
    return {"noises": sizes, "time": time, "replicas": {"1": replicas, "10": max(replicas // 4, 2)}}


_NOISES = [0.0, 2.0, 4.0, 6.0, 8.0]
_SIZES, _TEMPERED = [0.08, 0.056, 0.04, 0.028, 0.02], [0.04, 0.02, 0.01, 0.005]


def plan(request: Request, _: StudyDirectory) -> Iterator[list[Run]]:
    """Plan all runs at once: none depends on another."""
    settings = request.settings
    runs = []
    for dimensions, steps in settings["chains"]:
        for variant in ("tempered", "untempered"):
            for seed in request.seeds:
                config = {"variant": variant, "dimensions": dimensions, "steps": steps, "seed": seed}
                runs.append(
                    request.final("double-well", f"{variant}-d{dimensions}-seed{seed}", "double_well", **config)
                )
    for tempering, chosen in settings["theorem"].items():
        common = {"tempering": tempering, "dimensions": 1, "replicas": chosen["replicas"], "seed": 0}
        if tempering != "fixed":  # at one step size nothing else is
            config = {"variant": "steps", "step_size": STEP_SIZE, "time": settings["theorem_time"]}
            name = f"theorem-steps-{tempering}-eta{STEP_SIZE}"
            runs.append(request.final("double-well", name, "theorem", **common, **config))
        config = {"variant": "step_size", "step_sizes": chosen["step_sizes"], "time": chosen["time"]}
        runs.append(request.final("double-well", f"theorem-step-size-{tempering}", "theorem", **common, **config))
    chosen = settings["noise"]
    for tempering in ("none", "paper"):
        for dimensions, replicas in chosen["replicas"].items():
            for compensated in (False, True):
                common = {"tempering": tempering, "dimensions": int(dimensions), "replicas": replicas, "seed": 0}
                config = {
                    "variant": "noise",
                    "step_size": STEP_SIZE,
                    "time": chosen["time"],
                    "noises": chosen["noises"],
                }
                name = f"theorem-noise-{tempering}-d{dimensions}{'-compensated' * compensated}"
                config |= {"compensated": compensated, "point": {"d": int(dimensions), "compensated": int(compensated)}}
                runs.append(request.final("double-well", name, "theorem", **common, **config))
    yield runs


STUDY = Study(
    name="double-well",
    title="Exploration against exactness on a double well",
    figure="Theorems 1 and 2",
    varied="dimension and tempering (the paper's, or none); number of steps, step size, minibatch noise and its compensation",
    tuned="nothing",
    fixed="U = 8(x² − 1)² + ½Σy², N = T = 1, friction 1, the paper's formulas with mass 1; η = 0.02 unless varied",
    methods=(),
    scales={
        "smoke": {
            "seeds": 1, "chains": [[1, 2000], [10, 2000]], "theorem_time": 32.0,
            "theorem": _theorem((64, 32), (16.0, 16.0), [0.08, 0.04, 0.02], [0.04, 0.028, 0.02]),
            "noise": _noise(32, 8.0, [0.0, 4.0, 8.0]),
        },
        # A quarter of the steps at d = 1,000, as in the study that found this.
        "laptop": {
            "seeds": 3, "chains": [[1, 400_000], [10, 400_000], [100, 400_000], [1000, 100_000]], "theorem_time": 1024.0,
            "theorem": _theorem((8192, 1024), (512.0, 256.0), _SIZES, _TEMPERED), "noise": _noise(1024, 256.0, _NOISES),
        },
        "paper": {
            "seeds": 5, "chains": [[1, 400_000], [10, 400_000], [100, 400_000], [1000, 400_000]], "theorem_time": 4096.0,
            "theorem": _theorem((8192, 1024), (4096.0, 2048.0), [*_SIZES, 0.014, 0.01], _TEMPERED),
            "noise": _noise(4096, 1024.0, _NOISES),
        },
    },
    plan=plan,
    paper={"bias": {"steps": -1.0, "step_size": 1.0}, "mse": {"steps": -1.0, "step_size": 2.0}},
)  # fmt: skip
