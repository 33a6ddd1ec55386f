# SPDX-License-Identifier: Apache-2.0
"""A few functions of PyTorch go by the names of built-in backends; here they learn of quoit.

- ``torch.distributed.monitored_barrier`` refuses every backend but "gloo" (PyTorch 2.13).
- ``distributed_c10d._set_pg_timeout`` skips every backend but Gloo and NCCL (PyTorch 2.13).
- ``distributed_c10d._add_ephemeral_timeout_for_all_pgs``, by which Inductor lets a rank that had its kernels wait for those that compile
  them, skips every backend but NCCL.
- ``ProcessGroup._get_sequence_number_for_group`` and ``_set_sequence_number_for_group`` are errors for every backend from outside.
- ``DistributedDataParallel.register_comm_hook`` refuses ``bf16_compress_hook`` and hooks of ``bf16_compress_wrapper`` where there is
  no NCCL, though they need nothing but an allreduce of bfloat16.
- The gradient of ``torch.distributed.nn.functional._all_gather_base`` refuses every backend but NCCL and XCCL, though it needs
  nothing but a reduce-scatter.
- ``_coalescing_manager`` that is left by an exception keeps what was collected, and every later ``all_reduce``, ``all_gather_into_tensor``
  or ``reduce_scatter_tensor`` of the group is collected, too, and never done.
- ``ShardedTensor`` takes each backend but Gloo that is registered for CUDA as one that needs it, and fails where there is none: in
  ``gather()``, and in ``device`` and ``to()`` of a rank that has no shard, hence in the sharded state of FSDP1 when a parameter has fewer
  rows than there are ranks.
- DTensor cuts a tensor along another dimension by an alltoall, but on the CPU, where it takes Gloo for granted, by gathering all of it on each
  rank; it warns of that.
- PowerSGD and ``hook_with_zero_step_interleaved`` begin collectives in callbacks of futures. Callbacks of NCCL's futures run at once, in the
  order of the buckets; those of a CPU's run when the future is done, on a thread of their own, between whatever collectives the backward pass
  has begun by then: another order on each rank. Such hooks get futures that are done.

All end in calls that quoit has. They are wrapped: groups of other backends take the original way. Set the variable
``TORCH_QUOIT_COMPAT=0`` to leave PyTorch as it is; ``group.monitored_barrier(...)`` and ``group.set_timeout(...)`` of the process
group itself always work.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import importlib.abc
import importlib.machinery
import inspect
import os
import sys
import types
from typing import Any, Callable, Iterator, Optional

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from quoit import _C
from quoit._groups import unwrapped

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


def _add_ephemeral_timeout(original: Function) -> Function:
    @functools.wraps(original)
    def add_ephemeral_timeout(timeout: datetime.timedelta) -> None:
        original(timeout)
        for group in list(c10d._world.pg_map):
            if _is_quoit(group):
                unwrapped(group._get_backend(torch.device("cpu")))._add_ephemeral_timeout(timeout)

    return add_ephemeral_timeout


def _sequence_number(original: Function) -> Function:
    @functools.wraps(original)
    def sequence_number(self: Any) -> Any:
        if self not in c10d._world.pg_map or not _is_quoit(self):
            return original(self)
        return getattr(self._get_backend(torch.device("cpu")), original.__name__)()

    return sequence_number


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


def _is_without_cuda(group: Optional[dist.ProcessGroup]) -> bool:
    """Whether quoit is all that ``group`` has, so that its tensors are on the CPU."""
    return _is_quoit(group) and all(part.endswith(":quoit") for part in dist.get_backend_config(group).split(","))


def _preferred_device(original: Function) -> Function:
    @functools.wraps(original)
    def preferred_device(self: Any) -> torch.device:
        return torch.device("cpu") if _is_without_cuda(self._process_group) else original(self)

    return preferred_device


class _OnlyName:
    """In the place of a group whose name alone is asked for: it says that its tensors are on the CPU."""

    def _get_backend_name(self) -> str:
        return "gloo"


def _sharded_to(original: Function) -> Function:
    @functools.wraps(original)
    def to(self: Any, *args: Any, **kwargs: Any) -> Any:
        group = self._process_group
        if self._local_shards or not _is_without_cuda(group):
            return original(self, *args, **kwargs)
        if kwargs.get("process_group") is None:
            kwargs["process_group"] = group
        self._process_group = _OnlyName()
        try:
            return original(self, *args, **kwargs)
        finally:
            self._process_group = group

    return to


def _sharded_device(original: Function) -> Function:
    @functools.wraps(original)
    def device(types: Any, args: Any, kwargs: Any, process_group: Any) -> Any:
        return original(types, args, kwargs, _OnlyName() if _is_without_cuda(process_group) else process_group)

    return device


def _shard_dim_alltoall(original: Function) -> Function:
    @functools.wraps(original)
    def shard_dim_alltoall(input: torch.Tensor, gather_dim: int, shard_dim: int, mesh: Any, mesh_dim: int) -> torch.Tensor:
        group = mesh.get_group(mesh_dim)
        if mesh.device_type != "cpu" or not isinstance(group, dist.ProcessGroup) or not _is_quoit(group) or input.size(shard_dim) % mesh.size(mesh_dim) != 0:
            result: torch.Tensor = original(input, gather_dim, shard_dim, mesh, mesh_dim)
            return result
        output: torch.Tensor = torch.ops._dtensor.shard_dim_alltoall(input, gather_dim, shard_dim, group.group_name)
        return output

    return shard_dim_alltoall


def _called_by(hook: types.FunctionType) -> list[Any]:
    """What a function may call: what it has enclosed and, if it is not PyTorch's own, the global names in it, also those of modules."""
    called = []
    for cell in hook.__closure__ or ():
        with contextlib.suppress(ValueError):  # nothing is in it yet
            called.append(cell.cell_contents)
    if not (hook.__module__ or "").startswith("torch."):
        names = hook.__code__.co_names
        values = [hook.__globals__.get(name) for name in names]
        called += values
        called += [getattr(module, name, None) for module in values if isinstance(module, types.ModuleType) for name in names]
    return called


