# SPDX-License-Identifier: Apache-2.0
"""Beginning and end: what init opens, peers that do not come, closed groups, exits without destroy, forked children."""

import datetime
import faulthandler
import gc
import os
import re
import socket
import sys
import threading
import time

import pytest
import torch
import torch.distributed as dist

import quoit
from launcher import directory, meet, message_of, run, start

ENDS = "whole"  # how ranks end is what is tested here

SECONDS = lambda n: datetime.timedelta(seconds=n)  # noqa: E731


def tcp_sockets():
    """States of the TCP sockets of this process: 0A listens, 01 is connected."""
    inodes = set()
    for entry in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{entry}")
        except OSError:
            continue
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
    found = []
    for table in ("/proc/self/net/tcp", "/proc/self/net/tcp6"):
        if os.path.exists(table):
            for line in open(table).read().splitlines()[1:]:
                fields = line.split()
                if fields[9] in inodes:
                    found.append(fields[3])
    return found


def worker_no_sockets(rank, size):
    """On one host nothing is connected over TCP; with shm alone there is not even a listener, so nobody else made one."""
    import json

    transport = os.environ.get("QUOIT_TRANSPORT", "auto")

    dist.init_process_group("quoit", init_method=f"file://{directory()}/store", rank=rank, world_size=size)
    dist.all_reduce(torch.ones(100000))
    group = dist.new_group()
    dist.all_reduce(torch.ones(100000), group=group)
    states = tcp_sockets()
    assert states == [] if transport == "shm" else set(states) <= {"0A"}, states
    names = [open(f"/proc/self/task/{task}/comm").read().strip() for task in os.listdir("/proc/self/task")]
    assert not [name for name in names if "gloo" in name], names
    assert "shm" in quoit.describe(), quoit.describe()
    found = quoit.describe(as_dict=True)
    assert json.loads(json.dumps(found)) == found
    assert (found["rank"], found["size"], found["hosts"], found["status"]) == (rank, size, 1, "success")
    assert [peer["edge"] for peer in found["ranks"]] == ["self" if r == rank else "shm" for r in range(size)]
    assert quoit.last_error() is None
    dist.destroy_process_group()


def worker_closed_streams(rank, size):
    """A daemon has closed stdin, stdout and stderr: whoever writes to them all the same must not write into what the ranks share."""
    kept = os.dup(2)
    for stream in range(3):
        os.close(stream)
    dist.init_process_group("quoit", init_method=f"file://{directory()}/store", rank=rank, world_size=size)
    dist.all_reduce(torch.ones(3), async_op=True).get_future().wait()
    found = [os.readlink(f"/proc/self/fd/{stream}") for stream in range(3)]
    written = [os.write(stream, b"lost" * 100) for stream in range(1, 3)]
    tensor = torch.ones(100000)
    dist.all_reduce(tensor)
    os.dup2(kept, 2)
    assert found == ["/dev/null"] * 3 and written == [400] * 2 and (tensor == size).all(), (found, written)
    dist.destroy_process_group()


def worker_closed(rank, size):
    group = dist.new_group()
    backend = group._get_backend(torch.device("cpu"))
    work = group.allreduce([torch.ones(3)])
    work.wait()
    dist.barrier()
    group.shutdown()
    group.shutdown()
    text = message_of(lambda: group.allreduce([torch.ones(3)]), RuntimeError)
    assert "process group was destroyed" in text, text
    text = message_of(lambda: backend.describe(), RuntimeError)
    assert "process group was destroyed" in text, text
    del group, backend, work
    gc.collect()
    dist.barrier()


def worker_shutdown_with_works(rank, size):
    """Works that were never waited for, and their tensors, outlive their group."""
    group = dist.new_group()
    works = [group.allreduce([torch.ones(1000)]) for _ in range(10)]
    futures = [work.get_future() for work in works[:3]]
    group.shutdown()
    for work in works:
        assert work.is_completed()
        work.wait()
    for future in futures:
        assert (future.wait()[0] == size).all()
    del works, futures
    gc.collect()
    dist.barrier()


def running(group):
    """Wait until an operation of the group runs: its thread is about to wait for it, or does."""
    end = time.monotonic() + 30
    while not any(operation["status"] == "running" for operation in quoit.history(group)):
        assert time.monotonic() < end
        time.sleep(0.005)


