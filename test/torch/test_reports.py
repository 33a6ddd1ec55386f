# SPDX-License-Identifier: Apache-2.0
"""What users of other backends have reported, and what becomes of it here: mistakes that look like success, and errors that do not help.

Each says what was done, and what the other backends make of it.
"""

import datetime
import os
import sys
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from launcher import BACKEND, directory, meet, message_of, run, start

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))
from hosts import Hosts, why_unavailable  # noqa: E402


def seconds(number):
    return datetime.timedelta(seconds=number)


def worker_one_tensor_for_all(rank, size):
    """[tensor] * n as outputs: what stays is what the last rank gave, on all ranks alike (NCCL: anything; Gloo: so, too)."""
    found = []
    for count in [3, 1000, 300000]:
        tensor, own = torch.zeros(count), torch.full((count,), rank + 1.0)
        dist.all_gather([tensor] * size, own)
        found.append(sorted(set(tensor.tolist())))
        dist.all_to_all([tensor] * size, [own] * size)
        found.append(sorted(set(tensor.tolist())))
    assert found == [[float(size)]] * 6, found

    memory = torch.zeros(size + 3)  # each rank's part of four overlaps the next one's
    dist.all_gather([memory[r : r + 4] for r in range(size)], torch.full((4,), rank + 1.0))
    assert memory.tolist() == [1.0, 2.0] + [3.0] * 4, memory
    if rank == 1:
        dist.gather(torch.full((2,), 2.0), [memory[:2]] * size, dst=1)
        assert memory[:2].tolist() == [3.0, 3.0], memory
    else:
        dist.gather(torch.full((2,), rank + 1.0), dst=1)


def worker_neighbours(rank, size):
    rows = torch.arange(size * 2.0).view(size, 2)
    dist.all_gather(list(rows.unbind(0))[::-1], rows[rank].clone())
    assert rows.flatten().tolist() == [4.0, 5.0, 2.0, 3.0, 0.0, 1.0], rows


def test_one_tensor_for_all():
    """One warning a process; none of tensors that are only neighbours."""
    for rank in start(3, worker_one_tensor_for_all):
        assert rank.status == 0 and rank.output.count("all_gather: output tensors share memory") == 1, rank
    for rank in start(3, worker_neighbours):
        assert rank.status == 0 and rank.output == "", rank


def worker_freed_storage(rank, size):
    """Memory that FSDP has freed, or that ends too early (Gloo: abort of the process; memory of others is overwritten)."""
    freed, short, strided = torch.ones(1000), torch.ones(1000), torch.ones(30, 30).t()
    part = freed[10:20]
    freed.untyped_storage().resize_(0)
    short.untyped_storage().resize_(3996)
    strided.untyped_storage().resize_(3500)
    text = message_of(lambda: dist.all_reduce(freed), ValueError)
    assert "all_reduce: tensor of sizes [1000] needs a storage of 4000 bytes, but its own holds 0" in text, text
    text = message_of(lambda: dist.broadcast(short, 0), ValueError)
    assert "needs a storage of 4000 bytes, but its own holds 3996" in text, text
    text = message_of(lambda: dist.all_gather([torch.empty(30, 30) for _ in range(size)], strided), ValueError)
    assert "all_gather: input of sizes [30, 30] needs a storage of 3600 bytes" in text, text
    text = message_of(lambda: dist.send(part, 1 - rank), ValueError)
    assert "send: tensor of sizes [10] needs a storage of 80 bytes" in text, text
    start = short[:999]
    dist.all_reduce(start)
    assert start.sum().item() == 999 * size


def test_freed_storage():
    run(2, worker_freed_storage)


