#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Data-parallel training on handwritten digits: a small CNN, DistributedDataParallel, and Quoit (or Gloo) in between.

    torchrun --nproc-per-node 2 examples/ddp_digits.py
    torchrun --nproc-per-node 2 examples/ddp_digits.py --backend gloo

On several hosts, either torchrun on each (--nnodes, --node-rank, --master-addr), or one process a rank with RANK, WORLD_SIZE,
MASTER_ADDR and MASTER_PORT set. The digits come with scikit-learn, nothing is downloaded.
"""
import argparse
import datetime
import hashlib
import json
import os
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from tqdm import tqdm


class Net(nn.Module):
    """8x8 grey pixels in, ten classes out. Smooth throughout: a last bit that differs stays a last bit."""

    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.SiLU(),
            nn.Conv2d(16, 32, 3, padding=1), nn.SiLU(), nn.AvgPool2d(2),
            nn.Conv2d(32, 32, 3, padding=1), nn.SiLU(), nn.AvgPool2d(2),
        )
        self.classes = nn.Linear(32 * 2 * 2, 10)

    def forward(self, pixels):
        return self.classes(self.features(pixels).flatten(1))


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="quoit", help="of torch.distributed: quoit (default), gloo")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=64, help="of all ranks together (default 64)")
    parser.add_argument("--lr", type=float, default=0.008)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--checkpoint", help="a file: loaded when it exists, written by rank 0 after each epoch")
    parser.add_argument("--json", help="a file for rank 0: losses and accuracies of each epoch")
    parser.add_argument("--describe", help="a file for rank 0: which hosts and transports the backend uses (quoit only;\n"
                        "JSON when the name ends so)")
    return parser.parse_args()


def load_data(seed):
    """The same split on every rank: a fifth is held out."""
    digits = load_digits()
    pixels = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(digits.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    held_out = len(labels) // 5
    train, test = order[held_out:], order[:held_out]
    return TensorDataset(pixels[train], labels[train]), TensorDataset(pixels[test], labels[test])


def load_checkpoint(path, model, optimizer):
    """Rank 0 reads, everyone gets the same: the file need not be visible to the other hosts. Returns the epochs already done."""
    state = [None]
    if dist.get_rank() == 0 and path and os.path.exists(path):
        state = [torch.load(path, map_location="cpu", weights_only=True)]
    dist.broadcast_object_list(state, src=0)
    if state[0] is None:
        return 0
    model.load_state_dict(state[0]["model"])
    optimizer.load_state_dict(state[0]["optimizer"])
    return state[0]["epochs"]


def save_checkpoint(path, model, optimizer, epochs):
    """Rank 0 writes beside the old file and renames, so that a crash leaves a whole one; nobody goes on before it is there."""
    if dist.get_rank() == 0 and path:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epochs": epochs}
        torch.save(state, path + ".part")
        os.replace(path + ".part", path)
    dist.barrier()


def train_epoch(model, optimizer, loader, label):
    """Mean loss over the samples of all ranks."""
    model.train()
    total = torch.zeros(2, dtype=torch.float64)
    quiet = dist.get_rank() != 0 or not sys.stderr.isatty()
    for pixels, labels in tqdm(loader, desc=label, disable=quiet, leave=False):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(pixels), labels)
        loss.backward()
        optimizer.step()
        total += torch.tensor([loss.item() * len(labels), len(labels)], dtype=torch.float64)
    dist.all_reduce(total)
    return (total[0] / total[1]).item()


@torch.no_grad()
def evaluate(model, data):
    """Accuracy over the held-out digits. Each rank takes every size-th one, so that none is counted twice."""
    model.eval()
    rank, size = dist.get_rank(), dist.get_world_size()
    pixels, labels = data.tensors[0][rank::size], data.tensors[1][rank::size]
    right = (model(pixels).argmax(1) == labels).sum()
    counts = torch.tensor([right.item(), len(labels)])
    dist.all_reduce(counts)
    return (counts[0] / counts[1]).item()


def hash_of_weights(model):
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.contiguous().numpy().tobytes())
    return digest.digest()


def same_on_every_rank(model):
    """All ranks' hashes, gathered and compared."""
    mine = torch.frombuffer(bytearray(hash_of_weights(model)), dtype=torch.uint8)
    all_hashes = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(all_hashes, mine)
    return all(torch.equal(other, mine) for other in all_hashes)


def write_reports(options, losses, accuracies, model):
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"backend": options.backend, "size": dist.get_world_size(), "losses": losses, "accuracies": accuracies,
                       "weights": hash_of_weights(model).hex()}, file)
    if options.describe and options.backend == "quoit":
        import quoit

        with open(options.describe, "w") as file:
            file.write(json.dumps(quoit.describe(as_dict=True)) if options.describe.endswith(".json") else quoit.describe())


def main():
    options = parse_arguments()
    torch.set_num_threads(1)
    if options.backend == "quoit":
        import quoit  # noqa: F401  registers the backend
    dist.init_process_group(options.backend, timeout=datetime.timedelta(seconds=120))
    rank, size = dist.get_rank(), dist.get_world_size()

    torch.manual_seed(options.seed)
    train_data, test_data = load_data(options.seed)
    sampler = DistributedSampler(train_data, seed=options.seed)
    loader = DataLoader(train_data, batch_size=max(1, options.batch_size // size), sampler=sampler)
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=options.lr)
    done = load_checkpoint(options.checkpoint, model, optimizer)
    parallel = DistributedDataParallel(model)

    losses, accuracies = [], []
    for epoch in range(done, options.epochs):
        sampler.set_epoch(epoch)
        losses.append(train_epoch(parallel, optimizer, loader, f"epoch {epoch + 1}"))
        accuracies.append(evaluate(model, test_data))
        save_checkpoint(options.checkpoint, model, optimizer, epoch + 1)
        if rank == 0:
            print(f"epoch {epoch + 1}/{options.epochs}  train loss {losses[-1]:.4f}  held-out accuracy {accuracies[-1]:.2%}", flush=True)

    assert same_on_every_rank(model), f"rank {rank}: weights differ between ranks"
    if rank == 0:
        print(f"{size} ranks, {options.backend}: weights are the same bits on every rank", flush=True)
        write_reports(options, losses, accuracies, model)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
