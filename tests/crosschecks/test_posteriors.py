"""SGLD, SGHMC and SGNHT beside those of `posteriors`, and every method that has one beside its twin in torch.

`posteriors` takes a log posterior and a temperature; its documentation advises the mean over data for the first and 1/N for
the second. So here log_posterior = −(mean loss) and temperature = T/N, and

    SGLD           lr                                                   as here; Welling and Teh's ε is 2 lr/N
    SGHMC, SGNHT   lr_p = √lr,  alpha = (1 − momentum)/√lr,  sigma = 1   momenta m = v/√lr,  thermostat ξ_p = ξ/√lr
                   beta = 2 N noise_estimate/(lr T²)                    the gradient's variance, in units of T/N squared

Paths are compared with our noise in both, to twelve digits; stationary variances with noise of their own, in units of
the batch-means error. What was found, in posteriors 0.1.3 (variances in units of T/(N k), x = lr·k, a = 1 − momentum):

* SGLD is the same: 1.6658 ± 0.0008 here, 1.6657 ± 0.0007 there, at x = 0.8, where the discrete law is 1.6667.
* SGHMC and SGNHT have the same kick, noise included, but move θ by the momentum *before* the kick, with the gradient at the
  θ from which they move: explicit Euler. Chen et al. (Algorithm 2) take the gradient after the move, Ding et al. move by the
  new momentum; both are the symplectic Euler step. That is no detail. Explicit Euler takes x off the friction, so SGHMC
  samples 1/(1 − x/a) times the variance, to first order, and blows up from x = a on, where the symplectic step is good for
  x up to 2(1 + momentum). At momentum 0.9 and x = 0.04: 1.683 ± 0.002 there (law 1.684), 1.011 ± 0.001 here (law 1.011).
  The sources of BlackJAX and SGMCMCJax have the same step.
* In SGNHT the thermostat makes good for it where all curvatures are alike: 0.946 ± 0.001 there, 0.947 ± 0.001 here (law
  0.947; that it is not 1 is the paper's: ⟨v²⟩ is held at T, which is not quite the temperature of θ). With two curvatures,
  x = 0.04 and 0.004, it cannot: 1.110 ± 0.002 and 0.783 ± 0.002 there, 0.952 ± 0.002 and 0.944 ± 0.003 here.
* Initial momenta are N(0, 1) whatever temperature and sigma are: N/T times too hot in the recommended units.
* `xi=0.0` is taken for "not given" and becomes alpha.
* `inplace=True` counts the steps in a tensor that all chains of the process share, so a schedule starts where the
  last chain has stopped.
* The docstring of SGLD has the noise variance ε(2 − εβ)T; the code has εT(2 − εTβ), which is right if β is as above.
* At temperature 0 its SGHMC is SGD with momentum and a gradient one step old.
"""

import math
import warnings

import numpy as np
import pytest
import torch
from torch import nn

import ctld
from ctld import diagnostics, noise

with warnings.catch_warnings():
    # tensordict 0.15 on the defaults of posteriors' state classes; what it warns of is tested below.
    warnings.filterwarnings("ignore", message="The Tensor default of the field", category=FutureWarning)
    from posteriors.sgmcmc import sghmc, sgld, sgnht

# √lr = 1/4 and (1 − momentum)/√lr = 1/2: exact in float32, in which posteriors keeps its first ξ.
LR, MOMENTUM, NUM_DATA, TEMPERATURE, SEED = 0.0625, 0.875, 30.0, 0.7, 5
ROOT, FRICTION = 0.25, 0.5
SIZE, STEPS = 7, 40
START = torch.linspace(-1.0, 1.5, SIZE, dtype=torch.float64)


def mean_loss(theta):
    """Nothing that a linear method could get right by accident."""
    return (theta**4 / 4 - theta**2 / 2 + theta.sin()).sum()


def log_posterior(theta, batch):
    return -mean_loss(theta), torch.tensor([])


