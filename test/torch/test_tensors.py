# SPDX-License-Identifier: Apache-2.0
"""Tensors that are not contiguous, those that cannot be results, and what is said of bad ones."""

import itertools

import pytest
import torch
import torch.distributed as dist

from launcher import message_of, run


def views(fill):
    """(name, view, whole): views with gaps, other orders, odd starts; `whole` is the memory around them."""
    for name, sizes, cut in [
        ("transposed", (5, 4), lambda w: w.t()),
        ("columns", (6, 8), lambda w: w[:, ::2]),
        ("inner block", (7, 9), lambda w: w[2:5, 3:7]),
        ("every third", (30,), lambda w: w[1::3]),
        ("permuted", (2, 3, 4), lambda w: w.permute(2, 0, 1)),
        ("channels last", (2, 4, 5, 3), lambda w: w.permute(0, 3, 1, 2)),
        ("slice with offset", (20,), lambda w: w[3:15]),
        ("one element", (3, 3), lambda w: w[1, 1]),
    ]:
        whole = torch.full(sizes, fill)
        yield name, cut(whole), whole


def worker_views(rank, size):
    canary = -77.0
    total = float(sum(range(size)))
    calls = {
        "all_reduce": (lambda view, flat: dist.all_reduce(view), lambda shape: torch.full(shape, total)),
        "all_reduce async": (
            lambda view, flat: dist.all_reduce(view, async_op=True).wait(),
            lambda shape: torch.full(shape, total),
        ),
        "broadcast": (lambda view, flat: dist.broadcast(view, size - 1), lambda shape: torch.full(shape, float(size - 1))),
        "scatter": (
            lambda view, flat: dist.scatter(view, [torch.full(view.shape, r + 5.0) for r in range(size)] if rank == 0 else None, 0),
            lambda shape: torch.full(shape, rank + 5.0),
        ),
        "reduce_scatter_tensor": (
            lambda view, flat: dist.reduce_scatter_tensor(view, torch.full((view.numel() * size,), float(rank))),
            lambda shape: torch.full(shape, total),
        ),
        "ring": (
            lambda view, flat: [
                work.wait()
                for work in dist.batch_isend_irecv(
                    [
                        dist.P2POp(dist.isend, torch.full(view.shape, float(rank)), (rank + 1) % size),
                        dist.P2POp(dist.irecv, view, (rank - 1) % size),
                    ]
                )
            ],
            lambda shape: torch.full(shape, float((rank - 1) % size)),
        ),
    }
    for call_name, (call, model) in calls.items():
        for name, view, whole in views(canary):
            view.fill_(float(rank))
            outside = whole == canary
            call(view, None)
            assert torch.equal(view, model(view.shape)), f"{call_name} on {name}: {view}"
            assert (whole[outside] == canary).all(), f"{call_name} on {name} wrote outside"

    for name, view, whole in views(canary):
        view.fill_(float(rank))
        outputs, wholes = [], []
        for r in range(size):
            other = [(v, w) for n, v, w in views(canary) if n == name][0]
            other[0].fill_(0)
            outputs.append(other[0])
            wholes.append(other[1])
        dist.all_gather(outputs, view)
        for r in range(size):
            assert (outputs[r] == r).all(), f"all_gather on {name}"
            assert (wholes[r] == canary).sum() == (whole == canary).sum(), f"all_gather on {name} wrote outside"


def worker_layouts_differ(rank, size):
    """The same tensor in another memory order on each rank: elements, not memory, must meet."""
    tensor = torch.arange(12.0).reshape(3, 4)
    if rank % 2 == 1:
        tensor = tensor.t().contiguous().t()
    dist.all_reduce(tensor)
    assert torch.equal(tensor, size * torch.arange(12.0).reshape(3, 4))


def worker_reduce_leaves_inputs(rank, size):
    tensor = torch.full((1000,), float(rank))
    dist.reduce(tensor, 1)
    assert (tensor == (sum(range(size)) if rank == 1 else rank)).all()


