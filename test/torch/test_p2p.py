# SPDX-License-Identifier: Apache-2.0
"""Sends and receives, batches of them, and the barrier that names who is missing."""

import datetime
import threading
import time

import torch
import torch.distributed as dist

from launcher import message_of, run

SECONDS = lambda n: datetime.timedelta(seconds=n)  # noqa: E731


def worker_tags(rank, size):
    for count in (0, 1, 1000, 300000):
        if rank == 0:
            works = [dist.isend(torch.full((count,), 10.0 + tag), 1, tag=tag) for tag in (1, 2, 3)]
            for work in works:
                work.wait()
        elif rank == 1:
            buffers = {tag: torch.zeros(count) for tag in (3, 1, 2)}
            works = [dist.irecv(buffer, 0, tag=tag) for tag, buffer in buffers.items()]
            for work in works:
                work.wait()
            assert all((buffer == 10 + tag).all() for tag, buffer in buffers.items())
    if rank == 0:
        works = [dist.isend(torch.tensor([float(i)]), 1, tag=5) for i in range(50)]
        for work in works:
            work.wait()
    elif rank == 1:
        for i in range(50):
            buffer = torch.zeros(1)
            assert dist.recv(buffer, 0, tag=5) == 0
            assert buffer.item() == i
    dist.barrier()


def worker_any_source(rank, size):
    if rank == 0:
        got = {}
        for _ in range(2 * (size - 1)):
            buffer = torch.zeros(3)
            got.setdefault(dist.recv(buffer), []).append(buffer[0].item())
        assert got == {r: [10.0 * r, 10.0 * r + 1] for r in range(1, size)}, got
        pg = dist.distributed_c10d._get_default_group()
        buffer = torch.zeros(3)
        work = pg.recv_anysource([buffer], 7)
        message_of(work._source_rank, RuntimeError) if not work.is_completed() else None
        work.wait()
        assert work._source_rank() == size - 1
    else:
        for i in range(2):
            dist.send(torch.full((3,), 10.0 * rank + i), 0)
        if rank == size - 1:
            dist.send(torch.ones(3), 0, tag=7)
    dist.barrier()  # rank 0 must not take what comes next


def worker_batches(rank, size):
    for count in (1, 100000):
        outgoing = [torch.full((count,), float(100 * rank + peer)) for peer in range(size)]
        incoming = [torch.zeros(count) for _ in range(size)]
        operations = []
        for peer in range(size):  # the own rank too, and the sends first: they must not block the receives
            operations.append(dist.P2POp(dist.isend, outgoing[peer], peer))
            operations.append(dist.P2POp(dist.irecv, incoming[peer], peer))
        works = dist.batch_isend_irecv(operations)
        assert len(works) == len(operations), works  # one an operation, as PyTorch's documentation says
        for work in works:
            work.wait()
        assert all((incoming[peer] == 100 * peer + rank).all() for peer in range(size))

    # A batch that an exception left open does not swallow what comes after it.
    try:
        with dist._coalescing_manager(device=torch.device("cpu"), async_ops=True):
            raise KeyError("left")
    except KeyError:
        pass
    tensor = torch.ones(300000)
    dist.all_reduce(tensor)
    assert (tensor == size).all()
    sent = dist.isend(torch.ones(3), (rank + 1) % size)
    buffer = torch.zeros(3)
    dist.irecv(buffer, (rank - 1) % size).wait()
    sent.wait()
    assert (buffer == 1).all()


def worker_bad_batch(rank, size):
    """An operation of a batch is refused: that is an error, and what comes after it is done (NCCL: collectives do nothing from then on)."""
    batch = [dist.P2POp(dist.irecv, torch.zeros(3), (rank - 1) % size), dist.P2POp(dist.isend, torch.eye(3).to_sparse(), (rank + 1) % size)]
    message_of(lambda: dist.batch_isend_irecv(batch), RuntimeError)
    dist.send(torch.ones(3), (rank + 1) % size)  # for the receive that was begun
    tensor, parts = torch.ones(3), torch.zeros(3 * size)
    dist.all_reduce(tensor)
    dist.all_gather_into_tensor(parts, tensor)
    assert (tensor == size).all() and (parts == size).all(), (tensor, parts)


def worker_batches_of_threads(rank, size):
    """Threads with batches of their own, of one group (NCCL: KeyError)."""
    errors = []

    def exchange(tag):
        try:
            for number in range(20):
                sent, got = torch.full((1000 + number,), float(100 * rank + tag)), torch.zeros(1000 + number)
                batch = [dist.P2POp(dist.isend, sent, (rank + 1) % size, tag=tag), dist.P2POp(dist.irecv, got, (rank - 1) % size, tag=tag)]
                for work in dist.batch_isend_irecv(batch):
                    work.wait()
                assert (got == 100 * ((rank - 1) % size) + tag).all(), (got, tag)
        except BaseException as error:
            errors.append(repr(error))

    threads = [threading.Thread(target=exchange, args=[tag]) for tag in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors


def worker_self(rank, size):
    pg = dist.distributed_c10d._get_default_group()
    buffer = torch.zeros(3)
    first = pg.send([torch.full((3,), 5.0)], rank, 0)
    pg.recv([buffer], rank, 0).wait()
    first.wait()
    assert (buffer == 5).all()


def worker_objects(rank, size):
    if rank == 0:
        dist.send_object_list([{"k": 3}, "text"], 1)
    elif rank == 1:
        objects = [None, None]
        dist.recv_object_list(objects, 0)
        assert objects == [{"k": 3}, "text"]


def worker_monitored_passes(rank, size):
    for _ in range(5):
        dist.all_reduce(torch.ones(10))
        dist.monitored_barrier(timeout=SECONDS(20))
        dist.monitored_barrier(timeout=SECONDS(20), wait_all_ranks=True)
    group = dist.new_group([0, size - 1])
    dist.monitored_barrier(group, timeout=SECONDS(20))


def worker_monitored_reports(rank, size):
    """Ranks 1 and 3 do not come; later all do, and the group is in order."""
    dist.barrier()  # rank 2 may come a second late at most
    for wait_all in (False, True):
        if rank == 0:
            begin = time.monotonic()
            text = message_of(lambda: dist.monitored_barrier(timeout=SECONDS(1), wait_all_ranks=wait_all), RuntimeError)
            assert ("Ranks 1, 3" if wait_all else "Rank 1") + " failed to pass monitoredBarrier in 1000 ms" in text, text
            assert time.monotonic() - begin > 0.9
        elif rank == 2:
            text = message_of(lambda: dist.monitored_barrier(timeout=SECONDS(1), wait_all_ranks=wait_all), RuntimeError)
            assert "Rank 2 successfully reached monitoredBarrier, but received errors while waiting for send/recv from rank 0" in text
        dist.barrier()
        tensor = torch.ones(10)
        dist.all_reduce(tensor)
        assert (tensor == size).all()
        dist.monitored_barrier(timeout=SECONDS(20))
    if rank == 0:
        text = message_of(lambda: dist.monitored_barrier(timeout=SECONDS(0)), RuntimeError)
        assert "Rank 0 timed out in monitoredBarrier" in text, text


def worker_all(rank, size):
    for worker in (worker_tags, worker_any_source, worker_batches, worker_bad_batch, worker_batches_of_threads, worker_self, worker_objects, worker_monitored_passes):
        worker(rank, size)


def test_two_ranks():
    run(2, worker_all)


def test_three_ranks():
    run(3, worker_all)


def test_monitored_reports():
    run(4, worker_monitored_reports)
