# SPDX-License-Identifier: Apache-2.0
"""bench_allreduce as a user calls it: the table, the JSON, ranks started by others, and failures that say who failed and why."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BENCH = Path(os.environ.get("QUOIT_TEST_BUILD", str(ROOT / "build"))) / "bench" / "bench_allreduce"
SLOW = float(os.environ.get("TEST_SLOW", "1"))
QUICK = ["--time", "0.02"]
LAUNCHERS = ("RANK", "WORLD_SIZE", "MASTER_", "OMPI_", "PMI", "SLURM_", "TORCHELASTIC_", "QUOIT_")

pytestmark = pytest.mark.skipif(not BENCH.exists(), reason=f"{BENCH} was not built")


def environment(**extra):
    kept = {name: value for name, value in os.environ.items() if not name.startswith(LAUNCHERS)}
    return kept | extra


def run(*words, env=None, limit=90):
    return subprocess.run([str(BENCH), *words], capture_output=True, text=True, timeout=limit * SLOW, env=env or environment(), stdin=subprocess.DEVNULL)


def run_ranks(variables, *words):
    """One process a rank, as a launcher would start them: variables(rank) -> dict."""
    processes = [subprocess.Popen([str(BENCH), *words], env=environment(**variables(rank)), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                  stdin=subprocess.DEVNULL, text=True) for rank in range(2)]
    try:
        outputs = [process.communicate(timeout=90 * SLOW) for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [(process.returncode, *output) for process, output in zip(processes, outputs)]


def rows(text):
    return [line.split() for line in text.splitlines() if line.strip() and line.split()[0].isdigit()]


def children_of(pid):
    """Pids of a process's children."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                if int((folder / "stat").read_text().rpartition(")")[2].split()[1]) == pid:
                    found.append(int(folder.name))
            except OSError:
                pass
    return found


def test_table():
    done = run("-n", "2", "--sizes", "4,10000,1M", *QUICK)
    assert done.returncode == 0, done.stdout + done.stderr
    table = rows(done.stdout)
    assert [int(row[0]) for row in table] == [4, 10000, 1 << 20], done.stdout
    assert all(row[-1] == "0" for row in table), done.stdout
    assert "all results right" in done.stdout and "2 ranks, 1 host" in done.stdout


def test_progress_on_a_terminal_alone():
    """While a size is measured its name stands there, and nothing of it is left when its row is printed."""
    words = ["-n", "2", "--sizes", "4,64K", *QUICK]
    ours, theirs = os.openpty()
    process = subprocess.Popen([str(BENCH), *words], stdout=subprocess.PIPE, stderr=theirs, stdin=subprocess.DEVNULL, env=environment(), text=True)
    os.close(theirs)
    try:
        table = rows(process.communicate(timeout=90 * SLOW)[0])
    finally:
        process.kill()
    shown = b""
    while True:
        try:
            shown += os.read(ours, 65536)
        except OSError:  # the other end is closed, and all was read
            break
    os.close(ours)
    clear = "\r\033[K"
    expected = [word for size in ("4 B", "64 KiB") for word in (f"allreduce of {size}, float32 sum, in place", "")]
    assert shown.decode() == "".join(clear + word for word in expected) and len(table) == 2 and process.returncode == 0, shown
    done = run(*words)
    assert done.returncode == 0 and "\r" not in done.stdout + done.stderr, done.stdout + done.stderr


def test_json_has_everything(tmp_path):
    path = tmp_path / "out.json"
    done = run("-n", "3", "--sizes", "4,64K", "--iterations", "17", "--in-place", "--out-of-place", "--json", str(path),
               env=environment(QUOIT_SLOT_SIZE="64K"))
    assert done.returncode == 0, done.stdout + done.stderr
    data = json.loads(path.read_text())
    assert data["size"] == 3 and data["hosts"] == 1 and len(data["ranks"]) == 3
    assert data["settings"] == {"QUOIT_SLOT_SIZE": "64K"}
    assert data["error"] is None and data["describe"] is not None and data["describe_text"]
    assert [(row["bytes"], row["in_place"]) for row in data["rows"]] == [(4, True), (65536, True), (4, False), (65536, False)]
    for row in data["rows"]:
        assert len(row["times_us"]) == 17 and row["wrong"] == 0 and row["same_bits"] is True
        assert min(row["times_us"]) == row["min_us"] and max(row["times_us"]) == row["max_us"]
        assert row["min_us"] <= row["median_us"] <= row["p99_us"] <= row["max_us"]