def _begins_in_callbacks(hook: Any) -> bool:
    """Whether ``hook`` is, or calls, one of PyTorch's hooks that begin collectives in callbacks: it may be wrapped in other functions."""
    seen: set[int] = set()
    waiting = [hook]
    while waiting:
        entry = waiting.pop()
        if id(entry) in seen:
            continue
        seen.add(id(entry))
        if isinstance(entry, functools.partial):
            waiting += [entry.func, *entry.args, *entry.keywords.values()]
        elif isinstance(entry, types.MethodType):
            waiting.append(entry.__func__)
        elif isinstance(entry, types.FunctionType):
            place, name = entry.__module__ or "", entry.__qualname__
            if place.endswith("ddp_comm_hooks.powerSGD_hook") or (place.endswith("ddp_comm_hooks.ddp_zero_hook") and "interleaved" in name):
                return True
            waiting += _called_by(entry)
    return False


def _register_comm_hook(original: Function) -> Function:
    @functools.wraps(original)
    def register_comm_hook(self: Any, state: object, hook: Any) -> None:
        if not _is_quoit(self.process_group) or not _begins_in_callbacks(hook):
            original(self, state, hook)
            return

        @functools.wraps(hook)
        def in_order(state: Any, bucket: Any) -> Any:
            before = _C.set_futures_done(True)
            try:
                return hook(state, bucket)
            finally:
                _C.set_futures_done(before)

        original(self, state, in_order)

    return register_comm_hook


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


class _Importing(importlib.abc.MetaPathFinder):
    """Calls ``then`` with the module ``name`` when that has been imported. It stands first among those that find modules until then."""

    def __init__(self, name: str, then: Callable[[Any], None]) -> None:
        self.name, self.then = name, then

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Optional[importlib.machinery.ModuleSpec]:
        if name != self.name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: types.ModuleType) -> None:
                execute(module)
                self.then(module)

            setattr(spec.loader, "exec_module", exec_module)
        return spec


def _when_imported(name: str, then: Callable[[Any], None]) -> None:
    """Not to import it for that: a program may never need it, and some take half a second."""
    if name in sys.modules:
        then(sys.modules[name])
    elif not any(isinstance(finder, _Importing) and finder.name == name for finder in sys.meta_path):
        sys.meta_path.insert(0, _Importing(name, then))


def _apply_to_sharded_tensors(package: Any) -> None:
    sharded: Any = getattr(package, "api", None)
    if not hasattr(sharded, "ShardedTensor"):  # it is deprecated, and may go
        return
    _replace([sharded.ShardedTensor], "_get_preferred_device", _preferred_device)
    _replace([sharded.ShardedTensor], "to", _sharded_to)
    attribute: Any = torch.Tensor.device
    operations, device = getattr(sharded, "_SHARDED_OPS", {}), attribute.__get__
    if device in operations and not hasattr(operations[device], "_quoit_wrapped"):
        wrapped = _sharded_device(operations[device])
        setattr(wrapped, "_quoit_wrapped", operations[device])
        operations[device] = wrapped


def _apply_to_dtensor(collectives: Any) -> None:
    placements = sys.modules.get("torch.distributed.tensor.placement_types")
    _replace([collectives, *([placements] if placements else [])], "shard_dim_alltoall", _shard_dim_alltoall)


def apply() -> None:
    """Wrap them, once, unless the user does not want it."""
    if os.environ.get("TORCH_QUOIT_COMPAT", "1") == "0":
        return
    from torch.distributed.nn import functional
    from torch.nn.parallel import DistributedDataParallel

    _replace([c10d, dist], "monitored_barrier", _monitored_barrier)
    _replace([c10d, dist], "_set_pg_timeout", _set_pg_timeout)
    _replace([c10d], "_add_ephemeral_timeout_for_all_pgs", _add_ephemeral_timeout)
    _replace([dist.ProcessGroup], "_get_sequence_number_for_group", _sequence_number)
    _replace([dist.ProcessGroup], "_set_sequence_number_for_group", _sequence_number)
    _replace([c10d, dist], "_coalescing_manager", _coalescing_manager)
    _replace([DistributedDataParallel], "_check_comm_hook", _check_comm_hook)
    _replace([DistributedDataParallel], "register_comm_hook", _register_comm_hook)
    _replace([functional._AllGatherBase], "backward", _all_gather_base_backward, static=True)
    _when_imported("torch.distributed._shard.sharded_tensor", _apply_to_sharded_tensors)
    _when_imported("torch.distributed.tensor._collective_utils", _apply_to_dtensor)
