"""The one place that meets autograd's runs: when a call's backward begins, ends and fails.

Every Python `backward` and `grad` goes through one function of torch; while hooks are on, `run`
stands in its place. It walks the graph once and finds, from the marks that calls left on nodes,
which calls take part. A thread's nodes run in descending order of their numbers, and a call's
nodes are those numbered between its begin and its end, so calls are nested intervals: a call's
backward begins before its first node and ends before the first node below its range. By then
its parameters' gradients are written, since autograd accumulates at once. Pre-hooks on just those
nodes deliver the events; all are removed when the run is over, also after an error.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from operator import itemgetter
from typing import Any, Final

import torch

from hookline.core.calls import Call
from hookline.core.demand import demand
from hookline.core.events import note_once
from hookline.core.thread import Thread
from hookline.torch_base.modes import dispatch_modes, function_modes
from hookline.torch_base.patch import Patch, Stand
from hookline.torch_base.private import sequence_number, set_grad_enabled
from hookline.torch_base.repeats import Repeats
from hookline.torch_base.stack import (
    acting_run,
    current_thread,
    end_lending,
    lend_to_workers,
    lent,
)
from hookline.torch_base.stops import Gradients, Stop, stops_of
from hookline.torch_base.walk import Visit, visits
from hookline.torch_base.window import Window

Planner = Callable[["Run", list[Visit], dict[Call, Window]], None]
planners: Final[list[Planner]] = []
"""What else takes part in runs: may add windows, and marks to the visits of a thread's nodes."""