def epsilon(step, size=SIZE):
    return noise.normal(SEED, step, noise.parameter_stream(0), size, dtype=torch.float64)


def initial_momenta(temperature=TEMPERATURE):
    """m = v/√lr as ctld draws it."""
    standard = noise.normal(SEED, 0, noise.INITIAL_MOMENTA, SIZE, dtype=torch.float64)
    return math.sqrt(temperature / NUM_DATA) * standard


@pytest.fixture
def same_noise(monkeypatch):
    """posteriors draws its noise by torch.randn_like, once a step: give it ours."""
    steps = iter(range(STEPS))
    monkeypatch.setattr(torch, "randn_like", lambda like: epsilon(next(steps), like.numel()))


def our_path(optimizer_class, *, steps=STEPS, start=START, **options):
    """θ before the first and after every step, and the optimizer."""
    theta = nn.Parameter(start.clone())
    optimizer = optimizer_class([theta], LR, **options)
    path = [theta.detach().clone()]
    for _ in range(steps):
        optimizer.zero_grad()
        mean_loss(theta).backward()
        optimizer.step()
        path.append(theta.detach().clone())
    return torch.stack(path), optimizer


def velocity(optimizer):
    return next(iter(optimizer.state.values()))["momentum_buffer"]


def sampler_options(**options):
    return {"num_data": NUM_DATA, "temperature": TEMPERATURE, "seed": SEED} | options


def close(ours, theirs):
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-13)


class TestPaths:
    """With the same noise, number by number."""

    @pytest.mark.usefixtures("same_noise")
    @pytest.mark.parametrize("factor", [1.0, 2.0])
    def test_sgld_is_the_same(self, factor):
        ours, _ = our_path(ctld.SGLD, **sampler_options())
        transform = sgld.build(log_posterior, factor * LR, temperature=TEMPERATURE / NUM_DATA)
        state, path = transform.init(START.clone()), [START]
        for _ in range(STEPS):
            state, _ = transform.update(state, None)
            path.append(state.params)
        if factor == 1.0:
            close(ours, torch.stack(path))
        else:
            # The twin: Welling and Teh's ε, which is twice this lr, in the place of lr.
            assert (ours - torch.stack(path)).abs().max() > 0.1

    @pytest.mark.usefixtures("same_noise")
    @pytest.mark.parametrize("noise_estimate", [0.0, 0.03])
    def test_sghmc_has_the_same_kick_but_another_drift(self, noise_estimate):
        ours, optimizer = our_path(
            ctld.SGHMC, steps=1, momentum=MOMENTUM, noise_estimate=noise_estimate, **sampler_options()
        )
        beta = 2 * NUM_DATA * noise_estimate / (LR * TEMPERATURE**2)
        transform = sghmc.build(
            log_posterior,
            ROOT,
            alpha=FRICTION,
            beta=beta,
            temperature=TEMPERATURE / NUM_DATA,
            momenta=initial_momenta(),
        )
        before = transform.init(START.clone())
        after, _ = transform.update(before, None)
        close(velocity(optimizer), ROOT * after.momenta)
        close(ours[1], START + ROOT * after.momenta)
        close(after.params, START + ROOT * before.momenta)

    @pytest.mark.usefixtures("same_noise")
    def test_sghmc_is_the_same_with_the_gradient_where_chen_et_al_take_it(self):
        """After the move. Then it is our step but for where a step is said to begin: between drift and kick."""

        def after_the_move(theta, move):
            return -mean_loss(theta + move), torch.tensor([])

        ours, _ = our_path(ctld.SGHMC, momentum=MOMENTUM, **sampler_options())
        momenta = initial_momenta()
        transform = sghmc.build(
            after_the_move, ROOT, alpha=FRICTION, temperature=TEMPERATURE / NUM_DATA, momenta=momenta
        )
        # Their first act is a drift by the initial momenta, which we leave out.
        state, path = transform.init(START - ROOT * momenta), []
        for _ in range(STEPS):
            state, _ = transform.update(state, ROOT * state.momenta)
            path.append(state.params)
        close(ours[:-1], torch.stack(path))

    @pytest.mark.usefixtures("same_noise")
    def test_sgnht_has_the_same_kick_but_reads_the_old_momenta(self):
        """Ding et al.'s Algorithm 2 reads the new ones, in the drift and in the thermostat."""
        ours, optimizer = our_path(ctld.SGNHT, steps=1, momentum=MOMENTUM, **sampler_options())
        transform = sgnht.build(
            log_posterior, ROOT, alpha=FRICTION, temperature=TEMPERATURE / NUM_DATA, momenta=initial_momenta()
        )
        before = transform.init(START.clone())
        after, _ = transform.update(before, None)
        close(velocity(optimizer), ROOT * after.momenta)
        close(ours[1], START + ROOT * after.momenta)
        close(after.params, START + ROOT * before.momenta)

        def thermostat(momenta):
            return FRICTION + ROOT * (momenta.square().mean() - TEMPERATURE / NUM_DATA)

        close(optimizer.param_groups[0]["thermostat"], ROOT * thermostat(after.momenta))
        close(after.xi, thermostat(before.momenta))

    def test_noise_variance_of_sgld_is_the_codes_not_the_docstrings(self, monkeypatch):
        """With ones for noise and no gradient the move is the deviation."""
        monkeypatch.setattr(torch, "randn_like", torch.ones_like)
        transform = sgld.build(lambda theta, batch: (0.0 * theta.sum(), torch.tensor([])), 0.1, 3.0, temperature=0.5)
        state, _ = transform.update(transform.init(torch.zeros(1, dtype=torch.float64)), None)
        assert state.params.item() ** 2 == pytest.approx(0.1 * 0.5 * (2 - 0.1 * 0.5 * 3.0), rel=1e-12)
        assert state.params.item() ** 2 != pytest.approx(0.1 * (2 - 0.1 * 3.0) * 0.5, rel=0.01)


