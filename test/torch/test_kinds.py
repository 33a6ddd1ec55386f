# SPDX-License-Identifier: Apache-2.0
"""Tensors of unusual kinds: expanded, sparse, near overflow, huge; a group of one rank; and a root whose mates keep what they have."""

import os

import pytest
import torch
import torch.distributed as dist

from launcher import message_of, run

LONG = os.environ.get("QUOIT_TEST_LONG") == "1"


def expanded(value=1.0):
    return torch.full((1,), value).expand(4)


def worker_expanded(rank, size):
    """Elements that share memory can be given, never received."""

    def refused(call):
        text = message_of(call, ValueError)
        assert "share memory" in text and "contiguous() copy" in text, text

    plain = [torch.zeros(4) for _ in range(size)]
    refused(lambda: dist.all_reduce(expanded()))
    refused(lambda: dist.all_reduce(torch.zeros(6).as_strided((2, 4), (2, 1))))  # rows that overlap
    refused(lambda: dist.all_gather([*plain[:-1], expanded()], torch.ones(4)))
    refused(lambda: dist.all_gather_into_tensor(torch.ones(1).expand(4 * size), torch.ones(4)))
    refused(lambda: dist.reduce_scatter_tensor(expanded(), torch.ones(4 * size)))
    refused(lambda: dist.reduce_scatter(expanded(), [torch.ones(4)] * size))
    refused(lambda: dist.all_to_all([*plain[:-1], expanded()], [torch.ones(4)] * size))
    refused(lambda: dist.all_to_all_single(torch.ones(1).expand(4 * size), torch.ones(4 * size)))
    refused(lambda: dist.recv(expanded(), (rank + 1) % size))
    refused(lambda: dist.scatter(expanded(), plain if rank == 0 else None, 0))
    for root in range(size):  # only who receives is refused; it makes the call again, for the others' sake
        if rank == root:
            refused(lambda: dist.reduce(expanded(), root))
        dist.reduce(torch.ones(4) if rank == root else expanded(), root)
        if rank != root:
            refused(lambda: dist.broadcast(expanded(), root))
        tensor = expanded(5.0) if rank == root else torch.zeros(4)
        dist.broadcast(tensor, root)
        assert tensor.tolist() == [5.0] * 4

    dist.all_gather(plain, expanded(float(rank)))
    assert [t.tolist() for t in plain] == [[float(r)] * 4 for r in range(size)]
    dist.all_to_all(plain, [expanded(10.0 * rank + r) for r in range(size)])
    assert [t.tolist() for t in plain] == [[10.0 * r + rank] * 4 for r in range(size)]
    works = dist.batch_isend_irecv([dist.P2POp(dist.isend, expanded(float(rank)), (rank + 1) % size),
                                    dist.P2POp(dist.irecv, plain[0], (rank - 1) % size)])
    for work in works:
        work.wait()
    assert plain[0].tolist() == [float((rank - 1) % size)] * 4


def worker_averages(rank, size):
    """Sums that no small float holds are averaged all the same; integers are truncated, towards zero."""
    for dtype, value in [(torch.float16, 60000.0), (torch.float8_e5m2, 57344.0), (torch.float8_e4m3fn, 448.0), (torch.bfloat16, 1e38)]:
        for count in (5, 3000):
            tensor = torch.full((count,), value).to(dtype)
            expected = tensor.clone()
            dist.all_reduce(tensor, dist.ReduceOp.AVG)
            assert torch.equal(tensor.view(torch.uint8), expected.view(torch.uint8)), (dtype, count, tensor[:3])
            output = torch.zeros(count).to(dtype)
            dist.reduce_scatter_tensor(output, expected.repeat(size) if dtype.itemsize > 1 else
                                       expected.view(torch.uint8).repeat(size).view(dtype), dist.ReduceOp.AVG)
            assert torch.equal(output.view(torch.uint8), expected.view(torch.uint8)), (dtype, count, output[:3])
    negative = torch.tensor([-1 if rank == 0 else 0, 1 if rank == 0 else 0, -7, 7], dtype=torch.int32)
    dist.all_reduce(negative, dist.ReduceOp.AVG)
    assert negative.tolist() == ([0, 0, -7, 7] if size > 1 else [-1, 1, -7, 7])


def worker_reduce(rank, size):
    """Whoever is not the root keeps its tensor, whatever the operation does on the way."""
    ops = [dist.ReduceOp.SUM, dist.ReduceOp.AVG, dist.ReduceOp.MAX, dist.ReduceOp.PRODUCT, dist._make_nccl_premul_sum(3.0)]
    for count in (3, 20001):
        for dtype in (torch.float32, torch.bfloat16, torch.complex64, torch.int16):
            for number, op in enumerate(ops if dtype.is_floating_point else ops[:2]):
                for is_strided in (False, True):
                    whole = torch.arange(2 * count).remainder(7).add(rank).to(dtype)
                    tensor, before, root = whole[::2] if is_strided else whole, whole.clone(), number % size
                    work = dist.reduce(tensor, root, op, async_op=True)
                    work.wait()
                    same = torch.equal(whole, before)
                    assert rank == root or same, (count, dtype, op, is_strided)
                    assert not is_strided or torch.equal(whole[1::2], before[1::2])
                    assert number > 0 or rank != root or size == 1 or not same


