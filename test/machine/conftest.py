# SPDX-License-Identifier: Apache-2.0
"""One emulated machine for all tests that need one, two for those that need two: started when the first of them asks."""

import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "test" / "support"))
import machine as machine_module  # noqa: E402

collect_ignore = [] if os.environ.get("QUOIT_TEST_LONG") == "1" else ["test_two_machines.py"]


def start(count, memory):
    why = machine_module.why_unavailable()
    if why:
        pytest.skip(why)
    return machine_module.Machines(count, limit=3600, memory_mib=memory)


@pytest.fixture(scope="session")
def alone():
    """A machine with rxe0 on net0 (10.78.0.1) and rxe1 on net1 (10.78.0.2)."""
    with start(1, 1024) as machines:
        print(f"one machine by {machines.accelerator}, ready {machines[0].boot_seconds} s after its kernel's start")
        yield machines[0]


@pytest.fixture(scope="session")
def both():
    """Two, each with rxe0 on net0, joined by a wire."""
    with start(2, 3072) as machines:
        yield list(machines)


@pytest.fixture
def calm(both):
    """The same, without what a test has done to the wire before."""
    yield both
    for one in both:
        one.call(["tc", "qdisc", "del", "dev", "net0", "root"])
