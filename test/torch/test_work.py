# SPDX-License-Identifier: Apache-2.0
"""What an operation's handle tells, what the profiler shows of it, and who else hears of its end."""

import datetime
import threading
import time

import torch
import torch.distributed as dist

from launcher import SLOW, directory, message_of, run


def backend_of(group=None):
    return (group or dist.distributed_c10d._get_default_group())._get_backend(torch.device("cpu"))


def worker_answers(rank, size):
    work = dist.all_reduce(torch.ones(1000), async_op=True)
    assert work.wait() is True
    assert work.is_completed() and work.is_success() and work.exception() is None
    assert 0 <= work._get_duration() < 60000
    assert work._get_op_type() == 1
    assert (work.result()[0] == size).all()
    work.synchronize()
    work.block_current_stream()
    assert work.get_future_result().wait() == 0
    assert "only a receive has a source" in message_of(work.source_rank, RuntimeError)
    if hasattr(work, "_get_sequence_number"):  # PyTorch 2.14
        assert work._get_sequence_number() == 1
        assert work.timeout == backend_of().options.timeout

    tensor = torch.zeros(3)
    if rank == 0:
        work = dist.irecv(tensor)
        for question in (work._get_duration, work._source_rank):
            assert "wait first" in message_of(question, RuntimeError)
        dist.barrier()
        work.wait()
        assert work._source_rank() == 1 and (tensor == 7).all() and work._get_duration() > 0
    else:
        dist.barrier()
        dist.send(torch.full((3,), 7.0), 0)


def worker_failed(rank, size):
    """Of an operation that ended in an error everybody who asks hears it."""
    from torch._C._distributed_c10d import ErrorType

    group = dist.new_group(timeout=datetime.timedelta(seconds=60), group_desc="tensor parallel")
    backend = backend_of(group)
    dist.barrier(group)
    assert backend.get_error() == ErrorType.SUCCESS
    if rank == 0:
        work = dist.all_reduce(torch.ones(5), group=group, async_op=True)
        future, outcome = work.get_future(), work.get_future_result()
        message_of(lambda: work.wait(datetime.timedelta(milliseconds=200)), dist.DistBackendError)
        text = message_of(work.wait, dist.DistBackendError)
        assert 'all_reduce in group "tensor parallel"' in text, text
        assert work.is_completed() and not work.is_success()
        assert text.splitlines()[0][:40] in message_of(future.wait, RuntimeError)
        assert outcome.wait() in (1, 2)
        assert backend.get_error() != ErrorType.SUCCESS
        text = message_of(lambda: dist.all_reduce(torch.ones(5), group=group), dist.DistBackendError)
        assert 'all_reduce in group "tensor parallel"' in text, text
    dist.barrier()
    # PyTorch's own words for groups without a description are not repeated.
    text = message_of(lambda: dist.all_reduce(torch.ones(3 + rank)), dist.DistBackendError)
    assert "different operations" in text and "in group" not in text, text


def worker_sequence(rank, size):
    backend = backend_of()
    begin = backend._get_sequence_number_for_group()
    for _ in range(3):
        dist.all_reduce(torch.ones(2))
    dist.barrier(async_op=True).wait()
    if rank == 0:
        dist.send(torch.ones(1), 1)
    elif rank == 1:
        dist.recv(torch.ones(1), 0)
    assert backend._get_sequence_number_for_group() == begin + 4
    group = dist.distributed_c10d._get_default_group()
    group._set_sequence_number_for_group()  # PyTorch has no number for a group of a backend from outside
    assert group._get_sequence_number_for_group() == begin + 4
    everybody = [None] * size
    number = backend._get_sequence_number_for_group()
    dist.all_gather_object(everybody, number)
    assert everybody == [number] * size


def coalesced(calls):
    with dist._coalescing_manager(device=torch.device("cpu")):
        calls()


def profiled(rank, size):
    """Every operation once: (title, shapes of its inputs)."""
    other, x = 1 - rank, torch.ones(2, 4)
    pair = [torch.ones(2, 4), torch.ones(2, 4)]
    first = rank == 0
    sparse = torch.sparse_coo_tensor([[0, 2]], [1.0, 2.0], (5,))
    options = dist.AllreduceCoalescedOptions()
    for title, shapes, call in (
        ("all_reduce", [[2, 4]], lambda: dist.all_reduce(x)),
        ("broadcast", [[2, 4]], lambda: dist.broadcast(x, 0)),
        ("reduce", [[2, 4]], lambda: dist.reduce(x, 0)),
        ("all_gather", [[2, 4]], lambda: dist.all_gather(pair, torch.ones(2, 4))),
        ("_all_gather_base", [[2, 4]], lambda: dist.all_gather_into_tensor(torch.ones(4, 4), x)),
        ("reduce_scatter", [[2, 4]] * 2, lambda: dist.reduce_scatter(torch.ones(2, 4), pair)),
        ("_reduce_scatter_base", [[2, 4]], lambda: dist.reduce_scatter_tensor(torch.ones(1, 4), x)),
        ("all_to_all", [[2, 4]], lambda: dist.all_to_all_single(torch.ones(2, 4), x)),
        ("all_to_all", [[2, 4]] * 2, lambda: dist.all_to_all([torch.ones(2, 4), torch.ones(2, 4)], pair)),
        ("gather", [[2, 4]], lambda: dist.gather(x, pair if first else None, 0)),
        ("scatter", [[2, 4]] * (2 if first else 1), lambda: dist.scatter(torch.ones(2, 4), pair if first else None, 0)),
        ("send" if first else "recv", [[2, 4]], lambda: dist.send(x, 1) if first else dist.recv(x, 0)),
        ("send" if first else "recvAnySource", [[2, 4]], lambda: dist.send(x, 1) if first else dist.recv(x)),
        ("all_reduce", [[2, 4]] * 2, lambda: backend_of().allreduce_coalesced(pair, options).wait()),
        ("sparse_all_reduce", None, lambda: dist.all_reduce(sparse)),
        ("barrier", None, dist.barrier),
        ("coalesced", None, lambda: coalesced(lambda: (dist.isend(x, other), dist.irecv(torch.ones(2, 4), other)))),
    ):
        yield f"quoit:{title}", shapes, call


