"""How flat a minimum is, where the answers are known: quadratics, and a small network's whole Hessian."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from ctld.diagnostics import hessian_trace, perturbed_loss, sharpness, top_eigenvalues

SPECTRUM = torch.tensor([9.0, 4.0, 4.0, 1.0, 0.5, 0.0, -2.0], dtype=torch.float64)


def quadratic(diagonal: bool = False) -> tuple[Tensor, Tensor]:
    """A point and a Hessian with SPECTRUM."""
    generator = torch.Generator().manual_seed(3)
    rotation = torch.linalg.qr(torch.randn(7, 7, generator=generator, dtype=torch.float64))[0]
    hessian = torch.diag(SPECTRUM) if diagonal else rotation @ torch.diag(SPECTRUM) @ rotation.T
    return torch.randn(7, generator=generator, dtype=torch.float64, requires_grad=True), hessian


class Network:
    """Two layers and 45 parameters, one of which the loss does not use."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(1)
        self.inputs = torch.randn(40, 5, generator=generator, dtype=torch.float64)
        self.labels = torch.randint(3, (40,), generator=generator)
        with torch.random.fork_rng():
            torch.manual_seed(2)
            self.model = nn.Sequential(nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 3)).double()
        self.model.register_parameter("idle", nn.Parameter(torch.ones(1, dtype=torch.float64)))

    def loss(self) -> Tensor:
        return functional.cross_entropy(self.model(self.inputs), self.labels)

    def hessian(self) -> Tensor:
        """The whole of it, by torch.func."""
        names, shapes = zip(*((name, p.shape) for name, p in self.model.named_parameters()), strict=True)

        def flat_loss(flat: Tensor) -> Tensor:
            pieces = flat.split([math.prod(shape) for shape in shapes])
            state = {name: piece.view(shape) for name, piece, shape in zip(names, pieces, shapes, strict=True)}
            return functional.cross_entropy(torch.func.functional_call(self.model, state, (self.inputs,)), self.labels)

        flat = torch.cat([p.detach().reshape(-1) for p in self.model.parameters()])
        found: Tensor = torch.func.jacrev(torch.func.jacrev(flat_loss))(flat)
        return found


def test_a_quadratic_has_its_spectrum_multiplicities_included() -> None:
    point, hessian = quadratic()
    found = top_eigenvalues(lambda: 0.5 * point @ hessian @ point, [point], 7, iterations=50)
    assert found.values == pytest.approx(SPECTRUM.numpy(), abs=1e-12)
    assert found.residuals.max() < 1e-12


def test_eigenvalues_of_a_network() -> None:
    network = Network()
    exact = torch.linalg.eigvalsh(network.hessian()).flip(0).numpy()
    parameters = list(network.model.parameters())
    found = top_eigenvalues(network.loss, parameters, 3, iterations=35)
    assert found.values == pytest.approx(exact[:3], rel=1e-8)
    assert top_eigenvalues(network.loss, parameters, len(exact), iterations=99).values == pytest.approx(
        exact, abs=1e-12
    )


def test_residuals_bound_the_error() -> None:
    """For a symmetric matrix an eigenvalue lies within the residual of each Ritz value."""
    network = Network()
    exact = torch.linalg.eigvalsh(network.hessian()).numpy()
    errors = []
    for iterations in (3, 5, 8, 12):
        found = top_eigenvalues(network.loss, network.model.parameters(), 3, iterations=iterations)
        distance = np.abs(exact[None] - found.values[:, None]).min(axis=1)
        assert (distance <= found.residuals + 1e-12).all()
        errors.append(distance[0])
    assert errors[0] > 1e-6 > errors[-1]  # not vacuous: the first are rough


def test_float32_and_a_seed() -> None:
    network = Network()
    exact = float(torch.linalg.eigvalsh(network.hessian())[-1])
    network.model.float()
    network.inputs = network.inputs.float()
    first, again, other = (
        top_eigenvalues(network.loss, network.model.parameters(), 2, iterations=20, seed=seed) for seed in (0, 0, 1)
    )
    # Rounding of single precision, a few times over.
    assert first.values[0] == pytest.approx(exact, rel=1e-5)
    assert (first.values == again.values).all()
    assert (first.values != other.values).any()


