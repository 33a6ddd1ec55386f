# SPDX-License-Identifier: Apache-2.0
"""What people load a backend for: DDP and FSDP train the same model as with Gloo, with the same bits on all ranks."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from launcher import run


def build(with_idle=False):
    torch.manual_seed(7)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(20, 50), nn.Linear(50, 5)
            self.idle = nn.Linear(50, 5) if with_idle else None
            self.norm = nn.BatchNorm1d(50)

        def forward(self, x, detour=False):
            x = torch.relu(self.norm(self.first(x)))
            return self.idle(x) if detour else self.second(x)

    return Model()


def same_on_all_ranks(parameters):
    for parameter in parameters:
        copies = [torch.empty_like(parameter) for _ in range(dist.get_world_size())]
        dist.all_gather(copies, parameter.detach().contiguous())
        assert all(torch.equal(copy.view(torch.int32), copies[0].view(torch.int32)) for copy in copies), "ranks differ"


def train(group, rank, steps=6, **options):
    """A few steps of DDP; returns the losses."""
    detour, accumulate, hook = options.pop("detour", False), options.pop("accumulate", False), options.pop("hook", None)
    model = DistributedDataParallel(build(with_idle=detour), process_group=group, bucket_cap_mb=0.005, **options)
    if hook is not None:
        model.register_comm_hook(group, hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    generator = torch.Generator().manual_seed(50 + rank)
    losses = []
    for step in range(steps):
        data = torch.randn(16, 20, generator=generator)
        target = torch.randn(16, 5, generator=generator)

        def loss_of():
            return nn.functional.mse_loss(model(data, detour and (step + rank) % 2 == 0) if detour else model(data), target)

        optimizer.zero_grad()
        if accumulate:
            with model.no_sync():
                loss_of().backward()
        loss = loss_of()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    same_on_all_ranks(model.module.parameters())
    return losses


def worker_ddp(rank, size):
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook, fp16_compress_hook

    gloo = dist.new_group(backend="gloo")
    ours = dist.distributed_c10d._get_default_group()
    for options in (
        {},
        {"find_unused_parameters": True, "detour": True},
        {"accumulate": True},
        {"static_graph": True},
        {"hook": allreduce_hook},
        {"hook": fp16_compress_hook},
    ):
        got, expected = train(ours, rank, **options), train(gloo, rank, **options)
        torch.testing.assert_close(torch.tensor(got), torch.tensor(expected), rtol=1e-4, atol=1e-5, msg=f"{options}: {got} {expected}")


def worker_powersgd(rank, size):
    from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook

    torch.manual_seed(7)
    model = DistributedDataParallel(build())
    model.register_comm_hook(PowerSGDState(None, start_powerSGD_iter=2), powerSGD_hook)
    for step in range(5):
        model(torch.randn(16, 20)).sum().backward()
    same_on_all_ranks([parameter.grad for parameter in model.module.parameters() if parameter.grad is not None])


def worker_fsdp2(rank, size):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    def losses():
        mesh = init_device_mesh("cpu", (size,))
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(20, 33), nn.ReLU(), nn.Linear(33, 5))
        for layer in model:
            if isinstance(layer, nn.Linear):
                fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        generator = torch.Generator().manual_seed(50 + rank)
        result = []
        for _ in range(5):
            loss = nn.functional.mse_loss(
                model(torch.randn(8, 20, generator=generator)), torch.randn(8, 5, generator=generator)
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            result.append(loss.item())
        return result

    got = losses()
    assert got == losses(), "not the same losses in a second run"
    # Gloo has no AVG, which FSDP2 asks for: the model is one process that sees all ranks' data.
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(20, 33), nn.ReLU(), nn.Linear(33, 5))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generators = [torch.Generator().manual_seed(50 + r) for r in range(size)]
    for step in range(5):
        batches = [(torch.randn(8, 20, generator=g), torch.randn(8, 5, generator=g)) for g in generators]
        each = [nn.functional.mse_loss(model(x), y) for x, y in batches]
        optimizer.zero_grad()
        (sum(each) / size).backward()
        optimizer.step()
        torch.testing.assert_close(torch.tensor(got[step]), each[rank].detach(), rtol=1e-4, atol=1e-5)


def worker_fsdp1(rank, size):
    from torch.distributed.fsdp import FullyShardedDataParallel

    torch.manual_seed(3)
    model = FullyShardedDataParallel(nn.Sequential(nn.Linear(20, 33), nn.ReLU(), nn.Linear(33, 5)), device_id=torch.device("cpu"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    first = last = None
    torch.manual_seed(50 + rank)
    data, target = torch.randn(8, 20), torch.randn(8, 5)
    for _ in range(20):
        loss = nn.functional.mse_loss(model(data), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total = loss.detach().clone()
        dist.all_reduce(total)
        first, last = first if first is not None else total.item(), total.item()
    assert last < 0.9 * first, (first, last)


def worker_zero(rank, size):
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = DistributedDataParallel(build())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.01)
    torch.manual_seed(50 + rank)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(16, 20)).sum().backward()
        optimizer.step()
    same_on_all_ranks(model.module.parameters())


def worker_checkpoint(rank, size):
    import torch.distributed.checkpoint as checkpoint

    from launcher import directory

    state = {"weight": torch.full((4, 4), 1.0), "own": torch.full((2,), float(rank))}
    checkpoint.save({"weight": state["weight"]}, checkpoint_id=str(directory() / "saved"))
    loaded = {"weight": torch.zeros(4, 4)}
    checkpoint.load(loaded, checkpoint_id=str(directory() / "saved"))
    assert torch.equal(loaded["weight"], state["weight"])


def test_ddp():
    run(2, worker_ddp, limit=120)


def test_powersgd():
    run(2, worker_powersgd)


def test_fsdp2():
    run(2, worker_fsdp2, limit=90)


def test_fsdp1():
    run(2, worker_fsdp1, limit=90)


def test_zero():
    run(2, worker_zero, limit=90)


def test_checkpoint():
    run(2, worker_checkpoint, limit=90)
