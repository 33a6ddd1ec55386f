# SPDX-License-Identifier: Apache-2.0
"""In a rank: withhold from this process, for good, what containers, batch systems and administrators do. Linux only."""

import ctypes
import errno
import faulthandler
import os
import platform
import resource
import signal
import socket
from pathlib import Path
from typing import Callable, Optional

CALLS = {  # numbers on x86-64 and on aarch64
    "memfd_create": (319, 279),
    "eventfd2": (290, 19),
    "clone": (56, 220),
    "clone3": (435, 435),
    "pidfd_open": (434, 434),
    "bind": (49, 200),
    "socket": (41, 198),
    "membarrier": (324, 283),
    "fallocate": (285, 47),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
}
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS, MODE_FILTER = 1, 4, 22, 38, 2
NEW_MOUNTS, NEW_HOST_NAME, NEW_IPC, NEW_PIDS, NEW_NETWORK = 0x00020000, 0x04000000, 0x08000000, 0x20000000, 0x40000000
READ_ONLY, REMOUNT, BIND, RECURSIVE, PRIVATE = 1, 32, 4096, 16384, 1 << 18
LOAD, EQUAL, AT_LEAST, RETURN = 0x20, 0x15, 0x35, 0x06
ERRNO, ALLOW = 0x00050000, 0x7FFF0000
OTHER_USER = 65530
libc = ctypes.CDLL(None, use_errno=True)


class Filter(ctypes.Structure):
    _fields_ = [("code", ctypes.c_ushort), ("yes", ctypes.c_ubyte), ("no", ctypes.c_ubyte), ("value", ctypes.c_uint)]


class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filters", ctypes.POINTER(Filter))]


def check(result: int, what: str) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), what)


def deny(name: str, error: int, number: int = 0, value: Optional[int] = None, test: int = EQUAL) -> None:
    """With `value`: only where the call's argument of that number (from 0) is it, or at least that."""
    call = CALLS[name][platform.machine() == "aarch64"]
    argument = 16 + 8 * number  # offset of its lower half in what a filter sees
    more = [] if value is None else [Filter(LOAD, 0, 0, argument), Filter(test, 0, 1, value)]
    filters = [Filter(LOAD, 0, 0, 0), Filter(EQUAL, 0, 1 + len(more), call), *more, Filter(RETURN, 0, 0, ERRNO | error), Filter(RETURN, 0, 0, ALLOW)]
    program = Program(len(filters), (Filter * len(filters))(*filters))
    for words in ((PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), (PR_SET_SECCOMP, MODE_FILTER, ctypes.byref(program), 0, 0)):
        check(libc.prctl(*words), f"prctl for {name}")


def limit(what: int, value: int) -> None:
    resource.setrlimit(what, (value, value))


def limit_address_space(more: int) -> None:
    """So many bytes beyond what there is."""
    limit(resource.RLIMIT_AS, int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() + more)


def drop_capabilities() -> None:
    check(libc.capset((ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()), "capset")


def no_ptrace() -> None:
    drop_capabilities()
    for name in ("ptrace", "process_vm_readv", "process_vm_writev"):
        deny(name, errno.EPERM)


def no_threads() -> None:
    deny("clone3", errno.ENOSYS)
    deny("clone", errno.EAGAIN)


def no_locked_memory() -> None:
    drop_capabilities()
    limit(resource.RLIMIT_MEMLOCK, 0)


def be_other_user() -> None:
    os.setresuid(OTHER_USER, OTHER_USER, OTHER_USER)
    check(libc.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0), "prctl")


def few_processes() -> None:
    limit(resource.RLIMIT_NPROC, 1)
    be_other_user()


def unshare(flags: int) -> None:
    check(libc.unshare(flags), "unshare")


def new_pids() -> None:
    """Go on as the first process of a namespace of pids; the old one hands its exit status on."""
    unshare(NEW_PIDS)
    faulthandler.cancel_dump_traceback_later()  # its watchdog, a thread, is not forked
    child = os.fork()
    if child == 0:
        check(libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "prctl")
    else:
        os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) & 255)


def new_host_name() -> None:
    unshare(NEW_HOST_NAME)
    socket.sethostname("elsewhere")


def new_mounts(*read_only: str) -> None:
    """What is open in there, and the current directory, can be written as before."""
    unshare(NEW_MOUNTS)
    check(libc.mount(None, b"/", None, RECURSIVE | PRIVATE, None), "mount")
    for path in read_only:
        check(libc.mount(path.encode(), path.encode(), None, BIND, None), path)
        check(libc.mount(None, path.encode(), None, REMOUNT | BIND | READ_ONLY, None), path)
        assert not os.access(path, os.W_OK), path


WAYS: dict[str, Callable[[], None]] = {
    "nothing": lambda: None,
    "no memfd_create": lambda: deny("memfd_create", errno.EPERM),
    "no pidfd_open": lambda: deny("pidfd_open", errno.ENOSYS),
    "no membarrier": lambda: deny("membarrier", errno.EPERM),
    "no 2 MiB of shared memory": lambda: deny("fallocate", errno.ENOSPC, 3, 2 << 20, AT_LEAST),
    "no eventfd2": lambda: deny("eventfd2", errno.EPERM),
    "no unix sockets": lambda: deny("socket", errno.EACCES, 0, socket.AF_UNIX),
    "no fallocate": lambda: deny("fallocate", errno.EOPNOTSUPP),
    "no shared memory left": lambda: deny("fallocate", errno.ENOSPC),
    "no ptrace": no_ptrace,
    "no threads": no_threads,
    "few processes": few_processes,
    "other user": be_other_user,
    "little address space": lambda: limit_address_space(100 << 20),
    "address space for one": lambda: limit_address_space(1500 << 20),
    "small files": lambda: limit(resource.RLIMIT_FSIZE, 1 << 20),
    "locked memory": no_locked_memory,
    "no core files": lambda: limit(resource.RLIMIT_CORE, 0),
    "new pids": new_pids,
    "new ipc": lambda: unshare(NEW_IPC),
    "new mounts": new_mounts,
    "new host name": new_host_name,
    "new network": lambda: unshare(NEW_NETWORK),
    "read-only": lambda: new_mounts("/tmp", "/dev/shm"),
    "12 descriptors": lambda: leave_descriptors(12),
    "64 descriptors": lambda: leave_descriptors(64),
}


def restrict(what: str) -> None:
    WAYS[what]()


def leave_descriptors(count: int) -> None:
    """So many may be opened yet."""
    fd = os.dup(0)
    os.close(fd)
    limit(resource.RLIMIT_NOFILE, fd + count)


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
