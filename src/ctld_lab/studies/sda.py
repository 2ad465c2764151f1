"""Fig. 2: a stacked denoising autoencoder on MNIST, layer by layer; learning curves and the temperature of the last layer.

Half the widths and 1,500 steps a layer at laptop scale; exploration keeps the paper's share of a layer's steps, 18 %.
"""

from collections.abc import Iterator

from ctld_lab.records import StudyDirectory
from ctld_lab.studies.comparison import COMPARED, OTHERS, compare
from ctld_lab.studies.study import Request, Run, Study

EXPLORATION_SHARE = 1.8e4 / 1e5
PAPER_DATA = 60_000

# In this library's units, lr on the mean loss: Santa's η is lr/N, CTLD's η² is lr/N.
PAPER = {
    "sgd": {"optimizer": {"lr": 0.1, "momentum": 0.0}},
    "rmsprop": {"optimizer": {"lr": 0.001}},
    "adam": {"optimizer": {"lr": 0.001}},
    "anneal_sgd": {"optimizer": {"lr": 0.1}},
    "santa": {"optimizer": {"lr": 4e-11 * PAPER_DATA}},
    "ctld": {"optimizer": {"lr": PAPER_DATA * 8e-4**2, "momentum": 0.0, "temperature": 1.0}},
}
# Two decades of learning rates for every method, around where a short look at validation data found it to work at all. Santa
# does so only with a larger λ than its paper's 1e-8, under which weights of pixels that are always black run away.
SPACES = {
    "sgd": {"lr": (0.02, 2.0), "friction": (0.05, 1.0)},
    "rmsprop": {"lr": (1e-4, 1e-2)},
    "adam": {"lr": (1e-4, 1e-2)},
    "adadelta": {"lr": (0.02, 2.0)},
    "anneal_sgd": {"lr": (0.003, 0.3), "friction": (0.05, 1.0)},
    "santa": {"lr": (1e-7, 1e-5), "epsilon": (1e-6, 1e-2)},
    "ctld": {"lr": (0.02, 2.0), "friction": (0.05, 1.0)},
}

# What the trials at laptop scale chose (results/laptop/tables/sda.csv): run at the paper's scale too.
LAPTOP = {
    "sgd": {"lr": 0.399, "friction": 0.059},
    "rmsprop": {"lr": 0.000394},
    "adam": {"lr": 0.00199},
    "anneal_sgd": {"lr": 0.00741, "friction": 0.189},
    "santa": {"lr": 6.31e-6, "epsilon": 0.00412},
    "ctld": {"lr": 0.399, "friction": 0.059},
}


def plan(request: Request, directory: StudyDirectory) -> Iterator[list[Run]]:
    settings = request.settings
    widths, steps = settings["widths"], settings["steps"]
    base = {
        "study": "sda",
        "scale": request.scale,
        "workload": {"name": "sda", "widths": widths, "batch_size": settings["batch_size"]} | settings.get("more", {}),
        "steps": [steps] * (len(widths) - 1),
        "exploration_steps": round(EXPLORATION_SHARE * steps),
        "evaluations": settings["evaluations"],
        "checkpoint_seconds": settings["checkpoint_seconds"],
    } | settings.get("loop", {})
    transferred = LAPTOP if request.scale == "paper" else None
    yield from compare(
        request, directory, base=base, paper=PAPER, spaces=SPACES, metric="image_mse", transferred=transferred
    )


STUDY = Study(
    name="sda",
    title="Stacked denoising autoencoder",
    figure="Figure 2",
    varied="the method",
    tuned="learning rate; momentum of SGD-M, AnnealSGD and CTLD, λ of Santa: equal trials, judged by the image that comes back "
    "through the whole stack, on 1/12 of the training data held out (a layer's error on its own input would favour dead codes)",
    fixed="widths, dropout 0.2, batches, steps per layer, exploration 18 % of a layer's steps, no weight decay, initial "
    "weights and batches of each seed. CTLD tuned: T automatic; CTLD as in the paper: T = 1",
    methods=COMPARED,
    optional_methods=OTHERS,
    takes="images",
    scales={
        "smoke": {
            "data": "digits", "seeds": 2, "trials": 2, "widths": [784, 32, 32, 64, 10], "batch_size": 64, "steps": 24,
            "evaluations": 3, "checkpoint_seconds": 0.05, "more": {"curve_rows": 100},
        },
        "demo": {
            "data": "digits", "seeds": 3, "trials": 4, "widths": [784, 100, 100, 200, 10], "batch_size": 128, "steps": 500,
            "evaluations": 10, "checkpoint_seconds": 5.0,
        },
        "laptop": {
            "data": "mnist", "seeds": 3, "trials": 8, "widths": [784, 250, 250, 1000, 10], "batch_size": 128, "steps": 1500,
            "evaluations": 10, "checkpoint_seconds": 20.0,
        },
        "paper": {
            "data": "mnist", "seeds": 3, "trials": 16, "widths": [784, 500, 500, 2000, 10], "batch_size": 128,
            "steps": 100_000, "evaluations": 100, "checkpoint_seconds": 60.0,
            # Averages of gradients that have died decay for so long that they end below what a processor is quick with.
            "loop": {"flush_denormals": True},
        },
    },
    plan=plan,
    paper={
        "metric": "mse",
        "split": "train",
        "steps": 400_000,
        "num_data": PAPER_DATA,
        "learning_rates": {"sgd": 0.1, "rmsprop": 0.001, "adam": 0.001, "anneal_sgd": 0.1, "santa": 4e-11, "ctld": 8e-4},
        "values": {"ctld": "0.006", "santa": "0.02", "anneal_sgd": "0.02", "rmsprop": "0.03–0.05", "sgd": "0.03–0.05",
                   "adam": "0.03–0.05"},
        "note": "read off the published figure, end of layer 4; CTLD's learning rate is η, Santa's is on the summed loss",
    },
)  # fmt: skip
