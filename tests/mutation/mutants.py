"""Small mistakes, one at a time, that the tests should find: a file of src/ctld, its text, the mistake, and who should see it.

A mistake names what is wrong, not where: an area (noise, units, forces, resume, ranks, refusal, thermometers, schedules, ensembles)
comes first. The text must occur exactly once in its file; where the file has changed, the mutant has to be written again.
"""

from typing import NamedTuple


class Mutant(NamedTuple):
    area: str
    file: str
    old: str
    new: str
    tests: str
    """Paths and options of pytest, separated by spaces."""


PIECES = "tests/tempering"
ALPHA = "tests/tempering tests/optimizers/test_reference.py"
CALIBRATED = "tests/statistical/test_calibrated.py tests/tempering"
NOISE = "tests/noise tests/stepping/test_engine.py"
STEPS = "tests/stepping tests/optimizers/test_reference.py tests/optimizers/test_sgd_equivalence.py tests/statistical/test_integrators.py"
COMPENSATION = "tests/test_compensation.py tests/optimizers/test_ctld.py tests/optimizers/test_state.py"
SHARDS = "tests/test_sharding.py tests/optimizers/test_elastic.py"
DIAGNOSTICS = "tests/diagnostics"
LIVE = "tests/optimizers/test_live_thermometers.py"
ADVICE = "tests/thermometers"
MASS = "tests/test_mass.py tests/optimizers/test_preconditioner.py"
SCHEDULES = "tests/test_schedules.py tests/test_cycles.py tests/lab/test_scores.py"
ENSEMBLES = "tests/ensembles tests/lab/test_scores.py"
CHECKS = "tests/optimizers/test_bad_input.py tests/tempering"