class Run:
    """One run of autograd's engine.

    Args:
        thread: the thread that called `backward`; its hooks are the ones that are called.
        outer: the run inside of which it was called.
        create_graph: whether gradients are on in the run; so they are for hooks at its end.
    """

    def __init__(self, thread: Thread, outer: Run | None, *, create_graph: bool) -> None:
        self.thread: Final = thread
        self.hidden: Final = thread.hidden
        """Whether it is called inside of a function, and is part of it."""
        self._create_graph: Final = create_graph
        self.repeats: Final = Repeats() if outer is None else outer.repeats
        self.begun: Final = sequence_number()
        """Where autograd's numbering stood when it began."""
        self.depth: Final = len(thread.stack)
        """How many calls ran in the thread when it began; what it repeats lies above them."""
        self._notes: Final = thread.notes
        self._tracks: list[list[Window]] = []
        self._handles: list[Any] = []
        self.modes: dict[Any, None] = {}
        """The dispatch modes of the hooks of calls that take part, which stand while it runs."""

    def plan(self, outputs: Sequence[Any], inputs: Sequence[Any] | None) -> None:
        """Find the calls that take part and hook the nodes at which something happens."""
        found = visits(outputs, inputs)
        if len({thread for _, _, _, thread in found} - {None}) <= 1:
            self._plan_thread(found)  # what no mark tells apart is of the one thread
            return
        groups: dict[int | None, list[Visit]] = defaultdict(list)
        for visit in found:
            groups[visit[3]].append(visit)
        for group in groups.values():
            self._plan_thread(group)

    def _plan_thread(self, group: list[Visit]) -> None:
        group.sort(key=_NUMBER, reverse=True)
        windows = _windows_of(group, self)
        for planner in planners:
            planner(self, group, windows)
        if not windows:
            return
        if demand.modes:
            for window in windows.values():
                self.modes.update(dict.fromkeys(window.current().modes))
        track: list[Window] = []
        self._tracks.append(track)
        for place, calls in stops_of(group, windows):
            stop = Stop(self, track, place, calls)
            self._handles.append(group[place][1].register_prehook(stop.reached))

    def finish(self) -> None:
        """The run is over: end what is still open, innermost first, as if inside of the run."""
        if self._tracks:
            set_grad_enabled(self._create_graph)  # as it was is put back when the run is left
            for track in self._tracks:
                while track:
                    track.pop().end(self.thread)

    def fail(self, error: BaseException) -> None:
        """The run raised: say where, and tell the hooks whose begin ran."""
        open_windows = [window for track in self._tracks for window in track]
        if open_windows:
            where = f"in the backward of {open_windows[-1].call.describe()}"
            note_once(error, where, self.thread, self._notes)
        for track in self._tracks:
            while track:
                track.pop().abort(error, self.thread)

    def close(self) -> None:
        """Remove every hook from the graph."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()


_NUMBER: Final = itemgetter(0)


def _windows_of(group: list[Visit], run: Run) -> dict[Call, Window]:
    """A window for each call with a mark in the group and for the calls around it, outer first."""
    windows: dict[Call, Window] = {}
    for _, _, marks, _ in group:
        for mark in reversed(marks):
            if mark.call not in windows:
                _open(mark.call, windows, run)
    return windows


def _open(call: Call, windows: dict[Call, Window], run: Run) -> None:
    parent = call.parent
    if parent is not None and parent not in windows:
        _open(parent, windows, run)
    windows[call] = call.window_type(call, run)


def _stand_in(stand: Stand) -> Callable[..., Gradients | None]:
    original = stand.original

    def engine_run_backward(outputs: Sequence[Any], *args: Any, **kwargs: Any) -> Gradients | None:
        thread = current_thread()
        if thread.busy or not stand.active or torch.compiler.is_compiling():
            return original(outputs, *args, **kwargs)
        # (grad_tensors, retain_graph, create_graph, inputs, ...), as torch.autograd calls it.
        _, _, create_graph, inputs, *_ = *args, *_ABSENT[len(args) :]
        run = Run(thread, acting_run(thread), create_graph=bool(create_graph))
        return _run(partial(original, outputs, *args, **kwargs), outputs, inputs, run)

    return engine_run_backward


_ABSENT: Final = (None,) * 4


def _run(
    original: Callable[[], Gradients | None],
    outputs: Sequence[Any],
    inputs: Sequence[Any] | None,
    run: Run,
) -> Gradients | None:
    thread = run.thread
    outer, hidden, depth = lent(), thread.hidden, thread.clock.depth
    runs, grad = len(thread.runs), torch.is_grad_enabled()
    try:
        lend_to_workers(run)
        thread.runs.append(run)
        thread.backwards += 1
        thread.hidden = False
        if demand.backward:
            _frozen(thread, partial(run.plan, outputs, inputs))
        if run.modes:
            with dispatch_modes.standing(run.modes):
                result = _with_functions_seen(original, thread)
        else:
            result = _with_functions_seen(original, thread)
        _frozen(thread, run.finish)
    except BaseException as error:
        _frozen(thread, partial(run.fail, error))
        raise
    else:
        return result
    finally:
        # Ctrl-C comes at calls: what needs none goes first, and what does is finished all the same.
        thread.hidden, thread.clock.depth, thread.culprit = hidden, depth, None
        thread.backwards += 1
        del thread.runs[runs:]
        try:
            run.close()
        except BaseException:
            run.close()
            raise
        finally:
            try:
                end_lending(outer)
            except BaseException:
                end_lending(outer)
                raise
            finally:
                set_grad_enabled(grad)


def _with_functions_seen(
    original: Callable[[], Gradients | None], thread: Thread
) -> Gradients | None:
    """Run with the thread's function mode on, for what a checkpoint repeats.

    Torch has taken it off to handle the call of `backward`. Worker threads get what is on here.
    Autograd puts back the stack of modes that it found, whatever scopes hooks open or leave.
    """
    seen = bool(thread.functions.switch)
    taken_off = seen and not function_modes.has(thread.mode)
    try:
        if taken_off:
            function_modes.put_on(thread.mode)
        return original()
    finally:
        if thread.mode is None:
            pass  # it never had function hooks
        elif taken_off or not thread.functions.switch:
            function_modes.take_out(thread.mode)
        elif not seen:
            function_modes.put_on(thread.mode)


def _frozen(thread: Thread, work: Callable[[], None]) -> None:
    """Do our own work while the thread's clock stands still."""
    if not demand.clock:
        work()
        return
    thread.clock.freeze()
    try:
        work()
    finally:
        thread.clock.thaw()


patch: Final = Patch(torch.autograd, "_engine_run_backward", _stand_in)
