# SPDX-License-Identifier: Apache-2.0
"""Quoit: a process-group backend for ``torch.distributed``.

Importing this package registers backend ``"quoit"``; PyTorch does that by itself when the package is installed::

    import torch.distributed as dist
    dist.init_process_group("quoit")                  # or "cpu:quoit,cuda:nccl"

Everything of ``torch.distributed`` then works as with any other backend. Settings are variables ``QUOIT_*`` of the environment;
:func:`settings` lists them.
"""

from __future__ import annotations

import atexit
import json
import os
from typing import Any, Literal, Optional, Union, overload

import torch
import torch.distributed as dist

from quoit._build_info import TORCH_VERSION as _TORCH_VERSION
from quoit._build_info import VERSION as __version__


def _check_torch() -> None:
    """PyTorch's C++ classes change from version to version: another than that of the build must not be touched."""

    def release(version: str) -> str:
        return version.split("+")[0]

    if release(torch.__version__) != release(_TORCH_VERSION):
        raise ImportError(
            f"quoit {__version__} was built for torch {_TORCH_VERSION}, but torch {torch.__version__} is loaded: "
            "install quoit again with `pip install . --no-build-isolation`"
        )


_check_torch()

from quoit import _C, _compat  # noqa: E402 - the check must come first
from quoit._C import Options, ProcessGroupQuoit  # noqa: E402
from quoit._compress import CompressHook  # noqa: E402
from quoit._groups import check_group as _check_group  # noqa: E402
from quoit._groups import unwrapped as _unwrapped  # noqa: E402
from quoit._shrink import shrink  # noqa: E402

__all__ = ["CompressHook", "Options", "ProcessGroupQuoit", "describe", "history", "last_error", "settings", "shrink", "trace", "__version__"]


def _create(backend_options: Any, pg_options: Optional[Options]) -> ProcessGroupQuoit:
    """What ``torch.distributed`` calls to make a group."""
    return _C.create(backend_options, pg_options)


def _create_unregistered(store: Any, rank: int, world_size: int, timeout: Any, device: torch.device, **options: object) -> Any:
    """What ``torch.distributed._dist2.new_group`` calls to make a group."""
    if options:
        raise TypeError(f"quoit takes no options here, got {', '.join(options)}")
    kind = dist.ProcessGroup.BackendType.CUSTOM
    backend = ProcessGroupQuoit(store, rank, world_size, timeout)
    group = dist.ProcessGroup(store, rank, world_size)
    group._set_default_backend(kind)
    for place in {device.type, "cpu"}:
        group._register_backend(torch.device(place), kind, backend)
    return group


def _register() -> None:
    if "QUOIT" not in dist.Backend._plugins:
        dist.Backend.register_backend("quoit", _create, extended_api=True, devices=["cpu", "cuda"])
    try:
        from torch.distributed import _dist2

        if "quoit" not in _dist2._BACKENDS:
            _dist2.register_backend("quoit", _create_unregistered)
    except (ImportError, AttributeError):  # an experiment of PyTorch's, which may go
        pass


def _backend_of(group: Optional[dist.ProcessGroup]) -> ProcessGroupQuoit:
    """The part of ``group`` that is Quoit's."""
    if group is None:
        group = dist.distributed_c10d._get_default_group()
    _check_group(group)
    for device in group._device_types:
        backend = _unwrapped(group._get_backend(device))
        if isinstance(backend, ProcessGroupQuoit):
            return backend
    raise ValueError(f"no backend of this group is quoit: {dist.get_backend_config(group)}")


@overload
def describe(group: Optional[dist.ProcessGroup] = None, as_dict: Literal[False] = False) -> str: ...


@overload
def describe(group: Optional[dist.ProcessGroup] = None, *, as_dict: Literal[True]) -> dict[str, Any]: ...


def describe(group: Optional[dist.ProcessGroup] = None, as_dict: bool = False) -> Union[str, dict[str, Any]]:
    """Ranks, hosts, transports in use and counters of ``group`` (the default group if None).

    It returns text for people, or with ``as_dict=True`` a dictionary of plain values, which ``json.dumps`` takes: ``name``,
    ``rank``, ``size``, ``status`` (``"success"`` while there was no error), and, of a group whose ranks have met, ``version``,
    ``hosts`` (their number), ``error``, ``tls`` (between hosts: ``"off"``, ``"psk"`` or ``"certificates"``), ``finished``
    (collectives), ``copied`` and ``in_place`` (bytes that its collectives copied, and that they read where they lie in the memory of
    other ranks), ``memory`` (bytes of such memory that this process has handed out), and ``ranks``, a dictionary for each rank.
    """
    backend = _backend_of(group)
    if not as_dict:
        return backend.describe()
    found: dict[str, Any] = json.loads(backend.describe(json=True))
    if not found:
        name = backend.options.group_name
        found = {"name": name, "rank": backend.rank(), "size": backend.size(), "status": "not connected yet"}
    return found


def history(group: Optional[dist.ProcessGroup] = None) -> list[dict[str, Any]]:
    """The newest operations of ``group``, oldest first: at most 64 collectives, and 64 sends and receives. Also after a failure.

    Each has ``operation``, ``dtype``, ``count``, the times ``issued``, ``started``, ``ended`` (Unix times; None: not yet) and
    ``status`` (``"running"``, ``"done"``, or an error's name); collectives have ``sequence``, ``algorithm``, and ``op`` or ``root``
    where it means something; sends and receives ``peer`` and ``tag``.
    """
    operations = json.loads(_backend_of(group).history(True)).get("operations", [])
    return sorted(operations, key=lambda operation: operation["issued"])


class trace:
    """Record a timeline of this process's operations from now on, for Perfetto (https://ui.perfetto.dev) or chrome://tracing.

    ``path`` is a file, or a directory; ``%r`` in it becomes the rank, which is added where it lacks. The file is written by
    :meth:`stop`, by leaving a ``with`` block, or with the end of the last group, whichever comes first::

        with quoit.trace("/tmp/step.json"):
            loss.backward()

    The command ``quoit merge-trace`` joins the files of several ranks.
    """

    def __init__(self, path: Union[str, "os.PathLike[str]"]) -> None:
        _C.trace_start(os.fspath(path))
        self._running = True

    def stop(self) -> None:
        """End it and write the file; once."""
        if self._running:
            self._running = False
            _C.trace_stop()

    def __enter__(self) -> "trace":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def last_error(group: Optional[dist.ProcessGroup] = None) -> Optional[str]:
    """The text of the first error that ``group`` met, or None."""
    return _backend_of(group).last_error() or None


def settings() -> str:
    """All settings with type, unit, default, value in force and description."""
    return _C.settings()


_register()
_compat.apply()
atexit.register(_C.shutdown_all)
