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

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor

from hookline.core.calls import Call
from hookline.core.demand import demand
from hookline.core.events import note_once
from hookline.core.thread import Thread, local
from hookline.torch_base.marks import OUTPUT_SEEN, Mark
from hookline.torch_base.modes import dispatch_modes, function_modes
from hookline.torch_base.patch import Patch, Stand
from hookline.torch_base.private import sequence_number
from hookline.torch_base.repeats import Repeats
from hookline.torch_base.stack import (
    acting,
    acting_run,
    current_thread,
    end_lending,
    lend_to_workers,
    lent,
)
from hookline.torch_base.walk import Visit, visits
from hookline.torch_base.window import Window

Planner = Callable[["Run", list[Visit], dict[Call, Window]], None]
planners: Final[list[Planner]] = []
"""What else takes part in runs: may add windows, and marks to the visits of a thread's nodes."""

Gradients = tuple[Tensor | None, ...]


class Stop:
    """What happens before one node runs.

    Attributes:
        place: the node's place in the order in which its thread's nodes run.
        track: the open windows of that thread's calls.
        calls: the windows that begin here or have a mark on the node, outermost first.
    """

    __slots__ = ("calls", "place", "track")

    def __init__(self, place: int, track: list[Window]) -> None:
        self.place: Final = place
        self.track: Final = track
        self.calls: dict[Window, list[Mark]] = {}


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
        groups: dict[int | None, list[Visit]] = defaultdict(list)
        for visit in visits(outputs, inputs):
            groups[visit.thread].append(visit)
        if len(groups.keys() - {None}) <= 1:  # what no mark tells apart is of the one thread
            groups = {0: [visit for group in groups.values() for visit in group]}
        for group in groups.values():
            self._plan_thread(sorted(group, key=_descending))

    def _plan_thread(self, group: list[Visit]) -> None:
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
        for place, stop in _stops_of(group, windows, track).items():
            self._handles.append(group[place].node.register_prehook(partial(self._at, stop)))

    def _at(self, stop: Stop, gradients: Gradients) -> Gradients | None:
        """A node is about to run."""
        thread = local.thread
        if thread.worker is not False:
            acting(thread)
        if thread.busy or (thread.runs[-1] if thread.runs else acting_run(thread)) is not self:
            return None  # another run over the same graph, started by a hook or another thread
        timed = demand.clock
        if timed:
            thread.clock.freeze()
        try:
            track = stop.track
            while track and track[-1].close <= stop.place:
                track.pop().end(thread)
            return _deliver(stop, gradients, thread)
        finally:
            if timed:
                thread.clock.thaw()

    def finish(self) -> None:
        """The run is over: end what is still open, innermost first, as if inside of the run."""
        if self._tracks:
            with torch.set_grad_enabled(self._create_graph):
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


def _descending(visit: Visit) -> int:
    return -visit.number


def _windows_of(group: list[Visit], run: Run) -> dict[Call, Window]:
    """A window for each call with a mark in the group and for the calls around it, outer first."""
    windows: dict[Call, Window] = {}
    for visit in group:
        for mark in reversed(visit.marks):
            _open(mark.call, windows, run)
    return windows


def _open(call: Call, windows: dict[Call, Window], run: Run) -> None:
    if call not in windows:
        if call.parent is not None:
            _open(call.parent, windows, run)
        windows[call] = call.window_type(call, run)


def _stops_of(
    group: list[Visit], windows: dict[Call, Window], track: list[Window]
) -> dict[int, Stop]:
    """Where something happens, by the place of the node before which it does."""
    stops: dict[int, Stop] = {}

    def stop_at(place: int) -> Stop:
        stop = stops.get(place)
        if stop is None:
            stop = stops[place] = Stop(place, track)
        return stop

    numbers = [-visit.number for visit in group]
    for window in windows.values():
        call = window.call
        first = bisect_left(numbers, 1 - call.stop)
        window.close = bisect_right(numbers, -call.start, first)
        if first < window.close:
            stop_at(first).calls[window] = []
            if window.close < len(group):
                stop_at(window.close)
    for place, visit in enumerate(group):
        for mark in reversed(visit.marks):
            window = windows[mark.call]
            window.waiting += mark.role is OUTPUT_SEEN
            stop_at(place).calls.setdefault(window, []).append(mark)
    _outermost_first(stops, windows)
    return stops


def _outermost_first(stops: dict[int, Stop], windows: dict[Call, Window]) -> None:
    shared = [stop for stop in stops.values() if len(stop.calls) > 1]
    if shared:
        # By their ranges: who has no mark at its output may have been found after those inside.
        order = {
            window: (window.call.start, -window.call.stop, number)
            for number, window in enumerate(windows.values())
        }
        for stop in shared:
            stop.calls = dict(sorted(stop.calls.items(), key=lambda item: order[item[0]]))


def _deliver(stop: Stop, gradients: Gradients, thread: Thread) -> Gradients | None:
    """Hand a node's gradients to its calls, outermost first, and take back what they changed."""
    current: Sequence[Tensor | None] = gradients
    for window, marks in stop.calls.items():
        for mark in marks:
            window.collect(mark, current[mark.slot], thread)
        if not window.started and not window.waiting:
            stop.track.append(window)
            window.begin(thread)
        for mark in marks:
            slot = mark.slot
            old = current[slot]
            new = window.passed_on(mark, old)
            if new is not old:
                current = [*current[:slot], new, *current[slot + 1 :]]
    return None if current is gradients else tuple(current)


def _stand_in(stand: Stand) -> Callable[..., tuple[Tensor, ...]]:
    original = stand.original

    def engine_run_backward(
        outputs: Sequence[Any], *args: Any, **kwargs: Any
    ) -> tuple[Tensor, ...]:
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
    original: Callable[[], tuple[Tensor, ...]],
    outputs: Sequence[Any],
    inputs: Sequence[Any] | None,
    run: Run,
) -> tuple[Tensor, ...]:
    thread = run.thread
    outer, hidden, depth = lent(), thread.hidden, thread.clock.depth
    runs = len(thread.runs)
    try:
        lend_to_workers(run)
        thread.runs.append(run)
        thread.backwards += 1
        thread.hidden = False
        if demand.backward:
            _frozen(thread, partial(run.plan, outputs, inputs))
        with dispatch_modes.standing(run.modes):
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


def _with_functions_seen(
    original: Callable[[], tuple[Tensor, ...]], thread: Thread
) -> tuple[Tensor, ...]:
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
        if taken_off or not thread.functions.switch:
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
