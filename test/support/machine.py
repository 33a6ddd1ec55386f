#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Emulated machines with what the outer one lacks: RDMA devices (Soft-RoCE) and netem. Needs qemu and Debian's kernel package.

    with Machines() as machines:                          # one, with rxe0 and rxe1 on the two ends of a veth pair
        done = machines[0].call(["ibv_devinfo"], timeout=20)
        assert done.status == 0, done.explain()

    python machine.py -- ibv_devinfo                      # the command's output and exit status
    python machine.py -n 2 -- sh -c 'ping -c 1 $OTHER'    # two machines on one wire, each runs the command; RANK, OTHER tell them apart

The root of a machine is this one's, shared read-only: the same paths, programs and libraries; what is written is lost. So programs are compiled
out here. Commands run as root, with this process's environment. KVM is used where it works, else everything is
emulated, some ten times slower (QUOIT_TEST_ACCEL=tcg asks for that). Time limits are tests' own; none may measure. When a machine fails, its kernel's
messages are part of the error. Nothing stays behind: the machines die with the process that started them, and have no files of their own.
"""
import argparse
import atexit
import collections
import dataclasses
import json
import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time

import machine_image

ADDRESS = "10.78.0."
GUEST = os.path.join(os.path.dirname(os.path.abspath(__file__)), "machine_guest.py")
BOOT_LIMIT = {"kvm": 60, "tcg": 240}  # seconds, wide: others may keep the processors busy


class MachineError(RuntimeError):
    """A machine did not start, or died."""


@dataclasses.dataclass
class Done:
    """What became of a command. `status` is as subprocess gives it: minus the signal that ended it; None: the time limit was reached."""

    words: list
    status: int | None
    out: str
    err: str
    seconds: float

    def explain(self):
        how = f"killed after {self.seconds:.1f} s" if self.status is None else f"status {self.status} after {self.seconds:.1f} s"
        return f"{' '.join(self.words)}: {how}\n  stdout:\n{self.out[-4000:]}\n  stderr:\n{self.err[-4000:]}"


def why_unavailable():
    """None when machines can be started here, else the reason, for a skip."""
    if platform.machine() != "x86_64":
        return f"the machines are x86-64, and run this one's programs, which are for {platform.machine()}"
    if shutil.which("qemu-system-x86_64") is None:
        return "qemu-system-x86_64 is not installed (Debian: qemu-system-x86)"
    return machine_image.why_unavailable()


def accelerators():
    """Those to be tried, in this order. A /dev/kvm on a processor that does not virtualise (kvm_pvm) runs only kernels made for it."""
    asked = os.environ.get("QUOIT_TEST_ACCEL")
    if asked:
        return [asked]
    with open("/proc/cpuinfo") as file:
        virtualises = any(line.startswith("flags") and {"vmx", "svm"} & set(line.split()) for line in file)
    return (["kvm"] if virtualises and os.access("/dev/kvm", os.R_OK | os.W_OK) else []) + ["tcg"]


class Process:
    """A command that runs in a machine."""

    def __init__(self, machine, number, words):
        self._machine, self.number, self.words = machine, number, words
        self.parts = {"out": [], "err": []}
        self.status = None
        self.ended = threading.Event()
        self._began, self._seconds = time.monotonic(), None
        self.printer = None  # called with (stream, text) as it comes

    def hear(self, message):
        """Of the machine's reader."""
        if "status" in message:
            self.status, self._seconds = message["status"], time.monotonic() - self._began
            self.ended.set()
            return
        self.parts[message["stream"]].append(message["text"])
        if self.printer:
            self.printer(message["stream"], message["text"])

    def kill(self, number=signal.SIGKILL):
        self._machine.tell(do="kill", id=self.number, signal=int(number))

    def text(self, stream="out"):
        """What it has written until now."""
        return "".join(self.parts[stream])

    def wait_for_text(self, text, timeout, stream="out"):
        """Until it has written `text`. MachineError when it ends, or `timeout` seconds pass, before."""
        deadline = time.monotonic() + timeout
        while text not in self.text(stream):
            over = self.ended.is_set() or time.monotonic() > deadline
            if over and text not in self.text(stream):
                raise MachineError(f"{text!r} did not come: {self.wait(0.1).explain()}")
            time.sleep(0.01)

    def wait(self, timeout):
        """Done. It is killed after `timeout` seconds."""
        timed_out = not self._machine.wait(self.ended, timeout)
        if timed_out:
            self.kill()
            self._machine.wait(self.ended, 10)
        seconds = self._seconds if self._seconds is not None else time.monotonic() - self._began
        return Done(self.words, None if timed_out else self.status, self.text("out"), self.text("err"), seconds)


