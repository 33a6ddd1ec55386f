#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Quoit and Gloo against the wire: 4 + 3 ranks on two hosts joined by a gigabit link, and what iperf3 carries over the same link.

The hosts are network namespaces (test/support/hosts.py: root, ip, tc, iperf3), the link a veth pair under tbf. In turns, all in
one run: iperf3 in both directions at once, then allreduce of each backend. Printed is algorithm bandwidth (bytes of the tensor /
time of the slowest rank) over iperf3's payload rate of one direction. The optimum with h hosts is h / 2(h-1): 1 for two hosts,
since each must send and receive the tensor once.

    python bench/hosts.py                      # 7 ranks, 64 MiB, quoit and gloo
    python bench/hosts.py --hosts 1+1 --backend gloo --bytes 16M
    python bench/hosts.py --backend quoit --wire-dtype bf16
"""
import argparse
import datetime
import json
import os
import statistics
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "test", "support"))


def parse_size(text):
    shifts = {"K": 10, "M": 20, "G": 30}
    try:
        return int(text[:-1]) << shifts[text[-1].upper()] if text[-1].upper() in shifts else int(text)
    except (ValueError, IndexError):
        raise argparse.ArgumentTypeError(f"{text!r}: expected a size such as 64M") from None


def parse_arguments():
    from hosts import parse_hosts

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=parse_hosts, default=[4, 3], help="ranks on each host (default 4+3)")
    parser.add_argument("--rate", default="1gbit", help="of the link (default 1gbit)")
    parser.add_argument("--backend", default="quoit,gloo", help="in turns (default quoit,gloo)")
    parser.add_argument("--bytes", type=parse_size, default=64 << 20, help="of float32 (default 64M)")
    parser.add_argument("--wire-dtype", default="none", choices=["none", "float32", "bf16", "fp16", "int8"], help="quoit's between hosts (default none)")
    parser.add_argument("--rounds", type=int, default=5, help="turns (default 5)")
    parser.add_argument("--iterations", type=int, default=1, help="allreduces a turn (default 1)")
    parser.add_argument("--iperf-seconds", type=float, default=4, help="of each iperf3 run (default 4)")
    parser.add_argument("--timeout", type=float, default=900, help="seconds for the whole run")
    parser.add_argument("--json", help="write everything to this file")
    parser.add_argument("--rank-of", help=argparse.SUPPRESS)  # a folder: this process is a rank
    return parser.parse_args()


# ---------------------------------------------------------------- a rank


def wait_for(path, limit=120):
    deadline = time.monotonic() + limit
    while not os.path.exists(path):
        if time.monotonic() > deadline:
            raise SystemExit(f"hosts: nothing appeared at {path} within {limit} s")
        time.sleep(0.005)


def rank_main(options):
    """Each turn waits for a file `go.N`, which the parent writes when the link is free, and ends with `done.N` of rank 0."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    backends = options.backend.split(",")
    if "quoit" in backends:
        import quoit  # noqa: F401  registers the backend
    limit = datetime.timedelta(seconds=120)
    dist.init_process_group("gloo", timeout=limit)  # carries the turns; the contestants have groups of their own
    groups = [dist.new_group(backend=name, timeout=limit) for name in backends]
    rank, size = dist.get_rank(), dist.get_world_size()
    tensor = torch.ones(options.bytes // 4)
    for group in groups:  # connections, and results
        tensor.fill_(rank + 1)
        dist.all_reduce(tensor, group=group)
        if not bool(((tensor / (size * (size + 1) / 2) - 1).abs() <= (0.02 if options.wire_dtype != "none" else 0)).all()):
            raise SystemExit(f"hosts: rank {rank}: wrong sum")
    if rank == 0:
        for name, group in zip(backends, groups):
            if name == "quoit":
                import quoit

                with open(os.path.join(options.rank_of, "describe.txt"), "w") as file:
                    file.write(quoit.describe(group))
        open(os.path.join(options.rank_of, "ready"), "w").close()
    for turn in range(options.rounds * len(backends)):
        wait_for(os.path.join(options.rank_of, f"go.{turn}"))
        with open(os.path.join(options.rank_of, f"go.{turn}")) as file:
            group = groups[int(file.read())]
        tensor.fill_(1)
        dist.barrier(group=group)
        start = time.perf_counter()
        for _ in range(options.iterations):
            dist.all_reduce(tensor, group=group)
        taken = torch.tensor([(time.perf_counter() - start) / options.iterations], dtype=torch.float64)
        dist.all_reduce(taken, op=dist.ReduceOp.MAX)
        if rank == 0:
            path = os.path.join(options.rank_of, f"done.{turn}")
            with open(path + ".part", "w") as file:
                file.write(repr(taken.item()))
            os.rename(path + ".part", path)
    dist.barrier()
    dist.destroy_process_group()


# ---------------------------------------------------------------- the parent


class Iperf:
    """iperf3 in both directions at once; payload rate of one direction, the mean of the two, in bytes a second."""

    def __init__(self, hosts, seconds):
        self.hosts, self.seconds = hosts, seconds
        self.server = hosts.start(0, ["iperf3", "--server", "--forceflush"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for line in self.server.stdout:
            if "listening" in line:
                break

    def run(self):
        words = ["iperf3", "--client", self.hosts.address(0), "--bidir", "--json", "--time", str(max(1, round(self.seconds)))]
        done = self.hosts.call(len(self.hosts.ranks) - 1, words, timeout=self.seconds + 30)
        try:
            end = json.loads(done.stdout)["end"]
            both = [end["sum_received"]["bits_per_second"], end["sum_received_bidir_reverse"]["bits_per_second"]]
        except (ValueError, KeyError) as error:
            raise SystemExit(f"hosts: iperf3: {done.stdout[-500:]} {done.stderr[-500:]}") from error
        return statistics.fmean(both) / 8


def start_ranks(hosts, options, folder):
    words = [sys.executable, os.path.abspath(__file__), "--rank-of", folder, "--backend", options.backend, "--bytes", str(options.bytes),
             "--rounds", str(options.rounds), "--iterations", str(options.iterations), "--wire-dtype", options.wire_dtype]
    ranks = []
    for rank, host, local in hosts.places():
        environment = hosts.environment(rank, host, local, 29500, {"GLOO_SOCKET_IFNAME": hosts.interface, "OMP_NUM_THREADS": "1", "QUOIT_WIRE_DTYPE": options.wire_dtype})
        log = open(os.path.join(folder, f"rank{rank}.log"), "w+")
        ranks.append((rank, hosts.start(host, words, env=environment, stdout=log, stderr=log), log))
    return ranks


def await_file(path, ranks, deadline):
    """Wait for a file; when a rank ended badly instead, say what it said."""
    while not os.path.exists(path):
        for rank, process, log in ranks:
            if process.poll():
                log.seek(0)
                raise SystemExit(f"hosts: rank {rank} ended with status {process.returncode}:\n{log.read()[-3000:]}")
        if time.monotonic() > deadline:
            raise SystemExit(f"hosts: time limit reached while waiting for {os.path.basename(path)}")
        time.sleep(0.01)


def give_turn(folder, turn, which, ranks, deadline):
    path = os.path.join(folder, f"go.{turn}")
    with open(path + ".part", "w") as file:
        file.write(str(which))
    os.rename(path + ".part", path)
    await_file(os.path.join(folder, f"done.{turn}"), ranks, deadline)
    with open(os.path.join(folder, f"done.{turn}")) as file:
        return float(file.read())


def spread(values):
    return f"{statistics.median(values):.3f} ({min(values):.3f} - {max(values):.3f})"


def compete(hosts, options, folder):
    backends, deadline = options.backend.split(","), time.monotonic() + options.timeout
    iperf = Iperf(hosts, options.iperf_seconds)
    ranks = start_ranks(hosts, options, folder)
    await_file(os.path.join(folder, "ready"), ranks, min(deadline, time.monotonic() + 180))
    seconds, rates, ratios, sent = {b: [] for b in backends}, [], {b: [] for b in backends}, {b: [] for b in backends}
    turn = 0
    for number in range(options.rounds):
        rates.append(iperf.run())
        for which in range(len(backends)) if number % 2 == 0 else reversed(range(len(backends))):
            before = hosts.counters(0)["sent"]
            taken = give_turn(folder, turn, which, ranks, deadline)
            sent[backends[which]].append((hosts.counters(0)["sent"] - before) / options.iterations)
            seconds[backends[which]].append(taken)
            ratios[backends[which]].append(options.bytes / taken / rates[-1])
            turn += 1
            if sys.stderr.isatty():
                print(f"round {number + 1} of {options.rounds}: {backends[which]} {taken:.3f} s, iperf3 {rates[-1] * 8 / 1e6:.0f} Mb/s", file=sys.stderr)
    for rank, process, log in ranks:
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            print(f"hosts: rank {rank} has not ended 60 s after the last turn", file=sys.stderr)
    return {"hosts": options.hosts, "rate": options.rate, "bytes": options.bytes, "wire_dtype": options.wire_dtype, "iperf3_Bps": rates, "seconds": seconds, "ratio": ratios,
            "bytes_sent_by_host_0": sent}


def report(result, folder):
    describe = os.path.join(folder, "describe.txt")
    print(f"# allreduce of {result['bytes']} bytes of float32 (wire {result['wire_dtype']}) over {'+'.join(map(str, result['hosts']))} ranks, link {result['rate']}, in turns")
    print(f"# iperf3 --bidir, payload each way, Gb/s: {spread([r * 8 / 1e9 for r in result['iperf3_Bps']])}")
    print(f"{'backend':>8}  {'algorithm bandwidth / iperf3':>30}  {'seconds':>24}  {'sent by host 0 / tensor':>24}")
    for backend, ratios in result["ratio"].items():
        sent = [s / result["bytes"] for s in result["bytes_sent_by_host_0"][backend]]
        print(f"{backend:>8}  {spread(ratios):>30}  {spread(result['seconds'][backend]):>24}  {statistics.median(sent):>24.3f}")
    if os.path.exists(describe):
        with open(describe) as file:
            print("# quoit.describe:\n" + "".join("#   " + line for line in file))


def main():
    options = parse_arguments()
    if options.rank_of:
        return rank_main(options)
    import tempfile

    from hosts import Hosts, HostsError

    try:
        with tempfile.TemporaryDirectory(prefix="quoit-bench-hosts-") as folder, Hosts(options.hosts, options.rate) as hosts:
            result = compete(hosts, options, folder)
            report(result, folder)
    except (HostsError, FileNotFoundError) as error:
        raise SystemExit(f"hosts: {error}") from error
    if options.json:
        with open(options.json, "w") as file:
            json.dump(result, file, indent=1)


if __name__ == "__main__":
    main()
