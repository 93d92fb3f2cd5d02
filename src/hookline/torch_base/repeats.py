"""Which call an activation checkpoint computes again.

A checkpoint runs a part of the forward again inside the backward. Its calls, of modules and of the
functions that modules call, are told from new ones and matched with those that they repeat:

* in the backward of a custom function's node, such as that of a reentrant checkpoint, the n-th call
  of a module is the n-th since the node was made, which was just before the function ran its part
  without gradients;
* in that of any other node, inside a call that is itself repeated, it is the n-th since that one
  began;
* else it is the latest that began before the node was made. If no repeated call is around several
  calls of one module, they are not told apart.

A non-reentrant checkpoint repeats its part when the first of its nodes runs, which may be of any
kind; that it does so, torch's hooks for saved tensors tell. What a checkpoint runs is a repeat also
where nobody watched the first call; it is then counted as if it were new.

Other calls inside a backward, by a hook or a custom function, are like these if their module was
called before.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from operator import itemgetter

from hookline.core.calls import Call, Pass
from hookline.core.thread import Thread
from hookline.torch_base import private

_Place = tuple[Pass, int, int]  # with where autograd's numbering stood
Known = Sequence[tuple[Pass, Sequence[int]]]
"""Passes, the earliest first, and where the calls in question began in each."""


def repeated_around(thread: Thread) -> Call | None:
    """The innermost watched call that runs, if it is a repeat."""
    around = next((frame for frame in reversed(thread.stack) if isinstance(frame, Call)), None)
    return around if around is not None and around.recomputing else None


def in_checkpoint(thread: Thread) -> bool:
    """Whether what is called now, inside a backward, is repeated by a checkpoint."""
    return (
        repeated_around(thread) is not None
        or private.is_repeating()
        or private.is_reentrant_checkpoint(private.current_node())
    )


class Repeats:
    """The calls repeated in one backward and in the runs of the engine inside it."""

    __slots__ = ("_counts", "_made")

    def __init__(self) -> None:
        self._counts: dict[tuple[object, object], int] = {}
        self._made: dict[object, list[tuple[int, _Place]]] = {}

    def settle(self, call: Call, key: object, known: Known, thread: Thread, begun: int) -> bool:
        """Whether the call repeats one that is known; if so, it gets that one's pass and index.

        Args:
            call: the new call; where it begins is known.
            key: what it is a call of.
            known: the calls of that so far.
            thread: the thread's state, with the call not yet on its stack.
            begun: where autograd's numbering stood when the run began.
        """
        found = self._find(key, known, thread, begun)
        if found is None:
            call.recomputing = in_checkpoint(thread)
            return False
        call.running, call.index, call.repeats = found
        call.recomputing = True
        self._made.setdefault(key, []).append((call.start, found))
        return True

    def _find(self, key: object, known: Known, thread: Thread, begun: int) -> _Place | None:
        node = private.current_node()
        if node is None:
            return None
        number = private.node_number(node)
        if private.forward_class(node) is not None and not private.is_repeating():
            begin, count = number + 1, self._count(number, key)
            found = _since(begin, begun, known, count) or self._again(begin, key, count)
            if found is not None or private.is_reentrant_checkpoint(node):
                return found
        around = repeated_around(thread)
        if around is not None and around.repeats is not None:
            known = [each for each in known if each[0] is around.running]
            return _since(around.repeats, begun, known, self._count(around, key))
        return _before(number, known)

    def _count(self, part: object, key: object) -> int:
        count = self._counts.get((part, key), 0)
        self._counts[part, key] = count + 1
        return count

    def _again(self, begin: int, key: object, count: int) -> _Place | None:
        """What was itself a repeat: a reentrant checkpoint inside another."""
        made = self._made.get(key, [])
        place = bisect_left(made, begin, key=itemgetter(0)) + count
        return made[place][1] if place < len(made) else None


def _since(begin: int, end: int, known: Known, count: int) -> _Place | None:
    for running, starts in known:
        first, last = bisect_left(starts, begin), bisect_left(starts, end)
        if first < last:
            place = min(first + count, last - 1)
            return running, place, starts[place]
    return None


def _before(number: int, known: Known) -> _Place | None:
    for running, starts in reversed(known):
        place = bisect_right(starts, number) - 1
        if place >= 0:
            return running, place, starts[place]
    return None
