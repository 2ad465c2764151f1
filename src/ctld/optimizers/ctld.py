"""CTLD: Langevin dynamics with continuous tempering (Ye, Zhu, Mantiuk, NIPS 2017), Algorithm 1.

Target of the exploration: p(θ, r, α) ∝ exp(−g(α) H(θ, r)/T − φ(α) − V_b(α)), H = N·(mean loss + prior) + rᵀr/2. Then
SGD with momentum. In the paper's notation, with one loss and gradient at θ per step t,

    t < L_s:  r ← (1 − ηγ) r − η ∇Ũ + sqrt(2ηγT/g(α)) ε;  (α, r_α, V_b) by H;  θ ← θ + η r
    t ≥ L_s:  r ← (1 − ηγ) r − η ∇Ũ;                                          θ ← θ + η r

The user speaks SGD on the mean loss: lr = N η², momentum = 1 − ηγ. The momentum buffer holds u = r/√N = v/√lr in groups
where noise is injected and torch's b = −v/lr elsewhere (`momenta.py`). Departure from the print: its first move, θ + η r
before any gradient, is left out, since a constructor does not move parameters. More in docs/maths.md.
"""

from typing import Any, Literal

import torch

from ctld.checks import real
from ctld.clock import Clock
from ctld.compensation import NoiseCompensation
from ctld.mass import Mass, RMSPreconditioner
from ctld.noise import ALPHA, scalar_normal
from ctld.observing import Closure, Loss
from ctld.optimizers.exploring import Explorer
from ctld.optimizers.momenta import note_lr
from ctld.optimizers.record import Energies
from ctld.optimizers.temperature import Temperature
from ctld.stepping import engine
from ctld.stepping.active import Active
from ctld.stepping.integrators import INTEGRATORS, planned, rest, sgd
from ctld.stepping.sweep import Plan
from ctld.tempering import Exploration, Leg, TemperatureControl, Tempering, checked_control
from ctld.thermometers import Thermometers


