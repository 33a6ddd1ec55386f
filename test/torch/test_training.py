# SPDX-License-Identifier: Apache-2.0
"""DistributedDataParallel and what goes with it: the same losses as with Gloo and the same seed, and the same bits on all ranks.

Each rank takes its data from a generator of its own, so that a gradient which is not exchanged shows in the next loss.
"""

import copy
import functools
import time

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from launcher import message_of, run

IMPORTS = ["torch._dynamo", "torch.distributed.optim"]


class Model(nn.Module):
    def __init__(self, with_idle=False):
        super().__init__()
        self.first, self.second = nn.Linear(20, 50), nn.Linear(50, 5)
        self.idle = nn.Linear(50, 5) if with_idle else None
        self.norm = nn.BatchNorm1d(50)

    def forward(self, x, detour=False):
        x = torch.relu(self.norm(self.first(x)))
        return self.idle(x) if detour else self.second(x)


def same_on_all_ranks(parameters):
    for parameter in parameters:
        copies = [torch.empty_like(parameter) for _ in range(dist.get_world_size())]
        dist.all_gather(copies, parameter.detach().contiguous())
        assert all(torch.equal(copy.view(torch.int32), copies[0].view(torch.int32)) for copy in copies), "ranks differ"


def ours():
    return dist.distributed_c10d._get_default_group()


def compare(what, got, expected):
    torch.testing.assert_close(torch.tensor(got), torch.tensor(expected), rtol=1e-4, atol=1e-5, msg=f"{what}: {got} {expected}")


def train(group, rank, steps=6, detour=False, accumulate=False, hook=None, optimizer=None, **options):
    """A few steps of DDP; returns the losses. `hook` is called with the model and the group, `optimizer` with the parameters."""
    torch.manual_seed(7)
    model = DistributedDataParallel(Model(with_idle=detour), process_group=group, bucket_cap_mb=0.005, **options)
    if hook is not None:
        hook(model, group)
    optimizer = optimizer(model.parameters()) if optimizer else torch.optim.SGD(model.parameters(), lr=0.05)
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
    gloo = dist.new_group(backend="gloo")
    for options in (
        {},
        {"gradient_as_bucket_view": True},
        {"find_unused_parameters": True, "detour": True},
        {"accumulate": True},
        {"accumulate": True, "gradient_as_bucket_view": True},
        {"static_graph": True},
        {"static_graph": True, "gradient_as_bucket_view": True},
        {"broadcast_buffers": False},
    ):
        compare(options, train(ours(), rank, **options), train(gloo, rank, **options))


def worker_hooks(rank, size):
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    def simple(hook):
        return lambda model, group: model.register_comm_hook(group, hook)

    def power(hook, **options):
        def register(model, group):
            state = powerSGD_hook.PowerSGDState(group, matrix_approximation_rank=2, start_powerSGD_iter=2, **options)
            model.register_comm_hook(state, hook)

        return register

    hooks = {
        "allreduce": simple(default_hooks.allreduce_hook),
        "fp16": simple(default_hooks.fp16_compress_hook),
        "fp16 around allreduce": simple(default_hooks.fp16_compress_wrapper(default_hooks.allreduce_hook)),
        "PowerSGD": power(powerSGD_hook.powerSGD_hook),
        "PowerSGD, orthogonal": power(powerSGD_hook.powerSGD_hook, orthogonalization_epsilon=1e-6, warm_start=False),
        "built in": lambda model, group: model._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS),
    }
    gloo = dist.new_group(backend="gloo")
    for name, hook in hooks.items():
        compare(name, train(ours(), rank, hook=hook), train(gloo, rank, hook=hook))


