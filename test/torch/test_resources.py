# SPDX-License-Identifier: Apache-2.0
"""What a container may withhold, seen from PyTorch. The table is docs/resources.md; test_comm_resources has all its rows."""

import datetime
import errno

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import quoit
from launcher import SLOW, argument, directory, message_of, run
from restrict import deny, leave_descriptors

IMPORTS = ["torch._dynamo"]  # what DistributedDataParallel imports


def init(rank, size):
    limit = datetime.timedelta(seconds=20 * SLOW)
    dist.init_process_group("quoit", init_method=f"file://{directory()}/store", rank=rank, world_size=size, timeout=limit)


def use(rank, size):
    tensor = torch.full((300000,), float(rank))
    dist.all_reduce(tensor)
    assert (tensor == sum(range(size))).all()
    groups = [dist.new_group() for _ in range(5)]
    for group in groups:
        dist.barrier(group)
    works = [dist.all_reduce(torch.ones(1000), async_op=True) for _ in range(3)]
    for work in works:
        assert (work.get_future().wait()[0] == size).all()
    dist.destroy_process_group()


def worker_descriptors(rank, size):
    leave_descriptors(64)
    init(rank, size)
    use(rank, size)


def worker_threads(rank, size):
    """DDP lives of futures; without a thread whoever asks for one waits for it."""
    deny("clone3", errno.ENOSYS)
    deny("clone", errno.EAGAIN)
    init(rank, size)
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(8, 3))
    for _ in range(3):
        model(torch.ones(4, 8)).sum().backward()
    use(rank, size)


def worker_memory(rank, size):
    if rank == argument():
        deny("memfd_create", errno.EPERM)
    init(rank, size)
    assert quoit.describe(as_dict=True)["hosts"] == 2
    use(rank, size)


def worker_nothing_works(rank, size):
    if rank == argument():
        deny("eventfd2", errno.EPERM)
    return message_of(lambda: init(rank, size), RuntimeError)


def worker_cannot_bind(rank, size):
    if rank == argument():
        deny("bind", errno.EADDRNOTAVAIL, third=16)  # bytes of an IPv4 address: listing the interfaces needs a bind, too
    return message_of(lambda: init(rank, size), RuntimeError)


def test_descriptors():
    run(4, worker_descriptors, backend=None)


def test_threads():
    run(2, worker_threads, backend=None)


def test_one_without_shared_memory():
    run(3, worker_memory, backend=None, argument=1)


@pytest.mark.parametrize("who", [0, 1])
def test_one_cannot_take_part(who):
    for text in run(2, worker_nothing_works, backend=None, argument=who):
        assert f"rank {who} (" in text and "cannot take part" in text and "eventfd" in text, text


@pytest.mark.parametrize("who", [0, 1])
def test_one_cannot_bind_its_address(who):
    """The address of an interface that was named for it, and gone when it was to be used: its name stands in one error, on all ranks."""
    for text in run(2, worker_cannot_bind, backend=None, argument=who, env={"QUOIT_TRANSPORT": "tcp", "QUOIT_INTERFACE": "lo", "QUOIT_IP_FAMILY": "4"}):
        assert f"rank {who} (" in text and "tcp: cannot bind 127.0.0.1" in text and "of interface lo: Cannot assign requested address" in text, text
