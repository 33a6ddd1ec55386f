#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The digits of ddp_digits.py, trained with Hugging Face Accelerate on CPUs, over Quoit.

    accelerate launch --multi_gpu --num_processes 2 examples/digits_accelerate.py

Accelerate has no way to name a backend for CPUs: it takes the process group that is there when Accelerator() is made. The
flag --multi_gpu means "start the processes as torchrun does"; with --cpu, Accelerate starts one process only. torchrun works too.
"""
import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader

from ddp_digits import Net, load_data, same_on_every_rank


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="quoit")
    parser.add_argument("--epochs", type=int, default=8)
    options = parser.parse_args()

    torch.set_num_threads(1)
    dist.init_process_group(options.backend)
    accelerator = Accelerator(cpu=True)
    set_seed(7)
    train_data, test_data = load_data(7)
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.008)
    train, test = DataLoader(train_data, batch_size=64 // accelerator.num_processes, shuffle=True), DataLoader(test_data, batch_size=64)
    model, optimizer, train, test = accelerator.prepare(model, optimizer, train, test)

    for epoch in range(options.epochs):
        model.train()
        for pixels, labels in train:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(pixels), labels)
            accelerator.backward(loss)
            optimizer.step()

        model.eval()
        right = count = 0
        for pixels, labels in test:
            with torch.no_grad():
                guesses = model(pixels).argmax(1)
            guesses, labels = accelerator.gather_for_metrics((guesses, labels))  # without what fills the last batch up
            right, count = right + (guesses == labels).sum().item(), count + len(labels)
        assert count == len(test_data), f"{count} digits judged of {len(test_data)}"
        mean_loss = accelerator.reduce(loss.detach(), "mean").item()
        accelerator.print(f"epoch {epoch + 1}/{options.epochs}  last loss {mean_loss:.4f}  held-out accuracy {right / count:.2%}", flush=True)

    assert same_on_every_rank(accelerator.unwrap_model(model)), f"rank {accelerator.process_index}: weights differ between ranks"
    accelerator.print(f"{accelerator.num_processes} ranks, {dist.get_backend()}: weights are the same bits on every rank")
    accelerator.end_training()  # destroys the process group


if __name__ == "__main__":
    main()
