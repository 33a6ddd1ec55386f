# SPDX-License-Identifier: Apache-2.0
"""Start the ranks of a test as processes of their own, with a time limit, and collect what they say.

A test calls ``run(size, worker)`` with a function of its own module. Each rank imports that module, makes the default group
(unless told otherwise), calls ``worker(rank, size)``, and gives its result back as JSON. A rank that raises, dies or hangs fails
the test with the tail of every rank's output.

Importing torch takes a second and a half of a core. So ranks are forked from a nursery, a process that has imported it, opened
nothing and started no thread. A test module whose ranks all need more of torch lists it in ``IMPORTS``, and the nursery imports that
too, once. A test whose environment is read while torch is imported gets processes that start from nothing.

Taking an interpreter apart that has imported torch costs a fifth of a second of a core, whatever a test did. So of forked ranks that
end well only the last one ends as an interpreter does; all do in a test module that says ``ENDS = "whole"``.

``TEST_LATE=2`` makes rank 2 of every job come and go late: it sleeps before it makes the default group, before its worker and after it
(``TEST_LATE=2:0.5``: so many seconds each time; else one). So a test shows where it counts on ranks that keep step, above all on the
store, which ends with rank 0. Tests of ranks that must be quick may fail under it.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import gc
import importlib
import inspect
import json
import os
import random
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, Callable, Iterator, Optional, Union

HERE = Path(__file__).resolve().parent
BACKEND = os.environ.get("QUOIT_TEST_BACKEND", "quoit")
SLOW = float(os.environ.get("TEST_SLOW", "1"))  # stretches all limits, for a machine that is busy
LONG = os.environ.get("QUOIT_TEST_LONG") == "1"


def in_part(cases: Any, *few: Any) -> list[Any]:
    """Cases of a test that takes long: all of them when it may, else these few."""
    every = list(cases)
    missing = [each for each in few if each not in every]
    if missing:
        raise ValueError(f"{missing} are none of the cases {every}")
    return every if LONG else list(few)


def free_port() -> int:
    """One that is free now, and below those that the kernel gives to whoever asks for any."""
    for port in random.sample(range(10000, 30000), 100):
        with socket.socket() as listener:
            try:
                listener.bind(("0.0.0.0", port))
            except OSError:
                continue
            return port
    raise OSError("none of 100 ports is free")


class Rank:
    """What became of one rank."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.result: Any = None
        self.status: Optional[int] = None  # of the process; None: it was still running at the limit
        self.output = ""

    def __repr__(self) -> str:
        state = "still running at the limit" if self.status is None else f"exit status {self.status}"
        return f"-- rank {self.number}: {state}\n{self.output[-3000:]}"


class ForkedRank:
    """A child of the nursery, with the part of subprocess.Popen that tests use."""

    def __init__(self, nursery: "Nursery", pid: int) -> None:
        self.nursery, self.pid = nursery, pid

    def poll(self) -> Optional[int]:
        self.nursery.hear(0)
        return self.nursery.ended.get(self.pid)

    def wait(self, timeout: float = 60) -> int:
        end = time.monotonic() + timeout
        while (status := self.poll()) is None:
            if time.monotonic() > end:
                raise subprocess.TimeoutExpired(f"rank with pid {self.pid}", timeout)
            self.nursery.hear(0.05)
        return status

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)


class Nursery:
    """The test's end of the process that ranks are forked from. Lines of JSON go both ways."""

    def __init__(self) -> None:
        self.link, theirs = socket.socketpair()
        self.ended: dict[int, int] = {}  # exit status by pid, negative for a signal
        self.born: list[int] = []
        self.rest = b""
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, str(HERE / "launcher.py"), "--nursery", str(theirs.fileno())],
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        atexit.register(self.close)

    def close(self) -> None:
        self.link.close()  # it ends, and kills what it still has
        self.process.wait()

    def hear(self, seconds: float) -> None:
        """Take in what it has said, waiting for `seconds` at most."""
        while select.select([self.link], [], [], seconds)[0]:
            data = self.link.recv(65536)
            if not data:
                raise RuntimeError(f"the process that forks ranks ended with status {self.process.wait()}")
            *lines, self.rest = (self.rest + data).split(b"\n")
            for line in lines:
                said = json.loads(line)
                if "status" in said:
                    self.ended[said["pid"]] = said["status"]
                else:
                    self.ended.pop(said["pid"], None)
                    self.born.append(said["pid"])
            seconds = 0

    def fork(self, words: list[str], env: dict[str, str], output: Path, cwd: Path, imports: list[str], place: Optional[list[str]]) -> ForkedRank:
        order = {"words": words, "env": env, "output": str(output), "cwd": str(cwd), "imports": imports, "place": place}
        self.link.sendall(json.dumps(order).encode() + b"\n")
        while not self.born:
            self.hear(5)
        return ForkedRank(self, self.born.pop())


