"""What a call leaves behind for its backward: marks on autograd nodes, and aliases where needed.

Watching needs no tensor of its own: the node that makes an output is marked. Only where a
gradient would not be the call's alone does a native view (`view_as`, on which in-place operations
stay legal) stand in for a tensor:

* an output that is an input, a leaf or older than the call: its node belongs to others;
* the inputs, for hooks that ask for their gradients;
* several outputs, for hooks that change all their gradients jointly.

A tensor that came in a dict, list or the like and goes out in one stays as it is, and unmarked:
the program may go on with the container that it gave, which must not be exchanged for another. So
does a tensor of a kind that has no views, such as a sparse one.

The program's own containers, too, are what the layer gets: views of inputs stand in them while it
runs, and no longer. So what a layer does to a list or dict is done to that of its caller.

The latter two take two views in a row. Gradients are collected at the one nearer to the call and
handed on at the other; the engine runs all of the former before any of the latter, so a hook gets
all gradients before one of them flows on. A single input needs but one view: its gradient is the
last thing that a call's backward makes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch
from torch import Tensor

from hookline.core.entry import Pairs
from hookline.core.events import fire
from hookline.core.phases import FORWARD
from hookline.core.thread import Thread, local
from hookline.torch_base.marks import (
    INPUT,
    INPUT_PASSED,
    INPUT_SEEN,
    OUTPUT,
    OUTPUT_PASSED,
    OUTPUT_SEEN,
    Role,
    mark,
)
from hookline.torch_base.outline import Outline
from hookline.torch_base.private import ALIAS, node_metadata, node_number, sequence_number
from hookline.torch_base.readable import has_views, version_of
from hookline.torch_base.tree import Tree, map_tensors, put_back, tensors

if TYPE_CHECKING:
    from hookline.modules.call import ModuleCall


_ONE_TENSOR: Final = Outline.of_tensors(1)


class Isolated(NamedTuple):
    """What stands in for the inputs of a call while its layer runs.

    Attributes:
        views: the views that the layer gets, each with what it stands for and its version.
        containers: the caller's containers, in which some of them may stand.
        made: containers made for those that cannot be changed, each with what it stands for.
    """

    views: list[tuple[Tensor, Tensor, int | None]]
    containers: list[object]
    made: list[tuple[object, object]]


def isolate_inputs(call: ModuleCall) -> Isolated:
    """Let the call's gradients of its inputs be seen and replaced."""
    plain = not call.kwargs and all(type(value) is Tensor for value in call.args)
    if not plain:
        call.kwargs = dict(call.kwargs)  # it is written into, and may be a hook's own
    tree = None if plain else Tree.of((call.args, call.kwargs))
    tensors = call.args if tree is None else tree.tensors
    call.inputs_outline = Outline.of_positional(len(tensors)) if tree is None else Outline.of(tree)
    grad = torch.is_grad_enabled()
    outer = [_alias(t) if grad and t.requires_grad and has_views(t) else None for t in tensors]
    alone = plain and sum(view is not None for view in outer) == 1  # `==` compares values
    # From here on nodes are the call's; the outer views come before.
    call.start = sequence_number()
    new: list[Tensor] = []
    isolated = Isolated([], [] if tree is None else _given(tree, call), [])
    for place, (tensor, view) in enumerate(zip(tensors, outer, strict=True)):
        if view is None:
            new.append(tensor)
            continue
        if alone:
            inner = view
            _mark(view, call, INPUT, place)
        else:
            inner = _alias(view)
            _mark(view, call, INPUT_PASSED, place)
            _mark(inner, call, INPUT_SEEN, place)
        new.append(inner)
        isolated.views.append((inner, tensor, version_of(tensor)))
    if tree is None:
        call.args = tuple(new)
    else:
        try:
            call.args, call.kwargs = tree.put(new, isolated.made)
        except BaseException:
            clear(isolated)
            raise
    return isolated


def clear(isolated: Isolated) -> None:
    """Put the caller's tensors back into its containers; where the layer raised, too."""
    if isolated.views and isolated.containers:
        stood_for: dict[int, object] = {id(view): tensor for view, tensor, _ in isolated.views}
        stood_for.update((id(made), container) for made, container in isolated.made)
        put_back(isolated.containers, stood_for)


def give_back(out: Any, isolated: Isolated) -> Any:
    """The output with an input that was changed in place in the place of its view.

    The node of a view is lost when the tensor is changed once more; that of the tensor itself,
    which the view has changed too, is not.
    """
    changed = {
        id(view): tensor
        for view, tensor, version in isolated.views
        if version_of(tensor) != version
    }
    if not changed:
        return out
    return map_tensors(lambda tensor: changed.get(id(tensor), tensor), out)