def test_trace() -> None:
    point, hessian = quadratic(diagonal=True)
    exact = hessian_trace(lambda: 0.5 * point @ hessian @ point, [point], probes=2)
    assert exact.mean == pytest.approx(16.5, abs=1e-12)
    assert exact.standard_error == pytest.approx(0, abs=1e-12)
    network = Network()
    whole = network.hessian()
    probes = 400
    found = hessian_trace(network.loss, network.model.parameters(), probes=probes)
    scatter = float((2 * (whole.square().sum() - whole.diagonal().square().sum()) / probes).sqrt())
    # Four standard errors of the mean, from the whole Hessian; their own estimate scatters by about 1/sqrt(2·400) = 4 %.
    assert found.mean == pytest.approx(float(whole.trace()), abs=4 * scatter)
    assert found.standard_error == pytest.approx(scatter, rel=0.2)
    # Twin: twice the trace would be seen.
    assert found.mean != pytest.approx(2 * float(whole.trace()), abs=4 * scatter)


def test_sharpness_of_a_quadratic_is_the_corners() -> None:
    """Σ h_i (θ_i + δ_i)²/2 is highest at δ_i = radius·(|θ_i| + 1) away from 0, also for θ = 0 exactly."""
    curvature = torch.tensor([3.0, 0.5, 10.0], dtype=torch.float64)
    for values in ([0.2, -1.0, 0.5], [0.0, 0.0, 0.0]):
        point = torch.tensor(values, dtype=torch.float64, requires_grad=True)
        found = sharpness(lambda point=point: 0.5 * (curvature * point**2).sum(), [point], radius=0.01)
        reach = point.detach().abs() + 0.01 * (point.detach().abs() + 1)
        highest, here = (float(0.5 * (curvature * place**2).sum()) for place in (reach, point.detach()))
        assert found.loss == here
        assert found.highest == pytest.approx(highest, rel=1e-12)
        assert found.sharpness == pytest.approx(100 * (highest - here) / (1 + here), rel=1e-9)


def test_sharpness_beats_random_corners_of_a_network() -> None:
    network = Network()
    before = [p.detach().clone() for p in network.model.parameters()]
    found = sharpness(network.loss, network.model.parameters(), radius=0.02)
    generator = torch.Generator().manual_seed(0)
    best = -math.inf
    for _ in range(300):
        with torch.no_grad():
            for p, old in zip(network.model.parameters(), before, strict=True):
                signs = torch.randint(2, p.shape, generator=generator) * 2.0 - 1.0
                p.copy_(old + 0.02 * (old.abs() + 1) * signs)
            best = max(best, float(network.loss()))
            for p, old in zip(network.model.parameters(), before, strict=True):
                p.copy_(old)
    assert found.highest > best > found.loss


def test_perturbed_loss_is_half_the_trace_times_the_variance() -> None:
    generator = torch.Generator().manual_seed(0)
    first = torch.randn(6, generator=generator, dtype=torch.float64, requires_grad=True)
    second = torch.full((4,), 3.0, dtype=torch.float64, requires_grad=True)
    zeros = torch.zeros(5, dtype=torch.float64, requires_grad=True)
    size, draws = 0.1, 4000

    def loss() -> Tensor:
        return 2.0 * first.square().sum() + 0.5 * second.square().sum() + 100 * zeros.sum() + 7 * first.sum()

    parts = [4.0 * size**2 * float(first.detach().square().mean()), 1.0 * size**2 * 9.0]  # curvature × variance, each
    exact = 0.5 * (6 * parts[0] + 4 * parts[1])
    scatter = math.sqrt((6 * parts[0] ** 2 + 4 * parts[1] ** 2) / 2 / draws)  # ½ c χ²: variance c²/2 each
    found = perturbed_loss(loss, [first, second, zeros], size=size, draws=draws)
    assert found.mean == pytest.approx(exact, abs=4 * scatter)
    assert found.standard_error == pytest.approx(scatter, rel=0.1)


