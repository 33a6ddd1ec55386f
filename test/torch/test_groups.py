# SPDX-License-Identifier: Apache-2.0
"""Ways to make groups: init methods, names of the backend, sub-groups, splits, again and again, debug mode."""

import datetime
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from launcher import HERE, SLOW, argument, directory, free_port, hosts_of, in_part, meet, message_of, run


def check(group=None):
    size, rank = dist.get_world_size(group), dist.get_rank(group)
    tensor = torch.full((100,), float(rank + 1))
    dist.all_reduce(tensor, group=group)
    assert (tensor == size * (size + 1) / 2).all(), tensor
    dist.barrier(group=group)
    everybody = [None] * size
    dist.all_gather_object(everybody, rank, group=group)
    assert everybody == list(range(size))


def worker_init_methods(rank, size):
    port = argument()  # not that of env://, whose server may still be there
    for method in ("env://", f"tcp://127.0.0.1:{port}", f"file://{directory()}/store"):
        dist.init_process_group("quoit", init_method=method, rank=rank, world_size=size)
        assert dist.get_backend() == "quoit"
        check()
        dist.destroy_process_group()
    store = dist.FileStore(str(directory() / "store2"), size)
    dist.init_process_group("quoit", store=store, rank=rank, world_size=size)
    check()
    dist.destroy_process_group()


def worker_names(rank, size):
    import quoit

    for name in ("quoit", "QUOIT", "cpu:quoit"):
        dist.init_process_group(name)
        check()
        assert "quoit" in dist.get_backend_config()
        pg = dist.distributed_c10d._get_default_group()
        backend = pg._get_backend(torch.device("cpu"))
        assert backend.name() == "quoit" and isinstance(backend, quoit.ProcessGroupQuoit)
        dist.destroy_process_group()


def worker_again(rank, size):
    """The same store each time, in which the records of the groups before are left."""
    store = dist.FileStore(str(directory() / "store"), size)
    for round_number in range(8):
        dist.init_process_group("quoit", store=store, rank=rank, world_size=size)
        tensor = torch.full((5000,), float(rank + round_number))
        dist.all_reduce(tensor)
        assert (tensor == sum(range(size)) + size * round_number).all()
        group = dist.new_group([0, size - 1])
        if rank in (0, size - 1):
            check(group)
        dist.destroy_process_group()


def worker_subgroups(rank, size):
    import quoit

    pairs = [dist.new_group([a, b]) for a in range(size) for b in range(a + 1, size)]
    for pair in pairs:
        if dist.get_rank(pair) >= 0:
            check(pair)
            continue
        for call in (quoit.describe, quoit.history, quoit.last_error, quoit.shrink):
            text = message_of(lambda call=call, pair=pair: call(pair), ValueError)
            assert f"rank {rank} is not in this group" in text, text
    assert "not a str" in message_of(lambda: quoit.describe("world"), TypeError)
    alone = dist.new_group([rank], use_local_synchronization=True)
    check(alone)
    backwards = dist.new_group(list(reversed(range(size))), sort_ranks=False)
    tensor = torch.full((3,), float(rank))
    dist.broadcast(tensor, group=backwards, group_src=0)
    assert (tensor == size - 1).all()
    many = [dist.new_group() for _ in range(60)]
    for group in many[::7]:
        check(group)
    for group in many:
        dist.destroy_process_group(group)
    check()