def worker_shutdown_wakes(rank, size):
    """A thread that is blocked in an operation nobody will join is freed by shutdown and by abort."""
    for name in ("shutdown", "abort"):
        group = dist.new_group()
        dist.barrier(group)
        meet(name, rank, size)
        if rank == 0:
            errors = []

            def blocked():
                errors.append(message_of(lambda: dist.all_reduce(torch.ones(3), group=group), RuntimeError))

            thread = threading.Thread(target=blocked)
            thread.start()
            running(group)
            getattr(group, name)()
            thread.join(30)
            assert not thread.is_alive() and errors, f"{name} did not wake the waiter"
    dist.barrier()


def worker_abort_reaches_all(rank, size):
    group = dist.new_group(timeout=SECONDS(60))
    dist.barrier(group)
    begin = time.monotonic()
    meet("barrier", rank, size)
    if rank == 0:
        group.abort()
    else:
        text = message_of(lambda: dist.all_reduce(torch.ones(3), group=group), dist.DistBackendError)
        assert "abort" in text, text
    assert time.monotonic() - begin < 20
    dist.barrier()


def worker_threads(rank, size):
    """Several threads, a group each, and threads sharing one group for point-to-point."""
    groups = [dist.new_group() for _ in range(3)]
    errors = []

    def work(group, seed):
        try:
            for n in range(30):
                tensor = torch.full((100 * n + 1,), float(rank + seed))
                dist.all_reduce(tensor, group=group)
                assert (tensor == sum(range(size)) + size * seed).all()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(group, seed)) for seed, group in enumerate(groups)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors


def worker_exit_without_destroy(rank, size):
    """Everything is still open when the interpreter ends: groups, works, futures with callbacks."""
    group = dist.new_group()
    keep = [dist.all_reduce(torch.ones(1000), group=group, async_op=True) for _ in range(5)]
    keep[0].get_future().then(lambda future: future.value())
    dist.all_reduce(torch.ones(5), async_op=True)
    globals()["kept"] = (group, keep)
    dist.all_reduce(torch.ones(3))
    from pathlib import Path

    Path(os.environ["TEST_RESULT"]).write_text("1")
    sys.exit(0)


def worker_exit_with_error(rank, size):
    dist.all_reduce(torch.ones(3))
    raise RuntimeError("on purpose")


def worker_fork(rank, size):
    dist.init_process_group("quoit", init_method=f"file://{directory()}/store", rank=rank, world_size=size)
    keep = dist.all_reduce(torch.ones(10), async_op=True)
    faulthandler.cancel_dump_traceback_later()  # a forked interpreter would wait at its exit for that thread, which it lacks
    for leave in (lambda: os._exit(0), lambda: sys.exit(0)):
        child = os.fork()
        if child == 0:
            text = message_of(lambda: dist.all_reduce(torch.ones(3)), RuntimeError)
            if "parent" not in text:
                os._exit(5)
            leave()
        end = time.monotonic() + 20
        while True:
            pid, status = os.waitpid(child, os.WNOHANG)
            if pid:
                break
            if time.monotonic() > end:
                os.kill(child, 9)
                os.waitpid(child, 0)
                raise AssertionError("the child hung at its exit")
            time.sleep(0.02)
        assert status == 0, f"child ended with {status}"
        tensor = torch.ones(100000)
        dist.all_reduce(tensor)
        assert (tensor == size).all()
    keep.wait()
    dist.destroy_process_group()


def worker_missing(rank, size):
    begin = time.monotonic()
    method = f"file://{directory()}/store"  # a TCP store would itself wait for all ranks
    text = message_of(
        lambda: dist.init_process_group("quoit", init_method=method, rank=rank, world_size=size, timeout=SECONDS(3)),
        dist.DistNetworkError,
    )
    assert "Timed out" in text and "rank 1" in text, text
    assert 2.5 < time.monotonic() - begin < 30
    return text


def worker_unreachable_master(rank, size):
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    os.environ["MASTER_PORT"] = "1"
    begin = time.monotonic()
    text = message_of(lambda: dist.init_process_group("quoit", rank=1, world_size=2, timeout=SECONDS(2)), RuntimeError)
    assert "127.0.0.1" in text and re.search(r"\b1\b", text.replace("127.0.0.1", "")), text  # PyTorch's own words, whose store it is
    assert time.monotonic() - begin < 60


