"""What every test starts from: one thread, so that runs repeat to the bit whatever the machine, and a fixed seed."""

import pytest
import torch


@pytest.fixture(autouse=True)
def _repeatable() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(20171204)
