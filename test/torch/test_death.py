# SPDX-License-Identifier: Apache-2.0
"""A rank dies, in this way or that, at this time or that, with a forked child that lives on or without; the others are told at once: rank,
host, pid and operation. Several hosts are network namespaces."""

import ctypes
import itertools
import os
import random
import resource
import signal
import threading
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import quoit
from launcher import SLOW, argument, directory, free_port, hosts_of, in_part, meet, message_of, own_name, start
from restrict import memory_group

VICTIM = 1


def die(way):
    most = resource.getrlimit(resource.RLIMIT_CORE)[1]
    resource.setrlimit(resource.RLIMIT_CORE, (most if way == "core" else 0, most))
    import faulthandler

    faulthandler.disable()
    if way == "_exit":
        os._exit(3)
    if way == "segfault":
        ctypes.string_at(0)
    os.kill(os.getpid(), {"kill": signal.SIGKILL, "abort": signal.SIGABRT, "core": signal.SIGABRT}[way])
    time.sleep(10)


def confess(way):
    """In the victim: leave what the others are to be told of it, and die."""
    (directory() / "victim").write_text(own_name(dist.get_rank()))
    (directory() / "died").write_text(str(time.monotonic()))
    die(way)


def told(call):
    """In a survivor: the text of the error that `call` must raise, and for how long the victim had been dead then."""
    text = message_of(call, dist.DistBackendError)
    took = time.monotonic() - float((directory() / "died").read_text())
    return text, took


def check_told(text, took, place, operation="allreduce #"):
    """Rank, host, pid, last operation, within a second."""
    victim = (place / "victim").read_text()
    assert victim in text, (victim, text)
    assert operation in text, text
    assert "quoit_comm_" not in text, "a name of the library, which Python has not: " + text
    assert took < 1 + 0.5 * SLOW, (took, text)


def join(rank, size, hosts):
    """A file is a store that does not die with a rank, and lies on all these hosts."""
    dist.init_process_group("quoit", init_method=f"file://{directory()}/store", rank=rank, world_size=size)
    assert quoit.describe(as_dict=True)["hosts"] == hosts


def worker(rank, size):
    way, hosts, fork = argument()
    join(rank, size, hosts)
    group = dist.new_group()
    dist.all_reduce(torch.ones(10))
    dist.all_reduce(torch.ones(10), group=group)
    meet("all", rank, size)
    if rank == VICTIM:
        if fork and os.fork() == 0:
            while not (directory() / "end").exists() and os.path.isdir(directory()):
                time.sleep(0.02)
            os._exit(0)
        confess(way)
    both = [told(lambda: [dist.all_reduce(torch.ones(10), group=each) for _ in range(2)]) for each in (None, group)]
    (directory() / "end").touch()
    return both


STATUS = {"_exit": 3, "kill": -9, "segfault": -11, "abort": -6}


@pytest.mark.parametrize(
    "way, ranks, fork",
    in_part(
        itertools.product(STATUS, [[2], [1, 1]], [False, True]),
        ("kill", [2], True), ("kill", [1, 1], True), ("_exit", [2], True), ("_exit", [1, 1], False), ("segfault", [2], False), ("segfault", [1, 1], True), ("abort", [2], True),
    ),
    ids=str,
)
def test_death(tmp_path, way, ranks, fork):
    """On one host and on two; alone, or with a forked child that lives on."""
    with hosts_of(ranks) as hosts:
        first, victim = start(2, worker, backend=None, argument=[way, len(ranks), fork], hosts=hosts, directory=tmp_path)
    assert victim.status == STATUS[way], victim
    assert first.status == 0, first
    (text, took), (of_group, _) = first.result
    check_told(text, took, tmp_path)
    check_told(of_group, took, tmp_path)


def worker_core(rank, size):
    """The victim's core file may be of any size, and hold what is shared with others: all but what files hold already."""
    hosts = argument()
    join(rank, size, hosts)
    for count in (1, 1000, 5000000):
        dist.all_reduce(torch.ones(count))
    meet("all", rank, size)
    if rank == VICTIM:
        (directory() / "cores").mkdir()
        os.chdir(directory() / "cores")
        Path("/proc/self/coredump_filter").write_text("0x3b")
        confess("core")
    return told(lambda: [dist.all_reduce(torch.ones(10)) for _ in range(2)])


@pytest.mark.parametrize("ranks", in_part([[3], [2, 1]], [3]), ids=str)
def test_core(tmp_path, ranks):
    """Written to the end before the others are told: what is shared, here 3 GiB, is not part of it."""
    with hosts_of(ranks) as hosts:
        answers = start(3, worker_core, backend=None, argument=len(ranks), hosts=hosts, directory=tmp_path, env={"QUOIT_ARENA_SIZE": "1G"})
    assert [rank.status for rank in answers] == [0, -signal.SIGABRT, 0], answers
    for rank in (answers[0], answers[2]):
        check_told(*rank.result, tmp_path)
    written = list((tmp_path / "cores").iterdir())
    elsewhere = Path("/proc/sys/kernel/core_pattern").read_text()[0] in "|/" or resource.getrlimit(resource.RLIMIT_CORE)[1] == 0
    assert len(written) == (not elsewhere), written
    for core in written:
        assert core.stat().st_size < 300 << 20, core.stat()
        core.unlink()


