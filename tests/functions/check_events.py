"""What must hold of the events of any scenario, each told in a second way.

The gradient of an output is that of its edge in the graph, by plain autograd; hooks of the
checker's own on the autograd nodes tell when each node ran.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge

from hookline import FunctionHook
from tests.functions.scenario import Scenario, differentiable, same

_LEAF_NUMBER = 2**64 - 1
"""The sequence number of nodes that accumulate the gradients of leaves: they are no function's."""


@dataclass(eq=False)
class Noted:
    """What the checker notes of one function call."""

    function: Any
    in_data: tuple[Any, ...] = ()
    start: int = 0
    stop: int = 0
    edges: list[GradientEdge | None] = field(default_factory=list)
    nodes: set[Any] = field(default_factory=set)
    cuts: list[Tensor | None] = field(default_factory=list)
    at_pre: list[tuple[Tensor | None, ...]] = field(default_factory=list)
    at_post: list[tuple[Tensor | None, ...]] = field(default_factory=list)

    def covers(self, number: int) -> bool:
        """Whether a node of this number is the function's."""
        return self.start <= number < self.stop


class Notes(FunctionHook):
    """Notes every event, and every autograd node that runs, in one list."""

    def __init__(self) -> None:
        self.log: list[tuple[str, Any]] = []
        self.calls: list[Noted] = []
        self.watched: set[Any] = set()

    def forward_preprocess(self, function, in_data):
        noted = function.noted = Noted(function, in_data)
        self.calls.append(noted)
        self.log.append(("forward_pre", noted))
        noted.start = _next_number()

    def forward_postprocess(self, function, in_data):
        noted = function.noted
        assert [id(t) for t in in_data] == [id(t) for t in noted.in_data]
        for tensor in function.outputs:
            edge, cut = _edge_of(tensor, in_data)
            mine = edge is not None and noted.start <= edge.node._sequence_nr() < _LEAF_NUMBER
            noted.edges.append(edge if mine else None)
            noted.cuts.append(cut)
            if mine:
                noted.nodes |= {edge.node, tensor.grad_fn}
        noted.stop = _next_number()
        self.watch(list(noted.nodes), noted.start)
        self.log.append(("forward", noted))

    def backward_preprocess(self, function, in_data, out_grad):
        if not hasattr(function, "noted"):
            function.noted = Noted(function, start=function.start, stop=function.stop)
        noted = function.noted
        assert [id(t) for t in in_data] == [id(t) for t in noted.in_data]
        noted.at_pre.append(tuple(None if g is None else g.detach().clone() for g in out_grad))
        self.log.append(("backward_pre", noted))

    def backward_postprocess(self, function, in_data, out_grad):
        noted = function.noted
        assert [id(t) for t in in_data] == [id(t) for t in noted.in_data]
        noted.at_post.append(tuple(None if g is None else g.detach().clone() for g in out_grad))
        self.log.append(("backward", noted))

    def aborted(self, function, exception):
        # Control flow: a checkpoint stops repeating where it has all that it needs.
        assert type(exception).__name__ == "_StopRecomputationError"
        self.log.append(("forward", function.noted))

    def watch(self, nodes: list[Any], start: int = 0) -> None:
        """Have each node from here on note that it ran, if its number is not below `start`."""
        todo, seen = [node for node in nodes if node is not None], set()
        while todo:
            node = todo.pop()
            number = node._sequence_nr()
            if node in seen or not start <= number < _LEAF_NUMBER:
                continue
            seen.add(node)
            if node not in self.watched and "CheckpointFunction" not in node.name():
                node.register_hook(lambda *_, number=number: self.log.append(("node", number)))
            todo += [following for following, _ in node.next_functions if following is not None]
        self.watched |= seen


def _next_number() -> int:
    return torch._C._autograd._get_sequence_nr()


def _edge_of(tensor: Tensor, in_data: Sequence[Any]) -> tuple[GradientEdge | None, Tensor | None]:
    """Where the gradient of an output comes from; of a view written into, its base and its place.

    The place is told as the positions of the view's elements among those of the base.
    """
    if not tensor.requires_grad or tensor.grad_fn is None:
        return None, None
    base = tensor._base
    if base is None or base.grad_fn is None or all(tensor is not t for t in in_data):
        return get_gradient_edge(tensor), None
    positions = torch.arange(base.numel())
    offset = tensor.storage_offset() - base.storage_offset()
    return get_gradient_edge(base), positions.as_strided(tensor.size(), tensor.stride(), offset)


