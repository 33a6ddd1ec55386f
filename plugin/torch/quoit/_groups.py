# SPDX-License-Identifier: Apache-2.0
"""What the other modules ask of PyTorch's groups."""

from typing import Any

import torch.distributed as dist


def unwrapped(backend: Any) -> Any:
    """The backend itself, without what TORCH_DISTRIBUTED_DEBUG=DETAIL puts around it."""
    while hasattr(backend, "wrapped_pg"):
        backend = backend.wrapped_pg
    return backend


def check_group(group: Any) -> None:
    """PyTorch gives a rank a number in place of a group that it is not in."""
    if isinstance(group, int) and group == dist.GroupMember.NON_GROUP_MEMBER:
        raise ValueError(f"rank {dist.get_rank()} is not in this group, so that it has nothing to say of it")
    if not isinstance(group, dist.ProcessGroup):
        raise TypeError(f"expected a process group of torch.distributed, not a {type(group).__name__}")
