# SPDX-License-Identifier: Apache-2.0
"""What an emulated machine boots: Debian's kernel with the modules for Soft-RoCE and netem, and a small initial file system.

The kernel's package is downloaded once (some 70 MB) and what is used of it is kept in a folder (some 90 MB). Nothing is installed.
"""
import fcntl
import gzip
import hashlib
import lzma
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
FOLDER = Path(os.environ.get("QUOIT_TEST_MACHINE") or ROOT / "build" / "machine")
MODULES = ("virtio_pci", "virtio_net", "virtio_console", "9pnet_virtio", "9p", "overlay", "veth", "bridge", "crc32_generic", "crc32-pclmul", "ib_uverbs",
           "rdma_ucm", "rdma_rxe", "sch_netem", "sch_tbf")
INIT = HERE / "machine_init.c"


class ImageError(RuntimeError):
    """The kernel cannot be had here, or is not what it is expected to be."""


def command(*words, cwd=None):
    done = subprocess.run(words, capture_output=True, text=True, stdin=subprocess.DEVNULL, cwd=cwd)
    if done.returncode != 0:
        raise ImageError(f"{' '.join(map(str, words))}: {done.stderr.strip() or f'status {done.returncode}'}")
    return done.stdout


def why_unavailable():
    """None when an image is there or can be made, else the reason, for a skip."""
    if (FOLDER / key()).is_dir():
        return None
    for tool in ("apt-get", "apt-cache", "dpkg-deb"):
        if shutil.which(tool) is None:
            return f"{tool} is not there, by which the kernel's package would come"
    if not package() and os.geteuid() == 0:
        subprocess.run(["apt-get", "update", "-qq"], capture_output=True)
    return None if package() else "apt knows no package linux-image-amd64"


def key():
    """Names the image that these modules and this init make."""
    return hashlib.sha256(" ".join(MODULES).encode() + INIT.read_bytes() + Path(__file__).read_bytes()).hexdigest()[:16]


def package():
    done = subprocess.run(["apt-cache", "depends", "linux-image-amd64"], capture_output=True, text=True)
    found = re.search(r"Depends: (linux-image-\S+)", done.stdout)
    return found[1] if found else None


def image():
    """(kernel, initial file system): made when they are not there yet, by one process at a time."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    made = FOLDER / key()
    with open(FOLDER / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.is_dir():
            for old in FOLDER.iterdir():
                if old.is_dir():
                    shutil.rmtree(old)
            with tempfile.TemporaryDirectory(dir=FOLDER) as work:
                make(Path(work))
                (Path(work) / "image").rename(made)
    return made / "kernel", made / "initrd"


def make(work):
    command("apt-get", "-qq", "-o", "APT::Sandbox::User=root", "download", package(), cwd=work)
    files = work / "files"
    command("dpkg-deb", "-x", next(work.glob("linux-image-*.deb")), files)
    result = work / "image"
    result.mkdir()
    (result / "kernel").write_bytes(bare_kernel(next((files / "boot").glob("vmlinuz-*")).read_bytes()))
    command("cc", "-std=c11", "-Os", "-static", "-o", work / "init", INIT)
    archive = Archive()
    archive.add("init", (work / "init").read_bytes(), 0o755)
    names = []
    for path in in_order(files / "lib" / "modules"):
        names.append(f"/{path.name}")
        archive.add(path.name, path.read_bytes())
    archive.add("modules", "".join(name + "\n" for name in names).encode())
    (result / "initrd").write_bytes(gzip.compress(archive.end(), 1))


def bare_kernel(bytes_):
    """The ELF file inside a bzImage: started by way of PVH, it need not unpack itself, which takes long under emulation."""
    at = bytes_.find(b"\xfd7zXZ\x00")
    if at < 0:
        raise ImageError("the kernel is not packed with xz")
    kernel = lzma.LZMADecompressor().decompress(bytes_[at:])
    if kernel[:4] != b"\x7fELF":
        raise ImageError("what the kernel's file holds is no ELF file")
    return kernel


def in_order(folder):
    """Paths of MODULES and of what they depend on, which comes first."""
    files = {path.name.split(".")[0].replace("-", "_"): path for path in folder.rglob("*.ko")}
    result = []

    def visit(name):
        path = files.get(name)
        if path is None:
            raise ImageError(f"the kernel's package has no module {name}")
        if path in result:
            return
        depends = re.search(rb"\0depends=([^\0]*)\0", path.read_bytes())
        for other in filter(None, depends[1].decode().split(",") if depends else []):
            visit(other.replace("-", "_"))
        result.append(path)

    for name in MODULES:
        visit(name.replace("-", "_"))
    return result


class Archive:
    """A cpio archive as the kernel reads it ("newc")."""

    def __init__(self):
        self._parts, self._count = [], 0

    def add(self, name, content, mode=0o644):
        self._count += 1
        label = name.encode() + b"\0"
        fields = (self._count, 0o100000 | mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(label), 0)
        head = b"070701" + b"".join(b"%08X" % field for field in fields) + label
        for part in (head, content):
            self._parts += [part, b"\0" * (-len(part) % 4)]

    def end(self):
        self.add("TRAILER!!!", b"")
        return b"".join(self._parts)
