"""Where in a backward run something happens, and what: the hooks of its nodes while it lasts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, TypeAlias

from torch import Tensor

from hookline.core.demand import demand
from hookline.core.thread import Thread, local
from hookline.torch_base.marks import INPUT, OUTPUT, OUTPUT_SEEN, Mark
from hookline.torch_base.stack import acting, acting_run
from hookline.torch_base.walk import Visit
from hookline.torch_base.window import Window

if TYPE_CHECKING:
    from hookline.core.calls import Call
    from hookline.torch_base.backward import Run

Gradients: TypeAlias = tuple[Tensor | None, ...]


class Stop:
    """What happens before one node runs: the node's hook, as long as the run lasts.

    Attributes:
        run: the run.
        track: the open windows of the calls of the node's thread.
        place: the node's place in the order in which its thread's nodes run.
        calls: the windows that begin here or have a mark on the node, outermost first.
    """

    __slots__ = ("calls", "place", "run", "track")

    def __init__(
        self, run: Run, track: list[Window], place: int, calls: dict[Window, list[Mark]]
    ) -> None:
        self.run = run
        self.track = track
        self.place = place
        self.calls = calls

    def reached(self, gradients: Gradients) -> Gradients | None:
        """The node is about to run."""
        thread = local.thread
        if thread.worker is not False:
            acting(thread)
        if thread.busy or (thread.runs[-1] if thread.runs else acting_run(thread)) is not self.run:
            return None  # another run over the same graph, started by a hook or another thread
        timed = demand.clock
        if timed:
            thread.clock.freeze()
        try:
            track, place = self.track, self.place
            while track and track[-1].close <= place:
                window = track.pop()
                if window.only_input is not None:  # its gradient has arrived here
                    window.collect(window.only_input, gradients[0], thread)
                window.end(thread)
            return self._deliver(gradients, thread)
        finally:
            if timed:
                thread.clock.thaw()

    def _deliver(self, gradients: Gradients, thread: Thread) -> Gradients | None:
        """Hand the gradients to the calls, outermost first, and take back what they changed.

        Most marks are those of outputs whose gradient arrives here and nowhere else; for them
        the window is not asked.
        """
        current: Sequence[Tensor | None] = gradients
        for window, marks in self.calls.items():
            started = window.started
            for mark in marks:
                if mark.role is OUTPUT and not started:
                    window.out[mark.place] = current[mark.slot]
                else:
                    window.collect(mark, current[mark.slot], thread)
            if not started and not window.waiting:
                self.track.append(window)
                window.begin(thread)
                if window.close <= self.place:  # it has no node but that of its input
                    self.track.pop().end(thread)
            for mark in marks:
                slot = mark.slot
                old = current[slot]
                if mark.role is OUTPUT and not mark.leaf:
                    new = window.out.get(mark.place, old)
                else:
                    new = window.passed_on(mark, old)
                if new is not old:
                    current = [*current[:slot], new, *current[slot + 1 :]]
        return None if current is gradients else tuple(current)


def _range(window: Window) -> tuple[int, int]:
    return window.call.stop, -window.call.start


def _order(window: Window) -> tuple[bool, int]:
    return not window.looks_on, window.order


def stops_of(  # noqa: C901, PLR0912 - one frame, since it is for every node
    group: list[Visit], windows: dict[Call, Window]
) -> Iterator[tuple[int, dict[Window, list[Mark]]]]:
    """Where something happens: the places of nodes, each with what a `Stop` has to do there.

    One pass over the nodes in the order in which they run. Of calls that begin together the
    outer one comes first.
    """
    # The last one begins next. By their ranges, since those of no output may have been found late.
    coming = sorted(windows.values(), key=_range, reverse=True)
    coming.reverse()
    for order, window in enumerate(reversed(coming)):
        window.order = order
    opened: list[Window] = []
    stop = coming[-1].call.stop  # of the window that begins next
    start = -1  # of the innermost open one
    for place, (number, _, marks, _) in enumerate(group):
        if not marks and number >= start and number >= stop:
            continue
        calls: dict[Window, list[Mark]] = {}
        closing = number < start
        while number < start:
            opened.pop().close = place
            start = opened[-1].call.start if opened else -1
        while number < stop:
            window = coming.pop()
            stop = coming[-1].call.stop if coming else -1
            if number < window.call.start:  # none of its nodes is in the graph
                window.close = place
            else:
                opened.append(window)
                start = window.call.start
                calls[window] = []
        for mark in reversed(marks):
            window = windows[mark.call]
            if mark.role is OUTPUT_SEEN:
                window.waiting += 1
            elif mark.role is INPUT:
                window.only_input = mark
            if window in calls:
                calls[window].append(mark)
            else:
                calls[window] = [mark]
        if len(calls) > 1:
            calls = {window: calls[window] for window in sorted(calls, key=_order)}
        if calls or closing:
            yield place, calls
