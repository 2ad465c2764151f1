"""CTLD: Langevin dynamics with continuous tempering (Ye, Zhu, Mantiuk, NIPS 2017), Algorithm 1.

Exploration samples p(θ, r, α) ∝ exp(−g(α) H̃(θ, r) − φ(α) − V_b(α)), fine-tuning is SGD with momentum. At step t = 0, 1, …,
with the loss and its gradient at θ,

    t < L_s:   r ← (1 − ηγ) r − η ∇Ũ + sqrt(2ηγT/g(α)) ε       θ ← θ + η r
               α ← α + η r_α        V_b ← V_b + a hill at α     h̃ = −g′(α) H̃ − φ′(α) − V_b′(α)
               r_α ← (1 − ηγ_α) r_α + η h̃ + sqrt(2ηγ_α) ε_α
    t ≥ L_s:   r ← (1 − ηγ) r − η ∇Ũ                           θ ← θ + η r

    paper     here
    Ũ         N·(mean loss + weight_decay·‖θ‖²/2), before θ moves; the loss is handed over without the weight decay
    H̃         (Ũ + rᵀr/2)/T, r after its kick
    η, γ      lr = N η², momentum = 1 − ηγ: of each group, at its present lr. α keeps the η of the initial lr
    r         the buffer u = r/√N in groups that explore, torch's b = −η r/lr in those that do not (`momenta.py`)
    g, φ, V_b `ctld.tempering`; the lines of α are `Tempering.end` in tempering/paper.py

Departures from the print: the first move, θ + η r before any gradient, is left out, since a constructor does not move
parameters; L_s steps explore, not L_s − 1; T, which is 1 there, may be given, and is chosen if it is not; α has a mass where
one step would throw it out of its well (1 where the paper's own was stable); errata (docs/maths.md). `from_step_size(…)` with
`tempering=Tempering.paper(η, L_s, mass=1)` is the print.
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
        is trained by SGD with momentum throughout: no noise, no prior and no kinetic energy in H. For norms, biases,
        embeddings.
    lr, momentum, weight_decay, maximize
        As in `torch.optim.SGD`, on the mean loss of a minibatch. `weight_decay` is also the prior: U has
        N·weight_decay·‖θ‖²/2 in it, which the loss that is handed over must not have.
    num_data : float
        N, the number of data that the posterior is conditioned on.
    exploration_steps : int
        L_s. 0 gives SGD with momentum.
    cycle_steps : int, optional
        Length of a cycle, whose first `exploration_steps` explore and whose others fine-tune. As a cycle begins, α returns
        to 0; V_b, r_α and r are kept. Left out: one exploration, as in the paper. `ctld.CycleLR` lowers lr to match.
    temperature : float or "auto"
        T of the posterior. 1 is the paper; "auto" is the largest T up to 1 whose noise does not swamp the initial
        parameters (`ctld.optimizers.temperature`); 0 is SGD with momentum. "auto" is careful: on networks it injects noise
        of the order of the minibatches' own, or less, and the run is practically SGD's. `Ensemble` takes more.
    tempering : TemperatureControl, optional
        What moves the temperature; `Tempering.paper` if left out.
    integrator : "euler", "baoab" or "ubu"
        Of the exploration. "euler" is the paper's; on a Gaussian posterior "baoab" gives θ the exact variance at any stable
        lr; "ubu" has strong order two (`ctld.stepping.integrators`).
    noise : "gaussian" or "three_point"
        The distribution of ε. Three-point noise has the Gaussian's first five moments, which is all that the order of an
        integrator rests on, and is cheaper (docs/methods.md).
    noise_compensation : bool
        Lower the variance of the injected noise by that of the minibatches (section 4.1 of the paper), which is estimated
        from successive differences; for θ and for α. Costs two more buffers per parameter.
    preconditioner : RMSPreconditioner, optional
        A learning rate for each element, from the gradients, while exploring; adapts slowly, and can be frozen. Costs two more
        buffers per parameter (`ctld.mass`).
    check_gradients : bool
        Look for NaN and inf in the gradients before an exploration step: it then raises `NonFiniteError`, and nothing has
        changed. That reads the gradients once more; without it a NaN is found after parameters have taken it in.
    seed : int, optional
        Of the injected noise. Left out, one is drawn from torch's default generator, if there will be noise. Under
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
            seed = 0  # There will be no noise, and to draw a seed would shift the user's own random numbers.
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
        """Takes the paper's η, which its tables call learning rate, in place of lr = num_data·η²; T is 1, as there."""
        step_size = real("step_size", step_size, above=0)
        lr = real("num_data", num_data, above=0) * step_size**2
        return cls(params, lr, momentum, num_data=num_data, temperature=temperature, **options)

    # ---- Algorithm 1 ----

    def _step(self, closure: Closure | Loss | None, loss: Loss | None) -> Loss | None:
        self._choose_temperature()  # "auto" may have waited for a group that explores
        exploring = self.exploring
        result, losses, active = self._gathered(closure, loss, exploring)
        if active is None:
            return result
        if exploring:  # t < L_s
            self._explore(losses, active)
        else:
            self._fine_tune(active)
        self._tick(exploring)
        if self.listener is not None:
            self.listener(result, losses)
        return result

    def _explore(self, losses: list[Loss], active: Active) -> None:
        num_data, temperature = self.num_data, self.temperature
        epsilon_alpha = scalar_normal(self.seed, ALPHA, 1 + self.clock.steps)
        exploring = self._exploring_groups(active)
        seen = self._see(losses, active)  # the loss, and whether it and the gradients are finite

        # g(α). Calibrated tempering moves its α here, by Ũ alone, and r by factors; those of the paper are 1.
        if exploring.moving:
            leg = self.tempering.begin(self._potential_ahead(seen), epsilon_alpha)
        else:
            leg = Leg(self.tempering.temperature_ratio)

        # r ← (1 − ηγ) r − η∇Ũ + sqrt(2ηγT/g) ε;   θ ← θ + η r
        self._bring_momenta_into_units(active, exploring=True)
        stationary = temperature * leg.ratio / num_data  # variance of u = r/√N; the integrator injects its share, 2ηγ
        plans = [
            self._langevin(group, stationary, leg) if group["explore"] else _sgd(group) for group in self.param_groups
        ]
        probes = self._probe()  # thermometers; no part of the algorithm
        alpha = self._alpha_in_engine(seen, active, epsilon_alpha) if exploring.moving else None
        look, refused = not seen.gradients_seen, seen.refused()
        sums = engine.run(active, plans, self._noise(), check=look, refused=refused, alpha=alpha)
        rows, probed = self._settled(exploring, seen, sums, probes)

        # H̃ = (Ũ + rᵀr/2)/T
        energies = Energies(exploring.groups, rows, self._sign * seen.mean_loss, num_data, temperature)
        force = None
        if exploring.moving:
            # α ← α + η r_α;   V_b ← V_b + a hill at α
            # h̃ = −g′(α) H̃ − φ′(α) − V_b′(α);   r_α ← (1 − ηγ_α) r_α + η h̃ + sqrt(2ηγ_α) ε_α
            force = self._move_alpha(energies, epsilon_alpha, seen.mean_loss, alpha)
            self._read(exploring, leg.ratio, rows, probed)
        self.journal.note(self.tempering.alpha, leg.ratio, energies if exploring.moving else None, force)

    def _fine_tune(self, active: Active) -> None:
        # r ← (1 − ηγ) r − η∇Ũ;   θ ← θ + η r
        self._bring_momenta_into_units(active, exploring=False)
        engine.run(active, [_sgd(group) for group in self.param_groups], None)
        note_lr(self.param_groups)
        self.journal.note(self.tempering.alpha, 1.0)

    def _langevin(self, group: dict[str, Any], stationary: float, leg: Leg) -> Plan:
        """Returns a step of exploration of a group, by its lr and momentum; at lr = 0 it rests."""
        lr, scaled = float(group["lr"]), self.mass.options is not None
        if lr == 0:
            return rest(decay=float(group["weight_decay"]), scaled=scaled)
        momentum, decay, ascend = float(group["momentum"]), float(group["weight_decay"]), group["maximize"]
        _, before, after = leg
        return planned(
            self.integrator, lr, momentum, stationary, decay, ascend, before, after, self.compensation.active, scaled
        )


def _sgd(group: dict[str, Any]) -> Plan:
    """Returns SGD with momentum, as `torch.optim.SGD` does it, to the last bit."""
    decay, ascend = float(group["weight_decay"]), group["maximize"]
    return sgd(float(group["lr"]), float(group["momentum"]), decay=decay, ascend=ascend)