def worker_sparse(rank, size):
    def check(tensor, expected, **options):
        work = dist.all_reduce(tensor, **options)
        if options.get("async_op"):
            work.wait()
        assert tensor.layout == torch.sparse_coo and torch.equal(tensor.to_dense(), expected), (tensor, expected)

    # the same index twice, and a different number of entries on each rank
    indices = torch.tensor([[0, 0] + [1] * rank])
    for dtype in (torch.float32, torch.float64, torch.int64):
        tensor = torch.sparse_coo_tensor(indices, torch.ones(2 + rank, dtype=dtype), (3,))
        check(tensor, torch.tensor([2 * size, sum(range(size)), 0], dtype=dtype), async_op=rank % 2 == 0)
    check(torch.sparse_coo_tensor(torch.zeros(2, 0, dtype=torch.long), torch.zeros(0, 3), (4, 5, 3)), torch.zeros(4, 5, 3))  # no entries
    dense_rows = torch.sparse_coo_tensor(torch.tensor([[rank]]), torch.full((1, 2), rank + 1.0), (size, 2))  # rows of an embedding
    check(dense_rows, torch.arange(1.0, size + 1)[:, None].expand(size, 2))
    noise = torch.randn(50, 8, generator=torch.Generator().manual_seed(rank))
    tensor = torch.sparse_coo_tensor(torch.arange(50)[None], noise, (50, 8))
    dist.all_reduce(tensor)
    copies = [torch.empty(50, 8) for _ in range(size)]
    dist.all_gather(copies, tensor.to_dense())
    assert all(torch.equal(copy, copies[0]) for copy in copies), "not the same bits"

    text = message_of(lambda: dist.all_reduce(dense_rows, dist.ReduceOp.MAX), ValueError)
    assert "sparse tensors can only be summed" in text, text
    backend = dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu"))  # PyTorch itself lets no more of these through
    text = message_of(lambda: backend.allreduce([torch.eye(3).to_sparse_csr()]), ValueError)
    assert "layout SparseCsr" in text and "only dense tensors" in text, text
    text = message_of(lambda: backend.broadcast([dense_rows]), ValueError)
    assert "layout Sparse" in text, text


def worker_complex_zeros(rank, size):
    """A part of a complex sum is -0.0 on one rank alone at most; real sums keep PyTorch's sign."""
    for dtype in (torch.complex32, torch.complex64, torch.complex128):
        for call in ("all_reduce", "reduce", "reduce_scatter_tensor", "native"):
            tensor = torch.full((70, 3), complex(-0.0, -0.0), dtype=dtype)
            result = tensor
            if call == "all_reduce":
                dist.all_reduce(tensor)
            elif call == "reduce":
                dist.reduce(tensor, 0)
            elif call == "native":
                dist.distributed_c10d._get_default_group().allreduce([tensor]).wait()
            else:
                result = tensor[:, :1].contiguous()
                dist.reduce_scatter_tensor(result, torch.full((70 * size,), complex(-0.0, -0.0), dtype=dtype))
            minus = torch.signbit(torch.view_as_real(result))
            keeps = size == 1 or (call == "reduce" and rank != 0)
            assert minus.all() if keeps else not minus.any(), (dtype, call)
    parameter = torch.nn.Parameter(torch.full((4,), complex(-0.0, 1.0), dtype=torch.complex64))
    with torch.no_grad():
        dist.all_reduce(parameter)
    with torch.inference_mode():
        inferred = torch.full((4,), complex(-0.0, 1.0), dtype=torch.complex64)
        work = dist.all_reduce(inferred, async_op=True)
    work.wait()
    assert parameter.imag.tolist() == inferred.imag.tolist() == [float(size)] * 4 and parameter.requires_grad
    real = torch.full((70,), -0.0)
    dist.all_reduce(real)
    assert torch.signbit(real).all()
    infinite = torch.full((3,), complex(float("inf"), 1.0), dtype=torch.complex64)
    options = dist.AllreduceOptions()
    options.reduceOp = dist._make_nccl_premul_sum(2.0)
    dist.distributed_c10d._get_default_group().allreduce([infinite], options).wait()
    assert (infinite.real == float("inf")).all() and (infinite.imag == 2.0 * size).all()