@pytest.mark.parametrize("measure", [top_eigenvalues, hessian_trace, sharpness, perturbed_loss])
def test_parameters_and_gradients_stay(measure) -> None:
    network = Network()
    before = [p.detach().clone() for p in network.model.parameters()]
    gradients = [torch.full_like(p, 7.0) for p in network.model.parameters()]
    for parameter, gradient in zip(network.model.parameters(), gradients, strict=True):
        parameter.grad = gradient
    measure(network.loss, network.model.parameters())
    calls = []

    def failing() -> Tensor:
        calls.append(None)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return network.loss()

    if measure in (sharpness, perturbed_loss):
        with pytest.raises(KeyboardInterrupt):
            measure(failing, network.model.parameters())
    assert all(map(torch.equal, before, network.model.parameters()))
    assert all(p.grad is kept for p, kept in zip(network.model.parameters(), gradients, strict=True))
    assert all((kept == 7.0).all() for kept in gradients)


def test_an_lstm_on_the_cpu() -> None:
    """torch has its second derivative: against finite differences of the gradient."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.LSTM(3, 4).double()
        inputs = torch.randn(5, 2, 3, dtype=torch.float64)
    parameters = list(model.parameters())

    def loss() -> Tensor:
        output: Tensor = model(inputs)[0].square().mean()
        return output

    def gradient() -> Tensor:
        return torch.cat([part.reshape(-1) for part in torch.autograd.grad(loss(), parameters)])

    columns = []
    for p in parameters:
        for position in range(p.numel()):
            both = []
            for sign in (1, -1):
                with torch.no_grad():
                    p.view(-1)[position] += sign * 1e-5
                both.append(gradient())
                with torch.no_grad():
                    p.view(-1)[position] -= sign * 1e-5
            columns.append((both[0] - both[1]) / 2e-5)
    exact = torch.linalg.eigvalsh(torch.stack(columns)).flip(0)[:3]
    # Differences of width 1e-5: truncation 1e-10, rounding 1e-16/1e-5.
    assert top_eigenvalues(loss, parameters, 3, iterations=40).values == pytest.approx(exact.numpy(), abs=1e-8)


class Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**2

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, gradient):
        return 2 * ctx.saved_tensors[0] * gradient


def test_a_linear_loss_is_flat() -> None:
    point = torch.ones(3, requires_grad=True)
    assert (top_eigenvalues(lambda: 2 * point.sum(), [point], 3).values == 0).all()
    assert hessian_trace(lambda: 2 * point.sum(), [point]).mean == 0


def test_fused_attention_is_refused() -> None:
    queries = torch.randn(1, 1, 8, 4, requires_grad=True)

    def loss() -> Tensor:
        return functional.scaled_dot_product_attention(queries, queries, queries).square().sum()

    backends = torch.nn.attention.SDPBackend
    with (
        torch.nn.attention.sdpa_kernel(backends.FLASH_ATTENTION),
        pytest.raises(ValueError, match=r"cannot be differentiated twice \(derivative for aten::_scaled_dot"),
    ):
        top_eigenvalues(loss, [queries])
    with torch.nn.attention.sdpa_kernel(backends.MATH):
        assert top_eigenvalues(loss, [queries]).values[0] > 0


def test_what_cannot_be_measured_says_why() -> None:
    point = torch.ones(3, requires_grad=True)
    for measure in (top_eigenvalues, hessian_trace):
        with pytest.raises(ValueError, match="cannot be differentiated twice"):
            measure(lambda: Once.apply(point).sum() + point.square().sum(), [point])
    for measure in (top_eigenvalues, hessian_trace, sharpness, perturbed_loss):
        with pytest.raises(ValueError, match="no parameters"):
            measure(lambda: point.sum(), iter([]))
        with pytest.raises(TypeError, match="one element"):
            measure(lambda: point**2, [point])
        with pytest.raises(ValueError, match="the loss is nan"):
            measure(lambda: (point * math.nan).sum(), [point])
    with pytest.raises(ValueError, match="count = 4 is more than there are parameters, 3"):
        top_eigenvalues(lambda: point.square().sum(), [point], 4)
    with pytest.raises(ValueError, match="1 \\+ loss"):
        sharpness(lambda: point.square().sum() - 5, [point])
