"""Workloads: the networks are the paper's, batches depend on the seed alone, metrics are what they say."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from ctld_lab import workloads
from ctld_lab.data import DataError, identify
from ctld_lab.workloads.char_lstm import CharLSTM
from ctld_lab.workloads.sda import Dropout, SdA

GENERATOR = np.random.default_rng(0)
IMAGES = GENERATOR.integers(0, 256, (300, 784), dtype=np.uint8)
TEXT = GENERATOR.integers(97, 101, 5000, dtype=np.uint8)
ALPHABET = np.array([97, 98, 99, 100], dtype=np.uint8)


def small_sda(seed=0, **options):
    return SdA(
        IMAGES,
        IMAGES[:50],
        held_out_name="test",
        seed=seed,
        **({"widths": (784, 20, 12, 6), "batch_size": 32} | options),
    )


def small_lstm(seed=0, **options):
    given = {
        "alphabet": ALPHABET,
        "hidden": 6,
        "layers": 2,
        "batch_size": 5,
        "length": 8,
        "curve_characters": 200,
    } | options
    return CharLSTM(TEXT, TEXT[:600], held_out_name="test", seed=seed, **given)


# ---- autoencoder ----


def test_the_network_of_the_paper_by_default():
    sda = SdA(IMAGES, IMAGES, held_out_name="test", seed=0)
    assert [(stack.encoder.in_features, stack.encoder.out_features) for stack in sda.stacks] == [
        (784, 500), (500, 500), (500, 2000), (2000, 10),
    ]  # fmt: skip
    assert [stack.input_dropout.p for stack in sda.stacks] == [0.0, 0.2, 0.2, 0.2]
    assert [stack.code_dropout.p for stack in sda.stacks] == [0.2, 0.2, 0.2, 0.0]
    assert [stack.linear_output for stack in sda.stacks] == [True, False, False, False]
    assert sda.batch_size == 128
    bound = math.sqrt(6 / (784 + 500))
    weight = sda.stacks[0].encoder.weight
    assert 0.98 * bound < weight.abs().max() <= bound
    assert not sda.stacks[0].encoder.bias.any()


def test_pixels_are_scaled_by_a_fiftieth_and_the_loss_is_half_the_mean_square():
    sda = small_sda()
    sda.begin(0)
    images = torch.from_numpy(IMAGES).float() * 0.02
    nn.init.zeros_(sda.stacks[0].decoder.weight)  # reconstructs zero
    assert sda.evaluate(thorough=True)["test"]["mse"] == pytest.approx(
        0.5 * float(images[:50].square().mean()), rel=1e-6
    )
    assert float(sda.loss(0).detach()) == pytest.approx(0.5 * float(images.square().mean()), rel=0.05)


def test_a_stack_learns_the_codes_of_those_below_without_dropout():
    sda = small_sda()
    sda.begin(1)
    first = sda.stacks[0].eval()
    with torch.no_grad():
        codes = first.encode(torch.from_numpy(IMAGES).float() * 0.02)
    assert torch.allclose(sda._inputs["train"], codes)
    assert {id(parameter) for parameter in sda.begin(1)} == {id(parameter) for parameter in sda.stacks[1].parameters()}


def test_dead_codes_fool_the_error_of_a_layer_and_not_the_error_of_the_image():
    sda = small_sda()
    nn.init.constant_(sda.stacks[0].encoder.bias, -1e6)  # every code of the first layer is 0
    nn.init.zeros_(sda.stacks[1].decoder.weight)
    sda.begin(1)
    metrics = sda.evaluate(thorough=True)["test"]
    assert metrics["mse"] == 0.0
    image = torch.from_numpy(IMAGES[:50]).float() * 0.02
    assert metrics["image_mse"] == pytest.approx(0.5 * float(image.square().mean()), rel=1e-5)


def test_batches_and_weights_depend_on_the_seed_alone():
    one, other, third = small_sda(0), small_sda(0), small_sda(1)
    for sda in (one, other, third):
        sda.begin(0)
    assert torch.equal(one.stacks[2].encoder.weight, other.stacks[2].encoder.weight)
    assert not torch.equal(one.stacks[2].encoder.weight, third.stacks[2].encoder.weight)
    torch.manual_seed(5)  # neither asks torch's global generator
    rows = [one.batches.rows(0, step) for step in range(9)]
    assert all(torch.equal(mine, other.batches.rows(0, step)) for step, mine in enumerate(rows))
    assert not torch.equal(rows[0], third.batches.rows(0, 0))
    assert len(set(torch.cat(rows).tolist())) == 9 * 32  # an epoch repeats nothing
    assert not torch.equal(one.batches.rows(0, 9), rows[0])  # and the next is shuffled anew


def test_evaluation_draws_no_random_number_and_leaves_training_mode():
    sda = small_sda()
    sda.begin(1)
    before = torch.get_rng_state()
    sda.evaluate(thorough=True)
    assert torch.equal(before, torch.get_rng_state())
    assert sda.stacks[1].training


@pytest.mark.parametrize("p", [0.2, 0.5])
def test_dropout_keeps_the_mean_and_drops_the_share_that_was_asked_for(p):
    dropout = Dropout(p)
    dropout.generator = np.random.default_rng(3)
    ones = torch.ones(1000, 1000)
    made = dropout(ones)
    dropped = float((made == 0).double().mean())
    # A share of 10⁶ independent draws: five standard errors are 0.0025 at most, and a share wrong by 1/256 is beyond them.
    assert abs(dropped - p) < 5 * math.sqrt(p * (1 - p) / 1e6)
    assert made.unique().tolist() == pytest.approx([0.0, 1 / (1 - p)], rel=1e-5)
    assert not torch.equal(made, dropout(ones))  # the next mask is another


def test_dropout_is_a_function_of_seed_stage_and_step():
    """So a run that goes on in the middle needs no state of it, and codes of one batch differ from step to step."""
    sda, other = small_sda(0), small_sda(0)
    for each in (sda, other):
        each.begin(1)
    batch = sda.batches.rows(1, 0)
    sda.batches.rows = other.batches.rows = lambda stage, step: batch
    losses = [float(sda.loss(step).detach()) for step in (0, 1, 2)]
    torch.manual_seed(1)
    assert [float(other.loss(step).detach()) for step in (2, 1, 0)] == losses[::-1]
    assert len(set(losses)) == 3


def test_masks_are_the_generators_bits_in_its_order():
    """Two bytes an element: stored runs were made so, and one that goes on must see the same masks."""
    dropout, bits = Dropout(0.2), np.random.default_rng(7)
    dropout.generator = np.random.default_rng(7)
    for shape in ((8, 10), (8, 25)):
        expected = np.frombuffer(bits.bytes(2 * shape[0] * shape[1]), np.uint16).reshape(shape) >= round(0.2 * 2**16)
        assert np.array_equal(dropout(torch.ones(shape)).numpy() > 0, expected)
    assert dropout(torch.ones(3, 3)).shape == (3, 3)  # no whole number of words


def test_dropout_without_a_generator_says_what_to_do():
    sda = small_sda()
    with pytest.raises(RuntimeError, match=r"call loss\(step\), or eval\(\)"):
        sda.stacks[1].train()(torch.ones(2, sda.stacks[1].encoder.in_features))
    with pytest.raises(ValueError, match=r"dropout = 1.0"):
        Dropout(1.0)


@pytest.mark.parametrize(
    ("options", "message"), [({"widths": (100, 10)}, "784 pixels"), ({"batch_size": 301}, "got 301")]
)
def test_settings_that_do_not_fit_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        small_sda(**options)


# ---- text ----


def test_the_recurrent_network_of_the_paper_by_default():
    text = GENERATOR.integers(0, 4, 20_000, dtype=np.uint8)
    workload = CharLSTM(text, text, alphabet=np.arange(4, dtype=np.uint8), held_out_name="test", seed=0)
    lstm = workload.model.lstm
    assert (lstm.num_layers, lstm.hidden_size, workload.batch_size, workload.length) == (3, 64, 100, 50)
    largest = max(float(parameter.detach().abs().max()) for parameter in workload.model.parameters())
    assert 0.0799 < largest <= 0.08


def test_a_step_reads_on_where_the_last_one_ended():
    """Carried state: two steps of 8 characters see the same as one of 16."""
    short, long = small_lstm(length=8), small_lstm(length=16)
    with torch.no_grad():
        both = [float(short.loss(0)), float(short.loss(1))]
        assert np.mean(both) == pytest.approx(float(long.loss(0)), rel=1e-6)
        assert all(
            torch.allclose(mine, theirs, atol=1e-6) for mine, theirs in zip(short._state, long._state, strict=True)
        )


def test_gradients_stop_at_the_start_of_a_step():
    workload = small_lstm()
    workload.loss(0)
    assert not workload._state[0].requires_grad


def test_targets_are_the_next_characters_and_rows_are_contiguous():
    workload = small_lstm()
    rows = np.stack(np.split(TEXT, 5)) - 97
    seen = []
    workload.model.forward = lambda text, state: (seen.append(text), (torch.zeros(text.numel(), 4), state))[1]
    loss = workload.loss(3)
    assert torch.equal(seen[0], torch.from_numpy(rows[:, 24:32].T.astype(np.int64)))
    assert float(loss) == pytest.approx(math.log(4))


def test_metrics_of_text():
    workload = small_lstm()
    nn.init.zeros_(workload.model.head.weight)
    nn.init.zeros_(workload.model.head.bias)
    for metrics in workload.evaluate(thorough=True).values():
        assert metrics["nats"] == pytest.approx(math.log(4), rel=1e-6)
        assert metrics["bits"] == pytest.approx(2.0, rel=1e-6)
        assert metrics["perplexity"] == pytest.approx(4.0, rel=1e-6)


def test_evaluation_leaves_the_carried_state():
    workload = small_lstm()
    with torch.no_grad():
        workload.loss(0)
    before = workload._state[0].clone()
    workload.evaluate(thorough=False)
    assert torch.equal(before, workload._state[0])


def test_num_data_counts_characters():
    assert small_lstm().num_data == 5000
    assert small_lstm().epochs(124) == 1.0  # (1,000 − 1)//8 steps


def test_a_text_too_short_for_a_batch_is_refused():
    with pytest.raises(ValueError, match="too few for a batch of 5 × 200"):
        small_lstm(length=200)


# ---- what a run's configuration asks for ----


def configured(role, **data):
    return {"role": role, "seed": 0, "data": {"name": "pydoc", "sha256": identify("pydoc")} | data}


def test_while_tuning_test_data_are_not_even_loaded_into_the_workload():
    images = {"workload": {"name": "sda", "widths": (784, 4)}}
    tuned, final = (
        workloads.build(configured(role, name="digits", sha256=identify("digits")) | images)
        for role in ("tuning", "final")
    )
    assert set(tuned._pixels) == {"train", "valid"}
    assert (tuned.num_data, final.num_data) == (4000 - 333, 4000)
    assert np.array_equal(np.concatenate(list(tuned._pixels.values())), final._pixels["train"])
    text = {"workload": {"name": "char_lstm", "hidden": 4, "train_characters": 10_000}}
    tuned, final = (workloads.build(configured(role) | text) for role in ("tuning", "final"))
    assert (set(tuned._texts), set(final._texts)) == ({"train", "valid"}, {"train", "test"})
    assert tuned.num_data == final.num_data == 10_000


def test_the_alphabet_is_that_of_the_whole_text(tmp_path):
    path = tmp_path / "text"
    path.write_bytes(
        b"ab" * 9500 + b"c" * 500 + b"d" * 500
    )  # c occurs in the validation text alone, d in the test text
    _, alphabet = workloads.load_text("text", str(path), identify(path))
    assert alphabet.tobytes() == b"abcd"


def test_data_that_have_changed_are_refused(tmp_path):
    path = tmp_path / "text"
    path.write_bytes(b"ab" * 1000)
    with pytest.raises(DataError, match=r"text has changed since the study began.*--dir"):
        workloads.load_text("text", str(path), "0" * 64)
    with pytest.raises(ValueError, match="no workload 'mlp'; known"):
        workloads.build(configured("final") | {"workload": {"name": "mlp"}})
