"""With this directory on PYTHONPATH every process knows the study "fake", spawned workers too."""

import fake_lab

fake_lab.register()
