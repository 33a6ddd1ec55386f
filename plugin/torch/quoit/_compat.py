# SPDX-License-Identifier: Apache-2.0
"""Two functions of ``torch.distributed`` go by the names of built-in backends; here they learn of quoit.

``torch.distributed.monitored_barrier`` refuses every backend but "gloo", and ``distributed_c10d._set_pg_timeout`` skips every
backend but Gloo and NCCL, though both end in calls that quoit has. They are wrapped: groups of other backends take the original
way. Set the variable ``TORCH_QUOIT_COMPAT=0`` to leave PyTorch as it is; ``group.monitored_barrier(...)`` and
``group.set_timeout(...)`` of the process group itself always work.
"""

from __future__ import annotations

import datetime
import functools
import os
from typing import Any, Optional

import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d


def _is_quoit(group: Optional[dist.ProcessGroup]) -> bool:
    return c10d.is_initialized() and not c10d._rank_not_in_group(group) and dist.get_backend(group) == "quoit"


def _monitored_barrier(original: Any) -> Any:
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


def _set_pg_timeout(original: Any) -> Any:
    @functools.wraps(original)
    def set_pg_timeout(timeout: datetime.timedelta, group: Optional[dist.ProcessGroup] = None) -> None:
        if not _is_quoit(group):
            return original(timeout, group)
        process_group: Any = group or c10d._get_default_group()
        process_group.set_timeout(timeout)

    return set_pg_timeout


def apply() -> None:
    """Wrap the two functions, once, unless the user does not want it."""
    if os.environ.get("TORCH_QUOIT_COMPAT", "1") == "0":
        return
    for name, wrap in (("monitored_barrier", _monitored_barrier), ("_set_pg_timeout", _set_pg_timeout)):
        original = getattr(c10d, name, None)
        if original is None or hasattr(original, "_quoit_wrapped"):
            continue
        wrapped = wrap(original)
        wrapped._quoit_wrapped = original
        for module in (c10d, dist):
            if getattr(module, name, None) is original:
                setattr(module, name, wrapped)