def worker_port_is_taken(rank, size):
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        text = message_of(
            lambda: dist.init_process_group("quoit", init_method=f"tcp://127.0.0.1:{port}", rank=0, world_size=1, timeout=SECONDS(5)), RuntimeError
        )
    assert str(port) in text and "already in use" in text, text


def worker_interface(rank, size):
    dist.init_process_group("quoit")
    tensor = torch.ones(1000)
    dist.all_reduce(tensor)
    assert (tensor == size).all()
    assert re.search(r"tcp 127\.0\.0\.1:\d+ via lo,", quoit.describe()), quoit.describe()
    dist.destroy_process_group()


def worker_bad_setting(rank, size):
    text = message_of(lambda: dist.init_process_group("quoit", timeout=SECONDS(20)), Exception)
    return text


@pytest.mark.parametrize("transport", ["auto", "shm"])
def test_no_sockets(transport):
    run(2, worker_no_sockets, backend=None, env={"QUOIT_TRANSPORT": transport})


def test_closed_streams():
    run(2, worker_closed_streams, backend=None)


def test_closed():
    run(2, worker_closed)


def test_shutdown_with_works():
    run(2, worker_shutdown_with_works)


def test_shutdown_wakes():
    run(2, worker_shutdown_wakes)


def test_abort_reaches_all():
    run(3, worker_abort_reaches_all)


def test_threads():
    run(2, worker_threads)


def test_exit_without_destroy():
    run(2, worker_exit_without_destroy)


def test_exit_with_error():
    for rank in start(2, worker_exit_with_error):
        assert rank.status == 1 and "on purpose" in rank.output, rank


def test_fork():
    run(2, worker_fork, backend=None)


def test_missing_rank():
    (rank,) = start(2, worker_missing, backend=None, ranks=[0])
    assert rank.status == 0, rank


def test_unreachable_master():
    (rank,) = start(2, worker_unreachable_master, backend=None, ranks=[1], limit=90)
    assert rank.status == 0, rank


@pytest.mark.parametrize(
    "name, value, expected",
    [
        ("QUOIT_INTERFACE", "nosuch0", "QUOIT_INTERFACE=nosuch0: no such interface; there are "),
        ("QUOIT_TIMEOUT", "soon", "QUOIT_TIMEOUT=soon: expected a duration from 1ms to 7200min"),
        ("QUOIT_LOG", "loud", "QUOIT_LOG=loud: expected one of error|warn|info|debug"),
    ],
)
def test_bad_setting(name, value, expected):
    for text in run(2, worker_bad_setting, backend=None, env={name: value}):
        assert expected in text, text


def test_port_is_taken():
    run(1, worker_port_is_taken, backend=None)


@pytest.mark.parametrize(
    "variables, expected",
    [
        ({"NCCL_SOCKET_IFNAME": "lo"}, "NCCL_SOCKET_IFNAME"),
        ({"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "nosuch0"}, "GLOO_SOCKET_IFNAME"),
        ({"QUOIT_INTERFACE": "lo", "GLOO_SOCKET_IFNAME": "nosuch0"}, "QUOIT_INTERFACE"),
    ],
)
def test_interface_of_others(tmp_path, variables, expected):
    """What was chosen for Gloo or NCCL counts where ours is unset, and the log says whose choice it was; a name that is no setting is warned about."""
    own = {"QUOIT_TRANSPORT": "tcp", "QUOIT_IP_FAMILY": "4", "QUOIT_LOG": "info", "QUOIT_LOG_FILE": f"{tmp_path}/%p.log", "QUOIT_INTERFACES": "eth7"}
    run(2, worker_interface, backend=None, env={**own, **variables})
    logs = [path.read_text() for path in tmp_path.glob("*.log")]
    assert len(logs) == 2, logs
    for log in logs:
        assert re.findall(r"tcp: address (\d+) of 1: 127\.0\.0\.1 of lo, \d+ Mb/s, chosen by (\w+)\n", log) == [("1", expected)], log
        assert log.count("there is no setting QUOIT_INTERFACES, it has no effect; the nearest name is QUOIT_INTERFACE\n") == 1, log
