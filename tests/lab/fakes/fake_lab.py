"""The study "fake", whose runs count and sleep. Its processes start without torch, hence fast."""

from ctld_lab import jobs, studies
from ctld_lab.studies.study import Run, Study


def plan(request, directory):
    base = {"kind": "train", **request.settings}
    yield [Run(f"tune-{method}", {**base, "role": "tuning", "method": method, "seed": 0}) for method in request.methods]
    tuned = {method: directory.run(f"tune-{method}").result() for method in request.methods}
    best = {method: result["value"] for method, result in tuned.items() if result is not None}
    yield [
        Run(
            f"{method}-{seed}",
            {**base, "steps": 10, "role": "final", "method": method, "seed": seed, "lr": best[method]},
        )
        for method in best
        for seed in request.seeds
    ]


FAKE = Study(
    name="fake",
    title="A study that sleeps",
    figure="Figure 0",
    varied="the method",
    tuned="nothing",
    fixed="everything",
    methods=("good", "better"),
    optional_methods=("failing", "stubborn", "slow"),
    scales={
        "smoke": {"steps": [10, 10], "sleep": 0.0, "seeds": 2, "data": "pydoc"},
        "laptop": {"steps": [30], "sleep": 0.01, "seeds": 2, "data": "pydoc"},
        "paper": {"steps": 100_000, "sleep": 0.01, "seeds": 2, "data": "pydoc"},  # as good as endless
    },
    plan=plan,
    takes="text",
)


def describe(study, request, command):
    return {
        "study": study.name,
        "scale": request.scale,
        "title": study.title,
        "figure": study.figure,
        "varied": study.varied,
        "tuned": study.tuned,
        "fixed": study.fixed,
        "methods": list(request.methods),
        "titles": {},
        "seeds": list(request.seeds),
        "data": request.data,
        "settings": dict(request.settings),
        "paper": {},
        "commands": [command],
    }


def register():
    known, names = studies.get, studies.names
    studies.get = lambda name: FAKE if name == "fake" else known(name)
    studies.names = lambda: {**names(), "fake": "Figure 0: a study that sleeps"}
    studies.describe = describe
    jobs.KINDS["train"] = "fake_kind"
    jobs._set_threads = lambda threads: None
    jobs.environment = lambda threads: {"threads": threads, "started": "2026-01-01T00:00:00Z"}
