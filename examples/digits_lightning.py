#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The digits of ddp_digits.py, trained with PyTorch Lightning on CPUs, over Quoit.

    python examples/digits_lightning.py

Lightning starts the other ranks itself; under torchrun it joins those that are there.
"""
import argparse

import lightning
import torch
import torch.distributed as dist
import torch.nn.functional as F
from lightning.pytorch.strategies import DDPStrategy
from torch.utils.data import DataLoader

from ddp_digits import Net, load_data, same_on_every_rank


class Digits(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = Net()

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.008)

    def training_step(self, batch, _):
        pixels, labels = batch
        loss = F.cross_entropy(self.net(pixels), labels)
        self.log("loss", loss, on_step=False, on_epoch=True, sync_dist=True)
        return loss

    def validation_step(self, batch, _):
        pixels, labels = batch
        right = (self.net(pixels).argmax(1) == labels).float().mean()
        self.log("accuracy", right, batch_size=len(labels), sync_dist=True)

    def on_train_epoch_end(self):
        seen = self.trainer.callback_metrics
        text = f"epoch {self.current_epoch + 1}/{self.trainer.max_epochs}  train loss {seen['loss']:.4f}"
        self.print(f"{text}  held-out accuracy {seen['accuracy']:.2%}", flush=True)

    def on_train_end(self):
        assert same_on_every_rank(self.net), f"rank {self.global_rank}: weights differ between ranks"
        self.print(f"{self.trainer.world_size} ranks, {dist.get_backend()}: weights are the same bits on every rank", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="quoit")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--ranks", type=int, default=2, help="on this host")
    options = parser.parse_args()

    torch.set_num_threads(1)
    lightning.seed_everything(7)
    train_data, test_data = load_data(7)
    trainer = lightning.Trainer(
        accelerator="cpu", devices=options.ranks, max_epochs=options.epochs,
        strategy=DDPStrategy(process_group_backend=options.backend),
        logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )
    trainer.fit(Digits(), DataLoader(train_data, batch_size=64 // options.ranks, shuffle=True), DataLoader(test_data, batch_size=64))


if __name__ == "__main__":
    main()
