"""The one place that fires module events: it stands in `nn.Module.__call__` while hooks are on.

A call of a module that nobody watches is only put on the thread's stack, so that paths and passes
are known. A watched one gets a call object, which says whose call it is, and its events. All ways
out are covered, `BaseException` included: each hook object whose begin ran gets one end.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any, Final
from weakref import ref

import torch
from torch import nn

from hookline.core.calls import Key
from hookline.core.demand import demand
from hookline.core.entry import EMPTY, Lineup
from hookline.core.events import ends, fail, fire, with_displaced
from hookline.core.notes import control_flow
from hookline.core.phases import FORWARD, FORWARD_PRE
from hookline.core.registry import HookRegistry
from hookline.core.thread import Thread, local
from hookline.modules.call import ModuleCall
from hookline.modules.fastpath import FUSED, children_called
from hookline.modules.places import (
    around_region,
    everywhere,
    lineup_of,
    table,
)
from hookline.modules.record import clear, give_back, isolate_inputs, record_output
from hookline.modules.traced import runs_above, traced_call
from hookline.modules.unreached import telling
from hookline.torch_base.modes import dispatch_modes
from hookline.torch_base.patch import Patch, Stand
from hookline.torch_base.private import StopRecomputation, sequence_number
from hookline.torch_base.recording import left_out, recorded_by
from hookline.torch_base.regions import stay_out
from hookline.torch_base.stack import acting, place
from hookline.torch_base.wrappers import ByClass, hands_on, innermost, is_region

control_flow.add(StopRecomputation)


_is_compiling: Final = torch.compiler.is_dynamo_compiling
_torchs_own: Final = nn.Module.__call__


def _find_special(cls: type[nn.Module]) -> bool:
    return is_region[cls] or hands_on[cls] or issubclass(cls, FUSED)


_special: Final = ByClass(_find_special)
"""Whether calls of a class of modules are more than that: those of wrappers, and of encoders with a
fused path. One look at this spares all others several."""


def _stand_in(stand: Stand) -> Callable[..., Any]:  # noqa: C901 - one frame, see below
    original = stand.original

    # The hot path: what every module call pays while any hook is on. One look at what is
    # registered; the rest is for watched calls only: `_watched`, `place` and `_forward`, in few
    # frames, since each frame and each attribute counts. `python -m benchmarks.opcodes` tells.
    def __call__(module: nn.Module, *args: Any, **kwargs: Any) -> Any:  # noqa: C901, N807, PLR0911
        # The compiler reads nothing of this closure, so that its code is valid also without us.
        if _is_compiling():
            return traced_call(_torchs_own, module, args, kwargs)
        if not stand.active:
            return original(module, *args, **kwargs)
        thread = local.thread
        if thread.worker is not False:
            acting(thread)
        key, special = ref(module), _special[type(module)]
        own = table.get(key)
        if special and is_region[type(module)]:
            own = around_region(module)
        lineup = thread.modules.lineup
        if everywhere.lineup is not EMPTY:
            lineup = everywhere.behind(lineup)
        if own is not None:
            lineup = own.lineup if lineup is EMPTY else own.behind(lineup)
        if lineup is not EMPTY or (own is not None and own.inner is not None):
            if thread.busy:
                return original(module, *args, **kwargs)
            return _watched(original, module, key, own, lineup, thread, args, kwargs)
        stack = thread.stack
        if not stack:
            if demand.aims:
                return _handed_on(telling(original), module, thread, args, kwargs)
            thread.running = None
            thread.grad = torch.is_grad_enabled()
        # Ctrl-C comes at calls: what is undone below is done inside, and undone by the last call.
        try:
            stack.append(module)
            if special and issubclass(type(module), FUSED):
                with children_called(module, thread):
                    return original(module, *args, **kwargs)
            return original(module, *args, **kwargs)
        finally:
            stack.pop()

    return __call__ if original is _torchs_own else _above(original, __call__)


def _above(original: Callable[..., Any], ours: Callable[..., Any]) -> Callable[..., Any]:
    """Ours, above what somebody else put there, which compiled code calls too."""

    def __call__(module: nn.Module, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
        if _is_compiling():
            return traced_call(original, module, args, kwargs)
        return ours(module, *args, **kwargs)

    return __call__


def _watched(  # noqa: C901, PLR0912 - one frame, with what has been looked up already
    original: Callable[..., Any],
    module: nn.Module,
    key: Key[nn.Module],
    own: HookRegistry | None,
    lineup: Lineup,
    thread: Thread,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Run a call that somebody watches: say whose call it is, and fire its forward events."""
    recorder = recorded_by()
    if recorder:
        left_out(type(module).__name__, lineup.entries, recorder)
        return original(module, *args, **kwargs)
    stack, cls = thread.stack, type(module)
    above = stack[-1] if stack else None
    if type(above) is ModuleCall:
        if above.region is not None and runs_above(module, stack):
            return original(module, *args, **kwargs)
    else:
        if above is not None and _special[type(above)] and runs_above(module, stack):
            return original(module, *args, **kwargs)
        if above is None and demand.aims:
            original = telling(original)
        above = None
    special = _special[cls]
    if special and hands_on[cls]:  # only what was put on the wrapper itself sees its call
        lineup = EMPTY if own is None else own.lineup
        if lineup is EMPTY:
            return _handed_on(original, module, thread, args, kwargs)
    call = ModuleCall()
    call.called, call.args, call.kwargs, call.parent = module, args, kwargs, above
    if special and is_region[cls]:
        call.region = ref(innermost(module))
    run = original
    if special or (own is not None and own.inner is not None):
        run = partial(_run_special, original, own, call, thread)
    timed, depth = demand.clock, thread.clock.depth
    try:
        if timed:
            thread.clock.freeze()
        place(call, module, key, thread)
        outer_pass = thread.running
        try:
            thread.running = call.running
            stack.append(call)
            return _forward(run, module, lineup, call, thread)
        finally:
            thread.running = outer_pass
            stack.pop()
    finally:
        call.called = call.args = call.kwargs = call.out = thread.culprit = None
        if timed:
            try:
                thread.clock.thaw()
            finally:
                thread.clock.depth = depth


