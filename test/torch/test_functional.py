# SPDX-License-Identifier: Apache-2.0
"""Collectives that autograd and torch.compile see through: values and gradients are those of one process that has all tensors."""

import os
import tempfile

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
import torch.distributed.nn.functional as differentiable

from launcher import argument, directory, run

IMPORTS = ["torch._dynamo"]
LONG = os.environ.get("QUOIT_TEST_LONG") == "1"


def check(name, rank, size, collective, naive, shape=None):
    """`collective(x)` is one rank's call, `naive(xs)` the outputs of all ranks; both weighted, summed and differentiated.

    The output of a rank that gets none is None in `naive`, and of no matter in `collective` as long as it hangs on x.
    """
    generator = torch.Generator().manual_seed(11)
    shape = shape or (2 * size, 3)
    everything = [torch.randn(shape, dtype=torch.float64, generator=generator) for _ in range(size)]
    theirs = [x.clone().requires_grad_(True) for x in everything]
    expected = naive(theirs)
    weights = [None if y is None else torch.randn(y.shape, dtype=torch.float64, generator=generator) for y in expected]
    sum((y * w).sum() for y, w in zip(expected, weights) if y is not None).backward()

    mine = everything[rank].clone().requires_grad_(True)
    output = collective(mine)
    if expected[rank] is None:
        (output * 0).sum().backward()
    else:
        torch.testing.assert_close(output, expected[rank], msg=f"{name} of {size} ranks: {output}, expected {expected[rank]}")
        (output * weights[rank]).sum().backward()
    right = theirs[rank].grad if theirs[rank].grad is not None else torch.zeros_like(mine)
    torch.testing.assert_close(mine.grad, right, msg=f"gradient of {name} of {size} ranks: {mine.grad}, expected {right}")


def worker_differentiable(rank, size):
    last = size - 1

    def only_root(value):
        return [value if r == last else None for r in range(size)]

    def parts(x):
        return list(x.chunk(size))

    def exchanged(xs):
        return [torch.cat([x.chunk(size)[r] for x in xs]) for r in range(size)]

    def same(value):
        return [value] * size

    def all_to_all(x):
        return torch.cat(differentiable.all_to_all([torch.empty(2, 3, dtype=x.dtype) for _ in range(size)], parts(x)))

    def reduce_scatter(x):
        return differentiable.reduce_scatter(torch.empty(2, 3, dtype=x.dtype), parts(x))

    table = [
        ("all_reduce", differentiable.all_reduce, lambda xs: same(sum(xs))),
        ("broadcast", lambda x: differentiable.broadcast(x, last), lambda xs: same(xs[last])),
        ("all_gather", lambda x: torch.cat(differentiable.all_gather(x)), lambda xs: same(torch.cat(xs))),
        ("gather", lambda x: torch.cat(differentiable.gather(x, last)), lambda xs: only_root(torch.cat(xs))),
        ("reduce", lambda x: differentiable.reduce(x, last), lambda xs: only_root(sum(xs))),
        ("scatter", lambda x: differentiable.scatter(parts(x), last), lambda xs: parts(xs[last])),
        ("reduce_scatter", reduce_scatter, lambda xs: parts(sum(xs))),
        ("all_to_all", all_to_all, exchanged),
        ("all_to_all_single", lambda x: differentiable.all_to_all_single(torch.empty_like(x), x), exchanged),
    ]
    for name, collective, naive in table:
        check(name, rank, size, collective, naive)


def uneven(rank, size):
    """Rank r gives rank s r + s rows."""
    return [rank + s for s in range(size)]


