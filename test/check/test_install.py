# SPDX-License-Identifier: Apache-2.0
"""What `cmake --install` leaves is all that a C program (examples/allreduce.c) needs: by pkg-config, and by CMake's find_package. The version is the
same everywhere."""

import os
import re
import subprocess

import pytest
from files import ROOT

BUILD = os.environ.get("QUOIT_TEST_BUILD", str(ROOT / "build"))
PROGRAM = ROOT / "examples" / "allreduce.c"
PROJECT = """
cmake_minimum_required(VERSION 3.25)
project(program LANGUAGES C)
find_package(quoit @VERSION@ REQUIRED)
add_executable(program "@PROGRAM@")
target_link_libraries(program PRIVATE quoit::quoit)
"""


def version():
    return re.search(r"^project\(quoit VERSION (\S+) ", (ROOT / "CMakeLists.txt").read_text(), re.M)[1]


def run(*words, **more):
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=120, **more)
    assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """Moved after it was installed: nothing in it may know where it was made."""
    if not os.path.exists(os.path.join(BUILD, "libquoit.so")):
        pytest.skip(f"{BUILD} has no library")
    folder = tmp_path_factory.mktemp("installed")
    run("cmake", "--install", BUILD, "--prefix", folder / "first")
    (folder / "first").rename(folder / "moved")
    return folder / "moved"


def check(program, tmp_path, environment):
    """Two ranks of it."""
    ranks = [subprocess.Popen([program], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              env=dict(environment, QUOIT_STORE=f"file://{tmp_path}/store", RANK=str(rank), WORLD_SIZE="2")) for rank in range(2)]
    try:
        printed = [rank.communicate(timeout=60)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert printed == [f"rank {rank} of 2, on 1 host: the ranks' numbers add up to 1\n" for rank in range(2)]


def test_pkg_config(installed, tmp_path):
    (pc,) = installed.rglob("quoit.pc")
    environment = dict(os.environ, PKG_CONFIG_PATH=str(pc.parent), LD_LIBRARY_PATH=str(pc.parent.parent))
    assert run("pkg-config", "--modversion", "quoit", env=environment).strip() == version()
    flags = run("pkg-config", "--cflags", "--libs", "quoit", env=environment).split()
    run(os.environ.get("CC", "cc"), "-std=c11", "-Wall", "-Wextra", "-Werror", "-Wpedantic", PROGRAM, *flags, "-o", tmp_path / "program")
    check(tmp_path / "program", tmp_path, environment)


def test_find_package(installed, tmp_path):
    (tmp_path / "CMakeLists.txt").write_text(PROJECT.replace("@VERSION@", version()).replace("@PROGRAM@", str(PROGRAM)))
    run("cmake", "-S", tmp_path, "-B", tmp_path / "build", f"-DCMAKE_PREFIX_PATH={installed}")
    run("cmake", "--build", tmp_path / "build")
    check(tmp_path / "build" / "program", tmp_path, os.environ)


def test_the_version_is_one():
    header = (ROOT / "include" / "quoit" / "quoit.h").read_text()
    assert ".".join(re.search(rf"#define QUOIT_VERSION_{part} (\d+)", header)[1] for part in ("MAJOR", "MINOR", "PATCH")) == version()
    assert re.search(r'^version = "(.*)"', (ROOT / "pyproject.toml").read_text(), re.M)[1] == version()
