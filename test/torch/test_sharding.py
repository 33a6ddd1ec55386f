# SPDX-License-Identifier: Apache-2.0
"""Models spread over ranks: FSDP, FSDP2, DTensor, tensor parallel, pipelines. One process in float64 says what is right."""

import copy
import os

import pytest
import torch
import torch.distributed as dist
from torch import nn

from launcher import run

IMPORTS = ["torch._dynamo", "torch.distributed.pipelining", "torch.distributed.fsdp", "torch.distributed.tensor.parallel"]
LONG = os.environ.get("QUOIT_TEST_LONG") == "1"
STEPS = 5


def build(width=17):
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(20, 33), nn.Tanh(), nn.Linear(33, width), nn.Tanh(), nn.Linear(width, 5))


def batches(rank):
    generator = torch.Generator().manual_seed(50 + rank)
    return [(torch.randn(8, 20, generator=generator), torch.randn(8, 5, generator=generator)) for _ in range(STEPS)]


def train(model, rank):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    result = []
    for data, target in batches(rank):
        loss = nn.functional.mse_loss(model(data).to(target.dtype), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        result.append(loss.item())
    return result


def shift(model, width=17):
    """How far training has moved the weights: what a wrong divisor of the gradients shows in more than in the losses."""
    pairs = zip(model.parameters(), build(width).parameters(), strict=True)
    return torch.cat([(getattr(w, "full_tensor", lambda w=w: w)().double() - before.double()).detach().flatten() for w, before in pairs])


def alone(rank, size, factor=None, width=17):
    """Losses of `rank`, and the shift, when one process has all data and divides the gradients' sum by `factor` (the size if None)."""
    model = build(width).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    result = []
    for step in zip(*(batches(r) for r in range(size))):
        losses = [nn.functional.mse_loss(model(data.double()), target.double()) for data, target in step]
        optimizer.zero_grad()
        (sum(losses) / (factor or size)).backward()
        optimizer.step()
        result.append(losses[rank].item())
    return result, shift(model, width)


def compare(what, got, expected, tolerance=1e-4):
    assert all(abs(a - b) <= tolerance * max(1, abs(b)) for a, b in zip(got, expected, strict=True)), f"{what}: {got}, expected {expected}"


def compare_shift(what, got, expected, tolerance=1e-3):
    error = ((got - expected).norm() / expected.norm()).item()
    assert error < tolerance, f"{what}: the weights moved otherwise, by {error} of the way"


def worker_fsdp1(rank, size):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, ShardingStrategy
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    expected, way = alone(rank, size)

    def losses(tolerance=1e-3, **options):
        model = FullyShardedDataParallel(build(), device_id=torch.device("cpu"), **options)
        result = train(model, rank)
        with FullyShardedDataParallel.summon_full_params(model):
            compare_shift(options, shift(model), way, tolerance)
        return result

    each = ModuleWrapPolicy({nn.Linear})
    compare("full shard", losses(auto_wrap_policy=each), expected)
    compare("flat, not wrapped inside", losses(use_orig_params=True), expected)
    compare("shard of gradients", losses(auto_wrap_policy=each, sharding_strategy=ShardingStrategy.SHARD_GRAD_OP), expected)
    compare("no shard", losses(sharding_strategy=ShardingStrategy.NO_SHARD), expected)
    precision = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
    mixed = losses(0.1, auto_wrap_policy=each, mixed_precision=precision)
    compare("bfloat16", mixed, expected, 3e-2)
    assert mixed != losses(auto_wrap_policy=each), "bfloat16 made no difference"
    if size == 4:
        mesh = init_device_mesh("cpu", (2, 2))
        compare("hybrid", losses(device_mesh=mesh, auto_wrap_policy=each, sharding_strategy=ShardingStrategy.HYBRID_SHARD), expected)


def worker_fsdp2(rank, size):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    def sharded(mesh, **options):
        model = build()
        for layer in model:
            if isinstance(layer, nn.Linear):
                fully_shard(layer, mesh=mesh, **options)
        return fully_shard(model, mesh=mesh, **options)

    def check(what, model, expected, tolerance=1e-4):
        losses = train(model, rank)
        compare(what, losses, expected[0], tolerance)
        compare_shift(what, shift(model), expected[1], 10 * tolerance if tolerance < 0.01 else 0.1)
        return losses

    mesh = init_device_mesh("cpu", (size,))
    expected = alone(rank, size)
    assert check("AVG", sharded(mesh), expected) == train(sharded(mesh), rank), "not the same losses in a second run"
    check("not resharded", sharded(mesh, reshard_after_forward=False), expected)
    for factor in (float(size), 1.0, 5.0):
        model = sharded(mesh)
        for module in model.modules():
            if hasattr(module, "set_gradient_divide_factor"):
                module.set_gradient_divide_factor(factor)
        check(f"divided by {factor}", model, alone(rank, size, factor))
    model = sharded(mesh)
    model.set_force_sum_reduction_for_comms(True)
    check("SUM", model, expected)
    for reduce in (torch.float32, torch.bfloat16, torch.float16):
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=reduce, output_dtype=torch.float32)
        check(f"bfloat16, reduced in {reduce}", sharded(mesh, mp_policy=policy), expected, 3e-2)
    if size == 4:
        check("hybrid", sharded(init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))), expected)


