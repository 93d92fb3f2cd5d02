"""Training on data that forked and spawned workers make with a model of their own."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Augment(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(4, 4)

    def forward(self, x):
        return self.mix(x).detach()


class Data(Dataset):
    def __init__(self):
        self.augment = Augment()

    def __len__(self):
        return 12

    def __getitem__(self, place):
        return self.augment(torch.full((4,), place / 12))


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    data, model = Data(), nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for method in ("fork", "spawn"):
        loader = DataLoader(data, batch_size=4, num_workers=1, multiprocessing_context=method)
        for batch in loader:
            optimizer.zero_grad()
            loss = model(batch).square().mean()
            loss.backward()
            optimizer.step()
            print(method, loss.item().hex())


if __name__ == "__main__":
    main()
