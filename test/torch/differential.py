#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Random calls of torch.distributed on Quoit, against a model and against Gloo.

    python test/torch/differential.py --cases 20000 --seed 1 [--ranks 4]
    python test/torch/differential.py --one 1000123            a case again, by its own seed
    ... --hosts 2                                              as if the ranks were on several hosts, over TCP

A case is drawn from a seed of its own, SEED * 1000000 + its number: group, collective, dtype, operation, shapes, strides, values, and the
order of waiting (differential_cases.py). Integers, moved data and MIN/MAX must be exact; other float results must lie in the interval
that differential_model.py derives, and be the same bits on all ranks. Nothing around a tensor, and no tensor that is only read, may
change. A call that is not supported must say so. What Gloo can do is also asked of a Gloo group of the same ranks and judged by the
same model (which checks the model), with Gloo's accumulator: the type itself. That may be the accumulator among several hosts, too, where
small floats are rounded once a hop. Variables QUOIT_* reach the ranks, so QUOIT_ALLREDUCE=ring tries another algorithm.

The ranks live for all cases. A difference is told with seed and case; the last lines count what was run.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import time
import traceback
import warnings
from collections import Counter
from typing import Any, Optional

import numpy as np
import torch
import torch.distributed as dist

import quoit

from differential_cases import Case, Item, Placed, Reduced, check_want, draw_case, finish, start
from differential_model import bits, same_bits
from launcher import argument, run

MOST_TOLD = 20  # differences a rank describes
GLOO_MOVES = ["broadcast", "all_gather", "all_gather_into_tensor", "all_gather_coalesced", "gather", "scatter", "all_to_all",
              "all_to_all_single", "send_recv"]
GLOO_REDUCES = ["all_reduce", "all_reduce_coalesced", "managed all_reduce", "reduce", "reduce_scatter", "reduce_scatter_tensor"]
GLOO_DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int8, torch.uint8, torch.int32, torch.int64]


class Groups:
    """A group of each backend for each order of ranks, made when a case first asks for it, by all ranks at the same case."""

    def __init__(self) -> None:
        self.made: dict[tuple[str, tuple[int, ...]], Any] = {}

    def get(self, backend: str, ranks: list[int]) -> Any:
        key = (backend, tuple(ranks))
        if key not in self.made:
            self.made[key] = dist.new_group(ranks, backend=backend, sort_ranks=False)
        return self.made[key]


class Call:
    """One item on its way on this rank: the tensors it was given, and what is found wrong with what came back."""

    def __init__(self, item: Item, rank: int, layouts: list[str]) -> None:
        self.item, self.rank = item, rank
        pick = iter([layouts[(i + 3 * rank) % len(layouts)] for i in range(400)])
        self.send = [Placed(tensor, next(pick), True) for tensor in item.send[rank]]
        self.recv: list[Placed] = []
        if not item.in_place:
            for want in item.want[rank]:
                self.recv.append(Placed(want.inputs[0] if isinstance(want, Reduced) else want, next(pick), False))

    def begin(self, group: Any, asynchronous: bool) -> list[Any]:
        return start(self.item, group, self.rank, [p.view for p in self.send], [p.view for p in self.recv], asynchronous)

    def results(self) -> list[Placed]:
        return self.send if self.item.in_place else self.recv

    def wrongs(self, acc: Any = None, strict: bool = True) -> list[str]:
        found = []
        for i, (placed, want) in enumerate(zip(self.results(), self.item.want[self.rank], strict=True)):
            if text := check_want(self.item, placed.view, want, acc, strict):
                found.append(f"result {i}: {text}")
        for i, placed in enumerate(self.send + self.recv):
            if not placed.is_intact_outside():
                found.append(f"tensor {i} (sent, then received): memory around it was written")
        if not self.item.in_place:
            found += [f"input {i} was written" for i, p in enumerate(self.send) if not same_bits(p.whole, p.before)]
        return found


