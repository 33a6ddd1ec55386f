# SPDX-License-Identifier: Apache-2.0
"""What PyTorch keeps for built-in backends by name, and quoit's patch opens: quoit/_compat.py."""

import subprocess
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from launcher import SLOW, message_of, run


def gradient(rank, hook):
    torch.manual_seed(7)
    model = DistributedDataParallel(nn.Linear(40, 3))
    if hook is not None:
        model.register_comm_hook(None, hook)
    model(torch.full((2, 40), 0.1 + rank)).sum().backward()
    return model.module.weight.grad.clone()


def worker_bf16_hooks(rank, size):
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks as hooks

    expected = gradient(rank, None)
    for hook in (hooks.bf16_compress_hook, hooks.bf16_compress_wrapper(hooks.allreduce_hook)):
        got = gradient(rank, hook)
        assert torch.equal(got, got.to(torch.bfloat16).float()), "it was not sent as bfloat16"
        torch.testing.assert_close(got, expected, rtol=2e-2, atol=1e-3)

    def bf16_compress_hook(state, bucket: int):
        return hooks.bf16_compress_hook(state, bucket)

    model = DistributedDataParallel(nn.Linear(4, 3))
    text = message_of(lambda: model.register_comm_hook(None, bf16_compress_hook), ValueError)
    assert "bucket annotation" in text, "the other checks are still made"
    if not dist.is_nccl_available():
        other = DistributedDataParallel(nn.Linear(4, 3), process_group=dist.new_group(backend="gloo"))
        message_of(lambda: other.register_comm_hook(None, hooks.bf16_compress_hook), TypeError)


def worker_all_gather_base(rank, size):
    from torch.distributed.nn import functional

    own = torch.full((2, 3), float(rank), requires_grad=True)
    whole = functional._all_gather_base(torch.empty(2 * size, 3), own)
    assert torch.equal(whole, torch.arange(float(size)).repeat_interleave(2)[:, None].expand(-1, 3))
    (whole * torch.arange(6.0 * size).reshape(-1, 3) * (rank + 1)).sum().backward()
    factor = size * (size + 1) / 2
    assert torch.equal(own.grad, factor * torch.arange(6.0 * size).reshape(size, 2, 3)[rank])


def worker_timeouts(rank, size):
    """Also where the group's backend is named for one device only."""
    import datetime

    dist.init_process_group("cpu:quoit")
    dist.monitored_barrier(timeout=datetime.timedelta(seconds=50))
    dist.distributed_c10d._set_pg_timeout(datetime.timedelta(seconds=77))
    backend = dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu"))
    assert backend.options.timeout == datetime.timedelta(seconds=77)
    group = dist.new_group(timeout=datetime.timedelta(seconds=60 * SLOW))
    dist.barrier(group)
    if rank == 0:
        group.set_timeout(datetime.timedelta(milliseconds=200))
        dist.distributed_c10d._add_ephemeral_timeout_for_all_pgs(datetime.timedelta(seconds=60 * SLOW))
    else:
        time.sleep(1)
    dist.all_reduce(torch.ones(1), group=group)
    dist.barrier()
    dist.destroy_process_group()


def worker_dtensor(rank, size):
    """From one dimension to another by an exchange, also where parts are of different sizes and some are empty; the gradient comes back the same way."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor
    from torch.distributed.tensor.debug import CommDebugMode

    mesh = init_device_mesh("cpu", (size,))
    for shape in ((2 * size, 3 * size), (2 * size + 1, 3 * size - 1), (1, 2, size), (0, 4)):
        whole = torch.arange(float(torch.Size(shape).numel())).reshape(shape)
        rows = distribute_tensor(whole, mesh, [Shard(0)]).requires_grad_(True)
        with CommDebugMode() as mode:
            columns = rows.redistribute(placements=[Shard(1)])
            assert mode.get_comm_counts() == {torch.ops._dtensor.shard_dim_alltoall: 1}, mode.get_comm_counts()
        assert torch.equal(columns.to_local(), distribute_tensor(whole, mesh, [Shard(1)]).to_local()), shape
        columns.to_local().sum().backward()
        assert torch.equal(rows.grad.full_tensor(), torch.ones(shape)), shape


def test_dtensor():
    run(3, worker_dtensor)


def test_order_of_imports():
    """What has been imported before quoit is wrapped, and what comes later."""
    modules = ["torch.distributed.tensor._collective_utils", "torch.distributed._shard.sharded_tensor"]
    shows = (
        "import sys; from torch.distributed.tensor import placement_types as p, _collective_utils as c; from torch.distributed._shard import sharded_tensor as s;"
        "print([hasattr(each, '_quoit_wrapped') for each in (p.shard_dim_alltoall, c.shard_dim_alltoall, s.ShardedTensor.to)], len(sys.meta_path))"
    )
    number = f"import sys; print(len(sys.meta_path)); import {', '.join(modules)}"
    before = subprocess.run([sys.executable, "-P", "-c", f"{number}; import quoit; {shows}"], capture_output=True, text=True, check=True).stdout.split("\n", 1)
    after = subprocess.run([sys.executable, "-P", "-c", f"import quoit; {shows}"], capture_output=True, text=True, check=True).stdout
    light = subprocess.run([sys.executable, "-P", "-c", f"import quoit, sys; print([each for each in {modules} if each in sys.modules])"], capture_output=True, text=True, check=True)
    assert before[1] == after == f"[True, True, True] {before[0]}\n", "and nothing is left where modules are found"
    assert light.stdout == "[]\n", "they take time to import"


def test_bf16_hooks():
    run(2, worker_bf16_hooks)


def test_all_gather_base():
    run(3, worker_all_gather_base)


def test_timeouts():
    run(2, worker_timeouts, backend=None)
