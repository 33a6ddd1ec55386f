# SPDX-License-Identifier: Apache-2.0
"""The cases of differential.py: what is called with which tensors, drawn from a seed, and what must come out.

A case is a group of ranks and 1 to 4 items on it, all begun before any is waited for. Every rank draws the whole case, so it knows
what the others give. An item says for each rank r of the group: `send[r]`, the tensors it gives; `want[r]`, what it must have
afterwards, an exact tensor or a Reduced. In-place items give and get the same tensors. Each tensor lies in memory of a layout of its
own, with a canary around it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, Callable, Optional, Union

import numpy as np
import torch
import torch.distributed as dist

import differential_model as model
from differential_model import bits, join

Tensors = list[torch.Tensor]


# ---------------------------------------------------------------- memory

LAYOUTS = ["plain", "plain", "offset", "transposed", "gaps", "inner", "channels_last"]


def cut_of(layout: str, shape: tuple[int, ...]) -> tuple[tuple[int, ...], Callable[[torch.Tensor], torch.Tensor]]:
    """(sizes of the whole, the view of it that has `shape`)."""
    count = int(np.prod(shape))
    if layout == "offset":
        return (count + 11,), lambda whole: whole[5 : 5 + count].view(shape)
    if layout == "gaps" and shape:
        return (*shape[:-1], 2 * shape[-1] + 1), lambda whole: whole[..., 1::2]
    if layout == "gaps":
        return (3,), lambda whole: whole[1]
    if layout == "inner":
        return tuple(n + 2 for n in shape), lambda whole: whole[tuple(slice(1, n + 1) for n in shape)]
    if layout == "channels_last" and len(shape) == 4:
        n, c, h, w = shape
        return (n, h, w, c), lambda whole: whole.permute(0, 3, 1, 2)
    if layout in ("transposed", "channels_last"):
        return tuple(reversed(shape)), lambda whole: whole.permute(*reversed(range(len(shape)))) if shape else whole
    return shape, lambda whole: whole


class Placed:
    """A tensor in memory of some layout, which knows whether anything was written around it."""

    def __init__(self, like: torch.Tensor, layout: str, with_content: bool) -> None:
        shape = tuple(like.shape)
        sizes, self.cut = cut_of(layout, shape)
        count = int(np.prod(sizes))
        canary = 1 if like.dtype == torch.bool else 0x5A
        self.whole = torch.full((count * like.dtype.itemsize,), canary, dtype=torch.uint8).view(like.dtype).reshape(sizes)
        self.view = self.cut(self.whole)
        if with_content:
            self.view.copy_(like)
        self.before = self.whole.clone()

    def is_intact_outside(self) -> bool:
        after = self.before.clone()
        self.cut(after).copy_(self.view)
        return model.same_bits(after, self.whole)


# ---------------------------------------------------------------- items


@dataclass
class Reduced:
    inputs: Tensors


Want = Union[torch.Tensor, Reduced]


@dataclass
class Item:
    call: str
    dtype: torch.dtype
    op: str = ""
    factor: float = 1.0
    root: int = 0
    send: list[Tensors] = field(default_factory=list)
    want: list[list[Want]] = field(default_factory=list)
    in_place: bool = False
    splits: Any = None  # all_to_all_single: splits[r][p] rows from r to p
    messages: Any = None  # (source, destination, tag) of each, in order
    refused: bool = False
    asynchronous: bool = True
    native: bool = False  # the process group's own method, which takes complex tensors as they are
    layouts: list[str] = field(default_factory=list)

    def text(self) -> str:
        parts = [self.call, str(self.dtype).removeprefix("torch.")]
        parts += [self.op + (f"({self.factor})" if self.op == "PREMUL_SUM" else "")] if self.op else []
        parts += [f"root {self.root}", f"shapes {[[tuple(t.shape) for t in send] for send in self.send]}", f"layouts {self.layouts}"]
        parts += [f"splits {self.splits}"] if self.splits else []
        parts += [f"messages {self.messages}"] if self.messages else []
        parts += ["async" if self.asynchronous else "blocking"] + (["native"] if self.native else [])
        return " ".join(parts)


REDUCING = ["all_reduce", "all_reduce", "reduce", "reduce_scatter", "reduce_scatter_tensor", "all_reduce_coalesced", "managed all_reduce",
            "managed reduce_scatter_tensor"]
MOVING = ["broadcast", "all_gather", "all_gather_into_tensor", "all_to_all", "all_to_all_single", "gather", "scatter",
          "all_gather_coalesced", "managed all_gather_into_tensor", "bundled broadcast", "batch_isend_irecv", "send_recv", "barrier"]


def draw_shape(rng: np.random.Generator, least_dims: int = 0) -> tuple[int, ...]:
    kind = rng.random()
    if kind < 0.03:
        return (int(rng.integers(20_000, 90_000)),)
    if kind < 0.15:
        return (int(rng.integers(300, 6000)),)
    dims = int(rng.integers(least_dims, 5))
    shape = [int(rng.integers(1, 7)) for _ in range(dims)]
    if dims and rng.random() < 0.3:
        shape[int(rng.integers(0, dims))] = int(rng.integers(7, 70))
    if dims and rng.random() < 0.08:
        shape[int(rng.integers(0, dims))] = 0
    return tuple(shape)


class Drawer:
    """Draws one item: the values of its tensors come from one dtype and one kind."""

    def __init__(self, rng: np.random.Generator, size: int) -> None:
        self.rng, self.size = rng, size

    def values(self, shape: tuple[int, ...]) -> torch.Tensor:
        return model.draw_values(self.rng, self.item.dtype, shape, self.kind)

    def pick(self, options: list) -> Any:
        return options[int(self.rng.integers(0, len(options)))]

    def item_of_any_kind(self) -> Item:
        call = self.pick(REDUCING if self.rng.random() < 0.55 else MOVING)
        if call in REDUCING:
            dtype, op = self.pick(model.REDUCED), self.pick(model.OPS)
            while not model.is_supported(op, dtype) and self.rng.random() < 0.9:
                dtype, op = self.pick(model.REDUCED + model.MOVED_ONLY), self.pick(model.OPS)
            self.item = Item(call, dtype, op)
            self.item.factor = self.pick([0.5, 2.0, 0.3, -1.7])
            # torch.distributed itself refuses these on complex tensors; as floats it would reduce the parts
            self.item.native = dtype.is_complex and (op == "PRODUCT" or not model.is_supported(op, dtype) or self.rng.random() < 0.5)
            self.kind = self.pick(model.KINDS["float" if dtype.is_floating_point or dtype.is_complex else "integer"])
            if not model.is_supported(op, dtype):
                self.item.refused, self.item.call, self.kind = True, "all_reduce", "bits"
                self.item.native = True
        else:
            self.item = Item(call, self.pick(model.REDUCED + model.MOVED_ONLY))
            self.kind = "bits"
        self.item.root = int(self.rng.integers(0, self.size))
        self.item.asynchronous = self.rng.random() < 0.7
        getattr(self, "draw_" + self.item.call.replace(" ", "_"))()
        self.item.layouts = [self.pick(LAYOUTS) for _ in range(7)]
        return self.item

    # Each fills in send and want.

    def one_each(self, least_dims: int = 0) -> Tensors:
        shape = draw_shape(self.rng, least_dims)
        return [self.values(shape) for _ in range(self.size)]

    def draw_all_reduce(self) -> None:
        x = self.one_each()
        self.item.in_place, self.item.send = True, [[t] for t in x]
        self.item.want = [[Reduced(x)] for _ in x]

    def draw_reduce(self) -> None:
        self.draw_all_reduce()
        for r in range(self.size):
            if r != self.item.root:
                self.item.want[r] = list(self.item.send[r])

    def draw_all_reduce_coalesced(self) -> None:
        columns = [self.one_each() for _ in range(int(self.rng.integers(1, 5)))]
        self.item.in_place = True
        self.item.send = [[column[r] for column in columns] for r in range(self.size)]
        self.item.want = [[Reduced(column) for column in columns] for _ in range(self.size)]

    draw_managed_all_reduce = draw_all_reduce_coalesced

    def draw_broadcast(self) -> None:
        x = self.one_each()
        self.item.in_place, self.item.send = True, [[t] for t in x]
        self.item.want = [[x[self.item.root]] for _ in x]

    def draw_bundled_broadcast(self) -> None:
        """Broadcasts from the root, and then from each rank, as one operation."""
        roots = [self.item.root, *range(self.size)]
        columns = [self.one_each() for _ in roots]
        self.item.in_place = True
        self.item.send = [[column[r] for column in columns] for r in range(self.size)]
        self.item.want = [[column[root] for root, column in zip(roots, columns)] for _ in range(self.size)]

    def shapes_a_rank(self) -> list[tuple[int, ...]]:
        """Equal shapes mostly, else of different sizes."""
        shape = draw_shape(self.rng, 1)
        if self.rng.random() < 0.6:
            return [shape] * self.size
        return [(int(self.rng.integers(0, 2 * shape[0] + 2)), *shape[1:]) for _ in range(self.size)]

    def draw_all_gather(self) -> None:
        x = [self.values(shape) for shape in self.shapes_a_rank()]
        self.item.send, self.item.want = [[t] for t in x], [list(x) for _ in x]

    def draw_all_gather_into_tensor(self) -> None:
        x = self.one_each(1)
        self.item.send, self.item.want = [[t] for t in x], [[join(x)] for _ in x]

    def draw_all_gather_coalesced(self) -> None:
        columns = [self.one_each() for _ in range(int(self.rng.integers(1, 4)))]
        self.item.send = [[column[r] for column in columns] for r in range(self.size)]
        self.item.want = [[column[r] for r in range(self.size) for column in columns] for _ in range(self.size)]

    def draw_managed_all_gather_into_tensor(self) -> None:
        columns = [self.one_each(1) for _ in range(int(self.rng.integers(1, 5)))]
        self.item.send = [[column[r] for column in columns] for r in range(self.size)]
        self.item.want = [[join(column) for column in columns] for _ in range(self.size)]

    def draw_reduce_scatter(self) -> None:
        shapes = self.shapes_a_rank()
        x = [[self.values(shape) for shape in shapes] for _ in range(self.size)]
        self.item.send = x
        self.item.want = [[Reduced([x[k][r] for k in range(self.size)])] for r in range(self.size)]

    def draw_managed_reduce_scatter_tensor(self, least: int = 1, most: int = 4) -> None:
        self.item.send, self.item.want = [[] for _ in range(self.size)], [[] for _ in range(self.size)]
        for _ in range(int(self.rng.integers(least, most + 1))):
            shape = draw_shape(self.rng, 1)
            x = [[self.values(shape) for _ in range(self.size)] for _ in range(self.size)]
            for r in range(self.size):
                self.item.send[r].append(join(x[r]))
                self.item.want[r].append(Reduced([x[k][r] for k in range(self.size)]))

    def draw_reduce_scatter_tensor(self) -> None:
        self.draw_managed_reduce_scatter_tensor(1, 1)

    def draw_all_to_all(self) -> None:
        shape = draw_shape(self.rng, 1)
        even = self.rng.random() < 0.5
        x = [[self.values(shape if even else (int(self.rng.integers(0, 6)), *shape[1:])) for _ in range(self.size)]
             for _ in range(self.size)]
        self.item.send = x
        self.item.want = [[x[k][r] for k in range(self.size)] for r in range(self.size)]

    def draw_all_to_all_single(self) -> None:
        shape = draw_shape(self.rng, 1)
        rows = self.rng.integers(0, 6, (self.size, self.size)) if self.rng.random() < 0.6 else None
        x = [[self.values((shape[0] if rows is None else int(rows[r][p]), *shape[1:])) for p in range(self.size)]
             for r in range(self.size)]
        self.item.splits = None if rows is None else rows.tolist()
        self.item.send = [[join(x[r])] for r in range(self.size)]
        self.item.want = [[join([x[k][r] for k in range(self.size)])] for r in range(self.size)]

    def draw_gather(self) -> None:
        x = self.one_each()
        self.item.send = [[t] for t in x]
        self.item.want = [list(x) if r == self.item.root else [] for r in range(self.size)]

    def draw_scatter(self) -> None:
        x = self.one_each()
        self.item.send = [list(x) if r == self.item.root else [] for r in range(self.size)]
        self.item.want = [[t] for t in x]

    def draw_send_recv(self) -> None:
        count = int(self.rng.integers(1, 7)) if self.size > 1 else 0
        self.item.messages, self.item.send, self.item.want = [], [[] for _ in range(self.size)], [[] for _ in range(self.size)]
        for _ in range(count):
            source, destination = (int(r) for r in self.rng.permutation(self.size)[:2])
            tensor = self.values(draw_shape(self.rng))
            self.item.messages.append((source, destination, int(self.pick([0, 0, 1, 7, 2**31 - 1]))))
            self.item.send[source].append(tensor)
            self.item.want[destination].append(tensor)

    draw_batch_isend_irecv = draw_send_recv

    def draw_barrier(self) -> None:
        self.item.send, self.item.want = [[] for _ in range(self.size)], [[] for _ in range(self.size)]


@dataclass
class Case:
    seed: int
    ranks: list[int]  # of the group, in its order
    items: list[Item]

    def text(self) -> str:
        return f"case {self.seed} (replay: --one {self.seed}) ranks {self.ranks}\n  " + "\n  ".join(item.text() for item in self.items)


def draw_case(seed: int, world: int) -> Case:
    rng = np.random.default_rng(seed)
    size = int(rng.integers(1, world + 1)) if rng.random() < 0.5 else world
    ranks = [int(r) for r in rng.permutation(world)[:size]]
    if rng.random() < 0.7:
        ranks.sort()
    items = []
    for _ in range(int(rng.integers(1, 5)) if rng.random() < 0.4 else 1):
        items.append(Drawer(rng, size).item_of_any_kind())
    return Case(seed, ranks, items)


# ---------------------------------------------------------------- calls


def reduce_op(item: Item) -> Any:
    return dist._make_nccl_premul_sum(item.factor) if item.op == "PREMUL_SUM" else getattr(dist.ReduceOp, item.op)


Works = list[Any]  # each has wait(); most are a Work, some a future or a coalescing manager


def start(item: Item, group: Any, rank: int, send: Tensors, recv: Tensors, asynchronous: bool) -> Works:
    """Begin `item` as `rank` of `group`; what is returned has to be waited for."""
    call = item.call
    if item.native:
        return start_native(item, group, send, recv)
    if call.startswith("managed "):
        return start_managed(item, group, send, recv, asynchronous)
    if call == "bundled broadcast":
        with dist._coalescing_manager(group=group, device=torch.device("cpu"), async_ops=asynchronous) as manager:
            for root, tensor in zip([item.root, *range(group.size())], send):
                dist.broadcast(tensor, group=group, group_src=root)
        return [manager] if asynchronous else []
    if call == "send_recv":
        return start_messages(item, group, rank, send, recv, asynchronous)
    if call == "batch_isend_irecv":
        return start_batch(item, group, rank, send, recv)
    size = group.size()
    common = {"group": group, "async_op": asynchronous}
    if call == "all_reduce":
        work = dist.all_reduce(send[0], reduce_op(item), **common)
    elif call == "reduce":
        work = dist.reduce(send[0], op=reduce_op(item), group_dst=item.root, **common)
    elif call == "broadcast":
        work = dist.broadcast(send[0], group_src=item.root, **common)
    elif call == "all_gather":
        work = dist.all_gather(recv, send[0], **common)
    elif call == "all_gather_into_tensor":
        work = dist.all_gather_into_tensor(recv[0], send[0], **common)
    elif call == "reduce_scatter":
        work = dist.reduce_scatter(recv[0], send, reduce_op(item), **common)
    elif call == "reduce_scatter_tensor":
        work = dist.reduce_scatter_tensor(recv[0], send[0], reduce_op(item), **common)
    elif call == "all_to_all":
        work = dist.all_to_all(recv, send, **common)
    elif call == "all_to_all_single":
        theirs, ours = None, None
        if item.splits:
            theirs, ours = [item.splits[p][rank] for p in range(size)], item.splits[rank]
        work = dist.all_to_all_single(recv[0], send[0], theirs, ours, **common)
    elif call == "gather":
        work = dist.gather(send[0], recv if rank == item.root else None, group_dst=item.root, **common)
    elif call == "scatter":
        work = dist.scatter(recv[0], send if rank == item.root else None, group_src=item.root, **common)
    elif call == "all_reduce_coalesced":
        work = dist.all_reduce_coalesced(send, reduce_op(item), **common)
    elif call == "all_gather_coalesced":
        width = len(send)
        work = dist.all_gather_coalesced([recv[r * width : (r + 1) * width] for r in range(size)], send, **common)
    else:
        assert call == "barrier", call
        work = dist.barrier(**common)
    return [work] if asynchronous else []


def start_native(item: Item, group: Any, send: Tensors, recv: Tensors) -> Works:
    """The process group's own methods: torch.distributed takes complex tensors apart and refuses some operations on them."""
    call = "all_reduce_coalesced" if item.call == "managed all_reduce" else item.call
    options: Any = {"reduce": dist.ReduceOptions, "all_reduce": dist.AllreduceOptions,
               "all_reduce_coalesced": dist.AllreduceCoalescedOptions}.get(call, dist.ReduceScatterOptions)()
    options.reduceOp = reduce_op(item)
    if call == "reduce":
        options.rootRank = item.root
        return [group.reduce(send, options)]
    if call == "all_reduce":
        return [group.allreduce(send, options)]
    if call == "all_reduce_coalesced":
        return [group.allreduce_coalesced(send, options)]
    if call == "reduce_scatter":
        return [group.reduce_scatter(recv, [send], options)]
    if call == "managed reduce_scatter_tensor":
        return [group.reduce_scatter_tensor_coalesced(recv, send, options)]
    return [group._reduce_scatter_base(recv[0], send[0], options)]


