"""Calls functions in a thread, in forked workers, and under a hook of its own."""

import threading

import torch
from torch.utils.data import DataLoader, Dataset

import hookline


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


class Squares(Dataset):
    def __len__(self):
        return 3

    def __getitem__(self, index):
        return torch.square(torch.tensor(float(index)))


def work():
    x = torch.ones(2, requires_grad=True)
    Double.apply(x).sum().backward()
    print(x.grad.tolist())


if __name__ == "__main__":
    torch.set_num_threads(1)
    work()
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    with hookline.TimerHook() as timer:
        torch.tanh(torch.ones(2))
    print([name for name, _ in timer.call_history])
    loader = DataLoader(Squares(), num_workers=2, multiprocessing_context="fork")
    print([square.item() for square in loader])
