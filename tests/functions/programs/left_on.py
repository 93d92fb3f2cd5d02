"""Ends with hooks of every kind still on."""

import torch
from torch import nn

import hookline
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
hooks.add_forward_hook(lambda inputs, output: None)
handle = hookline.register_full_backward_hook(model[0], lambda module, grad_in, grad_out: None)
hookline.add_hook(model[1], Modules())
node = hookline.FunctionNode(torch.tanh)
node.add_hook(Functions())
recorder = Recorder(time=True, level="both")
recorder.__enter__()
Functions().renamed("scope").__enter__()
node(layer(model(torch.ones(1, 2)))).sum().backward()
print("done")
