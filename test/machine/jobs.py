# SPDX-License-Identifier: Apache-2.0
"""Jobs of one rank a device: where the ranks run, with which settings, and what became of them."""

import json
import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("QUOIT_TEST_BUILD", str(ROOT / "build")))
RANK = BUILD / "test" / "machine" / "machine_rank"
BENCH = BUILD / "bench" / "bench_allreduce"
SLOW = float(os.environ.get("TEST_SLOW", "1")) * 4  # machines are slow where they are emulated
LONG = os.environ.get("QUOIT_TEST_LONG") == "1"
PORTS = iter(range(29500, 32000))


def start(machines, words, **settings):
    """Rank r in the last machine that there is for it, on a device of its own, by verbs unless the settings say otherwise; one may be a
    function of the rank. [Process]"""
    port, processes = next(PORTS), []
    for rank in range(2):
        place = rank if len(machines) == 1 else 0  # the number of the device in its machine
        env = {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "10.78.0.1", "MASTER_PORT": str(port), "QUOIT_TRANSPORT": "verbs",
               "QUOIT_VERBS_DEVICE": f"rxe{place}", "QUOIT_INTERFACE": f"net{place}", "QUOIT_HOST_LABEL": f"host{rank}"}
        env.update({name: value(rank) if callable(value) else value for name, value in settings.items()})
        processes.append(machines[min(rank, len(machines) - 1)].spawn(words, env))
    return processes


def run(machines, words, timeout=60, **settings):
    """[Done] of ranks that must end well."""
    results = [process.wait(timeout * SLOW) for process in start(machines, words, **settings)]
    for rank, done in enumerate(results):
        assert done.status == 0, f"rank {rank}: {done.explain()}\n" + results[1 - rank].explain()
    return results


def description(done):
    """What machine_rank printed of its communicator."""
    return [json.loads(line) for line in done.out.splitlines() if line.startswith("{")][-1]


def assert_verbs(results, least):
    """Both ranks talked by verbs, from one device to the other, and at least so many bytes."""
    for rank, done in enumerate(results):
        said = description(done)
        edge = said["ranks"][1 - rank]
        assert said["hosts"] == 2, said
        assert f", RoCE v2 10.78.0.{rank + 1} -> 10.78.0.{2 - rank}," in edge["edge"] and edge["edge"].startswith("verbs rxe"), edge
        assert edge["sent"] >= least and edge["received"] >= least, edge


def packets(machine, device="rxe0"):
    """What the device itself counted as sent."""
    found = json.loads(machine.check("rdma", "-j", "statistic", "show", "link", device))
    return found[0]["sent_pkts"]


def ended(process, timeout):
    """(seconds, text) of the operation with which an endless rank ended."""
    done = process.wait(timeout * SLOW)
    lines = [line for line in done.out.splitlines() if line.startswith("ended ")]
    assert done.status == 0 and lines, done.explain()
    _, seconds, text = lines[0].split(" ", 2)
    return float(seconds), text
