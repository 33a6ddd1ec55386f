#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Several hosts on one machine: network namespaces joined by veth pairs, with real link rates. Needs root, ip and tc.

A namespace is a host to everything that matters here: it has its own interfaces, routes, loopback, abstract Unix sockets and, for
what is run in it, its own host name and /etc/hosts.

    with Hosts([4, 3], rate="1gbit") as hosts:            # 4 ranks on the first host, 3 on the second
        results = hosts.run([sys.executable, "train.py"], timeout=60)
        assert all(r.returncode == 0 for r in results), hosts.explain(results)
        print(hosts.counters(0))                          # bytes through host 0's interface

    python hosts.py --hosts 4+3 --rate 1gbit -- python train.py

Two hosts are joined by one veth pair, more by a bridge in a namespace of its own. Every host's interface is called eth0, host h has
the addresses 10.77.0.(h+1) and fd77::(h+1), and is called node<h>. Names of namespaces hold the pid of the process that made them,
so runs beside each other do not meet; what a killed run left behind is removed by the next one.
"""
import argparse
import atexit
import dataclasses
import errno
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

PREFIX = "quoit"
IPV4, IPV6 = "10.77.0.", "fd77::"


class HostsError(RuntimeError):
    """Namespaces cannot be made here, or a command to make them failed."""


@dataclasses.dataclass
class Result:
    """What became of one rank's process."""

    rank: int
    host: int
    returncode: int | None
    stdout: str
    stderr: str
    seconds: float
    timed_out: bool


