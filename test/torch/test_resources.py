# SPDX-License-Identifier: Apache-2.0
"""What containers, batch systems and administrators may withhold, from all ranks or from one, seen from PyTorch: docs/resources.md, row by row. Either
everything works, with the same hosts seen by all and one warning at most; or a group's creation fails on all ranks, with rank and cause."""

import datetime
import errno
import os
import socket
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import quoit
from launcher import SLOW, argument, hosts_of, in_part, meet, message_of, own_name, run, start
from restrict import deny, restrict

IMPORTS = ["torch._dynamo"]  # what DistributedDataParallel imports
ALL = -1  # ranks
SIZE = 3


def lacks(rank, who):
    return who in (ALL, rank)


def init(rank, size):
    """By a path from the current directory: that one can be written by other users, and stays writable whatever is mounted over it."""
    os.environ["TEST_RESULT"] = f"result{rank}"
    limit = datetime.timedelta(seconds=20 * SLOW)
    dist.init_process_group("quoit", store=dist.FileStore("store", size), rank=rank, world_size=size, timeout=limit)


def open_to_all():
    """A directory with an empty store, for ranks of any user. Not sticky: in such a one they might not open each other's files."""
    made = tempfile.TemporaryDirectory(prefix="quoit-test-")
    os.chmod(made.name, 0o777)
    store = Path(made.name) / "store"
    store.touch()
    store.chmod(0o666)
    return made


def use(rank, size):
    """Small and large collectives, groups, a message from each neighbour, and operations that nobody waits for."""
    for count in (1, 1000, 500000):
        tensor = torch.full((count,), float(rank))
        dist.all_reduce(tensor)
        assert (tensor == sum(range(size))).all()
    for group in [dist.new_group() for _ in range(5)]:
        dist.barrier(group)
    got = torch.zeros(100000)
    receives = dist.irecv(got, (rank - 1) % size)
    dist.send(torch.full((100000,), float(rank)), (rank + 1) % size)
    receives.wait()
    assert (got == (rank - 1) % size).all()
    for work in [dist.all_reduce(torch.ones(1000), async_op=True) for _ in range(3)]:
        assert (work.get_future().wait()[0] == size).all()


# ---------------------------------------------------------------- the table


class Row(NamedTuple):
    """What becomes of a job; what the warning or the error tells; how many warnings each rank has that lacks it; whether nothing is lost when all do."""

    outcome: str
    cause: str = ""
    each: int = 0
    all_work: bool = False


ROWS = {
    "nothing": Row("works"),
    "no memfd_create": Row("slower", "this system allows no memfd_create (old kernel or a seccomp filter)"),
    "no unix sockets": Row("slower", "cannot make a Unix socket"),
    "little address space": Row("slower", "but the limit 'ulimit -v' is"),
    "address space for one": Row("slower", "lower QUOIT_ARENA_SIZE or raise 'ulimit -v'"),
    "small files": Row("slower", "but the limit 'ulimit -f' is"),
    "no shared memory left": Row("slower", "the system has no memory for"),
    "other user": Row("slower", "as user 65530", all_work=True),
    "network": Row("slower", "in this network namespace"),
    "new network": Row("error", "no transport joins"),
    "12 descriptors": Row("error", "up to 24 more descriptors are needed, and 12 are left: Too many open files; raise 'ulimit -n'"),
    "no eventfd2": Row("error", "engine: eventfd: Operation not permitted"),
    "no threads": Row("works", "no progress thread", 1),
    "few processes": Row("slower", "no progress thread", 1, all_work=True),  # the limit is one user's
    "no pidfd_open": Row("works"),
    "no membarrier": Row("works"),
    "no fallocate": Row("works"),
    "no ptrace": Row("works"),
    "locked memory": Row("works"),
    "no core files": Row("works"),
    "new pids": Row("works"),
    "new ipc": Row("works"),
    "new mounts": Row("works"),
    "new host name": Row("works"),
    "read-only": Row("works"),
}
ONE, TWO = "one host", "two hosts"
LAST = 2  # the rank that is alone on the second host
CASES = [(what, who, where) for what in ROWS for who in (ALL, 0, 1) for where in (ONE, TWO) if what != "network"] + [("network", who, ONE) for who in (ALL, 0, LAST)]
FEW = [
    ("no memfd_create", 1, ONE),
    ("no shared memory left", ALL, TWO),
    ("other user", 0, ONE),
    ("new network", 1, ONE),
    ("12 descriptors", 0, TWO),
    ("no eventfd2", 1, ONE),
    ("few processes", ALL, ONE),
    ("no ptrace", ALL, ONE),
    ("new pids", 1, TWO),
    ("read-only", ALL, ONE),
]


