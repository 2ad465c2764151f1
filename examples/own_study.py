"""A study of one's own, from outside the package: `ctld run examples/own_study.py`, about a minute.

Two spirals, a small network, SGD with momentum beside CTLD at three temperatures. Copy it, and change what is yours.
"""

import math

import torch
from torch import nn

from ctld_lab.streams import torch_generator
from ctld_lab.studies import Run, Study
from ctld_lab.workloads import Workload

METHODS = {"sgd": None, "ctld_cool": 0.001, "ctld_auto": "auto", "ctld_hot": 1.0}


class Spirals(Workload):
    """Model, data, loss and metrics; nothing about optimizers. All that is random comes from streams of the run's seed."""

    def __init__(self, config):
        options, seed = config["workload"], int(config["seed"])
        self.num_data, self.batch_size = options["num_data"], 50
        self.splits = {
            name: self.draw(torch_generator(seed, "subset", index)) for index, name in enumerate(("train", "test"))
        }
        self.batches = torch_generator(seed, "data")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(torch_generator(seed, "initialisation").initial_seed())
            self.model = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 2))

    def draw(self, generator):
        label = torch.arange(self.num_data) % 2
        turn = 3.0 * torch.rand(self.num_data, generator=generator).sqrt() * math.pi
        place = torch.stack((turn.cos(), turn.sin()), 1) * (turn / 6.0 * (1.0 - 2.0 * label))[:, None]
        return place + 0.1 * torch.randn(place.shape, generator=generator), label

    def loss(self, step):
        inputs, labels = self.splits["train"]
        rows = torch.randint(self.num_data, (self.batch_size,), generator=self.batches)
        return nn.functional.cross_entropy(self.model(inputs[rows]), labels[rows])

    @torch.no_grad()
    def evaluate(self, *, thorough):
        found = {}
        for split, (inputs, labels) in self.splits.items():
            logits = self.model(inputs)
            wrong = (logits.argmax(1) != labels).double().mean()
            found[split] = {"nll": float(nn.functional.cross_entropy(logits, labels)), "error": 100.0 * float(wrong)}
        return found

    def state(self):
        """What a run needs to go on to the same bits: the order of the batches is a part of it."""
        return {"model": dict(self.model.state_dict()), "batches": self.batches.get_state()}

    def load_state(self, state):
        self.model.load_state_dict(state["model"])
        self.batches.set_state(state["batches"])


def plan(request, directory):
    """The runs: a name for each, and everything that decides its numbers. A plan that tunes first yields twice."""
    settings = request.settings
    yield [
        Run(
            f"{method}-seed{seed}",
            {
                "kind": "train",
                "study": "spirals",
                "scale": request.scale,
                "role": "final",
                "method": method,
                "algorithm": "sgd" if METHODS[method] is None else "ctld",
                "variant": "",
                "seed": seed,
                "data": {},
                "workload": {"name": "spirals", "num_data": settings["num_data"]},
                "steps": [settings["steps"]],
                "exploration_steps": settings["steps"] // 2,
                "evaluations": 5,
                "checkpoint_seconds": 10.0,
                "optimizer": {"lr": 0.1, "momentum": 0.9, "weight_decay": 1e-4}
                | ({} if METHODS[method] is None else {"temperature": METHODS[method]}),
            },
        )
        for seed in request.seeds
        for method in request.methods
    ]


STUDY = Study(
    name="spirals",
    title="Two spirals",
    figure="a study of one's own",
    varied="the method, and the temperature of CTLD",
    tuned="nothing",
    fixed="network 2-32-32-2, lr 0.1, momentum 0.9, weight decay 1e-4, half of the steps explore",
    methods=tuple(METHODS),
    titles={"sgd": "SGD-M", "ctld_cool": "CTLD, T = 0.001", "ctld_auto": "CTLD, T auto", "ctld_hot": "CTLD, T = 1"},
    scales={
        "laptop": {"seeds": 5, "num_data": 400, "steps": 4000},
        "smoke": {"seeds": 2, "num_data": 100, "steps": 40},
    },
    plan=plan,
    workloads={"spirals": Spirals},
)
