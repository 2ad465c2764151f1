"""The study of traps: gradients, and that a row of the batched dynamics is a run of the library."""

import math

import numpy as np
import pytest
import torch

from ctld import CTLD, Tempering, noise
from ctld.optimizers.reference import ReferenceCTLD
from traps import dynamics
from traps.dynamics import NUM_DATA, Noise, run
from traps.methods import LEVELS, METHODS, PAIRS, Setting, setting
from traps.networks import RBF, SampledRBF, SampledTeacherStudent
from traps.problem import chosen
from traps.study import PROBLEMS, choose, runs

SEED, BUDGET = 5, 400
EXPLORATION = 240  # 60 % of it


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def wide(instance):
    return tuple(tensor.double() for tensor in instance)


# ---- problems ----


@pytest.mark.parametrize("name", PROBLEMS)
def test_gradients_are_those_of_the_loss(name):
    problem = PROBLEMS[name]()
    for constant in ("_points", "_inputs", "_signs", "_all"):
        if hasattr(problem, constant):
            setattr(problem, constant, getattr(problem, constant).double())
    instance, theta = wide(problem.draw(3, seeded(0))), problem.start(3, seeded(1)).double()
    direction = torch.randn(theta.shape, generator=seeded(2), dtype=torch.float64)
    if hasattr(problem, "relevant"):  # ReLUs and the like have kinks, between which a small step stays
        direction /= direction.norm()

    def loss(step):
        return problem.gradient(instance, theta + step * direction, seeded(3))[0]

    slope = (loss(1e-6) - loss(-1e-6)) / 2e-6
    torch.testing.assert_close(
        (problem.gradient(instance, theta, seeded(3))[1] * direction).sum(1), slope, rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("problem", [SampledRBF(8), SampledTeacherStudent(6)], ids=["rbf", "relu"])
def test_minibatches_have_the_exact_loss_on_average(problem):
    # 4,000 instances or starts, a batch each; their differences from the exact loss have mean zero.
    instance, theta = problem.draw(4000, seeded(0)), problem.start(4000, seeded(1))
    exact = problem.loss(instance, theta)
    difference = (problem.gradient(instance, theta, seeded(2))[0] - exact).double()
    error = difference.std() / math.sqrt(len(difference))
    assert error < 0.03 * exact.mean()
    assert abs(difference.mean()) < 4 * error
    assert abs((difference + 0.15 * exact).mean()) > 4 * error  # a wrong unit would show


@pytest.mark.parametrize("name", [name for name in PROBLEMS if name.startswith(("rbf", "relu"))])
def test_the_teacher_has_no_loss(name):
    problem = PROBLEMS[name]()
    instance = wide(problem.draw(2, seeded(0)))
    units = getattr(problem, "units", None)
    teacher = instance[0] if units is None else torch.eye(units, dtype=torch.float64).reshape(1, -1).repeat(2, 1)
    assert problem.loss(instance, teacher).abs().max() < 1e-5  # of float32 constants


# ---- dynamics ----


class LibraryNoise(Noise):
    """The numbers that `CTLD` draws under this seed: momenta first, then a vector and a number for each step."""

    def __init__(self, first_alpha):
        self._theta_calls, self._alpha_calls = -1, first_alpha

    def of_theta(self, like):
        step, self._theta_calls = self._theta_calls, self._theta_calls + 1
        streams = (0, noise.INITIAL_MOMENTA) if step < 0 else (step, noise.parameter_stream(0))
        return noise.normal(SEED, *streams, like.numel(), dtype=like.dtype).view(like.shape)

    def of_alpha(self, rows):
        assert rows == 1
        element, self._alpha_calls = self._alpha_calls, self._alpha_calls + 1
        return np.array([noise.scalar_normal(SEED, noise.ALPHA, element)])


def one_replica(method, point, source, problem=None):
    problem = problem or RBF(8)
    problem.threshold = -1.0  # it is to be followed to the end
    instance, theta = wide(problem.draw(1, seeded(0))), problem.start(1, seeded(1)).double()
    outcome = run(
        problem,
        METHODS[method],
        [point],
        instance,
        lambda number: theta,
        budget=BUDGET,
        noise=source,
        batches=seeded(2),
    )
    return problem, instance, theta, outcome


TEMPERINGS = {
    "constant": lambda eta: Tempering.constant(),
    "driven": lambda eta: Tempering.driven(EXPLORATION),
    "paper": lambda eta: Tempering.paper(eta, EXPLORATION),
    "calibrated": lambda eta: Tempering.calibrated(warm_up=100),
}


@pytest.mark.filterwarnings("ignore:calibrated tempering may not fit")
@pytest.mark.parametrize("method", TEMPERINGS)
@pytest.mark.parametrize("temperature", [0.1, 1.0])
def test_a_row_is_ctld(method, temperature):
    lr, momentum = 0.02, 0.8
    problem, instance, theta, outcome = one_replica(
        method, Setting(lr, momentum, temperature), LibraryNoise(first_alpha=int(method == "calibrated"))
    )
    parameter = torch.nn.Parameter(theta[0].clone())
    optimizer = CTLD(
        [parameter],
        lr,
        momentum,
        num_data=NUM_DATA,
        exploration_steps=EXPLORATION,
        temperature=NUM_DATA * temperature,
        tempering=TEMPERINGS[method](math.sqrt(lr / NUM_DATA)),
        seed=SEED,
    )
    for _ in range(BUDGET):
        loss, gradient = problem.gradient(instance, parameter.detach()[None], seeded(0))
        parameter.grad = gradient[0]
        optimizer.step(loss=loss)
    torch.testing.assert_close(outcome.theta[0], parameter.detach(), rtol=1e-6, atol=1e-6)


def test_a_row_with_falling_temperature_is_algorithm_1():
    lr, momentum, temperature = 0.02, 0.8, 0.1
    problem, instance, theta, outcome = one_replica("falling", Setting(lr, momentum, temperature), LibraryNoise(0))
    source, eta = LibraryNoise(0), math.sqrt(lr / NUM_DATA)
    T = NUM_DATA * temperature
    momenta = source.of_theta(theta)[0].numpy()
    # depth and hills of zero: nothing is tempered but by hand
    reference = ReferenceCTLD(
        theta[0].numpy(), math.sqrt(T) * momenta, 0.0, eta, NUM_DATA, EXPLORATION, T, S=0.0, height_factor=0.0
    )
    for step in range(BUDGET):
        loss, gradient = problem.gradient(instance, torch.from_numpy(reference.theta)[None], seeded(0))
        reference.T = T * max(1 - step / EXPLORATION, 0.0)
        reference.step(
            NUM_DATA * loss.item(),
            NUM_DATA * gradient[0].numpy(),
            momentum,
            lambda: source.of_theta(theta)[0].numpy(),
            float,
        )
    np.testing.assert_allclose(outcome.theta[0].numpy(), reference.theta, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("method", "point"), [("sgd", Setting(0.02, 0.8, fading=0.1)), ("adam", Setting(0.02, 0.8, fading=0.1))]
)
def test_a_row_without_noise_is_torchs(method, point):
    problem, instance, theta, outcome = one_replica(method, point, Noise(seeded(0)))
    parameter = torch.nn.Parameter(theta[0].clone())
    optimizer = (
        torch.optim.SGD([parameter], point.lr, point.momentum)
        if method == "sgd"
        else torch.optim.Adam([parameter], point.lr, (point.momentum, 0.999))
    )
    for step in range(BUDGET):
        optimizer.param_groups[0]["lr"] = point.lr * point.fading ** (step / BUDGET)
        parameter.grad = problem.gradient(instance, parameter.detach()[None], seeded(0))[1][0]
        optimizer.step()
    torch.testing.assert_close(outcome.theta[0], parameter.detach(), rtol=1e-6, atol=1e-6)


def test_rows_do_not_disturb_each_other():
    """A row that diverges stays alone; each row has the temperature of its own setting."""
    problem = RBF(8)
    problem.threshold = -1.0
    points = [Setting(0.02, 0.8, 0.1), Setting(1e30, 0.8, 1e30)]
    instance, theta = wide(problem.draw(1, seeded(0))), problem.start(1, seeded(1)).double()
    rows = torch.zeros(2, dtype=torch.long)

    class Paired(LibraryNoise):
        """The same numbers for both rows."""

        def of_theta(self, like):
            return super().of_theta(like[:1]).expand(like.shape)

        def of_alpha(self, rows):
            return super().of_alpha(1).repeat(rows)

    for name in ("constant", "paper", "calibrated"):
        first = int(name == "calibrated")
        alone = run(
            problem,
            METHODS[name],
            points[:1],
            instance,
            lambda number: theta,
            budget=BUDGET,
            noise=LibraryNoise(first),
            batches=seeded(0),
        )
        with np.errstate(all="ignore"):
            both = run(
                problem,
                METHODS[name],
                points,
                chosen(instance, rows),
                lambda number: theta[rows],
                budget=BUDGET,
                noise=Paired(first),
                batches=seeded(0),
            )
        torch.testing.assert_close(both.theta[0], alone.theta[0])
        assert not (both.theta[1].abs() < 1e6).all()


# ---- runs within the budget ----


def test_restarts_are_runs_from_other_weights():
    """The second run of two equals a run of half the budget that began with its weights."""
    problem = RBF(8)
    problem.threshold = -1.0
    instance, starts = problem.draw(4, seeded(0)), [problem.start(4, seeded(seed)) for seed in (1, 2)]

    def of(settings, begin, budget):
        return run(
            problem,
            METHODS["restarts"],
            settings,
            instance,
            begin,
            budget=budget,
            noise=Noise(seeded(0)),
            batches=seeded(0),
        )

    both = of([Setting(0.02, 0.8, runs=2)] * 4, lambda number: starts[number], BUDGET)
    second = of([Setting(0.02, 0.8)] * 4, lambda number: starts[1], BUDGET // 2)
    torch.testing.assert_close(both.theta, second.theta, rtol=0, atol=0)


@pytest.mark.parametrize("keep", ["state", "best", "new"])
def test_where_a_cycle_begins(keep):
    problem, begun, seen = RBF(8), [], []
    instance = problem.draw(16, seeded(0))

    class Watched(RBF):
        threshold = -1.0

        def gradient(self, instance, theta, generator):
            loss, gradient = super().gradient(instance, theta, generator)
            seen.append((theta.clone(), loss))
            return loss, gradient

    starts = [problem.start(16, seeded(seed)) for seed in range(4)]
    run(
        Watched(8),
        METHODS[f"cycles-{keep}-constant"],
        [Setting(0.02, 0.8, 0.3, runs=4)] * 16,
        instance,
        lambda number: starts[number],
        budget=400,
        noise=Noise(seeded(0)),
        batches=seeded(0),
    )
    ends = [seen[step] for step in (0, 100, 200, 300)]
    begun = [seen[step + 1][0] - end[0] for step, end in zip((0, 100, 200, 300), ends, strict=True)]
    moved = torch.stack(begun).abs().amax(2)
    step = 5 * math.sqrt(2 * 0.2 * 0.02 * 0.3) + 0.3  # what one noisy step can do
    if keep == "new":
        for end, start in zip(ends, starts, strict=True):
            torch.testing.assert_close(end[0], start)
    elif keep == "state":
        assert (moved < step).all()
        assert not torch.equal(ends[1][0], starts[1])
    else:
        losses = torch.stack([end[1] for end in ends])
        fallen = losses[1:] > losses.cummin(0).values[:-1]  # rows whose last cycle made it worse go back
        assert 4 < fallen.sum() < 44
        assert (moved[1:][~fallen] < step).all()
        assert (moved[1:][fallen] > 0.5).float().mean() > 0.5


class Own(Noise):
    """Numbers of each row from a generator of its own."""

    def __init__(self, rows):
        self.generators = [seeded(row) for row in rows]

    def of_theta(self, like):
        return torch.stack([torch.randn(like.shape[1:], generator=own, dtype=like.dtype) for own in self.generators])

    def of_alpha(self, rows):
        return np.array([torch.randn(1, generator=own, dtype=torch.float64).item() for own in self.generators])


@pytest.mark.parametrize(
    "name", ["restarts", "adam", "cycles-best-falling", "cycles-new-constant", "paper", "calibrated"]
)
@pytest.mark.filterwarnings("ignore:calibrated tempering may not fit")
def test_rows_go_on_as_if_alone_when_others_are_solved(name, monkeypatch):
    method, problem = METHODS[name], RBF(8)
    point = Setting(0.02, 0.8, 0.1 if method.temperature else 0.0, runs=1 if method.keep == "state" else 4)
    instance = wide(problem.draw(8, seeded(0)))
    starts = [problem.start(8, seeded(9 + number)).double() for number in range(4)]

    def of(rows, source):
        index = torch.tensor(rows)
        return run(
            problem,
            method,
            [point] * len(rows),
            chosen(instance, index),
            lambda number: starts[number][index],
            budget=BUDGET,
            noise=source,
            batches=seeded(0),
        )

    alone = [of([row], Own([row])) for row in range(8)]
    whole, kept, keep = Own(range(8)), [], dynamics.Walk.keep

    def keep_and_tell(walk, rows):
        keep(walk, rows)
        kept.append(len(walk.rows))
        whole.generators = [own for own, stays in zip(whole.generators, rows.tolist(), strict=True) if stays]

    monkeypatch.setattr(dynamics.Walk, "keep", keep_and_tell)
    together = of(list(range(8)), whole)
    assert kept
    assert together.solved_at == [each.solved_at[0] for each in alone]
    torch.testing.assert_close(together.theta, torch.cat([each.theta for each in alone]), rtol=1e-5, atol=1e-5)


def test_every_method_has_as_many_points():
    problem = RBF(8)
    for method in METHODS.values():
        points = {setting(problem, method, pair, level) for pair in range(PAIRS) for level in range(LEVELS)}
        assert len(points) == PAIRS * LEVELS == 78, method.name
    with pytest.raises(ValueError, match="there is no point"):
        setting(problem, METHODS["sgd"], 0, 13)


def test_the_choice():
    def trials(*rows):
        names = ("solved", "gradients", "loss")
        return [{"pair": 0, "level": level, **dict(zip(names, row, strict=True))} for level, row in enumerate(rows)]

    found = choose(trials((3, 50.0, 0.1), (5, 60.0, 0.1), (4, 50.0, 0.1), (5, 40.0, 0.1)))
    assert found["level"] == 1  # as good as level 3, and with better neighbours
    assert choose(trials((0, 100.0, 3.0), (0, 100.0, 1.0), (0, 100.0, "inf")))["level"] == 1


def test_methods_share_instances_and_starts():
    """Runs of two methods without noise, of one step of the smallest rate, differ by that step alone."""
    problem = RBF(8)
    first = runs(problem, METHODS["restarts"], [(0, 0)], replicas=5, stage="final", budget=1)
    second = runs(problem, METHODS["sgd"], [(0, 0)], replicas=5, stage="final", budget=1)
    other = runs(problem, METHODS["sgd"], [(0, 0)], replicas=5, stage="tuning", budget=1)
    torch.testing.assert_close(first.theta, second.theta)
    assert (first.theta - other.theta).abs().max() > 0.5
