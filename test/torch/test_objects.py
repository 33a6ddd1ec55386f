# SPDX-License-Identifier: Apache-2.0
"""What is not a tensor: Python objects, checkpoints, and RPC beside the process group."""

import os
import time

import pytest
import torch
import torch.distributed as dist
from torch import nn

from launcher import SLOW, argument, directory, message_of, run, start

IMPORTS = ["torch._dynamo", "torch.distributed.fsdp", "torch.distributed.checkpoint", "torch.distributed.rpc"]


class Unpicklable:
    def __reduce__(self):
        raise TypeError("this object is not to be pickled")


def sample(rank, length=1000):
    """Objects of different sizes on the ranks, a tensor among them."""
    return {"rank": rank, "text": "x" * (rank * length), "tensor": torch.full((rank + 1, 3), float(rank)), "none": None}


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) if k == "tensor" else a[k] == b[k] for k in a)


def worker_objects(rank, size):
    last = size - 1
    everyone = [sample(r) for r in range(size)]
    got = [None] * size
    dist.all_gather_object(got, sample(rank))
    assert all(map(same, got, everyone))
    got = [None] * size if rank == last else None
    dist.gather_object(sample(rank), got, dst=last)
    assert rank != last or all(map(same, got, everyone))
    got = [sample(last), "second", 3] if rank == last else [None] * 3
    dist.broadcast_object_list(got, src=last)
    assert same(got[0], everyone[last]) and got[1:] == ["second", 3]
    got = [None]
    dist.scatter_object_list(got, everyone if rank == last else None, src=last)
    assert same(got[0], everyone[rank])
    got = [None, None]
    if rank == 0:
        dist.send_object_list([everyone[0], "to the last"], dst=last)
    elif rank == last:
        assert dist.recv_object_list(got, src=0) == 0
        assert same(got[0], everyone[0]) and got[1] == "to the last"


def worker_unpicklable(rank, size):
    """Rank 1 has something that cannot be pickled. It gives up, or goes on to something else; the others are told either way."""
    call, goes_on = argument()
    bad = Unpicklable() if rank == 1 else "good"

    def exchange():
        if call == "all_gather":
            dist.all_gather_object([None] * size, bad)
        elif call == "gather":
            dist.gather_object(bad, [None] * size if rank == 0 else None, dst=0)
            dist.barrier()  # those that only give may be done before
        elif call == "broadcast":
            dist.broadcast_object_list([bad, bad], src=1)
        else:
            dist.scatter_object_list([None], [bad] * size if rank == 1 else None, src=1)
            dist.barrier()

    began = time.monotonic()
    text = message_of(exchange)
    if rank == 1:
        assert "not to be pickled" in text, text
        if goes_on:
            text = message_of(lambda: dist.all_reduce(torch.ones(3, dtype=torch.float64)))
            assert "all_reduce" in text.replace("allreduce", "all_reduce"), text
    elif goes_on:
        assert "rank 1" in text and "allreduce" in text, text
    else:
        assert "rank 1" in text, text
    assert time.monotonic() - began < 20 * SLOW
    os._exit(0 if rank == 1 else 7)  # without farewell; the others say by 7 that they got here


def worker_large(rank, size):
    """100 MB, from every rank and from one."""
    data = os.urandom(16) * (100_000_000 // 16)
    got = [None] * size
    dist.all_gather_object(got, (rank, data))
    assert [r for r, _ in got] == list(range(size)) and all(len(d) == len(data) for _, d in got)
    assert got[rank][1] == data
    got = [data] if rank == 0 else [None]
    dist.broadcast_object_list(got, src=0)
    again = [None] * size
    dist.all_gather_object(again, got[0][-16:])
    assert len(set(again)) == 1


def build():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(10, 13), nn.Tanh(), nn.Linear(13, 6))


def sharded_pair():
    from torch.distributed.fsdp import fully_shard

    model = fully_shard(build())
    return model, torch.optim.Adam(model.parameters(), lr=0.1)


def step(model, optimizer, seed):
    generator = torch.Generator().manual_seed(seed)
    optimizer.zero_grad()
    model(torch.randn(4, 10, generator=generator)).square().sum().backward()
    optimizer.step()


