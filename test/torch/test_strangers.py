# SPDX-License-Identifier: Apache-2.0
"""Whatever connects to the ports of a running job and is no member of it: the job goes on, with right results and a line a second in the log."""

import contextlib
import os
import random
import re
import socket
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist

import quoit
from launcher import argument, directory, hosts_of, meet, run

SECONDS = 2.5


def listeners():
    """Ports at which this process listens for TCP."""
    own = set()
    for entry in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            own.add(os.readlink(f"/proc/self/fd/{entry}"))
    found = set()
    for table in ("/proc/self/net/tcp", "/proc/self/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in own:
                found.add(int(fields[1].rsplit(":", 1)[1], 16))
    return found


def answers(address, port):
    """It may listen at another address only."""
    try:
        socket.create_connection((address, port), timeout=10).close()
    except ConnectionRefusedError:
        return False
    return True


def words():
    """What strangers say: other protocols, noise, headers that are cut short or announce too much."""
    noise = random.Random(7)
    return [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + noise.randbytes(500),
        b"SSH-2.0-OpenSSH_9.2\r\n",
        noise.randbytes(1),
        noise.randbytes(4096),
        b"QtHs",
        b"QtHs\x01\x01\xff\xff" + noise.randbytes(100),
        b"QtHs\x01\x03\x28\x00",
    ]


def visit(address, port, stay):
    """One of each kind; those in `stay` keep their connections, and say a byte now and then."""
    for _ in range(20):  # a port scanner
        socket.create_connection((address, port), timeout=10).close()
    for said in words():
        with socket.create_connection((address, port), timeout=10) as stranger:
            with contextlib.suppress(OSError):
                stranger.sendall(said)
                stranger.settimeout(0.05)
                stranger.recv(1000)
    with socket.create_connection((address, port), timeout=10) as half:  # it will say no more, and waits
        half.shutdown(socket.SHUT_WR)
        half.settimeout(0.05)
        with contextlib.suppress(OSError):
            half.recv(1000)
    if len(stay) < 20:
        stay.append(socket.create_connection((address, port), timeout=10))
    for slow in stay:
        with contextlib.suppress(OSError):
            slow.send(b"Q")


def worker(rank, size):
    address = argument()
    dist.init_process_group("quoit", init_method=f"file://{directory()}/store", rank=rank, world_size=size)
    assert quoit.describe(as_dict=True)["hosts"] == 2
    dist.all_reduce(torch.ones(1000))  # connected
    if rank == 0:
        (directory() / "ports").write_text(" ".join(map(str, listeners())))
    meet("all", rank, size)
    ports = [int(port) for port in (directory() / "ports").read_text().split() if rank == size - 1 and answers(address, int(port))]
    assert ports or rank < size - 1, "rank 0 listens nowhere"
    visits, wrong, over = [0], [], threading.Event()

    def visitors():
        stay = []
        try:
            end = time.monotonic() + SECONDS
            while time.monotonic() < end or visits[0] < 2:
                for port in ports:
                    visit(address, port, stay)
                visits[0] += 1
        except BaseException as error:
            wrong.append(repr(error))
        for slow in stay:
            slow.close()
        over.set()

    if rank == size - 1:  # on the other host
        threading.Thread(target=visitors).start()
    rounds, more = 0, True
    while more:
        tensor = torch.full((3000,), rank + 1.0)
        tensor[0] = 1.0 if rank == size - 1 and over.is_set() else 0.0
        dist.all_reduce(tensor)
        assert (tensor[1:] == size * (size + 1) / 2).all()
        rounds, more = rounds + 1, tensor[0] == 0
    dist.barrier()
    dist.destroy_process_group()
    return rounds, visits[0], wrong


def test_visits(tmp_path):
    with hosts_of([2, 1]) as hosts:
        begin = time.monotonic()
        answers = run(3, worker, backend=None, argument=hosts.address(0), hosts=hosts, directory=tmp_path, env={"QUOIT_LOG_FILE": str(tmp_path / "log.%r")})
        took = time.monotonic() - begin
        stranger = hosts.address(1)
    rounds, visits, wrong = answers[2]
    assert rounds > 20 and visits >= 2 and not wrong, answers
    log = (tmp_path / "log.0").read_text()
    lines = [line for line in log.splitlines() if f"connection from {stranger}" in line]
    assert 1 <= len(lines) <= took + 2, log  # all of them came from one address: a line a second
    assert re.search(r"like it were left out\)", log), log
