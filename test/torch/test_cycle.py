# SPDX-License-Identifier: Apache-2.0
"""The life of groups and processes, many times over: nothing hangs, crashes, or is left behind."""

import gc
import os
import signal
import threading
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from launcher import SLOW, argument, directory, meet, message_of, run, start

ENDS = "whole"  # how ranks end is what is tested here
IMPORTS = ["torch._dynamo"]  # what DistributedDataParallel imports
LONG = os.environ.get("QUOIT_TEST_LONG") == "1"


def held():
    """Descriptors, threads, children, and names in /dev/shm."""
    gc.collect()
    children = open(f"/proc/self/task/{os.getpid()}/children").read().split()
    return {
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": len(os.listdir("/proc/self/task")),
        "children": len(children),
        "shm": len([name for name in os.listdir("/dev/shm") if "quoit" in name]),
    }


def resident():
    """Bytes that this process alone has touched, shared memory and all."""
    fields = dict(line.split(":", 1) for line in open("/proc/self/status") if ":" in line)
    return sum(int(fields[name].split()[0]) for name in ("RssAnon", "RssShmem")) * 1024


def watch_a_future(rank):
    """One of two ranks waits for a future that cannot be done when it is made: the thread that watches futures, one a process for good, runs then."""
    received = torch.zeros(3)
    future = dist.irecv(received, 1 - rank).get_future()
    dist.barrier()
    dist.send(torch.ones(3), 1 - rank)
    future.wait()
    assert (received == 1).all()


def worker_again(rank, size):
    """init and destroy, with groups, works and a few sizes in between."""
    rounds, labels = argument()
    if labels:
        os.environ["QUOIT_HOST_LABEL"] = f"host {rank}"
    before = None
    for number in range(rounds):
        dist.init_process_group("quoit", init_method=f"file://{directory()}/store{number}", rank=rank, world_size=size)
        group = dist.new_group()
        tensor = torch.ones(100000)
        dist.all_reduce(tensor, group=group)
        assert (tensor == size).all()
        works = [dist.all_reduce(torch.ones(10), async_op=True) for _ in range(3)]
        works[0].get_future().wait()
        watch_a_future(rank)
        dist.destroy_process_group()
        del group, works
        if number == 2:
            before, bytes_before = held(), resident()
    end = time.monotonic() + 5  # a thread that ends is still listed for a moment
    while any((after := held())[name] > before[name] for name in before) and time.monotonic() < end:
        time.sleep(0.01)
    grown = resident() - bytes_before
    assert all(after[name] <= before[name] for name in after), (before, after)
    assert grown < 8 << 20, f"{grown} bytes more after {rounds} rounds"


def switches():
    """How often each of Quoit's threads in this process came from or to a processor, by its name and id."""
    found = {}
    for task in os.listdir("/proc/self/task"):
        with open(f"/proc/self/task/{task}/status") as file:
            fields = dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)
        if fields["Name"].startswith("quoit"):
            found[f"{fields['Name']} {task}"] = int(fields["voluntary_ctxt_switches"]) + int(fields["nonvoluntary_ctxt_switches"])
    return found


def worker_idle(rank, size):
    """Threads that move bytes and watch futures wake while there is something to come, and never when nothing is."""
    if argument():
        os.environ["QUOIT_HOST_LABEL"] = f"host {rank}"
    dist.init_process_group("quoit")
    model = DistributedDataParallel(torch.nn.Linear(300, 300))
    for _ in range(3):
        model(torch.ones(2, 300)).sum().backward()
    received = torch.zeros(3)
    future = dist.irecv(received, 1 - rank).get_future()
    before, end = switches(), time.monotonic() + 30 * SLOW
    while not any(count > before.get(thread, 0) for thread, count in switches().items()):
        assert time.monotonic() < end, "while a message is to come somebody must look for it"
        time.sleep(0.01)
    meet("seen", rank, size)
    dist.send(torch.ones(3), 1 - rank)
    future.wait()
    dist.barrier()

    end = time.monotonic() + 30 * SLOW
    while True:  # until they sleep, which may take a while on a busy machine
        before = switches()
        time.sleep(0.5)
        if switches() == before:
            break
        assert time.monotonic() < end, (before, switches())
    assert {name.split()[0] for name in before} == {"quoit", "quoit_watcher"}, before
    time.sleep(10 if LONG else 1.5)
    assert switches() == before, (before, switches())
    meet("measured", rank, size)  # the other rank's barrier would be heard
    dist.barrier()
    dist.destroy_process_group()


def worker_failed_creations(rank, size):
    """Groups that cannot be created, since a rank does not come, and calls that are refused leave nothing behind."""
    tensor = torch.ones(3).to_sparse()
    for number in range(8):
        for world in (2, 1):
            call = lambda: dist.init_process_group("quoit", store=dist.HashStore(), rank=0, world_size=world, timeout=timedelta(seconds=0.2))  # noqa: E731
            if world == 2:
                text = message_of(call, dist.DistNetworkError)
                assert "1 of 2 ranks did not come" in text, text
                continue
            call()
            backend = dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu"))
            message_of(lambda: backend.broadcast([tensor]), ValueError)
            message_of(lambda: dist.all_reduce(torch.ones(3), dist.ReduceOp.BAND), NotImplementedError)
            dist.destroy_process_group()
            del backend
        if number == 2:
            before, bytes_before = held(), resident()
    end = time.monotonic() + 5  # a thread that ends is still listed for a moment
    while any((after := held())[name] > before[name] for name in before) and time.monotonic() < end:
        time.sleep(0.01)
    assert all(after[name] <= before[name] for name in after), (before, after)
    assert resident() - bytes_before < 8 << 20


