"""Trains a compiled model; says how many graphs the compiler made."""

import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
graphs = []


def backend(graph, inputs):
    graphs.append(graph)
    return graph.forward


fast = torch.compile(model, backend=backend, fullgraph=True)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(3):
    loss = fast(torch.randn(16, 4)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item())
print(len(graphs), "graphs")