def worker_hooks_in_order(rank, size):
    """Hooks of PyTorch that begin collectives in callbacks of futures, with several buckets: ranks that are at different places of the
    backward pass when a callback runs must begin the same collectives all the same."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
    from torch.distributed.algorithms.ddp_comm_hooks.ddp_zero_hook import hook_with_zero_step_interleaved
    from torch.distributed.optim import ZeroRedundancyOptimizer

    halves = default_hooks.fp16_compress_wrapper(powerSGD_hook.powerSGD_hook)

    def wrapped(state, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        return halves(state, bucket)

    def stagger(model):
        """Rank 0 has begun all buckets when the first callback runs, rank 1 only the first of them."""
        for parameter in model.parameters():
            parameter.register_hook(lambda gradient: time.sleep(0.005 * rank))

    for hook in (powerSGD_hook.powerSGD_hook, functools.partial(powerSGD_hook.powerSGD_hook), wrapped):
        torch.manual_seed(3)
        model = nn.Sequential(*[nn.Linear(48, 48) for _ in range(6)])
        stagger(model)
        parallel = DistributedDataParallel(model, bucket_cap_mb=0.004)
        state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=2, min_compression_rate=0.5)
        if isinstance(hook, functools.partial):
            functools.update_wrapper(hook, hook.func)  # DistributedDataParallel wants a name
        parallel.register_comm_hook(state, hook)
        for step in range(6):
            torch.manual_seed(step * size + rank)
            parallel(torch.randn(3, 48)).square().sum().backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter -= 0.001 * parameter.grad
                    parameter.grad = None
        assert len(state.p_memory_dict) > 3, "fewer buckets than this is about"
        same_on_all_ranks(model.parameters())

    torch.manual_seed(3)
    model = nn.Sequential(*[nn.Linear(16, 16) for _ in range(4)])
    alone = copy.deepcopy(model)
    stagger(model)
    parallel = DistributedDataParallel(model, bucket_cap_mb=0.0005, gradient_as_bucket_view=True)
    optimizer = ZeroRedundancyOptimizer(parallel.parameters(), torch.optim.SGD, overlap_with_ddp=True, lr=0.01)
    parallel.register_comm_hook(None, hook_with_zero_step_interleaved(default_hooks.allreduce_hook, parallel, optimizer))
    for step in range(6):
        data = torch.randn(2 * size, 16, generator=torch.Generator().manual_seed(step))
        parallel(data[2 * rank : 2 * rank + 2]).square().mean().backward()
        parallel.zero_grad()
        if step < 2:
            continue  # the optimizer learns of the buckets
        alone(data).square().mean().backward()
        with torch.no_grad():
            for parameter in alone.parameters():
                parameter -= 0.01 * parameter.grad
                parameter.grad = None
    for got, expected in zip(model.parameters(), alone.parameters()):
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-6)


def worker_hook_raises(rank, size):
    """A hook that raises on one rank ends backward there; the others learn of it when that rank's process group goes."""

    def hook(group, bucket):
        if rank == 1:
            raise ArithmeticError("the hook of rank 1 does not like this")
        return dist.all_reduce(bucket.buffer(), group=group, async_op=True).get_future().then(lambda future: future.value()[0])

    model = DistributedDataParallel(Model())
    model.register_comm_hook(None, hook)
    loss = model(torch.randn(8, 20)).sum()
    if rank == 1:
        assert "does not like this" in message_of(loss.backward)
        dist.destroy_process_group()
    else:
        text = message_of(loss.backward)
        assert "rank 1" in text, text


def worker_post_local(rank, size):
    """Four ranks in two sub-groups: global steps first, then local ones with an average of the models every second step."""
    from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import PostLocalSGDState, post_localSGD_hook
    from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
    from torch.distributed.optim import PostLocalSGDOptimizer

    def losses(backend):
        group = dist.new_group(backend=backend)
        subgroup, _ = dist.new_subgroups(2, backend=backend)

        def hook(model, _):
            model.register_comm_hook(PostLocalSGDState(group, subgroup, start_localSGD_iter=2), post_localSGD_hook)

        def optimizer(parameters):
            averager = PeriodicModelAverager(period=2, warmup_steps=2, process_group=group)
            return PostLocalSGDOptimizer(torch.optim.SGD(parameters, lr=0.05), averager)

        return train(group, rank, steps=7, hook=hook, optimizer=optimizer)  # the last step has averaged

    compare("post-local SGD", losses("quoit"), losses("gloo"))


