# SPDX-License-Identifier: Apache-2.0
"""A rank dies, in this way or that, with a forked child that lives on or without; the others are told, with rank, pid and operation."""

import ctypes
import os
import resource
import signal
import sys
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import quoit
from launcher import SLOW, argument, directory, free_port, meet, message_of, start

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))
from hosts import Hosts, why_unavailable  # noqa: E402

VICTIM = 1


def die(way):
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    import faulthandler

    faulthandler.disable()
    if way == "_exit":
        os._exit(3)
    os.kill(os.getpid(), {"kill": signal.SIGKILL, "segfault": signal.SIGSEGV, "abort": signal.SIGABRT}[way])
    time.sleep(10)


def worker(rank, size):
    way, hosts, fork = argument()
    if hosts > 1:
        os.environ["QUOIT_HOST_LABEL"] = f"host {rank}"
    dist.init_process_group("quoit", init_method=f"file://{directory()}/store", rank=rank, world_size=size)
    assert quoit.describe(as_dict=True)["hosts"] == hosts
    group = dist.new_group()
    dist.all_reduce(torch.ones(10))
    dist.all_reduce(torch.ones(10), group=group)
    meet("all", rank, size)
    if rank == VICTIM:
        if fork and os.fork() == 0:
            while not (directory() / "end").exists() and os.path.isdir(directory()):
                time.sleep(0.02)
            os._exit(0)
        (directory() / "pid").write_text(str(os.getpid()))
        (directory() / "died").write_text(str(time.monotonic()))
        die(way)
    texts = [message_of(lambda: [dist.all_reduce(torch.ones(10)) for _ in range(2)], dist.DistBackendError)]
    took = time.monotonic() - float((directory() / "died").read_text())
    texts.append(message_of(lambda: [dist.all_reduce(torch.ones(10), group=group) for _ in range(2)], dist.DistBackendError))
    (directory() / "end").touch()
    return texts, took, int((directory() / "pid").read_text())


@pytest.mark.parametrize("way, hosts, fork", [("kill", 2, True), ("_exit", 1, True), ("segfault", 2, False), ("abort", 2, True)])
def test_death(way, hosts, fork):
    first, victim = start(2, worker, backend=None, argument=[way, hosts, fork])
    assert victim.status == {"_exit": 3, "kill": -9, "segfault": -11, "abort": -6}[way], victim
    assert first.status == 0, first
    texts, took, pid = first.result
    for text in texts:
        assert f"rank {VICTIM} (" in text and f"pid {pid}" in text and "allreduce #" in text, text
        assert "quoit_comm_" not in text, "a name of the library, which Python has not: " + text
    assert took < 1 + 0.5 * SLOW, (took, texts)


def worker_regroups(rank, size):
    """What programs did with Gloo: those who are left name themselves."""
    dist.init_process_group("quoit", init_method=f"file://{directory()}/store", rank=rank, world_size=size)
    dist.all_reduce(torch.ones(10))
    meet("all", rank, size)
    if rank == VICTIM:
        die("kill")
    message_of(lambda: [dist.all_reduce(torch.ones(10)) for _ in range(2)], RuntimeError)
    living = [r for r in range(size) if r != VICTIM]
    group = dist.new_group(living, use_local_synchronization=True)
    tensor = torch.tensor([float(rank)])
    dist.all_reduce(tensor, group=group)
    assert tensor.item() == sum(living)
    ends = dist.new_group([living[0], living[-1]], use_local_synchronization=True) if rank in (living[0], living[-1]) else None
    if ends:
        got = [None, None]
        dist.all_gather_object(got, rank, group=ends)
        assert got == [living[0], living[-1]]


def test_survivors_make_a_group():
    ranks = start(4, worker_regroups, backend=None)
    assert [rank.status for rank in ranks] == [0, -signal.SIGKILL, 0, 0], ranks


def enter_network(path):
    """This process goes on in another network namespace. (os.setns came with Python 3.12.)"""
    libc = ctypes.CDLL(None, use_errno=True)
    with open(path) as file:
        if libc.setns(file.fileno(), 0) != 0:
            raise OSError(ctypes.get_errno(), f"setns {path}")


def worker_apart(rank, size):
    victim, networks, method = argument()
    enter_network(networks[rank])
    dist.init_process_group("quoit", init_method=method, rank=rank, world_size=size)
    assert quoit.describe(as_dict=True)["hosts"] == 2
    dist.all_reduce(torch.ones(10))
    (directory() / f"pid{rank}").write_text(str(os.getpid()))
    meet("all", rank, size)
    if rank == victim:
        (directory() / "died").write_text(str(time.monotonic()))
        die("kill")
    text = message_of(lambda: [dist.all_reduce(torch.ones(10)) for _ in range(2)], dist.DistBackendError)
    return text, time.monotonic() - float((directory() / "died").read_text())


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_killed_hosts_apart(tmp_path, victim):
    """Rank 0 serves the store and leads its host, rank 1 does neither, rank 2 leads the other host."""
    why = why_unavailable()
    if why:
        pytest.skip(why)
    with Hosts([2, 2]) as hosts:
        networks = [f"/var/run/netns/{hosts.namespace(host)}" for _, host, _ in hosts.places()]
        method = f"tcp://{hosts.address(0)}:{free_port()}"
        ranks = start(4, worker_apart, backend=None, argument=[victim, networks, method], directory=tmp_path)
    pid = int((tmp_path / f"pid{victim}").read_text())
    assert ranks[victim].status == -signal.SIGKILL, ranks
    for rank in ranks:
        if rank.number == victim:
            continue
        assert rank.status == 0, rank
        text, took = rank.result
        assert f"rank {victim} (" in text and f"pid {pid}" in text and "allreduce #" in text, text
        assert took < 1 + 0.5 * SLOW, (took, text)
