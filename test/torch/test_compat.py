# SPDX-License-Identifier: Apache-2.0
"""What PyTorch keeps for built-in backends by name, and quoit's patch opens: quoit/_compat.py."""

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


def test_bf16_hooks():
    run(2, worker_bf16_hooks)


def test_all_gather_base():
    run(3, worker_all_gather_base)


def test_timeouts():
    run(2, worker_timeouts, backend=None)