ELEMENTS, BURN_IN, DRAWS = 4000, 1200, 2400
LAW_LR, LAW_MOMENTUM, LAW_NUM_DATA = 0.04, 0.9, 50.0
# Batch means of 13 or more batches: a t distribution with 12 degrees of freedom has p = 0.001 beyond 4.3.
THRESHOLD = 4.3


class TestLaws:
    """On a Gaussian of mean-loss curvature k, with noise of their own; x = lr·k, a = 1 − momentum.

    The variances are in units of T/(N k). Two linear recursions, so their stationary covariances follow from one step:

        SGLD                                1/(1 − x/2)
        symplectic Euler (SGHMC here)       1/(1 − x/(4 − 2a))
        explicit Euler (SGHMC, posteriors)  a/(a − x) · (2 − a + x)/(2 − a + x/2)

    SGNHT settles at the friction ξ at which N⟨v²⟩/lr = T, which is not quite the temperature of θ:

        symplectic  1 − ξ/2,            where ξ(2 − ξ − x/2) = 2a
        explicit    1 − ξ/2 + x/2,      where (ξ − x)(2 − ξ + x/2) = 2a: the same, at a friction larger by x
    """

    @staticmethod
    def ours(optimizer_class, curvature, chosen=slice(None), **options):
        torch.manual_seed(3)
        spread = (LAW_NUM_DATA * curvature) ** -0.5
        theta = nn.Parameter(spread * torch.randn(ELEMENTS, dtype=torch.float64))
        options = {"num_data": LAW_NUM_DATA, "seed": 3} | options
        optimizer = optimizer_class([theta], LAW_LR, **options)
        series = []
        for _ in range(BURN_IN + DRAWS):
            theta.grad = curvature * theta.detach()
            optimizer.step()
            series.append((LAW_NUM_DATA * curvature * theta.detach().square())[chosen].mean().item())
        return diagnostics.estimate(series[BURN_IN:])

    @staticmethod
    def theirs(module, curvature, chosen=slice(None), temperature=1.0):
        torch.manual_seed(4)
        spread = (LAW_NUM_DATA * curvature) ** -0.5

        def gaussian(theta, batch):
            return -0.5 * (curvature * theta.square()).sum(), torch.tensor([])

        lr, options = LAW_LR, {}
        if module is not sgld:
            lr = math.sqrt(LAW_LR)
            momenta = torch.randn(ELEMENTS, dtype=torch.float64) / math.sqrt(LAW_NUM_DATA)
            options = {"alpha": (1 - LAW_MOMENTUM) / lr, "momenta": momenta}
        transform = module.build(gaussian, lr, temperature=temperature / LAW_NUM_DATA, **options)
        state = transform.init(spread * torch.randn(ELEMENTS, dtype=torch.float64))
        series = []
        for _ in range(BURN_IN + DRAWS):
            state, _ = transform.update(state, None)
            series.append((LAW_NUM_DATA * curvature * state.params.square())[chosen].mean().item())
        return diagnostics.estimate(series[BURN_IN:])

    @staticmethod
    def score(estimate, law):
        assert estimate.standard_error < 0.01 * law
        return abs(estimate.mean - law) / estimate.standard_error

    def test_sgld(self):
        curvature = 20.0  # x = 0.8: the law is 1.667, far from 1
        law = 1 / (1 - LAW_LR * curvature / 2)
        ours, theirs = self.ours(ctld.SGLD, curvature), self.theirs(sgld, curvature)
        assert self.score(ours, law) < THRESHOLD
        assert self.score(theirs, law) < THRESHOLD
        assert abs(ours.mean - theirs.mean) < THRESHOLD * math.hypot(ours.standard_error, theirs.standard_error)

    def test_sghmc(self):
        x, a = LAW_LR * 1.0, 1 - LAW_MOMENTUM
        symplectic = 1 / (1 - x / (4 - 2 * a))
        explicit = a / (a - x) * (2 - a + x) / (2 - a + x / 2)
        assert (symplectic, explicit) == (pytest.approx(1.0106, abs=1e-4), pytest.approx(1.6840, abs=1e-4))
        ours, theirs = self.ours(ctld.SGHMC, 1.0, momentum=LAW_MOMENTUM), self.theirs(sghmc, 1.0)
        assert self.score(ours, symplectic) < THRESHOLD
        assert self.score(theirs, explicit) < THRESHOLD
        assert self.score(theirs, symplectic) > 10 * THRESHOLD

    def test_sghmc_of_posteriors_blows_up_where_the_paper_does_not(self):
        curvature = 5.0  # x = 0.2, twice 1 − momentum: each step multiplies |θ|² by 1 − a + x = 1.1
        law = 1 / (1 - LAW_LR * curvature / (2 * (1 + LAW_MOMENTUM)))
        assert self.score(self.ours(ctld.SGHMC, curvature, momentum=LAW_MOMENTUM), law) < THRESHOLD
        transform = sghmc.build(
            lambda theta, batch: (-0.5 * curvature * theta.square().sum(), torch.tensor([])),
            math.sqrt(LAW_LR),
            alpha=(1 - LAW_MOMENTUM) / math.sqrt(LAW_LR),
            temperature=0.0,
            momenta=0.0,
        )
        state = transform.init(torch.ones(1, dtype=torch.float64))
        for _ in range(400):
            state, _ = transform.update(state, None)
        energy = state.params.item() ** 2 * curvature + state.momenta.item() ** 2
        assert math.log(energy / curvature) / 400 == pytest.approx(math.log(1.1), rel=0.02)

    def test_sgnht(self):
        """With one curvature the thermostat hides the explicit step's heat. Both are cold by a/2, as the paper's step is."""
        law = 1 - self.friction_of_sgnht() / 2
        assert law == pytest.approx(0.9466, abs=1e-4)
        ours, theirs = self.ours(ctld.SGNHT, 1.0, momentum=LAW_MOMENTUM), self.theirs(sgnht, 1.0)
        assert self.score(ours, law) < THRESHOLD
        assert self.score(theirs, law) < THRESHOLD
        assert self.score(ours, 1.0) > THRESHOLD

    def test_sgnht_of_posteriors_is_hot_where_it_is_stiff_and_cold_where_it_is_soft(self):
        """With two curvatures one friction cannot make good what the explicit step takes off by x in each."""
        curvature = torch.tensor([1.0, 0.1], dtype=torch.float64).repeat(ELEMENTS // 2)
        x, a = LAW_LR * np.array([1.0, 0.1]), 1 - LAW_MOMENTUM
        # ⟨m²⟩ is 2a/((ξ − x)(2 − ξ + x/2)) in each direction; their mean over directions is 1.
        low, high = x.max() + 1e-9, 1.0
        for _ in range(60):
            friction = (low + high) / 2
            momentum_square = 2 * a / ((friction - x) * (2 - friction + x / 2))
            low, high = (friction, high) if momentum_square.mean() > 1 else (low, friction)
        stiff, soft = momentum_square * (1 - friction / 2 + x / 2)
        assert (stiff, soft) == (pytest.approx(1.1071, abs=1e-4), pytest.approx(0.7865, abs=1e-4))
        for chosen, law in ((slice(0, None, 2), stiff), (slice(1, None, 2), soft)):
            assert self.score(self.theirs(sgnht, curvature, chosen=chosen), law) < THRESHOLD
            ours = self.ours(ctld.SGNHT, curvature, chosen=chosen, momentum=LAW_MOMENTUM)
            assert ours.mean == pytest.approx(1 - self.friction_of_sgnht() / 2, rel=0.02)

    @staticmethod
    def friction_of_sgnht():
        """ξ of the symplectic step at curvature 1; the explicit step's is larger by x."""
        x, a = LAW_LR, 1 - LAW_MOMENTUM
        return (2 - x / 2 - math.sqrt((2 - x / 2) ** 2 - 8 * a)) / 2

    @pytest.mark.parametrize("name", ["sgld", "sghmc", "sgnht"])
    def test_twin_with_a_tenth_more_noise_is_seen(self, name):
        """On both sides, against the laws above."""
        x, a = LAW_LR * 1.0, 1 - LAW_MOMENTUM
        laws = {
            "sgld": (1 / (1 - x / 2),) * 2,
            "sghmc": (1 / (1 - x / (4 - 2 * a)), a / (a - x) * (2 - a + x) / (2 - a + x / 2)),
            "sgnht": (1 - self.friction_of_sgnht() / 2,) * 2,
        }
        optimizer_class = {"sgld": ctld.SGLD, "sghmc": ctld.SGHMC, "sgnht": ctld.SGNHT}[name]
        options = {} if name == "sgld" else {"momentum": LAW_MOMENTUM}
        ours = self.ours(optimizer_class, 1.0, temperature=1.1, **options)
        theirs = self.theirs({"sgld": sgld, "sghmc": sghmc, "sgnht": sgnht}[name], 1.0, temperature=1.1)
        assert self.score(ours, laws[name][0]) > THRESHOLD
        assert self.score(theirs, laws[name][1]) > THRESHOLD


class TestStart:
    def test_initial_momenta_of_posteriors_do_not_know_the_temperature(self):
        """They should have variance sigma²·temperature: 1/NUM_DATA here, 1.0 there."""
        size, num_data = 40_000, 1000.0
        torch.manual_seed(0)
        theirs = sghmc.build(log_posterior, ROOT, temperature=1 / num_data).init(torch.zeros(size)).momenta
        theta = nn.Parameter(torch.zeros(size))
        ours = velocity(ctld.SGHMC([theta], LR, MOMENTUM, num_data=num_data, seed=0)) / math.sqrt(LR)
        # The variance of `size` normal numbers has a relative standard error of sqrt(2/size) = 0.7 %.
        assert num_data * ours.var().item() == pytest.approx(1.0, abs=0.03)
        assert num_data * theirs.var().item() == pytest.approx(num_data, rel=0.03)

    def test_a_thermostat_of_zero_is_taken_for_none_by_posteriors(self):
        transform = sgnht.build(log_posterior, ROOT, alpha=FRICTION, xi=0.0)
        assert transform.init(START.clone()).xi.item() == FRICTION

    def test_chains_of_posteriors_that_update_in_place_share_one_step_counter(self):
        transform = sgld.build(log_posterior, LR)
        first = transform.init(START.clone())
        shared = first.step
        try:
            for _ in range(3):
                first, _ = transform.update(first, None, inplace=True)
            assert transform.init(START.clone()).step.item() == 3  # of a chain that has not made a step
        finally:
            shared.data = torch.tensor(0)
        theta = nn.Parameter(START.clone())
        theta.grad = torch.ones_like(theta)
        used, fresh = (ctld.SGLD([theta], LR, num_data=NUM_DATA, seed=0) for _ in range(2))
        used.step()
        assert used.state_dict()["param_groups"][0]["ctld_step"] == 1
        assert fresh.state_dict()["param_groups"][0]["ctld_step"] == 0


SGD_M = {"momentum": MOMENTUM}
COLD = {"num_data": NUM_DATA, "temperature": 0.0}
TORCH = {
    "sgld": (torch.optim.SGD, {}, COLD),
    "simulated_annealing": (torch.optim.SGD, {}, COLD),
    "psgld": (torch.optim.RMSprop, {"alpha": 0.99, "eps": 1e-5}, COLD),
    "sghmc": (torch.optim.SGD, SGD_M, SGD_M | COLD),
    "langevin": (torch.optim.SGD, SGD_M, SGD_M | COLD),
    "ctld": (torch.optim.SGD, SGD_M, SGD_M | COLD | {"exploration_steps": STEPS}),
    "anneal_sgd": (torch.optim.SGD, SGD_M, SGD_M | {"noise_scale": 0.0}),
    "easgd": (torch.optim.SGD, {}, {"elasticity": 0.0}),
    "eamsgd": (torch.optim.SGD, SGD_M | {"nesterov": True}, SGD_M | {"elasticity": 0.0}),
}


class TestWithoutNoise:
    """At temperature 0, without springs, or without noise on the gradients, the path is that of torch."""

    @pytest.mark.parametrize("weight_decay", [0.0, 0.1])
    @pytest.mark.parametrize("name", TORCH)
    def test_ours_is_torch(self, name, weight_decay):
        optimizer_class, torch_options, options = TORCH[name]
        theirs, _ = our_path(optimizer_class, weight_decay=weight_decay, **torch_options)
        ours, _ = our_path(ctld.OPTIMIZERS[name].optimizer, weight_decay=weight_decay, **options)
        close(ours, theirs)

    def test_sghmc_of_posteriors_is_sgd_with_a_gradient_one_step_old(self):
        """Its `sigma` was added to make it SGD with momentum at temperature 0 (its pull request 90); it is not."""
        plain, _ = our_path(torch.optim.SGD, momentum=MOMENTUM)
        transform = sghmc.build(log_posterior, ROOT, alpha=FRICTION, temperature=0.0, momenta=0.0)
        state, path = transform.init(START.clone()), [START]
        theta, move, stale = START.clone(), torch.zeros_like(START), [START]
        for _ in range(STEPS):
            state, _ = transform.update(state, None)
            path.append(state.params)
            gradient = theta**3 - theta + theta.cos()
            theta = theta + move
            move = MOMENTUM * move - LR * gradient
            stale.append(theta)
        close(torch.stack(path), torch.stack(stale))
        assert (torch.stack(path) - plain).abs().max() > 0.1