def why_unavailable():
    """None when hosts can be made on this machine, else the reason, for a skip."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    for tool in ("ip", "tc", "unshare"):
        if shutil.which(tool) is None:
            return f"{tool} is not installed (Debian: iproute2, util-linux)"
    name = f"{PREFIX}-{os.getpid()}-probe"
    probe = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
    if probe.returncode != 0:
        return f"ip netns add failed: {probe.stderr.strip()}"
    subprocess.run(["ip", "netns", "del", name], capture_output=True)
    return None


def command(*words):
    """Run a tool; HostsError with its own words when it fails."""
    done = subprocess.run(words, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        raise HostsError(f"{' '.join(words)}: {done.stderr.strip() or done.stdout.strip() or f'status {done.returncode}'}")
    return done.stdout


def namespaces():
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout
    return [line.split()[0] for line in listed.splitlines() if line.strip()]


def remove_namespace(name):
    """End what still runs in one of our namespaces, remove it and its /etc/netns folder. Never raises."""
    pids = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True).stdout.split()
    for pid in pids:
        try:
            os.kill(int(pid), signal.SIGKILL)
        except ProcessLookupError:
            pass
    subprocess.run(["ip", "netns", "del", name], capture_output=True)
    shutil.rmtree(os.path.join("/etc/netns", name), ignore_errors=True)


def is_alive(pid):
    try:
        os.kill(pid, 0)
    except OSError as error:
        return error.errno == errno.EPERM
    return True


def remove_leftovers():
    """Namespaces whose maker is gone (it was killed)."""
    for name in namespaces():
        match = re.fullmatch(rf"{PREFIX}-(\d+)-\w+", name)
        if match and not is_alive(int(match[1])):
            remove_namespace(name)


def last_lines(text, count=12):
    return "\n".join("    " + line for line in text.strip().splitlines()[-count:])


class Hosts:
    """Namespaces as hosts, with `ranks[h]` ranks each. A context manager; everything is undone on exit, whatever happened.

    rate: of each direction of each host's link, as tc writes it ("1gbit"); None: as fast as the kernel. families: "4", "6" or "46".
    """

    def __init__(self, ranks, rate=None, burst="256kb", latency="20ms", families="46", mtu=1500):
        self.ranks, self.rate, self.burst, self.latency, self.families, self.mtu = list(ranks), rate, burst, latency, families, mtu
        if not self.ranks or min(self.ranks) < 0 or len(self.ranks) > 200:
            raise ValueError(f"ranks {ranks}: expected the number of ranks on each of 1 to 200 hosts")
        self.interface = "eth0" if len(self.ranks) > 1 else "lo"  # one host has nobody to be joined with
        self._made, self._processes, self._signals = [], [], {}
        self._shaped = []  # (namespace, device) with a rate
        self._serial = 0

    # ------------------------------------------------------------ making and removing

    def __enter__(self):
        why = why_unavailable()
        if why:
            raise HostsError(why)
        remove_leftovers()
        Hosts._count = getattr(Hosts, "_count", 0) + 1
        self._base = f"{PREFIX}-{os.getpid()}-{Hosts._count}"
        atexit.register(self.close)
        self._catch_signals()
        try:
            self._build()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *unused):
        self.close()

    def _catch_signals(self):
        """SIGTERM, SIGHUP and SIGINT become SystemExit, so that `finally` and `with` do their work, also where SIGINT came ignored."""
        if threading.current_thread() is not threading.main_thread():
            return

        def leave(number, frame):
            raise SystemExit(128 + number)

        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            self._signals[number] = signal.signal(number, leave)

    def namespace(self, host):
        return f"{self._base}h{host}"

    def name(self, host):
        return f"node{host}"

    def ipv4(self, host):
        return f"{IPV4}{host + 1}"

    def ipv6(self, host):
        return f"{IPV6}{host + 1:x}"

    def address(self, host):
        return self.ipv4(host) if "4" in self.families else self.ipv6(host)

    def _add_namespace(self, name):
        command("ip", "netns", "add", name)
        self._made.append(name)
        command("ip", "-n", name, "link", "set", "lo", "up")

    def _write_names(self, host):
        """/etc/hosts as a host would have it; `ip netns exec` puts it in place."""
        folder = os.path.join("/etc/netns", self.namespace(host))
        os.makedirs(folder, exist_ok=True)
        with open(os.path.join(folder, "hosts"), "w") as file:
            file.write("127.0.0.1 localhost\n::1 localhost\n")
            for other in range(len(self.ranks)):
                file.write(f"{self.address(other)} {self.name(other)}\n")

    def _shape(self, namespace, device):
        self._shaped.append((namespace, device))
        if self.rate:
            command("ip", "netns", "exec", namespace, "tc", "qdisc", "replace", "dev", device, "root", "tbf", "rate", self.rate, "burst", self.burst,
                    "latency", self.latency)

    def set_rate(self, rate):
        """Another rate for every link, while they are in use."""
        self.rate, shaped, self._shaped = rate, self._shaped, []
        for namespace, device in shaped:
            self._shape(namespace, device)

    def _configure(self, host):
        namespace = self.namespace(host)
        if self.interface != "lo":
            command("ip", "-n", namespace, "link", "set", self.interface, "mtu", str(self.mtu))
        if "4" in self.families:
            command("ip", "-n", namespace, "addr", "add", f"{self.ipv4(host)}/24", "dev", self.interface)
        if "6" in self.families:
            command("ip", "-n", namespace, "-6", "addr", "add", f"{self.ipv6(host)}/64", "dev", self.interface, "nodad")
        command("ip", "-n", namespace, "link", "set", self.interface, "up")
        self._shape(namespace, self.interface)

    def _build(self):
        hosts = len(self.ranks)
        for host in range(hosts):
            self._add_namespace(self.namespace(host))
            self._write_names(host)
        if hosts == 2:
            command("ip", "link", "add", self.interface, "netns", self.namespace(0), "type", "veth", "peer", "name", self.interface, "netns",
                    self.namespace(1))
        elif hosts > 2:
            self._build_bridge(hosts)
        for host in range(hosts):
            self._configure(host)
        self._wait_for_links()

    def _wait_for_links(self):
        """A veth tells its carrier a moment after both ends are up."""
        deadline = time.monotonic() + 5
        for host in range(len(self.ranks)):
            while "LOWER_UP" not in command("ip", "-n", self.namespace(host), "link", "show", "dev", self.interface):
                if time.monotonic() > deadline:
                    raise HostsError(f"{self.interface} of {self.namespace(host)} did not come up in 5 s")
                time.sleep(0.01)

    def _build_bridge(self, hosts):
        switch = f"{self._base}sw"
        self._add_namespace(switch)
        command("ip", "-n", switch, "link", "add", "br0", "type", "bridge")
        command("ip", "-n", switch, "link", "set", "br0", "mtu", str(self.mtu), "up")
        for host in range(hosts):
            port = f"port{host}"
            command("ip", "link", "add", self.interface, "netns", self.namespace(host), "type", "veth", "peer", "name", port, "netns", switch)
            command("ip", "-n", switch, "link", "set", port, "master", "br0", "mtu", str(self.mtu), "up")
            self._shape(switch, port)

    def close(self):
        """End our processes, remove the namespaces. May be called again."""
        for process in self._processes:
            self._kill(process, signal.SIGKILL)
        for process in self._processes:
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                print(f"hosts: process {process.pid} does not end", file=sys.stderr)
        self._processes.clear()
        while self._made:
            remove_namespace(self._made.pop())
        while self._signals:
            number, handler = self._signals.popitem()
            signal.signal(number, handler)
        atexit.unregister(self.close)

    # ------------------------------------------------------------ running

    @staticmethod
    def _kill(process, number):
        """Each process was started as the leader of a session of its own: its group is it and its children."""
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            pass

    def start(self, host, words, env=None, **keywords):
        """subprocess.Popen of a command on a host. It is killed by close() at the latest."""
        inner = ["unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', self.name(host), *words]
        process = subprocess.Popen(["ip", "netns", "exec", self.namespace(host), *inner], env=env, start_new_session=True,
                                   stdin=keywords.pop("stdin", subprocess.DEVNULL), **keywords)
        self._processes.append(process)
        return process

    def call(self, host, words, timeout=60, env=None):
        """Run a command on a host; subprocess.CompletedProcess with text outputs. TimeoutExpired after ending it."""
        process = self.start(host, words, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            self._kill(process, signal.SIGKILL)
            process.communicate()
            raise
        return subprocess.CompletedProcess(words, process.returncode, out, err)

    def places(self):
        """[(rank, host, local rank)], host after host."""
        flat = [(host, local) for host, count in enumerate(self.ranks) for local in range(count)]
        return [(rank, host, local) for rank, (host, local) in enumerate(flat)]

    def environment(self, rank, host, local, port, extra=None):
        """What torchrun would set for this rank."""
        values = dict(os.environ, RANK=str(rank), WORLD_SIZE=str(sum(self.ranks)), LOCAL_RANK=str(local), LOCAL_WORLD_SIZE=str(self.ranks[host]),
                      GROUP_RANK=str(host), MASTER_ADDR=self.address(0), MASTER_PORT=str(port), PYTHONUNBUFFERED="1")
        values.update(extra(rank) if callable(extra) else extra or {})
        return values

    def run(self, words, timeout=120, env=None, grace=10, first_failure_ends=True, port=None):
        """Run a command once a rank, with RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT set.

        env: more variables, or a function of the rank that gives them. After `timeout` seconds, or `grace` seconds after a rank
        failed, those left are killed. Returns a Result a rank.
        """
        self._serial += 1
        port = port or 29500 + (os.getpid() + 17 * self._serial) % 400
        with tempfile.TemporaryDirectory(prefix="quoit-hosts-") as folder:
            return self._run_in(folder, words, timeout, env, grace, first_failure_ends, port)

    def _run_in(self, folder, words, timeout, env, grace, first_failure_ends, port):
        began, processes, files = time.monotonic(), {}, {}
        ended, timed_out = {}, set()
        try:
            for rank, host, local in self.places():
                files[rank] = [open(os.path.join(folder, f"{rank}.{kind}"), "w+", errors="replace") for kind in ("out", "err")]
                processes[rank] = self.start(host, words, env=self.environment(rank, host, local, port, env), stdout=files[rank][0],
                                             stderr=files[rank][1])
            deadline = began + timeout
            while len(ended) < len(processes):
                for rank, process in processes.items():
                    if rank not in ended and process.poll() is not None:
                        ended[rank] = time.monotonic() - began
                        if process.returncode != 0 and first_failure_ends:
                            deadline = min(deadline, time.monotonic() + grace)
                if time.monotonic() > deadline:
                    timed_out = set(processes) - set(ended)
                    break
                time.sleep(0.01)
        finally:
            for rank, process in processes.items():
                self._kill(process, signal.SIGKILL)
                process.wait()
                self._processes.remove(process)
        results = []
        for rank, host, _ in self.places():
            texts = []
            for file in files[rank]:
                file.seek(0)
                texts.append(file.read())
                file.close()
            code = None if rank in timed_out else processes[rank].returncode
            results.append(Result(rank, host, code, *texts, ended.get(rank, time.monotonic() - began), rank in timed_out))
        return results

    def explain(self, results):
        """For an assertion: what the ranks that did not end well said; all of them when all did."""
        bad = [r for r in results if r.returncode != 0] or results
        parts = [f"hosts {'+'.join(map(str, self.ranks))}, rate {self.rate}, families {self.families}"]
        for r in bad:
            how = f"killed after {r.seconds:.1f} s" if r.timed_out else f"status {r.returncode} after {r.seconds:.1f} s"
            parts.append(f"rank {r.rank} on {self.name(r.host)}: {how}\n  stdout:\n{last_lines(r.stdout)}\n  stderr:\n{last_lines(r.stderr)}")
        return "\n".join(parts)

    # ------------------------------------------------------------ looking

    def counters(self, host):
        """{"sent": bytes, "received": bytes, "sent_packets": ..., "received_packets": ...} of the host's interface since it was made."""
        text = command("ip", "-n", self.namespace(host), "-s", "-j", "link", "show", "dev", self.interface)
        link = json.loads(text)[0]["stats64"]
        return {"sent": link["tx"]["bytes"], "received": link["rx"]["bytes"], "sent_packets": link["tx"]["packets"],
                "received_packets": link["rx"]["packets"]}

    def set_netem(self, host, what):
        """What the host's interface does to what it sends, instead of a rate: "delay 10ms"; "loss 100%" cuts the cable while the interface stays
        up. Kernels for containers lack it; the machines of machine.py have it."""
        command("ip", "netns", "exec", self.namespace(host), "tc", "qdisc", "replace", "dev", self.interface, "root", "netem", *what.split())

    def set_link(self, host, up):
        """Pull the host's cable, or put it back."""
        command("ip", "-n", self.namespace(host), "link", "set", self.interface, "up" if up else "down")


