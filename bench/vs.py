#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times torch.distributed.all_reduce of two backends side by side: quoit and, say, gloo.

Both have a process group in the same Python processes and take turns in rounds (first A then B, next time B then A), so that a
machine that is busy for a while slows both. Times are, for each iteration, the longest among the ranks.

    python vs.py -n 2                          start two ranks here
    torchrun --nproc-per-node 2 vs.py          be started
    python vs.py --rank 0 --size 2 --store tcp://host:29600
"""
import argparse
import datetime
import json
import math
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

DEFAULT_SIZES = "4,1K,16K,64K,256K,1M,4M,16M,64M"


def parse_size(text):
    suffixes = {"": 0, "k": 10, "m": 20, "g": 30}
    digits = text.rstrip("kKmMgGiIbB")
    suffix = text[len(digits):].lower().removesuffix("ib").removesuffix("b")
    if not digits.isdigit() or suffix not in suffixes or int(digits) == 0:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a size such as 4, 64K or 1M")
    return int(digits) << suffixes[suffix]


def parse_sizes(text):
    return [parse_size(word) for word in text.split(",")]


def parse_arguments(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", type=int, default=0, help="start this many ranks on this host")
    parser.add_argument("--rank", type=int, help="be this rank (default: RANK of the environment)")
    parser.add_argument("--size", type=int, help="number of ranks (default: WORLD_SIZE)")
    parser.add_argument("--store", help="where the ranks meet: tcp://host:port, file:///path, env:// (default)")
    parser.add_argument("--backend", default="quoit", help="the backend under test (default quoit)")
    parser.add_argument("--vs", default="gloo", help="the one beside it (default gloo)")
    parser.add_argument("--sizes", type=parse_sizes, default=parse_sizes(DEFAULT_SIZES), help=f"default {DEFAULT_SIZES}")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--op", default="sum")
    parser.add_argument("--rounds", type=int, default=6, help="turns of each backend at each size (default 6)")
    parser.add_argument("--time", type=float, default=0.3, help="seconds for each size and backend (default 0.3)")
    parser.add_argument("--timeout", type=float, default=120, help="seconds, of joining and of each operation")
    parser.add_argument("--no-check", dest="check", action="store_false", help="do not verify results")
    parser.add_argument("--json", help="write everything, with the time of each iteration, to this file")
    return parser.parse_args(arguments)


# ---------------------------------------------------------------- starting ranks


def end(processes):
    """Ask our own children to end, then kill them."""
    for ask in (signal.SIGTERM, signal.SIGKILL):
        for process in processes:
            if process.poll() is None:
                process.send_signal(ask)
        deadline = time.monotonic() + 3
        while any(p.poll() is None for p in processes) and time.monotonic() < deadline:
            time.sleep(0.02)


def launch(options, arguments):
    """Start options.n ranks of this script; the first failure ends them all. Returns the exit status."""
    folder = tempfile.mkdtemp(prefix="quoit-vs-")
    processes, logs = [], []
    own = ["-P", "-u", os.path.abspath(__file__), *arguments]
    # Whatever ends the launcher, its ranks are ended in `finally`.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        for rank in range(options.n):
            log = open(os.path.join(folder, f"rank{rank}.err"), "w+b")
            logs.append(log)
            extra = ["-n", "0", "--rank", str(rank), "--size", str(options.n), "--store", f"file://{folder}/store"]
            processes.append(subprocess.Popen([sys.executable, *own, *extra], stderr=log, stdin=subprocess.DEVNULL))
        failed = None
        while failed is None and any(p.poll() is None for p in processes):
            failed = next((rank for rank, p in enumerate(processes) if p.poll()), None)
            time.sleep(0.02)
        failed = next((rank for rank, p in enumerate(processes) if p.poll()), None) if failed is None else failed
        if failed is None:
            return 0
        logs[failed].seek(0)
        text = logs[failed].read().decode(errors="replace").strip().splitlines()[-25:]
        print(f"vs: rank {failed} ended with status {processes[failed].returncode}:\n  " + "\n  ".join(text), file=sys.stderr)
        return 1
    finally:
        end(processes)
        for log in logs:
            log.close()
        shutil.rmtree(folder, ignore_errors=True)


# ---------------------------------------------------------------- one rank


def rendezvous(options):
    """(init_method, rank, size). The stores' address may just have served bench_allreduce: move one step on."""
    rank = options.rank if options.rank is not None else int(os.environ.get("RANK", -1))
    size = options.size if options.size is not None else int(os.environ.get("WORLD_SIZE", 0))
    if rank < 0 or size < 1:
        raise SystemExit("vs: give -n N, or --rank, --size and --store, or start with torchrun (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT)")
    url = options.store
    if url and url.startswith("tcp://"):
        address, _, port = url.rpartition(":")
        url = f"{address}:{int(port) + 1}"
    elif url and url.startswith("file://"):
        url += ".vs"
    return url or "env://", rank, size


def make_input(torch, count, dtype, rank):
    values = (torch.arange(count) * 7 + rank * 5) % 13
    if dtype == torch.bool:
        return values % 2 == 0
    return (values % 5).to(dtype)


def expected_result(torch, count, dtype, op, size):
    inputs = [make_input(torch, count, dtype, rank) for rank in range(size)]
    wide = [x if dtype.is_complex or not dtype.is_floating_point else x.double() for x in inputs]
    joins = {
        "sum": lambda a, b: a | b if dtype == torch.bool else a + b,
        "avg": lambda a, b: a + b,
        "prod": lambda a, b: a & b if dtype == torch.bool else a * b,
        "min": torch.minimum, "max": torch.maximum,
        "band": torch.bitwise_and, "bor": torch.bitwise_or, "bxor": torch.bitwise_xor,
    }
    total = wide[0]
    for x in wide[1:]:
        total = joins[op](total, x)
    if op == "avg":
        total = torch.div(total, size, rounding_mode=None if dtype.is_floating_point or dtype.is_complex else "trunc")
    return total.to(dtype)


