"""The report of a directory of studies: `build(root)`, `tables.final_table(study)`. Reads records only, never imports torch."""

from ctld_lab.report.page import build

__all__ = ["build"]