class CTLD(Explorer):
    """Explore by continuously tempered Langevin dynamics, then fine-tune by SGD with momentum.

    >>> optimizer = CTLD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3,
    ...                  num_data=len(train_set), exploration_steps=2000)          # doctest: +SKIP
    >>> loss.backward(); optimizer.step(loss=loss)                                 # doctest: +SKIP

    Parameters
    ----------
    params : iterable of parameters, of (name, parameter), or of groups
        A group may set its own `lr`, `momentum`, `weight_decay`, `maximize` and `explore`. With `explore=False` a group
        is trained by SGD with momentum throughout, gets no noise and has no share in H: for norms, biases, embeddings.
    lr, momentum, weight_decay, maximize
        As in `torch.optim.SGD`, on the mean loss. `weight_decay` is also the prior, N·weight_decay·‖θ‖²/2.
    num_data : float
        N, the number of data that the posterior is conditioned on.
    exploration_steps : int
        L_s. 0 gives SGD with momentum.
    cycle_steps : int, optional
        Exploration and fine-tuning repeat, every so many steps: each cycle begins with `exploration_steps` of exploration.
        α returns to 0 at its start; bias and momenta are kept. Left out: once, as in the paper. `ctld.CycleLR` lowers lr to
        match.
    temperature : float or "auto"
        T of the posterior. 1 is the paper; "auto" is the largest T up to 1 whose noise does not swamp the initial
        parameters (`ctld.optimizers.temperature`); 0 is SGD with momentum. "auto" is careful: on networks it injects noise
        of the order of the minibatches' own, or less, and the run is practically SGD's. `Ensemble` takes more.
    tempering : TemperatureControl, optional
        What moves the temperature; `Tempering.paper` if left out.
    integrator : "euler", "baoab" or "ubu"
        What moves the parameters while they explore: the paper's scheme; one whose parameters have the exact variance on a
        Gaussian at any stable step; one of strong order two (`ctld.stepping.integrators`).
    noise : "gaussian" or "three_point"
        What the parameters get. Three-point noise has the Gaussian's first five moments, which is all that the order of an
        integrator rests on, and is cheaper (docs/methods.md).
    noise_compensation : bool
        Inject less noise by what the minibatches bring in (section 4.1 of the paper), estimated from successive
        differences. Costs two more buffers per parameter.
    preconditioner : RMSPreconditioner, optional
        A learning rate for each element, from the gradients, while exploring; adapts slowly, and can be frozen. Costs two more
        buffers per parameter (`ctld.mass`).
    check_gradients : bool
        Look for NaN and inf in the gradients before an exploration step, and refuse it whole. That reads them once more;
        without it a NaN is found when it has done its harm.
    seed : int, optional
        Names the noise. Left out, one is drawn from torch's default generator, if there will be noise. Under
        `torch.distributed`, rank 0's is used.
    process_group : ProcessGroup, optional
        Over which the loss is averaged; the world, if left out and there is one.
    foreach, fused, capturable, differentiable
        Options of torch's that choose an implementation; None or False.
    """

    def __init__(
        self,
        params: Any,
        lr: float,
        momentum: float = 0.9,
        *,
        num_data: float,
        exploration_steps: int,
        cycle_steps: int | None = None,
        weight_decay: float = 0.0,
        temperature: float | Literal["auto"] = "auto",
        tempering: TemperatureControl | None = None,
        integrator: Literal["euler", "baoab", "ubu"] = "euler",
        noise: Literal["gaussian", "three_point"] = "gaussian",
        noise_compensation: bool = False,
        preconditioner: RMSPreconditioner | None = None,
        check_gradients: bool = True,
        seed: int | None = None,
        maximize: bool = False,
        process_group: torch.distributed.ProcessGroup | None = None,
    ) -> None:
        clock = Clock(exploration_steps, cycle_steps)
        posterior = Temperature(temperature)
        if integrator not in INTEGRATORS:
            raise ValueError(f"integrator = {integrator!r} is unknown; give one of {', '.join(map(repr, INTEGRATORS))}")
        if noise_compensation and integrator != "euler":
            raise ValueError(f'noise_compensation goes with integrator="euler", not {integrator!r}')
        if noise_compensation and preconditioner is not None:
            raise ValueError("noise_compensation does not go with a preconditioner: give one of them")
        self.integrator: str = integrator
        self.check_gradients = bool(check_gradients)
        self._posterior = posterior
        self.compensation = NoiseCompensation(bool(noise_compensation))
        self.mass = Mass(preconditioner, clock.exploration_steps)
        self.thermometers = Thermometers(clock.exploration_steps)
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "maximize": maximize, "explore": True}
        if seed is None and (clock.exploration_steps == 0 or temperature == 0):
            seed = 0  # of noise that there will not be: to draw one would shift the user's own random numbers
        options = {"num_data": num_data, "noise": noise, "seed": seed, "process_group": process_group, "clock": clock}
        super().__init__(params, defaults, **options)
        if clock.exploration_steps and self._explores() and not (posterior.known and posterior.value == 0):
            self._check_initial_lr()
        paper = Tempering.paper(self.step_size or 1.0, max(clock.exploration_steps, 1))
        self.tempering = paper if tempering is None else checked_control(tempering)
        self._choose_temperature()
        # The last thing that can fail: a refused constructor leaves the tempering free for another.
        self.tempering.prepare(
            Exploration(
                step_size=self.step_size or 1.0,
                normal=scalar_normal(self.seed, ALPHA, 0),
                steps=self.exploration_steps,
                cycles=cycle_steps is not None,
                integrator=integrator,
                noise_compensation=self.noise_compensation,
            )
        )
        self._start(self.param_groups)

    @classmethod
    def from_step_size(
        cls,
        params: Any,
        step_size: float,
        momentum: float = 0.9,
        *,
        num_data: float,
        temperature: Any = 1.0,
        **options: Any,
    ) -> "CTLD":
        """With the paper's η in place of lr, as its tables give it, and its temperature: lr = num_data·step_size²."""
        step_size = real("step_size", step_size, above=0)
        lr = real("num_data", num_data, above=0) * step_size**2
        return cls(params, lr, momentum, num_data=num_data, temperature=temperature, **options)

    # ---- Algorithm 1 ----

    def _step(self, closure: Closure | Loss | None, loss: Loss | None) -> Loss | None:
        self._choose_temperature()
        exploring, meets = self.exploring, self.ranks.meets()
        try:
            result = self._evaluate(closure, loss, needed=exploring)
            losses = self._taken()
            self._check_groups()
            active = self._active()
            if exploring and not losses:
                if all(float(group["lr"]) == 0 for group in self.param_groups):
                    return result  # a checkpointer's dry run
                raise ValueError(
                    "exploration needs the loss, which drives the temperature; call step(loss=loss), step(closure), or "
                    "observe(loss) before step()"
                )
        except Exception as error:
            self._tell_others(error, meets, exploring)
            raise
        if meets:
            self._agree(meets)
        if exploring:
            self._explore(losses, active)
        else:
            self._fine_tune(active)
        self._tick(exploring)
        return result

    def _explore(self, losses: list[Loss], active: Active) -> None:
        num_data, temperature = self.num_data, self.temperature
        epsilon = scalar_normal(self.seed, ALPHA, 1 + self.steps)
        moving = any(group["explore"] and float(group["lr"]) > 0 for group in self.param_groups)
        seen = self._see(losses, active)

        # 1/g(α), and factors on r
        leg = Leg(self.tempering.temperature_ratio)
        if moving:
            leg = self.tempering.begin(self._potential_ahead(seen), epsilon)

        # r ← (1 − ηγ) r − η∇Ũ + sqrt(2ηγT/g) ε;   θ ← θ + η r
        self._bring_momenta_into_units(active, exploring=True)
        variance = temperature * leg.ratio / num_data
        plans = [
            self._langevin(group, variance, leg) if group["explore"] else _sgd(group) for group in self.param_groups
        ]
        probes = self._probe()
        alpha = self._handed_over(seen, active, epsilon) if moving else None  # what follows, if one call can do it all
        options: Any = {"check": not seen.gradients_seen, "refused": seen.refused(), "alpha": alpha}
        sums = engine.run(active, plans, self._noise(), **options)
        rows, probed = self._settled(seen, sums, probes)

        # H̃ = (Ũ + rᵀr/2)/T;   α, V_b, h̃, r_α
        energies = Energies.of(self._measured(active, rows), seen.mean_loss, self._sign, num_data)
        force = None
        if moving:
            hamiltonian = energies.checked_sum(temperature)
            if alpha is None:
                force = self.tempering.end(hamiltonian, epsilon, self._hamiltonian_variance(seen.mean_loss))
            else:
                force = self.tempering.take_back()
            self.compensation.count(energies.clamped, energies.dimensions)
        self._note(leg.ratio, energies if moving else None, force, rows, probed)

    def _fine_tune(self, active: Active) -> None:
        # r ← (1 − ηγ) r − η∇Ũ;   θ ← θ + η r
        self._bring_momenta_into_units(active, exploring=False)
        engine.run(active, [_sgd(group) for group in self.param_groups], None)
        note_lr(self.param_groups)
        self._note(1.0, None, None, [], [])

    def _langevin(self, group: dict[str, Any], variance: float, leg: Leg) -> Plan:
        """Returns a step of exploration of a group, by its lr and momentum; at lr = 0 it rests."""
        lr, scaled = float(group["lr"]), self.mass.options is not None
        if lr == 0:
            return rest(decay=float(group["weight_decay"]), scaled=scaled)
        options = (
            float(group["weight_decay"]),
            group["maximize"],
            leg.before,
            leg.after,
            self.compensation.active,
            scaled,
        )
        return planned(self.integrator, lr, float(group["momentum"]), variance, *options)


def _sgd(group: dict[str, Any]) -> Plan:
    """Returns SGD with momentum, as `torch.optim.SGD` does it, to the last bit."""
    decay, ascend = float(group["weight_decay"]), group["maximize"]
    return sgd(float(group["lr"]), float(group["momentum"]), decay=decay, ascend=ascend)