@functools.cache
def nursery() -> Nursery:
    return Nursery()


def start(
    size: int,
    worker: Callable[[int, int], Any],
    limit: float = 60,
    backend: Optional[str] = BACKEND,
    env: Optional[dict[str, str]] = None,
    argument: Any = None,
    ranks: Optional[list[int]] = None,
    meanwhile: Optional[Callable[[list[Any]], None]] = None,
    directory: Optional[Path] = None,
    port: Optional[int] = None,
    hosts: Any = None,
) -> list[Rank]:
    """Run `worker` in `size` processes (or only `ranks`); `meanwhile` is called with them once they are started.

    `hosts` (of test/support/hosts.py) says which of its network namespaces each rank is in; their loopback is not this one.
    """
    port = port or free_port()
    with tempfile.TemporaryDirectory(prefix="quoit-test-") as own_directory:
        place = Path(directory or own_directory)
        processes: dict[int, Union[subprocess.Popen, ForkedRank]] = {}
        fresh = any(not name.startswith("QUOIT_") for name in env or {})
        assert not (fresh and hosts), "only ranks that are forked can enter a namespace"
        for number in ranks if ranks is not None else range(size):
            variables = dict(os.environ)
            variables.update(
                RANK=str(number),
                WORLD_SIZE=str(size),
                LOCAL_RANK=str(number),
                MASTER_ADDR="127.0.0.1",
                MASTER_PORT=str(port),
                OMP_NUM_THREADS="1",
                TEST_RESULT=str(place / f"result{number}"),
                TEST_DIRECTORY=str(place),
                TEST_LIMIT=str(limit * SLOW),
                TEST_ARGUMENT=json.dumps(argument),
            )
            where = None
            if hosts is not None:
                _, host, local = hosts.places()[number]
                where = [hosts.namespace(host), hosts.name(host)]
                variables.update(LOCAL_RANK=str(local), MASTER_ADDR=hosts.address(0))
            variables.update(env or {})
            output = place / f"output{number}"
            words = [str(Path(inspect.getsourcefile(worker)).resolve()), worker.__name__, backend or ""]
            module = inspect.getmodule(worker)
            variables["TEST_END"] = "whole" if fresh or number == size - 1 else getattr(module, "ENDS", "short")
            if not fresh:
                imports = getattr(module, "IMPORTS", [])
                processes[number] = nursery().fork(words, variables, output, place, imports, where)
                continue
            with open(output, "wb") as file:
                processes[number] = subprocess.Popen(
                    [sys.executable, str(HERE / "launcher.py"), *words],
                    env=variables,
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    cwd=place,
                )
        try:
            if meanwhile is not None:
                meanwhile(list(processes.values()))
            end = time.monotonic() + limit * SLOW
            while time.monotonic() < end and any(p.poll() is None for p in processes.values()):
                time.sleep(0.02)
        finally:
            answers = []
            for number, process in processes.items():
                answer = Rank(number)
                answer.status = process.poll()
                if answer.status is None:
                    process.send_signal(signal.SIGKILL)
                    process.wait()
                answer.output = (place / f"output{number}").read_text(errors="replace")
                result = place / f"result{number}"
                if result.exists():
                    answer.result = json.loads(result.read_text())
                answers.append(answer)
    return answers


def run(size: int, worker: Callable[[int, int], Any], **options: Any) -> list[Any]:
    """As start(); all ranks must end well. Returns their results in rank order."""
    answers = start(size, worker, **options)
    bad = [answer for answer in answers if answer.status != 0]
    if bad:
        raise AssertionError(f"{worker.__name__} with {size} ranks:\n" + "\n".join(repr(answer) for answer in answers))
    return [answer.result for answer in answers]


def argument() -> Any:
    """In a rank: what the test gave to run()."""
    return json.loads(os.environ["TEST_ARGUMENT"])


def directory() -> Path:
    """In a rank: a directory that all ranks see."""
    return Path(os.environ["TEST_DIRECTORY"])


def meet(what: str, rank: int, size: int) -> None:
    """In a rank: return once all have called it, and so left what they did before. By files: an abort may follow at once."""
    (directory() / f"{what}{rank}").touch()
    wait_for(lambda: all((directory() / f"{what}{other}").exists() for other in range(size)), otherwise=f"not all ranks came to {what}")


def own_name(rank: int) -> str:
    """In a rank: as it is named in errors."""
    return f"rank {rank} ({socket.gethostname()}, pid {os.getpid()})"


