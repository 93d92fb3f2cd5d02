"""Runs backwards inside each other, deeper than autograd goes in one thread, under a hook."""

import os
import sys
import threading
import warnings
from collections import Counter

import torch
from torch.utils.checkpoint import checkpoint

import hookline

torch.set_num_threads(1)
warnings.filterwarnings("ignore", "None of the inputs have requires_grad=True")


def nested(x, depth):
    """Multiply by 1.5; each level inside is in a reentrant checkpoint of its own."""
    if not depth:
        return x * 1.5
    return checkpoint(nested, x.neg(), depth - 1, use_reentrant=True)


class Log(hookline.FunctionHook):
    def __init__(self):
        self.begun = []
        self.ended = []
        self.again = []
        self.threads = set()

    def forward_preprocess(self, function, in_data):
        if function.recomputing:
            self.again.append(function)

    def backward_preprocess(self, function, in_data, out_grad):
        self.begun.append(function)
        self.threads.add(threading.get_ident())

    def backward_postprocess(self, function, in_data, out_grad):
        self.ended.append(function)


depth = int(sys.argv[1])
x = torch.tensor(1.0, requires_grad=True)
with Log() as log:
    nested(x, depth).backward()

names = Counter(function.name for function in log.begun)
print("seen in more than one thread:", len(log.threads) > 1)
print("backwards:", dict(sorted(names.items())))
print("each begin has its end:", Counter(map(id, log.begun)) == Counter(map(id, log.ended)))
print("repeated in forward:", sorted({function.name for function in log.again}))
print("gradient right:", x.grad.item() == 1.5 * (-1) ** depth)
print("modes left:", torch._C._len_torch_function_stack())
sys.stdout.flush()
os._exit(0)  # autograd's threads may hang when the interpreter is taken down
