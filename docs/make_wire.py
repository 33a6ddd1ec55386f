#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Write the table of docs/wire.md: bytes and error of an allreduce in each wire format, by number of elements.

    python docs/make_wire.py            writes the table into docs/wire.md
    python docs/make_wire.py --print    prints it

Four ranks on this machine, each a host of its own by label, add normal random numbers. The error is the root of the mean square of
(result - float64 sum), over that of the sum; bytes are what rank 0 has sent, by its connections' counters, over those of the plain
run. Both are functions of the seed, not of the machine.
"""
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

PAGE = Path(__file__).resolve().parent / "wire.md"
BEGIN, END = "<!-- table: made by docs/make_wire.py -->", "<!-- end of table -->"
FORMATS = ["none", "bf16", "fp16", "int8"]
SIZES = [1000, 10_000, 100_000, 1_000_000]
RANKS = 4


def rank_main(rank, folder):
    import torch
    import torch.distributed as dist

    import quoit

    os.environ.update(QUOIT_HOST_LABEL=str(rank), QUOIT_INTERFACE="lo")
    dist.init_process_group("quoit", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)

    def sent():
        return sum(each["sent"] for each in quoit.describe(group, as_dict=True)["ranks"])

    result = {}
    for wire in FORMATS:
        group = dist.new_group(pg_options=quoit.Options(wire_dtype=wire))
        for size in SIZES:
            values = [torch.randn(size, generator=torch.Generator().manual_seed(size + each)) for each in range(RANKS)]
            exact = sum(each.double() for each in values)
            dist.barrier(group)
            times, before = max(2, 400_000 // size), sent()  # beside which the barriers' bytes are few
            for _ in range(times):
                mine = values[rank].clone()
                dist.all_reduce(mine, group=group)
            dist.barrier(group)
            taken = (sent() - before) / times
            error = (mine.double() - exact).square().mean().sqrt() / exact.square().mean().sqrt()
            result[f"{wire} {size}"] = [error.item(), taken]
    if rank == 0:
        Path(folder, "result").write_text(json.dumps(result))
    dist.destroy_process_group()


def measure():
    with tempfile.TemporaryDirectory() as folder:
        ranks = [subprocess.Popen([sys.executable, __file__, "--rank", str(rank), folder], env={**os.environ, "OMP_NUM_THREADS": "1"})
                 for rank in range(RANKS)]
        if any([rank.wait(timeout=300) for rank in ranks]):
            raise SystemExit("make_wire: a rank failed")
        return json.loads(Path(folder, "result").read_text())


def table():
    result = measure()
    lines = ["| elements | " + " | ".join(f"{wire}: error | bytes" for wire in FORMATS[1:]) + " |", "|---:" * (2 * len(FORMATS) - 1) + "|"]
    for size in SIZES:
        plain = result[f"none {size}"][1]
        cells = [f"{result[f'{wire} {size}'][0]:.1e} | {result[f'{wire} {size}'][1] / plain:.2f}" for wire in FORMATS[1:]]
        lines.append(f"| {size:,} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main():
    if sys.argv[1:2] == ["--rank"]:
        rank_main(int(sys.argv[2]), sys.argv[3])
        return
    made = table()
    if "--print" in sys.argv:
        print(made)
        return
    head, rest = PAGE.read_text().split(BEGIN)
    PAGE.write_text(head + BEGIN + "\n\n" + made + "\n\n" + END + rest.split(END)[1])


if __name__ == "__main__":
    main()
