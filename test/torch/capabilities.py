# SPDX-License-Identifier: Apache-2.0
"""What of torch.distributed works with a backend, tried call by call on two ranks: for docs/make_pytorch.py and test_capabilities.py.

Each call is made with each dtype, and each operation with each dtype, on small whole numbers whose results every dtype holds. A call works
("yes") when the result is right; else the outcome is the reason that was raised, or "wrong result".
"""

import datetime
import re
import warnings

import torch
import torch.distributed as dist

from launcher import directory, run

NAMES = ["float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "int8", "uint8",
         "int16", "uint16", "int32", "uint32", "int64", "uint64", "bool", "complex32", "complex64", "complex128"]
OPS = ["SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "PREMUL_SUM"]
BASES = [[1, 2, 4, 1], [2, 1, 2, 4]]  # of the two ranks


# ---------------------------------------------------------------- values


def values(name, base):
    dtype = getattr(torch, name)
    if name == "bool":
        return torch.tensor([x > 1 for x in base])
    if name == "complex32":
        return torch.complex(torch.tensor(base, dtype=torch.float16), torch.tensor(base, dtype=torch.float16))
    if dtype.is_complex:
        return torch.complex(torch.tensor(base, dtype=torch.float64), torch.tensor(base, dtype=torch.float64)).to(dtype)
    return torch.tensor(base, dtype=torch.float32).to(dtype)


def memory(tensor):
    return tensor.clone(memory_format=torch.contiguous_format).reshape(-1).view(torch.uint8)


def same(got, expected):
    return got.dtype == expected.dtype and got.shape == expected.shape and torch.equal(memory(got), memory(expected))


def join(tensors):
    return torch.cat([memory(t) for t in tensors]).view(tensors[0].dtype)


def reduced(name, op):
    """The reduction of the two ranks' numbers."""
    combine = {"SUM": lambda a, b: a + b, "AVG": lambda a, b: (a + b) / 2, "PRODUCT": lambda a, b: a * b, "MIN": min, "MAX": max,
               "BAND": lambda a, b: a & b, "BOR": lambda a, b: a | b, "BXOR": lambda a, b: a ^ b,
               "PREMUL_SUM": lambda a, b: 2 * (a + b)}[op]
    pairs = list(zip(*BASES))
    if name == "bool":
        truths = [(a > 1, b > 1) for a, b in pairs]
        logic = {"SUM": "BOR", "MAX": "BOR", "PRODUCT": "BAND", "MIN": "BAND"}.get(op, op)
        return torch.tensor([{"BOR": a or b, "BAND": a and b, "BXOR": a != b}.get(logic, a) for a, b in truths])
    dtype = getattr(torch, name)
    numbers = [combine(a, b) for a, b in pairs]
    if not dtype.is_floating_point and not dtype.is_complex:
        numbers = [int(x) for x in numbers]
    return values(name, numbers)


# ---------------------------------------------------------------- the calls: each returns whether the result is right


def calls(rank, name):
    """name of the call -> a function that makes it with dtype `name`."""
    mine, peer = values(name, BASES[rank]), 1 - rank
    both = [values(name, base) for base in BASES]

    def blank(like=mine, times=1):
        return join([torch.zeros(like.numel() * like.element_size(), dtype=torch.uint8).view(like.dtype)] * times)

    def part(tensor, count):
        return memory(tensor)[: count * tensor.element_size()].clone().view(tensor.dtype)

    def total():
        return reduced(name, "SUM")

    def all_reduce():
        tensor = mine.clone()
        dist.all_reduce(tensor)
        return same(tensor, total())

    def all_reduce_coalesced():
        tensors = [mine.clone(), mine.clone()]
        dist.all_reduce_coalesced(tensors)
        return all(same(t, total()) for t in tensors)

    def reduce():
        tensor = mine.clone()
        dist.reduce(tensor, 0)
        return rank != 0 or same(tensor, total())

    def broadcast():
        tensor = mine.clone()
        dist.broadcast(tensor, 1)
        return same(tensor, both[1])

    def all_gather():
        outputs = [blank(), blank()]
        dist.all_gather(outputs, mine)
        return all(map(same, outputs, both))

    def all_gather_uneven():
        outputs = [blank(part(mine, r + 1)) for r in range(2)]
        dist.all_gather(outputs, part(mine, rank + 1))
        return all(same(outputs[r], part(both[r], r + 1)) for r in range(2))

    def all_gather_into_tensor():
        output = blank(times=2)
        dist.all_gather_into_tensor(output, mine)
        return same(output, join(both))

    def all_gather_coalesced():
        outputs = [[blank()], [blank()]]
        dist.all_gather_coalesced(outputs, [mine])
        return all(same(outputs[r][0], both[r]) for r in range(2))

    def gather():
        outputs = [blank(), blank()] if rank == 1 else None
        dist.gather(mine, outputs, 1)
        return rank != 1 or all(map(same, outputs, both))

    def scatter():
        output = blank()
        dist.scatter(output, [b.clone() for b in both] if rank == 1 else None, 1)
        return same(output, mine)

    def reduce_scatter():
        output = blank()
        dist.reduce_scatter(output, [mine.clone(), mine.clone()])
        return same(output, total())

    def reduce_scatter_uneven():
        output = blank(part(mine, rank + 1))
        dist.reduce_scatter(output, [part(mine, 1), part(mine, 2)])
        return same(output, part(total(), rank + 1))

    def reduce_scatter_tensor():
        output = blank()
        dist.reduce_scatter_tensor(output, join([mine, mine]))
        return same(output, total())

    def all_to_all():
        outputs = [blank(), blank()]
        dist.all_to_all(outputs, [mine.clone(), mine.clone()])
        return all(map(same, outputs, both))

    def all_to_all_single():
        output = blank(times=2)
        dist.all_to_all_single(output, join([mine, mine]))
        return same(output, join(both))

    def all_to_all_splits():
        counts = [1, 3]  # from whom and to whom alike
        output = blank(part(mine, 1), 2 * counts[rank])
        dist.all_to_all_single(output, mine, [counts[rank]] * 2, counts)
        begin = 0 if rank == 0 else 1
        pieces = [memory(b).view(mine.dtype)[begin : begin + counts[rank]] for b in both]
        return same(output, join(pieces))

    def send_recv():
        tensor = blank()
        if rank == 0:
            dist.send(mine, 1)
            return True
        dist.recv(tensor, 0)
        return same(tensor, both[0])

    def recv_any():
        tensor = blank()
        if rank == 0:
            dist.send(mine, 1)
            return True
        return dist.recv(tensor) == 0 and same(tensor, both[0])

    def tags():
        if rank == 0:
            works = [dist.isend(both[i], 1, tag=i) for i in (0, 1)]
            return all(work.wait() is not False for work in works)
        tensors = [blank(), blank()]
        works = [dist.irecv(tensors[i], 0, tag=i) for i in (1, 0)]
        for work in works:
            work.wait()
        return all(map(same, tensors, both))

    def batch():
        tensor = blank()
        for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, mine, peer), dist.P2POp(dist.irecv, tensor, peer)]):
            work.wait()
        return same(tensor, both[peer])

    def managed_all_reduce():
        tensors = [mine.clone(), mine.clone()]
        with dist._coalescing_manager():
            for tensor in tensors:
                dist.all_reduce(tensor)
        return all(same(t, total()) for t in tensors)

    def managed_all_gather():
        output = blank(times=2)
        with dist._coalescing_manager():
            dist.all_gather_into_tensor(output, mine)
        return same(output, join(both))

    def managed_reduce_scatter():
        output = blank()
        with dist._coalescing_manager():
            dist.reduce_scatter_tensor(output, join([mine, mine]))
        return same(output, total())

    def strided():
        whole = torch.stack([mine, mine], dim=1)
        dist.all_reduce(whole[:, 0])
        return same(whole[:, 0], total()) and same(whole[:, 1], mine)

    def empty():
        tensor = part(mine, 0)
        dist.all_reduce(tensor)
        return tensor.numel() == 0

    every = {
        "broadcast": broadcast, "all_reduce": all_reduce, "all_reduce of a strided view": strided, "all_reduce of no elements": empty,
        "all_reduce_coalesced": all_reduce_coalesced,
        "reduce": reduce, "all_gather": all_gather, "all_gather, uneven": all_gather_uneven, "all_gather_into_tensor": all_gather_into_tensor,
        "all_gather_coalesced": all_gather_coalesced, "gather": gather, "scatter": scatter, "reduce_scatter": reduce_scatter,
        "reduce_scatter, uneven": reduce_scatter_uneven, "reduce_scatter_tensor": reduce_scatter_tensor, "all_to_all": all_to_all,
        "all_to_all_single": all_to_all_single, "all_to_all_single, split sizes": all_to_all_splits, "send, recv": send_recv,
        "recv from any rank": recv_any, "isend, irecv with tags": tags, "batch_isend_irecv": batch,
        "_coalescing_manager: all_reduce": managed_all_reduce, "_coalescing_manager: all_gather_into_tensor": managed_all_gather,
        "_coalescing_manager: reduce_scatter_tensor": managed_reduce_scatter,
    }
    if name != "float32":
        return every

    def sparse():
        tensor = torch.sparse_coo_tensor(torch.tensor([[0, rank + 1]]), torch.ones(2), (3,)).coalesce()
        dist.all_reduce(tensor)
        return tensor.to_dense().tolist() == [2, 1, 1]

    def objects():
        everybody = [None, None]
        dist.all_gather_object(everybody, {"rank": rank})
        return everybody == [{"rank": 0}, {"rank": 1}]

    def future():
        tensor = mine.clone()
        value = dist.all_reduce(tensor, async_op=True).get_future().then(lambda f: f.value()[0] * 1).wait()
        return same(value, total())

    def monitored():
        dist.monitored_barrier()
        return True

    def barrier():
        dist.barrier()
        return True

    def large():
        tensor = torch.tensor([2**62 + rank], dtype=torch.int64)
        dist.all_reduce(tensor, dist.ReduceOp.MAX)
        return tensor.item() == 2**62 + 1

    def merge():
        store = dist.FileStore(str(directory() / "merge"), 2)
        merged = dist.group.WORLD.merge_remote_group(store, 2, datetime.timedelta(seconds=30), "merged")
        tensor = mine.clone()
        merged.allreduce([tensor]).wait()
        return same(tensor, total())

    def allocate():
        cpu = torch.device("cpu")
        tensor = dist.group.WORLD._get_backend(cpu).allocate_tensor(mine.numel(), dtype=mine.dtype, device=cpu)
        tensor.copy_(mine)
        dist.all_reduce(tensor)
        return same(tensor, total())

    return {**every, "merge_remote_group": merge, "allocate_tensor of the group's backend": allocate, "barrier": barrier, "monitored_barrier": monitored, "all_reduce of a sparse tensor": sparse,
            "all_gather_object": objects, "Work.get_future().then()": future, "all_reduce MAX of int64 above 2^53": large}


