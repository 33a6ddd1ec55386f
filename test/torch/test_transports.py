# SPDX-License-Identifier: Apache-2.0
"""The backend's tests over the transports that join hosts beside tcp: ucx, and verbs over the tests' libibverbs. Ranks count as hosts by their
label; each says afterwards what joins it with those of the other host. A sample; QUOIT_TEST_LONG=1 plays all workers of the modules below."""

import importlib
import os
from pathlib import Path

import pytest
import torch.distributed as dist

import differential
import quoit
from launcher import argument, run

IMPORTS = ["torch._dynamo"]
BUILD = Path(os.environ.get("QUOIT_TEST_BUILD", str(Path(__file__).resolve().parents[2] / "build")))
LONG = os.environ.get("QUOIT_TEST_LONG") == "1"
SEED = int(os.environ.get("QUOIT_TEST_SEED", "20260101")) % 1_000_000
FAKE_VERBS = BUILD / "test" / "verbs" / "libibverbs.so.1"

# Module, worker, ranks.
SAMPLE = [
    ("test_collectives", "worker_small_ones", 3),
    ("test_p2p", "worker_all", 3),
    ("test_training", "worker_ddp", 2),
    ("test_sharding", "worker_fsdp2", 4),
]
ALL = SAMPLE + [
    ("test_collectives", "worker_reductions", 3),
    ("test_collectives", "worker_moves", 4),
    ("test_functional", "worker_functional", 3),
    ("test_functional", "worker_differentiable", 3),
    ("test_training", "worker_hooks", 2),
    ("test_training", "worker_sparse", 2),
    ("test_training", "worker_zero", 2),
    ("test_training", "worker_join", 3),
    ("test_training", "worker_post_local", 4),
    ("test_sharding", "worker_fsdp1", 4),
    ("test_sharding", "worker_dtensor", 3),
    ("test_sharding", "worker_tensor_parallel", 2),
    ("test_sharding", "worker_two_dimensions", 4),
    ("test_sharding", "worker_pipeline", 2),
]


def settings(transport):
    if transport == "verbs" and not FAKE_VERBS.exists():
        pytest.skip(f"{FAKE_VERBS} was not built")
    return {"QUOIT_TRANSPORT": f"shm,{transport}", "QUOIT_INTERFACE": "lo", **({"QUOIT_VERBS_LIBRARY": str(FAKE_VERBS)} if transport == "verbs" else {})}


def assert_joined(transport, rank, size, described):
    assert described["hosts"] == 2, described
    edges = [described["ranks"][other]["edge"] for other in range(size) if other % 2 != rank % 2]
    assert all(edge.startswith((f"{transport} ", "not connected")) for edge in edges), described
    assert rank > 1 or any(edge.startswith(f"{transport} ") for edge in edges), described  # the hosts' leaders


def over(rank, size):
    module, worker, transport = argument()
    os.environ["QUOIT_HOST_LABEL"] = f"host{rank % 2}"
    dist.init_process_group("quoit", init_method="env://")
    dist.barrier()
    before = quoit.describe(as_dict=True)
    getattr(importlib.import_module(module), worker)(rank, size)
    assert_joined(transport, rank, size, quoit.describe(as_dict=True) if dist.is_initialized() else before)
    if dist.is_initialized():
        dist.destroy_process_group()


@pytest.mark.parametrize("transport", ["verbs", "ucx"])
@pytest.mark.parametrize(("module", "worker", "size"), ALL if LONG else SAMPLE)
def test_worker(transport, module, worker, size):
    run(size, over, backend=None, limit=180, env=settings(transport), argument=[module, worker, transport])


@pytest.mark.parametrize("transport", ["verbs", "ucx"])
@pytest.mark.parametrize(("ranks", "hosts"), [(4, 2)] + ([(3, 3)] if LONG else []))
def test_random_calls(transport, ranks, hosts):
    cases = 2000 if LONG else 100
    count, told = differential.play(ranks, SEED * 1_000_000, cases, limit=900 if LONG else 90, hosts=hosts, env=settings(transport))
    assert not told, "\n".join(told)
    assert count["cases"] >= cases and count["same bits"] > 0, count
