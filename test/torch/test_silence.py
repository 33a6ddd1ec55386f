# SPDX-License-Identifier: Apache-2.0
"""Ranks that do not come: stopped, away, stuck in another group, behind a cut cable. The time limit of the operation holds, whichever way it was
given, and the text tells who is missing, what that rank did last, and what it does instead. Several hosts are network namespaces."""

import datetime
import itertools
import os
import signal
import time

import pytest
import torch
import torch.distributed as dist

import quoit
from launcher import SLOW, argument, directory, hosts_of, in_part, meet, message_of, own_name, run, wait_for

LIMIT = 0.8
SILENT = 2
LATE = 0.2 + 0.3 * SLOW  # 0.2 are promised, on a machine that has nothing else to do


HOSTS = [[3], [1, 2], [1, 1, 1]]


def timed(call):
    begin = time.monotonic()
    text = message_of(call, dist.DistBackendError)
    return text, time.monotonic() - begin


def limited(how):
    """An allreduce of the default group whose limit was given in this way."""
    world, limit = dist.group.WORLD, datetime.timedelta(seconds=LIMIT)
    options = dist.AllreduceOptions()
    if how == "call":
        options.timeout = limit
    elif how == "group":
        world.set_timeout(limit)
    return lambda: world.allreduce([torch.ones(10)], options).wait()


def check(answers, *words):
    """Each was told in time, not early, and of the silent one. Who begins first waits all of its time; the other may be told."""
    for text, took in answers:
        for word in ["timed out after 800 ms: waiting for ", f"rank {SILENT} (", *words]:
            assert word in text, (word, text)
        assert text.count(f"rank {SILENT} (") == 1, f"named more than once: {text}"
        assert took < LIMIT + LATE, (took, text)
    assert max(took for _, took in answers) >= LIMIT, answers


def worker_stuck(rank, size):
    how = argument()
    other = dist.new_group([0, SILENT], group_desc="other")
    dist.barrier()
    if rank == SILENT:
        return message_of(lambda: dist.barrier(other), dist.DistBackendError)  # rank 0 ends it
    answer = timed(limited(how))
    if rank == 0:
        other.abort()
    return answer


@pytest.mark.parametrize("how, ranks", in_part(itertools.product(["call", "group"], HOSTS), ("call", [3]), ("call", [1, 1, 1]), ("group", [1, 2])), ids=str)
def test_stuck_in_another_group(how, ranks):
    with hosts_of(ranks) as hosts:
        first, second, stuck = run(3, worker_stuck, argument=how, hosts=hosts)
    check([first, second], "newest call is barrier", "now it is in barrier #1 of")
    assert "abort" in stuck, stuck


def worker_away(rank, size):
    hosts = argument()
    dist.init_process_group("quoit", init_method=f"file://{directory()}/store", rank=rank, world_size=size)
    assert quoit.describe(as_dict=True)["hosts"] == hosts
    dist.broadcast(torch.ones(7), 0)
    dist.all_reduce(torch.ones(10))
    call = limited("call")
    if rank == SILENT:
        (directory() / "silent").write_text(own_name(rank))
    meet("all", rank, size)
    answer = None
    if rank != SILENT:
        (directory() / f"begins{rank}").touch()
        while not (directory() / "go").exists():  # the silent one is so by then
            time.sleep(0.002)
        answer = timed(call)
        (directory() / f"told{rank}").touch()
    while not all((directory() / f"told{each}").exists() for each in range(size) if each != SILENT):
        time.sleep(0.01)
    if rank == SILENT:  # it comes, too late
        answer = timed(lambda: [dist.all_reduce(torch.ones(10)) for _ in range(2)])
    return answer


