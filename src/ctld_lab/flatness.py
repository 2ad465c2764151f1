"""How flat the minimum is that a run ended in: measured of its kept parameters, on fixed training data, in eval mode.

In double precision, whatever the run was trained in. Lanczos with full re-orthogonalisation would do with single: eigenvalues
agree to five digits. But where a small perturbation moves the loss by a millionth, single precision has nothing left of it.
"""

import hashlib
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from ctld import diagnostics
from ctld.diagnostics.parameter_space import ParameterSpace
from ctld_lab import workloads
from ctld_lab.checkpoints import load_checkpoint
from ctld_lab.records import RecordError, RunDirectory
from ctld_lab.workloads.workload import Probe

FORMAT = 1
AGAIN = "remove the run's directory and give the study's command again, which runs only what is missing"


@dataclass(frozen=True)
class Settings:
    """Settings that decide the numbers, besides the run. Vectors and data are the same for all runs."""

    examples: int | None = None
    """Training data; by default what the workload says."""
    eigenvalues: int = 3
    iterations: int = 25
    """Of Lanczos; the residuals say whether they were enough."""
    probes: int = 20
    radius: float = 1e-3
    ascent: int = 10
    """Steps to the sharpest point, from each of two places."""
    sizes: tuple[float, ...] = (0.01, 0.03, 0.1)
    """Of perturbations, relative to each tensor's root mean square."""
    draws: int = 10
    seed: int = 0

    def stored(self) -> dict[str, Any]:
        """As JSON gives it back."""
        return asdict(self) | {"sizes": list(self.sizes)}

    @property
    def parts(self) -> int:
        """How often `measure` tells."""
        return 4 + len(self.sizes)


def settings(examples: int | None) -> Settings:
    """Return the settings that the command measures with."""
    return Settings(examples)


class Unmeasured(Exception):
    """There is nothing to measure; the message says why."""


def parameters_file(run: RunDirectory) -> Path:
    """Return the parameter file of a run that has finished, did not diverge and kept its parameters."""
    config = run.config()
    kind = config.get("kind")
    if kind != "train":
        raise Unmeasured(f"of kind {kind}, nothing was trained")
    result = run.result()
    if result is None:
        raise Unmeasured('not finished; "ctld resume" goes on with it')
    if result.get("diverged"):
        raise Unmeasured("diverged, so in no minimum")
    path = run.path / "parameters.safetensors"
    if not path.is_file():
        if not (config.get("keep_parameters") or _from_before(config)):
            raise Unmeasured("no parameters were kept: this run was not asked to keep them")
        raise Unmeasured(f"no parameters were kept. Final runs of sda, charrnn and ensemble keep them now; {AGAIN}")
    return path


def _from_before(config: dict[str, Any]) -> bool:
    """True if the run's study had final runs before any were asked to keep their parameters."""
    return config.get("study") in ("sda", "charrnn") and config.get("role") == "final"


def measured(run: RunDirectory, settings: Settings) -> dict[str, Any] | None:
    """Return an earlier measurement if it was made with these settings and parameters, else None."""
    try:
        record = run.flatness()
    except RecordError:
        return None
    fits = record.get("settings") == settings.stored() and record.get("sha256") == _digest(parameters_file(run))
    return record if fits else None


def measure(run: RunDirectory, settings: Settings, tell: Callable[[], object] = lambda: None) -> dict[str, Any]:
    """Measure the flatness of a run's minimum and return the content of flatness.json."""
    began = time.perf_counter()
    path = parameters_file(run)
    config = run.config()
    probe = load_probe(run, config, settings.examples)
    loss, parameters, seed = probe.loss, probe.parameters, settings.seed
    here, gradient = ParameterSpace(parameters).gradient(loss)
    tell()
    found = diagnostics.top_eigenvalues(
        loss, parameters, settings.eigenvalues, iterations=settings.iterations, seed=seed
    )
    tell()
    trace = diagnostics.hessian_trace(loss, parameters, probes=settings.probes, seed=seed)
    tell()
    sharp = diagnostics.sharpness(loss, parameters, radius=settings.radius, iterations=settings.ascent, seed=seed)
    tell()
    rises = []
    for size in settings.sizes:
        rise = diagnostics.perturbed_loss(loss, parameters, size=size, draws=settings.draws, seed=seed)
        rises.append({"size": size, "mean": rise.mean, "standard_error": rise.standard_error})
        tell()
    return {
        "format": FORMAT,
        "settings": settings.stored(),
        "sha256": _digest(path),
        "data": config.get("data"),
        "examples": probe.examples,
        "what": probe.what,
        "metric": probe.metric,
        "parameters": sum(parameter.numel() for parameter in parameters),
        "loss": here,
        "gradient_norm": float(gradient.norm()),
        "eigenvalues": found.values.tolist(),
        "residuals": found.residuals.tolist(),
        "trace": {"mean": trace.mean, "standard_error": trace.standard_error},
        "sharpness": sharp.sharpness,
        "rises": rises,
        "seconds": time.perf_counter() - began,
        "threads": torch.get_num_threads(),
        "torch": str(torch.__version__),
    }


def load_probe(run: RunDirectory, config: dict[str, Any], examples: int | None = None) -> Probe:
    """The workload of `config` with the parameters that the run kept."""
    workload = workloads.build(config | {"workload": config["workload"] | {"dtype": "float64"}})
    path = parameters_file(run)
    try:
        state = load_checkpoint(path)
    except RecordError as error:
        raise RecordError(f"{path} {error.__cause__ or error}; {AGAIN}") from error
    try:
        workload.model.load_state_dict(state)
    except (RuntimeError, TypeError, AttributeError, ValueError, KeyError) as error:
        raise RecordError(f"{path} does not fit the network of config.json ({str(error)[:200]}); {AGAIN}") from error
    try:
        return workload.probe(examples)
    except NotImplementedError as error:
        raise Unmeasured(str(error)) from None


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
