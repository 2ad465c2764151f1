"""The report of a directory of studies: `build(root)`, `tables.final_table(study)`. Reads records only, never imports torch."""

from ctld_lab.report.joining import add
from ctld_lab.report.page import BROKEN, build, told

__all__ = ["BROKEN", "add", "build", "told"]
