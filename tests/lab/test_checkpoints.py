"""Checkpoints bring back every bit of what is nested in them, or nothing; then the one before is there."""

import hashlib
import json
import math
import os
import pickle
import random
import struct

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ctld_lab.checkpoints import load_checkpoint, load_newest, previous, save_checkpoint
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


def test_the_same_state_is_the_same_bytes(tmp_path):
    made = set()
    for count in range(8):  # the keys of safetensors' metadata once came in any order
        save_checkpoint(tmp_path / f"{count}.safetensors", {"weight": torch.ones(3), "name": "é"})
        made.add((tmp_path / f"{count}.safetensors").read_bytes())
    assert len(made) == 1


def test_what_could_execute_is_not_stored(tmp_path):
    with pytest.raises(TypeError, match="function"):
        save_checkpoint(tmp_path / "c.safetensors", {"f": lambda: None})


def _header(header: bytes) -> bytes:
    return struct.pack("<Q", len(header)) + header


def _nested(nesting: str, **more: object) -> bytes:
    """A file whose checksum is right."""
    checksum = hashlib.sha256(nesting.encode()).hexdigest()
    return _header(
        json.dumps({"__metadata__": {"format": "2", "nesting": nesting, "checksum": checksum} | more}).encode()
    )


def _tensors(size: int, **tensors: object) -> bytes:
    return _header(json.dumps({name: {"dtype": "F32"} | tensor for name, tensor in tensors.items()}).encode()) + bytes(
        size
    )


HOSTILE = {
    "empty": b"",
    "seven bytes": bytes(7),
    "zeros": bytes(100),
    "header of terabytes": struct.pack("<Q", 2**42) + b"{}",
    "header of exabytes": struct.pack("<Q", 2**64 - 1) + b"{}",
    "header beyond the file": struct.pack("<Q", 3) + b"{}",
    "tensor of terabytes": _tensors(0, a={"shape": [10**12], "data_offsets": [0, 4 * 10**12]}),
    "shape that overflows": _tensors(4, a={"shape": [2**32, 2**32, 2**32], "data_offsets": [0, 4]}),
    "negative offsets": _tensors(8, a={"shape": [1], "data_offsets": [-4, 0]}),
    "offsets backwards": _tensors(8, a={"shape": [1], "data_offsets": [4, 0]}),
    "overlapping": _tensors(8, a={"shape": [2], "data_offsets": [0, 8]}, b={"shape": [1], "data_offsets": [4, 8]}),
    "hole": _tensors(12, a={"shape": [1], "data_offsets": [0, 4]}, b={"shape": [1], "data_offsets": [8, 12]}),
    "unused bytes": _tensors(8, a={"shape": [1], "data_offsets": [0, 4]}),
    "unknown type": _tensors(4, a={"dtype": "PYOBJECT", "shape": [1], "data_offsets": [0, 4]}),
    "header in depth": _header(b'{"a":' * 10_000),
    "nothing in it": _header(b"{}"),
    "lost tensor": _nested('{"tensor": "a"}'),
    "two marks": _nested('{"a": 1, "b": 2}'),
    "unknown mark": _nested('{"exec": "a"}'),
    "list as key": _nested('{"dict": [[[], 1]]}'),
    "deep": _nested("[" * 100_000),
    "deep and whole": _nested('{"dict": [["a", ' + "[" * 900 + "]" * 900 + "]]}"),
    "huge integer": _nested('{"dict": [["a", ' + "9" * 10_000 + "]]}"),
    "list": _nested("[]"),
    "no checksum": _header(json.dumps({"__metadata__": {"format": "2", "nesting": '{"dict": []}'}}).encode()),
    "format 1": _nested('{"dict": []}', format="1"),
    "format 99": _nested('{"dict": []}', format="99"),
}


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE)
def test_broken_and_hostile_files_are_refused(tmp_path, content):
    path = tmp_path / "c.safetensors"
    path.write_bytes(content)
    with pytest.raises(RecordError, match=r"c\.safetensors.*remove it, and the run starts anew") as caught:
        load_checkpoint(path)
    assert len(str(caught.value)) < 500
    assert path.read_bytes() == content


def test_the_hostile_files_are_hostile_for_one_reason(tmp_path):
    path = tmp_path / "c.safetensors"
    path.write_bytes(_nested('{"dict": [["a", [1]]]}'))
    assert load_checkpoint(path) == {"a": [1]}


def test_what_is_no_file_is_not_opened(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "zeros").symlink_to("/dev/zero")
    (tmp_path / "folder").mkdir()
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for name, reason in {
        "pipe": "is no file",
        "zeros": "is no file",
        "folder": "is no file",
        "loop": "cannot be read",
    }.items():
        with pytest.raises(RecordError, match=reason):
            load_checkpoint(tmp_path / name)
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(2**43)
    with pytest.raises(RecordError, match="8,796,093,022,208 bytes, more than half the memory"):
        load_checkpoint(tmp_path / "sparse")


# ---- damage ----


def equal(one, other):
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    return one == other


STATE = {
    "step": 7,
    "name": "α",
    "weight": torch.arange(5.0),
    "counts": torch.tensor([1, 2], dtype=torch.int16),
    "x": 0.1,
}


