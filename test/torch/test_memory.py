# SPDX-License-Identifier: Apache-2.0
"""Tensors in memory that the host's ranks share: allocate_tensor of the backend, and FSDP2's buffers in it. What is counted are bytes."""

import gc

import pytest
import torch
import torch.distributed as dist
from torch import nn

from launcher import message_of, run

IMPORTS = ["torch.distributed.fsdp", "torch.distributed.device_mesh"]
CPU = torch.device("cpu")


def backend_of(group=None):
    return (group or dist.distributed_c10d._get_default_group())._get_backend(CPU)


def counters():
    import quoit

    described = quoit.describe(as_dict=True)
    return {name: described[name] for name in ("memory", "copied", "in_place")}


def worker_tensors(rank, size):
    backend = backend_of()
    assert backend.supports_tensor_alloc(CPU) and not backend.supports_tensor_alloc(torch.device("cuda", 0))
    assert backend.allocate_tensor(0, dtype=torch.float32, device=CPU).numel() == 0
    text = message_of(lambda: backend.allocate_tensor(4, dtype=torch.float32, device=torch.device("cuda", 0)), NotImplementedError)
    assert "is for the CPU" in text, text

    count = 1 << 20
    tensor = backend.allocate_tensor(count, dtype=torch.float32, device=CPU)
    assert tensor.shape == (count,) and tensor.dtype == torch.float32 and tensor.device == CPU and tensor.is_contiguous()
    assert counters()["memory"] == 4 * count, counters()
    tensor.fill_(rank + 1)
    before = counters()
    dist.all_reduce(tensor)
    after = counters()
    assert tensor.eq(size * (size + 1) / 2).all()
    # Two ranks each read all of the other's input, which a result in its place would spoil: there it is published.
    assert after["in_place"] - before["in_place"] == (0 if size == 2 else 4 * count * (size - 1) // size), (before, after)

    whole = backend.allocate_tensor(size * count, dtype=torch.int32, device=CPU)
    mine = whole.view(size, count)[rank]
    mine.fill_(rank)
    before = counters()
    dist.all_gather_into_tensor(whole, mine)
    after = counters()
    assert all(whole.view(size, count)[other].eq(other).all() for other in range(size))
    assert after["in_place"] - before["in_place"] == 4 * count * (size - 1), (before, after)
    assert after["copied"] - before["copied"] == 4 * count * (size - 1), (before, after)

    part = torch.empty(count, dtype=torch.int32)
    before = counters()
    dist.reduce_scatter_tensor(part, whole)
    after = counters()
    assert part.eq(size * rank).all()
    assert after["copied"] == before["copied"], (before, after)
    assert after["in_place"] - before["in_place"] == 4 * count * (size - 1), (before, after)

    if rank == 0:  # sends, views, and a group that does not know of it
        dist.send(whole, 1)
    elif rank == 1:
        dist.recv(whole, 0)
    assert all(whole.view(size, count)[other].eq(other).all() for other in range(size))
    group = dist.new_group(list(range(size)))
    tensor.fill_(1)
    dist.all_reduce(tensor[1:], group=group)
    assert tensor[0] == 1 and tensor[1:].eq(size).all()
    del mine, whole
    gc.collect()
    assert counters()["memory"] == 4 * count, counters()

    dist.destroy_process_group()  # the tensor outlives it
    tensor += 1
    assert tensor[5] == size + 1


@pytest.mark.parametrize("size", [2, 4])
def test_tensors(size):
    run(size, worker_tensors)


def worker_too_large(rank, size):
    tensor = backend_of().allocate_tensor(16 << 20, dtype=torch.uint8, device=CPU)  # the arena has 16 MiB, callers get 12
    assert counters()["memory"] == 0
    tensor.fill_(1)
    dist.all_reduce(tensor)
    assert tensor.eq(size).all() and counters()["in_place"] == 0


def test_too_large():
    run(2, worker_too_large, env={"QUOIT_ARENA_SIZE": "16M"})


def worker_fsdp2(rank, size):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (size,))

    def losses(shared):
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 128))
        for layer in (model[0], model[2]):
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        if shared:
            for layer in (model, model[0], model[2]):
                layer.set_allocate_memory_from_process_group_for_comm(True)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        values = []
        for step in range(3):
            torch.manual_seed(10 * step + rank)
            loss = model(torch.randn(8, 256)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            values.append(loss.item())
        return values

    group = mesh.get_group()
    plain = losses(False)
    import quoit

    before = quoit.describe(group, as_dict=True)
    shared = losses(True)
    after = quoit.describe(group, as_dict=True)
    assert plain == shared, (plain, shared)  # the same bits
    assert before["in_place"] == 0
    # Parameters of 256 KiB and more go through slots otherwise: gathered forwards and backwards, and gradients scattered, three times.
    parameters = 4 * (256 * 512 + 512 + 512 * 128 + 128)
    assert after["in_place"] - before["in_place"] >= 3 * 3 * parameters * (size - 1) // size, (before, after)


def test_fsdp2():
    run(2, worker_fsdp2)
