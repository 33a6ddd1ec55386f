# SPDX-License-Identifier: Apache-2.0
"""Every collective against a model computed from all ranks' inputs, for all dtypes, operations and sizes."""

import pytest
import torch
import torch.distributed as dist

from launcher import run

IMPORTS = ["torch._dynamo"]  # what the functional collectives import

FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
INTEGERS = [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64]
MORE_INTEGERS = [torch.uint16, torch.uint32, torch.uint64]
FP8 = [torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz]
MOVED = FLOATS + INTEGERS + MORE_INTEGERS + FP8 + [torch.bool, torch.complex64, torch.complex128, torch.complex32]
SIZES = [0, 1, 3, 17, 1000, 70001]


def values(rank, count, dtype, seed=0):
    """Small whole numbers, which every dtype holds and sums of a few ranks keep exact."""
    base = (torch.arange(count) * 7 + rank * 3 + seed) % 5
    if dtype == torch.bool:
        return base % 2 == 0
    if dtype == torch.complex32:
        return torch.complex(base.half(), (base + 1).half())
    if dtype.is_complex:
        return torch.complex(base.double(), (base + 1).double()).to(dtype)
    return base.to(torch.float32).to(dtype)


def same(got, expected):
    if got.dtype == torch.bool:
        return torch.equal(got, expected)
    return got.dtype == expected.dtype and torch.equal(got.contiguous().view(torch.uint8), expected.contiguous().view(torch.uint8))


def reduced(op, inputs):
    """The model: in float64 or int64, rounded once."""
    dtype = inputs[0].dtype
    if dtype == torch.bool:
        wide = torch.stack([x.to(torch.int64) for x in inputs])
        table = {"SUM": wide.amax(0), "MAX": wide.amax(0), "BOR": wide.amax(0), "PRODUCT": wide.amin(0), "MIN": wide.amin(0),
                 "BAND": wide.amin(0), "BXOR": wide.sum(0) % 2}
        return table[op].bool()
    wide = torch.stack([x.to(torch.complex128 if dtype.is_complex else torch.float64 if dtype.is_floating_point else torch.int64)
                        for x in inputs])
    if op in ("BAND", "BOR", "BXOR"):
        total = wide[0].clone()
        for x in wide[1:]:
            total = {"BAND": total & x, "BOR": total | x, "BXOR": total ^ x}[op]
        return total.to(dtype)
    if op == "AVG":
        total = wide.sum(0)
        if not dtype.is_floating_point and not dtype.is_complex:
            return torch.div(total, len(inputs), rounding_mode="trunc").to(dtype)
        return (total / len(inputs)).to(dtype)
    return {"SUM": lambda: wide.sum(0), "PRODUCT": lambda: wide.prod(0), "MIN": lambda: wide.amin(0),
            "MAX": lambda: wide.amax(0)}[op]().to(dtype)


