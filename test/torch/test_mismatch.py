# SPDX-License-Identifier: Apache-2.0
"""Ranks that call different things, on one host and on two: each of them raises, and is told both calls and who made them."""

import os

import pytest
import torch
import torch.distributed as dist

import quoit
from launcher import argument, directory, message_of, run

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
    os.environ["QUOIT_HOST_LABEL"] = f"host {rank % hosts}"
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


@pytest.mark.parametrize("hosts", [1, 2])
def test_mismatch(hosts):
    for number, texts in enumerate(run(3, worker, backend=None, argument=hosts)):
        for kind, (_, _, words) in KINDS.items():
            for word in ["different operations", "rank 1 (", "but rank ", *words]:
                assert word in texts[kind], (number, kind, word, texts[kind])