# --------------------------------------------------------------------------------- the checks


def check_events(each: Scenario) -> None:
    """All that must hold of the events of a scenario."""
    torch.manual_seed(0)
    case, hook = each.make(), Notes()
    with hook:
        out = case.forward()
    outputs, gradients = differentiable(out)
    hook.watch([t.grad_fn for t in outputs])
    begin = len(hook.log)
    expected = _expected(hook.calls, outputs, gradients) if case.referenced else {}
    del hook.log[begin:]  # the nodes that ran for comparison
    inner = {noted: len(noted.at_pre) for noted in expected}
    if outputs:
        with hook:
            case.backward(outputs, gradients)

    assert _names(hook.log[:begin], "forward_pre") == each.forward
    assert _names(hook.log[:begin], "backward_pre") == each.inner
    assert _names(hook.log[begin:], "forward_pre") == each.repeated
    assert _names(hook.log[begin:], "backward_pre") == each.backward
    _check_forward(hook.log)
    _check_backward(hook.log)
    ran = {number for what, number in hook.log[begin:] if what == "node"}
    for noted, grads in expected.items():
        _check_gradients(noted, grads, ran, inner[noted])


def _check_gradients(
    noted: Noted, expected: list[Tensor | None], ran: set[int], inner: int
) -> None:
    """Each pass, but those inside of the forward, had the gradients expected of nodes that ran."""
    for place, edge in enumerate(noted.edges):
        if edge is not None and edge.node._sequence_nr() not in ran:
            expected[place] = None
    for at_pre, at_post in list(zip(noted.at_pre, noted.at_post, strict=True))[inner:]:
        assert len(at_pre) == len(at_post) == len(expected)
        assert all(map(same, at_post, expected)), noted.function
        # Where several nodes make outputs, at the begin those are known that have arrived.
        early = [same(*pair) for pair in zip(at_pre, expected, strict=True)]
        assert all(early) or len(noted.nodes) > 1, noted.function


def _names(log: list[tuple[str, Any]], phase: str) -> list[str]:
    return [noted.function.name for what, noted in log if what == phase]


def _check_forward(log: list[tuple[str, Any]]) -> None:
    """Begins and ends of forwards alternate: one end for each begin, no function in another."""
    running = None
    for what, noted in log:
        if what == "forward_pre":
            assert running is None
            running = noted
        elif what == "forward":
            assert running is noted
            running = None
    assert running is None


def _check_backward(log: list[tuple[str, Any]]) -> None:
    """Each node runs inside of the one function that it belongs to, and each function has one."""
    running, ran = None, 0
    for what, noted in log:
        if what == "backward_pre":
            assert running is None
            running, ran = noted, 0
        elif what == "backward":
            assert running is noted
            assert ran, f"no node of {noted.function} ran"
            running = None
        elif what == "node":
            assert running is not None, f"node {noted} ran outside of all functions"
            assert running.covers(noted)
            ran += 1
    assert running is None


def _expected(
    calls: list[Noted], outputs: list[Tensor], gradients: list[Tensor]
) -> dict[Noted, list[Tensor | None]]:
    """The gradient of each output of each call, by plain autograd."""
    if not outputs:
        return {}
    edges = [edge for noted in calls for edge in noted.edges if edge is not None]
    found = iter(
        torch.autograd.grad(outputs, edges, gradients, retain_graph=True, allow_unused=True)
        if edges
        else ()
    )
    expected: dict[Noted, list[Tensor | None]] = {}
    for noted in calls:
        seen: set[Any] = set()
        grads = expected[noted] = []
        for edge, cut in zip(noted.edges, noted.cuts, strict=True):
            gradient = None if edge is None else next(found)
            # A tensor that is there twice has one gradient: that of its first place.
            gradient = None if edge in seen else gradient
            seen.add(edge)
            if gradient is not None and cut is not None:
                gradient = gradient.reshape(-1)[cut]
            grads.append(gradient)
    return expected
