"""How memory is measured: calls that nest, in any number of threads, at both levels alike."""

from __future__ import annotations

import threading
from collections import OrderedDict, defaultdict
from collections.abc import Sequence
from typing import Any, Final
from weakref import WeakKeyDictionary

from torch import Tensor

from hookline.core.calls import Call, Pass
from hookline.core.records import MemoryRow
from hookline.core.thread import Thread, local
from hookline.hooks.allocator import Allocator
from hookline.hooks.claims import Claim, Claims, Sums
from hookline.hooks.memory_use import Usage, Use, bytes_of, larger
from hookline.hooks.subject import Subject
from hookline.torch_base.private import sequence_number
from hookline.torch_base.saved import SavedWalk

_PASSES: Final = 4
"""So many passes of a thread may run by turns, such as those of two models and a loss."""


class _Frame:
    """A call that is being measured; `start` and `stop` are autograd's sequence numbers."""

    allocated: int | None = None
    peak: int | None = None
    ended = False
    start = 0
    stop = 0
    output = 0
    inside = 0
    """What the calls inside keep."""

    def __init__(self, call: Call, what: Subject, around: _Frame | None) -> None:
        self.call: Final = call
        self.module: Any = getattr(call, "key", None)
        self.what: Final = what
        self.around: Final = around

    def ended_around(self) -> _Frame | None:
        """The nearest call around that has ended well."""
        frame = self.around
        while frame is not None and not frame.ended:
            frame = frame.around
        return frame


class _PassState:
    """What is known of one pass in one thread."""

    def __init__(self, running: Pass) -> None:
        self.claims: Final = Claims(running)
        self.used: Final[dict[Subject, Use]] = {}


class _Track:
    """The calls of one thread, from an outermost one to its end.

    Attributes:
        stack: the calls that run.
        ended: those that have ended well, inner ones before those around them.
        state: what is known of the pass of the outermost one.
    """

    state: _PassState

    def __init__(self) -> None:
        self.stack: Final[list[_Frame]] = []
        self._passes: Final[OrderedDict[Pass, _PassState]] = OrderedDict()

    def open(self, running: Pass) -> None:
        """An outermost call begins."""
        state = self._passes.get(running)
        if state is None:
            state = self._passes[running] = _PassState(running)
            if len(self._passes) > _PASSES:
                self._passes.popitem(last=False)
        self._passes.move_to_end(running)
        self.state = state
        self.ended: list[_Frame] = []
        self._walk = SavedWalk()
        self._claims: list[Claim] = []
        self._packed: list[tuple[int, int]] = []

    def read(self, outputs: Sequence[Tensor], start: int) -> None:
        """Note what is kept by the nodes that made the outputs."""
        for saved in self._walk.back_from(outputs, start):
            self._claims.extend(self.state.claims.of(saved))
            if saved.packed:
                self._packed.append((saved.number, 1))

    def close(self) -> list[tuple[_Frame, Use]]:
        """The outermost call is over: what it and those inside it take."""
        saved = Sums((claim.number, claim.size) for claim in self._claims if not claim.packed)
        packed_bytes = Sums((claim.number, claim.size) for claim in self._claims if claim.packed)
        packed = Sums(self._packed)
        found: list[tuple[_Frame, Use]] = []
        for frame in self.ended:
            span = frame.start, frame.stop
            kept, around = saved.between(*span), frame.ended_around()
            if around is not None:
                around.inside += kept
            own = kept - frame.inside
            use = Use(frame.output, kept, own, packed_bytes.between(*span), packed.between(*span))
            found.append((frame, use))
        self.ended = []
        return found


class MemoryMeter:
    """Measures calls.

    At the end of each call it walks the graph from the outputs back to where the outermost
    measured call began, over nodes that it has not met; what they keep is noted by their numbers.
    When the outermost call ends, each storage is counted for the call that made the first node
    which keeps it, and for the calls around that one. So each node is met once, and the figures of
    the calls inside a call are part of its own.

    Args:
        allocator: tells what is allocated on the device.
    """

    def __init__(self, allocator: Allocator) -> None:
        self._allocator: Final = allocator
        self._usages: Final[defaultdict[Subject, Usage]] = defaultdict(Usage)
        self._tracks: Final[WeakKeyDictionary[Thread, _Track]] = WeakKeyDictionary()
        self._lock: Final = threading.RLock()

    def begin(self, call: Call, what: Subject) -> None:
        """A call begins now."""
        track = self._track()
        self._drop_lost(track)
        stack = track.stack
        if not stack:
            track.open(call.running)
        frame = _Frame(call, what, stack[-1] if stack else None)
        self._read_begin(frame)
        stack.append(frame)

    def end(self, call: Call, outputs: Sequence[Tensor], inputs: Sequence[Tensor]) -> None:
        """A call has ended well.

        Args:
            call: the call.
            outputs: its output tensors.
            inputs: its input tensors.
        """
        track = self._track()
        frame = self._leave(track, call)
        if frame is None:
            return
        outermost = track.stack[0].call if track.stack else call
        track.read(outputs, outermost.start)
        frame.start, frame.stop, frame.ended = call.start, sequence_number(), True
        frame.output = bytes_of(outputs, besides=inputs)
        track.ended.append(frame)
        if not track.stack:
            self._settle(track)

    def abort(self, call: Call) -> None:
        """A call raised: it is left out, those inside it that ended well are not."""
        track = self._track()
        if self._leave(track, call) is not None and not track.stack:
            self._settle(track)

    def rows(self) -> list[MemoryRow]:
        """What was measured so far."""
        with self._lock:
            return [usage.row(what) for what, usage in self._usages.items()]

    def reset(self) -> None:
        """Forget what was measured."""
        with self._lock:
            self._usages.clear()
            self._tracks.clear()

    def _track(self) -> _Track:
        thread = local.thread
        with self._lock:
            track = self._tracks.get(thread)
            if track is None:
                track = self._tracks[thread] = _Track()
            return track

    def _drop_lost(self, track: _Track) -> None:
        """Drop calls that have ended unseen, because the hook was removed meanwhile."""
        running, stack = local.thread.stack, track.stack
        while stack and stack[-1].call not in running:
            stack.pop()
            if not stack:
                self._settle(track)

    def _leave(self, track: _Track, call: Call) -> _Frame | None:
        if not track.stack or track.stack[-1].call is not call:
            return None
        frame = track.stack.pop()
        self._read_end(frame)
        return frame

    def _settle(self, track: _Track) -> None:
        used = track.state.used
        with self._lock:
            for frame, use in track.close():
                what = frame.what
                usage = self._usages[what]
                used[what] = usage.add(use, used.get(what))
                usage.module = frame.module
                usage.allocated = larger(usage.allocated, frame.allocated)
                usage.peak = larger(usage.peak, frame.peak)

    def _read_begin(self, frame: _Frame) -> None:
        reading = self._allocator.read()
        if reading is None:
            return
        frame.allocated = reading.allocated
        if self._allocator.peaks:
            if frame.around is not None:
                frame.around.peak = larger(frame.around.peak, reading.peak)
            self._allocator.forget_peak()
            frame.peak = reading.allocated

    def _read_end(self, frame: _Frame) -> None:
        reading = self._allocator.read()
        if reading is None or frame.allocated is None:
            frame.peak = None  # the device came into use, or went, in between
            return
        if frame.peak is not None:
            peak = max(frame.peak, reading.peak)
            if frame.around is not None:
                frame.around.peak = larger(frame.around.peak, peak)
            frame.peak = peak - frame.allocated
        frame.allocated = reading.allocated - frame.allocated
