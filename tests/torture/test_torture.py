"""Ten kills of the two hundred that `make torture` makes."""

from pathlib import Path

import pytest
from kill_and_resume import torture

pytestmark = [
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks at processes as Linux shows them"),
    pytest.mark.long,
    pytest.mark.xdist_group("torture"),
]


@pytest.mark.parametrize("workload", ["char_lstm", "sda"])
def test_killed_five_times_it_ends_where_it_would_have(workload, tmp_path):
    assert torture(workload, 5, seed=1, root=tmp_path)["kills"] == 5
