"""The former name of `ctld_lab.statistics`."""

from ctld_lab.statistics import *  # noqa: F403
