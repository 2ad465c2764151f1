"""Bounded reading: right bytes in any form, and a DataError with the file's name for everything else."""

import gzip
import hashlib
import os
import random
import struct
import tracemalloc
import zipfile
from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ctld_lab.data import DataError, containers, load

CONTENT = random.Random(1).randbytes(5_000) * 3
SIZE = len(CONTENT)
MEGABYTE = 2**20


def plain(path, content):
    path.write_bytes(content)
    return path


def zipped(path, content, member="text", compression=zipfile.ZIP_DEFLATED):
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr(member, content)
    return path


def in_each_form(folder, content):
    return [
        plain(folder / "text", content),
        plain(folder / "text.gz", gzip.compress(content)),
        zipped(folder / "text.zip", content),
    ]


def refusal(path, *, size=SIZE):
    with pytest.raises(DataError) as caught:
        containers.read(path, size=size, member="text")
    assert path.name in str(caught.value)
    return str(caught.value)


@contextmanager
def little_memory(limit=4 * MEGABYTE):
    """Also of what raises."""
    tracemalloc.start()
    try:
        yield
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < limit


def test_each_form_gives_the_same_bytes(tmp_path):
    for path in in_each_form(tmp_path, CONTENT):
        content, sha256 = containers.read(path, size=SIZE, member="text")
        assert content.tobytes() == CONTENT
        assert sha256 == hashlib.sha256(CONTENT).hexdigest()
        assert content.flags.writeable


def test_more_than_one_chunk(tmp_path, monkeypatch):
    monkeypatch.setattr(containers, "CHUNK", 999)
    for path in in_each_form(tmp_path, CONTENT)[:2]:
        assert containers.read(path, size=SIZE, member="text")[0].tobytes() == CONTENT


def test_plain_takes_a_compressed_file_as_it_is(tmp_path):
    path = plain(tmp_path / "text.gz", CONTENT)
    assert containers.read(path, size=SIZE, plain=True)[0].tobytes() == CONTENT


def test_too_short_and_too_long(tmp_path):
    for path in in_each_form(tmp_path, CONTENT):
        assert f"{SIZE + 1:,}" in refusal(path, size=SIZE + 1)
        assert f"{SIZE - 1:,}" in refusal(path, size=SIZE - 1)


@pytest.mark.parametrize("form", ["text.gz", "text.zip"])
def test_truncated(tmp_path, form):
    in_each_form(tmp_path, CONTENT)
    whole = (tmp_path / form).read_bytes()
    for kept in (0, 1, 10, 11, 100, len(whole) // 2, len(whole) - 1):
        refusal(plain(tmp_path / form, whole[:kept]))


def test_data_after_the_end_of_a_gzip(tmp_path):
    refusal(plain(tmp_path / "text.gz", gzip.compress(CONTENT) + b"more"))
    assert "goes on" in refusal(plain(tmp_path / "text.gz", gzip.compress(CONTENT) + gzip.compress(b"more")))


def test_not_compressed_at_all(tmp_path):
    refusal(plain(tmp_path / "text.gz", CONTENT))
    refusal(plain(tmp_path / "text.zip", CONTENT))


def test_wrong_checksum_inside(tmp_path):
    whole = bytearray(gzip.compress(CONTENT))
    whole[-8] ^= 1
    assert "CRC" in refusal(plain(tmp_path / "text.gz", bytes(whole)))


def test_bombs_are_not_decompressed(tmp_path):
    zeros = bytes(64 * MEGABYTE)
    packed = plain(tmp_path / "text.gz", gzip.compress(zeros))
    with little_memory():
        assert "goes on after 10,000 bytes" in refusal(packed, size=10_000)
    with little_memory():
        refusal(zipped(tmp_path / "text.zip", zeros), size=10_000_000)


def test_zip_that_lies_about_its_size(tmp_path):
    path = zipped(tmp_path / "text.zip", bytes(64 * MEGABYTE))
    honest = path.read_bytes()
    lying = honest.replace(struct.pack("<I", 64 * MEGABYTE), struct.pack("<I", SIZE))
    assert lying != honest
    with little_memory():
        refusal(plain(path, lying))


def test_large_compressed_file_is_not_opened(tmp_path):
    for name in ("text.gz", "text.zip"):
        assert "too many" in refusal(plain(tmp_path / name, bytes(SIZE + 2**17)))


@pytest.mark.parametrize("member", ["../text", "/text", "folder/text", "..\\text", "other", "text/"])
def test_wrong_member(tmp_path, member):
    assert "holds" in refusal(zipped(tmp_path / "text.zip", CONTENT, member))
    assert [path.name for path in tmp_path.iterdir()] == ["text.zip"]


def test_empty_zip(tmp_path):
    with zipfile.ZipFile(tmp_path / "text.zip", "w"):
        pass
    assert "nothing" in refusal(tmp_path / "text.zip")


@pytest.mark.parametrize("compression", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_compression_that_is_not_bounded(tmp_path, compression):
    assert "neither deflated nor stored" in refusal(zipped(tmp_path / "text.zip", CONTENT, compression=compression))


def test_encrypted_zip(tmp_path):
    path = zipped(tmp_path / "text.zip", CONTENT)
    content = bytearray(path.read_bytes())
    content[6] |= 1  # flags in the header of the member
    content[content.rindex(b"PK\1\2") + 8] |= 1  # and in the table of contents
    assert "encrypted" in refusal(plain(path, bytes(content)))


def test_zip_with_a_huge_table_of_contents(tmp_path):
    path = tmp_path / "text.zip"
    entry = b"PK\1\2" + bytes(42)
    table = entry * 100_000
    path.write_bytes(table + struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, 65_535, 65_535, len(table), 0, 0))
    with little_memory():
        assert "table of contents" in refusal(path, size=10_000_000)


def test_missing_folder_pipe_loop_and_broken_link(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "broken").symlink_to(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "pipe")
    assert "is a folder" in refusal(tmp_path / "folder")
    assert "is a pipe" in refusal(tmp_path / "pipe")
    for name in ("loop", "broken", "missing"):
        assert "cannot be read" in refusal(tmp_path / name)
    with pytest.raises(DataError, match="cannot be read"):
        containers.read(tmp_path / "nul\0byte", size=SIZE)


def test_out_of_memory(tmp_path, monkeypatch):
    def fail(*arguments):
        raise MemoryError

    monkeypatch.setattr(np, "empty", fail)
    assert "do not fit into memory" in refusal(plain(tmp_path / "text", CONTENT))


@pytest.mark.parametrize("form", ["text.gz", "text.zip"])
def test_any_damage_is_seen_or_refused(tmp_path, form):
    in_each_form(tmp_path, CONTENT)
    path = tmp_path / form
    whole, generator = path.read_bytes(), random.Random(2)
    # Header and trailer have all the fields: most of the blows go there.
    places = [*range(80), *range(len(whole) - 140, len(whole)), *(generator.randrange(len(whole)) for _ in range(100))]
    for place in places:
        damaged = bytearray(whole)
        damaged[place] ^= generator.randrange(1, 256)
        path.write_bytes(bytes(damaged))
        try:
            content, _ = containers.read(path, size=SIZE, member="text")
        except DataError:
            continue
        assert content.tobytes() == CONTENT


# IDX


def as_array(content):
    return np.frombuffer(content, np.uint8)


def idx_bytes(*shape, fill=0, kind=0x08):
    return (
        bytes([0, 0, kind, len(shape)]) + struct.pack(f">{len(shape)}I", *shape) + bytes([fill]) * int(np.prod(shape))
    )


def test_idx_is_a_view_of_the_right_shape():
    content = as_array(idx_bytes(2, 3, 4, fill=7))
    array = load.parse(content, num_dimensions=3, source="file")
    assert array.shape == (2, 3, 4)
    assert (array == 7).all()
    assert np.shares_memory(array, content)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "fewer than the 16"),
        (idx_bytes(2, 3, 4)[:15], "fewer than the 16"),
        (b"\1" + idx_bytes(2, 3, 4)[1:], "two zero bytes"),
        (b"\x1f\x8b" + idx_bytes(2, 3, 4)[2:], "1f 8b"),
        (idx_bytes(2, 3, 4, kind=0x0D), "type 0x0d"),
        (idx_bytes(2, 12), "2 dimensions, expected 3"),
        (idx_bytes(0, 28, 28), "no data at all"),
        (b"\0\0\x08\x03" + struct.pack(">3I", 2**32 - 1, 2**32 - 1, 0), "no data at all"),
        (idx_bytes(2, 3, 4)[:-1], "and 23 follow"),
        (idx_bytes(2, 3, 4) + b"\0", "and 25 follow"),
        (b"\0\0\x08\x03" + b"\xff" * 12, "4,294,967,295 × 4,294,967,295"),
        (b"\0\0\x08\x03" + struct.pack(">3I", 2**31, 2**31, 4), "and 0 follow"),  # the product is 0 in 64 bits
    ],
)
def test_idx_refusals(content, reason):
    with pytest.raises(DataError, match=reason) as caught:
        load.parse(as_array(content), num_dimensions=3, source="the-file")
    assert "the-file" in str(caught.value)