def worker_complex_halves(rank, size):
    """Complex numbers of halves are added as what they are made of, in every call that adds, and refused by what means nothing for them."""
    backend = dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu"))  # PyTorch's dispatcher copies conjugates

    def mine(r):
        return torch.complex(torch.arange(12.0) + r, torch.arange(12.0) * 0.5 - r).to(torch.complex32).view(3, 4)

    def same(got, expected):
        return torch.equal(got.resolve_conj().to(torch.complex64), expected)

    whole = sum(mine(r).to(torch.complex64) for r in range(size))
    rows = torch.cat([mine(rank)] * size)
    for op, factor in ((dist.ReduceOp.SUM, 1.0), (dist.ReduceOp.AVG, 1 / size), (dist._make_nccl_premul_sum(2.0), 2.0)):
        expected = (torch.view_as_real(whole) * factor).half().float()
        expected = torch.view_as_complex(expected)
        reduced, strided, conjugate = mine(rank), mine(rank).t().contiguous().t(), mine(rank).conj()
        dist.reduce(reduced, 0, op)
        assert same(reduced, expected if rank == 0 else mine(rank).to(torch.complex64)), (op, reduced, expected)
        for tensor, result in ((strided, expected), (conjugate, expected.conj().resolve_conj())):
            options = dist.AllreduceOptions()
            options.reduceOp = op
            backend.allreduce([tensor], options).wait()
            assert same(tensor, result), (op, tensor, result)
        single, listed = torch.empty_like(reduced), torch.empty_like(reduced)
        dist.reduce_scatter_tensor(single, rows, op)
        dist.reduce_scatter(listed, [mine(rank) for _ in range(size)], op)
        assert same(single, expected) and same(listed, expected), (op, single, listed, expected)
    coalesced = torch.empty_like(rows[:3])
    with dist._coalescing_manager():
        dist.reduce_scatter_tensor(coalesced, rows)
    assert same(coalesced, whole), (coalesced, whole)
    for op in (dist.ReduceOp.MAX, dist.ReduceOp.PRODUCT):
        text = message_of(lambda: dist.reduce(mine(rank), 0, op), NotImplementedError)
        assert "ComplexHalf, which has SUM, AVG and PREMUL_SUM only" in text, text


def worker_alone(rank, size):
    """What a group of one has beside what the random calls cover: objects, barriers, a future."""
    everything = [None]
    dist.all_gather_object(everything, "x")
    dist.broadcast_object_list(everything, 0)
    dist.gather_object("y", everything, 0)
    assert everything == ["y"]
    dist.scatter_object_list(everything, ["z"], 0)
    assert everything == ["z"]
    dist.barrier()
    dist.monitored_barrier()
    tensor = torch.ones(3)
    assert dist.all_reduce(tensor, async_op=True).get_future().wait()[0].tolist() == [1.0] * 3
    with dist._coalescing_manager(device=torch.device("cpu")):
        dist.broadcast(tensor, 0)
        dist.all_reduce(tensor)
    assert tensor.tolist() == [1.0] * 3
    work = dist.isend(tensor * 7, 0)
    dist.recv(tensor, 0)
    work.wait()
    assert tensor.tolist() == [7.0] * 3


def worker_all(rank, size):
    for worker in (worker_averages, worker_reduce, worker_sparse, worker_complex_zeros, worker_complex_halves):
        worker(rank, size)
    if size > 1:
        worker_expanded(rank, size)
    else:
        worker_alone(rank, size)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_kinds(size):
    run(size, worker_all, limit=60)


def places(count):
    """Some of a large tensor's, no two of which are a power of two apart."""
    return [number * (2**27 + 17) for number in range(count // (2**27 + 17) + 1)] + [count - 1]


def marked(tensor, value, mark):
    """Every element is `value` but those of places(), which count up from `mark`."""
    marks = places(len(tensor))
    found = 0
    for part in tensor.split(2**26):  # what a comparison makes takes memory, too
        found += int((part == value).sum())
    return found == len(tensor) - len(marks) and [int(tensor[place]) for place in marks] == [mark + n for n in range(len(marks))]


def mark(tensor, value, first):
    tensor.fill_(value)
    for number, place in enumerate(places(len(tensor))):
        tensor[place] = first + number


def worker_huge(rank, size):
    """More elements than 32 bits count."""
    count = 2**32 + 4099
    tensor = torch.empty(count, dtype=torch.uint8)
    mark(tensor, rank + 1, 0 if rank else 100)
    dist.all_reduce(tensor, dist.ReduceOp.MAX)
    assert marked(tensor, size, 100)
    mark(tensor, rank, 10 + rank)
    dist.broadcast(tensor, size - 1)
    assert marked(tensor, size - 1, 10 + size - 1)
    if rank == 0:
        mark(tensor, 7, 20)
        dist.send(tensor, 1)
    elif rank == 1:
        tensor.zero_()
        dist.recv(tensor, 0)
        assert marked(tensor, 7, 20)
    half = count // size
    parts = tensor[: half * size].split(half)
    mark(parts[rank], rank + 1, 30 * (rank + 1))
    dist.all_gather_into_tensor(tensor[: half * size], parts[rank])
    for r in range(size):
        assert marked(parts[r], r + 1, 30 * (r + 1))
    own = torch.empty(half, dtype=torch.uint8)
    dist.reduce_scatter_tensor(own, tensor[: half * size], dist.ReduceOp.MAX)
    assert marked(own, rank + 1, 30 * (rank + 1))


if LONG:  # 13 GB of memory

    def test_more_than_32_bits_count():
        run(2, worker_huge, limit=300)
