# SPDX-License-Identifier: Apache-2.0
"""bench/ucx: the transport ucx beside UCX's own test of bandwidth, in one run."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("QUOIT_TEST_BUILD", str(ROOT / "build")))
SLOW = float(os.environ.get("TEST_SLOW", "1"))

pytestmark = pytest.mark.skipif(not (BUILD / "bench" / "bench_pair").exists(), reason=f"{BUILD}/bench/bench_pair was not built")


def run(*words):
    return subprocess.run([sys.executable, str(ROOT / "bench" / "ucx"), "--build", str(BUILD), *words], capture_output=True, text=True,
                          timeout=60 * SLOW, stdin=subprocess.DEVNULL)


def test_both_take_turns_at_each_size(tmp_path):
    path = tmp_path / "rates.json"
    done = run("--sizes", "64K,256K", "--rounds", "1", "--volume", "4M", "--json", str(path))
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [line.split() for line in done.stdout.splitlines()[1:]]
    assert [(row[0], row[1]) for row in rows] == [("tcp", "64K"), ("tcp", "256K"), ("shm", "64K"), ("shm", "256K")], done.stdout
    for row, record in zip(rows, json.loads(path.read_text())):
        assert record["tls"] == row[0] and len(record["quoit"]) == len(record["ucx"]) == 1
        assert record["quoit"][0] > 0 and record["ucx"][0] > 0 and float(row[4]) >= 0, record


def test_without_a_build_it_says_what_is_missing(tmp_path):
    done = run("--build", str(tmp_path))
    assert done.returncode != 0 and "bench_pair was not built" in done.stderr, done.stdout + done.stderr
