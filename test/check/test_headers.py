# SPDX-License-Identifier: Apache-2.0
"""Headers compile alone: the public ones as C11 and C++20 without any extension, the internal ones as C11."""

import os
import re
import shutil
import subprocess

import pytest
from files import ROOT, all_files, name

PUBLIC = sorted((ROOT / "include" / "quoit").glob("*.h"))
INTERNAL = [path for path in all_files() if path.suffix == ".h" and path.relative_to(ROOT).parts[0] in ("base", "transport", "scheduler", "bench")]
CC, CXX = os.environ.get("CC", "cc"), os.environ.get("CXX", "c++")


def compile_alone(words, path, *flags):
    """Included twice, so that a missing guard shows."""
    source = f'#include "{path}"\n#include "{path}"\n'
    done = subprocess.run([*words, *flags, "-fsyntax-only", "-Wall", "-Wextra", "-Werror", f"-I{ROOT}", f"-I{ROOT / 'include'}", "-"],
                          input=source, capture_output=True, text=True)
    return done.stderr if done.returncode != 0 else ""


@pytest.mark.parametrize("path", PUBLIC, ids=name)
def test_public_header_is_c11(path):
    assert compile_alone([CC, "-x", "c"], path, "-std=c11", "-Wpedantic") == ""


@pytest.mark.parametrize("path", PUBLIC, ids=name)
@pytest.mark.parametrize("standard", ["c++17", "c++20"])
def test_public_header_is_cxx(path, standard):
    assert compile_alone([CXX, "-x", "c++"], path, f"-std={standard}", "-Wpedantic") == ""


@pytest.mark.parametrize("path", PUBLIC, ids=name)
def test_public_header_with_clang(path):
    clang = shutil.which("clang-14") or shutil.which("clang")
    if clang is None:
        pytest.skip("clang is not installed")
    assert compile_alone([clang, "-x", "c"], path, "-std=c11", "-Wpedantic") == ""


def test_internal_headers():
    assert INTERNAL
    wrong = [text for path in INTERNAL if (text := compile_alone([CC, "-x", "c"], path, "-std=c11", "-D_GNU_SOURCE", "-Wno-unused-function"))]
    assert not wrong, "\n".join(wrong)


def test_library_exports_the_public_api_and_nothing_else():
    library = os.environ.get("QUOIT_TEST_LIBRARY", str(ROOT / "build" / "libquoit.so"))
    if not os.path.exists(library):
        pytest.skip(f"{library} was not built")
    listed = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True).stdout
    exported = {line.split()[-1].split("@")[0] for line in listed.splitlines()}
    declared = set()
    for path in PUBLIC:
        declared |= set(re.findall(r"\b(quoit_\w+)\s*\(", " ".join(re.findall(r"QUOIT_API[^;]*;", path.read_text()))))
    assert declared, "no QUOIT_API declarations found"
    assert declared - exported == set(), f"declared but not in the library: {sorted(declared - exported)}"
    assert exported - declared == set(), f"in the library but not declared: {sorted(exported - declared)}"


def test_library_needs_the_c_library_alone():
    """What is optional (OpenSSL, libibverbs, UCX, hwloc) is opened when it is asked for, so a program also starts where none of it is installed."""
    library = os.environ.get("QUOIT_TEST_LIBRARY", str(ROOT / "build" / "libquoit.so"))
    if not os.path.exists(library):
        pytest.skip(f"{library} was not built")
    listed = subprocess.run(["readelf", "-d", library], capture_output=True, text=True, check=True).stdout
    needed = re.findall(r"\(NEEDED\)[^\[]*\[([^\]]+)\]", listed)
    assert "libc.so.6" in needed
    assert [one for one in needed if not re.match(r"(libc|libm|libdl|libpthread|librt|ld-linux.*)\.so", one)] == [], needed
