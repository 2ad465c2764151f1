"""What one does with a prediction: metrics of numbers, smooth ECE, AUROC, risk and coverage, conformal sets, figures."""

import math
import sys

import numpy as np
import pytest
import torch
from scipy import integrate, stats
from torch import nn
from torch.nn import functional

from ctld import Ensemble, predict
from ctld.ensembles import Prediction, RegressionPrediction, auroc, conformal, smooth_ece
from ctld.ensembles.calibration import calibrate, member_weights
from ctld.ensembles.task import Task


def regression(mean, aleatoric, epistemic=0.0):
    mean = torch.as_tensor(mean, dtype=torch.float64)
    return RegressionPrediction(mean, torch.as_tensor(aleatoric).expand_as(mean), torch.full_like(mean, epistemic), 2)


def labelled(probabilities):
    return Prediction(torch.as_tensor(probabilities, dtype=torch.float64).log(), torch.zeros(len(probabilities)), 1)


# ---- numbers ----


def test_metrics_of_a_regression_are_those_of_the_gaussian():
    mean, deviation, target = [0.0, 1.0, 3.0], 0.7, [0.5, -1.0, 3.1]
    found = regression(mean, 0.4, deviation**2 - 0.4).metrics(target)
    law = [stats.norm(m, deviation) for m in mean]
    crps = [
        integrate.quad(lambda x, one=one, y=y: (one.cdf(x) - (x >= y)) ** 2, y - 15, y)[0]
        + integrate.quad(lambda x, one=one, y=y: (one.cdf(x) - (x >= y)) ** 2, y, y + 15)[0]
        for one, y in zip(law, target, strict=True)
    ]
    assert found["nll"] == pytest.approx(-np.mean([one.logpdf(y) for one, y in zip(law, target, strict=True)]))
    assert found["crps"] == pytest.approx(np.mean(crps), rel=1e-6)
    assert found["rmse"] == pytest.approx(math.sqrt((0.25 + 4.0 + 0.01) / 3))
    assert found["mae"] == pytest.approx((0.5 + 2.0 + 0.1) / 3)
    # 0.71, 2.86 and 0.14 standard deviations, beside .67, 1.64 and 1.96.
    assert [found[f"coverage_{c}"] for c in (50, 90, 95)] == pytest.approx([1 / 3, 2 / 3, 2 / 3])
    lower, upper = regression(mean, 0.4, deviation**2 - 0.4).interval(0.9)
    assert lower.tolist() == pytest.approx([one.interval(0.9)[0] for one in law])
    assert upper.tolist() == pytest.approx([one.interval(0.9)[1] for one in law])
    columns = regression(np.array(mean)[:, None], deviation**2).metrics(np.array(target))
    assert columns["nll"] == pytest.approx(found["nll"])


def test_a_model_without_variance_needs_the_noise():
    plain = regression([0.0, 1.0], 0.0, 0.25)
    assert set(plain.metrics([0.0, 1.0])) == {"rmse", "mae"}
    assert plain.metrics([0.3, 1.0], noise=1.0)["nll"] == pytest.approx(
        regression([0.0, 1.0], 1.25).metrics([0.3, 1.0])["nll"]
    )
    with pytest.raises(ValueError, match=r"targets must have shape \(2,\), got \(3,\)"):
        plain.metrics([1.0, 2.0, 3.0])


# ---- certainty ----


def test_smooth_ece_finds_what_is_there():
    """Calibrated confidences have an error that falls with their number; a shift by .2 is found for what it is."""
    generator = torch.Generator().manual_seed(0)
    confidence = 0.3 + 0.6 * torch.rand(20_000, generator=generator, dtype=torch.float64)
    right = torch.rand(20_000, generator=generator, dtype=torch.float64) < confidence
    assert smooth_ece(confidence, right) < 0.02
    assert smooth_ece((confidence + 0.1).clamp(max=1), right) == pytest.approx(0.1, abs=0.02)
    assert smooth_ece([0.8, 0.8], [True, True]) == pytest.approx(0.2, abs=0.01)
    # Bins of their own: one sure and wrong, one sure and right, far apart.
    assert smooth_ece([0.0, 1.0], [True, False]) > 0.4
    with pytest.raises(ValueError, match="there are no predictions"):
        smooth_ece([], [])


def test_auroc_is_that_of_scikit_learn():
    sklearn = pytest.importorskip("sklearn.metrics")
    generator = torch.Generator().manual_seed(0)
    known = torch.randn(300, generator=generator).mul(3).round()
    strange = torch.randn(200, generator=generator).mul(3).round() + 1
    truth = [0] * 300 + [1] * 200
    assert auroc(known, strange) == pytest.approx(sklearn.roc_auc_score(truth, torch.cat([known, strange])))
    assert auroc(known, known) == 0.5
    assert auroc([0.1, 0.2], [0.2, 0.9]) == 0.875
    with pytest.raises(ValueError, match="at least one each, got 0 and 1"):
        auroc([], [1.0])