@given(content=st.binary(max_size=64), magic=st.booleans(), num_dimensions=st.integers(1, 3))
@example(content=struct.pack(">I", 3) + b"abc", magic=True, num_dimensions=1)  # what is drawn is hardly ever one
@settings(max_examples=300, deadline=None)
def test_idx_of_any_bytes(content, magic, num_dimensions):
    if magic:
        content = bytes([0, 0, 8, num_dimensions]) + content
    try:
        array = load.parse(as_array(content), num_dimensions=num_dimensions, source="file")
    except DataError:
        return
    assert array.nbytes == len(content) - 4 - 4 * num_dimensions


@given(shape=st.lists(st.integers(0, 2**32 - 1), min_size=3, max_size=3), payload=st.integers(0, 10))
@example(shape=[1, 2, 3], payload=6)  # the only one that is true
@settings(max_examples=100, deadline=None)
def test_idx_of_any_claim_allocates_nothing(shape, payload):
    content = as_array(b"\0\0\x08\x03" + struct.pack(">3I", *shape) + bytes(payload))
    try:
        with little_memory(limit=MEGABYTE):
            array = load.parse(content, num_dimensions=3, source="file")
    except DataError:
        return
    assert array.shape == tuple(shape)


@pytest.mark.parametrize(
    ("images", "labels", "reason"),
    [
        (idx_bytes(3, 28, 28), idx_bytes(4), "4 labels for 3 images"),
        (idx_bytes(3, 28, 28), idx_bytes(3, fill=10), "label 10"),
        (idx_bytes(3, 28, 14), idx_bytes(3), "28 × 14"),
        (idx_bytes(3), idx_bytes(3), "dimensions|fewer"),
        (idx_bytes(3, 28, 28), idx_bytes(3, 28, 28), "dimensions"),
    ],
)
def test_pair_refusals(images, labels, reason):
    with pytest.raises(DataError, match=reason):
        load.parse_pair(as_array(images), as_array(labels), images_source="images", labels_source="labels")


def test_pair():
    images, labels = load.parse_pair(
        as_array(idx_bytes(3, 28, 28)), as_array(idx_bytes(3, fill=9)), images_source="images", labels_source="labels"
    )
    assert images.shape == (3, 784)
    assert labels.tolist() == [9, 9, 9]