@pytest.mark.parametrize("how, ranks", in_part(itertools.product(["away", "stopped"], HOSTS), ("away", [3]), ("away", [1, 1, 1]), ("stopped", [1, 2])), ids=str)
def test_never_calls(tmp_path, how, ranks):
    def meanwhile(processes):
        others = [each for each in range(3) if each != SILENT]
        wait_for(lambda: all((tmp_path / f"begins{each}").exists() for each in others))
        if how == "stopped":
            processes[SILENT].send_signal(signal.SIGSTOP)
        try:
            (tmp_path / "go").touch()
            wait_for(lambda: all((tmp_path / f"told{each}").exists() for each in others))
        finally:
            if how == "stopped":
                processes[SILENT].send_signal(signal.SIGCONT)

    with hosts_of(ranks) as hosts:
        first, second, silent = run(3, worker_away, backend=None, argument=len(ranks), meanwhile=meanwhile, hosts=hosts, directory=tmp_path)
    check([first, second], (tmp_path / "silent").read_text())
    for text, _ in (first, second):  # one that is stopped and alone on its host answers nobody: then what it must have been in is told
        answers = how == "away" or len(ranks) < 3
        assert "its newest call is allreduce #3" in text or not answers and "it does not answer" in text and "that ended here is allreduce #3" in text, text
    assert "timed out after 800 ms" in silent[0] and "told by rank" in silent[0], silent


def worker_stall(rank, size):
    dist.all_reduce(torch.ones(10))
    meet("all", rank, size)
    if rank == SILENT:
        (directory() / "silent").write_text(own_name(rank))
        while not (directory() / "warned").exists():
            time.sleep(0.01)
    dist.all_reduce(torch.ones(10))


@pytest.mark.parametrize("ranks", in_part(HOSTS, [3], [1, 2]), ids=str)
def test_stall(tmp_path, ranks):
    """A warning names who does not come, while the others still wait for it; and the collective goes on when it does."""
    warning = "] allreduce #3 (float32, sum, 10 elements) has stood still for "

    def lines():
        return [line for output in tmp_path.glob("output*") for line in output.read_text().splitlines() if warning in line]

    def meanwhile(_):
        wait_for(lambda: len(lines()) > 1, otherwise="nobody warns")
        (tmp_path / "warned").touch()

    with hosts_of(ranks) as hosts:
        run(3, worker_stall, env={"QUOIT_STALL_WARNING": "300ms"}, meanwhile=meanwhile, hosts=hosts, directory=tmp_path)
    assert all(f"waiting for {(tmp_path / 'silent').read_text()} (" in line for line in lines()), lines()
    assert all("its newest call is allreduce #2" in line for line in lines()), lines()


def worker_cut(rank, size):
    during = argument()
    dist.init_process_group("quoit", init_method=f"file://{directory()}/store", rank=rank, world_size=size)
    assert quoit.describe(as_dict=True)["hosts"] == 2
    dist.all_reduce(torch.ones(10))
    limit = datetime.timedelta(seconds=1.5)
    dist.group.WORLD.set_timeout(limit)
    meet("all", rank, size)
    begin = 0.0

    def work():
        nonlocal begin
        while True:
            begin = time.monotonic()
            dist.all_reduce(torch.ones(100000))

    if not during:
        while not (directory() / "cut").exists():
            time.sleep(0.002)
    text = message_of(work, dist.DistBackendError)
    return text, time.monotonic() - begin, os.getpid()


DOWN, GONE, NO_WAY = "link set eth0 down", "link del eth0", "route add blackhole 10.77.0.1/32"


@pytest.mark.parametrize("how, during", in_part(itertools.product([DOWN, GONE, NO_WAY], [True, False]), (DOWN, True), (GONE, False), (NO_WAY, True)), ids=str)
def test_cut_cable(tmp_path, how, during):
    with hosts_of([2, 2], families="4") as hosts:

        def cut(processes):
            wait_for(lambda: all((tmp_path / f"all{each}").exists() for each in range(4)))
            time.sleep(0.1)  # some operations have been run
            assert hosts.call(1, ["ip", *how.split()]).returncode == 0
            (tmp_path / "cut").touch()

        answers = run(4, worker_cut, backend=None, argument=during, meanwhile=cut, hosts=hosts, directory=tmp_path)
    for rank, (text, took, _) in enumerate(answers):
        behind = [2, 3] if rank < 2 else [0, 1]
        assert "timed out after 1500 ms: waiting for " in text and "allreduce #" in text, text
        assert any(f"rank {each} (node{behind[0] // 2}, pid {answers[each][2]})" in text for each in behind), (rank, text)
        assert took < 1.5 + LATE, (took, text)
    assert max(took for _, took, _ in answers) >= 1.5, answers
