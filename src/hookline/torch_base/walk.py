"""The autograd nodes that a backward run will execute, found by one walk over the graph."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

from torch import Tensor
from torch.autograd.graph import Node

from hookline.torch_base.marks import Mark
from hookline.torch_base.private import LEAF_NODE, MARKS, NO_SEQUENCE, node_metadata, node_number

Visit: TypeAlias = tuple[int, Node, Sequence[Mark], int | None]
"""A node that will run: its sequence number, the node, what calls left on it, and the number of
the thread that made it, as far as marks tell. A thread's nodes run in descending order."""


def visits(outputs: Iterable[Any], inputs: Sequence[Any] | None) -> list[Visit]:
    """The nodes that a run from `outputs` executes.

    Args:
        outputs: the tensors or gradient edges that the run starts from.
        inputs: the tensors or edges whose gradients are asked for; None for all leaves. Then
            only nodes on the way to one of them run.
    """
    start = [node for node in map(_node_of, outputs) if node is not None]
    wanted = _leading_to(_Targets(inputs), start) if inputs else None
    found: list[Visit] = []
    seen: set[Node] = set()
    pending: list[tuple[Node, int | None]] = [(node, None) for node in start]
    while pending:
        node, thread = pending.pop()
        if node in seen or (wanted is not None and node not in wanted):
            continue
        seen.add(node)
        number = node_number(node)
        if number >= NO_SEQUENCE:
            continue
        marks = node_metadata(node).get(MARKS, ())
        if marks:
            thread = marks[0].call.thread
        found.append((number, node, marks, thread))
        for following, _ in node.next_functions:
            if following is not None and type(following) is not LEAF_NODE:
                pending.append((following, thread))
    return found


def _node_of(output: Any) -> Node | None:
    return output.grad_fn if isinstance(output, Tensor) else output.node


class _Targets:
    """What gradients are asked for: nodes, and leaves by the nodes that accumulate theirs.

    `get_gradient_edge` would find no node for a leaf of another level of `torch.func`.
    """

    def __init__(self, inputs: Sequence[Any]) -> None:
        self._nodes = {_node_of(each) for each in inputs}
        self._leaves = {id(each) for each in inputs if isinstance(each, Tensor) and each.is_leaf}

    def __contains__(self, node: Any) -> bool:
        if node_number(node) < NO_SEQUENCE:
            return node in self._nodes
        return node in self._nodes or id(node.variable) in self._leaves


def _leading_to(targets: _Targets, start: Iterable[Node]) -> set[Node]:
    """The nodes from which a target can be reached over at least one edge."""
    leading: set[Node] = set()
    done: set[Node] = set()
    pending = [(node, False) for node in start]
    while pending:
        node, visited = pending.pop()
        following = [n for n, _ in node.next_functions if n is not None]
        if visited:
            if any(n in targets or n in leading for n in following):
                leading.add(node)
        elif node not in done:
            done.add(node)
            pending.append((node, True))
            pending.extend((n, False) for n in following if n not in done)
    return leading