def worker_fsdp2_accumulates(rank, size):
    """Gradients of two batches are reduced once; the norm is taken over all shards; a shard can be made whole."""
    from torch.distributed.fsdp import fully_shard

    model, reference = fully_shard(build()), build().double()
    for step in (0, 1):
        model.set_requires_gradient_sync(step == 1)
        data, target = batches(rank)[step]
        nn.functional.mse_loss(model(data), target).backward()
        for r in range(size):
            data, target = batches(r)[step]
            (nn.functional.mse_loss(reference(data.double()), target.double()) / size).backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.05)
    expected = torch.nn.utils.clip_grad_norm_(reference.parameters(), 0.05)
    torch.testing.assert_close(norm.full_tensor().double(), expected, rtol=1e-4, atol=1e-6)
    for mine, right in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(mine.grad.full_tensor().double(), right.grad, rtol=1e-4, atol=1e-6)


def worker_dtensor(rank, size):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (size,))
    torch.manual_seed(5 + rank)  # the source rank's tensor is the one that counts
    whole = torch.randn(7, 2 * size + 1, dtype=torch.float64)
    placements = [Shard(0), Shard(1), Replicate()]
    first = whole.clone()
    dist.broadcast(first, 0)
    for before in placements:
        tensor = distribute_tensor(whole, mesh, [before])
        for after in placements:
            assert torch.equal(tensor.redistribute(placements=[after]).full_tensor(), first), f"{before} to {after}"
    for op in ("sum", "avg", "max", "min"):
        parts = [torch.full((size + 1, 3), float(r + 1)) for r in range(size)]
        expected = {"sum": sum(parts), "avg": sum(parts) / size, "max": parts[-1], "min": parts[0]}[op]
        partial = DTensor.from_local(parts[rank], mesh, [Partial(op)])
        for after in placements:
            assert torch.equal(partial.redistribute(placements=[after]).full_tensor(), expected), f"{op} to {after}"

    # A product whose operands are cut every way, and its gradients.
    a, b = torch.randn(6, 9, dtype=torch.float64), torch.randn(9, 5, dtype=torch.float64)
    dist.broadcast(a, 0), dist.broadcast(b, 0)
    x, y = a.clone().requires_grad_(True), b.clone().requires_grad_(True)
    torch.tanh(x @ y).sum().backward()
    for left in placements:
        for right in placements:
            p = distribute_tensor(a, mesh, [left]).requires_grad_(True)
            q = distribute_tensor(b, mesh, [right]).requires_grad_(True)
            torch.tanh(p @ q).sum().backward()
            torch.testing.assert_close(p.grad.full_tensor(), x.grad, msg=f"{left} @ {right}")
            torch.testing.assert_close(q.grad.full_tensor(), y.grad, msg=f"{left} @ {right}")


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(24, 16)
        self.norm = nn.LayerNorm(16)
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)
        self.out = nn.Linear(16, 24)

    def forward(self, tokens):
        x = self.words(tokens)
        return self.out(x + self.down(torch.nn.functional.silu(self.up(self.norm(x)))))


