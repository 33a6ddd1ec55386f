# SPDX-License-Identifier: Apache-2.0
"""Whatever connects to the ports of a running job and is no member of it: the job goes on, with right results and a line a second in the log."""

import contextlib
import datetime
import json
import os
import random
import re
import shutil
import socket
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import quoit
from launcher import SLOW, argument, directory, hosts_of, in_part, meet, message_of, run, wait_for

SECONDS = 1.5


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


class OtherStore(dist.Store):
    """What a job's store holds, as a process that was never in it reads it: itself in the place of a member, and another secret."""

    def __init__(self, path, size, member):
        super().__init__()
        self.inner, self.record, self.own = dist.FileStore(path, size), f"quoit/record/{member}", {}

    def set(self, key, value):
        self.own[key] = value if isinstance(value, bytes) else value.encode()

    def get(self, key):
        if key in self.own:
            return self.own[key]
        value = self.inner.get(key)
        if key.endswith("quoit/roster"):
            (record,) = [name for name in self.own if name.endswith(self.record)]
            taken = self.inner.get(record)
            assert taken in value and value.startswith(b"RS"), value
            value = value.replace(taken, self.own[record])
            value = value[:20] + bytes([value[20] ^ 1]) + value[21:]  # the secret comes behind 16 bytes
        return value

    def add(self, key, value):
        return self.inner.add(key, value)

    def wait(self, keys, timeout=datetime.timedelta(seconds=300)):
        missing = [key for key in keys if key not in self.own]
        if missing:
            self.inner.wait(missing, timeout)


EVERY_PROTOCOL, IP = 3, 0x0800


class Recorder:
    """What clients of TCP connections say, from the beginning, as it passes the network's interface."""

    def __init__(self, interface):
        self.packets = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(EVERY_PROTOCOL))  # of IP alone those that go out were not shown
        self.packets.setsockopt(socket.SOL_SOCKET, 33, 64 << 20)  # SO_RCVBUFFORCE: others may use the interface, too
        self.packets.bind((interface, EVERY_PROTOCOL))
        self.packets.setblocking(False)

    def handshakes(self):
        """[(address, port, bytes)]"""
        streams = {}
        with contextlib.suppress(BlockingIOError):
            while True:
                packet, (_, protocol, *_) = self.packets.recvfrom(70000)
                if protocol != IP:
                    continue
                tcp = packet[(packet[0] & 15) * 4 : int.from_bytes(packet[2:4], "big")]
                said = tcp[(tcp[12] >> 4) * 4 :] if packet[9] == socket.IPPROTO_TCP else b""
                if said:
                    to = socket.inet_ntoa(packet[16:20]), int.from_bytes(tcp[2:4], "big")
                    streams.setdefault((packet[12:16], tcp[:2], *to), {})[int.from_bytes(tcp[4:8], "big")] = said
        whole = [(*key[2:], b"".join(said for _, said in sorted(parts.items()))) for key, parts in streams.items()]
        return [each for each in whole if each[2].startswith(b"QtHs\x01\x01") and b"QtHs\x01\x03" in each[2]]  # HELLO and PROOF: no connection that was given up for another


def replay(said, address, port):
    """It is sent away."""
    with socket.create_connection((address, port), timeout=10 * SLOW) as stranger:
        stranger.sendall(said)
        with contextlib.suppress(ConnectionResetError):
            while stranger.recv(1000):
                pass


MEMBERS, STRANGER = 3, 3


def refusals(source):
    """Lines of all logs of the job about a stranger that did not know its secret."""
    logs = [path.read_text() for path in directory().glob("log.*")]
    return sum(len(re.findall(rf"connection from {re.escape(source)}:\d+ (refused|dropped): the secrets of the two sides differ", log)) for log in logs)