def worker_limits(rank, size):
    """No time at all is a mistake (Gloo: "Connection reset by peer"); a microsecond is a very short limit, not none."""
    for limit in [0, -5]:
        text = message_of(lambda limit=limit: dist.new_group([0, 1], timeout=seconds(limit)), ValueError)
        assert f"a timeout of {limit} s is over before anything can happen" in text, text
    text = message_of(lambda: dist.group.WORLD.set_timeout(seconds(0)), ValueError)
    assert "set_timeout: a timeout of 0 s" in text, text
    dist.group.WORLD.set_timeout(datetime.timedelta.max)
    short = dist.new_group([0, 1], timeout=datetime.timedelta(microseconds=1))
    assert short._get_backend(torch.device("cpu")).options.timeout == datetime.timedelta(milliseconds=1)
    long = dist.new_group([0, 1], timeout=datetime.timedelta.max)
    exact = dist.new_group([0, 1], timeout=seconds(0.7))
    assert exact._get_backend(torch.device("cpu")).options.timeout == seconds(0.7)
    tensor = torch.ones(3)
    dist.all_reduce(tensor, group=long)
    assert tensor.tolist() == [2.0] * 3, tensor


def test_limits():
    run(2, worker_limits)


def worker_late(rank, size):
    """Who comes to a collective that the others have given up is told so, though all that it needs lies there."""
    for count in [1, 5000]:
        group = dist.new_group([0, 1, 2], timeout=seconds(0.5))
        if rank < 2:
            text = message_of(lambda: dist.all_reduce(torch.ones(count), group=group), dist.DistBackendError)
            assert "timed out after 500 ms: waiting for " in text and "rank 2 (" in text, text
        meet(f"{count} ", rank, size)
        if rank == 2:
            text = message_of(lambda: dist.all_reduce(torch.ones(count), group=group), dist.DistBackendError)
            assert "timed out after 500 ms: waiting for " in text and "told by rank" in text, text


def test_late():
    run(3, worker_late)


def worker_names_nobody_else(rank, size):
    """Who has come is not named as missing, also not when its own wait has just ended and its signals are taken back."""
    for round_ in range(6):
        group = dist.new_group()
        dist.barrier(group)
        group.set_timeout(seconds(0.25))
        meet(f"round {round_} ", rank, size)
        if rank < 2:
            (directory() / f"came {round_} {rank}").write_text(str(time.monotonic()))
            begun = time.monotonic()
            text = message_of(lambda group=group: dist.all_reduce(torch.ones(10), group=group), dist.DistBackendError)
            assert "rank 2" in text, f"round {round_}: {text}"
        meet(f"end of {round_} ", rank, size)
        if rank < 2 and f"waiting for rank {1 - rank}" in text:
            late = float((directory() / f"came {round_} {1 - rank}").read_text()) - begun
            assert late > 0.2, f"round {round_}: {late:.3f} s later than this rank came the other one: {text}"


def test_names_nobody_else():
    run(3, worker_names_nobody_else)


def worker_send_to_each_other(rank, size):
    """Both send a large tensor first and time out: each is told what the other waits for."""
    group = dist.new_group([0, 1], timeout=seconds(0.5))
    dist.barrier(group)
    text = message_of(lambda: dist.send(torch.ones(1000000), 1 - rank, group=group, tag=3), dist.DistBackendError)
    assert "no matching recv came; its newest call is barrier #1, which ended; it waits for its send to rank" in text, text
    assert "with tag 3" in text, text


def test_send_to_each_other():
    run(2, worker_send_to_each_other)


def join(rank, size, limit):
    """A group of `size` ranks by a file that all processes of the test have in common."""
    store = dist.FileStore(str(directory() / "store"), 3)
    dist.init_process_group(BACKEND, store=store, rank=rank, world_size=size, timeout=seconds(limit))


def worker_same_rank(rank, size):
    """Three processes as ranks 0, 1 and 1: the first of the two learns of the second while it waits (Gloo: "Wait timeout")."""
    meet("started", rank, size)  # on a busy machine one of them may be forked late
    return message_of(lambda: join(min(rank, 1), 3, 1.5), dist.DistError)


