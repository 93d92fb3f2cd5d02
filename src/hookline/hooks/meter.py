"""How timers measure: calls that nest, in any number of threads, at both levels alike."""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any, Final, NamedTuple

from hookline.core.clock import Clock
from hookline.core.records import TimeRow
from hookline.core.thread import local
from hookline.hooks.durations import Durations
from hookline.hooks.subject import Subject

_TOGETHER: Final = 128
"""So many calls are added up at a time; few, as until then the collector of garbage sees them."""


class Timed(NamedTuple):
    """One call that was measured; `begin` and `duration` are nanoseconds of its thread's clock."""

    what: Subject
    call_index: int
    number: int
    step: int
    thread: int
    begin: int
    duration: int


class _Frame:
    """A call that is being measured; `start` and `stop` are nanoseconds or device events."""

    __slots__ = ("around", "call", "inside", "place", "start", "stop", "what")

    stop: Any
    place: tuple[int, int, int, int] | None
    """Its call's index, pass, step and clock, for a listener."""

    def __init__(self, call: Any, what: Subject, start: Any, around: _Frame | None) -> None:
        self.call = call
        self.what = what
        self.start = start
        self.inside = 0
        self.around = around


class TimeMeter:
    """Measures calls.

    Each thread has a stack of the calls that run; a call's own time is its time less that of the
    calls inside it, whatever their direction: a forward that a checkpoint repeats inside a
    backward is not the backward's own. A thread is known by its clock, since the threads in
    which autograd works share that of the one which called `backward`.

    Calls that have ended are added up some at a time, which takes less time than one by one, and
    when somebody reads. On a device, work goes on after the call has returned: there events are
    recorded at begin and end, and read when they are through, without waiting for them before.

    Args:
        history: how many of the latest calls `history` keeps.
        new_event: makes a device event; None gives the thread's own clock.

    Attributes:
        history: of what the latest calls were, and how long they took, in nanoseconds.
        listener: is given each call that was measured, inner ones first, if it is not None.
    """

    def __init__(self, history: int, new_event: Callable[[], Any] | None = None) -> None:
        self.history: deque[tuple[Subject, int]] = deque(maxlen=history)
        self.durations: defaultdict[Subject, Durations] = defaultdict(Durations)
        self.outermost = 0
        self.clock = "host" if new_event is None else "device"
        self.listener: Callable[[Timed], None] | None = None
        self._new_event = new_event
        self._zero: tuple[Any, int] | None = None
        self._pending: deque[_Frame] = deque()
        self._lock = threading.Lock()
        self._stacks: dict[Clock, list[_Frame]] = {}

    def begin(self, call: Any, what: Subject) -> None:
        """A call begins now."""
        clock = local.thread.clock
        stack = self._stacks.get(clock)
        if stack is None:
            stack = self._stacks[clock] = []
        start = call.now if self._new_event is None else self._record()
        stack.append(_Frame(call, what, start, stack[-1] if stack else None))

    def end(self, call: Any) -> None:
        """A call ends now, well or not."""
        clock = local.thread.clock
        stack = self._stacks.get(clock)
        if not stack:
            return
        frame = stack.pop()
        if frame.call is not call:
            stack.append(frame)
            found = _taken(stack, call)
            if found is None:
                return
            frame = found
        frame.call = None
        frame.stop = call.now if self._new_event is None else self._record()
        frame.place = None if self.listener is None else _place_of(call, clock)
        if not stack:
            del self._stacks[clock]
        self._pending.append(frame)
        if self._new_event is not None or len(self._pending) >= _TOGETHER:
            with self._lock:
                self._read_pending(wait=False)

    def drop_running(self) -> None:
        """Forget the calls that run in this thread: their ends will not come."""
        self._stacks.pop(local.thread.clock, None)

    def _record(self) -> Any:
        assert self._new_event is not None
        event = self._new_event()
        event.record()
        return event

    def _read_pending(self, *, wait: bool) -> None:
        # In the order in which calls ended, so those inside come before those around them.
        pending = self._pending
        if self._new_event is None:
            while pending:
                frame = pending.popleft()
                self._add(frame, frame.start, frame.stop - frame.start)
        while pending and (wait or pending[0].stop.query()):
            frame = pending.popleft()
            frame.stop.synchronize()
            begin = 0 if self.listener is None else self._begin_of(frame)
            self._add(frame, begin, round(frame.start.elapsed_time(frame.stop) * 1e6))

    def _begin_of(self, frame: _Frame) -> int:
        """When a call began on the device, counted as the host counts."""
        if self._zero is None:
            self._zero = frame.start, perf_counter_ns()
        event, now = self._zero
        return now + round(event.elapsed_time(frame.start) * 1e6)

    def _add(self, frame: _Frame, begin: int, duration: int) -> None:
        if frame.around is None:
            self.outermost += duration
        else:
            frame.around.inside += duration
        self.durations[frame.what].add(duration, frame.inside)
        self.history.append((frame.what, duration))
        if self.listener is not None and frame.place is not None:
            self.listener(Timed(frame.what, *frame.place, begin, duration))

    def settle(self) -> None:
        """Read what is still pending; waits for the device."""
        with self._lock:
            self._read_pending(wait=True)

    def slowest(self) -> tuple[Subject, float] | None:
        """What took most time of its own so far, and its share of all; waits for nothing."""
        with self._lock:
            self._read_pending(wait=False)
            found = list(self.durations.items())
        own: dict[tuple[str, str | None, str], int] = {}
        for what, durations in found:
            place = what.root, what.path, what.name
            own[place] = own.get(place, 0) + durations.self_total
        if not sum(own.values()):
            return None
        most = max(own, key=lambda place: own[place])
        what = next(what for what, _ in found if (what.root, what.path, what.name) == most)
        return what, own[most] / sum(own.values())

    def rows(self) -> list[TimeRow]:
        """What was measured so far."""
        self.settle()
        with self._lock:
            return [self._row(what, durations) for what, durations in self.durations.items()]

    def _row(self, what: Subject, durations: Durations) -> TimeRow:
        return TimeRow(
            **what._asdict(),
            clock=self.clock,
            calls=durations.count,
            self_time=durations.self_total / 1e9,
            total_time=durations.total / 1e9,
            minimum=durations.minimum / 1e9,
            median=durations.median / 1e9,
            maximum=durations.maximum / 1e9,
        )

    def reset(self) -> None:
        """Forget what was measured; calls that run are not disturbed."""
        with self._lock:
            self._read_pending(wait=False)  # a call that runs still knows what was inside of it
            self._pending.clear()
            self.durations.clear()
            self.history.clear()
            self.outermost = 0


def _place_of(call: Any, clock: Clock) -> tuple[int, int, int, int]:
    running = call.running
    return call.index, running.number, running.step, clock.number


def _taken(stack: list[_Frame], call: Any) -> _Frame | None:
    """Take out the frame of a call: devices that work at once end their calls in any order."""
    for place in reversed(range(len(stack))):
        if stack[place].call is call:
            return stack.pop(place)
    return None