def start_managed(item: Item, group: Any, send: Tensors, recv: Tensors, asynchronous: bool) -> Works:
    with dist._coalescing_manager(group=group, async_ops=asynchronous) as manager:
        for i, tensor in enumerate(send):
            if item.call == "managed all_reduce":
                dist.all_reduce(tensor, reduce_op(item), group=group)
            elif item.call == "managed all_gather_into_tensor":
                dist.all_gather_into_tensor(recv[i], tensor, group=group)
            else:
                dist.reduce_scatter_tensor(recv[i], tensor, reduce_op(item), group=group)
    return [manager] if asynchronous else []


def start_messages(item: Item, group: Any, rank: int, send: Tensors, recv: Tensors, asynchronous: bool) -> Works:
    sends, recvs = iter(send), iter(recv)
    works: Works = []
    for source, destination, tag in item.messages:
        if rank == source:
            works.append((dist.isend if asynchronous else dist.send)(next(sends), group=group, tag=tag, group_dst=destination))
        elif rank == destination:
            works.append((dist.irecv if asynchronous else dist.recv)(next(recvs), group=group, tag=tag, group_src=source))
    return works if asynchronous else []


def start_batch(item: Item, group: Any, rank: int, send: Tensors, recv: Tensors) -> Works:
    sends, recvs = iter(send), iter(recv)
    batch = []
    for source, destination, tag in item.messages:
        if rank == source:
            batch.append(dist.P2POp(dist.isend, next(sends), group=group, tag=tag, group_peer=destination))
        elif rank == destination:
            batch.append(dist.P2POp(dist.irecv, next(recvs), group=group, tag=tag, group_peer=source))
    return dist.batch_isend_irecv(batch) if batch else []


def finish(work: Any, way: str) -> None:
    """Wait for what start() returned, in one of several ways."""
    if way == "future" and hasattr(work, "get_future"):
        work.get_future().wait()
    elif way == "poll" and hasattr(work, "is_completed"):
        end = time.monotonic() + 60
        while not work.is_completed():
            assert time.monotonic() < end, "is_completed() stays false"
            time.sleep(0)
        work.wait()
    else:
        work.wait()


# ---------------------------------------------------------------- judging


def check_want(item: Item, got: torch.Tensor, want: Want, acc: Optional[torch.dtype] = None, strict: bool = True) -> str:
    if isinstance(want, Reduced):
        return model.judge(item.op, want.inputs, got, item.factor, acc, strict)
    if model.same_bits(got, want):
        return ""
    if got.shape != want.shape or got.dtype != want.dtype:
        return f"shape {tuple(got.shape)} {got.dtype}, expected {tuple(want.shape)} {want.dtype}"
    wrong = (bits(got) != bits(want)).nonzero()
    return f"{len(wrong)} of {got.nbytes} bytes differ, the first at byte {int(wrong[0])}"