def worker_sparse(rank, size):
    def losses(group):
        torch.manual_seed(7)
        inner = nn.Sequential(nn.EmbeddingBag(40, 8, sparse=True, mode="sum"), nn.Linear(8, 3))
        model = DistributedDataParallel(inner, process_group=group)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        generator = torch.Generator().manual_seed(50 + rank)
        result = []
        for _ in range(5):
            loss = model(torch.randint(40, (6, 4), generator=generator)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            assert inner[0].weight.grad.is_sparse
            optimizer.step()
            result.append(loss.item())
        same_on_all_ranks(inner.parameters())
        return result

    compare("sparse gradients", losses(ours()), losses(dist.new_group(backend="gloo")))


def worker_join(rank, size):
    """Rank r has 2 + r batches. Those that have run out shadow the others' collectives."""
    from torch.distributed.algorithms.join import Join
    from torch.distributed.optim import ZeroRedundancyOptimizer

    def losses(group, with_zero):
        torch.manual_seed(7)
        model = DistributedDataParallel(nn.Sequential(nn.Linear(20, 9), nn.Tanh(), nn.Linear(9, 5)), process_group=group)
        if with_zero:
            optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, process_group=group, lr=0.01)
        else:
            optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        generator = torch.Generator().manual_seed(50 + rank)
        result = []
        with Join([model, optimizer]) if with_zero else model.join():
            for _ in range(2 + rank):
                loss = model(torch.randn(4, 20, generator=generator)).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                result.append(loss.item())
        same_on_all_ranks(model.module.parameters())
        return result

    gloo = dist.new_group(backend="gloo")
    for with_zero in (False, True):
        compare(f"join, with ZeRO: {with_zero}", losses(ours(), with_zero), losses(gloo, with_zero))


def worker_zero(rank, size):
    """Sharded Adam is Adam."""
    from torch.distributed.optim import ZeroRedundancyOptimizer

    def sharded(**options):
        return lambda parameters: ZeroRedundancyOptimizer(parameters, torch.optim.Adam, lr=0.01, **options)

    expected = train(ours(), rank, optimizer=lambda parameters: torch.optim.Adam(parameters, lr=0.01))
    for options in ({}, {"parameters_as_bucket_view": True}):
        compare(options, train(ours(), rank, optimizer=sharded(**options)), expected)

    model = nn.Linear(6, 3)
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.01)
    model(torch.ones(2, 6)).sum().backward()
    optimizer.step()
    optimizer.consolidate_state_dict(to=1)
    if rank == 1:
        state = optimizer.state_dict()["state"]
        assert len(state) == 2 and all(entry["exp_avg"].abs().sum() > 0 for entry in state.values()), state


class SyncNorm(nn.Module):
    """SyncBatchNorm's arithmetic out of collectives that autograd knows: PyTorch's own has no kernels for the CPU."""

    def __init__(self, gathering):
        super().__init__()
        self.gathering = gathering

    def forward(self, x):
        import torch.distributed.nn.functional as collectives

        own = torch.cat([x.sum(0), x.square().sum(0), x.new_tensor([len(x)])])
        if self.gathering:
            total = sum(collectives.all_gather(own))
        else:
            total = collectives.all_reduce(own)
        n = (len(total) - 1) // 2
        mean = total[:n] / total[-1]
        variance = total[n : 2 * n] / total[-1] - mean.square()
        return (x - mean) / torch.sqrt(variance + 1e-5)


def worker_sync_norm(rank, size):
    """Statistics over all ranks' batches, of unequal sizes: outputs and gradients of one process that has the whole batch."""
    torch.manual_seed(7)
    sizes = [3 + 2 * r for r in range(size)]
    whole = torch.randn(sum(sizes), 6, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(sum(sizes), 6, dtype=torch.float64)
    expected = nn.BatchNorm1d(6, affine=False, dtype=torch.float64)(whole)
    (expected * weight).sum().backward()
    mine = slice(sum(sizes[:rank]), sum(sizes[: rank + 1]))
    for gathering in (False, True):
        part = whole.detach()[mine].clone().requires_grad_(True)
        output = SyncNorm(gathering)(part)
        (output * weight[mine]).sum().backward()
        torch.testing.assert_close(output, expected[mine])
        torch.testing.assert_close(part.grad, whole.grad[mine])
    model = nn.SyncBatchNorm.convert_sync_batchnorm(Model())
    assert isinstance(model.norm, nn.SyncBatchNorm)
    assert "GPU" in message_of(lambda: model(torch.randn(4, 20)), ValueError)
    model.eval()
    with torch.no_grad():
        assert model(torch.randn(4, 20)).shape == (4, 5)


@pytest.mark.parametrize("worker", [worker_ddp, worker_hooks, worker_sparse, worker_zero], ids=lambda worker: worker.__name__)
def test_two_ranks(worker):
    run(2, worker, limit=90)


def test_three_ranks():
    run(3, worker_join, limit=90)


def test_hooks_in_order():
    run(2, worker_hooks_in_order)


def test_hook_raises():
    run(2, worker_hook_raises)


def test_post_local_sgd():
    run(4, worker_post_local, limit=90)


def test_sync_batch_norm():
    run(3, worker_sync_norm)
