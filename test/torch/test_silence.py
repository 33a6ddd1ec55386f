# SPDX-License-Identifier: Apache-2.0
"""A rank that is stuck in another group: the time limit of the operation holds, whichever way it was given, and the text tells what
that rank does."""

import datetime
import time

import pytest
import torch
import torch.distributed as dist

from launcher import SLOW, argument, message_of, run

LIMIT = 0.8


def worker_stuck(rank, size):
    how = argument()
    other = dist.new_group([0, 2], group_desc="other")
    dist.barrier()
    if rank == 2:
        return message_of(lambda: dist.barrier(other), dist.DistBackendError)  # rank 0 ends it
    world = dist.group.WORLD
    limit = datetime.timedelta(seconds=LIMIT)
    options = dist.AllreduceOptions()
    if how == "call":
        options.timeout = limit
    elif how == "group":
        world.set_timeout(limit)
    begin = time.monotonic()
    text = message_of(lambda: world.allreduce([torch.ones(10)], options).wait(), dist.DistBackendError)
    took = time.monotonic() - begin
    if rank == 0:
        other.abort()
    return [text, took]


@pytest.mark.parametrize("how", ["call", "group"])
def test_stuck_in_another_group(how):
    first, second, stuck = run(3, worker_stuck, argument=how)
    for text, took in (first, second):
        assert "rank 2 (" in text and "imed out" in text and "newest call is barrier" in text, text
        assert "now it is in barrier #1 of" in text, text
        assert took < LIMIT + 0.2 * SLOW, (took, text)
    assert max(first[1], second[1]) >= LIMIT, (first, second)
    assert "abort" in stuck, stuck
