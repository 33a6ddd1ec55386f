# SPDX-License-Identifier: Apache-2.0
"""Ranks that call different things, or were started differently, on one host and on two (network namespaces): each of them raises, and is told both
sides and who they are."""

import datetime

import pytest
import torch
import torch.distributed as dist

import quoit
from launcher import argument, directory, hosts_of, message_of, own_name, run

# What rank 1 does instead of what the others do, and what the text must contain of the two calls.
KINDS = {
    "collective": (lambda group: dist.all_reduce(torch.ones(10), group=group), lambda group: dist.barrier(group), ["allreduce #", "barrier #"]),
    "dtype": (
        lambda group: dist.all_reduce(torch.ones(10), group=group),
        lambda group: dist.all_reduce(torch.ones(10, dtype=torch.int32), group=group),
        ["float32", "int32"],
    ),
    "count": (lambda group: dist.all_reduce(torch.ones(10), group=group), lambda group: dist.all_reduce(torch.ones(11), group=group), ["10 elements", "11 elements"]),
    "op": (lambda group: dist.all_reduce(torch.ones(10), group=group), lambda group: dist.all_reduce(torch.ones(10), dist.ReduceOp.MAX, group=group), ["sum", "max"]),
    "root": (lambda group: dist.broadcast(torch.ones(10), 0, group=group), lambda group: dist.broadcast(torch.ones(10), 1, group=group), ["root 0", "root 1"]),
}


def worker(rank, size):
    hosts = argument()
    dist.init_process_group("quoit", init_method=f"file://{directory()}/store", rank=rank, world_size=size)
    assert quoit.describe(as_dict=True)["hosts"] == hosts
    texts = {}
    for kind, (right, wrong, _) in KINDS.items():
        group = dist.new_group(group_desc=kind)

        def both(call=wrong if rank == 1 else right, group=group):
            dist.all_reduce(torch.ones(10), group=group)  # a rank that is late may hear of the others' quarrel in here
            call(group)
            dist.barrier(group)  # at that call, or at the rank's next

        texts[kind] = message_of(both, dist.DistBackendError)
    dist.all_reduce(torch.ones(10))  # the default group goes on
    dist.barrier()
    return texts


HOSTS = pytest.mark.parametrize("ranks", [[3], [2, 1]], ids=str)


def answers_of(ranks, worker):
    """Of three ranks, so many on each host."""
    with hosts_of(ranks) as hosts:
        return run(3, worker, backend=None, argument=len(ranks), hosts=hosts)


@HOSTS
def test_mismatch(ranks):
    for number, texts in enumerate(answers_of(ranks, worker)):
        for kind, (_, _, words) in KINDS.items():
            for word in ["different operations", "rank 1 (", "but rank ", *words]:
                assert word in texts[kind], (number, kind, word, texts[kind])


def worker_group_order(rank, size):
    """The same members in another order: the text says in which."""
    dist.init_process_group("quoit", init_method=f"file://{directory()}/store", rank=rank, world_size=size)
    group = dist.new_group([0, 1, 2] if rank < 2 else [1, 0, 2], sort_ranks=False, timeout=datetime.timedelta(seconds=20))
    text = message_of(lambda: [dist.barrier(group) for _ in range(2)], dist.DistBackendError)
    dist.barrier()  # the default group goes on
    return text, own_name(rank)


@HOSTS
def test_group_order(ranks):
    answers = answers_of(ranks, worker_group_order)
    for text, _ in answers:
        for word in ["of different members", "of ranks 0, 1, 2", "of ranks 1, 0, 2", answers[2][1]]:
            assert word in text, (word, text)


class ForgingStore(dist.Store):
    """Changes rank 1's record on its way into the store: what another release would have written."""

    def __init__(self, inner, was, becomes):
        super().__init__()
        self.inner, self.was, self.becomes = inner, was, becomes

    def set(self, key, value):
        value = value if isinstance(value, bytes) else value.encode()
        if key.endswith("quoit/record/1"):
            assert self.was in value, value
            value = value.replace(self.was, self.becomes)
        self.inner.set(key, value)

    def get(self, key):
        return self.inner.get(key)

    def add(self, key, value):
        return self.inner.add(key, value)

    def wait(self, keys, timeout=datetime.timedelta(seconds=300)):
        self.inner.wait(keys, timeout)


def worker_version(rank, size):
    own = quoit.__version__
    other = "9" + own[1:]
    store = ForgingStore(dist.FileStore(str(directory() / "store"), size), own.encode(), other.encode())
    limit = datetime.timedelta(seconds=20)
    text = message_of(lambda: dist.init_process_group("quoit", store=store, rank=rank, world_size=size, timeout=limit), dist.DistError)
    assert f"has loaded quoit {other}" in text and f"rank 0 quoit {own}" in text, text
    return text, own_name(rank)


@HOSTS
def test_version(ranks):
    answers = answers_of(ranks, worker_version)
    for text, _ in answers:
        assert answers[1][1] in text, (answers[1][1], text)


def worker_size(rank, size):
    """Rank 1 believes in one rank more."""
    limit = datetime.timedelta(seconds=20)
    method = f"file://{directory()}/store"
    believed = size + (rank == 1)
    text = message_of(lambda: dist.init_process_group("quoit", init_method=method, rank=rank, world_size=believed, timeout=limit), dist.DistError)
    return text, own_name(rank)


@HOSTS
def test_size(ranks):
    answers = answers_of(ranks, worker_size)
    for text, _ in answers:
        assert f"{answers[1][1]} was started for a world of 4 ranks, but rank 0 for one of 3" in text, text