def test_risk_falls_where_uncertainty_knows_the_errors():
    prediction = labelled([[0.9, 0.1], [0.55, 0.45], [0.2, 0.8], [0.6, 0.4]])
    curve = prediction.risk_coverage([0, 1, 1, 0])
    assert curve["coverage"].tolist() == [0.25, 0.5, 0.75, 1.0]
    assert curve["risk"].tolist() == pytest.approx([0, 0, 0, 0.25])
    assert curve["area"] == pytest.approx(1 / 16)
    assert prediction.risk_coverage([1, 0, 1, 0])["area"] > 0.4  # the surest is wrong


# ---- conformal ----


@pytest.mark.parametrize("score", ["absolute", "scaled", "quantile", None])
def test_intervals_cover_what_they_promise(score):
    """400 times 39 held-out targets and one new one, from another law than the model's; the standard error is .015."""
    generator = torch.Generator().manual_seed(1)
    covered = 0
    for _ in range(400):
        spread = 0.5 + torch.rand(40, generator=generator, dtype=torch.float64)
        target = 3 * spread * torch.randn(40, generator=generator, dtype=torch.float64) + 1
        held = regression(torch.zeros(39), spread[:39].square())
        lower, upper = conformal(held, target[:39], coverage=0.9, score=score)(regression([0.0], spread[39:].square()))
        covered += bool(lower <= target[39] <= upper)
    assert covered / 400 == pytest.approx(0.9, abs=0.045)
    plain = regression(torch.zeros(39), spread[:39].square()).interval(0.9)
    assert float(((plain[0] <= target[:39]) & (target[:39] <= plain[1])).double().mean()) < 0.7  # without: far too few


def test_sets_cover_what_they_promise():
    generator = torch.Generator().manual_seed(1)
    covered, sizes = 0, []
    for _ in range(400):
        logits = 2 * torch.randn(40, 5, generator=generator, dtype=torch.float64)
        label = torch.distributions.Categorical(logits=logits).sample()
        sure = (4 * logits).softmax(-1)  # far too sure
        sets = conformal(labelled(sure[:39]), label[:39], coverage=0.8)(labelled(sure[39:]))
        covered += bool(sets[0, label[39]])
        sizes.append(int(sets.sum()))
    # `sample` draws from torch's own generator, which every test seeds; the standard error is .02.
    assert covered / 400 == pytest.approx(0.8, abs=0.06)
    assert 1 <= np.mean(sizes) < 4
    with pytest.raises(ValueError, match=r"a coverage of 0.99 needs at least 99 held-out targets, got 39"):
        conformal(labelled(sure[:39]), label[:39], coverage=0.99)
    with pytest.raises(ValueError, match="score must be left out for labels"):
        conformal(labelled(sure), label, score="scaled")
    with pytest.raises(ValueError, match=r'needs a positive variance everywhere. Give score="absolute"'):
        conformal(regression([0.0] * 20, 0.0), [0.0] * 20, score="scaled")


# ---- weights by held-out data ----


def test_members_are_weighed_by_what_they_say_of_held_out_data():
    likelihood = torch.tensor([[0.9, 0.8, 0.9, 0.7], [0.1, 0.2, 0.3, 0.2]], dtype=torch.float64)
    weights = member_weights(likelihood.repeat(1, 50).log())
    assert weights[0] > 0.95
    assert weights.sum() == pytest.approx(1)
    assert member_weights(likelihood.log())[1] > 1 / 6 - 1e-9  # one pseudo-count each, of six
    assert member_weights(torch.zeros(3, 0, dtype=torch.float64)).tolist() == pytest.approx([1 / 3] * 3)


class Rows(nn.Module):
    """Gives its parameter's rows, chosen by the input."""

    def __init__(self, rows, columns):
        super().__init__()
        self.table = nn.Parameter(torch.zeros(rows, columns, dtype=torch.float64))

    def forward(self, rows):
        return self.table[rows]


def test_a_calibrated_average_is_the_weighted_mixture():
    generator = torch.Generator().manual_seed(0)
    truth = torch.randn(300, 4, generator=generator, dtype=torch.float64)
    labels = torch.distributions.Categorical(logits=truth).sample()
    model, rows = Rows(300, 4), torch.arange(300)
    good, bad = {"table": 3 * truth}, {"table": -truth}
    found = calibrate(model, [good, bad], rows, labels, Task(("classification",)))
    assert found.weights[0] > 0.65  # a member that is too sure leaves room for others
    assert 1.5 < found.temperature < 3.5  # it is three times too sure
    mixed = predict(model, [good, bad], rows, calibration=found)
    scaled = [(state["table"] / found.temperature).softmax(-1) for state in (good, bad)]
    expected = found.weights[0] * scaled[0] + found.weights[1] * scaled[1]
    torch.testing.assert_close(mixed.probabilities, expected)
    entropies = [-(p * p.log()).sum(-1) for p in scaled]
    torch.testing.assert_close(mixed.aleatoric, found.weights[0] * entropies[0] + found.weights[1] * entropies[1])
    assert mixed.metrics(labels)["nll"] < predict(model, [good, bad], rows).metrics(labels)["nll"]
    fair = calibrate(model, [{"table": truth}], rows, labels, Task(("classification",)))
    assert fair.temperature == 1.0  # within chance
    with pytest.raises(ValueError, match=r"there must be 2 samples, as many as were calibrated, got 1"):
        predict(model, [good], rows, calibration=found)
    with pytest.raises(ValueError, match=r"there must be 2 samples, as many as were calibrated, got more"):
        predict(model, [good] * 3, rows, calibration=found)