def wait_for(what: Callable[[], Any], limit: float = 30, otherwise: str = "it did not come") -> Any:
    """What `what` gives, once that is something; asked again and again, for `limit` seconds at most."""
    end = time.monotonic() + limit * SLOW
    while not (found := what()):
        assert time.monotonic() < end, otherwise
        time.sleep(0.005)
    return found


@contextlib.contextmanager
def hosts_of(ranks: list[int], **options: Any) -> Iterator[Any]:
    """Network namespaces with so many ranks each, for start(); for one host None, which is no namespace. Skips the test where they cannot be made."""
    if len(ranks) == 1:
        yield None
        return
    import pytest

    sys.path.insert(0, str(HERE.parent / "support"))
    from hosts import Hosts, why_unavailable

    why = why_unavailable()
    if why:
        pytest.skip(why)
    with Hosts(ranks, **options) as hosts:
        yield hosts


def message_of(call: Callable[[], Any], kind: type = Exception) -> str:
    """In a rank: the text of the exception that `call` must raise, which must be a `kind`."""
    try:
        call()
    except kind as error:
        return str(error)
    except BaseException as error:
        raise AssertionError(f"expected {kind.__name__}, got {type(error).__name__}: {error}") from error
    raise AssertionError(f"expected {kind.__name__}, nothing was raised")


def _become(order: dict[str, Any]) -> list[str]:
    """In a new child of the nursery: take the order's output, environment and directory. Returns the words to go on with."""
    output = os.open(order["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    os.environ.clear()
    os.environ.update(order["env"])
    os.chdir(order["cwd"])
    if order["place"]:
        _enter(*order["place"])
    return order["words"]


def _enter(namespace: str, name: str) -> None:
    """Be on the host that a network namespace is, as `ip netns exec` and `unshare --uts` do it."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open(f"/run/netns/{namespace}") as file:
        entered = libc.setns(file.fileno(), 0x40000000) == 0 and libc.unshare(0x04000000) == 0  # CLONE_NEWNET, CLONE_NEWUTS
    if not entered:
        raise OSError(ctypes.get_errno(), f"cannot enter the network namespace {namespace}")
    socket.sethostname(name)


def _nurse(link: socket.socket) -> list[str]:
    """Fork a rank an order and tell of each end, until the other side closes. Returns in the ranks only."""
    import torch.distributed  # noqa: F401

    import quoit  # noqa: F401

    living: dict[int, int] = {}  # pid by pidfd
    rest = b""
    while True:
        ready = select.select([link, *living], [], [])[0]
        for descriptor in [entry for entry in ready if entry is not link]:
            pid = living.pop(descriptor)
            os.close(descriptor)
            status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            link.sendall(json.dumps({"pid": pid, "status": status}).encode() + b"\n")
        if link not in ready:
            continue
        data = link.recv(1 << 20)
        if not data:
            for pid in living.values():
                os.kill(pid, signal.SIGKILL)
            os._exit(0)
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            order = json.loads(line)
            for name in order["imports"]:
                importlib.import_module(name)
            gc.freeze()  # else each rank's last collection touches, and so copies, all that was imported: a second of a core
            pid = os.fork()
            if pid == 0:
                link.close()
                for descriptor in living:
                    os.close(descriptor)
                return _become(order)
            living[os.pidfd_open(pid)] = pid
            link.sendall(json.dumps({"pid": pid}).encode() + b"\n")


def _end_short() -> None:
    """What an interpreter does at its end but for taking itself apart."""
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _be_late() -> None:
    rank, _, seconds = os.environ.get("TEST_LATE", "").partition(":")
    if rank == os.environ["RANK"]:
        time.sleep(float(seconds or 1))


def _main() -> None:
    import faulthandler

    words = sys.argv[1:]
    if words[0] == "--nursery":
        words = _nurse(socket.socket(fileno=int(words[1])))
    source, name, backend = words
    faulthandler.enable()
    faulthandler.dump_traceback_later(max(1.0, float(os.environ["TEST_LIMIT"]) - 2), exit=False)
    sys.path[:0] = [str(Path(source).parent), str(HERE)]

    import torch
    import torch.distributed as dist

    import quoit  # noqa: F401

    torch.set_num_threads(1)
    torch.manual_seed(1)
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    _be_late()
    if backend:
        dist.init_process_group(backend, init_method="env://")
        _be_late()
    result = getattr(importlib.import_module(Path(source).stem), name)(rank, size)
    _be_late()
    faulthandler.cancel_dump_traceback_later()
    if backend and dist.is_initialized():
        dist.destroy_process_group()
    Path(os.environ["TEST_RESULT"]).write_text(json.dumps(result))
    if os.environ["TEST_END"] == "short":
        _end_short()


if __name__ == "__main__":
    _main()