def worker_tensor_parallel(rank, size):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, loss_parallel, parallelize_module

    mesh = init_device_mesh("cpu", (size,))
    torch.manual_seed(9)
    reference = Block().double()
    tokens, target = torch.randint(24, (3, 8)), torch.randint(24, (3, 8))
    expected = nn.functional.cross_entropy(reference(tokens).flatten(0, 1), target.flatten())
    expected.backward()
    plain = {
        "words": RowwiseParallel(input_layouts=Replicate()),
        "up": ColwiseParallel(),
        "down": RowwiseParallel(),
        "out": ColwiseParallel(output_layouts=Shard(-1), use_local_output=False),
    }
    sequence = {
        "words": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "norm": SequenceParallel(use_local_output=True),
        "up": ColwiseParallel(input_layouts=Shard(1)),
        "down": RowwiseParallel(output_layouts=Shard(1)),
        "out": ColwiseParallel(input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False),
    }
    for plan in (plain, sequence):
        model = copy.deepcopy(reference)
        model.zero_grad()
        parallelize_module(model, mesh, plan)
        with loss_parallel():
            loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), target.flatten())
            loss.backward()
        loss = loss.full_tensor() if hasattr(loss, "full_tensor") else loss
        torch.testing.assert_close(loss, expected)
        for (name, mine), right in zip(model.named_parameters(), reference.parameters(), strict=True):
            grad = mine.grad.full_tensor() if hasattr(mine.grad, "full_tensor") else mine.grad
            torch.testing.assert_close(grad, right.grad, msg=f"{name}, {list(plan)}")


def worker_two_dimensions(rank, size):
    """Four ranks: tensor parallel inside a pair, FSDP2 between the pairs."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "model"))
    model = build(width=16)
    parallelize_module(model, mesh["model"], {"2": ColwiseParallel(), "4": RowwiseParallel()})
    fully_shard(model, mesh=mesh["data"])
    replica = rank // 2
    compare("tensor parallel in FSDP2", train(model, replica), alone(replica, 2, width=16)[0])


def worker_pipeline(rank, size):
    from torch.distributed.pipelining import PipelineStage, schedules

    def layer(number):
        torch.manual_seed(40 + number)
        return nn.Sequential(nn.Linear(12, 12), nn.Tanh()).double()

    def loss_of(output, target):
        return nn.functional.mse_loss(output, target)

    torch.manual_seed(8)
    data, target = torch.randn(8, 12, dtype=torch.float64), torch.randn(8, 12, dtype=torch.float64)
    for name, per_rank, place in (
        ("ScheduleGPipe", 1, "loop"),
        ("Schedule1F1B", 1, "loop"),
        ("ScheduleInterleaved1F1B", 2, "loop"),
        ("ScheduleLoopedBFS", 2, "loop"),
        ("ScheduleInterleavedZeroBubble", 2, "loop"),
        ("ScheduleZBVZeroBubble", 2, "v"),
    ):
        count = size * per_rank
        layers = [layer(number) for number in range(count)]
        output = nn.Sequential(*layers)(data)
        expected = loss_of(output, target)
        expected.backward()
        numbers = [rank] if per_rank == 1 else [rank, count - 1 - rank] if place == "v" else [rank, rank + size]
        stages = [PipelineStage(layer(number), number, count, torch.device("cpu")) for number in numbers]
        schedule = getattr(schedules, name)(stages[0] if per_rank == 1 else stages, 4, loss_fn=loss_of)
        losses = []
        words = {"target": target, "losses": losses} if count - 1 in numbers else {}
        result = schedule.step(*([data] if 0 in numbers else []), **words)
        if words:
            torch.testing.assert_close(torch.stack(losses).mean(), expected.detach(), msg=name)
            torch.testing.assert_close(result, output, msg=name)
        for number, stage in zip(numbers, stages, strict=True):
            for mine, right in zip(stage.submod.parameters(), layers[number].parameters(), strict=True):
                torch.testing.assert_close(mine.grad, right.grad, msg=f"{name}, stage {number}")


@pytest.mark.parametrize("size", [4, 2] if LONG else [4])
def test_fsdp1(size):
    run(size, worker_fsdp1, limit=90)


@pytest.mark.parametrize("size", [4, 3] if LONG else [4])
def test_fsdp2(size):
    run(size, worker_fsdp2, limit=90)


def test_fsdp2_accumulates():
    run(2, worker_fsdp2_accumulates, limit=90)


@pytest.mark.parametrize("size", [3, 2] if LONG else [3])
def test_dtensor(size):
    run(size, worker_dtensor, limit=90)


def test_tensor_parallel():
    run(2, worker_tensor_parallel, limit=90)


def test_two_dimensions():
    run(4, worker_two_dimensions, limit=90)


def test_pipeline():
    run(2, worker_pipeline, limit=90)
