# SPDX-License-Identifier: Apache-2.0
"""The namespaced hosts that other tests stand on: names, links, rates, time limits, and that nothing stays behind."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "test" / "support"))
import hosts as hosts_module  # noqa: E402
from hosts import Hosts  # noqa: E402

WHY = hosts_module.why_unavailable()
pytestmark = pytest.mark.skipif(WHY is not None, reason=str(WHY))

SEND = """
import socket, sys
size, address = int(sys.argv[1]), sys.argv[2]
s = socket.create_connection((address, 5000), timeout=20)
s.sendall(b"x" * size)
s.shutdown(socket.SHUT_WR)
s.recv(1)
"""
RECEIVE = """
import socket, sys
family = socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET
l = socket.create_server((sys.argv[1], 5000), family=family)
print("ready", flush=True)
c, _ = l.accept()
c.settimeout(20)
while c.recv(1 << 16): pass
c.sendall(b"y")
"""


def mine():
    """Namespaces of this process."""
    return [name for name in hosts_module.namespaces() if name.startswith(f"{hosts_module.PREFIX}-{os.getpid()}-")]


def transfer(hosts, size, address):
    receiver = hosts.start(0, [sys.executable, "-c", RECEIVE, address], stdout=subprocess.PIPE, text=True)
    assert receiver.stdout.readline() == "ready\n"
    began = time.monotonic()
    done = hosts.call(len(hosts.ranks) - 1, [sys.executable, "-c", SEND, str(size), address])
    assert done.returncode == 0, done.stderr
    return time.monotonic() - began


def test_ranks_and_names():
    with Hosts([2, 1]) as hosts:
        results = hosts.run(["sh", "-c", "echo $RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $(hostname) $MASTER_ADDR"], timeout=30)
    assert [r.stdout.strip() for r in results] == ["0 0 3 2 node0 10.77.0.1", "1 1 3 2 node0 10.77.0.1", "2 0 3 1 node1 10.77.0.1"]
    assert [r.host for r in results] == [0, 0, 1]
    assert not mine()


@pytest.mark.parametrize("ranks, families", [([1, 1], "4"), ([1, 1], "6"), ([1, 1, 1], "46")])
def test_bytes_cross_the_link_and_are_counted(ranks, families):
    with Hosts(ranks, families=families) as hosts:
        addresses = ([hosts.ipv4(0)] if "4" in families else []) + ([hosts.ipv6(0)] if "6" in families else [])
        for address in addresses:
            before = hosts.counters(0)["received"]
            transfer(hosts, 1_000_000, address)
            got = hosts.counters(0)["received"] - before
            assert 1_000_000 < got < 1_300_000, f"{address}: {got}"


def test_rate_is_kept():
    with Hosts([1, 1], rate="40mbit", burst="16kb") as hosts:
        seconds = transfer(hosts, 2_000_000, hosts.ipv4(0))
    assert seconds > 0.36, "2 MB take 0.4 s at 40 Mbit/s"


def test_time_limit_and_outputs():
    with Hosts([1, 1]) as hosts:
        results = hosts.run(["sh", "-c", "echo said; test $RANK = 0 || sleep 100"], timeout=2)
    assert results[0].returncode == 0 and results[1].returncode is None and results[1].timed_out
    assert results[1].stdout == "said\n", "what was said before the limit is kept"


def test_first_failure_ends_the_others():
    with Hosts([1, 1]) as hosts:
        began = time.monotonic()
        results = hosts.run(["sh", "-c", "test $RANK = 0 && sleep 100; exit 3"], timeout=60, grace=0.5)
        assert time.monotonic() - began < 30
        assert results[1].returncode == 3 and results[0].timed_out
        assert "rank 1 on node1: status 3" in hosts.explain(results)


def test_exception_cleans_up():
    with pytest.raises(ZeroDivisionError), Hosts([1, 1]) as hosts:
        process = hosts.start(0, ["sleep", "100"])
        names = mine()
        raise ZeroDivisionError
    assert len(names) == 2 and not mine()
    assert process.returncode is not None
    assert not [name for name in names if Path("/etc/netns", name).exists()]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_cleans_up(number):
    words = [sys.executable, hosts_module.__file__, "--hosts", "1+1", "--", "sleep", "100"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    prefix = f"{hosts_module.PREFIX}-{process.pid}-"
    try:
        deadline = time.monotonic() + 20
        while sum(name.startswith(prefix) for name in hosts_module.namespaces()) < 2:
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.02)
        time.sleep(0.5)
        process.send_signal(number)
        process.communicate(timeout=20)
    finally:
        process.kill()
    assert process.returncode != 0
    assert not [name for name in hosts_module.namespaces() if name.startswith(prefix)]


def test_killed_run_is_cleaned_by_the_next(tmp_path):
    words = [sys.executable, hosts_module.__file__, "--hosts", "1+1", "--", "sleep", "30"]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=dict(os.environ, TMPDIR=str(tmp_path)))
    prefix = f"{hosts_module.PREFIX}-{process.pid}-"
    deadline = time.monotonic() + 20
    while sum(name.startswith(prefix) for name in hosts_module.namespaces()) < 2:
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.02)
    time.sleep(0.5)
    process.kill()
    process.wait()
    hosts_module.remove_leftovers()
    assert not [name for name in hosts_module.namespaces() if name.startswith(prefix)]


def test_cable():
    with Hosts([1, 1]) as hosts:
        assert "LOWER_UP" in hosts.call(1, ["ip", "link", "show", "eth0"]).stdout
        hosts.set_link(0, False)
        assert "NO-CARRIER" in hosts.call(1, ["ip", "link", "show", "eth0"]).stdout
        hosts.set_link(0, True)