def worker_functional(rank, size):
    group = dist.group.WORLD

    def all_to_all(x):
        return funcol.all_to_all_single(x, uneven(rank, size), uneven(rank, size), group)

    def exchanged(xs):
        cut = [torch.split(x[: sum(uneven(r, size))], uneven(r, size)) for r, x in enumerate(xs)]
        return [torch.cat([cut[r][s] for r in range(size)]) for s in range(size)]

    table = [
        ("all_reduce", lambda x: funcol.all_reduce(x, "sum", group), lambda xs: [sum(xs)] * size),
        ("all_gather, rows", lambda x: funcol.all_gather_tensor(x, 0, group), lambda xs: [torch.cat(xs)] * size),
        ("all_gather, columns", lambda x: funcol.all_gather_tensor(x, 1, group), lambda xs: [torch.cat(xs, 1)] * size),
        ("reduce_scatter", lambda x: funcol.reduce_scatter_tensor(x, "sum", 0, group), lambda xs: list(sum(xs).chunk(size))),
    ]
    for name, collective, naive in table:
        check(name, rank, size, collective, naive)
    columns = (3, 2 * size)
    check(
        "reduce_scatter, columns",
        rank,
        size,
        lambda x: funcol.reduce_scatter_tensor(x, "sum", 1, group),
        lambda xs: list(sum(xs).chunk(size, 1)),
        columns,
    )
    rows = max(sum(uneven(r, size)) for r in range(size))
    check("all_to_all, uneven", rank, size, lambda x: all_to_all(x[: sum(uneven(rank, size))]), exchanged, (rows, 2))

    x = torch.arange(4.0) + rank
    neighbour = [(r + 1) % size for r in range(size)]
    assert torch.equal(funcol.permute_tensor(x, neighbour, group), torch.arange(4.0) + (rank - 1) % size)
    assert torch.equal(funcol.broadcast(x, size - 1, group), torch.arange(4.0) + size - 1)
    total = torch.arange(4.0) * size + sum(range(size))
    for op, expected in (("sum", total), ("avg", total / size), ("max", torch.arange(4.0) + size - 1), ("min", torch.arange(4.0))):
        torch.testing.assert_close(funcol.all_reduce(x, op, group) + 0, expected, msg=op)
    several = [torch.full((n,), float(rank)) for n in (1, 5, 3)]
    for n, summed in zip((1, 5, 3), funcol.all_reduce_coalesced(several, "sum", group)):
        assert torch.equal(summed + 0, torch.full((n,), float(sum(range(size)))))
    for n, gathered in zip((1, 5, 3), funcol.all_gather_into_tensor_coalesced(several, group)):
        assert torch.equal(gathered + 0, torch.arange(float(size)).repeat_interleave(n))
    wide = [torch.arange(float(size)).repeat_interleave(n) for n in (2, 3)]
    for n, cut in zip((2, 3), funcol.reduce_scatter_tensor_coalesced(wide, "sum", [0, 0], group)):
        assert torch.equal(cut + 0, torch.full((n,), float(rank * size)))


def worker_compiled(rank, size):
    """One graph with every collective in it gives what the same calls give one by one, and the same gradients."""
    group = dist.group.WORLD

    def step(x, w):
        y = torch.tanh(x @ w)
        y = funcol.all_reduce(y, "sum", group) * 0.5
        y = funcol.all_gather_tensor(y, 0, group).square()
        y = funcol.reduce_scatter_tensor(y, "sum", 0, group) + 1
        y = funcol.all_to_all_single(y, None, None, group) * (rank + 1)
        return funcol.broadcast(y.detach(), 0, group) + y

    def traditional(x):
        total, parts = x * 2, x.new_empty(size * x.shape[0], x.shape[1])
        dist.all_reduce(total)
        dist.all_gather_into_tensor(parts, x + 1)
        return total + parts.sum()

    def run_with(function):
        torch.manual_seed(20 + rank)
        x = torch.randn(2 * size, 6).requires_grad_(True)
        w = torch.randn(6, 4).requires_grad_(True)
        y = function(x, w)
        (y * torch.arange(float(y.numel())).view_as(y)).sum().backward()
        return y.detach() + 0, x.grad, w.grad

    backend = argument()
    tempfile.tempdir = str(directory())  # Inductor leaves a cache and headers there
    for got, expected in zip(run_with(torch.compile(step, fullgraph=True, backend=backend)), run_with(step)):
        torch.testing.assert_close(got, expected)
    x = torch.randn(3, 4)
    torch.testing.assert_close(torch.compile(traditional, fullgraph=True, backend=backend)(x), traditional(x))


def worker_compiled_ddp(rank, size):
    """DDP's buckets, of a megabyte each, cut the compiled graph: same gradients as without compiling."""
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    def gradients(wrap):
        torch.manual_seed(7)
        model = DistributedDataParallel(nn.Sequential(nn.Linear(9, 700), nn.Tanh(), nn.Linear(700, 400)), bucket_cap_mb=1)
        torch.manual_seed(50 + rank)
        wrap(model)(torch.randn(5, 9)).square().sum().backward()
        return [parameter.grad for parameter in model.parameters()]

    compiled = gradients(lambda model: torch.compile(model, backend="aot_eager"))
    torch.testing.assert_close(compiled, gradients(lambda model: model))


@pytest.mark.parametrize("size", [2, 3])
def test_differentiable(size):
    run(size, worker_differentiable)


@pytest.mark.parametrize("size", [2, 3])
def test_functional(size):
    run(size, worker_functional)


@pytest.mark.parametrize("backend", ["aot_eager"] + (["inductor"] if LONG else []))
def test_compiled(backend):
    run(2, worker_compiled, argument=backend, limit=240)


def test_compiled_ddp():
    run(2, worker_compiled_ddp, limit=90)
