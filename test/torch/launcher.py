# SPDX-License-Identifier: Apache-2.0
"""Start the ranks of a test as processes of their own, with a time limit, and collect what they say.

A test calls ``run(size, worker)`` with a function of its own module. Each rank imports that module, makes the default group
(unless told otherwise), calls ``worker(rank, size)``, and gives its result back as JSON. A rank that raises, dies or hangs fails
the test with the tail of every rank's output.
"""

from __future__ import annotations

import importlib
import inspect
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Callable, Optional

HERE = Path(__file__).resolve().parent
BACKEND = os.environ.get("QUOIT_TEST_BACKEND", "quoit")
SLOW = float(os.environ.get("TEST_SLOW", "1"))  # stretches all limits, for a machine that is busy


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


def start(
    size: int,
    worker: Callable[[int, int], Any],
    limit: float = 60,
    backend: Optional[str] = BACKEND,
    env: Optional[dict[str, str]] = None,
    argument: Any = None,
    ranks: Optional[list[int]] = None,
    meanwhile: Optional[Callable[[list[subprocess.Popen]], None]] = None,
    directory: Optional[Path] = None,
    port: Optional[int] = None,
) -> list[Rank]:
    """Run `worker` in `size` processes (or only `ranks`); `meanwhile` is called with them once they are started."""
    port = port or free_port()
    with tempfile.TemporaryDirectory(prefix="quoit-test-") as own_directory:
        place = Path(directory or own_directory)
        processes: dict[int, subprocess.Popen] = {}
        outputs = {}
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
            variables.update(env or {})
            outputs[number] = open(place / f"output{number}", "w+b")
            source = Path(inspect.getsourcefile(worker)).stem
            command = [sys.executable, str(HERE / "launcher.py"), source, worker.__name__, backend or ""]
            processes[number] = subprocess.Popen(
                command, env=variables, stdin=subprocess.DEVNULL, stdout=outputs[number], stderr=subprocess.STDOUT, cwd=place
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
                outputs[number].seek(0)
                answer.output = outputs[number].read().decode(errors="replace")
                outputs[number].close()
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


def message_of(call: Callable[[], Any], kind: type = Exception) -> str:
    """In a rank: the text of the exception that `call` must raise, which must be a `kind`."""
    try:
        call()
    except kind as error:
        return str(error)
    except BaseException as error:
        raise AssertionError(f"expected {kind.__name__}, got {type(error).__name__}: {error}") from error
    raise AssertionError(f"expected {kind.__name__}, nothing was raised")


def _main() -> None:
    import faulthandler

    source, name, backend = sys.argv[1:]
    faulthandler.enable()
    faulthandler.dump_traceback_later(max(1.0, float(os.environ["TEST_LIMIT"]) - 2), exit=False)
    sys.path.insert(0, str(HERE))

    import torch
    import torch.distributed as dist

    import quoit  # noqa: F401

    torch.set_num_threads(1)
    torch.manual_seed(1)
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if backend:
        dist.init_process_group(backend, init_method="env://")
    result = getattr(importlib.import_module(source), name)(rank, size)
    faulthandler.cancel_dump_traceback_later()
    if backend and dist.is_initialized():
        dist.destroy_process_group()
    Path(os.environ["TEST_RESULT"]).write_text(json.dumps(result))


if __name__ == "__main__":
    _main()