def _handed_on(
    original: Callable[..., Any],
    module: nn.Module,
    thread: Thread,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Run a call that nobody watches, as of DistributedDataParallel: that inside of it is."""
    if not thread.stack:
        thread.running = None
        thread.grad = torch.is_grad_enabled()
    try:
        thread.stack.append(module)
        return _bare(original, module, thread, args, kwargs)
    finally:
        thread.stack.pop()


def _forward(
    run: Callable[..., Any],
    module: nn.Module,
    lineup: Lineup,
    call: ModuleCall,
    thread: Thread,
) -> Any:
    """Fire the forward events around the layer.

    Args:
        run: runs it.
        module: the layer.
        lineup: what is registered at the begin.
        call: its call.
        thread: the thread's state.
    """
    begun, notes = None, thread.notes
    version, timed = demand.version, demand.clock
    try:
        if timed:
            call.now = thread.clock.now
        if lineup.forward_pre:
            fire(lineup.forward_pre, call, None, FORWARD_PRE, thread)
        begun = lineup.paired
        if timed or lineup.surrounds:
            call.out = _run_inside(run, module, lineup, call, thread)
        else:
            call.out = run(module, *call.args, **call.kwargs)
        marks, joint, pairs = lineup.watches_backward, lineup.joint, lineup.forward
        if demand.version != version:
            lineup = with_displaced(lineup_of(call, thread), begun)
            pairs = ends(lineup.forward, begun)
            marks, joint = marks or lineup.watches_backward, joint or lineup.joint
        if marks and torch.is_grad_enabled():
            call.shape = len(call.args), tuple(call.kwargs)
            record_output(pairs, call, thread, joint=joint)
        elif pairs:
            fire(pairs, call, None, FORWARD, thread)
        call.stop = sequence_number()
    except BaseException as error:
        fail(error, lineup, begun, call, thread, notes)
        raise
    else:
        return call.out


def _run_inside(
    run: Callable[..., Any], module: nn.Module, lineup: Lineup, call: ModuleCall, thread: Thread
) -> Any:
    """Run the layer with what hooks want around it: their inputs' views, modes and the clock."""
    isolated = isolate_inputs(call) if lineup.needs_grad_input else None
    clock, timed = thread.clock, demand.clock
    if timed:
        clock.thaw()
    try:
        if lineup.modes:
            with dispatch_modes.standing(lineup.modes):
                out = run(module, *call.args, **call.kwargs)
        else:
            out = run(module, *call.args, **call.kwargs)
    finally:
        if isolated:
            clear(isolated)
        if timed:
            clock.freeze()
            call.now = clock.now
    return give_back(out, isolated) if isolated else out


def _run_special(
    original: Callable[..., Any],
    own: HookRegistry | None,
    call: ModuleCall,
    thread: Thread,
    module: nn.Module,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Run what is more than a layer: a wrapper with hooks of its own, or one with a fused path."""
    if own is not None and own.inner is not None:
        return _wrapped(original, module, own.inner, call, thread)
    return _bare(original, module, thread, args, kwargs)


def _bare(
    original: Callable[..., Any],
    module: nn.Module,
    thread: Thread,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    with children_called(module, thread) if issubclass(type(module), FUSED) else nullcontext():
        return original(module, *args, **kwargs)


def _wrapped(
    original: Callable[..., Any],
    module: nn.Module,
    own: HookRegistry,
    outer: ModuleCall,
    thread: Thread,
) -> Any:
    """Run a wrapper's call with the hooks of the layer in it; to others it is one call.

    What runs is the outermost wrapper, with and without hooks: it is what the model holds, so
    what changes a module's class (`parametrize`, lazy modules) has changed it there.
    """
    if own.lineup is EMPTY and own.inner is None:
        return _bare(original, module, thread, outer.args, outer.kwargs)
    call = outer.inside(own, sequence_number())
    timed = demand.clock
    try:
        thread.stack.append(call)
        if timed:
            thread.clock.freeze()
        run = partial(_run_special, original, own, call, thread)
        return _forward(run, module, own.lineup, call, thread)
    finally:
        call.called = call.args = call.kwargs = call.out = None
        thread.stack.pop()
        if timed:
            thread.clock.thaw()


_THROUGH: Final = (
    "__call__",
    "_watched",
    "_handed_on",
    "_forward",
    "_run_inside",
    "_run_special",
    "_bare",
    "_wrapped",
    "_then_tell",
)
stay_out("hookline.", through=_THROUGH)

calls: Final = Patch(nn.Module, "__call__", _stand_in)
"""Where calls of modules are seen; on while there are hooks."""
