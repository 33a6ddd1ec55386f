# SPDX-License-Identifier: Apache-2.0
"""Types of the C++ module."""

import datetime
from typing import Any, Optional

from torch import Tensor
from torch._C._distributed_c10d import Backend, ErrorType, GatherOptions, Store, Work

class Options(Backend.Options):
    """Options of a group, for ``init_process_group(pg_options=...)`` and ``new_group(pg_options=...)``.

    timeout: limit of creating the group and of each operation; wins over the ``timeout`` given beside it.
    wire_dtype: what sums of floats are while they cross the network between hosts: ``"bf16"``, ``"fp16"``, ``"int8"``, ``"float32"``
    or ``"none"``; the same on all ranks. None: setting ``QUOIT_WIRE_DTYPE``.
    sockets: TCP connections between two processes of different hosts, 1 to 16. All groups share them, so the first group of the
    process decides; a different wish of a later one is a warning, once. None leaves it to the setting ``QUOIT_TCP_SOCKETS``.
    """

    timeout: datetime.timedelta
    wire_dtype: Optional[str]
    sockets: Optional[int]
    def __init__(
        self, timeout: Optional[datetime.timedelta] = None, wire_dtype: Optional[str] = None, sockets: Optional[int] = None
    ) -> None: ...

class ProcessGroupQuoit(Backend):
    """The backend object of a group: what ``torch.distributed`` calls. ``quoit.describe`` and its like find it themselves.

    Made by hand, as ``ProcessGroupGloo`` can be, it is a group that ``torch.distributed`` does not know of, of the ranks that come to
    ``store``; the call returns when all are there.
    """

    def __init__(self, store: Store, rank: int, size: int, timeout: datetime.timedelta = ...) -> None: ...

    @property
    def options(self) -> Options:
        """A copy of the group's options; ``set_timeout`` changes the group's."""

    def describe(self, json: bool = False) -> str:
        """Ranks, hosts, transports in use and counters as text or JSON; ``{}`` while the ranks have not met."""

    def history(self, json: bool = False) -> str:
        """The newest operations of the group, as text or JSON."""

    def _shrink(self, timeout: Optional[datetime.timedelta] = None) -> tuple["ProcessGroupQuoit", list[int]]:
        """What ``quoit.shrink`` calls: the group of those that are left, and their ranks in this one."""

    def _allreduce_residual(self, tensor: Tensor, residual: Tensor) -> Work:
        """What ``quoit.CompressHook`` calls: sum ``tensor``; ``residual`` receives what encoding took away on this rank."""

    def last_error(self) -> str:
        """The text of the group's first error; empty when there was none."""

    def get_error(self) -> ErrorType:
        """The kind of the group's first error, or ``ErrorType.SUCCESS``."""

    def gather_single(self, output: Tensor, input: Tensor, opts: GatherOptions = ...) -> Work:
        """Gather one tensor a rank into one tensor on the root."""

    def perform_nocolor_split(self, device: Any) -> None:
        """Nothing to do: ranks that are in no part of a split take no part in it."""

def create(backend: Any, options: Optional[Options]) -> ProcessGroupQuoit:
    """Make the backend object of a group; ``backend`` is PyTorch's description of it."""

def shutdown_all() -> None:
    """Shut down all groups of the process, for the interpreter's end."""

def set_futures_done(wanted: bool) -> bool:
    """Whether futures that this thread asks a Work for are done when it gets them; returns what it was before."""

def library_version() -> str:
    """The version of libquoit that is loaded."""

def settings() -> str:
    """All settings with type, unit, default, value in force and description."""

def process_history(pid: int, json: bool = False) -> str:
    """The newest operations of another process of this machine, as text or JSON."""

def trace_start(path: str) -> None:
    """Begin to record operations into files at ``path``."""

def trace_stop() -> None:
    """End what ``trace_start`` began."""

def trace_convert(partial: str, path: str) -> None:
    """Make a whole trace at ``path`` of the ``partial`` one that a process left."""