def worker(rank, size):
    """How it went: the error and after what time; or host and transport of each rank, as this one sees it."""
    what, who, where = argument()
    if where == TWO:
        os.environ["QUOIT_HOST_LABEL"] = socket.gethostname()  # that these two share nothing is meant
    if what != "network" and lacks(rank, who):
        restrict(what)
    begin = time.monotonic()
    try:
        init(rank, size)
    except dist.DistError as error:
        return own_name(rank), str(error), time.monotonic() - begin
    use(rank, size)
    ranks = quoit.describe(as_dict=True)["ranks"]
    dist.destroy_process_group()
    return [each["host"] for each in ranks], [each["edge"].split()[0] for each in ranks]


def host_by_rank(what, who, where):
    """As all ranks should see it: those that share no memory are hosts of their own."""
    apart = ROWS[what].outcome == "slower" and not (ROWS[what].all_work and who == ALL)
    places = [(rank == LAST and where == TWO, rank if apart and lacks(rank, who) else None) for rank in range(SIZE)]
    return [sorted(set(places), key=places.index).index(place) for place in places]


@pytest.mark.parametrize("what, who, where", in_part(CASES, *FEW), ids=str)
def test_row(what, who, where):
    row, layout = ROWS[what], [2, 1] if where == TWO else [SIZE]
    if what == "network":
        layout = {ALL: [1, 1, 1], 0: [1, 2], LAST: [2, 1]}[who]
    with hosts_of(layout, families="4") as hosts, open_to_all() as place:
        answers = start(SIZE, worker, backend=None, argument=[what, who, where], hosts=hosts, directory=Path(place))
    assert [answer.status for answer in answers] == [0] * SIZE, answers
    results = [answer.result for answer in answers]
    warned = [(answer.number, line) for answer in answers for line in answer.output.splitlines() if "] warn " in line]
    if row.outcome == "error":
        assert not warned, warned
        for name, text, took in results:
            assert row.cause in text and f"rank {max(who, 0)} (" in text or who == ALL and name in text, text
            assert took < 1.2 + 0.5 * SLOW, (took, text)
        assert who == ALL or len({text for _, text, _ in results}) == 1, results
        return
    expected = host_by_rank(what, who, where)
    for rank, (seen, edges) in enumerate(results):
        assert seen == expected, results
        assert edges == ["self" if each == rank else "shm" if expected[each] == expected[rank] else "tcp" for each in range(SIZE)], results
    of_hosts = [(rank, line) for rank, line in warned if "share no memory" in line]
    others = [(rank, line) for rank, line in warned if (rank, line) not in of_hosts]
    lost = row.outcome == "slower" and not (row.all_work and who == ALL)
    assert [rank for rank, _ in of_hosts] == [0] * lost, warned
    assert [rank for rank, _ in others] == [rank for rank in range(SIZE) if lacks(rank, who)] * row.each, warned
    for _, line in of_hosts if lost and not row.each else others:
        assert row.cause in line, (row.cause, line)
    for _, line in of_hosts:
        assert f"rank {max(who, 0)} " in line, line


# ---------------------------------------------------------------- later


def exchange(rank, count, messages):
    """Between the ranks 0 and 1, each way."""
    if rank > 1:
        return
    sends = [dist.isend(torch.full((count,), float(number)), 1 - rank) for number in range(messages)]
    for number in range(messages):
        got = torch.zeros(count)
        dist.recv(got, 1 - rank)
        assert (got == number).all()
    for send in sends:
        send.wait()


def groups_without_end():
    while True:
        dist.barrier(dist.new_group())


LATER = {
    "group": lambda rank: groups_without_end(),
    "large": lambda rank: dist.all_reduce(torch.ones(500000)),
    "message": lambda rank: (exchange(rank, 100, 100), dist.barrier()),  # more than lies in 16 KiB
    "pool": lambda rank: exchange(rank, 1000000, 1),
}