def test_same_rank():
    texts = run(3, worker_same_rank, backend=None)
    assert "1 of 3 ranks did not come" in texts[0] and "rank 2" in texts[0], texts
    first, second = sorted(texts[1:], key=lambda text: "another process" not in text)
    assert "another process, " in first and " came as rank 1 after this one, " in first and "a rank of its own" in first, texts
    # its own deadline, or that of rank 0, which may be the earlier one
    assert "rank 0 has not come" in second or "1 of 3 ranks did not come" in second, texts


def worker_one_too_many(rank, size):
    """Three processes of a world of two: the one that comes last is told who has its place."""
    if rank < 2:
        join(rank, 2, 30)
        dist.all_reduce(torch.ones(3))
    meet("joined", rank, size)
    text = message_of(lambda: join(1, 2, 0.5), dist.DistError) if rank == 2 else ""
    meet("refused", rank, size)
    return text, os.getpid()


def test_one_too_many():
    (_, _), (_, pid), (text, _) = run(3, worker_one_too_many, backend=None)
    assert "holds a roster of an earlier attempt only, in which rank 1 is another process (" in text and f"pid {pid})" in text, text


def worker_store_dies(rank, size):
    """The process that serves the store ends while others wait in it (Gloo: "Connection reset by peer")."""
    store = dist.TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), None, rank == 0, seconds(20), wait_for_workers=False)
    store.add("here", 1)
    meet("connected", rank, size)
    if rank == 0:
        os._exit(0)
    return message_of(lambda: dist.init_process_group(BACKEND, store=store, rank=rank, world_size=size, timeout=seconds(20)), dist.DistError)


def test_store_dies():
    _, one = start(2, worker_store_dies, backend=None)
    assert one.status == 0, one
    assert "the store of the PyTorch process group: " in one.result and "rank 0 or the launcher, may have ended" in one.result, one.result


def worker_other_size_before(rank, size):
    """What a world of another size has left in the store is no word of this one, also while the rank that left it has not come yet."""
    store = dist.FileStore(str(directory() / "store"), -1)  # which nobody deletes, as after a crash
    for number, (members, late) in enumerate([([0, 1, 2], 0), ([0, 1], 0), ([0, 1, 2], 0), ([1, 0, 2], 2), ([2, 0], 0)]):
        if rank in members:
            if rank == late:
                time.sleep(0.2)
            dist.init_process_group(BACKEND, store=store, rank=members.index(rank), world_size=len(members), timeout=seconds(20))
            tensor = torch.ones(3)
            dist.all_reduce(tensor)
            assert tensor[0].item() == len(members), f"world {number}: {tensor}"
            dist.destroy_process_group()
        meet(f"{number} ", rank, size)


def test_other_size_before():
    run(3, worker_other_size_before, backend=None)


def worker_local_groups(rank, size):
    """use_local_synchronization: members have made different numbers of groups before, of which PyTorch makes the name (Gloo: never meet)."""
    for number in range(2):
        for members in [[0, 2], [1], [1, 0], [2, 1]]:
            if rank in members:
                group = dist.new_group(members, use_local_synchronization=True, timeout=seconds(20))
                tensor = torch.ones(3)
                dist.all_reduce(tensor, group=group)
                assert tensor[0].item() == len(members), f"{members}, {number}: {tensor}"
                if number == 1 and rank == members[0]:
                    dist.destroy_process_group(group)


def test_local_groups():
    run(3, worker_local_groups)


def worker_by_itself(rank, size):
    """A group that torch.distributed does not know of, as ProcessGroupGloo can be made, and as torch.distributed._dist2 makes it."""
    import quoit

    store = dist.FileStore(str(directory() / "store"), size)
    group = quoit.ProcessGroupQuoit(store, rank, size, seconds(20))
    tensor = torch.full((5,), rank + 1.0)
    group.allreduce([tensor]).wait()
    assert tensor.tolist() == [3.0] * 5, tensor
    text = message_of(lambda: quoit.ProcessGroupQuoit(store, rank, size, timeout=seconds(0)), ValueError)
    assert "a timeout of 0 s" in text, text
    assert "there is no store" in message_of(lambda: quoit.ProcessGroupQuoit(None, rank, size), ValueError)
    group.shutdown()

    try:
        from torch.distributed import _dist2
    except ImportError:  # PyTorch 2.14 has it no more
        return
    other = _dist2.new_group("quoit", seconds(20), "cpu")
    outputs = [torch.empty(5) for _ in range(size)]
    other.allgather([outputs], [torch.full((5,), float(rank))]).wait()
    assert [output[0].item() for output in outputs] == [0.0, 1.0], outputs
    assert not dist.is_initialized()
    other.shutdown()