def worker_aliases(rank, size):
    """Inputs that are part of the outputs."""
    output = torch.zeros(3 * size)
    output[3 * rank : 3 * rank + 3] = rank
    dist.all_gather_into_tensor(output, output[3 * rank : 3 * rank + 3])
    assert torch.equal(output, torch.arange(size).repeat_interleave(3).float())

    flat = torch.arange(float(size))
    dist.all_to_all_single(flat, flat)
    assert (flat == rank).all()

    parts = torch.full((size, 4), float(rank))
    dist.reduce_scatter_tensor(parts[0], parts.flatten())
    assert (parts[0] == sum(range(size))).all()

    outputs = [torch.zeros(2) for _ in range(size)]
    outputs[(rank + 1) % size].fill_(rank)
    dist.all_gather(outputs, outputs[(rank + 1) % size])
    assert all((outputs[r] == r).all() for r in range(size))

    for count, own in itertools.product([1, 2000], range(size)):
        outputs = [torch.zeros(count) for _ in range(size)]
        outputs[own].fill_(rank)
        dist.gather(outputs[own], outputs if rank == 0 else None, dst=0)
        assert rank or all((outputs[r] == r).all() for r in range(size)), f"gather of output {own}: {outputs}"

        pairs = [[torch.zeros(count), torch.zeros(2)] for _ in range(size)]
        pairs[own][0].fill_(rank)
        dist.all_gather_coalesced(pairs, [pairs[own][0], torch.full((2,), float(rank))])
        assert all((pair[0] == r).all() and (pair[1] == r).all() for r, pair in enumerate(pairs)), f"all_gather_coalesced of output {own}: {pairs}"

        inputs = [torch.full((count,), float(r)) for r in range(size)]
        output = inputs[own]
        dist.scatter(output, inputs if rank == size - 1 else None, src=size - 1)
        assert (output == rank).all(), f"scatter to input {own}: {output}"

        whole = torch.arange(float(size + 1) * count)  # the output begins in the middle of the own input
        output = whole[rank * count + count // 2 :][:count]
        expected = torch.arange(rank * count, (rank + 1) * count).float() * size
        dist.reduce_scatter(output, list(whole[: size * count].split(count)))
        assert torch.equal(output, expected), f"reduce_scatter: {output}"


def worker_parameters(rank, size):
    """Tensors that take part in autograd, and those of inference mode."""
    parameter = torch.nn.Parameter(torch.full((3, 4), float(rank)))
    with torch.no_grad():
        dist.broadcast(parameter, 0)
        dist.all_reduce(parameter.t())
    assert parameter.requires_grad and (parameter == 0).all()
    with torch.inference_mode():
        tensor = torch.full((3, 4), 1.0).t()
        dist.all_reduce(tensor)
        assert (tensor == size).all()


def name_of(dtype):
    return str(dtype).removeprefix("torch.")


def worker_refusals(rank, size):
    pg = dist.distributed_c10d._get_default_group()
    ones = torch.ones(10)

    text = message_of(lambda: dist.all_reduce(torch.ones(1).expand(4)), ValueError)
    assert "share memory" in text and "strides [0]" in text, text
    backend = pg._get_backend(torch.device("cpu"))
    text = message_of(lambda: backend.allreduce([torch.ones(4, device="meta")]), ValueError)
    assert "all_reduce: tensor is on device meta" in text, text
    text = message_of(lambda: pg.allreduce([torch.ones(3), torch.ones(3)]), ValueError)
    assert "all_reduce: got 2 tensors, expected 1" in text, text
    text = message_of(lambda: pg.allgather([[torch.ones(10)] * (size + 1)], [ones]), ValueError)
    assert f"all_gather: got {size + 1} output tensors, expected {size}" in text, text
    outputs = [torch.ones(12 if r == rank else 10) for r in range(size)]
    text = message_of(lambda: pg.allgather([outputs], [ones]), ValueError)
    assert f"all_gather: output {rank} has 12 elements, expected 10" in text, text
    text = message_of(lambda: pg.allgather([[torch.ones(10, dtype=torch.int32)] * size], [ones]), ValueError)
    assert "all_gather: output 0 has dtype Int, expected Float" in text, text
    text = message_of(lambda: pg._allgather_base(torch.ones(7), ones), ValueError)
    assert f"all_gather_into_tensor: output has 7 elements, expected {10 * size}" in text, text
    text = message_of(lambda: pg._reduce_scatter_base(ones, torch.ones(7)), ValueError)
    assert f"reduce_scatter_tensor: input has 7 elements, expected {10 * size}" in text, text
    text = message_of(lambda: pg.alltoall_base(torch.ones(5), torch.ones(5), [1] * size, [3] + [0] * (size - 1)), ValueError)
    assert "5 rows" in text and "add up to" in text, text
    text = message_of(lambda: pg.alltoall_base(torch.ones(2 * size + 1), torch.ones(2 * size + 1), [], []), ValueError)
    assert "cannot share equally" in text, text
    options = dist.BroadcastOptions()
    options.rootRank = size
    text = message_of(lambda: pg.broadcast([ones], options), ValueError)
    assert f"root rank {size} is not in a group of {size} ranks" in text, text
    text = message_of(lambda: pg.send([ones], 0, -1), ValueError)
    assert "tag -1 is negative" in text, text
    text = message_of(lambda: pg.send([ones], size, 0), ValueError)
    assert f"rank {size} is not in a group" in text, text

    for dtype, op in [
        (torch.float32, "BAND"),
        (torch.float64, "BXOR"),
        (torch.bool, "AVG"),
        (torch.float8_e4m3fnuz, "SUM"),
        (torch.complex32, "MIN"),
    ]:
        why = "tensor has dtype ComplexHalf, which has SUM, AVG and PREMUL_SUM only" if dtype == torch.complex32 else f"not supported: op {op.lower()} on {name_of(dtype)}"
        options = dist.AllreduceOptions()
        options.reduceOp = getattr(dist.ReduceOp, op)
        text = message_of(lambda: pg.allreduce([torch.zeros(4).to(dtype)], options).wait(), NotImplementedError)
        assert text.startswith("quoit: all_reduce") and why in text, text
    for dtype, op in [(torch.complex64, "MIN"), (torch.int32, "PREMUL_SUM")]:
        options = dist.AllreduceOptions()
        options.reduceOp = dist._make_nccl_premul_sum(2.0) if op == "PREMUL_SUM" else getattr(dist.ReduceOp, op)
        text = message_of(lambda: pg.allreduce([torch.zeros(4).to(dtype)], options).wait(), NotImplementedError)
        assert f"not supported: op {op.lower()} on {name_of(dtype)}" in text, text

    # A refusal sends nothing: the group goes on.
    dist.all_reduce(ones)
    assert (ones == size).all()


def worker_all(rank, size):
    for worker in (worker_views, worker_layouts_differ, worker_reduce_leaves_inputs, worker_aliases, worker_parameters,
                   worker_refusals):
        worker(rank, size)


@pytest.mark.parametrize("size", [2, 3])
def test_tensors(size):
    run(size, worker_all, limit=90)