def text_of(call):
    try:
        call()
    except torch.OutOfMemoryError as error:
        return str(error)
    return ""


def worker_late(rank, size):
    """What is said of memory that is missing once the ranks know each other: by the call, then by the default group and another one. For the pool of
    messages, of which any message may be the first to want it, it is missing from the beginning."""
    what, who = argument()
    if what == "pool" and lacks(rank, who):
        restrict("no 2 MiB of shared memory")
    init(rank, size)
    other = dist.new_group()
    for group in (None, other):
        dist.all_reduce(torch.ones(10), group=group)
    meet("ready", rank, size)
    if what != "pool" and lacks(rank, who):
        restrict("no shared memory left")
    meet("limited", rank, size)
    text = text_of(lambda: LATER[what](rank))
    meet("ended", rank, size)
    after = [text_of(lambda: dist.all_reduce(torch.ones(10), group=group)) for group in (None, other)]
    meet("over", rank, size)  # the memory that others need is there until then
    return text, after


@pytest.mark.parametrize(
    "what, who, where",
    in_part([(what, who, where) for what in LATER for who in (ALL, 0, 1) for where in (ONE, TWO)], ("large", 1, TWO), ("message", 0, ONE)),
    ids=str,
)
def test_later(what, who, where):
    """A communicator that lacks it ends on all ranks with the cause; others live on, but for those of two that cannot talk any more."""
    with hosts_of([2, 1] if where == TWO else [SIZE], families="4") as hosts, open_to_all() as place:
        answers = start(SIZE, worker_late, backend=None, argument=[what, who], hosts=hosts, directory=Path(place), env={"QUOIT_LOG": "info"})
    assert [answer.status for answer in answers] == [0] * SIZE, answers
    for answer in answers:
        text, (of_default, of_other) = answer.result
        failed = [text] if what == "group" else [text, of_default] if what == "large" else []
        if what == "message":
            failed = [text, of_default, of_other]
        assert [text, of_default, of_other] == failed + [""] * (3 - len(failed)), answer.result
        for each in failed:
            assert "shm: the system has no memory for" in each, each
            assert who == ALL or f"rank {who} (" in each or answer.number == who and f", rank {who}]" in each, each
            assert what != "message" or "here is no memory for the mailbox of rank " in each, each
        alone = "messages go through the mailboxes alone, there is no memory to lend" in answer.output
        assert alone == (what == "pool" and answer.number < LAST and lacks(answer.number, who)), answer


# ---------------------------------------------------------------- more of some rows


def worker_descriptors(rank, size):
    restrict("64 descriptors")
    init(rank, size)
    use(rank, size)


def test_descriptors():
    with open_to_all() as place:
        run(4, worker_descriptors, backend=None, directory=Path(place))


def worker_threads(rank, size):
    """DDP lives of futures; without a thread whoever asks for one waits for it."""
    restrict("no threads")
    init(rank, size)
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(8, 3))
    for _ in range(3):
        model(torch.ones(4, 8)).sum().backward()
    use(rank, size)


def test_threads():
    with open_to_all() as place:
        run(2, worker_threads, backend=None, directory=Path(place))


def worker_cannot_bind(rank, size):
    if rank == argument():
        deny("bind", errno.EADDRNOTAVAIL, 2, 16)  # bytes of an IPv4 address: listing the interfaces needs a bind, too
    return message_of(lambda: init(rank, size), RuntimeError)


@pytest.mark.parametrize("who", [0, 1])
def test_one_cannot_bind_its_address(who):
    """The address of an interface that was named for it, and gone when it was to be used: its name stands in one error, on all ranks."""
    env = {"QUOIT_TRANSPORT": "tcp", "QUOIT_INTERFACE": "lo", "QUOIT_IP_FAMILY": "4"}
    with open_to_all() as place:
        texts = run(2, worker_cannot_bind, backend=None, argument=who, env=env, directory=Path(place))
    for text in texts:
        assert f"rank {who} (" in text and "tcp: cannot bind 127.0.0.1" in text and "of interface lo: Cannot assign requested address" in text, text