def worker_when(rank, size):
    when, hosts = argument()
    join(rank, size, hosts)
    meet("all", rank, size)
    if rank == VICTIM and when == "before":
        confess("kill")
    if rank == VICTIM:
        threading.Timer(0.1, confess, ["kill"]).start()

    sizes = random.Random(1)

    def work():
        while True:
            dist.all_reduce(torch.ones(sizes.randrange(1, 200000)))

    return told(work)


@pytest.mark.parametrize(
    "when, ranks", in_part(itertools.product(["before", "during"], [[3], [2, 1], [8], [4, 4]]), ("before", [2, 1]), ("before", [8]), ("during", [3]), ("during", [4, 4])), ids=str
)
def test_death_when(tmp_path, when, ranks):
    """Before anything was called, and in the middle of it; of up to eight ranks."""
    with hosts_of(ranks) as hosts:
        answers = start(sum(ranks), worker_when, backend=None, argument=[when, len(ranks)], hosts=hosts, directory=tmp_path)
    for rank in answers:
        if rank.number == VICTIM:
            assert rank.status == -signal.SIGKILL, rank
            continue
        assert rank.status == 0, rank
        check_told(*rank.result, tmp_path)


def worker_bystanders(rank, size):
    """Ranks 1 and 3 have a group, of which 3 dies; 0 and 2 have another, which works on."""
    join(rank, size, argument())
    groups = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    mine = groups[rank % 2]
    dist.all_reduce(torch.ones(10), group=mine)
    meet("all", rank, size)
    if rank == 3:
        confess("kill")
    if rank == 1:
        answer = told(lambda: [dist.all_reduce(torch.ones(10), group=mine) for _ in range(2)])
        (directory() / "heard").touch()
        return answer
    rounds, more = 0, True
    while more:  # until both have seen that the third one has heard
        tensor = torch.full((1000,), 1.0 if (directory() / "heard").exists() else 0.0)
        dist.all_reduce(tensor, group=mine)
        assert tensor[0] == tensor[-1]
        rounds, more = rounds + 1, tensor[0] < 2
    text, _ = told(lambda: [dist.all_reduce(torch.ones(10)) for _ in range(2)])
    return text, rounds


@pytest.mark.parametrize("ranks", [[4], [2, 2]], ids=["one host", "two hosts"])
def test_bystanders(tmp_path, ranks):
    with hosts_of(ranks) as hosts:
        zero, one, two, three = start(4, worker_bystanders, backend=None, argument=len(ranks), hosts=hosts, directory=tmp_path)
    assert [zero.status, one.status, two.status, three.status] == [0, 0, 0, -signal.SIGKILL], [zero, one, two, three]
    check_told(*one.result, tmp_path)
    for rank in (zero, two):
        text, rounds = rank.result
        assert rounds > 1
        check_told(text, 0, tmp_path, "barrier #1")


def worker_hungry(rank, size):
    """One rank may have 128 MiB more than it has now, and wants ever more."""
    join(rank, size, 1)
    dist.all_reduce(torch.ones(10))
    if rank == VICTIM:
        (directory() / "group").write_text(memory_group(os.getpid(), 128 << 20))
        (directory() / "victim").write_text(own_name(rank))
    meet("limited", rank, size)
    if not (directory() / "group").read_text():
        return None

    def work():
        kept = []
        while True:
            tensor = torch.ones(1 << 20)
            dist.all_reduce(tensor)
            if rank == VICTIM:
                kept.append(tensor)

    return message_of(work, dist.DistBackendError), time.monotonic()


def test_out_of_memory(tmp_path):
    """The kernel kills it, as the limit of a container makes it."""
    seen = []

    def watch(processes):
        end = time.monotonic() + 50 * SLOW
        while processes[VICTIM].poll() is None and time.monotonic() < end:
            time.sleep(0.002)
        seen.append(time.monotonic())

    answers = start(3, worker_hungry, backend=None, meanwhile=watch, directory=tmp_path)
    group = (tmp_path / "group").read_text()
    if not group:
        pytest.skip("no control group for memory can be made here")
    os.rmdir(group)
    for rank in answers:
        if rank.number == VICTIM:
            assert rank.status == -signal.SIGKILL, rank
            continue
        assert rank.status == 0, rank
        text, at = rank.result
        check_told(text, at - seen[0], tmp_path)


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


def worker_apart(rank, size):
    victim, method = argument()
    dist.init_process_group("quoit", init_method=method, rank=rank, world_size=size)
    assert quoit.describe(as_dict=True)["hosts"] == 2
    dist.all_reduce(torch.ones(10))
    meet("all", rank, size)
    if rank == victim:
        confess("kill")
    return told(lambda: [dist.all_reduce(torch.ones(10)) for _ in range(2)])


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_killed_hosts_apart(tmp_path, victim):
    """Rank 0 serves the store and leads its host, rank 1 does neither, rank 2 leads the other host."""
    with hosts_of([2, 2]) as hosts:
        ranks = start(4, worker_apart, backend=None, argument=[victim, f"tcp://{hosts.address(0)}:{free_port()}"], hosts=hosts, directory=tmp_path)
    assert ranks[victim].status == -signal.SIGKILL, ranks
    for rank in ranks:
        if rank.number == victim:
            continue
        assert rank.status == 0, rank
        check_told(*rank.result, tmp_path)