class Player:
    """A rank of the program: plays all cases and keeps count."""

    def __init__(self, rank: int, hosts: int) -> None:
        self.rank, self.hosts, self.groups = rank, hosts, Groups()
        self.count: Counter[str] = Counter()
        self.told: list[str] = []
        self.digests: dict[str, str] = {}

    def tell(self, case: Case, item: Item, text: str) -> None:
        self.count["differences"] += 1
        if len(self.told) < MOST_TOLD:
            self.told.append(f"rank {self.rank}, {item.text()}:\n    {text}\n  in {case.text()}")

    def play(self, case: Case) -> None:
        ours = self.groups.get("quoit", case.ranks)
        rng = np.random.default_rng([case.seed, self.rank])
        with_gloo = int(case.seed) % 3 == 0 and any(gloo_can(item) for item in case.items)
        theirs = self.groups.get("gloo", case.ranks) if with_gloo else None
        if self.rank not in case.ranks:
            return
        me = case.ranks.index(self.rank)
        self.count["cases"] += 1
        calls: list[Call] = []
        works: list[Any] = []
        for item in case.items:
            self.count["calls"] += 1
            call = Call(item, me, item.layouts)
            if item.refused:
                self.check_refusal(case, call, ours)
                continue
            calls.append(call)
            works += call.begin(ours, item.asynchronous)
        for i in rng.permutation(len(works)):  # each rank in an order and ways of its own
            finish(works[i], str(rng.choice(["wait", "wait", "future", "poll"])))
        for number, call in enumerate(calls):
            found = call.wrongs()
            if found and self.hosts > 1:
                found = call.wrongs(own_accumulator(call.item))
            for text in found:
                self.tell(case, call.item, text)
            self.digest(case, number, call)
        if theirs is not None:
            for item in case.items:
                if gloo_can(item):
                    self.play_gloo(case, item, me, theirs)

    def check_refusal(self, case: Case, call: Call, group: Any) -> None:
        self.count["refusals"] += 1
        try:
            for work in call.begin(group, call.item.asynchronous):
                work.wait()
        except NotImplementedError as error:
            if "quoit" not in str(error):
                self.tell(case, call.item, f"refused without a text of ours: {error}")
        else:
            self.tell(case, call.item, "was not refused")
        if any(not same_bits(placed.whole, placed.before) for placed in call.send):
            self.tell(case, call.item, "was refused, but wrote to the tensor")

    def digest(self, case: Case, number: int, call: Call) -> None:
        """What all ranks must have in the same bits is compared at the end."""
        if call.item.call in ("all_reduce", "all_reduce_coalesced", "managed all_reduce"):
            summary = hashlib.blake2b(digest_size=6)
            for placed in call.results():
                summary.update(bits(placed.view).numpy().tobytes())
            self.digests[f"{case.seed}/{number}"] = summary.hexdigest()

    def play_gloo(self, case: Case, item: Item, me: int, group: Any) -> None:
        self.count["gloo"] += 1
        call = Call(item, me, ["plain"])
        call.begin(group, False)
        if item.call == "reduce" and me != item.root:
            return  # Gloo leaves partial results there
        for text in call.wrongs(own_accumulator(item), strict=False):
            self.tell(case, item, f"Gloo and the model differ: {text}")


def own_accumulator(item: Item) -> Optional[torch.dtype]:
    """Sums that are kept in the tensor's own type; None where rounding has no part."""
    dtype = item.dtype.to_real() if item.dtype.is_complex else item.dtype
    return dtype if dtype.is_floating_point else None


def gloo_can(item: Item) -> bool:
    if item.refused or item.native or item.dtype not in GLOO_DTYPES or any(t.numel() == 0 for send in item.send for t in send):
        return False
    if item.call == "all_to_all" and len({t.shape for send in item.send for t in send}) > 1:
        return False  # it wants all of one size
    if item.call in GLOO_MOVES:
        return item.call != "all_gather" or len({send[0].shape for send in item.send}) == 1
    return item.call in GLOO_REDUCES and item.op not in ("AVG", "PREMUL_SUM")


def worker(rank: int, world: int) -> dict[str, Any]:
    order = argument()
    warnings.simplefilter("ignore", FutureWarning)  # names that PyTorch has given up
    if order["hosts"] > 1:
        os.environ.update(QUOIT_HOST_LABEL=f"host{rank % order['hosts']}", QUOIT_INTERFACE="lo")
    dist.init_process_group("quoit", init_method="env://")
    assert quoit.describe(as_dict=True)["hosts"] == order["hosts"], quoit.describe()
    player = Player(rank, order["hosts"])
    seeds = order["seeds"] or range(order["first"], order["first"] + order["cases"])
    for seed in seeds:
        case = draw_case(seed, world)
        try:
            player.play(case)
        except Exception:
            print(f"rank {rank} failed in {case.text()}", *player.told, sep="\n")
            traceback.print_exc()
            raise
    dist.destroy_process_group()
    return {"count": player.count, "told": player.told, "digests": player.digests}


def play(
    ranks: int, first: int, cases: int, seeds: Optional[list[int]] = None, limit: float = 60, hosts: int = 1, env: Optional[dict[str, str]] = None
) -> tuple[Counter[str], list[str]]:
    """Run cases with seeds `first` and up, or `seeds`; returns the count and the differences as texts. env: further settings of all ranks."""
    order = {"first": first, "cases": cases, "seeds": seeds, "hosts": hosts}
    answers = run(ranks, worker, limit=limit, backend=None, argument=order, env=env)
    total: Counter[str] = Counter()
    told: list[str] = []
    seen: dict[str, tuple[int, str]] = {}
    for rank, answer in enumerate(answers):
        total += Counter(answer["count"])
        told += answer["told"]
        for key, digest in answer["digests"].items():
            other = seen.setdefault(key, (rank, digest))
            if other[1] != digest:
                seed = int(key.split("/")[0])
                told.append(f"ranks {other[0]} and {rank} have other bits after item {key.split('/')[1]} of "
                            + draw_case(seed, ranks).text())
    total["same bits"] = len(seen)
    return total, told


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=20000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--ranks", type=int, default=4, help="2 to 4 (default)")
    parser.add_argument("--hosts", type=int, default=1, help="not more than ranks")
    parser.add_argument("--one", type=int, help="only the case of this seed")
    given = parser.parse_args()
    started = time.monotonic()
    seeds = [given.one] if given.one is not None else None
    if given.one is not None:
        print(draw_case(given.one, given.ranks).text())
    limit = 60 + 0.5 * given.cases
    count, told = play(given.ranks, given.seed * 1_000_000, given.cases, seeds, limit, given.hosts)
    for text in told:
        print(text)
    print(f"seed {given.seed}: {len(seeds or range(given.cases))} cases on {given.ranks} ranks, {given.hosts} host(s), "
          f"in {time.monotonic() - started:.0f} s; all ranks together: "
          + ", ".join(f"{number} {what}" for what, number in sorted(count.items())) + f"; {len(told)} differences told")
    return 1 if told else 0


if __name__ == "__main__":
    sys.exit(main())
