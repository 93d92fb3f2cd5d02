"""Ends with hooks still on, of the kinds that its arguments name."""

import sys

import torch
from torch import nn

import hookline
from hookline.record.measures import Measures
from hookline.record.run import Recorder

torch.set_num_threads(1)


class Functions(hookline.FunctionHook):
    def backward_preprocess(self, function, in_data, out_grad):
        pass


class Modules(hookline.ModuleHook):
    def backward_preprocess(self, call):
        pass


model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
layer, hooks = hookline.with_hooks(nn.Linear(2, 2))
node = hookline.FunctionNode(torch.tanh)
if "registered" in sys.argv:
    hooks.add_forward_hook(lambda inputs, output: None)
    handle = hookline.register_full_backward_hook(model[0], lambda module, grad_in, grad_out: None)
    hookline.add_hook(model[1], Modules())
    node.add_hook(Functions())
if "everywhere" in sys.argv:
    recorder = Recorder(Measures(time=True, level="both"))
    recorder.__enter__()
if "modules" in sys.argv:
    Modules().__enter__()
if "functions" in sys.argv:
    Functions().__enter__()
node(layer(model(torch.ones(1, 2)))).sum().backward()
print("done")