def ops_of(dtype):
    if dtype == torch.bool:
        return ["SUM", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR"]
    if dtype.is_complex:
        return ["SUM", "PRODUCT", "AVG"]
    if dtype.is_floating_point:
        return ["SUM", "PRODUCT", "MIN", "MAX", "AVG"]
    return ["SUM", "PRODUCT", "MIN", "MAX", "AVG", "BAND", "BOR", "BXOR"]


def close(got, expected):
    """AVG of inexact quotients may differ in the last place: the model divides in float64."""
    if got.dtype.is_floating_point or got.dtype.is_complex:
        wide = torch.complex128 if got.dtype.is_complex else torch.float64
        return torch.allclose(got.to(wide), expected.to(wide), rtol=2e-2 if got.dtype.itemsize < 4 else 1e-6)
    return same(got, expected)


def worker_reductions(rank, size):
    pg = dist.distributed_c10d._get_default_group()
    for dtype in FLOATS + INTEGERS + [torch.bool, torch.complex64, torch.complex128]:
        for op in ops_of(dtype):
            for count in [0, 1, 17, 1000] if op != "SUM" else SIZES:
                where = f"{op} {dtype} count {count} rank {rank} of {size}"
                inputs = [values(r, count, dtype) for r in range(size)]
                expected = reduced(op, inputs)
                reduce_op = getattr(dist.ReduceOp, op)

                options = dist.AllreduceOptions()
                options.reduceOp = reduce_op
                tensor = inputs[rank].clone()
                pg.allreduce([tensor], options).wait()  # not dist.all_reduce, which takes complex numbers apart
                assert close(tensor, expected), f"all_reduce {where}: {tensor[:5]} {expected[:5]}"

                options = dist.ReduceOptions()
                options.reduceOp, options.rootRank = reduce_op, size - 1
                tensor = inputs[rank].clone()
                pg.reduce([tensor], options).wait()
                assert close(tensor, expected) if rank == size - 1 else same(tensor, inputs[rank]), f"reduce {where}"

                parts = [[values(r, count, dtype, seed=p) for p in range(size)] for r in range(size)]
                mine = reduced(op, [parts[r][rank] for r in range(size)])
                options = dist.ReduceScatterOptions()
                options.reduceOp = reduce_op
                output = torch.empty_like(mine)
                pg.reduce_scatter([output], [parts[rank]], options).wait()
                assert close(output, mine), f"reduce_scatter {where}"
                output = torch.empty_like(mine)
                pg._reduce_scatter_base(output, torch.cat(parts[rank]), options).wait()
                assert close(output, mine), f"reduce_scatter_tensor {where}"


def worker_uneven(rank, size):
    counts = [(3 * r + 1) % 5 for r in range(size)]
    inputs = [values(rank, c, torch.float32, seed=p) for p, c in enumerate(counts)]
    output = torch.empty(counts[rank])
    dist.reduce_scatter(output, inputs)
    assert same(output, reduced("SUM", [values(r, counts[rank], torch.float32, seed=rank) for r in range(size)]))
    outputs = [torch.empty(c) for c in counts]
    dist.all_gather(outputs, values(rank, counts[rank], torch.float32))
    assert all(same(o, values(r, c, torch.float32)) for r, (o, c) in enumerate(zip(outputs, counts)))


def worker_moves(rank, size):
    root = size - 1
    for dtype in MOVED:
        for count in SIZES:
            where = f"{dtype} count {count} rank {rank} of {size}"
            mine = values(rank, count, dtype)
            everybody = [values(r, count, dtype) for r in range(size)]

            def blank():
                return torch.zeros(count, dtype=torch.uint8).to(dtype) if dtype in MORE_INTEGERS + FP8 else torch.zeros(count, dtype=dtype)

            tensor = mine.clone()
            dist.broadcast(tensor, root)
            assert same(tensor, everybody[root]), f"broadcast {where}"

            outputs = [blank() for _ in range(size)]
            dist.all_gather(outputs, mine)
            assert all(map(same, outputs, everybody)), f"all_gather {where}"

            output = torch.empty(size * count, dtype=dtype)
            dist.all_gather_into_tensor(output, mine)
            assert all(same(output[r * count : (r + 1) * count], everybody[r]) for r in range(size)), f"all_gather_into_tensor {where}"

            outputs = [blank() for _ in range(size)] if rank == root else None
            dist.gather(mine, outputs, root)
            assert rank != root or all(map(same, outputs, everybody)), f"gather {where}"

            output = blank()
            dist.scatter(output, [values(r + 1, count, dtype) for r in range(size)] if rank == root else None, root)
            assert same(output, values(rank + 1, count, dtype)), f"scatter {where}"

            outputs = [blank() for _ in range(size)]
            dist.all_to_all(outputs, [values(rank * size + p, count, dtype) for p in range(size)])
            assert all(same(outputs[p], values(p * size + rank, count, dtype)) for p in range(size)), f"all_to_all {where}"

            output = torch.empty(size * count, dtype=dtype)
            source = torch.cat([values(rank * size + p, count, dtype).view(torch.uint8) for p in range(size)]).view(dtype)
            dist.all_to_all_single(output, source)
            assert all(
                same(output[p * count : (p + 1) * count], values(p * size + rank, count, dtype)) for p in range(size)
            ), f"all_to_all_single {where}"


def worker_all_to_all_splits(rank, size):
    def split(source, target):
        return (source + 2 * target) % 4

    row = torch.arange(3.0)
    sends, recvs = [split(rank, p) for p in range(size)], [split(p, rank) for p in range(size)]
    source = torch.cat([(row + 100 * rank + 10 * p).repeat(n, 1) for p, n in enumerate(sends)])
    output = torch.empty(sum(recvs), 3)
    dist.all_to_all_single(output, source, recvs, sends)
    assert torch.equal(output, torch.cat([(row + 100 * p + 10 * rank).repeat(n, 1) for p, n in enumerate(recvs)]))


def worker_premul(rank, size):
    for dtype in (torch.float32, torch.float64):
        for factor in (0.5, torch.tensor([0.25], dtype=dtype)):
            tensor = torch.full((5,), float(rank + 1), dtype=dtype)
            dist.all_reduce(tensor, dist._make_nccl_premul_sum(factor))
            assert torch.equal(tensor, torch.full((5,), float(factor) * size * (size + 1) / 2, dtype=dtype))


def worker_coalesced(rank, size):
    pg = dist.distributed_c10d._get_default_group()
    total = float(sum(range(size)))
    first, second = torch.full((4,), float(rank)), torch.full((7,), float(rank + 10))
    dist.all_reduce_coalesced([first, second])
    assert (first == total).all() and (second == total + 10 * size).all()

    lists = [[torch.zeros(4), torch.zeros(3)] for _ in range(size)]
    dist.all_gather_coalesced(lists, [torch.full((4,), float(rank)), torch.full((3,), float(rank + 5))])
    assert all((lists[r][0] == r).all() and (lists[r][1] == r + 5).all() for r in range(size))

    outputs = [torch.zeros(4 * size), torch.zeros(3 * size)]
    work = pg.allgather_into_tensor_coalesced(outputs, [torch.full((4,), float(rank)), torch.full((3,), float(rank))])
    work.wait()
    assert torch.equal(outputs[1], torch.arange(size).repeat_interleave(3).float())

    outputs = [torch.zeros(4), torch.zeros(3)]
    pg.reduce_scatter_tensor_coalesced(outputs, [torch.full((4 * size,), float(rank)), torch.full((3 * size,), 1.0)]).wait()
    assert (outputs[0] == total).all() and (outputs[1] == size).all()

    for is_async in (True, False):
        tensors = [torch.full((n,), float(rank)) for n in (1, 5)]
        with dist._coalescing_manager(async_ops=is_async) as manager:
            for tensor in tensors:
                dist.all_reduce(tensor)
        if is_async:
            manager.wait()
        assert all((tensor == total).all() for tensor in tensors)

    with dist._coalescing_manager(device=torch.device("cpu"), async_ops=True) as manager:
        tensors = [torch.full((3,), float(rank)) for _ in range(3)]
        for tensor in tensors:
            dist.broadcast(tensor, size - 1)
    manager.wait()
    assert all((tensor == size - 1).all() for tensor in tensors)


def worker_sparse(rank, size):
    indices = torch.tensor([[0, rank + 1], [2, rank]])
    tensor = torch.sparse_coo_tensor(indices, torch.ones(2, 3), (size + 1, size + 2, 3), check_invariants=True)
    expected = torch.zeros(size + 1, size + 2, 3)
    expected[0, 2] += size
    for r in range(size):
        expected[r + 1, r] += 1
    dist.all_reduce(tensor)
    assert torch.equal(tensor.to_dense(), expected)


def worker_objects(rank, size):
    lists = [{"a": 1}, "x"] if rank == 0 else [None, None]
    dist.broadcast_object_list(lists, 0)
    assert lists == [{"a": 1}, "x"]
    everybody = [None] * size
    dist.all_gather_object(everybody, {"rank": rank, "padding": "y" * (1000 * rank)})
    assert [x["rank"] for x in everybody] == list(range(size))
    gathered = [None] * size if rank == 0 else None
    dist.gather_object(("r", rank), gathered, 0)
    assert rank != 0 or gathered == [("r", r) for r in range(size)]
    mine = [None]
    dist.scatter_object_list(mine, [("s", r) for r in range(size)] if rank == 0 else None, 0)
    assert mine[0] == ("s", rank)


def worker_functional(rank, size):
    import torch.distributed._functional_collectives as functional

    pg = dist.distributed_c10d._get_default_group()
    total = float(sum(range(size)))
    mine = torch.full((4,), float(rank))
    assert (functional.all_reduce(mine, "sum", pg) + 0 == total).all()
    assert torch.equal(functional.all_gather_tensor(mine, 0, pg) + 0, torch.arange(size).repeat_interleave(4).float())
    assert (functional.reduce_scatter_tensor(torch.full((4 * size,), float(rank)), "sum", 0, pg) + 0 == total).all()
    assert torch.equal(functional.all_to_all_single(torch.full((size,), float(rank)), None, None, pg) + 0, torch.arange(float(size)))
    assert (functional.broadcast(mine, size - 1, pg) + 0 == size - 1).all()


def worker_against_gloo(rank, size):
    """The same calls on a Gloo group and on ours, with random floats: Gloo's sums differ in the last places only."""
    gloo = dist.new_group(backend="gloo")
    generator = torch.Generator().manual_seed(100 + rank)
    for count in (5, 4096, 100003):
        source = torch.randn(count, generator=generator)
        for op in (dist.ReduceOp.SUM, dist.ReduceOp.MIN, dist.ReduceOp.MAX, dist.ReduceOp.PRODUCT):
            ours, theirs = source.clone(), source.clone()
            dist.all_reduce(ours, op)
            dist.all_reduce(theirs, op, group=gloo)
            torch.testing.assert_close(ours, theirs)
        copies = [torch.empty_like(ours) for _ in range(size)]
        dist.all_gather(copies, ours)
        assert all(torch.equal(copy.view(torch.int32), ours.view(torch.int32)) for copy in copies), "not the same bits"


WORKERS = [worker_uneven, worker_all_to_all_splits, worker_premul, worker_coalesced, worker_sparse, worker_objects,
           worker_functional]


def worker_small_ones(rank, size):
    for worker in WORKERS:
        worker(rank, size)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_small_ones(size):
    run(size, worker_small_ones, limit=90)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_reductions(size):
    run(size, worker_reductions, limit=180)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_moves(size):
    run(size, worker_moves, limit=120)


def test_against_gloo():
    run(2, worker_against_gloo)
