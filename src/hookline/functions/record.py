"""What a function call leaves behind for its backward: marks on the nodes of its outputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from weakref import ref

import torch
from torch import Tensor

from hookline.core.entry import Lineup
from hookline.functions.call import FunctionCall
from hookline.functions.naming import writes
from hookline.torch_base.marks import Role, mark
from hookline.torch_base.private import node_number, sequence_number, torch_function_off
from hookline.torch_base.tree import tensors


def mark_function(call: FunctionCall, in_data: Sequence[Tensor], lineup: Lineup) -> None:
    """Note the outputs of a call that has run, and mark the nodes that make them.

    Args:
        call: the call; its `out` is set.
        in_data: its input tensors.
        lineup: its hooks.
    """
    outputs = call.outputs = tuple(_outputs(call))
    call.count = len(outputs)
    # Views make their nodes when they are asked for, so ask before the range is closed.
    nodes = [tensor.grad_fn for tensor in outputs]
    call.stop = sequence_number()
    if call.stop == call.start or not lineup.watches_backward:
        return
    keep = lineup.retains
    call.inputs = tuple([t.detach() if keep else ref(t) for t in in_data])
    seen: set[tuple[int, int]] = set()
    for place, (tensor, node) in enumerate(zip(outputs, nodes, strict=True)):
        if node is None:
            continue
        if writes(call.name) and tensor._is_view():  # noqa: SLF001 - torch documents it
            _mark_base(tensor, call, place)
        elif node_number(node) >= call.start and (id(node), tensor.output_nr) not in seen:
            seen.add((id(node), tensor.output_nr))
            mark(node, tensor, call, Role.OUTPUT, place)


def _outputs(call: FunctionCall) -> list[Tensor]:
    """What the call returned; of one that only writes, what it wrote into."""
    if call.out is None:
        written = call.kwargs.get("out")
        if written is None and call.args and writes(call.name):
            written = call.args[0]
        return tensors(written)
    return [call.out] if isinstance(call.out, Tensor) else tensors(call.out)


def _mark_base(view: Tensor, call: FunctionCall, place: int) -> None:
    """Mark where the gradient of a view that was written into comes from: its base."""
    base = view._base  # noqa: SLF001 - torch documents it
    if base is None or base.grad_fn is None or node_number(base.grad_fn) < call.start:
        return
    mark(base.grad_fn, base, call, Role.OUTPUT_PART, place, _cutter(base, view))


def _cutter(base: Tensor, view: Tensor) -> Callable[[Tensor], Tensor]:
    """What cuts a view's part out of the gradient of its base."""
    shape, strides = base.size(), base.stride()
    size, stride = view.size(), view.stride()
    offset = view.storage_offset() - base.storage_offset()

    def cut(gradient: Tensor) -> Tensor:
        with torch_function_off():
            whole = gradient.detach()
            if whole.stride() != strides:
                whole = torch.empty_strided(
                    shape, strides, dtype=gradient.dtype, device=gradient.device
                ).copy_(whole)
            return whole.as_strided(size, stride, whole.storage_offset() + offset)

    return cut
