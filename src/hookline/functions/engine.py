"""The one place that fires the forward events of functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from torch import Tensor
from torch.nn import Parameter

from hookline.core.demand import demand
from hookline.core.entry import Entry, Lineup
from hookline.core.events import ends, fail, fire, with_displaced
from hookline.core.phases import FORWARD, FORWARD_PRE
from hookline.core.thread import Thread
from hookline.functions.call import FunctionCall
from hookline.functions.place import place_function
from hookline.functions.places import lineup_of
from hookline.functions.record import mark_outputs, note_outputs
from hookline.torch_base.modes import dispatch_modes
from hookline.torch_base.private import sequence_number
from hookline.torch_base.recording import left_out, recorded_by
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
    node: FunctionNode[..., Any] | None = None,
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
    recorder = recorded_by()
    if recorder:
        left_out("functions", lineup.entries, recorder)
        return func(*args, **kwargs)
    call = FunctionCall()
    call.name, call.args, call.kwargs = name, args, kwargs
    call.node = node
    begun: tuple[Entry, ...] | None = None
    notes, version, timed, depth = thread.notes, demand.version, demand.clock, thread.clock.depth
    try:
        if timed:
            thread.clock.freeze()
            call.now = thread.clock.now
        place_function(call, thread)
        arguments = call.arguments = [call, _inputs(args, kwargs)]
        if lineup.forward_pre:
            fire(lineup.forward_pre, call, arguments, FORWARD_PRE, thread)
        begun = lineup.paired
        call.out = _run_inside(func, lineup, call, thread, timed)
        note_outputs(call)
        marked, pairs = lineup.watches_backward, lineup.forward
        if marked:
            mark_outputs(call, arguments[1], keep=lineup.retains)
        if demand.version != version:
            lineup = with_displaced(lineup_of(thread, call.node), begun)
            pairs = ends(lineup.forward, begun)
        if pairs:
            fire(pairs, call, arguments, FORWARD, thread)
            call.hidden = sequence_number()
        return call.out  # noqa: TRY300 - `else` would come after `finally`'s
    except BaseException as error:
        fail(error, lineup, begun, call, thread, notes)
        raise
    finally:
        call.args = call.kwargs = call.out = call.outputs = call.arguments = thread.culprit = None
        if timed:
            try:
                thread.clock.thaw()
            finally:
                thread.clock.depth = depth


def _run_inside(
    func: Callable[..., Any], lineup: Lineup, call: FunctionCall, thread: Thread, timed: int
) -> Any:
    """Run the function with what hooks want around it; what it calls is part of it."""
    clock = thread.clock
    try:
        thread.hidden = True
        call.start = sequence_number()
        if timed:
            clock.thaw()
        if lineup.modes:
            with dispatch_modes.standing(lineup.modes):
                return func(*call.args, **call.kwargs)
        return func(*call.args, **call.kwargs)
    finally:
        thread.hidden = False
        if timed:
            clock.freeze()
            call.now = clock.now


_PLAIN: Final = frozenset({Tensor, Parameter})


def _inputs(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Tensor, ...]:
    if kwargs:
        return tuple(tensors((args, kwargs)))
    for value in args:
        if type(value) not in _PLAIN:
            break
    else:
        return args
    found: list[Tensor] = []
    for value in args:
        if type(value) is Tensor or isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, list | tuple | dict):
            found.extend(tensors(value))
    return tuple(found)