class Machine:
    """One of them. Made by Machines."""

    def __init__(self, index):
        self.index, self.address = index, f"{ADDRESS}{index + 1}"
        self._console = collections.deque(maxlen=40)  # its kernel's newest lines
        self._qemu, self._socket, self._processes, self._lock = None, None, {}, threading.Lock()
        self._is_ready, self._is_lost, self.boot_seconds = threading.Event(), threading.Event(), None

    def start(self, accelerator, arguments, descriptors):
        """qemu, with what all machines have: a console, and a port for commands."""
        pairs = [socket.socketpair() for _ in range(2)]
        (console, console_end), (self._socket, port_end) = pairs
        words = ["setpriv", "--pdeathsig", "KILL",  # when the thread ends that starts it: the main one
                 "qemu-system-x86_64", "-accel", accelerator, *arguments, "-chardev", f"socket,id=console,fd={console_end.fileno()}", "-serial", "chardev:console",
                 "-device", "virtio-serial-pci", "-chardev", f"socket,id=port,fd={port_end.fileno()}", "-device", "virtserialport,chardev=port,name=quoit"]
        self._qemu = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
                                      pass_fds=[console_end.fileno(), port_end.fileno(), *descriptors])
        console_end.close()
        port_end.close()
        for read, what in ((self._read_console, console), (self._read, self._socket)):
            threading.Thread(target=read, args=[what], daemon=True).start()

    def _read_console(self, console):
        with console, console.makefile("r", errors="replace") as lines:
            try:
                self._console.extend(lines)
            except OSError:
                pass

    def _read(self, port):
        with port.makefile("rb") as lines:
            try:
                for line in lines:
                    message = json.loads(line)
                    if "ready" in message:
                        self.boot_seconds = message["ready"]
                        self._is_ready.set()
                    else:
                        self._processes[message["id"]].hear(message)
            except OSError:
                pass
        self._is_lost.set()

    def tell(self, **message):
        with self._lock:
            try:
                self._socket.sendall(json.dumps(message).encode() + b"\n")
            except OSError as error:
                raise self._lost(f"cannot be told anything: {error}") from None

    def _lost(self, how):
        said = self._qemu.stdout.read().decode(errors="replace") if self._qemu.poll() is not None else ""
        return MachineError(f"machine {self.index} {how}\n{said}its console ends so:\n{''.join(self._console)}")

    def wait(self, event, timeout):
        """True when the event came within `timeout` seconds. MachineError when the machine is gone."""
        deadline = time.monotonic() + timeout
        while not event.wait(min(0.1, max(0.0, deadline - time.monotonic()))):
            if event.is_set():
                break
            if self._is_lost.is_set() or self._qemu.poll() is not None:
                raise self._lost("is gone")
            if time.monotonic() >= deadline:
                return False
        return True

    def wait_until_ready(self, timeout):
        if not self.wait(self._is_ready, timeout):
            raise self._lost(f"did not come up in {timeout} s")

    def end(self):
        if self._qemu is None:
            return
        self._qemu.kill()
        self._qemu.wait()
        self._socket.close()

    def spawn(self, words, env=None, cwd=None, printer=None):
        """A Process. env: variables beside this process's own."""
        words = [str(word) for word in words]
        process = Process(self, len(self._processes) + 1, words)
        process.printer = printer
        self._processes[process.number] = process
        self.tell(do="start", id=process.number, words=words, env={**os.environ, **(env or {})}, cwd=cwd or os.getcwd())
        return process

    def call(self, words, timeout=60, env=None, cwd=None):
        """Run a command; Done."""
        return self.spawn(words, env, cwd).wait(timeout)

    def check(self, *words, timeout=30):
        """The output of a command that must end well."""
        done = self.call(words, timeout)
        if done.status != 0:
            raise MachineError(done.explain())
        return done.out


