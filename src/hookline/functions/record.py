"""What a function call leaves behind for its backward: marks on the nodes of its outputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from weakref import ref

from torch import Tensor

from hookline.functions.call import FunctionCall
from hookline.functions.naming import writes
from hookline.torch_base.gradients import Part
from hookline.torch_base.marks import OUTPUT, OUTPUT_PART, mark
from hookline.torch_base.private import (
    mode_count,
    node_number,
    sequence_number,
    torch_function_off,
)
from hookline.torch_base.tree import tensors


def note_outputs(call: FunctionCall) -> None:
    """Note what a call that has run returned, or what one that only writes wrote into."""
    out = call.out
    if type(out) is Tensor or isinstance(out, Tensor):
        call.outputs = (out,)
        return
    if out is None:
        out = call.kwargs.get("out")
        if out is None and call.args and writes(call.name):
            out = call.args[0]
    call.outputs = tuple(tensors(out))


def mark_outputs(call: FunctionCall, in_data: Sequence[Tensor], *, keep: bool) -> None:
    """Mark the nodes that make a call's outputs, so that its backward is seen.

    Args:
        call: the call; its outputs are noted.
        in_data: its input tensors.
        keep: whether a hook wants them kept for the backward.
    """
    outputs = call.outputs or ()
    call.count = len(outputs)
    if len(outputs) == 1 and type(outputs[0]) is Tensor and not mode_count():
        _mark_node(call, outputs[0], 0, in_data)
    else:
        with torch_function_off():  # modes and tensor classes of others see nothing of this
            _mark_nodes(call, outputs, in_data)
    # Weak, since an input may lead back to the node that holds the call.
    call.inputs = tuple(map(_held if keep else ref, in_data))


def _held(tensor: Tensor) -> Callable[[], Tensor]:
    detached = tensor.detach()
    return lambda: detached


def _mark_nodes(call: FunctionCall, outputs: Sequence[Tensor], in_data: Sequence[Tensor]) -> None:
    edges: set[tuple[int, int]] = set()
    # Views make their nodes when they are asked for, so ask for all before the range is closed.
    nodes = [tensor.grad_fn for tensor in outputs]
    call.stop = sequence_number()
    for place, tensor in enumerate(outputs):
        edge = (id(nodes[place]), tensor.output_nr)
        if edge not in edges:  # one tensor that is there twice has one gradient
            edges.add(edge)
            _mark_node(call, tensor, place, in_data)


def _mark_node(call: FunctionCall, tensor: Tensor, place: int, in_data: Sequence[Tensor]) -> None:
    # A view makes its node when it is asked for, so ask before the range is closed.
    node = tensor.grad_fn
    start, call.stop = call.start, sequence_number()
    if node is None or call.stop == start:
        return
    if tensor._is_view() and any(tensor is t for t in in_data):  # noqa: SLF001 - documented
        _mark_base(tensor, call, place)
    if node_number(node) >= start:
        mark(node, tensor, call, OUTPUT, place)


def _mark_base(view: Tensor, call: FunctionCall, place: int) -> None:
    """Mark where the gradient of a view that was written into comes from, besides its own node."""
    base = view._base  # noqa: SLF001 - torch documents it
    if base is None or base.grad_fn is None or node_number(base.grad_fn) < call.start:
        return
    mark(base.grad_fn, base, call, OUTPUT_PART, place, Part(base, view))
