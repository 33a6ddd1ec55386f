# SPDX-License-Identifier: Apache-2.0
"""Turns among processes: a program that measures starts its ranks once, and gives them one turn after the other through files.

    with Team(folder, start_here(2, folder, rank), 300) as team:       the parent; rank() is what each rank does
        answers = team.turn({"what": "quoit"})                         what each rank returned, in their order

    serve(folder, rank, function)                                      a rank: calls function(order) once a turn, until the parent ends

Files work across network namespaces, and cost nothing while a turn is measured: between turns a rank looks for one every few milliseconds.
"""
import json
import os
import signal
import subprocess
import sys
import time
import traceback


def write(path, data):
    with open(f"{path}.part", "w") as file:
        json.dump(data, file)
    os.rename(f"{path}.part", path)


def read(path):
    with open(path) as file:
        return json.load(file)


def serve(folder, rank, play, limit=600):
    """In a rank. `play(order)` returns what can be written as JSON. An order of None ends it."""
    write(os.path.join(folder, f"ready.{rank}"), None)
    turn = 0
    while True:
        path, deadline = os.path.join(folder, f"go.{turn}"), time.monotonic() + limit
        while not os.path.exists(path):
            if time.monotonic() > deadline:
                raise SystemExit(f"rank {rank}: no turn came within {limit} s")
            time.sleep(0.003)
        order = read(path)
        if order is None:
            return
        write(os.path.join(folder, f"done.{turn}.{rank}"), play(order))
        turn += 1


class Team:
    """The parent's side. `processes`: [(rank, Popen, log file)], started by the caller; ended here."""

    def __init__(self, folder, processes, limit):
        self.folder, self.processes, self.deadline, self.turns = folder, processes, time.monotonic() + limit, 0

    def __enter__(self):
        for rank, _, _ in self.processes:
            self._await(f"ready.{rank}")
        return self

    def _await(self, name):
        """A rank's file; when a rank ended instead, what it said."""
        path = os.path.join(self.folder, name)
        while not os.path.exists(path):
            for rank, process, log in self.processes:
                if process.poll() is not None and not os.path.exists(path):
                    log.seek(0)
                    raise SystemExit(f"rank {rank} ended with status {process.returncode}:\n{log.read()[-3000:]}")
            if time.monotonic() > self.deadline:
                raise SystemExit(f"time limit reached while waiting for {name}")
            time.sleep(0.003)
        return read(path)

    def turn(self, order):
        write(os.path.join(self.folder, f"go.{self.turns}"), order)
        answers = [self._await(f"done.{self.turns}.{rank}") for rank, _, _ in self.processes]
        self.turns += 1
        return answers

    def __exit__(self, kind, *unused):
        try:
            if kind is None:
                write(os.path.join(self.folder, f"go.{self.turns}"), None)
                for rank, process, _ in self.processes:
                    process.wait(60)
        except subprocess.TimeoutExpired:
            traceback.print_exc()
        finally:
            for _, process, log in self.processes:
                if process.poll() is None:
                    process.kill()
                    process.wait()
                log.close()


class Forked:
    """A child made by fork(), with the part of subprocess.Popen that is used here."""

    def __init__(self, pid):
        self.pid, self.returncode = pid, None

    def poll(self):
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def wait(self, timeout=60):
        deadline = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(f"rank with pid {self.pid}", timeout)
            time.sleep(0.005)
        return self.returncode

    def kill(self):
        os.kill(self.pid, signal.SIGKILL)


def be_rank(rank, size, folder, log, environment, play):
    """In the child: never returns."""
    status = 1
    try:
        for descriptor in (1, 2):
            os.dup2(log.fileno(), descriptor)
        os.environ.update(RANK=str(rank), WORLD_SIZE=str(size), LOCAL_RANK=str(rank), INIT_METHOD=f"file://{folder}/store", **environment)
        play()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def start_here(size, folder, play, environment=None):
    """`play()` once a rank on this host, with what torchrun would set and a file as the ranks' store. The ranks are forked from this process, so that what it
    has imported need not be imported again; it must have no threads that matter."""
    processes = []
    sys.stdout.flush()
    for rank in range(size):
        log = open(os.path.join(folder, f"rank{rank}.log"), "w+")
        pid = os.fork()
        if pid == 0:
            be_rank(rank, size, folder, log, environment or {}, play)
        processes.append((rank, Forked(pid), log))
    return processes


def start_on(hosts, words, folder, environment=None):
    """The same on namespaced hosts (test/support/hosts.py)."""
    processes = []
    for rank, host, local in hosts.places():
        extra = {"GLOO_SOCKET_IFNAME": hosts.interface, "OMP_NUM_THREADS": "1", "INIT_METHOD": f"file://{folder}/store", **(environment or {})}
        log = open(os.path.join(folder, f"rank{rank}.log"), "w+")
        processes.append((rank, hosts.start(host, words, env=hosts.environment(rank, host, local, 29500, extra), stdout=log, stderr=log), log))
    return processes