def stranger(address, source):
    """With a wrong secret in the name of a member, with what a member has said once, and in all the other ways, until the job has seen enough."""
    os.environ["QUOIT_CONNECT_TIMEOUT"] = "1s"  # some of a member's addresses lead nowhere from here: it tries them that long
    shutil.copy(directory() / "store", directory() / "copy")
    store = OtherStore(str(directory() / "copy"), MEMBERS, 2)
    options = {"store": dist.PrefixStore("default_pg", store), "rank": 2, "world_size": MEMBERS, "timeout": datetime.timedelta(seconds=20 * SLOW)}
    wrong = message_of(lambda: dist.init_process_group("quoit", **options), RuntimeError)
    before = wait_for(lambda: refusals(source), otherwise="no line about a wrong secret")
    time.sleep(1.1)  # the next one has a line of its own
    ports = [json.loads((directory() / f"ports{rank}").read_text()) for rank in range(MEMBERS)]
    replays = [each for each in json.loads((directory() / "handshakes").read_text()) if each[1] in sum(ports, [])]
    assert replays, "no handshake was recorded"
    for to, port, said in replays:
        replay(bytes.fromhex(said), to, port)
    wait_for(lambda: refusals(source) > before, otherwise="no line about a replay")
    time.sleep(1.1)
    targets = [port for port in ports[0] if answers(address, port)]
    assert targets, "rank 0 listens nowhere"
    visits, stay, end = 0, [], time.monotonic() + SECONDS
    while time.monotonic() < end or visits < 2:
        for port in targets:
            visit(address, port, stay)
        visits += 1
    for slow in stay:
        slow.close()
    return visits, wrong


def worker(rank, size):
    hosts, address, source = argument()
    if rank == STRANGER:
        meet("ready", rank, size)
        try:
            return stranger(address, source)
        finally:
            (directory() / "over").touch()
    recorder = Recorder("lo" if hosts == 1 else "eth0") if rank == 2 else None
    dist.init_process_group("quoit", init_method=f"file://{directory()}/store", rank=rank, world_size=MEMBERS)
    assert quoit.describe(as_dict=True)["hosts"] == (2 if hosts > 1 else MEMBERS)
    dist.all_reduce(torch.ones(1000))  # connected
    (directory() / f"ports{rank}").write_text(json.dumps(list(listeners())))
    if recorder:
        (directory() / "handshakes").write_text(json.dumps([(to, port, said.hex()) for to, port, said in recorder.handshakes()]))
    meet("ready", rank, size)
    rounds, more = 0, True
    while more:
        tensor = torch.full((3000,), rank + 1.0)
        tensor[0] = 1.0 if rank == 0 and (directory() / "over").exists() else 0.0
        dist.all_reduce(tensor)
        assert (tensor[1:] == MEMBERS * (MEMBERS + 1) / 2).all()
        rounds, more = rounds + 1, tensor[0] == 0
    dist.barrier()
    dist.destroy_process_group()
    return rounds


@pytest.mark.parametrize("ranks", in_part([[4], [2, 1, 1]], [2, 1, 1]), ids=str)
def test_visits(tmp_path, ranks):
    with hosts_of(ranks, families="4") as hosts:
        env = {"QUOIT_LOG_FILE": str(tmp_path / "log.%r"), **({} if hosts else {"QUOIT_TRANSPORT": "tcp", "QUOIT_INTERFACE": "lo"})}
        address, source = (hosts.address(0), hosts.address(2)) if hosts else ("127.0.0.1", "127.0.0.1")
        begin = time.monotonic()
        answers = run(4, worker, backend=None, argument=[len(ranks), address, source], hosts=hosts, directory=tmp_path, env=env)
        took = time.monotonic() - begin
    visits, wrong = answers[STRANGER]
    assert "the secrets of the two sides differ" in wrong, wrong
    assert answers[0] > 20 and visits >= 2, answers
    logs = [path.read_text() for path in sorted(tmp_path.glob("log.*"))]
    lines = [[line for line in log.splitlines() if f"connection from {source}" in line] for log in logs]
    assert all(len(each) <= took + 2 for each in lines), logs  # all of them came from one address: a line a second
    assert len(lines[0]) >= 1 and re.search(r"like it were left out\)", logs[0]), logs
