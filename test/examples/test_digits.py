# SPDX-License-Identifier: Apache-2.0
"""The example trains, with Quoit as with Gloo: the same losses, the same bits on every rank, digits recognised.

On one host under torchrun, and with 4 + 3 ranks on two namespaced hosts, where bytes are counted on the link and the backend must
have seen two hosts. What the losses are to be is known twice: from Gloo (its first epochs on one host; QUOIT_TEST_LONG=1 trains with
it on two hosts, too, and to the end) and from one process that plays all ranks in turn.
"""

import json
import os
import re
import runpy
import subprocess
import sys
import termios
import threading
from functools import partial
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "test" / "support"), str(ROOT / "test" / "torch"), str(ROOT / "examples")]
import hosts as hosts_module  # noqa: E402
import launcher  # noqa: E402

EXAMPLE = str(ROOT / "examples" / "ddp_digits.py")
BACKEND = os.environ.get("QUOIT_TEST_BACKEND", "quoit")
SLOW = float(os.environ.get("TEST_SLOW", "1"))
LONG = os.environ.get("QUOIT_TEST_LONG", "0") != "0"
LIMIT = 60 * SLOW  # of a run; some twenty seconds where other tests want the processors, so that all runs may hang and yet each is told
GLOO_LIMIT = LIMIT if LONG else LIMIT / 4  # of each of the tries that Gloo gets
GLOO_EPOCHS = 8 if LONG else 2
SAME_BITS = "weights are the same bits on every rank"
IMPORTS = ["sklearn.datasets", "torch.nn.parallel", "torch.utils.data", "tqdm"]  # of ranks that are forked

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
    """Rank 0's report, and what was written: to standard output, and to the terminal that standard error is."""
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", EXAMPLE, "--backend", backend,
             "--json", str(folder / f"{backend}.json"), "--describe", str(folder / "describe.json"), *extra]
    ours, theirs = os.openpty()
    termios.tcsetwinsize(theirs, (24, 80))  # else it has no column for a bar
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=theirs, text=True, stdin=subprocess.DEVNULL,
                               env=dict(environment(backend), TMPDIR=str(folder)))  # where torchrun leaves its logs
    os.close(theirs)
    reader = threading.Thread(target=lambda: shown.append(read_terminal(ours)), daemon=True)
    shown = []
    reader.start()
    try:
        stdout = process.communicate(timeout=LIMIT)[0]
    except subprocess.TimeoutExpired as expired:
        process.terminate()  # torchrun ends its ranks then
        stdout = f"still running after {expired.timeout:.0f} s\n{process.communicate(timeout=60)[0]}"
    reader.join()
    assert process.returncode == 0, f"{' '.join(words)}: status {process.returncode}\n{stdout[-3000:]}\n{shown[0][-6000:]}"
    assert SAME_BITS in stdout, stdout
    return read(folder / f"{backend}.json"), stdout, shown[0]


def read_terminal(descriptor):
    """All that programs write to the other end, until the last of them ends."""
    written = b""
    while True:
        try:
            written += os.read(descriptor, 65536)
        except OSError:
            os.close(descriptor)
            return written.decode(errors="replace")


def compared(run, *arguments):
    """A run of Gloo, to compare with. On a busy machine Gloo sometimes hangs, or dies: that is tried again, and told."""
    for last in (False, False, True):
        try:
            return run(*arguments)
        except (AssertionError, subprocess.TimeoutExpired) as error:
            if last:
                raise
            print(f"Gloo's run failed: {error}", flush=True)


