"""How FLOPs are counted: operators, and the calls that run them, at both levels alike."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any

import torch

from hookline.core.clock import Clock
from hookline.core.records import FlopRow, UncountedRow
from hookline.core.thread import Thread, local
from hookline.hooks.formulas import NotCounted, flops_of, name_of
from hookline.hooks.subject import Subject
from hookline.torch_base.stack import current_thread


class _Counted:
    """What was counted of one thing."""

    __slots__ = ("calls", "operators", "total", "uncounted")

    def __init__(self) -> None:
        self.calls = 0
        self.total = 0
        self.operators: Counter[str] = Counter()
        self.uncounted: Counter[tuple[str, str]] = Counter()


class FlopMeter:
    """Counts the FLOPs of operators for the calls that run.

    Each thread has a stack of the calls that run, forward and backward; an operator is the
    innermost one's own, and part of all around it. A thread is known by its clock, which the
    threads in which autograd works share with the one that called `backward`.

    Args:
        level: `module` or `function`.
    """

    def __init__(self, level: str) -> None:
        self._level = level
        self._lock = threading.Lock()
        self._counted: defaultdict[Subject, _Counted] = defaultdict(_Counted)
        self._stacks: dict[Clock, list[tuple[Any, Subject]]] = {}
        self._scopes: set[Clock] = set()

    def open(self) -> None:
        """What runs in this thread outside of every call counts from now on."""
        self._scopes.add(local.thread.clock)

    def close(self) -> None:
        """Undo `open`."""
        self._scopes.discard(local.thread.clock)

    def begin(self, call: Any, what: Subject) -> None:
        """A call begins now."""
        self._stacks.setdefault(local.thread.clock, []).append((call, what))
        with self._lock:
            self._counted[what].calls += 1

    def end(self, call: Any) -> None:
        """A call ends now, well or not."""
        clock = local.thread.clock
        stack = self._stacks.get(clock, [])
        for place in reversed(range(len(stack))):
            if stack[place][0] is call:  # devices that work at once end their calls in any order
                del stack[place]
                break
        if not stack:
            self._stacks.pop(clock, None)

    def drop_running(self) -> None:
        """Forget the calls that run in this thread: their ends will not come."""
        self._stacks.pop(local.thread.clock, None)

    def ran(
        self, operator: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any
    ) -> None:
        """An operator has run in this thread."""
        thread = current_thread()
        stack = self._stacks.get(thread.clock)
        if stack is None and thread.clock not in self._scopes:
            return
        try:
            flops, reason = flops_of(operator, args, kwargs, out), ""
        except NotCounted as why:
            flops, reason = 0, str(why)
        if not flops and not reason:
            return
        around = [what for _, what in stack] if stack else [self._outside(thread)]
        with self._lock:
            own = self._counted[around[-1]]
            if reason:
                own.uncounted[name_of(operator), reason] += 1
                return
            own.operators[name_of(operator)] += flops
            for what in set(around):
                self._counted[what].total += flops

    def _outside(self, thread: Thread) -> Subject:
        backward = bool(thread.runs or thread.worker)
        mode = "train" if backward or torch.is_grad_enabled() else "no_grad"
        direction = "backward" if backward else "forward"
        return Subject("", None, "", self._level, mode, direction)

    def rows(self) -> list[FlopRow]:
        """What was counted so far."""
        with self._lock:
            return [_row(what, counted) for what, counted in self._counted.items()]

    def uncounted(self) -> list[UncountedRow]:
        """The operators without a number."""
        with self._lock:
            return [
                UncountedRow(**what._asdict(), operator=operator, calls=calls, reason=reason)
                for what, counted in self._counted.items()
                for (operator, reason), calls in counted.uncounted.items()
            ]

    def total(self) -> int:
        """All FLOPs together."""
        with self._lock:
            return sum(counted.operators.total() for counted in self._counted.values())

    def reset(self) -> None:
        """Forget what was counted; calls that run are not disturbed."""
        with self._lock:
            self._counted.clear()


def _row(what: Subject, counted: _Counted) -> FlopRow:
    return FlopRow(
        **what._asdict(),
        calls=counted.calls,
        self_flops=counted.operators.total(),
        total_flops=counted.total,
        operators=tuple(counted.operators.most_common()),
    )
