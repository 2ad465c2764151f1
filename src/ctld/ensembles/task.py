"""Task: the kind of a model's outputs, told by the user or inferred from the training loss."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional

TaskName = Literal["classification", "binary", "multilabel", "regression"]
Head = Literal["mean", "mean_variance", "mean_log_variance"]

# How many nodes of the graph behind a loss are looked at: a factor, a sum or a mean may lie above the loss itself.
_NODES = 12
# How far a row of probabilities may be from a sum of one, by precision.
_ROUNDING = {torch.float64: 1e-6, torch.float32: 1e-4}
_EACH = {
    "classification": "one logit for each class",
    "binary": "one logit for each input",
    "multilabel": "one logit for each label",
    "regression": "numbers",
}


@dataclass(frozen=True)
class Task:
    """Task of a model: the kind of its outputs.

    Parameters
    ----------
    names : tuple of str
        "classification", "binary", "multilabel" or "regression"; several while the loss alone cannot tell them apart.
    class_dim : int, optional
        The dimension of the classes. It has to be given for outputs of three dimensions and more.
    head : "mean", "mean_variance" or "mean_log_variance", optional
        For a regression: outputs are numbers, a pair (mean, variance), or means and logarithms of variances. The last are a
        pair or the two halves of the last dimension.
    """

    names: tuple[TaskName, ...]
    class_dim: int | None = None
    head: Head | None = None

    @property
    def name(self) -> TaskName:
        """The task, once it is known."""
        if len(self.names) > 1:
            raise ValueError(f"task must be known, got one of {self.names}. Give task={self.names[0]!r} or the other")
        return self.names[0]

    def settled(self, output: Any, model: nn.Module | None = None) -> Task:
        """Return the task for outputs like this one, or raise an error that says what does not fit."""
        if self.names == ("binary", "multilabel"):
            single = isinstance(output, Tensor) and (output.ndim < 2 or output.shape[-1] == 1)
            return replace(self, names=("binary" if single else "multilabel",)).settled(output, model)
        if self.name == "regression":
            return self._settled_regression(output)
        if not isinstance(output, Tensor):
            raise _unfit(self.name, output)
        if self.name == "classification":
            return self._settled_classification(output)
        if self.name == "binary" and output.ndim > 1 and output.shape[-1] != 1:
            raise _unfit(self.name, output)
        if self.name == "multilabel" and output.ndim < 2:
            raise _unfit(self.name, output)
        if _are_probabilities_of_one(output, model):
            raise ValueError(
                f'outputs for task="{self.name}" must be logits, got numbers from 0 to 1. Remove the Sigmoid from the model, '
                "or give forward=lambda model, x: model(x).logit()"
            )
        return self

    def _settled_classification(self, output: Tensor) -> Task:
        if output.ndim < 2:
            raise _unfit(self.name, output)
        if output.ndim > 2 and self.class_dim is None:
            raise ValueError(
                f"class_dim must be given for outputs of shape {tuple(output.shape)}. Give class_dim=1 if the classes are in "
                "the second dimension, class_dim=-1 if they are in the last"
            )
        dim = -1 if self.class_dim is None else self.class_dim
        if not -output.ndim <= dim < output.ndim:
            raise ValueError(f"class_dim must be a dimension of the outputs, got {dim} for shape {tuple(output.shape)}")
        if output.shape[dim] < 2:
            raise _unfit(self.name, output)
        rows = output.detach().movedim(dim, -1)
        if bool((rows >= 0).all()) and bool(((rows.sum(-1) - 1).abs() < _ROUNDING.get(rows.dtype, 2e-2)).all()):
            raise ValueError(
                'outputs for task="classification" must be logits, got probabilities that add up to one. Remove the Softmax '
                "from the model, or give forward=lambda model, x: model(x).log()"
            )
        return replace(self, class_dim=dim)

    def _settled_regression(self, output: Any) -> Task:
        pair = isinstance(output, tuple | list) and len(output) == 2 and all(isinstance(o, Tensor) for o in output)
        if not pair and not isinstance(output, Tensor):
            raise _unfit(self.name, output)
        head = self.head
        if head is None:
            if not pair and output.ndim > 1 and output.shape[-1] == 2:
                raise ValueError(
                    f"head must be given for outputs of shape {tuple(output.shape)}. Give head='mean' for two numbers, "
                    "head='mean_log_variance' for a mean and the logarithm of a variance"
                )
            head = "mean_variance" if pair else "mean"
        if pair and head == "mean":
            raise ValueError("outputs for head='mean' must be a tensor, got a pair. Give head='mean_variance'")
        if not pair and head == "mean_variance":
            raise ValueError("outputs for head='mean_variance' must be a pair of tensors, got one tensor")
        if not pair and head == "mean_log_variance" and (output.ndim < 2 or output.shape[-1] % 2):
            raise ValueError(
                "outputs for head='mean_log_variance' must have means and logarithms of variances in the last dimension, got "
                f"shape {tuple(output.shape)}. Give the model twice as many outputs as targets"
            )
        return replace(self, head=head)

    # ---- reading outputs ----

    def log_probabilities(self, output: Tensor) -> Tensor:
        """Return logarithms of probabilities, classes last. A label of its own has two: no and yes."""
        logits = output.detach().to("cpu", torch.float64)
        if self.name == "classification":
            return logits.movedim(-1 if self.class_dim is None else self.class_dim, -1).log_softmax(-1)
        if self.name == "binary" and logits.ndim > 1:
            logits = logits.squeeze(-1)
        return torch.stack([functional.logsigmoid(-logits), functional.logsigmoid(logits)], dim=-1)

    def moments(self, output: Any) -> tuple[Tensor, Tensor]:
        """Return predicted means and variances; variances are 0 for a model that predicts none."""
        mean, second = self.parts(output)
        mean = mean.detach().to("cpu", torch.float64, copy=True)
        if second is None:
            return mean, torch.zeros_like(mean)
        second = second.detach().to("cpu", torch.float64, copy=True)
        variance = second.exp() if self.head == "mean_log_variance" else second
        if variance.shape != mean.shape or (variance < 0).any():
            raise ValueError(
                "variances must have the shape of the means and must not be negative, got shape "
                f"{tuple(variance.shape)} and a least value of {float(variance.min()):.3g}"
            )
        return mean, variance

    def parts(self, output: Any) -> tuple[Tensor, Tensor | None]:
        """Return the means of a regression's outputs, and what says their variance, if there is something."""
        if isinstance(output, tuple | list):
            return output[0], output[1]
        if self.head == "mean_log_variance":
            mean, log_variance = output.chunk(2, dim=-1)
            return mean, log_variance
        return output, None

    # ---- training ----

    def loss(self, output: Any, target: Tensor) -> Tensor:
        """Return the mean negative log-likelihood of a batch, for outputs of the model and its targets.

        Without a predicted variance it is half the mean squared error, that of a Gaussian of variance one.
        """
        output = getattr(output, "logits", output)
        fitted = self.settled(output)
        if fitted.name == "classification":
            return functional.cross_entropy(output.movedim(fitted.class_dim or -1, 1), target)
        if fitted.name in ("binary", "multilabel"):
            return functional.binary_cross_entropy_with_logits(output, _shaped(target, output).to(output.dtype))
        mean, second = fitted.parts(output)
        target = _shaped(target, mean).to(mean.dtype)
        if second is None:
            return 0.5 * functional.mse_loss(mean, target)
        if fitted.head == "mean_variance":
            return functional.gaussian_nll_loss(mean, target, second)
        return 0.5 * (second + (target - mean).square() * (-second).exp()).mean()


