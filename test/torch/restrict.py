# SPDX-License-Identifier: Apache-2.0
"""In a rank: forbid a system call to this process for good, as a container's filter does; limit its descriptors, or its memory."""

import ctypes
import os
import platform
import resource
from pathlib import Path
from typing import Optional

CALLS = {"memfd_create": (319, 279), "eventfd2": (290, 19), "clone": (56, 220), "clone3": (435, 435), "pidfd_open": (434, 434), "bind": (49, 200)}
PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS, MODE_FILTER = 22, 38, 2
LOAD, EQUAL, RETURN = 0x20, 0x15, 0x06
ERRNO, ALLOW = 0x00050000, 0x7FFF0000
THIRD = 32  # offset of the lower half of the third argument in what a filter sees


class Filter(ctypes.Structure):
    _fields_ = [("code", ctypes.c_ushort), ("yes", ctypes.c_ubyte), ("no", ctypes.c_ubyte), ("value", ctypes.c_uint)]


class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filters", ctypes.POINTER(Filter))]


def deny(name: str, error: int, third: Optional[int] = None) -> None:
    """With `third`: where the call's third argument is that number."""
    number = CALLS[name][platform.machine() == "aarch64"]
    more = [] if third is None else [Filter(LOAD, 0, 0, THIRD), Filter(EQUAL, 0, 1, third)]
    filters = [Filter(LOAD, 0, 0, 0), Filter(EQUAL, 0, 1 + len(more), number), *more, Filter(RETURN, 0, 0, ERRNO | error), Filter(RETURN, 0, 0, ALLOW)]
    program = Program(len(filters), (Filter * len(filters))(*filters))
    libc = ctypes.CDLL(None, use_errno=True)
    for words in ((PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), (PR_SET_SECCOMP, MODE_FILTER, ctypes.byref(program), 0, 0)):
        if libc.prctl(*words) != 0:
            raise OSError(ctypes.get_errno(), f"prctl for {name}")


def leave_descriptors(count: int) -> None:
    """So many may be opened yet."""
    fd = os.dup(0)
    os.close(fd)
    resource.setrlimit(resource.RLIMIT_NOFILE, (fd + count, fd + count))


def memory_group(pid: int, size: int) -> str:
    """Move the process into a control group of its own that may have so many bytes. The group's folder, to be removed; "" where none can be made."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():  # "4:memory:/a/b", or "0::/a/b" of version 2
        first = ":memory:" in line
        if not first and not line.startswith("0::"):
            continue
        root = Path("/sys/fs/cgroup/memory" if first else "/sys/fs/cgroup")
        group = Path(f"{root}{line.split(':', 2)[2]}") / f"quoit-test-{pid}"
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            (group / ("memory.limit_in_bytes" if first else "memory.max")).write_text(str(size))
            (group / "cgroup.procs").write_text(str(pid))
            return str(group)
        except OSError:
            group.rmdir()
    return ""
