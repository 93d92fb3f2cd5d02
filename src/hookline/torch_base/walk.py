"""The autograd nodes that a backward run will execute, found by one walk over the graph."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor
from torch.autograd.graph import Node, get_gradient_edge

from hookline.torch_base.private import MARKS, NO_SEQUENCE, node_metadata, node_number

if TYPE_CHECKING:
    from hookline.torch_base.marks import Mark


class Visit(NamedTuple):
    """A node that will run.

    Attributes:
        number: its sequence number; a thread's nodes run in descending order.
        node: the node.
        marks: what calls left on it.
        thread: the number of the thread that made it, as far as marks tell, else None.
    """

    number: int
    node: Node
    marks: Sequence[Mark]
    thread: int | None


def visits(outputs: Iterable[Any], inputs: Iterable[Any] | None) -> list[Visit]:
    """The nodes that a run from `outputs` executes.

    Args:
        outputs: the tensors or gradient edges that the run starts from.
        inputs: the tensors or edges whose gradients are asked for; None for all leaves. Then
            only nodes on the way to one of them run.
    """
    start = [node for node in map(_node_of, outputs) if node is not None]
    targets = {_edge_node(each) for each in inputs} if inputs else None
    wanted = None if targets is None else _leading_to(targets, start)
    found: list[Visit] = []
    seen: set[Node] = set()
    todo: list[tuple[Node, int | None]] = [(node, None) for node in start]
    while todo:
        node, thread = todo.pop()
        if node in seen or (wanted is not None and node not in wanted):
            continue
        seen.add(node)
        number = node_number(node)
        if number >= NO_SEQUENCE:
            continue
        marks = node_metadata(node).get(MARKS, ())
        if marks:
            thread = marks[0].call.thread
        found.append(Visit(number, node, marks, thread))
        for following, _ in node.next_functions:
            if following is not None:
                todo.append((following, thread))
    return found


def _node_of(output: Any) -> Node | None:
    return output.grad_fn if isinstance(output, Tensor) else output.node


def _edge_node(target: Any) -> Node | None:
    if isinstance(target, Tensor):
        return get_gradient_edge(target).node if target.requires_grad else None
    return target.node


def _leading_to(targets: set[Node | None], start: Iterable[Node]) -> set[Node]:
    """The nodes from which a target can be reached over at least one edge."""
    leading: set[Node] = set()
    done: set[Node] = set()
    todo = [(node, False) for node in start]
    while todo:
        node, visited = todo.pop()
        following = [n for n, _ in node.next_functions if n is not None]
        if visited:
            if any(n in targets or n in leading for n in following):
                leading.add(node)
        elif node not in done:
            done.add(node)
            todo.append((node, True))
            todo.extend((n, False) for n in following if n not in done)
    return leading
