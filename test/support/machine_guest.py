# SPDX-License-Identifier: Apache-2.0
"""Inside a machine that machine.py started: makes the RDMA devices, then runs commands that come over a virtio port, as JSON a line.

To here:   {"do": "start", "id": 1, "words": [...], "env": {...}, "cwd": "/"}   {"do": "kill", "id": 1, "signal": 9}
From here: {"ready": seconds since boot}   {"id": 1, "stream": "out" or "err", "text": "..."}   {"id": 1, "status": 0}

Arguments: how many machines there are, the number of this one. A machine alone has two devices, rxe0 on net0 (10.78.0.1) and rxe1 on net1
(10.78.0.2), the ends of a veth pair; of several, each has rxe0 on net0, on a wire to the other.
"""
import glob
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading

os.environ["PATH"] = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def write(path, text):
    with open(path, "w") as file:
        file.write(text)


def run(*words, text=None):
    subprocess.run(words, check=True, input=text, text=True, stdout=sys.stderr)


def ip(*lines):
    run("ip", "-batch", "-", text="".join(line + "\n" for line in lines))


def veth_pair():
    """RDMA devices exist only in the first network namespace, where both addresses are this machine's own. So what one end sends to the
    other would pass through lo, where no RDMA device listens: rules for local senders, before the table of local addresses, send it out."""
    for name in ("all", "default"):
        write(f"/proc/sys/net/ipv4/conf/{name}/accept_local", "1")
        write(f"/proc/sys/net/ipv4/conf/{name}/rp_filter", "0")
    lines = ["link add net0 mtu 9000 type veth peer name net1 mtu 9000", "rule add pref 1000 lookup local", "rule del pref 0"]
    for end in (0, 1):
        mine, other = f"10.78.0.{1 + end}", f"10.78.0.{2 - end}"
        lines += [f"addr add {mine}/24 dev net{end}", f"link set net{end} up", f"rule add pref 10{end} iif lo from {mine} to {other} lookup 10{end}"]
    lines += [f"route add 10.78.0.{2 - end} dev net{end} src 10.78.0.{1 + end} table 10{end}" for end in (0, 1)]
    ip(*lines)


def wire(index):
    name = os.path.basename(os.path.dirname(glob.glob("/sys/class/net/*/device")[0]))
    ip(f"link set {name} name net0", f"addr add 10.78.0.{1 + index}/24 dev net0", "link set net0 up")


def set_up(count, index):
    socket.sethostname(f"machine{index}")
    write("/proc/sys/net/ipv6/conf/default/accept_dad", "0")
    ip("link set lo up")
    if count == 1:
        veth_pair()
    else:
        wire(index)
    for device in range(2 if count == 1 else 1):
        run("rdma", "link", "add", f"rxe{device}", "type", "rxe", "netdev", f"net{device}")
    for path in glob.glob("/proc/[0-9]*/comm"):  # programs that poll would starve the threads that move rxe's packets
        with open(path) as file:
            if file.read().startswith("ksoftirqd"):
                os.sched_setscheduler(int(path.split("/")[2]), os.SCHED_FIFO, os.sched_param(1))
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    resource.setrlimit(resource.RLIMIT_NOFILE, (65536, 65536))


def open_port():
    for path in glob.glob("/sys/class/virtio-ports/*/name"):
        with open(path) as file:
            if file.read().strip() == "quoit":
                return os.open(f"/dev/{path.split('/')[-2]}", os.O_RDWR | os.O_CLOEXEC)
    raise RuntimeError("there is no virtio port called quoit")


class Agent:
    def __init__(self, port):
        self._port, self._lock, self._processes = port, threading.Lock(), {}

    def tell(self, **message):
        line = json.dumps(message).encode() + b"\n"
        with self._lock:
            while line:
                line = line[os.write(self._port, line):]

    def serve(self):
        with os.fdopen(os.dup(self._port), "rb") as lines:
            for line in lines:
                message = json.loads(line)
                if message["do"] == "start":
                    self._start(message)
                else:
                    self._kill(message["id"], message["signal"])

    def _start(self, message):
        try:
            process = subprocess.Popen(message["words"], env=message["env"], cwd=message["cwd"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                       stderr=subprocess.PIPE, start_new_session=True)
        except OSError as error:
            self.tell(id=message["id"], stream="err", text=f"{message['words'][0]}: {error}\n")
            self.tell(id=message["id"], status=127)
            return
        self._processes[message["id"]] = process
        threading.Thread(target=self._attend, args=(message["id"], process), daemon=True).start()

    def _attend(self, number, process):
        readers = [threading.Thread(target=self._pass_on, args=(number, name, pipe)) for name, pipe in (("out", process.stdout), ("err", process.stderr))]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()
        self.tell(id=number, status=process.wait())

    def _pass_on(self, number, name, pipe):
        while True:
            part = os.read(pipe.fileno(), 32768)
            if not part:
                break
            self.tell(id=number, stream=name, text=part.decode(errors="replace"))

    def _kill(self, number, what):
        """The command and what it started: it leads a session of its own."""
        try:
            os.killpg(self._processes[number].pid, what)
        except (KeyError, ProcessLookupError):
            pass


def main():
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    set_up(int(sys.argv[1]), int(sys.argv[2]))
    agent = Agent(open_port())
    with open("/proc/uptime") as file:
        agent.tell(ready=float(file.read().split()[0]))
    agent.serve()


main()
