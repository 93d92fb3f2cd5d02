"""A Lightning run with validation."""

import logging
import warnings

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Regression(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
        self.criterion = nn.MSELoss()

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, _):
        x, y = batch
        loss = self.criterion(self(x), y)
        print("train", loss.item().hex())
        return loss

    def validation_step(self, batch, _):
        x, y = batch
        print("validation", self.criterion(self(x), y).item().hex())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05)


def main():
    torch.set_num_threads(1)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    lightning.seed_everything(0, verbose=False)
    x = torch.randn(24, 4)
    data = TensorDataset(x, x.sum(1, keepdim=True))
    trainer = lightning.Trainer(
        max_epochs=2,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    )
    trainer.fit(Regression(), DataLoader(data, batch_size=8), DataLoader(data, batch_size=12))


if __name__ == "__main__":
    main()