def worker_split(rank, size):
    import quoit

    pg = dist.distributed_c10d._get_default_group()
    backend = pg._get_backend(torch.device("cpu"))
    assert backend.supports_splitting
    half = pg.split_group(list(range(rank % 2, size, 2)), timeout=datetime.timedelta(seconds=20), group_name=f"half{rank % 2}",
                          group_desc=f"{rank % 2} of two")
    tensor = torch.full((3,), float(rank))
    half.allreduce([tensor]).wait()
    dist.barrier()  # split_group connects to rank 0's store once more: it must not have ended
    assert (tensor == sum(range(rank % 2, size, 2))).all()
    assert half.size() == len(range(rank % 2, size, 2))
    assert half.group_desc == f"{rank % 2} of two" and half.group_name == f"half{rank % 2}"
    # The group that was split keeps its own options, which PyTorch gave to the new one as they were.
    assert backend.options.group_name == dist.distributed_c10d._get_default_group().group_name
    assert backend.options.timeout != datetime.timedelta(seconds=20)
    assert half._get_backend(torch.device("cpu")).options.timeout == datetime.timedelta(seconds=20)
    alone = half.split_group([0])  # a part of a part, and nothing for who is in none
    dist.barrier()  # as above
    assert (alone is None) == (half.rank() != 0) and (alone is None or alone.size() == 1)
    half.shutdown()

    import copy

    options = quoit.Options(timeout=datetime.timedelta(seconds=33))
    assert copy.deepcopy(options).timeout == datetime.timedelta(seconds=33)
    group = dist.new_group(pg_options=options)
    assert group._get_backend(torch.device("cpu")).options.timeout == datetime.timedelta(seconds=33)
    text = message_of(lambda: dist.new_group(pg_options=dist.distributed_c10d.P2POp), TypeError)
    assert "quoit.Options" in text, text


def worker_overlapping(rank, size):
    """Groups that share ranks, with operations of all of them in flight at once; members alone make some of the groups."""
    sets = [[0, 1, 2], [1, 2, 3], [0, 3], list(range(size))]
    groups = [dist.new_group(members) for members in sets]
    mine = [(members, group) for members, group in zip(sets, groups) if rank in members]
    tensors = [torch.full((n,), float(rank)) for n in (1, 1000, 100000) for _ in mine]
    works = [dist.all_reduce(tensor, group=mine[i % len(mine)][1], async_op=True) for i, tensor in enumerate(tensors)]
    for i in reversed(range(len(works))):
        works[i].wait()
        assert (tensors[i] == sum(mine[i % len(mine)][0])).all()
    for low in (0, 2):
        if rank in (low, low + 1):
            check(dist.new_group([low, low + 1], use_local_synchronization=True))
    dist.barrier()


def worker_under_gloo(rank, size):
    dist.init_process_group("gloo")
    group = dist.new_group(backend="quoit", timeout=datetime.timedelta(seconds=30))
    import quoit

    assert "not connected yet" in quoit.describe(group)
    assert quoit.describe(group, as_dict=True)["status"] == "not connected yet"
    check(group)
    check()
    assert dist.get_backend(group) == "quoit"
    dist.destroy_process_group(group)
    check()
    dist.destroy_process_group()


def worker_over_gloo(rank, size):
    gloo = dist.new_group(backend="gloo")
    check(gloo)
    dist.monitored_barrier(gloo)
    dist.monitored_barrier()
    check()


def worker_debug_detail(rank, size):
    assert dist.get_debug_level() == dist.DebugLevel.DETAIL
    import quoit

    check()
    check(dist.new_group())
    assert "rank" in quoit.describe()
    if rank == 0:
        text = message_of(lambda: dist.all_reduce(torch.ones(3)), RuntimeError)
    else:
        text = message_of(lambda: dist.all_reduce(torch.ones(4)), RuntimeError)
    assert "Detected mismatch" in text, text


def worker_device_mesh(rank, size):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("outer", "inner"))
    check(mesh.get_group("outer"))
    check(mesh.get_group("inner"))
    flat = init_device_mesh("cpu", (size,))
    full = torch.arange(size * 6 + 3.0).reshape(-1, 3)
    tensor = distribute_tensor(full, flat, [Shard(0)])
    assert torch.equal(tensor.redistribute(flat, [Replicate()]).to_local(), full)
    assert torch.allclose(tensor.sum().full_tensor(), full.sum())
    assert mesh["inner"].get_group().size() == size // 2 and mesh["outer"].get_local_rank() == rank // (size // 2)
    both = mesh["outer", "inner"]._flatten("all")
    check(both.get_group())
    check(mesh["all"].get_group())
    matrix = distribute_tensor(torch.arange(64.0).reshape(8, 8), mesh, [Shard(0), Shard(1)])
    assert torch.equal(matrix.full_tensor(), torch.arange(64.0).reshape(8, 8))


