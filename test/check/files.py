# SPDX-License-Identifier: Apache-2.0
"""The source tree as the checks see it."""

import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CODE = {".c", ".h", ".cc", ".cpp", ".cu", ".inc", ".def", ".py", ".pyi", ".sh", ".cmake"}
STOREYS = ["include", "base", "transport", "scheduler", "plugin", "bench"]


def is_ours(path):
    """Not what builds and tools leave: /build*, .venv, caches."""
    parts = path.relative_to(ROOT).parts
    return not (parts[0].startswith("build") or parts[0] in (".git", ".venv", "dist") or "__pycache__" in parts or parts[0].endswith(".egg-info")
                or any(part.startswith(".") and part.endswith("_cache") for part in parts))


def all_files():
    """Tracked files and those that would be: git knows what is ignored; without git, by name."""
    listed = subprocess.run(["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"], capture_output=True)
    if listed.returncode == 0 and listed.stdout:
        paths = [ROOT / name for name in listed.stdout.decode().split("\0") if name]
    else:
        paths = [Path(folder) / name for folder, _, names in os.walk(ROOT) for name in names]
    return sorted(path for path in paths if path.is_file() and not path.is_symlink() and is_ours(path))


def is_corpus(path):
    """Inputs of fuzz targets: bytes, whatever they look like."""
    return path.relative_to(ROOT).parts[:3] == ("test", "fuzz", "corpus")


def is_script(path):
    if path.suffix or is_corpus(path):
        return False
    with open(path, "rb") as file:
        return file.read(2) == b"#!"


def code_files():
    return [path for path in all_files() if path.suffix in CODE or path.name == "CMakeLists.txt" or is_script(path)]


def text_files():
    texts = []
    for path in all_files():
        with open(path, "rb") as file:
            if b"\0" not in file.read(4096) and not is_corpus(path):
                texts.append(path)
    return texts


def name(path):
    return str(path.relative_to(ROOT))
