# SPDX-License-Identifier: Apache-2.0
"""The measuring programs work at tiny sizes: each ends well, prints its columns with numbers in them, and writes text and raw rounds. No speed is judged."""

import importlib.machinery
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("QUOIT_TEST_BUILD", str(ROOT / "build")))
SLOW = float(os.environ.get("TEST_SLOW", "1"))
LONG = os.environ.get("QUOIT_TEST_LONG", "0") != "0"
sys.path.insert(0, str(ROOT / "bench"))
sys.path.insert(0, str(ROOT / "test" / "support"))
import hosts as hosts_module  # noqa: E402
import report  # noqa: E402

WHY = hosts_module.why_unavailable()
needs_hosts = pytest.mark.skipif(WHY is not None, reason=str(WHY))


def run(words, limit=120):
    env = {name: value for name, value in os.environ.items() if not name.startswith(("RANK", "WORLD_SIZE", "MASTER_", "QUOIT_"))}
    env["QUOIT_TEST_BUILD"] = str(BUILD)
    return subprocess.run(words, capture_output=True, text=True, timeout=limit * SLOW, env=env, stdin=subprocess.DEVNULL, check=False)


def measure(program, tmp_path, *words):
    done = run([sys.executable, str(ROOT / "bench" / program), "--quick", "--out", str(tmp_path), *words])
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def table_of(tmp_path, name):
    """(text, raw data) of a result."""
    return (tmp_path / f"{name}.txt").read_text(), json.loads((tmp_path / f"{name}.json").read_text())


@needs_hosts
def test_network(tmp_path):
    output = measure("network", tmp_path, "--only", "bandwidth,latency,wire" if LONG else "bandwidth,latency")
    text, data = table_of(tmp_path, "network_bandwidth")
    assert text in output
    for column in ("layout", "link", "iperf3 Gb/s", "quoit / iperf3", "sent", "CPU s/GB", "gloo time / quoit"):
        assert column in text, text
    (result,) = data["results"]
    assert result["hosts"] == [1, 1] and set(result["rounds"]) == {"iperf3", "quoit", "gloo"}
    must = result["bytes"]  # among two hosts the whole tensor crosses each interface
    for name in ("quoit", "gloo"):
        assert all(turn["seconds"] > 0 and turn["cpu"] > 0 and must <= turn["sent"] < 1.3 * must for turn in result["rounds"][name]), result
    text, data = table_of(tmp_path, "network_latency")
    assert "one way us (poll)" in text and "one way us (sleep)" in text, text
    assert data["results"][0]["messages"] == 1 and all(time > 0 for times in data["results"][0]["rounds"].values() for time in times)
    if LONG:
        text, data = table_of(tmp_path, "network_wire")
        sent = {name: turns[0]["sent"] for name, turns in data["results"][0]["rounds"].items()}
        for wire, share in (("bf16", 0.5), ("fp16", 0.5), ("int8", 0.26)):
            assert abs(sent[f"quoit-{wire}"] / sent["quoit-none"] - share) < 0.05, sent


def test_ddp(tmp_path):
    if LONG and WHY is None:
        measure("ddp", tmp_path, "--only", "step")
    else:
        measure("ddp", tmp_path, "--only", "step", "--places", "one host")
    text, data = table_of(tmp_path, "ddp_step")
    for column in ("place", "backend", "buckets", "step ms", "exposed ms", "CPU ms", "gloo time / this"):
        assert column in text, text
    rounds = data["results"][0]["rounds"]
    assert set(rounds) == {"alone", "quoit/25 MiB", "quoit/one", "gloo/25 MiB", "gloo/one"}
    assert all(turn["seconds"] > 0 for turns in rounds.values() for turn in turns)


def test_quota(tmp_path):
    done = run([sys.executable, str(ROOT / "bench" / "ddp"), "--quick", "--only", "quota", "--out", str(tmp_path)])
    if done.returncode == 3:
        assert "no limit of processor time can be set here" in done.stderr
        return
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    text, data = table_of(tmp_path, "ddp_quota")
    assert "periods throttled" in text and "throttled ms" in text, text
    assert {name: len(turns) for name, turns in data["rounds"].items()} == {"quoit": 1, "gloo": 1}
    assert all(turn["throttled"] >= 0 and turn["cpu"] > 0 for turns in data["rounds"].values() for turn in turns)


