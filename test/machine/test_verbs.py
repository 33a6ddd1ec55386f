# SPDX-License-Identifier: Apache-2.0
"""The verbs transport over a real libibverbs and a real kernel: Soft-RoCE devices, the two ends of a veth pair in one machine."""

import re
import time

import pytest
from jobs import BENCH, BUILD, LONG, RANK, SLOW, assert_verbs, description, packets, run, start

CONFORMANCE = BUILD / "test" / "transport" / "test_transport"
# Left out always: a killed peer that must be noticed within two seconds, which is too little where all is emulated (test_two_machines.py has one).
ALL = "*/verbs_processes-*AKilledPeer*"
SAMPLE = ("Conformance.EverySizeAroundTheEagerLimit", "Conformance.MismatchIsToldOnBothSides", "Conformance.CancelDropsWhatWasNotAskedFor",
          "Pairs.OneSideConnects", "Pairs.BothDisconnectAndConnectAnew")  # all of them take minutes


def test_conformance(alone):
    before = packets(alone), packets(alone, "rxe1")
    env = {"QUOIT_VERBS_LIBRARY": "libibverbs.so.1", "QUOIT_TEST_VERBS_DEVICES": "rxe0,rxe1", "TEST_SLOW": str(SLOW), "GTEST_OUTPUT": ""}
    cases = ALL if LONG else ":".join(f"*{name}/verbs_processes" for name in SAMPLE)
    done = alone.call([CONFORMANCE, f"--gtest_filter={cases}"], (600 if LONG else 60) * SLOW, env)
    assert done.status == 0, done.explain()
    passed = re.search(r"\[  PASSED  \] (\d+) tests", done.out)
    assert passed and int(passed[1]) >= (25 if LONG else len(SAMPLE)) and "SKIPPED" not in done.out, done.explain()
    assert packets(alone) > before[0] + 500 and packets(alone, "rxe1") > before[1] + 500, "it went another way"


def test_collectives(alone):
    before = packets(alone)
    results = run([alone], [RANK, "check", 1, 1000, 100000])
    assert all("checked 30\n" in done.out for done in results), results[0].out
    assert_verbs(results, 5 * 400000)
    assert packets(alone) > before + 300


def test_bench_allreduce_checks_every_element(alone):
    done = run([alone], [BENCH, "--sizes", "4,64K,1M", "--iterations", 2, "--warmup", 1, "--dtype", "float32,bfloat16", "--check"])[0]
    rows = [line.split() for line in done.out.splitlines() if line.strip()[:1].isdigit()]
    assert len(rows) == 6 and all(row[-1] == "0" for row in rows), done.out


def test_a_gid_index_that_is_not_there(alone):
    for process in start([alone], [RANK, "check", 1], QUOIT_VERBS_GID_INDEX="77"):
        done = process.wait(60 * SLOW)
        assert done.status == 1, done.explain()
        for part in ("no active port with a GID fits", "GID index 77", "gid 1 RoCE v2 10.78.0."):
            assert part in done.out, done.explain()


@pytest.fixture
def rails(alone):
    """A second pair of devices beside the first: rxe2 on net2 (10.79.0.1), rxe3 on net3 (10.79.0.2)."""
    ip = ["link add net2 mtu 9000 type veth peer name net3 mtu 9000"]
    for end in (0, 1):
        mine, other = f"10.79.0.{1 + end}", f"10.79.0.{2 - end}"
        ip += [f"addr add {mine}/24 dev net{2 + end}", f"link set net{2 + end} up", f"rule add pref 11{end} iif lo from {mine} to {other} lookup 11{end}"]
    ip += [f"route add 10.79.0.{2 - end} dev net{2 + end} src 10.79.0.{1 + end} table 11{end}" for end in (0, 1)]
    alone.check("sh", "-c", "\n".join(f"ip {line} || exit 1" for line in ip + ["link set net2 up"]))
    for device in (2, 3):
        alone.check("rdma", "link", "add", f"rxe{device}", "type", "rxe", "netdev", f"net{device}")
    try:
        yield alone
    finally:
        alone.call(["sh", "-c", "rdma link del rxe2; rdma link del rxe3; ip link del net2; ip rule del pref 110; ip rule del pref 111"])