class Contest:
    """Two groups, the same tensors, turns."""

    def __init__(self, torch, dist, options, rank, size, groups):
        self.torch, self.dist, self.options, self.rank, self.size, self.groups = torch, dist, options, rank, size, groups
        self.dtype = getattr(torch, options.dtype)
        self.op = getattr(dist.ReduceOp, options.op.upper())

    def longest(self, times):
        """Each time, the longest among the ranks."""
        tensor = self.torch.tensor(times, dtype=self.torch.float64)
        self.dist.all_reduce(tensor, op=self.dist.ReduceOp.MAX, group=self.groups[self.options.vs])
        return tensor.tolist()

    def turn(self, backend, tensor, iterations):
        group, times = self.groups[backend], []
        self.dist.barrier(group=group)
        for _ in range(iterations):
            start = time.perf_counter()
            self.dist.all_reduce(tensor, op=self.op, group=group)
            times.append(time.perf_counter() - start)
        return self.longest(times)

    def check(self, backend, count):
        tensor = make_input(self.torch, count, self.dtype, self.rank)
        self.dist.all_reduce(tensor, op=self.op, group=self.groups[backend])
        expected = expected_result(self.torch, count, self.dtype, self.options.op, self.size)
        wrong = int((tensor != expected).sum()) if not self.options.op == "avg" else int((~self.torch.isclose(tensor, expected)).sum())
        if wrong:
            raise SystemExit(f"vs: {backend}: {wrong} of {count} elements of {self.options.dtype} {self.options.op} are wrong on rank {self.rank}")

    def measure(self, nbytes):
        """{backend: [[seconds of each iteration] of each round]}"""
        count = max(1, nbytes // self.dtype.itemsize)
        tensor = self.torch.zeros(count, dtype=self.dtype)
        backends, iterations = list(self.groups), {}
        for backend in backends:
            if self.options.check:
                self.check(backend, count)
            best = min(self.turn(backend, tensor, 3))
            iterations[backend] = int(min(max(self.options.time / self.options.rounds / best, 3), 5000))
        rounds = {backend: [] for backend in backends}
        for number in range(self.options.rounds):
            for backend in backends if number % 2 == 0 else reversed(backends):
                rounds[backend].append(self.turn(backend, tensor, iterations[backend]))
        return count * self.dtype.itemsize, rounds


def summary(rounds):
    """Median over all iterations, and the range of the rounds' medians, in microseconds."""
    medians = [statistics.median(times) * 1e6 for times in rounds]
    return statistics.median([t * 1e6 for times in rounds for t in times]), min(medians), max(medians)


def print_row(nbytes, results, names):
    cells = [f"{summary(results[name])[0]:11.1f} {summary(results[name])[1]:10.1f} -{summary(results[name])[2]:10.1f}" for name in names]
    gbps = [nbytes / summary(results[name])[0] / 1e3 for name in names]
    ratio = summary(results[names[1]])[0] / summary(results[names[0]])[0]
    print(f"{nbytes:11d} {cells[0]} {gbps[0]:7.3f} {cells[1]} {gbps[1]:7.3f} {ratio:8.2f}", flush=True)
    return ratio


def run_rank(options):
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    if "quoit" in (options.backend, options.vs):
        import quoit  # noqa: F401  registers the backend
    url, rank, size = rendezvous(options)
    limit = datetime.timedelta(seconds=options.timeout)
    dist.init_process_group(options.backend, init_method=url, rank=rank, world_size=size, timeout=limit)
    mine = options.backend if options.backend != options.vs else options.backend + "-1"
    groups = {mine: dist.group.WORLD, options.vs: dist.new_group(backend=options.vs, timeout=limit)}
    contest, rows, ratios = Contest(torch, dist, options, rank, size, groups), [], []
    names = list(groups)
    if rank == 0:
        print(f"# torch {torch.__version__}: dist.all_reduce, {options.dtype} {options.op}, {size} ranks, {options.rounds} rounds in turns; "
              "microseconds: median, range of the rounds' medians; GB/s: bytes / median")
        print(f"{'bytes':>11} {names[0]:>11} {'range':>22} {'GB/s':>7} {names[1]:>11} {'range':>22} {'GB/s':>7} {'ratio':>8}")
    for wanted in options.sizes:
        nbytes, results = contest.measure(wanted)
        if rank == 0:
            ratios.append(print_row(nbytes, results, names))
            rows.append({"bytes": nbytes, "rounds_s": results, "ratio": ratios[-1]})
    if rank == 0:
        mean = math.exp(statistics.fmean(map(math.log, ratios)))
        print(f"# ratio: {names[1]}'s time / {names[0]}'s; geometric mean {mean:.2f}, least {min(ratios):.2f} at {rows[ratios.index(min(ratios))]['bytes']} bytes")
        if options.json:
            with open(options.json, "w") as file:
                json.dump({"torch": torch.__version__, "backends": names, "size": size, "dtype": options.dtype, "op": options.op,
                           "geometric_mean_ratio": mean, "rows": rows}, file)
    dist.barrier(group=groups[options.vs])
    dist.destroy_process_group()


def main(arguments=None):
    arguments = sys.argv[1:] if arguments is None else arguments
    options = parse_arguments(arguments)
    if options.n > 0:
        sys.exit(launch(options, arguments))
    run_rank(options)


if __name__ == "__main__":
    main()