def record_output(pairs: Pairs, call: ModuleCall, thread: Thread, *, joint: bool) -> None:
    """Fire the ends and leave marks for the backward; hooks see the object that is returned.

    Args:
        pairs: the hooks of the end.
        call: the call, with its output.
        thread: the thread's state.
        joint: whether the gradients of several outputs are to be changed together.
    """
    out = call.out
    if not isinstance(out, Tensor):
        _record_structure(pairs, call, thread, joint=joint)
        return
    # What most calls return: its node is looked up once, and again where a hook changed something.
    node, needed = out.grad_fn, out.requires_grad
    if needed and (node is None or node_number(node) < call.start):
        node = None
        if has_views(out):
            out = call.out = _alias(out)
            node = out.grad_fn
    if pairs:
        fire(pairs, call, None, FORWARD, thread)
        if call.out is not out or out.requires_grad is not needed or out.grad_fn is not node:
            record_output((), call, thread, joint=joint)
            return
    call.outputs_outline = _ONE_TENSOR
    if node is not None:
        mark(node, out, call, OUTPUT, 0)


def _record_structure(pairs: Pairs, call: ModuleCall, thread: Thread, *, joint: bool) -> None:
    call.out, passed = _isolate(call, call.out, joint=joint)
    if pairs:
        isolated = call.out
        fire(pairs, call, None, FORWARD, thread)
        if call.out is not isolated:
            record_output((), call, thread, joint=joint)
            return
    _mark_structure(call, call.out, passed)


def _isolate(call: ModuleCall, out: Any, *, joint: bool) -> tuple[Any, list[Tensor] | None]:
    """Alias outputs whose gradients would not be the call's alone.

    Args:
        call: the call.
        out: its output.
        joint: whether the gradients of several outputs are to be changed together.

    Returns:
        The output, and, where gradients are handed on at a second view, those by place.
    """
    tree = Tree.of(out)
    watched = [t for t in tree.tensors if t.requires_grad]
    foreign = {id(t) for t in watched if _is_foreign(t, call)}
    kept = foreign & _given_in_containers(call) if foreign else foreign
    fixed = {id(t) for t in watched if not has_views(t)}
    kept |= foreign & fixed
    together = joint and not kept and not fixed and len(watched) > 1
    together = together and not _holds_given(tree, call)
    near = [
        _alias(t) if t.requires_grad and (together or id(t) in foreign - kept) else t
        for t in tree.tensors
    ]
    if not together:
        return tree.rebuild(near), None
    return tree.rebuild([_alias(t) if t.requires_grad else t for t in near]), near


def _mark_structure(call: ModuleCall, out: Any, passed: list[Tensor] | None) -> None:
    """Mark the nodes that make the outputs, so that the call's backward is seen.

    Args:
        call: the call.
        out: its output, isolated.
        passed: what `_isolate` gave beside it.
    """
    tree = Tree.of(out)
    call.outputs_outline = Outline.of(tree)
    seen: set[tuple[int, int]] = set()
    for place, tensor in enumerate(tree.tensors):
        # One tensor that is there twice has one gradient: that of its first place.
        edge = (id(tensor.grad_fn), tensor.output_nr)
        if tensor.requires_grad and edge not in seen and not _is_foreign(tensor, call):
            seen.add(edge)
            if passed is not None:
                _mark(passed[place], call, OUTPUT_PASSED, place)
            _mark(tensor, call, OUTPUT if passed is None else OUTPUT_SEEN, place)


def _mark(tensor: Tensor, call: ModuleCall, role: Role, place: int) -> None:
    node = tensor.grad_fn
    if node is not None:
        mark(node, tensor, call, role, place)


def _given(tree: Tree, call: ModuleCall) -> list[object]:
    """The caller's containers in the inputs: not that which holds the call's keyword arguments."""
    return [container for container in tree.changeable() if container is not call.kwargs]


def _holds_given(out: Tree, call: ModuleCall) -> bool:
    """Whether the output holds a container of the caller's: it must not become another object."""
    returned = set(map(id, out.changeable()))
    if not returned:
        return False
    inputs = Tree.of((call.args, call.kwargs))
    return not returned.isdisjoint(map(id, _given(inputs, call)))


def _given_in_containers(call: ModuleCall) -> set[int]:
    values = (*call.args, *call.kwargs.values())
    containers = [value for value in values if not isinstance(value, Tensor | tuple)]
    return {id(tensor) for tensor in tensors(containers)}


def _is_foreign(tensor: Tensor, call: ModuleCall) -> bool:
    """Whether the node that makes a tensor, if any, is none of the call's."""
    node = tensor.grad_fn
    return node is None or node_number(node) < call.start


def _alias(tensor: Tensor) -> Tensor:
    thread = local.thread
    hidden, thread.hidden = thread.hidden, True  # it is no function of the program's
    try:
        view = tensor.view_as(tensor)
    finally:
        thread.hidden = hidden
    if view.grad_fn is not None:
        node_metadata(view.grad_fn)[ALIAS] = tensor.is_leaf
    return view
