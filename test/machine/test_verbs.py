# SPDX-License-Identifier: Apache-2.0
"""The verbs transport over a real libibverbs and a real kernel: Soft-RoCE devices, the two ends of a veth pair in one machine."""

import re

import pytest
from jobs import BENCH, BUILD, LONG, RANK, SLOW, assert_verbs, packets, run, start

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
