"""A run of chains that are sampled together: steps over epochs, draws, looks at the curvature, checkpoints."""

from __future__ import annotations

import copy
import logging
import math
import time
from collections.abc import Callable, Sized
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from ctld.chains import NonFiniteChainsError
from ctld.checks import warn_user
from ctld.ensembles.prediction import moved
from ctld.optimizers import CTLD, OPTIMIZERS, create
from ctld.sampling import files, learning_rate, store
from ctld.sampling.batches import Batches, seed_of
from ctld.sampling.chains_of import chains_of
from ctld.sampling.draws import Counts, Draws
from ctld.sampling.loss import batch_loss
from ctld.sampling.progress import Report
from ctld.sampling.starts import started
from ctld.tempering import Tempering
from ctld.thermometers import GroupTemperatures

_log = logging.getLogger("ctld")

PATIENCE = 20
"""Refused steps in a row after which a chain is given up."""
SECONDS = 30.0
"""From one checkpoint in a folder to the next."""
SPLITTINGS = ("baoab", "ubu")
Sampler = str | Callable[[Any, float, int], torch.optim.Optimizer]


@dataclass(frozen=True)
class Plan:
    """Plan of a run: the options that were asked for."""

    models: list[nn.Module]
    loss_fn: Callable[..., Tensor]
    loader: Any
    num_data: float
    sampler: Sampler
    num_steps: int
    burn_in: int
    thin: int
    lr: float | None
    momentum: float
    weight_decay: float
    temperature: float
    spread: bool
    predict: Any
    keep_parameters: bool
    projections: int | Tensor
    seed: int | None
    folder: Path | None
    compile: bool
    options: dict[str, Any]

    @property
    def most_draws(self) -> int:
        """Number of draws of each chain, if none is left out."""
        return (self.num_steps - self.burn_in) // self.thin

    def settings(self, seed: int) -> dict[str, Any]:
        """Return what a folder says of the run; a run with other settings is another run."""
        named = self.sampler if isinstance(self.sampler, str) else getattr(self.sampler, "__name__", "a function")
        shapes = {name: list(tensor.shape) for name, tensor in self.models[0].named_parameters()}
        plain = ("num_data", "num_steps", "burn_in", "thin", "lr", "momentum", "weight_decay", "temperature", "spread")
        found = {name: getattr(self, name) for name in plain}
        options = {name: repr(value) for name, value in self.options.items()}
        return found | {
            "sampler": named,
            "num_chains": len(self.models),
            "keep_parameters": self.keep_parameters,
            "options": options,
            "seed": seed,
            "parameters": shapes,
        }