def wait_for(what, seconds):
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, "it does not come"
        time.sleep(0.1)


def both_devices(rank):
    return f"rxe{rank},rxe{2 + rank}"


def test_rails_share_the_bytes_and_one_that_is_lost_is_left(rails):
    """In proportion to the rates that are told, as the devices themselves count; then a port goes down in the middle."""
    before = [packets(rails, f"rxe{device}") for device in range(4)]
    results = run([rails], [RANK, "check", 1, 1000, 300000], QUOIT_VERBS_DEVICE=both_devices,
                  QUOIT_INTERFACE_RATES="rxe0=10000,rxe1=10000,rxe2=30000,rxe3=30000")
    assert all("checked 30\n" in done.out for done in results), results[0].explain()
    edge = description(results[0])["ranks"][1]["edge"]
    assert edge.startswith("verbs, 2 rails: rxe0 port 1, RoCE v2 10.78.0.1 -> 10.78.0.2, 10000 Mb/s; rxe2 port 1, RoCE v2 10.79.0.1 -> 10.79.0.2, 30000"), edge
    sent = [packets(rails, f"rxe{device}") - count for device, count in enumerate(before)]
    for one, other in ((sent[0], sent[2]), (sent[1], sent[3])):
        assert one > 100 and 1.5 * one < other < 6 * one, sent  # packets of control go over the first

    # By the devices' events: with fewer or shorter retries than by default a rail that is well may be given up, for all is slow here.
    processes = start([rails], [RANK, "endless", 100000, 60000], QUOIT_VERBS_DEVICE=both_devices)
    for process in processes:
        process.wait_for_text("ready\n", 60 * SLOW)
    rails.check("ip", "link", "set", "net2", "down")
    for rank, process in enumerate(processes):
        process.wait_for_text("is left: ", 60 * SLOW, "err")
        assert f"rail rxe{2 + rank} port 1, RoCE v2 10.79.0.{1 + rank}" in process.text("err"), process.text("err")
    count = packets(rails)
    wait_for(lambda: packets(rails) > count + 200, 30 * SLOW)  # it goes on
    for process in processes:
        assert "ended" not in process.text() and process.text("err").count("is left: ") == 1, process.text() + process.text("err")
    for process in processes:
        process.kill()
        process.wait(10 * SLOW)


def test_auto_takes_no_device_in_software(alone):
    results = run([alone], [RANK, "check", 1000], QUOIT_TRANSPORT="auto", QUOIT_VERBS_DEVICE="")
    assert description(results[0])["ranks"][1]["edge"].startswith("tcp "), results[0].explain()


@pytest.mark.parametrize("kib", [64, 1024])
def test_a_limit_on_locked_memory(alone, kib):
    """Below what the queues need the error tells the cure; above it, what cannot be registered goes over the stream."""
    limited = ["setpriv", "--bounding-set", "-ipc_lock", "prlimit", f"--memlock={kib * 1024}"]
    processes = start([alone], [*limited, RANK, "check", 1, 200000])
    results = [process.wait(60 * SLOW) for process in processes]
    if kib == 64:
        for done in results:
            assert done.status == 1 and "ulimit -l" in done.out, done.explain()
    else:
        assert all(done.status == 0 for done in results), "\n".join(done.explain() for done in results)
        assert_verbs(results, 5 * 800000)


@pytest.mark.parametrize("link, path", [(400, 256), (1500, 1024)] + ([(700, 512)] if LONG else []))
def test_small_mtu(alone, link, path):
    try:
        for end in range(2):
            alone.check("ip", "link", "set", f"net{end}", "mtu", str(link))
        before = packets(alone)
        assert_verbs(run([alone], [RANK, "check", 1, 1000, 30000]), 5 * 120000)
        assert packets(alone) - before >= 5 * 120000 / path, "packets are larger than the path takes"
    finally:
        for end in range(2):
            alone.check("ip", "link", "set", f"net{end}", "mtu", "9000")