def test_json_to_standard_output():
    done = run("-n", "2", "--sizes", "4", "--iterations", "3", "--json", "-")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["rows"][0]["bytes"] == 4
    assert rows(done.stderr), done.stderr


def test_every_dtype_and_op_is_right():
    done = run("-n", "3", "--dtype", "all", "--op", "all", "--sizes", "4,10000,300K", "--iterations", "2", "--in-place", "--out-of-place", limit=300)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr
    pairs = {(row[2], row[3]) for row in rows(done.stdout)}
    assert ("float8_e5m2", "avg") in pairs and ("complex128", "premul_sum") in pairs and ("bool", "bxor") in pairs
    assert len(pairs) > 90


def test_one_rank():
    done = run("-n", "1", "--sizes", "4,64K", *QUICK)
    assert done.returncode == 0, done.stdout + done.stderr


def test_tcp_on_one_host():
    done = run("-n", "2", "--sizes", "4,1M", *QUICK, env=environment(QUOIT_TRANSPORT="tcp"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "QUOIT_TRANSPORT=tcp" in done.stdout


def test_explain():
    done = run("-n", "2", "--sizes", "4,1M", "--explain")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("# rank 0") == 2 and "algbw" not in done.stdout


def test_plain_variables(tmp_path):
    port = 29000 + os.getpid() % 500
    ends = run_ranks(lambda r: {"RANK": str(r), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}, "--sizes", "4", *QUICK)
    assert [end[0] for end in ends] == [0, 0], ends
    assert rows(ends[0][1]) and not ends[1][1], ends


def test_open_mpi_variables():
    ends = run_ranks(lambda r: {"OMPI_COMM_WORLD_RANK": str(r), "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, "--sizes", "4", *QUICK)
    assert [end[0] for end in ends] == [0, 0], ends
    assert "ranks from Open MPI" in ends[0][1]


def test_slurm_variables():
    job = str(os.getpid())
    ends = run_ranks(lambda r: {"SLURM_PROCID": str(r), "SLURM_NTASKS": "2", "SLURM_STEP_NODELIST": "localhost", "SLURM_JOB_ID": job}, "--sizes", "4", *QUICK)
    assert [end[0] for end in ends] == [0, 0], ends


@pytest.mark.parametrize("kind", ["file", "tcp"])
def test_by_hand(tmp_path, kind):
    store = f"file://{tmp_path}/store" if kind == "file" else f"tcp://127.0.0.1:{28000 + os.getpid() % 500}"
    processes = [subprocess.Popen([str(BENCH), "--rank", str(r), "--size", "2", "--store", store, "--sizes", "4", *QUICK], env=environment(),
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for r in range(2)]
    try:
        texts = [process.communicate(timeout=60 * SLOW)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0], texts


def test_torchrun(tmp_path):
    pytest.importorskip("torch")
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--no-python", "--nproc-per-node", "2", str(BENCH), "--sizes", "4", *QUICK]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120 * SLOW, env=environment(TMPDIR=str(tmp_path)), stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ranks from torchrun" in done.stdout


@pytest.mark.parametrize("words", [("--iterations", "0"), ("--dtype", "float33"), ("--sizes", "1Q"), ("--nonsense",)])
def test_wrong_usage_is_named(words):
    done = run(*words)
    assert done.returncode == 2
    assert all(word in done.stderr for word in words), done.stderr


def test_bad_setting_is_reported_with_the_rank():
    done = run("-n", "2", "--sizes", "4", env=environment(QUOIT_TCP_SOCKETS="0"))
    assert done.returncode == 1
    assert "QUOIT_TCP_SOCKETS" in done.stderr and "rank " in done.stderr, done.stderr


def test_unsupported_pair_is_reported():
    done = run("-n", "2", "--sizes", "4", "--dtype", "float32", "--op", "band")
    assert done.returncode == 1 and "band" in done.stderr and "float32" in done.stderr, done.stderr


def wait_for_ranks(process, count):
    deadline = time.monotonic() + 20 * SLOW
    while len(children_of(process.pid)) < count:
        assert process.poll() is None and time.monotonic() < deadline, "the ranks did not start"
        time.sleep(0.02)
    time.sleep(1)
    return children_of(process.pid)


def start_long(**extra):
    return subprocess.Popen([str(BENCH), "-n", "3", "--sizes", "64K", "--iterations", "100000000"], env=environment(**extra), stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL)


def test_killed_rank_ends_the_run_and_is_named():
    process = start_long()
    try:
        victim = wait_for_ranks(process, 3)[1]
        os.kill(victim, signal.SIGKILL)
        _, text = process.communicate(timeout=40 * SLOW)
    finally:
        process.kill()
    assert process.returncode == 1
    assert "was killed by signal 9" in text and "first" in text, text
    assert not Path(f"/proc/{victim}").exists()


def test_interrupt_reaches_the_ranks_and_leaves_nothing():
    process = start_long()
    try:
        ranks = wait_for_ranks(process, 3)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=20 * SLOW)
    finally:
        process.kill()
    assert process.returncode == 128 + signal.SIGTERM
    assert [pid for pid in ranks if Path(f"/proc/{pid}").exists()] == []


def test_killed_launcher_takes_its_ranks_along(tmp_path):
    process = start_long(TMPDIR=str(tmp_path))  # a killed launcher cannot remove its folder
    ranks = wait_for_ranks(process, 3)
    process.kill()
    process.communicate(timeout=20 * SLOW)
    deadline = time.monotonic() + 10 * SLOW
    while any(Path(f"/proc/{pid}").exists() for pid in ranks):
        assert time.monotonic() < deadline, "ranks live on after their launcher was killed"
        time.sleep(0.05)


def test_versus_gloo():
    pytest.importorskip("torch")
    pytest.importorskip("quoit", reason="the Python package is not installed")
    done = run("-n", "2", "--sizes", "4,64K", *QUICK, "--vs", "gloo", env=environment(PYTHON=sys.executable), limit=150)
    assert done.returncode == 0, done.stdout + done.stderr
    table = [line for line in done.stdout.splitlines() if line.startswith("# ratio")]
    assert table and "gloo" in table[0], done.stdout


def test_versus_without_python_says_so():
    done = run("-n", "2", "--sizes", "4", *QUICK, "--vs", "gloo", "--python", "/nowhere/python")
    assert done.returncode == 1 and "/nowhere/python" in done.stderr, done.stderr


def test_side_by_side_script_alone():
    pytest.importorskip("torch")
    words = [sys.executable, "-P", str(ROOT / "bench" / "vs.py"), "-n", "2", "--backend", "gloo", "--sizes", "4,64K", "--time", "0.02", "--rounds", "2"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120 * SLOW, env=environment(), stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(rows(done.stdout)) == 2, done.stdout


def test_wire_dtype_is_used_and_told(tmp_path):
    """Two hosts, by label: the plan encodes, the communicator says so, and results are not called wrong."""
    for number, (words, expected) in enumerate([(["--explain"], "encode"), (["--json", "-", *QUICK], '"wire": "int8"')]):

        def variables(rank, number=number):
            return {"RANK": str(rank), "WORLD_SIZE": "2", "QUOIT_HOST_LABEL": str(rank), "QUOIT_INTERFACE": "lo", "QUOIT_STORE": f"file://{tmp_path}/{number}"}

        (status, output, error), _ = run_ranks(variables, "--wire-dtype", "int8", "--sizes", "64K", *words)
        assert status == 0, error
        assert expected in output, output
    done = run("-n", "2", "--wire-dtype", "int4")
    assert done.returncode == 2 and "int4" in done.stderr and "none, float32, bf16, fp16 or int8" in done.stderr, done.stderr
