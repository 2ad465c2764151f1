"""CTLD against Algorithm 1 written out line by line, step for step with the same noise, across the phase switch."""

import math

import numpy as np
import pytest
import torch
from torch.optim.lr_scheduler import CosineAnnealingLR, OneCycleLR

from ctld import CTLD, Tempering, noise
from ctld.optimizers.reference import ReferenceCTLD
from targets import Classification

STEPS, EXPLORATION, DECAY, SEED = 500, 300, 1e-2, 3

SCHEDULERS = {
    "constant": lambda optimizer: None,
    "cosine": lambda optimizer: CosineAnnealingLR(optimizer, STEPS + 1),
    "one cycle": lambda optimizer: OneCycleLR(optimizer, 0.1, total_steps=STEPS + 1),
}


def flat_noise(problem, draw):
    """One number for each element of the flat vector, from the stream of the parameter that holds it."""
    parameters = problem.model.parameters()
    return np.concatenate([draw(index, p.numel()).numpy() for index, p in enumerate(parameters)])


# Not mass 1 at T = 0.02: there one step throws α across the well, and the two would part by chaos alone.
@pytest.mark.parametrize(("temperature", "mass"), [(1.0, 1.0), (1.0, "auto"), (0.02, "auto")])
@pytest.mark.parametrize("schedule", SCHEDULERS)
def test_step_for_step(schedule, temperature, mass):
    problem, twin = Classification(), Classification()
    num_data, lr, momentum = problem.num_data, 0.05, 0.8
    eta = math.sqrt(lr / num_data)
    optimizer = CTLD(
        problem.model.parameters(),
        lr,
        momentum,
        weight_decay=DECAY,
        num_data=num_data,
        exploration_steps=EXPLORATION,
        temperature=temperature,
        tempering=Tempering.paper(eta, EXPLORATION, mass=mass),
        seed=SEED,
    )
    scheduler = SCHEDULERS[schedule](optimizer)

    def initial(index, numel):
        return noise.normal(SEED, index, noise.INITIAL_MOMENTA, numel, dtype=torch.float64)

    reference = ReferenceCTLD(
        theta=twin.flat().numpy(),
        r=math.sqrt(temperature) * flat_noise(problem, initial),
        r_alpha=noise.scalar_normal(SEED, noise.ALPHA, 0),
        eta=eta,
        N=num_data,
        L_s=EXPLORATION,
        T=temperature,
        mass=None if mass == "auto" else mass,
    )
    ratios = []
    for step in range(STEPS):
        group = optimizer.param_groups[0]
        loss = twin.backward(step)
        gradient = torch.cat([p.grad.reshape(-1) for p in twin.model.parameters()]).numpy()

        def epsilon(step=step):
            return flat_noise(
                problem,
                lambda i, numel: noise.normal(SEED, step, noise.parameter_stream(i), numel, dtype=torch.float64),
            )

        reference.step(
            U=num_data * (loss.item() + DECAY * float(reference.theta @ reference.theta) / 2),
            grad_U=num_data * (gradient + DECAY * reference.theta),
            c_m=group["momentum"],
            epsilon=epsilon,
            epsilon_alpha=lambda step=step: noise.scalar_normal(SEED, noise.ALPHA, 1 + step),
            eta=math.sqrt(group["lr"] / num_data),
        )
        with torch.no_grad():
            torch.nn.utils.vector_to_parameters(torch.from_numpy(reference.theta), twin.model.parameters())

        optimizer.step(loss=problem.backward(step))
        if scheduler is not None:
            scheduler.step()
        np.testing.assert_allclose(problem.flat().numpy(), reference.theta, rtol=1e-10, atol=1e-10)
        assert optimizer.tempering.alpha == pytest.approx(reference.alpha, rel=1e-10, abs=1e-10)
        ratios.append(optimizer.last.temperature_ratio)
        if step < EXPLORATION:
            assert optimizer.last.hamiltonian == pytest.approx(reference.H, rel=1e-10)
            # A sum of terms of the size of H; its rounding is theirs.
            assert optimizer.last.alpha_force == pytest.approx(reference.h, rel=1e-10, abs=1e-10 * abs(reference.H))
    scale = reference.mass
    np.testing.assert_allclose(scale * optimizer.tempering.bias.values, reference.V_b, rtol=1e-10, atol=1e-12)
    # The comparison is worth something only if the temperature has moved, and stopped at the switch.
    assert max(ratios) > 1.5
    assert set(ratios[EXPLORATION:]) == {1.0}
