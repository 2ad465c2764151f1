"""predict: averages, their two uncertainties and metrics against numbers by hand; what it leaves alone; what it holds."""

import math
import sys
import weakref
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from ctld import SampleCollector, predict
from ctld.ensembles import Prediction
from targets import Classification, equal

ROOT = Path(__file__).parents[2]


class Table(nn.Module):
    """Gives its parameter's rows, chosen by the input: outputs are whatever a test wants."""

    def __init__(self, rows=2, columns=2):
        super().__init__()
        self.table = nn.Parameter(torch.zeros(rows, columns, dtype=torch.float64))

    def forward(self, rows):
        return self.table[rows]


def tables(*probabilities):
    return [{"table": torch.tensor(p, dtype=torch.float64).log()} for p in probabilities]


def entropy(*p):
    return -sum(x * math.log(x) for x in p if x > 0)


ROWS = torch.tensor([0, 1])


def test_mean_and_uncertainties_by_hand():
    # At row 0 both samples are sure and disagree; at row 1 they agree to be unsure.
    found = predict(Table(), tables([[1.0, 0.0], [0.3, 0.7]], [[0.0, 1.0], [0.3, 0.7]]), ROWS)
    assert found.num_samples == 2
    assert found.probabilities.flatten().tolist() == pytest.approx([0.5, 0.5, 0.3, 0.7])
    assert found.total.tolist() == pytest.approx([math.log(2), entropy(0.3, 0.7)])
    assert found.aleatoric.tolist() == pytest.approx([0.0, entropy(0.3, 0.7)])
    assert found.epistemic.tolist() == pytest.approx([math.log(2), 0.0], abs=1e-12)


