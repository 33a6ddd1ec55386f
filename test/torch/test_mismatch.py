# SPDX-License-Identifier: Apache-2.0
"""Ranks that call different things, or were started differently, on one host and on two (network namespaces): each of them raises, and is told both
sides and who they are."""

import datetime
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import quoit
from launcher import HERE, LONG, SLOW, argument, directory, free_port, hosts_of, message_of, own_name, run

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


# What the other build has instead: another version, or another layout of memory that is shared.
BUILDS = {"version": ("include/quoit/quoit.h", "QUOIT_VERSION_MINOR 1", "QUOIT_VERSION_MINOR 2"), "layout": ("scheduler/window.h", "WINDOW_HISTORY = 16", "WINDOW_HISTORY = 32")}


def build(folder, source, was, becomes):
    """The core, out of this tree, but for one line. 20 seconds of a processor."""
    root = HERE.parents[1]
    for name in ("base", "include", "transport", "scheduler"):
        shutil.copytree(root / name, folder / name)
    for name in ("CMakeLists.txt", "quoit.pc.in"):
        shutil.copy(root / name, folder)
    text = (folder / source).read_text()
    assert was in text, source
    (folder / source).write_text(text.replace(was, becomes))
    options = ["-DQUOIT_TESTS=OFF", "-DQUOIT_BENCH=OFF", "-DCMAKE_BUILD_TYPE=None", "-DCMAKE_C_FLAGS=-O0"]
    for words in (["cmake", "-S", folder, "-B", folder / "build", *options], ["cmake", "--build", folder / "build", "-j2", "--target", "quoit"]):
        done = subprocess.run(words, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return folder / "build"


def worker_builds(rank, size):
    """Rank 1 goes on as an interpreter that loads the other library."""
    kind, folder = argument()
    if rank == 1 and os.environ.get("LD_LIBRARY_PATH") != folder:
        os.environ["LD_LIBRARY_PATH"] = folder  # comes before the one beside the shim
        os.execv(sys.executable, [sys.executable, str(HERE / "launcher.py"), __file__, "worker_builds", ""])
    loaded = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "/libquoit.so" in line}
    assert len(loaded) == 1 and (folder in loaded.pop()) == (rank == 1), loaded
    limit = datetime.timedelta(seconds=20)
    text = message_of(lambda: dist.init_process_group("quoit", init_method=f"file://{directory()}/store", rank=rank, world_size=size, timeout=limit), dist.DistError)
    return text, own_name(rank), quoit._C.library_version()


def check_builds(texts, kind, other):
    """The same text on all ranks: who has loaded which."""
    found = [re.search(r"(rank \d .*) has loaded quoit (\S+) \(layout (\w+)\), but rank 0 quoit (\S+) \(layout (\w+)\)", text) for text in texts]
    assert all(found) and len({each[0] for each in found}) == 1, texts
    assert found[0][1].endswith(other), texts
    assert (found[0][2] != found[0][4], found[0][3] != found[0][5]) == (kind == "version", kind == "layout"), texts


@pytest.fixture(scope="module", params=BUILDS)
def builds(request, tmp_path_factory):
    """Which kind, and where the other library is."""
    return request.param, str(build(tmp_path_factory.mktemp("builds") / "other", *BUILDS[request.param]))


@HOSTS
def test_builds(builds, ranks):
    """Two libraries that were really built, which differ."""
    with hosts_of(ranks) as hosts:
        answers = run(3, worker_builds, backend=None, argument=builds, hosts=hosts)
    check_builds([text for text, _, _ in answers], builds[0], answers[1][1])
    assert [version == answers[0][2] for _, _, version in answers] == [True, builds[0] != "version", True], answers


@HOSTS
def test_builds_from_c(builds, ranks):
    kind, folder = builds
    program = Path(quoit.__file__).parent / "bin" / "bench_allreduce"
    with hosts_of(ranks) as hosts:
        port, processes = free_port(), []
        for rank in range(3):
            host = 0 if hosts is None or rank < ranks[0] else 1
            variables = {"RANK": str(rank), "WORLD_SIZE": "3", "MASTER_ADDR": hosts.address(0) if hosts else "127.0.0.1", "MASTER_PORT": str(port), "LD_LIBRARY_PATH": folder * (rank == 1)}
            options = {"env": {**os.environ, **variables}, "stderr": subprocess.PIPE, "text": True}
            processes.append(hosts.start(host, [program], **options) if hosts else subprocess.Popen([program], **options))
        try:
            texts = [process.communicate(timeout=30 * SLOW)[1] for process in processes]
        finally:
            for process in processes:
                process.kill()
    assert all(process.returncode not in (0, None) for process in processes), texts
    check_builds(texts, kind, f"pid {processes[1].pid})")


if not LONG:  # they build for a minute
    del test_builds, test_builds_from_c


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