MUTANTS = [
    # ---- units and forces of α: the paper's tempering ----
    Mutant("units", "tempering/scaling.py", "return 1.0 - self.depth * z * z * (3.0 - 2.0 * z)", "return 1.0 - self.depth * z", PIECES),
    Mutant("forces", "tempering/scaling.py", "slope = -6.0 * self.depth", "slope = -3.0 * self.depth", PIECES),
    Mutant("forces", "tempering/scaling.py", "return slope if alpha >= 0 else -slope", "return slope", PIECES),
    Mutant("units", "tempering/scaling.py", "(abs(alpha) - self.plateau) / (self.edge - self.plateau), 0.0), 1.0)\n        return", "abs(alpha) / self.edge, 0.0), 1.0)\n        return", PIECES),
    Mutant("forces", "tempering/well.py", "-math.copysign(self.strength, alpha)", "-self.strength", PIECES),
    Mutant("forces", "tempering/well.py", "if abs(alpha) > self.edge", "if abs(alpha) > 2.0 * self.edge", PIECES),
    Mutant("forces", "tempering/bias.py", "(values[bin_index] - values[bin_index + 1]) / spacing", "(values[bin_index + 1] - values[bin_index]) / spacing", PIECES),
    Mutant("units", "tempering/bias.py", "scale = 0.5 / self.width**2", "scale = 1.0 / self.width**2", PIECES),
    Mutant("units", "tempering/bias.py", "return 2.0 * self.edge / self.num_bins", "return self.edge / self.num_bins", PIECES),
    Mutant("forces", "tempering/bias.py", "_REACH = 8.8", "_REACH = 4.4", PIECES),
    Mutant("resume", "tempering/bias.py", "        self._values[:] = array(\"d\", values)  # where a kernel may know them\n        self.height, self.width", "        self.height, self.width", f"{PIECES} tests/optimizers/test_state.py"),
    Mutant("units", "tempering/paper.py", "/ (step_size**2 * exploration_steps * num_bins)", "/ (step_size * exploration_steps * num_bins)", ALPHA),
    Mutant("units", "tempering/paper.py", "well=ConfiningWell(edge, edge / step_size**2)", "well=ConfiningWell(edge, edge / step_size)", ALPHA),
    Mutant("units", "tempering/paper.py", "friction=1.0 / step_size,", "friction=0.5 / step_size,", ALPHA),
    Mutant("forces", "tempering/paper.py", "self.alpha += step_size * self.alpha_momentum / self.mass", "self.alpha += step_size * self.alpha_momentum", ALPHA),
    Mutant("forces", "tempering/paper.py", "force = float(-slope * hamiltonian + self.mass * acceleration)", "force = float(-slope * hamiltonian + acceleration)", ALPHA),
    Mutant("noise", "tempering/paper.py", "noise_variance = 2.0 * step_size * friction * self.mass", "noise_variance = 2.0 * step_size * friction", ALPHA),
    Mutant("noise", "tempering/paper.py", "float(step_size * slope) ** 2 * hamiltonian_variance", "float(step_size) ** 2 * slope * hamiltonian_variance", ALPHA),
    Mutant("units", "tempering/paper.py", "/ _LARGEST_FIRST_MOVE))", "))", ALPHA),
    Mutant("resume", "tempering/paper.py", "            for prefix, piece in pieces.items():\n                piece.load_state_dict(before[prefix])\n            raise", "            raise", PIECES),
    Mutant("refusal", "tempering/paper.py", "        if self._taken:\n            raise ValueError(\"this tempering serves", "        if False:\n            raise ValueError(\"this tempering serves", "tests/tempering tests/optimizers/test_bad_input.py"),
    # ---- calibrated tempering ----
    Mutant("forces", "tempering/calibrated.py", "force = -slope * self._means.deviation", "force = slope * self._means.deviation", CALIBRATED),
    Mutant("noise", "tempering/calibrated.py", "share = 1.0 if self._euler else 0.25 * (1.0 + keep) ** 2", "share = 0.0", CALIBRATED),
    Mutant("noise", "tempering/calibrated.py", "(1.0 - keep**2) * self.mass", "(1.0 - keep) * self.mass", CALIBRATED),
    Mutant("forces", "tempering/calibrated.py", "self.alpha_momentum = -self.alpha_momentum", "pass", CALIBRATED),
    Mutant("units", "tempering/calibrated.py", "math.sqrt(begin / middle), math.sqrt(middle / end)", "math.sqrt(middle / begin), math.sqrt(end / middle)", CALIBRATED),
    Mutant("units", "tempering/calibrated.py", "self.mass = max(seen.variance * (steepest / _LARGEST_KICK) ** 2, _LEAST_MASS)", "self.mass = _LEAST_MASS", CALIBRATED),
    Mutant("units", "tempering/calibrated.py", "self.mass = max(self.mass, 1.2 * steepest**2", "self.mass = max(self.mass, 0.0 * steepest**2", CALIBRATED),
    Mutant("units", "tempering/calibrated.py", "((TRIPS + 12) * seen.friction)", "(TRIPS * seen.friction)", CALIBRATED),
    Mutant("resume", "tempering/trips.py", "self.count, self.hot = count, hot", "self.count = count", CALIBRATED),
    Mutant("noise", "tempering/warm_up.py", "(potential - 2.0 * last + before) ** 2 / 6.0", "(potential - last) ** 2 / 2.0", CALIBRATED),
    Mutant("noise", "tempering/warm_up.py", "(potential - 2.0 * last + before) ** 2 / 6.0", "(potential - 2.0 * last + before) ** 2 / 4.0", CALIBRATED),
    Mutant("noise", "tempering/warm_up.py", "noise = min(self._noise, whole)", "noise = 0.0", CALIBRATED),
    Mutant("forces", "tempering/means.py", " * (count / (count + self._prior))", "", CALIBRATED),
    Mutant("forces", "tempering/means.py", "self._prior = 10.0 * seen.correlation_time", "self._prior = 1e-9", CALIBRATED),
    Mutant("units", "tempering/warm_up.py", "sums = 0.5 + np.cumsum", "sums = 1.0 + np.cumsum", CALIBRATED),
    Mutant("resume", "tempering/warm_up.py", "    def interrupt(self) -> None:\n        \"\"\"Forget the last values: the next ones do not follow on them, and no difference may span the gap.\"\"\"\n        self._last = (math.nan, math.nan)", "    def interrupt(self) -> None:\n        \"\"\"Do nothing.\"\"\"", f"{CALIBRATED} tests/test_cycles.py"),
    Mutant("resume", "tempering/means.py", "fit[0], fit[1], int(fit[2])", "fit[0], fit[1], 0", CALIBRATED),
    Mutant("schedules", "tempering/driven.py", "abs(4.0 * ((phase + 0.25) % 1.0) - 2.0)", "abs(2.0 * ((phase + 0.25) % 1.0) - 2.0)", PIECES),
    # ---- noise ----
    Mutant("noise", "noise/philox.py", "ROUNDS = 10", "ROUNDS = 9", NOISE),
    Mutant("noise", "noise/philox.py", "k0, k1 = (k0 + WEYL[0]) & WORD, (k1 + WEYL[1]) & WORD", "k0, k1 = (k0 + WEYL[0]) & WORD, k1", NOISE),
    Mutant("noise", "noise/ars.py", "ROUNDS = 7", "ROUNDS = 6", NOISE),
    Mutant("noise", "noise/gaussian.py", "MINUS_TWO_LN_2 = -1.3862944", "MINUS_TWO_LN_2 = -1.386", NOISE),
    Mutant("noise", "noise/gaussian.py", "(1.0 - 2.0 * (angle_word & 1).float())", "1.0", NOISE),
    Mutant("noise", "noise/gaussian.py", "THRESHOLD = 21845", "THRESHOLD = 21845 + 100", NOISE),
    Mutant("noise", "noise/__init__.py", "return 2 + index", "return 1 + index", f"{NOISE} tests/optimizers/test_reference.py"),
    Mutant("noise", "noise/__init__.py", "torch.bitwise_right_shift(block, 32, out=counter[1])", "counter[1] = 0", NOISE),
    Mutant("noise", "noise/__init__.py", "skip = offset - GROUP * first", "skip = 0", NOISE),
    Mutant("noise", "noise/__init__.py", "page, position = divmod(element, 256)", "page, position = 0, element % 256", NOISE),
    Mutant("refusal", "noise/__init__.py", "if not 0 <= value <= largest:", "if value < 0:", NOISE),
    # ---- noise compensation ----
    Mutant("noise", "compensation.py", "square_().mul_(0.5)", "square_()", COMPENSATION),
    Mutant("noise", "compensation.py", "(0.5 * (loss - self.previous) ** 2 - self.value)", "((loss - self.previous) ** 2 - self.value)", COMPENSATION),
    Mutant("noise", "compensation.py", "remaining = variance - lr * state[\"gradient_variance\"]", "remaining = variance - state[\"gradient_variance\"]", COMPENSATION),
    Mutant("resume", "compensation.py", "self.loss.previous, self.loss.value, self.loss.seen = previous, value, seen", "self.loss.previous, self.loss.value = previous, value", COMPENSATION),
    # ---- integrators ----
    Mutant("noise", "stepping/integrators.py", "injected = 2.0 * (1.0 - momentum) * variance", "injected = (1.0 - momentum**2) * variance", STEPS),
    Mutant("noise", "stepping/integrators.py", "math.sqrt((1.0 - momentum**2) * variance)", "math.sqrt(2.0 * (1.0 - momentum) * variance)", STEPS),
    Mutant("units", "stepping/integrators.py", "return math.sqrt(2.0 * lr / (1.0 + momentum))", "return math.sqrt(lr)", STEPS),
    Mutant("units", "stepping/integrators.py", "math.sqrt(lr * -math.log(momentum) / (1.0 - momentum))", "math.sqrt(lr)", STEPS),
    Mutant("forces", "stepping/integrators.py", "Plan((Sweep(momentum, 1.0, -lr),), decay, ascend)", "Plan((Sweep(momentum, 1.0 - momentum, -lr),), decay, ascend)", STEPS),
    Mutant("noise", "stepping/integrators.py", "deviation, second_noise=True)", "deviation)", STEPS),
    Mutant("refusal", "stepping/integrators.py", "    if compensate:\n        raise ValueError(f'noise", "    if False:\n        raise ValueError(f'noise", "tests/stepping tests/optimizers/test_bad_input.py"),
    # ---- ranks and shards ----
    Mutant("ranks", "sharding.py", "return Block(((0, tensor.numel()),), 1)", "return Block(((0, tensor.numel()),), 2)", SHARDS),
    Mutant("ranks", "sharding.py", "strides = [math.prod(whole[i + 1 :]) for i in range(len(whole))]", "strides = [math.prod(shape[i + 1 :]) for i in range(len(whole))]", SHARDS),
    Mutant("ranks", "sharding.py", "if not placement.is_replicate()", "if True", f"{SHARDS} tests/distributed/test_same_answer.py"),
    Mutant("ranks", "sharding.py", "split = max(split, 1)", "split = max(split, 2)", SHARDS),
    # ---- diagnostics and thermometers ----
    Mutant("thermometers", "diagnostics/errors.py", "/ (1 - concentration)) / count", ") / count", DIAGNOSTICS),
    Mutant("thermometers", "diagnostics/errors.py", "min(max(round(draws.size ** (1 / 3)), 10), 50)", "draws.size", DIAGNOSTICS),
    Mutant("thermometers", "diagnostics/errors.py", "2 * float(pairs.sum()) - 1", "2 * float(pairs.sum())", DIAGNOSTICS),
    Mutant("thermometers", "diagnostics/errors.py", "np.minimum.accumulate(pairs[: negative[0] if negative.size else None])", "pairs", DIAGNOSTICS),
    Mutant("thermometers", "diagnostics/alpha.py", "hot_threshold = plateau + 0.9 * (edge - plateau)", "hot_threshold = 0.9 * edge", DIAGNOSTICS),
    Mutant("thermometers", "diagnostics/alpha.py", "shares / inside - 1 / num_bins", "shares - 1 / num_bins", DIAGNOSTICS),
    Mutant("thermometers", "diagnostics/crossings.py", "below=offset < -threshold", "below=offset < threshold", DIAGNOSTICS),
    Mutant("thermometers", "diagnostics/thermometers.py", "series / (temperature * ratio), selected", "series / temperature, selected", DIAGNOSTICS),
    Mutant("thermometers", "diagnostics/streaming.py", "return self.means[len(self.means) // 10 :]", "return self.means", LIVE),
    Mutant("thermometers", "diagnostics/streaming.py", "error = max(error, _estimate(batches).standard_error)", "pass", LIVE),
    Mutant("thermometers", "diagnostics/streaming.py", "<= 3.0 * math.hypot", "<= 30.0 * math.hypot", LIVE),
    Mutant("resume", "diagnostics/streaming.py", "length, self._sum, count, batches = values[:4]", "length, _, count, batches = values[:4]", LIVE),
    Mutant("thermometers", "thermometers/advice.py", "FAR = 0.1", "FAR = 0.2", ADVICE),
    Mutant("thermometers", "thermometers/advice.py", "CERTAIN = 4.0", "CERTAIN = 3.0", ADVICE),
    Mutant("thermometers", "thermometers/advice.py", "if 0.5 * excess < brought and (in_epochs or brought < 2.0 * excess)", "if 0.5 * excess < brought", ADVICE),
    Mutant("thermometers", "thermometers/advice.py", "ENOUGH = 18", "ENOUGH = 10", ADVICE),
    # ---- the diagonal mass matrix ----
    Mutant("units", "mass.py", "momentum.mul_((fresh / scale).sqrt_())", "momentum.mul_(1.0)", MASS),
    Mutant("units", "mass.py", "momentum.mul_((fresh / scale).sqrt_())", "momentum.mul_(fresh / scale)", MASS),
    Mutant("units", "mass.py", "clamp_(1.0 / limit, limit)", "clamp_(max=limit)", MASS),
    Mutant("units", "mass.py", "max(1.0 / seen, 1.0 - self.options.smoothing)", "1.0 - self.options.smoothing", MASS),
    Mutant("refusal", "mass.py", "fresh[square == 0] = 1.0", "pass", MASS),
    # ---- schedules, cycles, ensembles ----
    Mutant("schedules", "schedules.py", "(1.0 + step / offset) ** -exponent", "(1.0 + step) ** -exponent", SCHEDULES),
    Mutant("schedules", "schedules.py", "scale / math.log(2.0 + step)", "scale / math.log(3.0 + step)", SCHEDULES),
    Mutant("schedules", "schedules.py", "return (step % length) / length", "return ((step + 1) % length) / length", SCHEDULES),
    Mutant("schedules", "schedules.py", "scale * (1.0 + step) ** exponent", "scale * (2.0 + step) ** exponent", SCHEDULES),
    Mutant("schedules", "cycles.py", "return 1.0 if done < 0 else", "return 1.0 if done <= 1 else", SCHEDULES),
    Mutant("ensembles", "ensembles/averages.py", "log_sum - math.log(self._total)", "log_sum", ENSEMBLES),
    Mutant("ensembles", "ensembles/averages.py", "held[1] += deviation * (found[0] - held[0])", "held[1] += deviation * deviation", ENSEMBLES),
    Mutant("ensembles", "ensembles/metrics.py", "- 2.0 * truth + 1.0", "- truth", ENSEMBLES),
    Mutant("ensembles", "ensembles/metrics.py", ".ceil().long().sub_(1)", ".floor().long()", ENSEMBLES),
    # ---- refusals and the oracle ----
    Mutant("refusal", "checks.py", "isinstance(number, bool) or not isinstance(number, Real)", "not isinstance(number, Real)", CHECKS),
    Mutant("refusal", "checks.py", "math.isfinite(number) and number >= at_least", "number >= at_least", CHECKS),
    Mutant("refusal", "checks.py", "(isinstance(value, float) and value.is_integer())", "isinstance(value, float)", CHECKS),
]  # fmt: skip