def test_startup(tmp_path):
    measure("startup", tmp_path, "--ranks", "3")
    text, data = table_of(tmp_path, "startup")
    assert "quoit start ms" in text and "quoit / gloo" in text, text
    assert data["results"][0]["ranks"] == 3 and all(turn["start"] > 0 for turns in data["results"][0]["rounds"].values() for turn in turns)


def test_wire_training(tmp_path):
    pytest.importorskip("sklearn", reason="the digits come with scikit-learn")
    measure("wire_training", tmp_path, *([] if LONG else ["--only", "text"]))
    text, data = table_of(tmp_path, "wire_training")
    for column in ("task", "wire", "mean loss", "spread", "to float32", "within"):
        assert column in text, text
    for losses in data["losses"].values():
        assert set(losses) == {"float32", "bf16", "fp16", "int8"}
        assert all(0 < loss < 6 for by_seed in losses.values() for loss in by_seed), losses
        assert len({tuple(by_seed) for by_seed in losses.values()}) == 4, f"no format changed a bit: {losses}"


def test_lossless(tmp_path):
    pytest.importorskip("sklearn", reason="the digits come with scikit-learn")
    measure("lossless", tmp_path)
    text, data = table_of(tmp_path, "lossless")
    assert "bits of exponent" in text and "100 Mb/s" in text, text
    for one in data["steps"].values():
        assert 0.7 < one["bound"] <= one["share"] < 1 and one["pack"][0] > 0 and one["unpack"][0] > 0, one


def test_growth_prints_a_table():
    done = run([str(BUILD / "bench" / "bench_growth"), "--hosts", "2x1,4+3,16x2"])
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines() if line and not line.startswith("#")]
    assert rows[0][:7] == ["layout", "hosts", "ranks", "large", "NIC", "least", "ratio"], done.stdout
    assert [row[0] for row in rows[1:]] == ["2x1", "4+3", "16x2"] and all(row[6] == "1.0000" for row in rows[1:]), done.stdout
    done = run([str(BUILD / "bench" / "bench_growth"), "--hosts", "4-3"])
    assert done.returncode == 2 and "expected ranks on each host" in done.stderr, done.stderr


def load(program):
    loader = importlib.machinery.SourceFileLoader(program, str(ROOT / "bench" / program))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(program, loader))
    loader.exec_module(module)
    return module


def test_ratios_are_what_they_are_called():
    """With times of which the answers are known."""
    network = load("network")
    turn = {"seconds": 1.0, "cpu": 4.0, "sent": 1.1e9}
    result = {"layout": "2x1", "hosts": [1, 1], "rate": "1gbit", "bytes": 10**9,
              "rounds": {"iperf3": [{"rate": 1.25e9, "cpu": 2e-9}], "quoit": [turn], "gloo": [{**turn, "seconds": 2.0}]}}
    cells = network.bandwidth_row(result)
    assert cells[2:] == ["10.00 (10.00 - 10.00)", "0.800 (0.800 - 0.800)", "1.100", "2.00", "0.400 (0.400 - 0.400)", "1.100", "2.00", "2.00", "2.00"], cells
    ddp = load("ddp")
    times = {"alone": 0.1, "quoit/25 MiB": 0.11, "quoit/one": 0.15, "gloo/25 MiB": 0.22, "gloo/one": 0.3}
    rows = ddp.step_rows({"place": "one host", "rounds": {name: [{"seconds": time, "cpu": 1.0}] for name, time in times.items()}})
    assert [row[4] for row in rows] == ["-", "10.0", "50.0", "120.0", "200.0"] and [row[6] for row in rows] == ["-", "2.00", "2.00", "1.00", "1.00"], rows
    training = load("wire_training")
    rows = training.rows({"text": {"float32": [1.0, 2.0], "bf16": [1.5, 2.4], "fp16": [2.0, 2.2], "int8": [1.0, 1.0]}})
    assert [row[5] for row in rows] == ["yes", "yes", "no", "yes"], rows
    assert report.spread([3, 1, 2], 1) == "2.0 (1.0 - 3.0)" and report.in_turns(["a", "b", "c"], 4) == ["b", "c", "a"]
    assert report.parse_size("64M") == 64 << 20 and report.parse_size("7") == 7
    with pytest.raises(Exception, match="expected a size"):
        report.parse_size("M")
