# SPDX-License-Identifier: Apache-2.0
"""In a rank: forbid a system call to this process for good, as a container's filter does; limit its descriptors."""

import ctypes
import os
import platform
import resource

CALLS = {"memfd_create": (319, 279), "eventfd2": (290, 19), "clone": (56, 220), "clone3": (435, 435), "pidfd_open": (434, 434)}
PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS, MODE_FILTER = 22, 38, 2
LOAD, EQUAL, RETURN = 0x20, 0x15, 0x06
ERRNO, ALLOW = 0x00050000, 0x7FFF0000


class Filter(ctypes.Structure):
    _fields_ = [("code", ctypes.c_ushort), ("yes", ctypes.c_ubyte), ("no", ctypes.c_ubyte), ("value", ctypes.c_uint)]


class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filters", ctypes.POINTER(Filter))]


def deny(name: str, error: int) -> None:
    number = CALLS[name][platform.machine() == "aarch64"]
    filters = (Filter * 4)(Filter(LOAD, 0, 0, 0), Filter(EQUAL, 0, 1, number), Filter(RETURN, 0, 0, ERRNO | error), Filter(RETURN, 0, 0, ALLOW))
    libc = ctypes.CDLL(None, use_errno=True)
    for words in ((PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), (PR_SET_SECCOMP, MODE_FILTER, ctypes.byref(Program(4, filters)), 0, 0)):
        if libc.prctl(*words) != 0:
            raise OSError(ctypes.get_errno(), f"prctl for {name}")


def leave_descriptors(count: int) -> None:
    """So many may be opened yet."""
    fd = os.dup(0)
    os.close(fd)
    resource.setrlimit(resource.RLIMIT_NOFILE, (fd + count, fd + count))