@pytest.mark.parametrize("bit", range(8))
def test_no_flipped_bit_is_accepted(tmp_path, bit):
    path = tmp_path / "c.safetensors"
    save_checkpoint(path, STATE)
    whole = path.read_bytes()
    refused = 0
    for place in range(len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << bit
        path.write_bytes(damaged)
        try:
            assert equal(load_checkpoint(path), STATE), f"bit {bit} of byte {place}"
        except RecordError:
            refused += 1
    # A header may say the same in other words: with another blank, say.
    assert refused > 0.97 * len(whole)


def test_no_flipped_bit_of_a_large_one_is_accepted(tmp_path):
    path = tmp_path / "c.safetensors"
    save_checkpoint(path, {"weight": torch.rand(250_000)})
    whole, generator = bytearray(path.read_bytes()), random.Random(1)
    for _ in range(200):
        place, bit = generator.randrange(len(whole)), 1 << generator.randrange(8)
        whole[place] ^= bit
        path.write_bytes(whole)
        with pytest.raises(RecordError, match=r"damaged|cannot be read"):
            load_checkpoint(path)
        whole[place] ^= bit


@pytest.mark.parametrize(("old", "new"), [(b"[2,3]", b"[3,2]"), (b"F32", b"I32"), (b'"000000"', b'"000009"')])
def test_a_header_that_says_other_things_of_the_same_bytes_is_refused(tmp_path, old, new):
    path = tmp_path / "c.safetensors"
    save_checkpoint(path, {"weight": torch.rand(2, 3)})
    whole = path.read_bytes()
    assert whole.count(old) == 1
    path.write_bytes(whole.replace(old, new))
    with pytest.raises(RecordError, match="its checksum is wrong"):
        load_checkpoint(path)


def test_no_truncated_one_is_accepted(tmp_path):
    path = tmp_path / "c.safetensors"
    save_checkpoint(path, STATE)
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(RecordError, match="starts anew"):
            load_checkpoint(path)
    path.write_bytes(whole + b"\0")
    with pytest.raises(RecordError, match="starts anew"):
        load_checkpoint(path)


def test_what_is_loaded_does_not_change_with_the_file(tmp_path):
    """safetensors maps the file: reading a part of it that was cut off would kill the process."""
    path = tmp_path / "c.safetensors"
    save_checkpoint(path, {"weight": torch.ones(2_000_000)})
    state = load_checkpoint(path)
    with path.open("r+b") as file:
        file.seek(-4_000_000, 2)
        file.write(bytes(4_000_000))
    assert (state["weight"] == 1.0).all()


# ---- the newest, and the one before ----


def files(folder):
    return sorted(path.name for path in folder.iterdir())


def test_the_one_before_is_kept(tmp_path):
    path = tmp_path / "c.safetensors"
    assert load_newest(path) is None
    for step in range(4):
        save_checkpoint(path, {"step": step})
        assert load_newest(path) == ({"step": step}, "")
    assert load_checkpoint(previous(path)) == {"step": 2}
    assert files(tmp_path) == ["c.previous.safetensors", "c.safetensors"]


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:-1]), "cannot be read"),
        (lambda path: path.write_bytes(path.read_bytes()[:-1] + b"\x99"), "is damaged: its checksum is wrong"),
        (lambda path: path.write_bytes(b""), "is damaged"),
        (lambda path: path.unlink(), "is missing"),
        (lambda path: path.write_bytes(pickle.dumps({"step": 3})), "is damaged"),
    ],
    ids=["truncated", "flipped", "emptied", "removed", "pickle"],
)
def test_a_damaged_one_gives_way_to_the_one_before(tmp_path, damage, reason):
    path = tmp_path / "c.safetensors"
    for step in range(3):
        save_checkpoint(path, {"step": step, "weight": torch.ones(3)})
    damage(path)
    state, note = load_newest(path)
    assert state["step"] == 1
    assert note.startswith(f"c.safetensors {reason}")
    assert note.endswith("the run went on from the one before it, c.previous.safetensors")
    assert path.exists() is False
    # The damaged one does not take the place of the good one.
    save_checkpoint(path, {"step": 10})
    assert load_checkpoint(previous(path))["step"] == 1
    assert load_newest(path) == ({"step": 10}, "")


def test_with_both_damaged_nothing_is_touched(tmp_path):
    path = tmp_path / "c.safetensors"
    for step in range(2):
        save_checkpoint(path, {"step": step})
    path.write_bytes(b"nonsense")
    previous(path).write_bytes(b"rubbish")
    with pytest.raises(
        RecordError, match=r"c\.safetensors is .*c\.previous\.safetensors is .*remove both, and the run starts"
    ):
        load_newest(path)
    assert (path.read_bytes(), previous(path).read_bytes()) == (b"nonsense", b"rubbish")
    path.unlink()
    with pytest.raises(RecordError, match=r"c\.safetensors is missing, and c\.previous\.safetensors is damaged"):
        load_newest(path)
    previous(path).unlink()
    assert load_newest(path) is None


def test_a_file_system_without_hard_links(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    test_the_one_before_is_kept(tmp_path)


def test_killed_with_both_names_on_one_file(tmp_path):
    """Between the link and the rename; a rename onto another name of the same file would do nothing, and leave both."""
    path = tmp_path / "c.safetensors"
    save_checkpoint(path, {"step": 0})
    os.link(path, previous(path))
    save_checkpoint(path, {"step": 1})
    assert load_checkpoint(previous(path)) == {"step": 0}
    assert files(tmp_path) == ["c.previous.safetensors", "c.safetensors"]


def test_what_a_killed_writer_left_does_not_pile_up(tmp_path):
    path = tmp_path / "c.safetensors"
    save_checkpoint(path, {"step": 0})
    for name in (".c.safetensors.1.unfinished", ".c.previous.safetensors.2.unfinished"):
        (tmp_path / name).write_bytes(b"half")
    assert load_newest(path) == ({"step": 0}, "")
    assert files(tmp_path) == ["c.safetensors"]
