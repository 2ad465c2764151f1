"""Data sets by name, as arrays of bytes: found on disk, checked against their SHA-256, fetched on request. No torch here.

`DATASETS` is the table. `load_images` and `load_text` read a data set, `load_text_file` any file of the user's; `fetch`
is the only function that uses the network. Files are looked for in the folder given, in `$CTLD_DATA` and in the user's
cache folder, in this order. Whatever is wrong with a file, the error is a `DataError` that names it and the remedy.
"""

from ctld_lab.data.download import Progress, fetch
from ctld_lab.data.inventory import FileCheck, Status, status, verify
from ctld_lab.data.load import Images, Text, identify, load_images, load_text, load_text_file
from ctld_lab.data.locate import search_path
from ctld_lab.data.table import DATASETS, DataError, DataFile, DataSet, Download

__all__ = [
    "DATASETS",
    "DataError",
    "DataFile",
    "DataSet",
    "Download",
    "FileCheck",
    "Images",
    "Progress",
    "Status",
    "Text",
    "fetch",
    "identify",
    "load_images",
    "load_text",
    "load_text_file",
    "search_path",
    "status",
    "verify",
]