def worker_profiler(rank, size):
    from torch.profiler import ProfilerActivity, profile

    for title, shapes, call in profiled(rank, size):
        dist.barrier()
        with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as recorded:
            call()
        found = [event for event in recorded.events() if event.name == title]
        assert len(found) == 1, (title, [event.name for event in recorded.events()])
        if shapes is not None:
            given = found[0].input_shapes
            assert given == shapes, (title, given, shapes)


def worker_hook(rank, size):
    group = dist.new_group()
    seen = []
    group._register_on_completion_hook(lambda info: seen.append((info.seq, info.op_type, info.active_duration, info.time_finished)))
    assert group._has_hooks()
    group._enable_collectives_timing()
    dist.all_reduce(torch.ones(3), group=group)
    dist.all_reduce(torch.ones(30000), group=group, async_op=True)  # nobody waits for it
    dist.broadcast(torch.ones(3), 0, group=group, async_op=True).wait()
    group._wait_for_pending_works()
    assert sorted(entry[0] for entry in seen) == [1, 2, 3], seen
    assert all(entry[2].total_seconds() >= 0 for entry in seen), seen
    assert "can have one only" in message_of(lambda: group._register_on_completion_hook(print), RuntimeError)
    dist.barrier()

    failing = dist.new_group()

    def hook(info):
        raise ValueError("on purpose")

    failing._register_on_completion_hook(hook)
    tensor = torch.ones(3)
    dist.all_reduce(tensor, group=failing)
    assert (tensor == size).all(), "an error of the hook is none of the operation"
    failing._wait_for_pending_works()
    dist.barrier()


def worker_lock(rank, size):
    """While rank 0 waits, another thread of its interpreter must be able to do what rank 1 is waiting for."""
    for number, call in enumerate((
        lambda: dist.all_reduce(torch.ones(3)),
        lambda: dist.all_reduce(torch.ones(3), async_op=True).wait(),
        lambda: dist.all_reduce(torch.ones(3), async_op=True).get_future().wait(),
        lambda: dist.recv(torch.ones(3), 1) if rank == 0 else dist.send(torch.ones(3), 0),
        lambda: dist.monitored_barrier(),
    )):
        mark = directory() / f"mark{number}"
        if rank == 0:
            waiting = threading.Event()

            def write():
                waiting.wait()
                time.sleep(0.02)  # rank 0 is inside by now
                mark.touch()

            thread = threading.Thread(target=write)
            thread.start()
            waiting.set()
            call()
            thread.join()
        else:
            end = time.monotonic() + 30 * SLOW
            while not mark.exists():
                assert time.monotonic() < end, f"call {number} keeps the interpreter's lock while it waits"
                time.sleep(0.005)
            call()


def worker_extra_time(rank, size):
    """Rank 0 gives itself more time; that ends with the first operation begun afterwards."""
    group = dist.new_group(timeout=datetime.timedelta(seconds=60 * SLOW))
    dist.barrier(group)
    if rank == 0:
        group.set_timeout(datetime.timedelta(milliseconds=200))
        backend_of(group)._add_ephemeral_timeout(datetime.timedelta(seconds=60 * SLOW))
        dist.all_reduce(torch.ones(3), group=group)
        begin = time.monotonic()
        text = message_of(lambda: dist.all_reduce(torch.ones(3), group=group), dist.DistBackendError)
        assert "Timed out" in text and time.monotonic() - begin < 50 * SLOW, text
    else:
        time.sleep(0.5)
        dist.all_reduce(torch.ones(3), group=group)
    dist.barrier()


def worker_gather_single(rank, size):
    options = dist.GatherOptions()
    options.rootRank = size - 1
    for shape in ((3, 2), (1,), (0, 4)):
        output = torch.full((size * shape[0], *shape[1:]), -1.0) if rank == size - 1 else torch.empty(0)
        backend_of().gather_single(output, torch.full(shape, float(rank)), options).wait()
        if rank == size - 1:
            assert torch.equal(output, torch.cat([torch.full(shape, float(r)) for r in range(size)]))
    if rank == size - 1:
        text = message_of(lambda: backend_of().gather_single(torch.empty(1), torch.empty(3), options), ValueError)
        assert f"has 1 elements, expected {3 * size}" in text, text


def test_answers():
    run(2, worker_answers)


def test_failed():
    run(2, worker_failed)


def test_sequence():
    run(3, worker_sequence)


def test_profiler():
    run(2, worker_profiler)


def test_hook():
    run(2, worker_hook)


def test_interpreter_lock():
    run(2, worker_lock, limit=90)


def test_extra_time():
    run(2, worker_extra_time)


def test_gather_single():
    run(3, worker_gather_single)
