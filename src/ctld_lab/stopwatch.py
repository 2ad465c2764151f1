"""Times on a machine that has other things to do: whether a thread had to wait, and what a median of times can tell.

Nothing but the standard library: benchmarks of memory import it too.
"""

import contextlib
import math
import statistics
from collections.abc import Sequence
from pathlib import Path


def median_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """The median between the order statistics that enclose the true one in 95 % of all cases, whatever the law.

    So many values are below the true median as heads in as many throws of a coin. Fewer than six values have no such
    interval; theirs is all of them.
    """
    ordered, count = sorted(values), len(values)
    place, outcomes = -1, 0  # of the 2ⁿ, those with no more heads than the next place
    while 40 * (outcomes := outcomes + math.comb(count, place + 1)) <= 2**count:
        place += 1
    place = max(place, 0)
    return ordered[place], statistics.median(values), ordered[count - 1 - place]


def nanoseconds_waited() -> int:
    """Time that the threads of this process were ready to run without a core; 0 where the kernel does not say."""
    waited = 0
    for statistic in Path("/proc/self/task").glob("*/schedstat"):
        # A thread may end between the listing and the reading.
        with contextlib.suppress(OSError):
            waited += int(statistic.read_text(encoding="ascii").split()[1])
    return waited