class Machines:
    """`count` machines, 1 or 2, until the end of the `with`, at most `limit` seconds. Index or iterate to get at them."""

    def __init__(self, count=1, limit=600, memory_mib=1024, processors=2):
        if count not in (1, 2):
            raise ValueError(f"{count} machines: there can be 1 or 2")
        self._count, self._limit, self._memory, self._processors = count, limit, memory_mib, processors
        self._machines, self._alarm, self.accelerator = [], None, None

    def __enter__(self):
        why = why_unavailable()
        if why:
            raise MachineError(why)
        files = machine_image.image()
        atexit.register(self.close)
        try:
            self._start_with_any(files)
        except BaseException:
            self.close()
            raise
        self._alarm = threading.Timer(self._limit, self._end_machines)
        self._alarm.daemon = True
        self._alarm.start()
        return self

    def __exit__(self, *unused):
        self.close()

    def __getitem__(self, index):
        return self._machines[index]

    def __len__(self):
        return len(self._machines)

    def _start_with_any(self, files):
        choices = accelerators()
        for accelerator in choices:
            try:
                self._start(accelerator, *files)
                self.accelerator = accelerator
                return
            except MachineError as error:
                if accelerator == choices[-1]:
                    raise
                print(f"machine: {accelerator} does not do: {error}", file=sys.stderr)
                self._end_machines()

    def _start(self, accelerator, kernel, initrd):
        self._machines = [Machine(index) for index in range(self._count)]
        ends = socket.socketpair() if self._count == 2 else ()
        for machine in self._machines:
            end = ends[machine.index].fileno() if ends else None
            machine.start(accelerator, self._arguments(machine.index, kernel, initrd, end), [end] if ends else [])
        for end in ends:
            end.close()
        for machine in self._machines:
            machine.wait_until_ready(BOOT_LIMIT.get(accelerator, 60))

    def _arguments(self, index, kernel, initrd, wire):
        """Of qemu. wire: a descriptor of the link between two machines."""
        agent = " ".join(f'"{word}"' for word in (sys.executable, "-I", "-S", GUEST, self._count, index))
        words = ["-machine", "pc", "-cpu", "max,-arch-capabilities", "-smp", str(self._processors), "-m", str(self._memory), "-nodefaults", "-display", "none",
                 "-no-reboot", "-kernel", str(kernel), "-initrd", str(initrd), "-append",
                 f"console=ttyS0 quiet panic=-1 mitigations=off random.trust_cpu=on no_timer_check -- {agent}",
                 "-virtfs", "local,path=/,mount_tag=root,readonly=on,security_model=none,multidevs=remap"]
        if wire is not None:
            words += ["-device", f"virtio-net-pci,netdev=wire,romfile=,mac=52:54:00:78:00:0{index + 1}", "-netdev", f"socket,id=wire,fd={wire}"]
        return words

    def _end_machines(self):
        for machine in self._machines:
            machine.end()

    def close(self):
        """May be called again."""
        if self._alarm:
            self._alarm.cancel()
        self._end_machines()
        self._machines = []
        atexit.unregister(self.close)


def run_everywhere(machines, words, timeout):
    """The exit status: the first machine's that is not 0."""

    def printer(prefix):
        def show(stream, text):
            out = sys.stdout if stream == "out" else sys.stderr
            out.write("".join(prefix + line for line in text.splitlines(keepends=True)))
            out.flush()
        return show

    count, deadline = len(machines), time.monotonic() + timeout
    processes = []
    for machine in machines:
        env = {"RANK": str(machine.index), "WORLD_SIZE": str(count), "OTHER": f"{ADDRESS}{2 - machine.index}", "MASTER_ADDR": f"{ADDRESS}1",
               "MASTER_PORT": "29500"} if count > 1 else None
        processes.append(machine.spawn(words, env, printer=printer(f"[{machine.index}] " if count > 1 else "")))
    results = [process.wait(max(0.1, deadline - time.monotonic())) for process in processes]
    for result in results:
        if result.status != 0:
            return 124 if result.status is None else result.status if result.status > 0 else 128 - result.status
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", type=int, choices=(1, 2), default=1, help="machines (default 1)")
    parser.add_argument("--timeout", type=float, default=300, help="seconds (default 300); the exit status is 124 then")
    parser.add_argument("--memory", type=int, default=1024, help="MiB of each (default 1024)")
    parser.add_argument("--verbose", action="store_true", help="say how the machines came up")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="-- command to run as root in each")
    options = parser.parse_args()
    words = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not words:
        parser.error("no command given: machine.py -- command ...")
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, lambda number, frame: sys.exit(128 + number))
    began = time.monotonic()
    try:
        with Machines(options.n, options.timeout + 60, options.memory) as machines:
            if options.verbose:
                boots = ", ".join(f"{machine.boot_seconds:.1f}" for machine in machines)
                print(f"machine: {machines.accelerator}, ready after {time.monotonic() - began:.1f} s ({boots} s after its kernel's start)", file=sys.stderr)
            return run_everywhere(machines, words, options.timeout)
    except (MachineError, machine_image.ImageError) as error:
        print(f"machine: {error}", file=sys.stderr)
        return 125


if __name__ == "__main__":
    sys.exit(main())
