# SPDX-License-Identifier: Apache-2.0
"""Going on with the survivors: ranks are killed in the middle of training, the others go on in a smaller group, with right results."""

import datetime
import os
import signal
import time

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import quoit
from launcher import argument, directory, free_port, hosts_of, in_part, message_of, run, start

SIZE = 300000


def check_all(ranks, size, me, groups=True):
    """Collectives, point to point, objects and, while PyTorch's store lives, groups of the new default group."""
    assert dist.get_rank() == me and dist.get_world_size() == size and dist.get_backend() == "quoit"
    tensor = torch.full((SIZE,), float(ranks[me]))
    dist.all_reduce(tensor)
    assert (tensor == sum(ranks)).all()
    got = [None] * size
    dist.all_gather_object(got, ranks[me])
    assert got == ranks
    if size > 1:
        ring = torch.zeros(1)
        work = dist.isend(torch.tensor([float(me)]), (me + 1) % size)
        dist.recv(ring, (me - 1) % size)
        work.wait()
        assert ring.item() == (me - 1) % size
    if not groups:
        return
    group = dist.new_group(list(range(size)))
    tensor = torch.ones(10)
    dist.all_reduce(tensor, group=group)
    assert (tensor == size).all() and dist.get_group_rank(group, me) == me


def passed(group, rank, size):
    """A barrier that all have left, not only reached: after it an abort disturbs none of them."""
    dist.barrier(group)
    (directory() / f"passed{rank}").touch()
    end = time.monotonic() + 30
    while not all((directory() / f"passed{n}").exists() for n in range(size)):
        assert time.monotonic() < end
        time.sleep(0.005)


def train(model, steps, seed):
    """Each rank has another batch; all ranks must hold the same parameters afterwards."""
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(4, 8, generator=generator)).square().mean().backward()
        optimizer.step()


def worker_killed(rank, size):
    """Allreduces without end; the launcher kills some ranks in the middle of them."""
    victims, _, store_dies = argument()
    other = dist.new_group()
    dist.barrier(other)
    (directory() / f"pid{rank}").write_text(str(os.getpid()))
    while True:
        try:
            tensor = torch.ones(SIZE)
            dist.all_reduce(tensor)
            assert (tensor == size).all()
        except dist.DistBackendError as error:
            text = str(error)
            break
    assert any(f"rank {victim} (" in text for victim in victims), text
    while True:  # a victim may die after the first agreement
        group = quoit.shrink(timeout=30)
        assert group is dist.group.WORLD
        try:
            dist.barrier()
        except dist.DistBackendError:
            continue
        if dist.get_world_size() == size - len(victims):
            break
    ranks = [each for each in range(size) if each not in victims]
    check_all(ranks, len(ranks), ranks.index(rank), groups=not store_dies)
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(8, 3))
    train(model, 5, rank)
    weights = [torch.empty(3, 8) for _ in ranks]
    dist.all_gather(weights, model.module.weight.detach())
    assert all(torch.equal(each, weights[0]) for each in weights)
    return dist.get_rank()


def kill(victims, place):
    """Once all have begun to work, which they say in files at `place`."""

    def meanwhile(processes):
        end = time.monotonic() + 60
        while time.monotonic() < end and not all((place / f"pid{n}").exists() for n in range(len(processes))):
            if any(process.poll() is not None for process in processes):
                return  # it failed, and the test tells why
            time.sleep(0.02)
        time.sleep(0.05)
        for victim in victims:
            processes[victim].send_signal(signal.SIGKILL)

    return meanwhile


@pytest.mark.parametrize(
    "ranks, victims",
    in_part(
        [([3], [1]), ([3], [0]), ([2, 1], [0]), ([4], [1, 2]), ([2, 2], [0, 3]), ([2, 2], [2, 3]), ([2, 2], [0, 1]), ([4, 4], [0, 4, 5])],
        ([4], [1, 2]), ([2, 2], [0, 3]), ([2, 2], [2, 3]),
    ),
    ids=str,
)
def test_killed(tmp_path, ranks, victims):
    """Several hosts are network namespaces. Leaders and others, all of a host, and the rank that serves PyTorch's store, which then is gone."""
    store_dies = 0 in victims
    with hosts_of(ranks) as hosts:
        method = f"tcp://{hosts.address(0) if hosts else '127.0.0.1'}:{free_port()}" if store_dies else f"file://{tmp_path}/store"
        said = [victims, [len(ranks), method], store_dies]
        answers = start(sum(ranks), worker_killed_of, argument=said, meanwhile=kill(victims, tmp_path), directory=tmp_path, backend=None, hosts=hosts)
    left = [rank for rank in answers if rank.number not in victims]
    assert [rank.result for rank in left] == list(range(len(left))), answers
    assert all(rank.status == 0 for rank in left), answers


def worker_killed_of(rank, size):
    _, (hosts, method), _ = argument()
    dist.init_process_group("quoit", init_method=method, rank=rank, world_size=size)
    assert quoit.describe(as_dict=True)["hosts"] == hosts
    result = worker_killed(rank, size)
    dist.destroy_process_group()
    return result


def worker_aborted_group(rank, size):
    """A sub-group is aborted and goes on; the default group has no part in it."""
    text = message_of(lambda: quoit.shrink(), ValueError)
    assert "has not failed" in text, text
    group = dist.new_group([0, 1, 2])
    passed(group, rank, size)
    if rank == 1:
        group.abort()
    message_of(lambda: [dist.all_reduce(torch.ones(3), group=group) for _ in range(2)], dist.DistBackendError)
    new = quoit.shrink(group, timeout=datetime.timedelta(seconds=30))
    assert dist.get_process_group_ranks(new) == [0, 1, 2]
    assert dist.get_rank(new) == rank and dist.get_world_size(new) == 3
    tensor = torch.ones(5)
    dist.all_reduce(tensor, group=new)
    assert (tensor == size).all()
    tensor = torch.full((2,), float(rank))
    dist.broadcast(tensor, 2, group=new)
    assert (tensor == 2).all()
    dist.all_reduce(torch.ones(5))
    dist.destroy_process_group(new)
    dist.barrier()


def worker_left_out(rank, size):
    """Rank 2 comes too late: it is told."""
    passed(dist.group.WORLD, rank, size)
    if rank == 0:
        dist.group.WORLD.abort()
    message_of(lambda: [dist.all_reduce(torch.ones(3)) for _ in range(2)], dist.DistBackendError)
    if rank == 2:
        while not (directory() / "gone").exists():
            time.sleep(0.02)
        text = message_of(lambda: quoit.shrink(timeout=30), dist.DistBackendError)
        assert "went on without this rank" in text, text
        return None
    quoit.shrink(timeout=3 * float(os.environ.get("TEST_SLOW", "1")))
    check_all([0, 1], 2, rank)
    (directory() / "gone").touch()
    return dist.get_world_size()


def test_aborted_group():
    run(3, worker_aborted_group)


def test_left_out():
    assert run(3, worker_left_out) == [2, 2, None]
