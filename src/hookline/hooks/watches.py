"""Hooks of both levels on one model, each for what it is meant for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import count
from types import TracebackType
from typing import Final

from hookline.core.records import Silent
from hookline.functions.hook import FunctionHook
from hookline.modules.hook import ModuleHook
from hookline.torch_base.given import Given
from hookline.torch_base.selection import Choice, distinct
from hookline.watch import Watch

_numbers: Final = count()


class Watches:
    """Watches of one model that open and close together.

    Args:
        given: the model, walked while the switch of modules is held.
        hooks: the hooks, each with what was chosen for it.
        name: what the hooks are for; with a number they get a name of their own, so that several
            may be open at once.
        prepend: run them before the hooks that are registered there.
    """

    def __init__(
        self,
        given: Given,
        hooks: Iterable[tuple[ModuleHook | FunctionHook, Sequence[Choice]]],
        name: str,
        *,
        prepend: bool = False,
    ) -> None:
        self._watches: Final[list[Watch]] = []
        own = f"{name} {next(_numbers)}"
        try:
            for hook, choices in hooks:
                watching = Watch(
                    given, distinct(choices), [(hook, own)], aimed=True, prepend=prepend
                )
                self._watches.append(watching)
        except BaseException:
            self.close()
            raise

    @property
    def closed(self) -> bool:
        """Whether the hooks were removed."""
        return all(watching.closed for watching in self._watches)

    def close(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        """Remove the hooks, as at the end of a `with` block; a second call does nothing."""
        try:
            for watching in reversed(self._watches):
                watching.__exit__(kind, error, traceback)
        except BaseException:  # Ctrl-C, or a hook's `deleted`: the others are removed all the same
            for watching in reversed(self._watches):
                watching.__exit__(kind, error, traceback)
            raise

    def silent(self) -> list[Silent]:
        """What was chosen and never called, with likely causes."""
        return [row for watching in self._watches for row in watching.silent()]
