"""Checkpoints bring back every bit of what is nested in them, and load nothing but numbers, strings and tensors."""

import json
import math
import pickle
import struct

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ctld_lab.checkpoints import load_checkpoint, save_checkpoint
from ctld_lab.records import RecordError

leaves = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5)
nested = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.integers(0, 9) | st.text(max_size=5), inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
    ),
    max_leaves=8,
)


@settings(max_examples=60, deadline=None)
@given(value=nested)
def test_whatever_is_nested_comes_back(value, tmp_path_factory):
    path = tmp_path_factory.mktemp("checkpoint") / "c.safetensors"
    save_checkpoint(path, {"value": value})
    assert load_checkpoint(path) == {"value": value}


def test_tensors_and_floats_come_back_to_the_bit(tmp_path):
    whole = torch.arange(6.0).view(2, 3)
    state = {
        "half": torch.tensor([1.5], dtype=torch.bfloat16),
        "double": torch.tensor(1 / 3, dtype=torch.float64),
        "bytes": torch.get_rng_state(),
        "view": whole.t(),
        "same": [whole, whole],
        "empty": torch.zeros(0, 3),
        "float": 0.1 + 0.2,
        "nan": math.nan,
        "inf": -math.inf,
    }
    save_checkpoint(tmp_path / "c.safetensors", state)
    loaded = load_checkpoint(tmp_path / "c.safetensors")
    for name in ("half", "double", "bytes", "view", "empty"):
        assert loaded[name].dtype == state[name].dtype
        assert torch.equal(loaded[name], state[name])
    assert torch.equal(loaded["same"][1], whole)
    assert loaded["float"] == 0.1 + 0.2
    assert math.isnan(loaded["nan"])
    assert loaded["inf"] == -math.inf


def test_what_could_execute_is_not_stored(tmp_path):
    with pytest.raises(TypeError, match="function"):
        save_checkpoint(tmp_path / "c.safetensors", {"f": lambda: None})


def _header(header: bytes) -> bytes:
    return struct.pack("<Q", len(header)) + header


class Bomb:
    def __reduce__(self):
        return (exec, ("raise SystemExit('executed')",))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x00" * 100,
        pickle.dumps(Bomb()),
        _header(json.dumps({"a": {"dtype": "F32", "shape": [10**12], "data_offsets": [0, 4 * 10**12]}}).encode()),
        struct.pack("<Q", 2**62) + b"{}",
        _header(json.dumps({"__metadata__": {"format": "1", "nesting": '{"tensor": "a"}'}}).encode()),
        _header(json.dumps({"__metadata__": {"format": "1", "nesting": '{"a": 1, "b": 2}'}}).encode()),
        _header(json.dumps({"__metadata__": {"format": "1", "nesting": "[" * 100_000}}).encode()),
        _header(json.dumps({"__metadata__": {"format": "1", "nesting": "[]"}}).encode()),
        _header(json.dumps({"__metadata__": {"format": "99", "nesting": "{}"}}).encode()),
    ],
    ids=["empty", "zeros", "pickle", "terabytes", "long header", "lost tensor", "two marks", "deep", "list", "format"],
)
def test_broken_and_hostile_files_are_refused(tmp_path, content):
    path = tmp_path / "c.safetensors"
    path.write_bytes(content)
    with pytest.raises(RecordError, match=r"c\.safetensors.*starts anew"):
        load_checkpoint(path)


def test_a_truncated_checkpoint_is_refused(tmp_path):
    path = tmp_path / "c.safetensors"
    save_checkpoint(path, {"a": torch.rand(100)})
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(RecordError, match="starts anew"):
        load_checkpoint(path)
