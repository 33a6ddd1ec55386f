#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The digits of ddp_digits.py, trained with Ray Train on CPUs, over Quoit.

    python examples/digits_ray.py

Ray starts the ranks as actors, here on this machine; on a cluster of several, ray.init(address="auto") and the rest as it is.
"""
import argparse
import os

import ray
import ray.train
import ray.train.torch
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.utils.data import DataLoader

from ddp_digits import Net, evaluate, load_data, same_on_every_rank


def train(options):
    """What each rank runs; Ray has made the process group."""
    torch.set_num_threads(1)
    torch.manual_seed(7)
    train_data, test_data = load_data(7)
    loader = DataLoader(train_data, batch_size=64 // dist.get_world_size(), shuffle=True)
    loader = ray.train.torch.prepare_data_loader(loader)
    model = ray.train.torch.prepare_model(Net())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.008)
    for epoch in range(options["epochs"]):
        loader.sampler.set_epoch(epoch)
        model.train()
        for pixels, labels in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(pixels), labels)
            loss.backward()
            optimizer.step()
        accuracy = evaluate(model, test_data)
        if dist.get_rank() == 0:
            print(f"epoch {epoch + 1}/{options['epochs']}  last loss {loss:.4f}  held-out accuracy {accuracy:.2%}", flush=True)
    assert same_on_every_rank(model.module), f"rank {dist.get_rank()}: weights differ between ranks"
    if dist.get_rank() == 0:
        print(f"{dist.get_world_size()} ranks, {dist.get_backend()}: weights are the same bits on every rank", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="quoit")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--ranks", type=int, default=2)
    options = parser.parse_args()

    here = os.path.dirname(os.path.abspath(__file__))
    ray.init(num_cpus=options.ranks, runtime_env={"working_dir": here})
    trainer = ray.train.torch.TorchTrainer(
        train,
        train_loop_config={"epochs": options.epochs},
        torch_config=ray.train.torch.TorchConfig(backend=options.backend),
        scaling_config=ray.train.ScalingConfig(num_workers=options.ranks),
    )
    trainer.fit()


if __name__ == "__main__":
    main()
