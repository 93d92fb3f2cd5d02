"""Trains a small model for two steps, then ends in the way that its argument names."""

import sys

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4), nn.ReLU()])
        self.head = nn.Linear(4, 1)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(2):
        loss = net(torch.randn(8, 4)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    net.eval()
    with torch.no_grad():
        print(loss.item(), net(torch.ones(1, 4)).item())


if __name__ == "__main__":
    main()
    if "--fail" in sys.argv:
        raise ValueError("after training")  # noqa: EM101
    if "--interrupt" in sys.argv:
        raise KeyboardInterrupt
    sys.exit(3)