def free_port():
    """A port that is free on this machine's loopback now."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def parse_hosts(text):
    """"4+3" -> [4, 3]; "2x3" -> [3, 3] (2 hosts with 3 ranks)."""
    match = re.fullmatch(r"(\d+)x(\d+)", text)
    if match:
        return [int(match[2])] * int(match[1])
    try:
        return [int(word) for word in text.split("+")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: expected ranks on each host such as 4+3, or 2x4") from None


def print_prefixed(stream, label, text):
    for line in text.splitlines():
        print(f"[{label}] {line}", file=stream)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=parse_hosts, default=[1, 1], help="ranks on each host: 4+3, 2x4 (default 1+1)")
    parser.add_argument("--rate", help="of each host's link: 1gbit, 40mbit (default: unlimited)")
    parser.add_argument("--burst", default="256kb")
    parser.add_argument("--latency", default="20ms", help="what the link's queue holds (default 20ms)")
    parser.add_argument("--families", default="46", choices=["4", "6", "46"], help="addresses the hosts have (default 46)")
    parser.add_argument("--timeout", type=float, default=600, help="seconds (default 600)")
    parser.add_argument("--clean", action="store_true", help="only remove what killed runs left behind")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="-- command to run once a rank")
    options = parser.parse_args()
    if options.clean:
        remove_leftovers()
        return 0
    words = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not words:
        parser.error("no command given: hosts.py --hosts 4+3 -- command ...")
    try:
        with Hosts(options.hosts, options.rate, options.burst, options.latency, options.families) as hosts:
            results = hosts.run(words, timeout=options.timeout)
            for r in results:
                print_prefixed(sys.stdout, f"{hosts.name(r.host)} rank {r.rank}", r.stdout)
                print_prefixed(sys.stderr, f"{hosts.name(r.host)} rank {r.rank}", r.stderr)
            for host in range(len(options.hosts)):
                counted = hosts.counters(host)
                print(f"# {hosts.name(host)}: {counted['sent']} bytes sent, {counted['received']} received")
            bad = [r for r in results if r.returncode != 0]
            for r in bad:
                print(f"# rank {r.rank}: " + (f"killed after {r.seconds:.1f} s" if r.timed_out else f"status {r.returncode}"), file=sys.stderr)
            return 1 if bad else 0
    except HostsError as error:
        print(f"hosts: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