def test_equals_the_direct_formulas_on_a_network():
    problem = Classification()
    states = []
    for seed in range(7):
        torch.manual_seed(seed)
        states.append({name: tensor + torch.randn_like(tensor) for name, tensor in problem.model.state_dict().items()})
    found = predict(problem.model, iter(states), problem.inputs, batch_size=10)
    each = torch.stack(
        [torch.func.functional_call(problem.model, state, (problem.inputs,)).softmax(-1) for state in states]
    ).detach()
    mean = each.mean(0)
    torch.testing.assert_close(found.probabilities, mean, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(found.total, -(mean * mean.log()).sum(-1))
    torch.testing.assert_close(found.aleatoric, -(each * each.log()).sum(-1).mean(0))
    # Mutual information, the other way round: mean divergence of the samples from their mean.
    torch.testing.assert_close(found.epistemic, (each * (each.log() - mean.log())).sum(-1).mean(0))
    for inputs in (list(problem.inputs.split(17)), DataLoader(TensorDataset(problem.inputs, problem.labels), 8)):
        again = predict(problem.model, states, inputs)
        torch.testing.assert_close(again.log_probabilities, found.log_probabilities)


def test_metrics_by_hand():
    """Four predictions over two classes; ECE with two bins, [0, ½) and [½, 1], so that all are in the second, then with ten."""
    p = [[0.9, 0.1], [0.8, 0.2], [0.35, 0.65], [0.4, 0.6]]
    labels = torch.tensor([0, 1, 1, 1])
    prediction = predict(Table(4), tables(p), torch.arange(4))
    found = prediction.metrics(labels, num_bins=2)
    assert found["nll"] == pytest.approx(-sum(map(math.log, (0.9, 0.2, 0.65, 0.6))) / 4, rel=1e-12)
    assert found["error"] == pytest.approx(0.25)
    assert found["brier"] == pytest.approx(2 * (0.1**2 + 0.8**2 + 0.35**2 + 0.4**2) / 4, rel=1e-6)
    assert found["ece"] == pytest.approx(abs(0.75 - (0.9 + 0.8 + 0.65 + 0.6) / 4), rel=1e-5)
    # Bins [0.6, 0.7) with two that are right, [0.8, 0.9) with one that is wrong, [0.9, 1) with one that is right; a value on an
    # edge is moved off it, since single precision would decide.
    p = [[0.92, 0.08], [0.83, 0.17], [0.35, 0.65], [0.38, 0.62]]
    found = predict(Table(4), tables(p), torch.arange(4)).metrics(labels, num_bins=10)
    assert found["ece"] == pytest.approx((2 * (1 - 0.635) + 1 * 0.83 + 1 * (1 - 0.92)) / 4, rel=1e-5)


def test_brier_of_three_classes_is_the_sum_over_classes():
    found = predict(Table(1, 3), tables([[0.5, 0.3, 0.2]]), torch.tensor([0])).metrics(torch.tensor([2]))
    assert found["brier"] == pytest.approx(0.25 + 0.09 + 0.64, rel=1e-6)
    assert found["error"] == 1.0


def test_nll_of_what_no_float_can_hold():
    """exp(−2000) is 0: a probability would give an infinite nll."""
    state = {"table": torch.tensor([[0.0, -2000.0], [0.0, -3000.0]], dtype=torch.float64)}
    found = predict(Table(), [state, state], ROWS)
    assert found.metrics(torch.tensor([1, 1]))["nll"] == pytest.approx(2500)


def test_rounding_above_one_is_no_logit():
    """torchmetrics applies a softmax if any number is above 1: then 0.62 and the like would be its answer."""
    above = torch.tensor([[2.3e-16, -40.0], [2.3e-16, -40.0]], dtype=torch.float64)
    assert above.exp().max() > 1
    found = Prediction(above, torch.zeros(2), 1).metrics(torch.tensor([0, 0]))
    assert found["ece"] == pytest.approx(0, abs=1e-6)
    assert found["brier"] == pytest.approx(0, abs=1e-12)


def test_sequences():
    model = Table(6, 4)
    state = {"table": torch.randn(6, 4, dtype=torch.float64)}
    rows = torch.tensor([[0, 1, 2], [3, 4, 5]])
    found = predict(model, [state], rows, class_dim=-1)
    assert found.probabilities.shape == (2, 3, 4)
    metrics = found.metrics(rows % 4)
    expected = nn.functional.cross_entropy(state["table"], torch.arange(6) % 4)
    assert metrics["nll"] == pytest.approx(float(expected))


def test_regression_by_the_law_of_total_variance():
    class Pair(Table):
        def forward(self, rows):
            return self.table[rows, 0], self.table[rows, 1]

    values = torch.tensor([[[1.0, 0.1], [5.0, 0.2]], [[2.0, 0.3], [5.0, 0.2]], [[6.0, 0.5], [5.0, 0.2]]])
    states = [{"table": value.double()} for value in values]
    found = predict(Pair(), states, ROWS, task="regression")
    assert found.mean.tolist() == pytest.approx([3.0, 5.0])
    assert found.aleatoric.tolist() == pytest.approx([0.3, 0.2])
    assert found.epistemic.tolist() == pytest.approx([14 / 3, 0.0])
    assert found.total.tolist() == pytest.approx([14 / 3 + 0.3, 0.2])
    alone = predict(Table(), states, ROWS, task="regression", head="mean")
    assert alone.mean.tolist() == values.double().mean(0).flatten().reshape(2, 2).tolist()
    assert alone.aleatoric.abs().max() == 0
    # A far offset: sums of squares would lose all digits.
    far = [{"table": state["table"] + 1e9} for state in states]
    assert predict(Table(), far, ROWS, task="regression", head="mean").epistemic[0, 0] == pytest.approx(
        14 / 3, rel=1e-6
    )


def test_one_sample_in_memory_at_a_time():
    alive = []

    def stream(count):
        for _ in range(count):
            assert not any(reference() is not None for reference in alive), "the sample before is still held"
            state = {"table": torch.randn(2, 2, dtype=torch.float64)}
            alive.append(weakref.ref(state["table"]))
            yield state
            del state

    assert predict(Table(), stream(20), ROWS).num_samples == 20
    assert len(alive) == 20


def test_the_model_is_left_alone():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 3))
    model[1].eval()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    identities = [id(p) for p in model.parameters()]
    gradients = [torch.full_like(p, 7.0) for p in model.parameters()]
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        parameter.grad = gradient
    other = {name: tensor + 1 for name, tensor in before.items()}
    inputs = torch.randn(50, 4)
    found = predict(model, [other], inputs, batch_size=7)
    twin = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 3))
    twin.load_state_dict(other)
    torch.testing.assert_close(found.probabilities, twin.eval()(inputs).softmax(-1).double(), rtol=1e-5, atol=1e-6)
    for _ in range(2):
        assert [module.training for module in model] == [True, False, True, True]
        assert model.training
        assert equal(before, dict(model.state_dict()))
        assert [id(p) for p in model.parameters()] == identities
        assert all(p.grad is kept for p, kept in zip(model.parameters(), gradients, strict=True))
        assert all((kept == 7.0).all() for kept in gradients)
        assert all(p.requires_grad for p in model.parameters())
        with pytest.raises(RuntimeError):
            predict(model, [other], torch.randn(50, 5))  # then once more the same: also after a failure