def reductions(rank, name):
    def make(op):
        def call():
            tensor = values(name, BASES[rank])
            dist.all_reduce(tensor, dist._make_nccl_premul_sum(2.0) if op == "PREMUL_SUM" else getattr(dist.ReduceOp, op))
            return same(tensor, reduced(name, op))

        return call

    return {op: make(op) for op in OPS}


def outcome(call):
    try:
        return "yes" if call() else "wrong result"
    except Exception as error:
        return "refused: " + reason(error)


def reason(error):
    """The text without what differs from call to call, so that equal reasons read equal."""
    text = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    for pattern, instead in [
        (r"^\[[^\]]*\]\s*", ""),  # where it was raised
        (r"^(quoit: )?([a-z_]+( \(sparse\))?: (\[\d+, rank \d+\] )?)+", ""),
        (r"(tensor|input|output)( \d+)? has dtype \w+", "this dtype"),
        (r"op \w+ on \w+", "this operation on this dtype"),
        (r"(RedOpType|ReduceOp)\.\w+", "this operation"),
        (r"output type \w+", "output type"),
        (r"\(expected .*\)", ""),
    ]:
        text = re.sub(pattern, instead, text)
    return text.strip()[:120]


def worker(rank, size):
    """A rank of the trial: {"calls": {call: {dtype: outcome}}, "ops": {op: {dtype: outcome}}}."""
    warnings.simplefilter("ignore")
    found = {"calls": {}, "ops": {}}
    for kind, table in (("calls", calls), ("ops", reductions)):
        for name in NAMES:
            for title, call in table(rank, name).items():
                found[kind].setdefault(title, {})[name] = outcome(call)
                line_up(rank)
    return found


def line_up(rank):
    """Line the ranks up, so that what one refused and the other did not shows in that cell alone."""
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    assert tensor.item() == 2, "a call that was refused disturbs the next"


def trial(backend):
    """What both ranks found: the worse of the two for each cell."""
    first, second = run(2, worker, backend=backend, limit=60)
    return {kind: {title: {name: worse(cells[name], second[kind][title][name]) for name in cells} for title, cells in table.items()}
            for kind, table in first.items()}


def worse(a, b):
    return b if a == "yes" else a
