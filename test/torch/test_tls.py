# SPDX-License-Identifier: Apache-2.0
"""TLS between hosts: no packet shows what a tensor holds, and the key is told nowhere."""

import secrets
import signal
import sys
import time

import pytest
import torch
import torch.distributed as dist

import quoit
from launcher import SLOW, argument, directory, hosts_of, meet, message_of, run

MARK = b"what nobody else may read "
SHOWN = 2000  # times in a tensor

# All packets of eth0, as they come, until it is ended.
CAPTURE = """
import socket, sys
packets = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
packets.setsockopt(socket.SOL_SOCKET, 33, 64 << 20)  # SO_RCVBUFFORCE
packets.bind(("eth0", 0))
with open(sys.argv[1], "wb", buffering=0) as file:
    open(sys.argv[1] + ".ready", "w").close()
    while True:
        file.write(packets.recv(70000))
"""


def worker(rank, size):
    secure = argument()
    dist.init_process_group("quoit", init_method=f"file://{directory()}/store", rank=rank, world_size=size)
    found = quoit.describe(as_dict=True)
    assert found["hosts"] == 2 and ("TLSv1.3" in quoit.describe()) == secure, quoit.describe()
    tensor = torch.frombuffer(bytearray(MARK * SHOWN), dtype=torch.uint8) if rank == 0 else torch.zeros(len(MARK) * SHOWN, dtype=torch.uint8)
    dist.broadcast(tensor, 0)
    assert bytes(tensor.tolist()) == MARK * SHOWN
    said = [quoit.describe(), repr(quoit.describe(as_dict=True)), repr(quoit.history()), repr(quoit.settings())]
    meet("all", rank, size)
    if rank == 0:
        dist.group.WORLD.abort()
    said.append(message_of(lambda: [dist.barrier() for _ in range(2)], dist.DistBackendError))
    said.append(str(quoit.last_error()))
    dist.destroy_process_group()
    return said


@pytest.mark.parametrize("secure", [False, True], ids=["plain", "TLS"])
def test_wire(tmp_path, secure):
    key = secrets.token_hex(32)
    (tmp_path / "key").write_text(key)
    (tmp_path / "key").chmod(0o600)
    out = tmp_path / "out"
    out.mkdir()
    env = {"QUOIT_LOG": "debug", "QUOIT_LOG_FILE": f"{out}/log.%r", "QUOIT_TRACE": f"{out}/trace.%r.json", "QUOIT_DUMP": f"{out}/dump.%r.json"}
    if secure:
        env.update(QUOIT_TLS="psk", QUOIT_TLS_KEY_FILE=str(tmp_path / "key"))
    with hosts_of([1, 1]) as hosts:
        capture = hosts.start(0, [sys.executable, "-c", CAPTURE, str(tmp_path / "wire")])
        end = time.monotonic() + 20 * SLOW
        while not (tmp_path / "wire.ready").exists():
            assert time.monotonic() < end and capture.poll() is None, "no capture"
            time.sleep(0.01)
        said = run(2, worker, backend=None, argument=secure, hosts=hosts, directory=tmp_path, env=env)
        sent = hosts.counters(0)["sent"]
        while (tmp_path / "wire").stat().st_size < sent and time.monotonic() < end:
            time.sleep(0.01)
        capture.send_signal(signal.SIGTERM)
        capture.wait()
    wire = (tmp_path / "wire").read_bytes()
    assert len(wire) >= sent > SHOWN * len(MARK), "packets were missed"
    assert (MARK in wire) == (not secure)
    written = {path.name: path.read_bytes() for path in out.iterdir()}
    assert {"log.0", "log.1", "trace.0.json", "trace.1.json", "dump.0.json", "dump.1.json"} <= written.keys(), written.keys()
    told = b"".join(written.values()) + repr(said).encode()
    assert b"aborted" in told and len(told) > 10000
    for at in range(0, len(key) - 16, 2):
        for part in (key[at : at + 16].encode(), key[at : at + 16].upper().encode(), bytes.fromhex(key[at : at + 16])):
            assert part not in told and part not in wire, "a part of the key"
