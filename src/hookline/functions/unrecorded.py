"""Functions that nobody recorded in forward: each node of the graph stands for one.

With a hook on that runs in the backward, every function of the graph has backward events, also
if its forward ran outside of any scope (Chainer's rule). They are named after their nodes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from typing import Any

from hookline.core.calls import Call
from hookline.functions.call import FunctionCall
from hookline.functions.naming import name_of_node
from hookline.functions.place import outside
from hookline.functions.places import lineup_of
from hookline.torch_base.backward import Run, planners
from hookline.torch_base.marks import Mark, Role
from hookline.torch_base.private import (
    ALIAS,
    current_node,
    gradient_count,
    is_reentrant_checkpoint,
    node_metadata,
    node_number,
)
from hookline.torch_base.walk import Visit
from hookline.torch_base.window import Window


def add_unrecorded(run: Run, group: list[Visit], windows: dict[Call, Window]) -> None:
    """Give each node that no recorded function made a function call of its own.

    Args:
        run: the run.
        group: the nodes of one thread that will run, in that order; marks are added to them.
        windows: the calls that take part; the new ones are added.
    """
    if not lineup_of(run.thread).watches_backward or _is_part_of_a_function(run):
        return
    left = [place for place, (_, _, marks, _) in enumerate(group) if not _is_output(marks)]
    if not left:
        return
    recorded = _Ranges([call for call in windows if isinstance(call, FunctionCall)])
    modules = _Modules([call for call in windows if not isinstance(call, FunctionCall)])
    counts: Counter[tuple[str | None, str]] = Counter()
    for place in reversed(left):
        number, node, marks, thread = group[place]
        if recorded.cover(number) or _is_no_function(node):
            continue
        call = _call_of(node, modules.around(number), run, counts)
        windows[call] = call.window_type(call, run)
        own = [Mark(call, Role.OUTPUT, slot, slot) for slot in range(call.count)]
        group[place] = number, node, [*own, *marks], thread


def _is_output(marks: Sequence[Mark]) -> bool:
    """Whether a node makes an output of a recorded function; inner calls come first."""
    return bool(marks) and isinstance(marks[0].call, FunctionCall)


def _is_part_of_a_function(run: Run) -> bool:
    """Whether the run is called by the forward or backward of a function, so belongs to it."""
    node = current_node()
    return run.hidden or (node is not None and not is_reentrant_checkpoint(node))


def _is_no_function(node: Any) -> bool:
    """Whether a node is that of an alias of ours, or of a checkpoint, whose functions are seen."""
    return ALIAS in node_metadata(node) or is_reentrant_checkpoint(node)


def _call_of(
    node: Any, module: Call | None, run: Run, counts: Counter[tuple[str | None, str]]
) -> FunctionCall:
    call = FunctionCall()
    call.name = name_of_node(node)
    call.start = node_number(node)
    call.stop = call.start + 1
    call.count = gradient_count(node)
    if module is None:
        call.running = outside(run.thread)
    else:
        call.parent, call.running = module, module.running
        call.recomputing = module.recomputing
    key = (call.module_path, call.name)
    call.index = counts[key]
    counts[key] += 1
    return call


class _Ranges:
    """The numbers of the nodes that recorded functions made."""

    def __init__(self, calls: list[FunctionCall]) -> None:
        ranges = sorted((call.start, max(call.stop, call.hidden)) for call in calls)
        self._starts = [start for start, _ in ranges]
        self._stops = [stop for _, stop in ranges]

    def cover(self, number: int) -> bool:
        place = bisect_right(self._starts, number) - 1
        return place >= 0 and number < self._stops[place]


class _Modules:
    """The module calls, asked in ascending order which one is innermost around a node."""

    def __init__(self, calls: list[Call]) -> None:
        # Taken from the end: by start, and of those that start together the outer ones first.
        self._coming = list(reversed(calls))
        self._coming.sort(key=lambda call: call.start, reverse=True)
        self._open: list[Call] = []

    def around(self, number: int) -> Call | None:
        while self._coming and self._coming[-1].start <= number:
            self._open.append(self._coming.pop())
        while self._open and self._open[-1].stop <= number:
            self._open.pop()
        return self._open[-1] if self._open else None


planners.append(add_unrecorded)