def test_a_regression_is_weighed_and_given_its_noise():
    generator = torch.Generator().manual_seed(0)
    truth = torch.randn(400, 1, generator=generator, dtype=torch.float64)
    targets = truth + 0.5 * torch.randn(400, 1, generator=generator, dtype=torch.float64)
    model, rows = Rows(400, 1), torch.arange(400)
    states = [{"table": truth}, {"table": truth + 2.0}]
    found = calibrate(model, states, rows, targets, Task(("regression",), head="mean"))
    assert found.weights[0] > 0.9
    assert found.noise == pytest.approx(0.25, rel=0.2)
    mixed = predict(model, states, rows, task="regression", calibration=found)
    first, second = found.weights
    torch.testing.assert_close(mixed.mean, truth + 2.0 * second)
    torch.testing.assert_close(mixed.epistemic, torch.full_like(truth, 4.0 * first * second))
    assert mixed.metrics(targets)["coverage_90"] == pytest.approx(0.9, abs=0.05)


def trained():
    torch.manual_seed(0)
    inputs = torch.linspace(-2, 2, 60)[:, None]
    targets = inputs.sin() + 0.3 * torch.randn(60, 1)
    model = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 2))
    nn.init.zeros_(model[2].weight)
    ensemble = Ensemble(model, 0.01, 60, 400, cycles=4, temperature=0, task="regression", head="mean_log_variance")
    for _ in range(400):
        loss = ensemble.loss(model(inputs), targets)
        loss.backward()
        ensemble.step(loss)
    return ensemble, inputs, targets


def test_an_ensemble_is_calibrated_and_drawn(tmp_path, monkeypatch):
    ensemble, inputs, targets = trained()
    before = ensemble.predict(inputs).metrics(targets)
    found = ensemble.calibrate(inputs, targets)
    assert sum(found.weights) == pytest.approx(1)
    after = ensemble.predict(inputs)
    assert after.metrics(targets)["nll"] <= before["nll"] + 1e-3
    ensemble.save(tmp_path / "saved")
    again = Ensemble.load(tmp_path / "saved", nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 2)))
    assert again.calibration == found
    assert torch.equal(again.predict(inputs).mean, after.mean)

    figure = ensemble.plot()
    loss, rate = figure.axes
    assert len(loss.lines[0].get_xdata()) == 40
    assert list(loss.lines[1].get_xdata()) == [100, 200, 300, 400]
    assert max(rate.lines[0].get_ydata()) == 1.0
    figure.savefig(tmp_path / "run.svg")
    drawn = after.plot(inputs, targets).axes[0]
    assert len(drawn.lines) == 2
    assert len(drawn.collections) == 1
    with pytest.raises(ValueError, match=r"inputs must be one number for each prediction, got 120 for 60"):
        after.plot(torch.zeros(60, 2))
    left, right = labelled([[0.9, 0.1], [0.55, 0.45], [0.2, 0.8], [0.6, 0.4]]).plot([0, 1, 1, 0]).axes
    assert list(right.lines[0].get_ydata()) == pytest.approx([0, 0, 0, 0.25])
    assert list(left.lines[1].get_ydata()) == pytest.approx([0, 1, 1, 1])
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match="python -m pip install matplotlib"):
        ensemble.plot()


def test_fit_uses_validation():
    from torch.utils.data import DataLoader, TensorDataset

    from ctld import fit_ensemble

    torch.manual_seed(0)
    inputs = torch.randn(200, 5)
    labels = inputs[:, :3].argmax(-1)
    loader = DataLoader(TensorDataset(inputs[:150], labels[:150]), 50)
    ensemble = fit_ensemble(
        nn.Linear(5, 3),
        loader,
        functional.cross_entropy,
        epochs=10,
        cycles=3,
        validation=(inputs[150:], labels[150:]),
        progress=False,
    )
    assert len(ensemble.calibration.weights) == 3


def test_an_interval_without_any_noise_is_refused():
    """It would be the mean's, and cover far fewer targets than it says."""
    silent = regression(torch.zeros(5), 0.0, 0.01)
    with pytest.raises(ValueError, match="conformal"):
        silent.interval(0.9)
    lower, upper = silent.interval(0.9, noise=1.0)
    assert float((upper - lower).min()) > 3.2