def worker_many_groups(rank, size):
    count = argument()
    before = held()["descriptors"]
    groups = [dist.new_group() for _ in range(count)]
    for group in groups:
        dist.all_reduce(torch.ones(3), group=group)
    assert held()["descriptors"] == before, "groups of one host take no descriptor"
    for group in groups:
        dist.destroy_process_group(group)
    dist.all_reduce(torch.ones(3))


def worker_data_loader(rank, size):
    """Workers are forked while groups live and operations run; they end with the loader, and the ranks go on."""
    data = TensorDataset(torch.arange(64.0).reshape(32, 2))
    model = DistributedDataParallel(torch.nn.Linear(2, 1))
    for _ in range(2):
        work = dist.all_reduce(torch.ones(100000), async_op=True)
        for (batch,) in DataLoader(data, batch_size=4, num_workers=2):
            model(batch).sum().backward()
        work.wait()
    dist.barrier()
    assert held()["children"] == 0


def worker_exception_in_backward(rank, size):
    """One rank raises in the middle of backward, the others wait for its gradients: destroy on the one ends the wait of the others."""
    model = DistributedDataParallel(torch.nn.Sequential(*[torch.nn.Linear(4, 4) for _ in range(3)]), bucket_cap_mb=0.0001)
    model(torch.ones(2, 4)).sum().backward()
    meet("all", rank, size)
    if rank == 0:

        def fail(grad):
            raise RuntimeError("on purpose")

        model.module[0].weight.register_hook(fail)
        text = message_of(lambda: model(torch.ones(2, 4)).sum().backward(), RuntimeError)
        assert "on purpose" in text, text
        dist.group.WORLD.abort()
        return text
    return message_of(lambda: model(torch.ones(2, 4)).sum().backward(), RuntimeError)


def worker_interrupted(rank, size):
    """SIGINT ends a wait in Python soon, in a blocking call, in wait(), and in a future's wait."""
    took = []
    if rank == 0:
        calls = (lambda: dist.all_reduce(torch.ones(3)), lambda: dist.all_reduce(torch.ones(3), async_op=True).wait(), dist.barrier)
        for call in calls:
            sent = []

            def send():
                time.sleep(0.1)  # the main thread is inside the call by then; if not, the interrupt comes a little early
                sent.append(time.monotonic())
                os.kill(os.getpid(), signal.SIGINT)

            thread = threading.Thread(target=send)
            thread.start()
            try:
                call()
                raise AssertionError("not interrupted")
            except KeyboardInterrupt:
                took.append(time.monotonic() - sent[0])
            thread.join()
        (directory() / "done").touch()
    else:
        while not (directory() / "done").exists():
            time.sleep(0.005)
        for _ in range(2):
            dist.all_reduce(torch.ones(3))
        dist.barrier()
    dist.all_reduce(torch.ones(3))
    return took


class Kept:
    """Uses the group when the interpreter takes it down."""

    def __init__(self, group):
        self.group = group

    def __del__(self):
        try:
            self.group.barrier().wait()
        except BaseException:
            pass


def worker_shutdown_order(rank, size):
    """Groups, works, threads and objects with destructors are left to the interpreter, in this order and that."""
    import atexit
    import builtins
    import sys

    how = argument()
    group = dist.new_group()
    dist.all_reduce(torch.ones(3), group=group)
    work = dist.all_reduce(torch.ones(3), group=group, async_op=True)
    if how == "modules":
        sys.modules["kept"] = work
        builtins.kept = group
    elif how == "atexit":
        atexit.register(lambda: (dist.all_reduce(torch.ones(3)), dist.destroy_process_group()))
    elif how == "thread":
        threading.Thread(target=lambda: message_of(lambda: dist.recv(torch.ones(3), 1 - rank), BaseException), daemon=True).start()
    elif how == "destructor":
        builtins.kept = Kept(group)
    (directory() / f"result{rank}").write_text("1")
    sys.stdout.flush()
    sys.exit(0)


@pytest.mark.parametrize("labels", [False, True])
def test_init_and_destroy(labels):
    run(2, worker_again, backend=None, argument=[200 if LONG else 12, labels], limit=300 if LONG else 60)


@pytest.mark.parametrize("labels", [False, True])
def test_idle(labels):
    run(2, worker_idle, backend=None, argument=labels)


def test_failed_creations():
    run(1, worker_failed_creations, backend=None)


def test_many_groups():
    run(2, worker_many_groups, argument=500, limit=90)


def test_data_loader():
    run(2, worker_data_loader)


def test_exception_in_backward():
    first, second = run(2, worker_exception_in_backward)
    assert "abort" in second, second


def test_interrupted():
    """100 ms are promised; the rest is the time that Python takes to come to it on a machine that has other things to do."""
    took = run(2, worker_interrupted)[0]
    assert len(took) == 3 and max(took) < 0.1 + 0.1 * SLOW, took


@pytest.mark.parametrize("how", ["modules", "atexit", "thread", "destructor"])
def test_shutdown_order(how):
    for rank in start(2, worker_shutdown_order, argument=how, limit=40, env={"QUOIT_LINGER": "200ms"}):
        assert rank.status == 0, rank