def test_by_itself():
    run(2, worker_by_itself, backend=None)


def worker_threads_as_ranks(rank, size):
    """Ranks as threads of one process: they share an engine and cannot be each other's peers, which is an error at once."""
    import threading

    import quoit

    store = dist.HashStore()
    texts = [""] * 3

    def join_as(number):
        texts[number] = message_of(lambda: quoit.ProcessGroupQuoit(store, number, 3, seconds(20)))

    threads = [threading.Thread(target=join_as, args=[number]) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for text in texts:
        assert " are threads of one process (" in text and "each rank needs a process of its own" in text, texts


def test_threads_as_ranks():
    run(1, worker_threads_as_ranks, backend=None)


class StoreInPython(dist.Store):
    """What a user's own store must have for Gloo: no check()."""

    def __init__(self, inner):
        super().__init__()
        self.inner, self.waits = inner, 0

    def set(self, key, value):
        self.inner.set(key, value)

    def get(self, key):
        return self.inner.get(key)

    def add(self, key, value):
        return self.inner.add(key, value)

    def wait(self, keys, timeout=seconds(300)):
        self.waits += 1
        self.inner.wait(keys, timeout)


class StoreWithoutWait(StoreInPython):
    def wait(self, keys):
        raise AssertionError("PyTorch gives a timeout")


def worker_store_in_python(rank, size):
    """A store that is a class in Python, where rank 1 comes late; and what is wrong with one is said, in its own words."""
    files = dist.FileStore(str(directory() / "store"), size)
    if rank == 1:
        time.sleep(0.3)
    store = StoreInPython(files)
    dist.init_process_group(BACKEND, store=store, rank=rank, world_size=size, timeout=seconds(20))
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    assert tensor.tolist() == [2.0] * 3 and store.waits > 0, (tensor, store.waits)
    dist.destroy_process_group()

    lone = StoreInPython(dist.HashStore())
    call = lambda: dist.init_process_group(BACKEND, store=lone, rank=0, world_size=2, timeout=seconds(0.6))  # noqa: E731
    text = message_of(call, dist.DistNetworkError)
    assert "1 of 2 ranks did not come" in text, text
    bad = StoreWithoutWait(dist.HashStore())
    text = message_of(lambda: dist.init_process_group(BACKEND, store=bad, rank=0, world_size=2, timeout=seconds(20)), TypeError)
    assert "positional argument" in text, text


def test_store_in_python():
    run(2, worker_store_in_python, backend=None)


def worker_host_name(rank, size):
    """A host's name that is no text: Python cannot read it, but what an error or describe() says can be read."""
    import ctypes
    import json

    import quoit

    name = b'a"b\\c\xff\xc3\xa4\xe2\x82' if rank == 0 else b"\xed\xa0\x80"
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(0x04000000) != 0 or libc.sethostname(name, len(name)) != 0:  # CLONE_NEWUTS
        return "cannot name a host"
    join(rank, size, 20)
    dist.all_reduce(torch.ones(3))
    found = quoit.describe(as_dict=True)
    assert json.loads(json.dumps(found)) == found and found["hosts"] == 1 and "a\"b" in quoit.describe(), found
    group = dist.new_group([0, 1], timeout=seconds(0.3))
    if rank == 1:
        text = message_of(lambda: dist.barrier(group), dist.DistBackendError)
        assert "waiting for rank 0 (a" in text and "?" in text and "?" in quoit.last_error(group), text
    meet("asked", rank, size)
    dist.destroy_process_group()
    return ""


def test_host_name():
    why = run(2, worker_host_name, backend=None)[0]
    if why:
        pytest.skip(why)


def worker_sparse_coalesced(rank, size):
    """A sparse sum takes several steps, so it cannot be one of those that start together (NCCL: "not supported"); it did, and read no memory of its own."""
    group, sparse, dense = dist.group.WORLD, torch.sparse_coo_tensor([[rank]], [1.0], (4,)), torch.ones(3)
    group._start_coalescing(torch.device("cpu"))
    group.allreduce([dense])
    text = message_of(lambda: group.allreduce([sparse]), NotImplementedError)
    assert "call it outside of the coalescing" in text, text
    group._end_coalescing(torch.device("cpu")).wait()
    dist.all_reduce(sparse)
    assert dense.tolist() == [2.0] * 3 and sparse.to_dense().tolist() == [1.0, 1.0, 0.0, 0.0], (dense, sparse)


def test_sparse_coalesced():
    run(2, worker_sparse_coalesced)


def worker_sharded_tensor(rank, size):
    """A ShardedTensor of the CPU where there is no CUDA ("Torch not compiled with CUDA enabled"), on ranks that have no shard, too; as FSDP1
    saves parameters that have fewer rows than there are ranks. Its module is loaded when the group is there."""
    from torch.distributed._shard import sharded_tensor
    from torch.distributed._shard.sharding_spec import EnumerableShardingSpec, ShardMetadata
    from torch.distributed.fsdp import FullyShardedDataParallel, StateDictType

    spec = EnumerableShardingSpec([ShardMetadata([0, 0], [3, 4], "rank:0/cpu"), ShardMetadata([3, 0], [2, 4], "rank:1/cpu")])
    whole = sharded_tensor.ones(spec, 5, 4)
    out = torch.zeros(5, 4) if rank == size - 1 else None
    whole.gather(size - 1, out)
    assert out is None or out.sum().item() == 20, out
    assert whole.device == torch.device("cpu") and whole.to("cpu") is whole
    doubles = whole.to(torch.float64)
    assert doubles.dtype == torch.float64 and doubles._process_group is whole._process_group
    if out is not None:
        out = out.double()
    doubles.gather(size - 1, out)

    def build(value):
        norm = torch.nn.LayerNorm(2)
        torch.nn.init.constant_(norm.weight, value)
        return FullyShardedDataParallel(norm, device_id=torch.device("cpu"))

    saved, loaded = build(3.0), build(5.0)
    with FullyShardedDataParallel.state_dict_type(saved, StateDictType.SHARDED_STATE_DICT):
        state = saved.state_dict()
    with FullyShardedDataParallel.state_dict_type(loaded, StateDictType.SHARDED_STATE_DICT):
        loaded.load_state_dict(state)
    with FullyShardedDataParallel.summon_full_params(loaded):
        assert loaded.module.weight.tolist() == [3.0, 3.0]


def test_sharded_tensor():
    run(3, worker_sharded_tensor)


def worker_no_route(rank, size):
    """A host without a route to the other (Gloo: "Connection refused" of 127.0.0.1): the error says what was tried, though the time is short."""
    return message_of(lambda: join(rank, size, 1.5), dist.DistError)


def test_no_route():
    why = why_unavailable()
    if why:
        pytest.skip(why)
    with Hosts([1, 1], families="4") as hosts:
        hosts.call(1, ["ip", "route", "flush", "table", "main"])
        texts = run(2, worker_no_route, backend=None, hosts=hosts)
        addresses = [hosts.ipv4(host) for host in range(2)]
    for text in texts:
        assert "it does not answer; tcp, not connected yet" in text, texts
    assert f"tried {addresses[1]}" in texts[0] or f"tried {addresses[0]}" in texts[1], (texts, addresses)