def test_recurrent_and_tied_layers_use_the_samples():
    """nn.LSTM keeps a list of its weights, and a tied weight has two names: neither may fall back on the model's own."""

    class Text(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.memory, self.head = nn.Embedding(5, 6), nn.LSTM(6, 6, 2), nn.Linear(6, 5)
            self.head.weight = self.embed.weight

        def forward(self, x):
            return self.head(self.memory(self.embed(x))[0])

    torch.manual_seed(0)
    model, source = Text(), Text()
    collector = SampleCollector(source, torch.optim.SGD(source.parameters(), 0.1))
    collector.collect(step=1)
    inputs = torch.randint(5, (7, 3))
    with torch.no_grad():
        expected = source(inputs).softmax(-1).double()
    torch.testing.assert_close(
        predict(model, collector, inputs, class_dim=-1).probabilities, expected, rtol=1e-5, atol=1e-6
    )


def test_what_is_refused():
    model, samples = Table(), tables([[0.5, 0.5], [0.5, 0.5]])
    with pytest.raises(ValueError, match="there are no samples"):
        predict(model, [], ROWS)
    with pytest.raises(ValueError, match=r"not the same tensors: \['table'\]"):
        predict(model, [{}], ROWS)
    with pytest.raises(ValueError, match=r"table has shape \(2, 2\) in the model and \(3, 2\) in a sample"):
        predict(model, [{"table": torch.zeros(3, 2)}], ROWS)
    with pytest.raises(ValueError, match=r"task must be one of 'classification', .*, got 'other'"):
        predict(model, samples, ROWS, task="other")
    with pytest.raises(TypeError, match="got an iterator"):
        predict(model, samples, iter([ROWS]))
    with pytest.raises(ValueError, match="shuffle=False"):
        predict(model, samples, DataLoader(TensorDataset(ROWS), shuffle=True))
    with pytest.raises(ValueError, match="batch_size must be left out"):
        predict(model, samples, [ROWS], batch_size=2)
    with pytest.raises(ValueError, match="inputs must not be empty"):
        predict(model, samples, ROWS[:0])
    with pytest.raises(ValueError, match=r'must be one logit for each class, got shape \(2,\). Give task="binary"'):
        predict(nn.Flatten(0), [{}], torch.zeros(2))
    prediction = predict(model, samples, ROWS)
    with pytest.raises(ValueError, match=r"labels must have shape \(2,\), one class for each prediction, got \(3,\)"):
        prediction.metrics(torch.tensor([0, 1, 1]))
    for labels in (torch.tensor([0, 2]), torch.tensor([-1, 0]), torch.tensor([0.0, 1.5])):
        with pytest.raises(ValueError, match="whole numbers from 0 to 1"):
            prediction.metrics(labels)


def test_inputs_that_change_from_sample_to_sample():
    class Shrinking:
        def __init__(self):
            self.left = 3

        def __iter__(self):
            self.left -= 1
            return iter([ROWS] * self.left)

    with pytest.raises(
        ValueError, match="inputs must be the same for every member, got a loader that hands over 1 batches"
    ):
        predict(Table(), tables([[0.5, 0.5], [0.5, 0.5]]) * 2, Shrinking())


def test_metrics_need_nothing_else(monkeypatch):
    for name in {"torchmetrics", *(name for name in sys.modules if name.startswith("torchmetrics."))}:
        monkeypatch.setitem(sys.modules, name, None)
    prediction = predict(Table(), tables([[0.5, 0.5], [0.5, 0.5]]), ROWS)
    assert prediction.metrics(ROWS)["nll"] == pytest.approx(math.log(2))


def test_dicts_outputs_with_logits_and_a_call_of_ones_own():
    class Named(Table):
        def forward(self, rows, scale=1.0):
            return {"logits": scale * self.table[rows], "hidden": None}

    class WithAttribute(Table):
        def forward(self, rows):
            return SimpleNamespace(logits=self.table[rows])

    samples = tables([[0.9, 0.1], [0.3, 0.7]])
    expected = predict(Table(), samples, ROWS).log_probabilities
    found = predict(Named(), samples, [{"rows": ROWS, "labels": ROWS}])
    assert torch.equal(found.log_probabilities, expected)
    assert torch.equal(predict(WithAttribute(), samples, [(ROWS, ROWS)]).log_probabilities, expected)
    doubled = predict(Named(), samples, ROWS, forward=lambda model, rows: model(rows, scale=2.0)["logits"])
    torch.testing.assert_close(doubled.log_probabilities, (2 * expected).log_softmax(-1))
