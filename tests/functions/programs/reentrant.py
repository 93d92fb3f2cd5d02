"""Runs backwards inside each other, deeper than autograd goes in one thread, under a hook."""

import os
import sys
import threading
from collections import Counter

import torch

import hookline

torch.set_num_threads(1)


class Again(torch.autograd.Function):
    """Its backward runs a backward of another one like it, `depth` times."""

    @staticmethod
    def forward(ctx, x, depth):
        ctx.depth = depth
        ctx.save_for_backward(x)
        return x * 1.5

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        if ctx.depth:
            with torch.enable_grad():
                inner = x.detach().requires_grad_()
                Again.apply(inner, ctx.depth - 1).backward(gradient)
            return inner.grad, None
        return gradient * 1.5, None


class Log(hookline.FunctionHook):
    def __init__(self):
        self.events = []
        self.threads = set()

    def backward_preprocess(self, function, in_data, out_grad):
        self.events.append(("begin", function))
        self.threads.add(threading.get_ident())

    def backward_postprocess(self, function, in_data, out_grad):
        self.events.append(("end", function))


depth = int(sys.argv[1])
x = torch.tensor(1.0, requires_grad=True)
with Log() as log:
    Again.apply(x, depth).backward()

counts = Counter(what for what, function in log.events if function.name == "Again")
begun = [function for what, function in log.events if what == "begin"]
ended = [function for what, function in log.events if what == "end"]
print("seen in more than one thread:", len(log.threads) > 1)
print("backwards of Again:", counts["begin"])
print("each begin has its end:", Counter(map(id, begun)) == Counter(map(id, ended)))
print("gradient right:", x.grad.item() == 1.5)
print("modes left:", torch._C._len_torch_function_stack())
sys.stdout.flush()
os._exit(0)  # autograd's threads may hang when the interpreter is taken down