def as_task(
    task: Task | str | None, *, class_dim: int | None = None, head: str | None = None, kind: str | None = None
) -> Task | None:
    """Return the task that the options name; None if they name none. `kind` is the name that `task` had before 0.3."""
    task = kind if task is None else task
    if isinstance(task, Task):
        return task
    if task is None:
        if class_dim is not None:
            task = "classification"
        elif head is not None:
            task = "regression"
        else:
            return None
    if task not in get_args(TaskName):
        raise ValueError(f"task must be one of {', '.join(map(repr, get_args(TaskName)))}, got {task!r}")
    if head is not None and head not in get_args(Head):
        raise ValueError(f"head must be one of {', '.join(map(repr, get_args(Head)))}, got {head!r}")
    if head is not None and task != "regression":
        raise ValueError(f"head must be left out for task={task!r}, got {head!r}. It is for task='regression'")
    if class_dim is not None and (task != "classification" or isinstance(class_dim, bool)):
        raise ValueError(f"class_dim must be left out for task={task!r}, got {class_dim}. It is for classification")
    return Task((task,), class_dim, head)  # type: ignore[arg-type]


def task_of_loss(loss: Tensor) -> Task | None:
    """Return the task that a loss belongs to, by the graph behind it; None where that leaves a doubt."""
    found: set[Task] = set()
    waiting, seen = deque([loss.grad_fn]), 0
    while waiting and seen < _NODES:
        node = waiting.popleft()
        if node is None:
            continue
        seen += 1
        name = node.name()
        if name.startswith("NllLoss"):
            # Over a dimension of its own: the classes are in the second one, where torch's losses have them.
            found.add(Task(("classification",), 1 if name.startswith("NllLoss2D") else None))
        elif name.startswith("BinaryCrossEntropyWithLogits"):
            found.add(Task(("binary", "multilabel")))
        elif name.startswith(("MseLoss", "SmoothL1Loss", "HuberLoss")):
            found.add(Task(("regression",), head="mean"))
        else:
            waiting.extend(parent for parent, _ in node.next_functions)
    return found.pop() if len(found) == 1 else None


def _unfit(name: TaskName, output: Any) -> ValueError:
    got = f"shape {tuple(output.shape)}" if isinstance(output, Tensor) else f"a {type(output).__name__}"
    others = [f'task="{other}" for {each}' for other, each in _EACH.items() if other != name]
    return ValueError(f'outputs for task="{name}" must be {_EACH[name]}, got {got}. Give {", ".join(others)}')


def _are_probabilities_of_one(output: Tensor, model: nn.Module | None) -> bool:
    if not bool(((output >= 0) & (output <= 1)).all()):
        return False
    leaves = [] if model is None else [module for module in model.modules() if not list(module.children())]
    if leaves and isinstance(leaves[-1], nn.Sigmoid):
        return True
    # Logits of many inputs that fill the range from 0 to 1 and never leave it are none.
    return output.numel() >= 20 and bool(output.min() < 0.1) and bool(output.max() > 0.9)


def _shaped(target: Tensor, output: Tensor) -> Tensor:
    """Return the target in the output's shape, where they differ by a last dimension of one: torch would broadcast."""
    shapes: Sequence[tuple[int, ...]] = (tuple(target.shape), tuple(output.shape))
    if shapes[0] == shapes[1]:
        return target
    if target.numel() == output.numel() and (shapes[0] + (1,) == shapes[1] or shapes[1] + (1,) == shapes[0]):
        return target.reshape(output.shape)
    raise ValueError(f"targets must have the shape of the outputs, {shapes[1]}, got {shapes[0]}")