@pytest.mark.parametrize("worker", [worker_init_methods, worker_names, worker_again, worker_under_gloo])
def test_without_default_group(worker):
    run(2, worker, backend=None, limit=90, argument=free_port())


@pytest.mark.parametrize("size", [2, 4])
def test_subgroups(size):
    run(size, worker_subgroups, limit=90)


def test_split():
    run(3, worker_split)


def test_overlapping():
    run(4, worker_overlapping)


def test_over_gloo():
    run(2, worker_over_gloo)


def test_debug_detail():
    run(2, worker_debug_detail, env={"TORCH_DISTRIBUTED_DEBUG": "DETAIL"})


def test_device_mesh():
    run(4, worker_device_mesh, limit=90)


SCRIPT = f"""
import os, signal, sys
sys.path.insert(0, {str(HERE)!r})
import torch.distributed as dist, quoit, test_groups
dist.init_process_group("quoit")
hosts = quoit.describe(as_dict=True)["hosts"]
test_groups.check()
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and not os.path.exists(sys.argv[2]):
    os.write(1, f"first on {{hosts}}\\n".encode())  # whole, beside the others'
    if dist.get_rank() == int(sys.argv[1]):
        open(sys.argv[2], "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    test_groups.message_of(lambda: [dist.barrier() for _ in range(2)], dist.DistBackendError)
    raise SystemExit("a rank is gone")
test_groups.check()
dist.destroy_process_group()
os.write(1, f"passed on {{hosts}}\\n".encode())
"""


@pytest.mark.parametrize("victim", in_part([0, 1], 0))
def test_torchrun(tmp_path: Path, victim):
    """A rank is killed; torchrun starts all anew, with the same port, and they meet again."""
    (tmp_path / "script.py").write_text(SCRIPT)
    words = ["--nproc-per-node=2", "--max-restarts=1", f"--master-port={free_port()}", str(tmp_path / "script.py"), str(victim), str(tmp_path / "died")]
    own = {**os.environ, "TMPDIR": str(tmp_path)}  # where torchrun leaves its logs
    command = [sys.executable, "-m", "torch.distributed.run", *words]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120, env=own)
    assert done.returncode == 0 and done.stdout.count("passed on 1") == 2, done.stdout[-3000:]
    assert done.stdout.count("first on 1") >= 1, done.stdout[-3000:]


def test_torchrun_two_hosts(tmp_path: Path):
    """A launcher on each of two hosts: when a rank of the second is killed, both start their ranks anew, and these meet at the port of before."""
    (tmp_path / "script.py").write_text(SCRIPT)
    with hosts_of([1, 1], families="4") as hosts:
        meeting = f"--rdzv-backend=c10d --rdzv-endpoint={hosts.name(0)}:{free_port()} --rdzv-id=again --nnodes=2 --nproc-per-node=1 --max-restarts=2"
        words = [sys.executable, "-m", "torch.distributed.run", *meeting.split(), str(tmp_path / "script.py"), "1", str(tmp_path / "died")]
        outputs, launchers = [], []
        for host in range(2):
            outputs.append(open(tmp_path / f"output{host}", "w+"))
            own = {**os.environ, "TMPDIR": str(tmp_path), "OMP_NUM_THREADS": "1"}
            launchers.append(hosts.start(host, words, env=own, stdout=outputs[-1], stderr=subprocess.STDOUT))
        statuses = [launcher.wait(timeout=120 * SLOW) for launcher in launchers]
    texts = [(tmp_path / f"output{host}").read_text() for host in range(2)]
    for file in outputs:
        file.close()
    assert statuses == [0, 0], texts
    for text in texts:
        assert text.count("passed on 2") == 1, texts
    assert "first on 2" in texts[0] + texts[1], texts


