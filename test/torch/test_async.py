# SPDX-License-Identifier: Apache-2.0
"""Operations that nobody waits for yet, or ever: works, futures, limits, signals."""

import datetime
import gc
import signal
import time

import torch
import torch.distributed as dist

from launcher import directory, message_of, run, start


def worker_works(rank, size):
    total = float(sum(range(size)))
    tensors = [torch.full((n,), float(rank)) for n in (1, 100, 100000) * 20]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    for work, tensor in zip(reversed(works), reversed(tensors)):
        assert work.wait() is True
        assert (tensor == total).all()
        assert work.is_completed() and work.is_success()
        assert work.result()[0] is tensor or work.result()[0].data_ptr() == tensor.data_ptr()

    work = dist.barrier(async_op=True)
    while not work.is_completed():
        time.sleep(0.001)
    work.wait()
    work.wait()


def worker_futures(rank, size):
    total = float(sum(range(size)))
    tensor = torch.full((1000,), float(rank))
    future = dist.all_reduce(tensor, async_op=True).get_future()
    assert torch.equal(future.wait()[0], torch.full((1000,), total))

    # A callback that itself waits for a future, as PowerSGD's hook does.
    second = torch.full((10,), 1.0)

    def then(previous):
        inner = dist.all_reduce(second, async_op=True).get_future()
        return inner.wait()[0] + previous.value()[0][0]

    chained = dist.all_reduce(torch.full((10,), float(rank)), async_op=True).get_future().then(then)
    assert (chained.wait() == size + total).all()

    # Many at once, completed by nobody's wait().
    futures = [dist.all_reduce(torch.full((n,), 1.0), async_op=True).get_future() for n in range(1, 50)]
    for future in torch.futures.wait_all(futures):
        assert (future[0] == size).all()

    # A future that is asked for after the end.
    work = dist.all_reduce(torch.full((3,), 1.0), async_op=True)
    work.wait()
    assert (work.get_future().wait()[0] == size).all()
    outputs = [torch.zeros(2) for _ in range(size)]
    got = dist.all_gather(outputs, torch.full((2,), float(rank)), async_op=True).get_future().wait()
    assert [float(x[0]) for x in got] == list(range(size))


def worker_dropped(rank, size):
    """Works and tensors dropped while they run: nothing may be written to memory that others have by then."""
    for _ in range(20):
        dist.all_reduce(torch.full((50000,), float(rank)), async_op=True)
        gc.collect()
        guard = [torch.full((50000,), -1.0) for _ in range(4)]
        dist.all_reduce(torch.ones(1))
        assert all((x == -1).all() for x in guard)
    view = torch.zeros(40, 30)
    view[:, ::2] = 1
    dist.all_reduce(view[:, ::2], async_op=True)
    dist.barrier()
    end = time.monotonic() + 20
    while not (view[:, ::2] == size).all():  # staged: written back by whoever ends it
        assert time.monotonic() < end
        time.sleep(0.01)
    assert (view[:, 1::2] == 0).all()


def worker_wait_limit(rank, size):
    group = dist.new_group(timeout=datetime.timedelta(seconds=60))
    dist.all_reduce(torch.ones(1), group=group)
    if rank == 0:
        begin = time.monotonic()
        work = dist.all_reduce(torch.ones(9), group=group, async_op=True)
        text = message_of(lambda: work.wait(datetime.timedelta(seconds=1)), dist.DistBackendError)
        assert 0.9 < time.monotonic() - begin < 20, "came too early or too late"
        assert "Timed out" in text and "all_reduce" in text and "1000 ms" in text.replace("1000ms", "1000 ms"), text
        future = dist.all_reduce(torch.ones(1), async_op=True).get_future()
        future.wait()
    else:
        dist.all_reduce(torch.ones(1), async_op=True).wait()
    # The other groups go on.
    tensor = torch.ones(5)
    dist.all_reduce(tensor)
    assert (tensor == size).all()


def worker_group_limit(rank, size):
    group = dist.new_group(timeout=datetime.timedelta(seconds=1))
    dist.barrier()  # not of the group, for which a second may be too short
    if rank == 0:
        begin = time.monotonic()
        text = message_of(lambda: dist.all_reduce(torch.ones(9), group=group), dist.DistBackendError)
        assert 0.9 < time.monotonic() - begin < 20
        assert " Timed out " in text, text
        import quoit

        assert quoit.last_error(group), "the group keeps its first error"
        future = None
        try:
            future = dist.all_reduce(torch.ones(9), group=group, async_op=True).get_future()
        except dist.DistBackendError:
            pass
        if future is not None:
            message_of(future.wait, Exception)
    dist.barrier()


def worker_setters(rank, size):
    groups = [dist.new_group(timeout=datetime.timedelta(seconds=60)) for _ in range(3)]
    for group in groups:
        dist.barrier(group)
    if rank == 0:
        begin = time.monotonic()
        dist.distributed_c10d._set_pg_timeout(datetime.timedelta(seconds=1), groups[0])
        message_of(lambda: dist.all_reduce(torch.ones(1), group=groups[0]), dist.DistBackendError)
        groups[1].set_timeout(datetime.timedelta(seconds=1))
        message_of(lambda: dist.all_reduce(torch.ones(1), group=groups[1]), dist.DistBackendError)
        options = dist.AllreduceOptions()
        options.timeout = datetime.timedelta(seconds=1)
        message_of(lambda: groups[2].allreduce([torch.ones(1)], options).wait(), dist.DistBackendError)
        assert 2.5 < time.monotonic() - begin < 40
    dist.barrier()


def test_works():
    run(3, worker_works)


def test_futures():
    run(2, worker_futures)


def worker_nested_callbacks(rank, size):
    """Callbacks that end further operations, and so run further callbacks, on the thread that watches: it must still be told of new ones."""
    alone = [dist.new_group([each]) for each in range(size)][rank]  # whose operations end at once

    def callback(future):
        for _ in range(3):
            inner = dist.all_reduce(torch.ones(1), group=alone, async_op=True).get_future()
            inner.then(lambda done: dist.all_reduce(torch.ones(1), group=alone, async_op=True).get_future().wait()).wait()
        return future.value()[0]

    for _ in range(400):
        if rank == 1:
            time.sleep(0.001)  # rank 0's is watched by then
        future = dist.all_reduce(torch.ones(10), async_op=True).get_future().then(callback)
        assert (future.wait() == size).all()


def test_nested_callbacks():
    run(2, worker_nested_callbacks, limit=30)


def test_dropped():
    run(2, worker_dropped)


def test_wait_limit():
    run(2, worker_wait_limit)


def test_group_limit():
    run(2, worker_group_limit)


def test_setters():
    run(2, worker_setters, limit=90)


def worker_interrupted_while_creating(rank, size):
    method = f"file://{directory()}/store"  # a TCP store would itself wait for all ranks, deaf to signals
    dist.init_process_group("quoit", init_method=method, rank=rank, world_size=size, timeout=datetime.timedelta(seconds=60))


def test_interrupted_while_creating(tmp_path):
    def interrupt(processes):
        end, store = time.monotonic() + 25, tmp_path / "store"
        while not (store.exists() and b"quoit/record/0" in store.read_bytes()) and time.monotonic() < end:
            time.sleep(0.02)  # once its record is there it waits for the other
        processes[0].send_signal(signal.SIGINT)

    (rank,) = start(
        2, worker_interrupted_while_creating, backend=None, ranks=[0], meanwhile=interrupt, limit=40, directory=tmp_path
    )
    assert rank.status not in (None, 0), rank
    assert "KeyboardInterrupt" in rank.output, rank
