# SPDX-License-Identifier: Apache-2.0
"""Two machines joined by a wire, one RDMA device each: networks that lose and delay, and what fails for good. Collected in long runs only
(QUOIT_TEST_LONG=1)."""

import json
import sys

import pytest
from jobs import RANK, ROOT, SLOW, assert_verbs, ended, packets, run, start

LIMIT_MS = 8000


def netem(machines, what):
    for one in machines:
        one.check("tc", "qdisc", "add", "dev", "net0", "root", "netem", "limit", "20000", *what.split())


def test_collectives_between_machines(calm):
    before = [packets(one) for one in calm]
    assert_verbs(run(calm, [RANK, "check", 1, 1000, 300000]), 5 * 1200000)
    assert all(packets(one) > first + 1000 for one, first in zip(calm, before))


@pytest.mark.parametrize("what", ["loss 1%", "delay 5ms", "delay 5ms loss 0.2%"])
def test_networks_that_lose_and_delay(calm, what):
    netem(calm, what)
    assert_verbs(run(calm, [RANK, "check", 1, 1000, 100000], 120), 5 * 400000)


def begun(machines, limit_ms=LIMIT_MS, **settings):
    ranks = start(machines, [RANK, "endless", 50000, limit_ms], **settings)
    for rank in ranks:
        rank.wait_for_text("ready\n", 60 * SLOW)
    said = json.loads(ranks[0].text().splitlines()[0])
    assert said["ranks"][1]["edge"].startswith("verbs rxe0"), said
    return ranks, [one["pid"] for one in said["ranks"]]


def test_a_cut_cable(calm):
    """Every rank's operation ends within its limit and a little, and names who did not come."""
    ranks, pids = begun(calm)
    netem(calm, "loss 100%")
    for rank, process in enumerate(ranks):
        seconds, text = ended(process, 60)
        assert seconds < LIMIT_MS / 1000 + 2 * SLOW, text
        assert f"rank {1 - rank} (machine{1 - rank}, pid {pids[1 - rank]})" in text, text


def test_a_cut_cable_that_is_found_by_the_device(calm):
    """With time enough, it is the retries that end."""
    ranks, pids = begun(calm, 120000, QUOIT_VERBS_TIMEOUT="17", QUOIT_VERBS_RETRY_COUNT="3")
    netem(calm, "loss 100%")
    texts = [ended(process, 60)[1] for process in ranks]
    for rank, text in enumerate(texts):
        assert f"rank {1 - rank} (machine{1 - rank}, pid {pids[1 - rank]})" in text, text


def test_a_killed_peer(calm):
    ranks, pids = begun(calm, 60000)
    ranks[1].kill()
    seconds, text = ended(ranks[0], 30)
    assert seconds < 2 * SLOW and f"rank 1 (machine1, pid {pids[1]})" in text, text


def test_a_device_that_is_removed(calm):
    """This kernel cannot take a Soft-RoCE device away from a process that has it open: it waits, and the device works on meanwhile. So the
    cable is cut, too; then the ranks fail, and what they held is given back: the removal ends."""
    ranks, pids = begun(calm)
    removal = calm[1].spawn(["rdma", "link", "del", "rxe0"])
    try:
        netem(calm, "loss 100%")
        for rank, process in enumerate(ranks):
            seconds, text = ended(process, 60)
            assert seconds < LIMIT_MS / 1000 + 2 * SLOW, text
            assert f"rank {1 - rank} (machine{1 - rank}, pid {pids[1 - rank]})" in text, text
        assert removal.wait(20 * SLOW).status == 0
    finally:
        for one in calm:
            one.call(["tc", "qdisc", "del", "dev", "net0", "root"])
        calm[1].call(["rdma", "link", "add", "rxe0", "type", "rxe", "netdev", "net0"])
    assert_verbs(run(calm, [RANK, "check", 1, 1000]), 5 * 4000)


def test_torch(calm):
    """torch.distributed over the quoit backend, where both are installed."""
    results = [process.wait(300 * SLOW) for process in start(calm, [sys.executable, ROOT / "test" / "machine" / "torch_rank.py"])]
    for rank, done in enumerate(results):
        assert done.status == 0 and "verbs rxe0" in done.out, done.explain()


@pytest.mark.parametrize("transport", ["tcp", "verbs"])
def test_torch_cut_cable(calm, transport):
    """The limit of PyTorch's operation holds, too, and the text names who did not come."""
    ranks = start(calm, [sys.executable, ROOT / "test" / "machine" / "torch_endless.py", LIMIT_MS], QUOIT_TRANSPORT=transport, QUOIT_VERBS_TIMEOUT="21")  # the device takes longer to find out
    for rank in ranks:
        rank.wait_for_text("ready\n", 300 * SLOW)
    said = [json.loads(rank.text().splitlines()[0]) for rank in ranks]
    assert all(one["edge"].startswith(f"{transport} ") for one in said), said
    netem(calm, "loss 100%")
    times = []
    for rank, process in enumerate(ranks):
        seconds, text = ended(process, 60)
        times.append(seconds)
        assert seconds < LIMIT_MS / 1000 + 2 * SLOW, text
        assert f"rank {1 - rank} (machine{1 - rank}, pid {said[1 - rank]['pid']})" in text and "allreduce #" in text, text
        assert f"timed out after {LIMIT_MS} ms" in text, text
    assert max(times) >= LIMIT_MS / 1000, times
