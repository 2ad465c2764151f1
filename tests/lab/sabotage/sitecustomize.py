"""With this directory on PYTHONPATH every process trains by way of `sabotaged`, spawned ranks too."""

from ctld_lab import jobs

jobs.KINDS["train"] = "sabotaged"
