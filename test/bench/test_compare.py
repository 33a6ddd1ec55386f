# SPDX-License-Identifier: Apache-2.0
"""bench/compare: its loop over Quoit gives right results and a line for each size, and its table says who is ahead."""
import importlib.machinery
import importlib.util
import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("QUOIT_TEST_BUILD", ROOT / "build"))


def load_compare():
    sys.path.insert(0, str(ROOT / "bench"))
    loader = importlib.machinery.SourceFileLoader("compare", str(ROOT / "bench" / "compare"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("compare", loader))
    loader.exec_module(module)
    return module


compare = load_compare()


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """The contender that is Quoit, of the library that was built for the tests."""
    quoit = compare.Quoit("quoit", tmp_path_factory.mktemp("peers"))
    quoit.compile(["cc", "-Wall", "-Wextra", "-Werror"], [f"-I{ROOT / 'include'}", f"-L{BUILD}", "-lquoit", f"-Wl,-rpath,{BUILD}"])
    return quoit


@pytest.mark.parametrize("collective", compare.COLLECTIVES)
def test_each_collective_is_right_and_timed(library, collective):
    ranks = 2 if collective == "pingpong" else 3
    for dtype in compare.DTYPES:
        table = {"collective": collective, "dtype": dtype, "ranks": ranks, "pin": False}
        version, rows = compare.turn(library, ranks, table, [4, 100000], 0.001)
        assert version.startswith("quoit ") and list(rows) == [4, 100000]
        for row in rows.values():
            assert row["iterations"] >= 5 and 0 < row["least"] <= row["median"] <= row["p99"], row


def test_bad_arguments_are_refused_with_the_usage(library):
    done = subprocess.run([library.program, "allreduce", "float99", "4", "1", "free"], capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode == 2 and "usage: loop" in done.stderr and not done.stdout


def test_a_table_tells_the_best_peer_over_quoit():
    rows = {name: [{4: {"median": time}}, {4: {"median": time * 3}}, {4: {"median": time * 2}}] for name, time in
            (("quoit", 1.0), ("intel", 0.5), ("mpich", 4.0))}
    result = {"collective": "allreduce", "ranks": 2, "dtype": "float32", "pin": True, "sizes": [4], "rounds": {**rows, "openmpi": None}}
    text = compare.table_text(result)
    assert text.splitlines()[1].split()[:4] == ["bytes", "quoit", "intel", "mpich"], text
    assert text.splitlines()[2].split() == ["4", "2.00", "1.00", "8.00", "0.50", "1.00", "-", "3.00"], text


def test_every_table_has_a_name_of_its_own():
    names = [compare.title(table) for table in compare.all_tables()]
    assert len(set(names)) == len(names) and "allreduce-2-float32-pinned" in names