def whole(model):
    return [parameter.full_tensor().detach() for parameter in model.parameters()]


def worker_checkpoint_save(rank, size):
    """Saves after one step, then again in the background while further steps run; leaves the weights of both moments as files."""
    import torch.distributed.checkpoint as checkpoint
    from torch.distributed.checkpoint.state_dict import get_state_dict

    def state():
        model_state, optimizer_state = get_state_dict(model, optimizer)
        return {"model": model_state, "optimizer": optimizer_state, "steps": 1}

    place = directory()
    model, optimizer = sharded_pair()
    step(model, optimizer, seed=1)
    checkpoint.save(state(), checkpoint_id=str(place / "now"))
    weights = {"now": whole(model)}
    step(model, optimizer, seed=2)
    weights["later"] = whole(model)
    own = dist.new_group()  # collectives of another thread must not mix with those of the training
    pending = checkpoint.async_save(state(), checkpoint_id=str(place / "later"), process_group=own)
    for seed in range(3, 9):
        step(model, optimizer, seed)
    pending.result()
    if rank == 0:
        torch.save(weights, place / "weights")


def worker_checkpoint_load(rank, size):
    import torch.distributed.checkpoint as checkpoint
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    weights = torch.load(directory() / "weights")
    for name, expected in weights.items():
        model, optimizer = sharded_pair()
        model_state, optimizer_state = get_state_dict(model, optimizer)
        state = {"model": model_state, "optimizer": optimizer_state, "steps": 0}
        checkpoint.load(state, checkpoint_id=str(directory() / name))
        set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        assert state["steps"] == 1
        assert all(map(torch.equal, whole(model), expected)), name
        if name == "now":  # with Adam's moments back, the next step is the one that the first run took
            step(model, optimizer, seed=2)
            for mine, right in zip(whole(model), weights["later"], strict=True):
                torch.testing.assert_close(mine, right)


def worker_checkpoint_fails(rank, size):
    """A rank that cannot save makes an error on all, which names it; the group lives on."""
    import torch.distributed.checkpoint as checkpoint
    from torch.distributed.checkpoint.api import CheckpointException

    state = {f"weight{rank}": torch.ones(3), f"other{rank}": Unpicklable() if rank == 1 else 0}
    text = message_of(lambda: checkpoint.save(state, checkpoint_id=str(directory() / "no")), CheckpointException)
    assert "[1]" in text and "not to be pickled" in text, text
    dist.barrier()


def add(a, b):
    return a + b


def worker_rpc(rank, size):
    from torch.distributed import rpc

    options = rpc.TensorPipeRpcBackendOptions(init_method=f"file://{directory()}/rpc", _transports=["uv"])
    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=size, rpc_backend_options=options)
    total = torch.ones(3)
    dist.all_reduce(total)
    other = (rank + 1) % size
    assert torch.equal(rpc.rpc_sync(f"worker{other}", add, args=(total, rank)), torch.full((3,), float(size + rank)))
    dist.barrier()
    rpc.shutdown()
    dist.all_reduce(total)
    assert (total == size * size).all()


@pytest.mark.parametrize("size", [2, 3])
def test_objects(size):
    run(size, worker_objects)


@pytest.mark.parametrize("goes_on", [False, True], ids=["gives up", "goes on"])
@pytest.mark.parametrize("call", ["all_gather", "gather", "broadcast", "scatter"])
def test_unpicklable(call, goes_on):
    answers = start(3, worker_unpicklable, argument=[call, goes_on], limit=30)
    assert [answer.status for answer in answers] == [7, 0, 7], answers


if os.environ.get("QUOIT_TEST_LONG") == "1":

    def test_large_objects():
        run(2, worker_large, limit=120)


def test_checkpoint(tmp_path):
    run(4, worker_checkpoint_save, directory=tmp_path, limit=90)
    run(2, worker_checkpoint_load, directory=tmp_path, limit=90)


def test_checkpoint_fails():
    run(2, worker_checkpoint_fails)


def test_rpc():
    run(3, worker_rpc)
