# SPDX-License-Identifier: Apache-2.0
"""A few functions of PyTorch go by the names of built-in backends; here they learn of quoit.

- ``torch.distributed.monitored_barrier`` refuses every backend but "gloo" (PyTorch 2.13).
- ``distributed_c10d._set_pg_timeout`` skips every backend but Gloo and NCCL (PyTorch 2.13).
- ``DistributedDataParallel.register_comm_hook`` refuses ``bf16_compress_hook`` and hooks of ``bf16_compress_wrapper`` where there is
  no NCCL, though they need nothing but an allreduce of bfloat16.
- The gradient of ``torch.distributed.nn.functional._all_gather_base`` refuses every backend but NCCL and XCCL, though it needs
  nothing but a reduce-scatter.
- ``_coalescing_manager`` that is left by an exception keeps what was collected, and every later ``all_reduce``, ``all_gather_into_tensor``
  or ``reduce_scatter_tensor`` of the group is collected, too, and never done.
- ``ShardedTensor`` takes each backend but Gloo that is registered for CUDA as one that needs it, and fails where there is none. It is loaded
  by those who use it alone, so it is wrapped when a group is made after that.

All end in calls that quoit has. They are wrapped: groups of other backends take the original way. Set the variable
``TORCH_QUOIT_COMPAT=0`` to leave PyTorch as it is; ``group.monitored_barrier(...)`` and ``group.set_timeout(...)`` of the process
group itself always work.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import inspect
import os
import sys
from typing import Any, Callable, Iterator, Optional

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

Function = Callable[..., Any]


def _is_quoit(group: Optional[dist.ProcessGroup]) -> bool:
    """Whether this rank is in ``group`` and quoit is its backend for the CPU."""
    return c10d.is_initialized() and not c10d._rank_not_in_group(group) and "cpu:quoit" in dist.get_backend_config(group)


def _monitored_barrier(original: Function) -> Function:
    @functools.wraps(original)
    def monitored_barrier(
        group: Optional[dist.ProcessGroup] = None,
        timeout: Any = None,
        wait_all_ranks: bool = False,
    ) -> Any:
        if not _is_quoit(group):
            return original(group, timeout, wait_all_ranks)
        if timeout is None:
            timeout = c10d._get_default_timeout(dist.get_backend(group))
        elif isinstance(timeout, (int, float)):
            timeout = datetime.timedelta(seconds=timeout)
        c10d._check_valid_timeout(timeout)
        process_group: Any = group or c10d._get_default_group()
        return process_group.monitored_barrier(timeout, wait_all_ranks=wait_all_ranks)

    return monitored_barrier


def _set_pg_timeout(original: Function) -> Function:
    @functools.wraps(original)
    def set_pg_timeout(timeout: datetime.timedelta, group: Optional[dist.ProcessGroup] = None) -> None:
        if not _is_quoit(group):
            original(timeout, group)
            return
        process_group: Any = group or c10d._get_default_group()
        process_group.set_timeout(timeout)

    return set_pg_timeout


def _check_comm_hook(original: Function) -> Function:
    """DDP knows the hooks that send bfloat16 by their name: it is shown one of another name, with the same signature."""

    @functools.wraps(original)
    def check_comm_hook(self: Any, hook: Any) -> None:
        if getattr(hook, "__name__", "").startswith("bf16_compress_") and _is_quoit(self.process_group):

            def compress_hook(state: Any, bucket: Any) -> Any:
                return hook(state, bucket)

            setattr(compress_hook, "__signature__", inspect.signature(hook))
            original(self, compress_hook)
        else:
            original(self, hook)

    return check_comm_hook


def _all_gather_base_backward(original: Function) -> Function:
    @functools.wraps(original)
    def backward(ctx: Any, grad_output: torch.Tensor) -> Any:
        if not _is_quoit(ctx.group):
            return original(ctx, grad_output)
        shape, size = list(grad_output.shape), dist.get_world_size(ctx.group)
        if shape[0] % size != 0:
            raise RuntimeError(f"a gradient of shape {shape} cannot be shared equally by {size} ranks along its first dimension")
        shape[0] //= size
        own = torch.empty(shape, device=grad_output.device, dtype=grad_output.dtype)
        dist.reduce_scatter_tensor(own, grad_output.contiguous(), dist.ReduceOp.SUM, ctx.group)
        return None, own, None

    return backward


def _coalescing_manager(original: Function) -> Function:
    @functools.wraps(original)
    @contextlib.contextmanager
    def coalescing_manager(group: Optional[dist.ProcessGroup] = None, device: Optional[torch.device] = None, async_ops: Optional[bool] = False) -> Iterator[Any]:
        with original(group, device, async_ops) as manager:
            try:
                yield manager
            except BaseException:
                process_group: Any = group or c10d._get_default_group()
                if _is_quoit(process_group):
                    c10d._world.pg_coalesce_state.pop(process_group, None)
                    if device:
                        process_group._end_coalescing(device)
                raise

    return coalescing_manager


def _preferred_device(original: Function) -> Function:
    @functools.wraps(original)
    def preferred_device(self: Any) -> torch.device:
        return torch.device("cpu") if _is_quoit(self._process_group) else original(self)

    return preferred_device


def _replace(owners: list[Any], name: str, wrap: Callable[[Function], Function], static: bool = False) -> None:
    """Put ``wrap(original)`` where ``original``, attribute ``name`` of the first owner, is found; once, and if it is there at all."""
    original = getattr(owners[0], name, None)
    if original is None or hasattr(original, "_quoit_wrapped"):
        return
    wrapped = wrap(original)
    setattr(wrapped, "_quoit_wrapped", original)
    for owner in owners:
        if getattr(owner, name, None) is original:
            setattr(owner, name, staticmethod(wrapped) if static else wrapped)


def _is_wanted() -> bool:
    return os.environ.get("TORCH_QUOIT_COMPAT", "1") != "0"


def apply_to_loaded() -> None:
    """Wrap what not every program loads, where it is loaded by now."""
    sharded = sys.modules.get("torch.distributed._shard.sharded_tensor.api")
    if sharded is not None and _is_wanted():
        _replace([sharded.ShardedTensor], "_get_preferred_device", _preferred_device)


def apply() -> None:
    """Wrap them, once, unless the user does not want it."""
    if not _is_wanted():
        return
    from torch.distributed.nn import functional
    from torch.nn.parallel import DistributedDataParallel

    _replace([c10d, dist], "monitored_barrier", _monitored_barrier)
    _replace([c10d, dist], "_set_pg_timeout", _set_pg_timeout)
    _replace([c10d, dist], "_coalescing_manager", _coalescing_manager)
    _replace([DistributedDataParallel], "_check_comm_hook", _check_comm_hook)
    _replace([functional._AllGatherBase], "backward", _all_gather_base_backward, static=True)
