# SPDX-License-Identifier: Apache-2.0
"""Going on with the survivors of a group that has failed.

``torch.distributed.shrink_group`` wants to be told who is dead and registers the new group as Gloo's or NCCL's. Here the survivors
find out among themselves, and the group is quoit's.
"""

from __future__ import annotations

import datetime
from typing import Any, Optional, Union

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _register_process_group
from torch.distributed import distributed_c10d as c10d

from quoit._C import ProcessGroupQuoit
from quoit._groups import check_group, unwrapped


def _only_backend(group: dist.ProcessGroup) -> ProcessGroupQuoit:
    """The one backend of all devices of the group."""
    found: Optional[ProcessGroupQuoit] = None
    for device in group._device_types:
        backend = unwrapped(group._get_backend(device))
        if not isinstance(backend, ProcessGroupQuoit):
            raise ValueError(f"quoit.shrink: not all devices of this group use quoit: {dist.get_backend_config(group)}")
        found = backend
    if found is None:
        raise ValueError("quoit.shrink: this group has no backend")
    return found


def _register(group: dist.ProcessGroup, name: Any, kind: str, config: str, store: Any, ranks: dict[int, int]) -> None:
    """Make the group known to torch.distributed, as new_group does. ``name`` is what releases of PyTorch call str or GroupName."""
    world = c10d._world
    tag = f"ptd:{name}"
    world.pg_map[group] = (kind, store)
    world.pg_names[group] = name
    world.pg_backend_config[group] = config
    world.pg_group_ranks[group] = ranks
    world.tags_to_pg.setdefault("", []).append(group)
    world.tags_to_pg.setdefault(tag, []).append(group)
    world.pg_to_tag[group] = tag
    _register_process_group(name, group)


def shrink(
    group: Optional[dist.ProcessGroup] = None, timeout: Union[datetime.timedelta, float, None] = None
) -> dist.ProcessGroup:
    """Go on with the ranks that are left of ``group`` (the default group if None) after an operation failed or it was aborted.

    All surviving ranks call this, as after an exception of a collective; they agree on who is left, also when further ranks die
    meanwhile, and get a new group of the same members, numbered in their old order. ``group`` itself is destroyed. If it is the
    default group, the new one becomes the default group (so ``dist.get_rank()`` and ``dist.get_world_size()`` change), and all other
    groups are destroyed: make them again. Wrap the model in a new DistributedDataParallel.

    ``timeout`` (a timedelta, or seconds; the group's if None) bounds the call. A rank that neither calls nor dies is left out after half
    of it. Raises ``ValueError`` when the group has not failed (``group.abort()`` ends it), and ``DistBackendError`` when no agreement
    came about, when too few ranks are left, or when the others went on without this one; the group is left as it is then.
    """
    default = c10d._get_default_group()
    old = default if group is None else group
    check_group(old)
    backend = _only_backend(old)
    if timeout is not None and not isinstance(timeout, datetime.timedelta):
        timeout = datetime.timedelta(seconds=timeout)
    smaller, members = backend._shrink(timeout)

    kind, store = c10d._world.pg_map[old]
    config, name, devices = c10d._world.pg_backend_config[old], c10d._world.pg_names[old], list(old._device_types)
    old_ranks = {number: rank for rank, number in c10d._world.pg_group_ranks[old].items()}
    is_default, count = old is default, c10d._world.group_count
    dist.destroy_process_group(old)
    c10d._world.group_count = count  # so that a new group's name is none that was used

    new = dist.ProcessGroup(store, smaller.rank(), smaller.size())
    for device in devices:
        new._register_backend(torch.device(device), dist.ProcessGroup.BackendType.CUSTOM, smaller)
    new._set_default_backend(dist.ProcessGroup.BackendType.CUSTOM)
    new._set_group_name(name)
    new._set_group_desc("default_pg" if is_default else f"{name}:shrunk")
    numbers = range(len(members))
    ranks = {n: n for n in numbers} if is_default else {old_ranks[members[n]]: n for n in numbers}
    _register(new, name, kind, config, store, ranks)
    if is_default:
        c10d._update_default_pg(new)
    return new
