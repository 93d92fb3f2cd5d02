"""Which call an activation checkpoint computes again.

A checkpoint runs a part of the forward again inside the backward. Its calls are told from new ones
and matched with those that they repeat:

* in the backward of a custom function's node, such as that of a reentrant checkpoint, the n-th call
  of a module is the n-th since the node was made, which was just before the function ran its part
  without gradients;
* in that of any other node, inside a call that is itself repeated, it is the n-th since that one
  began;
* else it is the latest that began before the node was made. If no repeated call is around several
  calls of one module, they are not told apart.

A non-reentrant checkpoint repeats its part when the first of its nodes runs, which may be of any
kind; that it does so, torch's hooks for saved tensors tell.

Other calls inside a backward, by a hook or a custom function, are like these if their module was
called before.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from operator import itemgetter

from hookline.core.calls import Call, Key, Pass
from hookline.core.thread import Thread
from hookline.torch_base import private

_Place = tuple[Pass, int]


class Repeats:
    """The calls repeated in one backward and in the runs of the engine inside it."""

    __slots__ = ("_counts", "_made")

    def __init__(self) -> None:
        self._counts: dict[tuple[object, Key], int] = {}
        self._made: dict[Key, list[tuple[int, _Place]]] = {}

    def settle(self, call: Call, key: Key, thread: Thread) -> bool:
        """Whether the call repeats another; if so, it gets that one's pass and index.

        Args:
            call: the new call.
            key: a weak reference to its module.
            thread: the thread's state, with the call not yet on its stack.
        """
        found = self._find(key, thread)
        if found is None:
            return False
        call.running, call.index = found
        call.recomputing = True
        call.repeats = call.running.starts[key][call.index]
        self._made.setdefault(key, []).append((call.start, found))
        return True

    def _find(self, key: Key, thread: Thread) -> _Place | None:
        node = private.current_node()
        if node is None:
            return None
        number = private.node_number(node)
        if private.forward_class(node) is not None and not private.is_repeating():
            begin, count = number + 1, self._count(number, key)
            found = _since(begin, thread.passes, key, count) or self._again(begin, key, count)
            if found is not None or private.is_reentrant_checkpoint(node):
                return found
        around = next((frame for frame in reversed(thread.stack) if isinstance(frame, Call)), None)
        if around is not None and around.recomputing:
            return _since(around.repeats, (around.running,), key, self._count(around, key))
        return _before(number, thread.passes, key)

    def _count(self, part: object, key: Key) -> int:
        count = self._counts.get((part, key), 0)
        self._counts[part, key] = count + 1
        return count

    def _again(self, begin: int, key: Key, count: int) -> _Place | None:
        """What was itself a repeat: a reentrant checkpoint inside another."""
        made = self._made.get(key, [])
        place = bisect_left(made, begin, key=itemgetter(0)) + count
        return made[place][1] if place < len(made) else None


def _since(begin: int, passes: Iterable[Pass], key: Key, count: int) -> _Place | None:
    for running in passes:
        starts: Sequence[int] = running.starts.get(key, ())
        first = bisect_left(starts, begin)
        if first < len(starts):
            return running, min(first + count, len(starts) - 1)
    return None


def _before(number: int, passes: Iterable[Pass], key: Key) -> _Place | None:
    for running in reversed(list(passes)):
        place = bisect_right(running.starts.get(key, ()), number)
        if place:
            return running, place - 1
    return None
