"""Networks that a teacher made: radial basis functions, ReLUs, and a convolution, with population losses in closed form."""

import math

import torch
from torch import Tensor

from traps.problem import Instance, Problem

_UNDERFLOW = -60.0
"""exp is an order of magnitude slower where its result is no normal number, and e^−60 is nothing beside 1."""


class RBF(Problem):
    """k Gaussian bumps of equal height on a line, to be covered by k others whose centres alone are trained.

    f(x) = Σ_i exp(−(x − c_i)²/2s²), s = 0.3; teachers about one apart; starts uniform. Two centres on one bump and none on
    another are a trap, and there are as many places for one as there are bumps. Loss: ∫(f − f*)² dx in units of one bump's,
    Σ K(c, c) − 2 Σ K(c, t) + Σ K(t, t) with K = exp(−distance²/4s²).
    """

    width = 0.3
    jitter = 0.4
    threshold = 0.01

    def __init__(self, centres: int) -> None:
        self.centres = centres
        self.name = f"rbf{centres}"
        self.title = f"RBF, {centres} centres"
        self.rates = (0.01, 0.025, 0.06)
        self.coldest = 0.003
        self.adam = 0.003

    def draw(self, replicas: int, generator: torch.Generator) -> Instance:
        noise = torch.rand((replicas, self.centres), generator=generator) - 0.5
        teachers = torch.arange(self.centres) + self.jitter * noise
        constant = _kernel(teachers, teachers, self.width).sum((1, 2))
        return teachers, constant

    def start(self, replicas: int, generator: torch.Generator) -> Tensor:
        return torch.rand((replicas, self.centres), generator=generator) * self.centres - 0.5

    def gradient(self, instance: Instance, theta: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        teachers, constant = instance
        others = torch.cat([theta, teachers], 1)
        kernel = _kernel(others, theta, self.width)
        sign = torch.ones_like(others)
        sign[:, self.centres :] = -1.0
        # Σ_j ±K(c_i, b_j) and Σ_j ±b_j K(c_i, b_j), b the centres and the teachers
        pull = torch.bmm(torch.stack([sign, sign * others], 1), kernel)
        gradient = (pull[:, 1] - theta * pull[:, 0]) / self.width**2
        loss = pull[:, 0].sum(1) - kernel[:, self.centres :].sum((1, 2)) + constant
        return loss, gradient


class SampledRBF(RBF):
    """The same network, its loss estimated from 32 of 1,000 points that were drawn once."""

    exact = False
    points = 1000
    batch = 32

    def __init__(self, centres: int, *, coldest: float | None = None) -> None:
        super().__init__(centres)
        self.name += "-batch"
        self.title += ", minibatches"
        self.rates = (0.005, 0.01, 0.02)
        self.coldest = coldest or self.coldest

    def draw(self, replicas: int, generator: torch.Generator) -> Instance:
        teachers, constant = super().draw(replicas, generator)
        points = torch.rand((replicas, self.points), generator=generator) * (self.centres + 1) - 1.0
        targets = torch.stack(
            [_bumps(row[:, None], own, self.width).sum(1) for row, own in zip(points, teachers, strict=True)]
        )
        return teachers, constant, points, targets

    def gradient(self, instance: Instance, theta: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        _, _, points, targets = instance
        rows = torch.randint(self.points, (len(theta), self.batch), generator=generator)
        points, targets = points.gather(1, rows), targets.gather(1, rows)
        distance = points[:, :, None] - theta[:, None, :]
        bumps = (distance.square() * (-0.5 / self.width**2)).clamp_(min=_UNDERFLOW).exp_()
        error = bumps.sum(2) - targets
        # the mean over points times the length of the line is the integral; ∫ of one bump's square is s√π
        unit = (self.centres + 1) / (self.width * math.sqrt(math.pi))
        loss = unit * error.square().mean(1)
        push = distance.mul_(bumps)
        gradient = torch.bmm(error[:, None, :], push)[:, 0] * (2.0 * unit / (self.batch * self.width**2))
        return loss, gradient

    def loss(self, instance: Instance, theta: Tensor) -> Tensor:
        return RBF.gradient(self, instance[:2], theta, torch.Generator())[0]


def _kernel(left: Tensor, right: Tensor, width: float) -> Tensor:
    """Return K(left_i, right_j), replicas first."""
    distance = left[:, :, None] - right[:, None, :]
    return distance.square_().mul_(-0.25 / width**2).clamp_(min=_UNDERFLOW).exp_()


def _bumps(points: Tensor, centres: Tensor, width: float) -> Tensor:
    return torch.exp((points - centres).square() * (-0.5 / width**2))


class TeacherStudent(Problem):
    """Σ_i max(0, w_i·x), k units that are to be k orthogonal teachers, x standard normal in k dimensions.

    Safran and Shamir (2018) proved that there are spurious minima from k = 6 on, and met them in 58 % of descents at k = 12
    and 94 % at k = 20. Loss: ½E(f − f*)², from f(w, v) = |w||v|(sin θ + (π − θ) cos θ)/2π.
    """

    threshold = 1e-3

    def __init__(self, units: int) -> None:
        self.units = units
        self.name = f"relu{units}"
        self.title = f"Teacher-student, {units} ReLUs"
        self.rates = (0.1, 0.2, 0.4)
        self.coldest = 1e-4
        self.adam = 0.001

    def draw(self, replicas: int, generator: torch.Generator) -> Instance:
        # The start is isotropic: any orthogonal teachers are as good as these.
        return (torch.zeros(replicas, 0),)

    def start(self, replicas: int, generator: torch.Generator) -> Tensor:
        return torch.randn((replicas, self.units**2), generator=generator) / math.sqrt(self.units)

    def gradient(self, instance: Instance, theta: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        k = self.units
        weights = theta.view(-1, k, k)
        norms = weights.norm(dim=2).clamp_(min=1e-12)
        unit = weights / norms[:, :, None]
        cosine = torch.cat([torch.bmm(unit, unit.transpose(1, 2)), unit], 2)  # with each other, and with the teachers
        sine, far = _angles(cosine)
        sine[:, :, :k].diagonal(dim1=1, dim2=2).zero_()  # of a unit with itself, to which rounding adds
        far[:, :, :k].diagonal(dim1=1, dim2=2).fill_(math.pi)
        lengths = torch.cat([norms, torch.full_like(norms, -1.0)], 1)  # with the sign of their part in the error
        along = torch.bmm(sine, lengths[:, :, None])[:, :, 0]
        gradient = along[:, :, None] * unit + torch.bmm(far[:, :, :k], weights) - far[:, :, k:]
        both = sine.addcmul_(far, cosine).mul_(norms[:, :, None])
        overlap = torch.bmm(both[:, :, :k], norms[:, :, None]).sum((1, 2)) - 2.0 * both[:, :, k:].sum((1, 2))
        constant = k * math.pi + k * (k - 1)
        loss = (overlap + constant) / (4.0 * math.pi)
        return loss, (gradient / (2.0 * math.pi)).reshape(theta.shape)


class SampledTeacherStudent(TeacherStudent):
    """The same network, its loss estimated from fresh inputs at every step.

    The more units, the more inputs a step takes: with as few as for twelve units descent blows up at every rate that gets
    anywhere within the budget.
    """

    exact = False

    def __init__(
        self,
        units: int,
        *,
        batch: int = 32,
        rates: tuple[float, float, float] | None = None,
        coldest: float | None = None,
    ) -> None:
        super().__init__(units)
        self.name += "-batch"
        self.title += ", minibatches"
        self.batch = batch
        self.rates = rates or self.rates
        self.coldest = coldest or self.coldest

    def gradient(self, instance: Instance, theta: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        k = self.units
        inputs = torch.randn((len(theta), self.batch, k), generator=generator, dtype=theta.dtype)
        before = torch.bmm(inputs, theta.view(-1, k, k).transpose(1, 2))
        error = before.clamp(min=0.0).sum(2) - inputs.clamp(min=0.0).sum(2)
        gates = (before > 0).to(theta.dtype) * (error / self.batch)[:, :, None]
        gradient = torch.bmm(gates.transpose(1, 2), inputs)
        return 0.5 * error.square().mean(1), gradient.reshape(theta.shape)

    def loss(self, instance: Instance, theta: Tensor) -> Tensor:
        return TeacherStudent.gradient(self, instance, theta, torch.Generator())[0]


def _angles(cosine: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sine of an angle in [0, π], and π less the angle, which is the angle of −cosine."""
    cosine = cosine.clamp(-1.0, 1.0)
    return cosine.square().neg_().add_(1.0).sqrt_(), cosine.neg_().arccos_()


class Convolution(Problem):
    """Σ_j a_j max(0, w·z_j): one filter on k patches that do not overlap, standard normal inputs, a teacher of that form.

    Du et al. (2018): descent ends in a spurious minimum, w = −w*, with constant probability; Zhou et al. (2019): noise
    escapes from it. Loss: ½E(f − f*)² in closed form.
    """

    name = "convolution"
    title = "Convolution, 8 × 16"
    threshold = 1e-3
    rates = (0.005, 0.01, 0.02)
    coldest = 3e-3
    adam = 0.001
    filter, patches = 8, 16

    def draw(self, replicas: int, generator: torch.Generator) -> Instance:
        filters = torch.randn((replicas, self.filter), generator=generator)
        outputs = torch.randn((replicas, self.patches), generator=generator)
        # with Σa* = 0 half of all starts lead into the trap; the larger the sum, the fewer (Du et al., theorem 3.2)
        return filters / filters.norm(dim=1, keepdim=True), outputs - outputs.mean(1, keepdim=True)

    def start(self, replicas: int, generator: torch.Generator) -> Tensor:
        filters = torch.randn((replicas, self.filter), generator=generator) / math.sqrt(self.filter)
        outputs = torch.randn((replicas, self.patches), generator=generator) / self.patches
        return torch.cat([filters, outputs], 1)

    def gradient(self, instance: Instance, theta: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        filters, outputs = instance
        w, a = theta[:, : self.filter], theta[:, self.filter :]
        length = w.norm(dim=1, keepdim=True).clamp(min=1e-12)
        unit = w / length
        cosine = (unit * filters).sum(1, keepdim=True)
        sine, far = _angles(cosine)
        both = sine + far * cosine
        sums, own, true = a.sum(1, keepdim=True), a.square().sum(1, keepdim=True), outputs.sum(1, keepdim=True)
        shared = (a * outputs).sum(1, keepdim=True)
        energy = 0.5 * own + (sums.square() - own) / (2.0 * math.pi)
        squares = outputs.square().sum(1, keepdim=True)
        constant = 0.5 * squares + (true.square() - squares) / (2.0 * math.pi)
        cross = (sums * true + (both - 1.0) * shared) / (2.0 * math.pi)
        loss = 0.5 * (length.square() * energy - 2.0 * length * cross + constant)
        by_filter = energy * w - ((sums * true - shared + shared * sine) * unit + shared * far * filters) / (
            2.0 * math.pi
        )
        by_outputs = 0.5 * length.square() * (a + (sums - a) / math.pi) - length * (true + (both - 1.0) * outputs) / (
            2.0 * math.pi
        )
        return loss[:, 0], torch.cat([by_filter, by_outputs], 1)