def losses_of_one_process(size, epochs):
    """What the example comes to without any backend: each step sums the gradients of all ranks' batches, divided by their number."""
    import torch
    from ddp_digits import Net, load_data
    from torch.utils.data import DataLoader, DistributedSampler

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    seed, batch, rate = 7, 64, 0.008  # the example's defaults
    torch.manual_seed(seed)
    data, _ = load_data(seed)
    samplers = [DistributedSampler(data, num_replicas=size, rank=rank, seed=seed) for rank in range(size)]
    loaders = [DataLoader(data, batch_size=batch // size, sampler=sampler) for sampler in samplers]
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    losses = []
    for epoch in range(epochs):
        total = samples = 0
        for sampler in samplers:
            sampler.set_epoch(epoch)
        for batches in zip(*loaders, strict=True):
            optimizer.zero_grad()
            for pixels, labels in batches:
                loss = torch.nn.functional.cross_entropy(model(pixels), labels)
                (loss / size).backward()
                total += loss.item() * len(labels)
                samples += len(labels)
            optimizer.step()
        losses.append(total / samples)
    torch.set_num_threads(threads)
    return losses


def assert_same_training(mine, losses, of):
    """To three digits, each epoch; `of` may have done fewer, since training takes the same way whatever comes after."""
    assert len(mine["losses"]) >= len(losses) > 0
    for epoch, (a, b) in enumerate(zip(mine["losses"], losses)):
        assert abs(a - b) <= 1e-3 * abs(b), f"epoch {epoch + 1}: loss {a!r} with {BACKEND}, {b!r} with {of}; all: {mine['losses']} {losses}"
    assert mine["accuracies"][-1] > 0.95, mine["accuracies"]


@pytest.fixture(scope="module")
def one_host(tmp_path_factory):
    folder = tmp_path_factory.mktemp("one_host")
    gloo = partial(forked, tmp_path_factory.mktemp("gloo"), 2, "--epochs", str(GLOO_EPOCHS), backend="gloo")
    return folder, torchrun(folder, BACKEND), compared(gloo)


def test_one_host_trains_as_gloo_does(one_host):
    _, (mine, _, _), gloo = one_host
    assert mine["backend"] == BACKEND and mine["size"] == 2
    assert len(gloo["losses"]) == GLOO_EPOCHS
    assert_same_training(mine, gloo["losses"], "gloo")
    assert_same_training(mine, losses_of_one_process(2, 8), "one process")


def test_output_has_a_line_an_epoch(one_host):
    _, (mine, stdout, shown), _ = one_host
    lines = [line for line in stdout.splitlines() if line.startswith("epoch ")]
    assert len(lines) == len(mine["losses"]), stdout
    assert "train loss" in lines[0] and "held-out accuracy" in lines[0], lines[0]
    bars = re.findall(r"epoch (\d+):   0%", shown)  # of rank 0 alone, on a terminal alone
    assert bars == [str(epoch + 1) for epoch in range(len(lines))] and "%|" not in stdout, shown


def test_one_host_is_seen_as_one(one_host):
    if BACKEND != "quoit":
        pytest.skip("only quoit describes itself")
    folder, _, _ = one_host
    assert read(folder / "describe.json")["hosts"] == 1


def worker_example(rank, size):
    interface, sys.argv[1:] = launcher.argument()
    if interface:
        os.environ["GLOO_SOCKET_IFNAME"] = interface
    runpy.run_path(EXAMPLE, run_name="__main__")


def forked(folder, size, *extra, backend=BACKEND, hosts=None):
    """Ranks that need not import everything first, and without torchrun: the variables alone. What becomes of Gloo's once all is reported is
    no matter here: on a busy machine some hang in the destructor of their group."""
    report = folder / f"{backend}.json"
    report.unlink(missing_ok=True)
    words = ["--backend", backend, "--json", str(report), "--describe", str(folder / "describe.json"), *extra]
    limit = GLOO_LIMIT if backend == "gloo" else LIMIT
    ranks = launcher.start(size, worker_example, limit=limit / SLOW, backend=None, hosts=hosts,
                           argument=[hosts.interface if hosts else "", words])
    assert backend == "gloo" or all(rank.status == 0 for rank in ranks), ranks
    assert SAME_BITS in ranks[0].output and report.exists(), ranks
    return read(report)


def test_checkpoint_continues_where_it_stopped(one_host, tmp_path):
    """All epochs at once, and two and then the rest: the same losses, the same bits at the end."""
    _, (at_once, _, _), _ = one_host
    checkpoint = tmp_path / "state.pt"
    first = forked(tmp_path, 2, "--epochs", "2", "--checkpoint", str(checkpoint))
    assert checkpoint.exists()
    second = forked(tmp_path, 2, "--checkpoint", str(checkpoint))
    assert len(first["losses"]) == 2
    assert first["losses"] + second["losses"] == at_once["losses"]
    assert second["weights"] == at_once["weights"]


def run_on_hosts(hosts, folder, backend, *extra):
    """The report, and the bytes each host sent."""
    before = [hosts.counters(h) for h in range(len(hosts.ranks))]
    report = forked(folder, sum(hosts.ranks), *extra, backend=backend, hosts=hosts)
    sent = [hosts.counters(h)["sent"] - before[h]["sent"] for h in range(len(hosts.ranks))]
    return report, sent


def test_seven_ranks_on_two_hosts(tmp_path):
    why = hosts_module.why_unavailable()
    if why:
        pytest.skip(why)
    with hosts_module.Hosts([4, 3], rate="1gbit") as hosts:
        mine, sent = run_on_hosts(hosts, tmp_path, BACKEND)
        gloo, gloo_sent = compared(run_on_hosts, hosts, tmp_path, "gloo") if LONG else (None, None)
    assert mine["size"] == 7
    assert_same_training(mine, losses_of_one_process(7, 8), "one process")
    if gloo:
        assert_same_training(mine, gloo["losses"], "gloo")
    # Each step sends all gradients across; 8 epochs of 23 steps of some 60 kB.
    assert min(sent) > 5_000_000, f"bytes on the veth: {sent} with {BACKEND}, {gloo_sent} with gloo"
    if BACKEND == "quoit":
        described = read(tmp_path / "describe.json")
        assert described["hosts"] == 2 and described["size"] == 7, described
        assert len({rank["hostname"] for rank in described["ranks"]}) == 2, described
