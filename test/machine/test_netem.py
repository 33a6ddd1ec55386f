# SPDX-License-Identifier: Apache-2.0
"""tcp over links that are slow to answer or are cut, by netem: between network namespaces of one machine. What is asserted is counted, not timed."""

import json
import re
import sys

import pytest
from jobs import LONG, RANK, ROOT, SLOW

RATE_MBIT = 50
LIMIT_MS = 3000
DELAYS_MS = [10, 1] if LONG else [10]


@pytest.fixture(scope="module")
def seen(alone):
    """What test/machine/network.py saw: the machine takes long to start Python and to make namespaces, so it does that once."""
    links = [f"delay {delay}ms rate {RATE_MBIT}mbit limit 20000" for delay in DELAYS_MS]
    done = alone.call([sys.executable, "-I", "-S", ROOT / "test" / "machine" / "network.py", LIMIT_MS, *links], 90 * SLOW, {"MACHINE_RANK": str(RANK)})
    assert done.status == 0, done.explain()
    return json.loads(done.out.splitlines()[-1])


@pytest.mark.parametrize("delay_ms", DELAYS_MS)
def test_the_link_is_kept_full(seen, delay_ms):
    """Bytes under way at once are at least what the link holds there and back, and all of a connection's sockets carry some."""
    one = seen["streams"][DELAYS_MS.index(delay_ms)]
    assert one["statuses"] == [0, 0], one
    holds = 2 * delay_ms * 1e-3 * RATE_MBIT * 1e6 / 8
    most, sockets = re.search(r"^flight (\d+) (\d+)$", one["outputs"][0], re.MULTILINE).groups()
    assert int(most) >= holds and int(sockets) == 2, f"the link holds {holds} bytes: {one}"


def test_a_cut_cable_ends_operations_in_their_time(seen):
    for rank, output in enumerate(seen["cut"]["outputs"]):
        lines = [line for line in output.splitlines() if line.startswith("ended ")]
        assert lines, seen
        seconds, text = float(lines[0].split()[1]), lines[0]
        other = 1 - rank
        assert LIMIT_MS / 1000 - 0.1 <= seconds < LIMIT_MS / 1000 + 2 * SLOW, text
        assert f"rank {other} (node{other}, pid {seen['cut']['pids'][other]})" in text and "allreduce #" in text, text
