"""Trains a small model with DDP in several processes; its argument says what becomes of rank 1."""

import os
import signal
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

FATE = sys.argv[1] if len(sys.argv) > 1 else ""


class Body(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        if FATE == "slow" and dist.get_rank() == 1:
            time.sleep(0.02)
        return self.linear(x)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = Body(), nn.Linear(4, 1)

    def forward(self, x):
        return self.head(self.body(x).relu())


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    net = DistributedDataParallel(Net())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for number in range(30):
        x = torch.randn(8, 4)
        if FATE == "slow" and number == 29 and dist.get_rank() == 1:
            x[0, 0] = torch.nan
        if FATE == "die" and number == 3 and dist.get_rank() == 1:
            time.sleep(1.5)  # so that something is in its file
            os.kill(os.getpid(), signal.SIGKILL)
        loss = net(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
