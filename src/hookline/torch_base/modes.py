"""This thread's stacks of modes, from which one may be taken wherever it lies.

The public `with` needs last in, first out; scopes may end in any order, and other modes may lie
above ours.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from hookline.torch_base import private


class ModeStack:
    """One of the stacks that torch keeps for each thread.

    Args:
        count: how many modes are on it.
        at: the mode at a place, from the bottom.
        push: puts a mode on top.
        pop: takes the topmost one.
    """

    def __init__(
        self,
        count: Callable[[], int],
        at: Callable[[int], Any],
        push: Callable[[Any], None],
        pop: Callable[[], Any],
    ) -> None:
        self._count = count
        self._at = at
        self._push = push
        self._pop = pop

    def __iter__(self) -> Iterator[Any]:
        return (self._at(place) for place in range(self._count()))

    def has(self, mode: Any) -> bool:
        """Whether a mode is on the stack; while it handles a call, torch takes it off."""
        at = self._at
        # A loop, since a generator takes several times longer.
        for place in range(self._count()):  # noqa: SIM110
            if at(place) is mode:
                return True
        return False

    def put_on(self, mode: Any) -> bool:
        """Put a mode on top, unless it is on; tells whether it was put."""
        absent = not self.has(mode)
        if absent:
            self._push(mode)
        return absent

    def take_out(self, mode: Any) -> None:
        """Take a mode off the stack, wherever and however often it lies there."""
        count = self._count()
        if count and self._at(count - 1) is mode:
            self._pop()
        if not self.has(mode):
            return
        others = [other for other in self if other is not mode]
        try:
            self.put(others)
        except BaseException:  # Ctrl-C: nobody's mode is lost
            self.put(others)
            raise

    def put(self, modes: list[Any]) -> None:
        """Make these the modes on the stack."""
        while self._count():
            self._pop()
        for mode in modes:
            self._push(mode)

    @contextmanager
    def standing(self, modes: Iterable[Any]) -> Generator[None]:
        """Keep modes on for a while; those that were on before stay on."""
        put: list[Any] = []
        try:
            put += (mode for mode in modes if self.put_on(mode))
            yield
        finally:
            for mode in reversed(put):
                self.take_out(mode)


function_modes: Final = ModeStack(
    private.mode_count, private.mode_at, private.push_mode, private.pop_mode
)
"""The modes that see functions."""

dispatch_modes: Final = ModeStack(
    private.dispatch_modes,
    private.dispatch_mode_at,
    private.push_dispatch_mode,
    private.pop_dispatch_mode,
)
"""The modes that see operators. Autograd hands the stack of the thread that calls `backward` to the
threads it works in, and each node finds it as it was then."""