def worker_merge(rank, size):
    """Two groups of two become one of four; that one works, and so do the old ones."""
    import quoit

    half = argument()  # "split": halves of one job; "apart": jobs that know nothing of each other
    if half == "apart":
        job = rank // 2
        store = dist.FileStore(str(directory() / f"job{job}"), 2)
        dist.init_process_group("quoit", store=store, rank=rank % 2, world_size=2)
        mine = dist.distributed_c10d._get_default_group()
    else:
        dist.init_process_group("quoit")
        mine = [dist.new_group([0, 1]), dist.new_group([2, 3])][rank // 2]
    timeout = datetime.timedelta(seconds=40)
    merged = mine.merge_remote_group(dist.FileStore(str(directory() / "merge"), 4), 4, timeout, "both")
    assert merged.size() == 4 and merged.group_name == "both"
    backend = merged._get_backend(torch.device("cpu"))
    assert backend.name() == "quoit" and backend.options.timeout == timeout and isinstance(backend, quoit.ProcessGroupQuoit)
    for count in (3, 100000):
        tensor = torch.full((count,), float(merged.rank() + 1))
        merged.allreduce([tensor]).wait()
        assert tensor.eq(10).all(), tensor
        tensor = torch.full((count,), float(rank))
        mine.allreduce([tensor]).wait()
        assert tensor.eq(1 if rank < 2 else 5).all(), tensor
    merged.barrier().wait()
    found = merged.rank()
    merged.shutdown()
    tensor = torch.ones(7)
    mine.allreduce([tensor]).wait()
    assert tensor.eq(2).all()
    dist.destroy_process_group()
    return found


@pytest.mark.parametrize("half", ["split", "apart"])
def test_merge(half):
    assert sorted(run(4, worker_merge, backend=None, argument=half)) == [0, 1, 2, 3]


def worker_merge_alone(rank, size):
    """The other group never comes: an error in time, and the group that is there goes on."""
    group = dist.distributed_c10d._get_default_group()
    store = dist.FileStore(str(directory() / "merge"), 4)
    text = message_of(lambda: group.merge_remote_group(store, 4, datetime.timedelta(seconds=1), "both"), dist.DistNetworkError)
    assert "creating group both" in text and "timed out" in text.lower(), text
    check()


def test_merge_without_the_other():
    run(2, worker_merge_alone)


def connections():
    """TCP connections of this process that Quoit made: between two addresses of loopback, neither the store's."""
    import os
    import socket

    found, store = 0, int(os.environ["MASTER_PORT"])
    for name in os.listdir("/proc/self/fd"):
        try:
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(name))) as copy:
                if copy.family == socket.AF_UNIX or copy.type != socket.SOCK_STREAM:
                    continue
                if store not in (copy.getpeername()[1], copy.getsockname()[1]):
                    found += 1
        except OSError:
            continue  # it listens, or was the directory's
    return found


def worker_sockets(rank, size):
    import os
    import warnings

    import quoit

    os.environ["QUOIT_HOST_LABEL"] = str(rank)  # hosts of their own: tcp joins them
    for bad in (0, 17, -1):
        assert "1 to 16 are possible" in message_of(lambda: quoit.Options(sockets=bad), ValueError)
    options = quoit.Options(sockets=5)
    assert options.sockets == 5 and quoit.Options().sockets is None
    dist.init_process_group("quoit", pg_options=options)
    check()
    first = connections()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for sockets in (5, 3, 3):
            check(dist.new_group(list(range(size)), pg_options=quoit.Options(sockets=sockets)))
    texts = [str(each.message) for each in caught if "sockets" in str(each.message)]
    assert len(texts) == 1 and "sockets=3" in texts[0] and "have 5 TCP connections" in texts[0], texts
    assert connections() == first
    meet("counted", rank, size)
    dist.destroy_process_group()
    return first


def worker_sockets_by_setting(rank, size):
    import os

    os.environ["QUOIT_HOST_LABEL"] = str(rank)
    dist.init_process_group("quoit")
    check()
    found = connections()
    meet("counted", rank, size)  # else the other may be gone by now, and its connections with it
    dist.destroy_process_group()
    return found


def test_sockets():
    assert run(2, worker_sockets, backend=None) == [5, 5]
    assert run(2, worker_sockets_by_setting, backend=None, env={"QUOIT_TCP_SOCKETS": "3"}) == [3, 3]
