"""Troubles people report: memory.

The numbers are those of the list of reported troubles that this library was built against.
"""

import torch
from torch import nn

from hookline.module_hooks import MemoryHook


def test_case_18_memory_per_layer_without_a_device():
    """Outputs, what is kept for the backward (each storage once), parameters and gradients."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.5), nn.Linear(64, 64)).train()
    parameters = {parameter.data_ptr() for parameter in net.parameters()}
    seen, saved, current = {}, {}, [None]

    def pack(tensor):
        storage = tensor.untyped_storage()
        key = storage.data_ptr()
        if key not in parameters and key not in seen:
            seen[key] = storage
            saved[current[0]] = saved.get(current[0], 0) + storage.nbytes()
        return tensor

    handles = [
        module.register_forward_pre_hook(lambda *_, name=name: current.__setitem__(0, name))
        for name, module in net.named_children()
    ]
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        net(torch.randn(32, 64))
    for handle in handles:
        handle.remove()

    with MemoryHook() as memory:
        net(torch.randn(32, 64)).sum().backward()
    rows = {row.path: row for row in memory.rows()}
    assert {path: rows[path].saved_bytes for path in "0123"} == {
        **dict.fromkeys("0123", 0),
        **saved,
    }
    assert rows[""].saved_bytes == sum(saved.values())
    assert [rows[path].output_bytes for path in "0123"] == [32 * 64 * 4] * 4
    assert [rows[path].parameter_bytes for path in "0123"] == [65 * 64 * 4, 0, 0, 65 * 64 * 4]
    assert [rows[path].gradient_bytes for path in "0123"] == [65 * 64 * 4, 0, 0, 65 * 64 * 4]
    assert (rows[""].allocated_bytes is None) is not torch.cuda.is_initialized()