class Run:
    """Chains on their way.

    `finished` holds the draws if the folder has a run that is complete. Call it within `torch.random.fork_rng()`.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.seed = self._chosen_seed()
        self.settings = plan.settings(self.seed)
        state = None
        self.finished: Draws | None = None
        if plan.folder is not None:
            state = store.begin(plan.folder, self.settings)
            if (plan.folder / store.FINISHED).exists():
                self.finished = store.draws_of_folder(plan.folder)
                return
        count = len(plan.models)
        self.models = started(plan.models, [self._seed("start", chain) for chain in range(count)], spread=plan.spread)
        self.loss = batch_loss(plan.loss_fn)
        self.device = next(self.models[0].parameters()).device
        self.batches = Batches(plan.loader, count, seed=self.seed, device=self.device)
        self.store = store.Store(count, plan.most_draws, plan.folder)
        self.directions = self._directions()
        self._epoch = len(plan.loader) if self.batches.reshuffled and isinstance(plan.loader, Sized) else None
        self.step = 0
        self.refused, self.in_a_row, self.lost = [0] * count, [0] * count, [False] * count
        self.due = [False] * count
        self.tops: list[float] = []
        self.remarks: list[str] = []
        self._few: list[Any] | None = None
        self.predict = None if plan.predict is None else moved(plan.predict, self.device)
        torch.manual_seed(self._seed("model"))
        self.lr = plan.lr
        if self.lr is None:
            self.lr = float(state["lr"]) if state is not None else self._looked_at("at the start")
        self.optimizers = [self._built(model, chain) for chain, model in enumerate(self.models)]
        compile = plan.compile if state is None else bool(state["compiled"])
        self.chains = chains_of(self.models, self.optimizers, self.loss, self.batches, compile=compile)
        if state is None:
            torch.manual_seed(self._seed("model"))
            self._check_memory()
        else:
            self._load(state)

    # ---- parts ----

    def _chosen_seed(self) -> int:
        if self.plan.seed is not None:
            return self.plan.seed
        if self.plan.folder is not None and (self.plan.folder / store.SETTINGS).exists():
            return int(files.read_json(self.plan.folder / store.SETTINGS)["seed"])
        return int(torch.randint(2**53, ()))

    def _seed(self, *words: object) -> int:
        return seed_of(self.seed, *words)

    def _built(self, model: nn.Module, chain: int) -> Any:
        """Return the optimizer of a chain."""
        plan, seed = self.plan, self._seed("noise", chain)
        parameters = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
        assert self.lr is not None
        if not isinstance(plan.sampler, str):
            return plan.sampler([parameter for _, parameter in parameters], self.lr, seed)
        options: dict[str, Any] = {"num_data": plan.num_data, "weight_decay": plan.weight_decay}
        options["temperature"] = plan.temperature
        if plan.sampler not in ("sgld", "psgld"):
            options["momentum"] = plan.momentum
        if plan.sampler == "psgld" and plan.burn_in:
            options["adapt_steps"] = plan.burn_in  # the law is exact only while the preconditioner rests
        if plan.sampler == "psgld" and self.tops:
            options["epsilon"] = learning_rate.epsilon_of_psgld(
                self.tops[0], temperature=plan.temperature, num_data=plan.num_data
            )
        needed = OPTIMIZERS[plan.sampler].needs if plan.sampler in OPTIMIZERS else frozenset()
        options |= {name: plan.num_steps for name in ("num_steps", "exploration_steps") if name in needed}
        if plan.sampler in SPLITTINGS:  # by CTLD, untempered, whose thermometers say how hot the chains are
            options |= plan.options
            return built_langevin(
                parameters,
                self.lr,
                plan.sampler,
                num_steps=plan.num_steps,
                steps_per_epoch=self._epoch,
                seed=seed,
                **options,
            )
        return create(plan.sampler, parameters, lr=self.lr, seed=seed, **(options | plan.options))

    def _directions(self) -> Tensor | None:
        asked = self.plan.projections
        size = sum(parameter.numel() for parameter in self.models[0].parameters())
        if isinstance(asked, Tensor):
            if asked.ndim != 2 or asked.shape[1] != size:
                raise ValueError(
                    f"projections must have shape (count, {size}), got {tuple(asked.shape)}. Give one row for each direction"
                )
            return asked.to(self.device)
        generator = torch.Generator().manual_seed(self._seed("projections"))
        return torch.randn(asked, size, generator=generator).to(self.device) / math.sqrt(size) if asked else None

    def _check_memory(self) -> None:
        """Refuse, before any step, draws for which there is no room."""
        shapes: dict[str, Any] = {}
        for name, values in self._values(np.zeros(len(self.models))).items():
            shapes[name] = values.shape[1:], values.dtype
        self.store.check(shapes)

    # ---- the learning rate ----

    def _looked_at(self, when: str) -> float:
        """Return the learning rate for the curvature at the chains, and log it."""
        plan = self.plan
        same = when == "at the start" and not plan.spread and len({id(model) for model in plan.models}) == 1
        tops = [
            learning_rate.top_curvature(model, self.loss, self._some_batches(), prior=plan.weight_decay)
            for model, lost in zip(self.models[:1] if same else self.models, self.lost, strict=False)
            if not lost and self._has_a_loss(model)
        ]
        if not tops:
            raise FloatingPointError(f"no chain has a finite loss {when}. Lower lr, or start nearer to the posterior")
        self.tops = tops
        sampler = plan.sampler if isinstance(plan.sampler, str) else ""
        epochs = len(plan.loader) if isinstance(plan.loader, Sized) else self._epoch_by_rows()
        lr, why = learning_rate.learning_rate(
            sampler,
            max(tops),
            momentum=0.0 if sampler in ("sgld", "psgld") else plan.momentum,
            temperature=plan.temperature,
            num_data=plan.num_data,
            batches_per_epoch=epochs,
            replaced=not self.batches.reshuffled,
        )
        _log.info("lr = %.3g: top curvature %.3g %s, bounded by %s", lr, max(tops), when, why)
        return lr

    @torch.no_grad()
    def _has_a_loss(self, model: nn.Module) -> bool:
        """False where a chain has just blown up: its steps are refused, and it is given up soon."""
        twin = copy.deepcopy(model)  # running statistics and random numbers stay as they are
        with torch.random.fork_rng():
            return all(math.isfinite(float(self.loss(twin, batch))) for batch in self._some_batches())

    def _epoch_by_rows(self) -> int:
        """Return about how many batches an epoch has, for a loader that does not say."""
        tensors = [leaf for leaf in tree_leaves(self._some_batches()[0]) if isinstance(leaf, Tensor) and leaf.ndim]
        return max(1, round(self.plan.num_data / len(tensors[0]))) if tensors else 1

    def _some_batches(self) -> list[Any]:
        """Return a few batches, the same each time, at which the curvature is looked at."""
        if self._few is None:
            source = Batches(self.plan.loader, 1, seed=self._seed("curvature"), device=self.device)
            count = learning_rate.BATCHES
            if isinstance(self.plan.loader, Sized):
                count = min(count, len(self.plan.loader))
            self._few = [source.next() for _ in range(count)]
        return self._few

    def _look(self) -> None:
        """Look at the curvature when it is time: during burn-in lr may fall, at its end it is set for good."""
        plan = self.plan
        ends = self.step == plan.burn_in
        if plan.lr is not None or not plan.burn_in or self.step > plan.burn_in:
            return
        looks = {int(share * plan.burn_in) for share in learning_rate.LOOKS} - {0}
        if not ends and self.step not in looks:
            return
        lr = self._looked_at("after burn-in" if ends else f"at step {self.step}")
        assert self.lr is not None
        self.lr = lr if ends else min(lr, self.lr)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = self.lr
        if ends:
            remark = learning_rate.remark_of_funnel(self.tops)
            if remark is not None:
                self.remarks.append(remark)
                _log.warning(remark)

    # ---- steps ----

    def go_on(self, report: Report) -> None:
        """Take the steps that are left."""
        written = time.monotonic()
        while self.step < self.plan.num_steps:
            self._advance()
            if self.step % 20 == 0:
                losses: Any = self.chains.losses
                report(self.step, f"loss {float(losses.mean()):.4g}")
            if self.plan.folder is not None and time.monotonic() - written > SECONDS:
                self.save()
                written = time.monotonic()

    def _advance(self) -> None:
        losses = self.chains.backward(self.batches.next(), shared=self.batches.shared)
        refused: tuple[int, ...] = ()
        try:
            self.chains.step()
        except NonFiniteChainsError as error:
            refused = error.chains
        self.step += 1
        for chain in range(len(self.models)):
            self.in_a_row[chain] = self.in_a_row[chain] + 1 if chain in refused else 0
            self.refused[chain] += chain in refused
            if self.in_a_row[chain] == PATIENCE:
                self._give_up(chain)
        self._look()
        after = self.step - self.plan.burn_in
        if after > 0 and after % self.plan.thin == 0:
            self.due = [True] * len(self.models)
        if after > 0 and any(self.due):
            self._draw(losses)
        if self.step == self.plan.burn_in:
            for optimizer in self.optimizers:
                restart = getattr(getattr(optimizer, "thermometers", None), "restart", None)
                if restart is not None:
                    restart()  # what was read on the way is not of the posterior

    def _give_up(self, chain: int) -> None:
        self.lost[chain] = True
        words = (
            f"chain {chain} has refused {PATIENCE} steps in a row: its parameters are lost, and it is given up. Lower lr, or "
            "start nearer to the posterior"
        )
        if all(self.lost):
            raise FloatingPointError(words.replace("it is", "all others are; it is"))
        self.remarks.append(words)
        warn_user(words)

    # ---- draws ----

    def _draw(self, losses: Tensor) -> None:
        ready = [
            chain
            for chain, optimizer in enumerate(self.optimizers)
            if self.due[chain] and not self.lost[chain] and is_draw(optimizer)
        ]
        if not ready:
            return
        values = self._values(losses.detach().cpu().double().numpy())
        for chain in ready:
            self.store.add(chain, {name: value[chain] for name, value in values.items()})
            self.due[chain] = False

    @torch.no_grad()
    def _values(self, losses: Any) -> dict[str, Any]:
        """Return what is kept of the chains as they are, chains first."""
        found: dict[str, Any] = {"statistics/loss": np.asarray(losses)}
        stacked = self.chains.stacked
        records = [getattr(optimizer, "last", None) for optimizer in self.optimizers]
        if hasattr(self.optimizers[0], "thermometers"):
            readings = [getattr(record, "kinetic_temperature", None) for record in records]
            found["statistics/kinetic_temperature"] = np.array(
                [math.nan if each is None else each for each in readings]
            )
        if self.plan.keep_parameters:
            found |= {f"parameters/{name}": _array(tensor) for name, tensor in stacked.items()}
        if self.directions is not None:
            flat = torch.cat([tensor.flatten(1) for tensor in stacked.values()], dim=1)
            found["projections"] = _array(flat @ self.directions.to(flat).T)
        if self.predict is not None:
            found["predictions"] = _array(self.chains.outputs(self.predict))
        return found

    # ---- state ----

    def save(self) -> None:
        """Write a state from which a run goes on to the same bits."""
        assert self.plan.folder is not None
        self.store.flush()
        state = {
            "step": self.step,
            "epoch": self.batches.epoch,
            "place": self.batches.place,
            "counts": list(self.store.counts),
            "refused": list(self.refused),
            "in_a_row": list(self.in_a_row),
            "lost": list(self.lost),
            "due": list(self.due),
            "tops": list(self.tops),
            "remarks": list(self.remarks),
            "lr": self.lr,
            "compiled": self.chains.compiled,
            "random": torch.get_rng_state(),
            "chains": self.chains.state_dict(),
        }
        files.write_state(self.plan.folder / store.STATE, state)

    def _load(self, state: dict[str, Any]) -> None:
        self.chains.load_state_dict(state["chains"])
        self.step = state["step"]
        self.refused, self.in_a_row = list(state["refused"]), list(state["in_a_row"])
        self.lost, self.due = list(state["lost"]), list(state["due"])
        self.tops, self.remarks = list(state["tops"]), list(state["remarks"])
        self.store.resume(state["counts"])
        self.batches.seek(state["epoch"], state["place"])
        torch.set_rng_state(state["random"])

    def finish(self) -> Draws:
        """Return the draws, and note in the folder that they are complete."""
        lost = tuple(chain for chain, given_up in enumerate(self.lost) if given_up)
        counts = Counts(tuple(self.store.counts), self.step, self.plan.burn_in, tuple(self.refused), lost)
        if not any(counts.draws[chain] for chain in range(len(self.models)) if chain not in lost):
            raise ValueError(
                "the chains must give draws, got none: the sampler was never at its temperature. Raise num_steps"
            )
        temperatures = tuple(_temperatures(optimizer) for optimizer in self.optimizers)
        settings = self.settings | {"lr": self.lr, "lr_asked_for": "auto" if self.plan.lr is None else self.plan.lr}
        draws = store.made(self.store, counts, settings, temperatures, tuple(self.remarks))
        if self.plan.folder is not None:
            self.save()
            store.finish(self.plan.folder, draws, temperatures)
        return draws


def is_draw(optimizer: Any) -> bool:
    """True if what the model holds is a draw; a sampler that does not say so always holds one."""
    return bool(getattr(optimizer, "is_draw", True))


def _temperatures(optimizer: Any) -> tuple[GroupTemperatures | None, ...]:
    last = getattr(optimizer, "last", None)
    return tuple(getattr(last, "groups", ()))


def _array(tensor: Tensor) -> Any:
    wide = tensor.float() if tensor.dtype in (torch.bfloat16, torch.float16) else tensor
    return wide.cpu().numpy()


def built_langevin(parameters: Any, lr: float, integrator: Any, *, num_steps: int, **options: Any) -> CTLD:
    """Return Langevin dynamics by a splitting, at a constant temperature and with thermometers."""
    constant = Tempering.constant()
    return CTLD(parameters, lr, tempering=constant, integrator=integrator, exploration_steps=num_steps, **options)
