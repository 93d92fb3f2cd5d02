"""The one place that fires the forward events of functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import Tensor

from hookline.core.demand import demand
from hookline.core.entry import Entry, Lineup
from hookline.core.events import ends, fail, fire
from hookline.core.phases import Phase
from hookline.core.thread import Thread
from hookline.functions.call import FunctionCall
from hookline.functions.place import place_function
from hookline.functions.places import lineup_of
from hookline.functions.record import mark_function
from hookline.torch_base import private
from hookline.torch_base.tree import tensors

if TYPE_CHECKING:
    from hookline.functions.node import FunctionNode


def run_function(
    func: Callable[..., Any],
    name: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    lineup: Lineup,
    thread: Thread,
    node: FunctionNode | None = None,
) -> Any:
    """Call a function with its forward events.

    Args:
        func: the function.
        name: its readable name.
        args: its positional arguments.
        kwargs: its keyword arguments.
        lineup: the hooks, in order.
        thread: the thread's state.
        node: the `FunctionNode` through which it is called, if it is.
    """
    timed = demand.clock
    if timed:
        thread.clock.freeze()
    try:
        call = FunctionCall()
        call.name, call.args, call.kwargs, call.node = name, args, kwargs, node
        place_function(call, thread)
        try:
            return _forward(func, call, lineup, thread)
        finally:
            call.args = call.kwargs = call.out = call.outputs = call.arguments = None
    finally:
        if timed:
            thread.clock.thaw()


def _forward(func: Callable[..., Any], call: FunctionCall, lineup: Lineup, thread: Thread) -> Any:
    begun: tuple[Entry, ...] | None = None
    call.notes = thread.notes
    try:
        call.now = thread.clock.now
        in_data = tuple(_inputs(call.args, call.kwargs))
        call.arguments = [call, in_data]
        if lineup.forward_pre:
            fire(lineup.forward_pre, call, call.arguments, Phase.FORWARD_PRE, thread)
        begun = lineup.paired
        call.out = _run(func, call, thread)
        call.now = thread.clock.now
        mark_function(call, call.arguments[1], lineup)
        before, lineup = lineup, lineup_of(thread, call.node)
        pairs = lineup.forward if lineup is before else ends(lineup.forward, begun)
        if pairs:
            fire(pairs, call, call.arguments, Phase.FORWARD, thread)
        call.hidden = private.sequence_number()
    except BaseException as error:
        fail(error, lineup, begun, call, thread)
        raise
    else:
        return call.out


def _inputs(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
    if kwargs:
        return tensors((args, kwargs))
    found: list[Tensor] = []
    for value in args:
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, list | tuple | dict):
            found.extend(tensors(value))
    return found


def _run(func: Callable[..., Any], call: FunctionCall, thread: Thread) -> Any:
    timed = demand.clock
    thread.hidden = True
    if timed:
        thread.clock.thaw()
    call.start = private.sequence_number()
    try:
        return func(*call.args, **call.kwargs)
    finally:
        if timed:
            thread.clock.freeze()
        thread.hidden = False
