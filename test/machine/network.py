# SPDX-License-Identifier: Apache-2.0
"""Runs inside a machine: jobs of two hosts (network namespaces) joined by a link with netem. What the ranks ($MACHINE_RANK, test/machine/rank.c)
said comes out as one line of JSON.

    network.py LIMIT_MS NETEM...

For each NETEM a rank streams to the other. Then the ranks allreduce, LIMIT_MS each time, until the cable is cut.
"""
import json
import os
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from hosts import Hosts  # noqa: E402

RANK = os.environ["MACHINE_RANK"]
LIMIT = 200  # seconds of anything


def start(hosts, *words):
    environments = [hosts.environment(rank, host, local, 29700, {"QUOIT_TRANSPORT": "tcp"}) for rank, host, local in hosts.places()]
    return [hosts.start(rank, [RANK, *words], env=environments[rank], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for rank in range(2)]


def stream(hosts, netem):
    for host in range(2):
        hosts.set_netem(host, netem)
    ranks = start(hosts, "stream", "250000", "12")
    outputs = [rank.communicate(timeout=LIMIT)[0] for rank in ranks]
    return {"statuses": [rank.returncode for rank in ranks], "outputs": outputs}


def cut(hosts, limit_ms):
    for host in range(2):
        hosts.set_netem(host, "delay 1ms")
    ranks = start(hosts, "endless", "10000", limit_ms)
    said = ["", ""]
    for number, rank in enumerate(ranks):
        for line in rank.stdout:
            said[number] += line
            if line == "ready\n":
                break
    for host in range(2):
        hosts.set_netem(host, "loss 100%")
    for number, rank in enumerate(ranks):
        said[number] += rank.communicate(timeout=LIMIT)[0]
    return {"pids": [rank.pid for rank in ranks], "outputs": said}


with Hosts([1, 1], families="4") as both:
    streams = [stream(both, netem) for netem in sys.argv[2:]]
    print(json.dumps({"streams": streams, "cut": cut(both, sys.argv[1])}))
