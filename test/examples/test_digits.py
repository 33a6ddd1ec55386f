# SPDX-License-Identifier: Apache-2.0
"""The example trains, with Quoit as with Gloo: the same losses, the same bits on every rank, digits recognised.

On one host under torchrun, and with 4 + 3 ranks on two namespaced hosts, where bytes are counted on the link and the backend must
have seen two hosts.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "test" / "support"))
import hosts as hosts_module  # noqa: E402

EXAMPLE = str(ROOT / "examples" / "ddp_digits.py")
BACKEND = os.environ.get("QUOIT_TEST_BACKEND", "quoit")
SLOW = float(os.environ.get("TEST_SLOW", "1"))
LONG = os.environ.get("QUOIT_TEST_LONG", "0") != "0"
LIMIT = 240 * SLOW
GLOO_EPOCHS = 8 if LONG else 2  # its ranks take minutes where seven share two processors
SAME_BITS = "weights are the same bits on every rank"

pytest.importorskip("torch")
pytest.importorskip("sklearn", reason="the example needs scikit-learn")


def read(path):
    with open(path) as file:
        return json.load(file)


def environment(backend):
    """The runs that are compared with do without the quoit that PyTorch loads by itself."""
    own = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"} if backend == "gloo" else {}
    return dict(os.environ, OMP_NUM_THREADS="1", PYTHONUNBUFFERED="1", **own)


def torchrun(folder, backend, *extra, ranks=2):
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", EXAMPLE, "--backend", backend,
             "--json", str(folder / f"{backend}.json"), "--describe", str(folder / "describe.json"), *extra]
    done = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT, env=environment(backend), stdin=subprocess.DEVNULL)
    assert done.returncode == 0, f"{' '.join(words)}: status {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-6000:]}"
    assert SAME_BITS in done.stdout, done.stdout
    return read(folder / f"{backend}.json"), done.stdout


def compared(run, *arguments):
    """A run of Gloo, to compare with. On a busy machine Gloo sometimes hangs, or dies at its end: that is tried again, and told."""
    for last in (False, False, True):
        try:
            return run(*arguments)
        except (AssertionError, subprocess.TimeoutExpired) as error:
            if last:
                raise
            print(f"Gloo's run failed: {error}", flush=True)


def assert_same_training(mine, gloo, epochs=None):
    """To three digits, each epoch; Gloo may have done fewer, since training takes the same way whatever comes after."""
    assert len(mine["losses"]) >= len(gloo["losses"]) == (epochs or len(mine["losses"])) > 0
    for epoch, (a, b) in enumerate(zip(mine["losses"], gloo["losses"])):
        assert abs(a - b) <= 1e-3 * abs(b), f"epoch {epoch + 1}: loss {a!r} with {BACKEND}, {b!r} with gloo; all: {mine['losses']} {gloo['losses']}"
    assert mine["accuracies"][-1] > 0.95, mine["accuracies"]


@pytest.fixture(scope="module")
def one_host(tmp_path_factory):
    folder = tmp_path_factory.mktemp("one_host")
    return folder, torchrun(folder, BACKEND), compared(torchrun, folder, "gloo", "--epochs", str(GLOO_EPOCHS))


def test_one_host_trains_as_gloo_does(one_host):
    _, (mine, _), (gloo, _) = one_host
    assert mine["backend"] == BACKEND and mine["size"] == 2
    assert_same_training(mine, gloo, GLOO_EPOCHS)


def test_output_has_a_line_an_epoch(one_host):
    _, (mine, stdout), _ = one_host
    lines = [line for line in stdout.splitlines() if line.startswith("epoch ")]
    assert len(lines) == len(mine["losses"]), stdout
    assert "train loss" in lines[0] and "held-out accuracy" in lines[0], lines[0]


def test_one_host_is_seen_as_one(one_host):
    if BACKEND != "quoit":
        pytest.skip("only quoit describes itself")
    folder, _, _ = one_host
    assert read(folder / "describe.json")["hosts"] == 1


def test_checkpoint_continues_where_it_stopped(one_host, tmp_path):
    """All epochs at once, and two and then the rest: the same losses, the same bits at the end."""
    _, (at_once, _), _ = one_host
    checkpoint = tmp_path / "state.pt"
    first, _ = torchrun(tmp_path, BACKEND, "--epochs", "2", "--checkpoint", str(checkpoint))
    assert checkpoint.exists()
    second, _ = torchrun(tmp_path, BACKEND, "--checkpoint", str(checkpoint))
    assert len(first["losses"]) == 2
    assert first["losses"] + second["losses"] == at_once["losses"]
    assert second["weights"] == at_once["weights"]


def run_on_hosts(hosts, folder, backend, *extra):
    """Without torchrun: the variables alone. Returns the report and the bytes each host sent."""
    before = [hosts.counters(h) for h in range(len(hosts.ranks))]
    words = [sys.executable, EXAMPLE, "--backend", backend, "--json", str(folder / f"{backend}.json"), "--describe",
             str(folder / "describe.json"), *extra]
    limit = LIMIT if LONG or backend != "gloo" else LIMIT / 2
    results = hosts.run(words, timeout=limit, env={"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": hosts.interface})
    assert all(r.returncode == 0 for r in results), hosts.explain(results)
    assert SAME_BITS in results[0].stdout, results[0].stdout
    sent = [hosts.counters(h)["sent"] - before[h]["sent"] for h in range(len(hosts.ranks))]
    return read(folder / f"{backend}.json"), sent


def test_seven_ranks_on_two_hosts(tmp_path):
    why = hosts_module.why_unavailable()
    if why:
        pytest.skip(why)
    with hosts_module.Hosts([4, 3], rate="1gbit") as hosts:
        mine, sent = run_on_hosts(hosts, tmp_path, BACKEND)
        gloo, gloo_sent = compared(run_on_hosts, hosts, tmp_path, "gloo", "--epochs", str(GLOO_EPOCHS))
    assert mine["size"] == 7
    assert_same_training(mine, gloo, GLOO_EPOCHS)
    # Each step sends all gradients across; 8 epochs of 23 steps of some 60 kB.
    assert min(sent) > 5_000_000, f"bytes on the veth: {sent} with {BACKEND}, {gloo_sent} with gloo"
    if BACKEND == "quoit":
        described = read(tmp_path / "describe.json")
        assert described["hosts"] == 2 and described["size"] == 7, described
        assert len({rank["hostname"] for rank in described["ranks"]}) == 2, described
