"""Where registrations live: one place owns their order and the names taken."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator

from hookline.core.demand import demand
from hookline.core.entry import EMPTY, Entry, Lineup
from hookline.core.handle import HookHandle
from hookline.core.notes import add_detail
from hookline.core.switch import Switch, lock
from hookline.core.travel import StaysHere
from hookline.errors import HookNameError


class HookRegistry(StaysHere):
    """The hooks of one place, in order: a module, a function, a thread, or all modules.

    May be changed from any thread at any time. Each change prepares a new `lineup`; an event
    that is running keeps the one it began with and skips what was removed meanwhile.

    Args:
        switch: held while the registry has entries, so that what they need is on just then.
        inner: the registry of the wrapped layer, where this is that of a wrapper.
        changed: told of each hook that comes or goes, but hook objects.

    Attributes:
        wrapped: whether it is the `inner` of another: its hooks run there, even where the layer
            object itself is gone.
    """

    __slots__ = ("__weakref__", "changed", "inner", "lineup", "switch", "wrapped")

    def __init__(
        self,
        switch: Switch,
        inner: HookRegistry | None = None,
        changed: Callable[[Entry], None] | None = None,
    ) -> None:
        self.switch = switch
        self.changed = changed
        self.wrapped = False
        self.wrap(inner)
        self.lineup: Lineup = EMPTY
        """What is registered now; replaced, never changed."""

    def wrap(self, inner: HookRegistry | None) -> None:
        """Be the registry of a wrapper of what another is the registry of."""
        self.inner = inner
        if inner is not None:
            inner.wrapped = True

    def add(self, entry: Entry, *, prepend: bool = False) -> HookHandle:
        """Register an entry behind the others, or in front of them with `prepend`.

        Raises:
            HookNameError: if the entry has a key and the key is taken; the first one stays.
        """
        handle = HookHandle(entry, self)
        self.put(entry, prepend=prepend)
        return handle

    def put(self, entry: Entry, *, prepend: bool = False) -> None:
        """Register an entry as `add` does, without a handle."""
        try:
            self._put(entry, prepend=prepend)
        except BaseException:  # Ctrl-C may come anywhere
            self._drop(entry)
            raise

    def _put(self, entry: Entry, *, prepend: bool) -> None:
        with lock:
            entries = self.lineup.entries
            if entries and entry.key is not None and entry.key in self.named():
                msg = (
                    f"hook {entry.key} already exists; "
                    "`with hook.renamed('another name'):` keeps both"
                )
                raise HookNameError(msg)
            if not entries:
                self.switch.hold(self)
            self.lineup = Lineup((entry, *entries) if prepend else (*entries, entry))
            demand.admit(entry)
        self._tell(entry)

    def discard(self, entry: Entry) -> None:
        """Remove an entry at once; does nothing if it is not here any more.

        Raises:
            BaseException: what the hook's `deleted` raised; it is gone all the same.
        """
        try:
            with lock:
                farewell, entry.farewell = entry.farewell, None
            if farewell is not None:
                farewell()
        finally:
            try:
                self._drop(entry)
            except BaseException:  # Ctrl-C: what has begun is finished
                self._drop(entry)
                raise

    def _drop(self, entry: Entry) -> None:
        with lock:
            demand.dismiss(entry)
            entries = self.lineup.entries
            was_here = entry in entries
            if was_here:
                left = tuple([e for e in entries if e is not entry]) if len(entries) > 1 else ()
                self.lineup = Lineup(left) if left else EMPTY
            if self.lineup is EMPTY:
                self.switch.release(self)
        if was_here:
            self._tell(entry)

    # Outside of the lock: whoever is told may wait for a thread that waits for it.
    def _tell(self, entry: Entry) -> None:
        if self.changed is not None and not entry.paired:
            self.changed(entry)

    def clear(self) -> None:
        """Remove every entry; see `discard_all`."""
        discard_all((self, entry) for entry in self.lineup.entries)

    def forget(self) -> None:
        """Remove every entry, in a forked child: no hook there is told of it."""
        for entry in self.lineup.entries:
            self._drop(entry)

    def named(self) -> dict[str, Entry]:
        """The entries that are registered by name, in order."""
        return {e.key: e for e in self.lineup.entries if e.key is not None}

    def behind(self, outer: Lineup) -> Lineup:
        """The lineup of an event here: `outer` first, then what is registered here."""
        own = self.lineup
        return own if outer is EMPTY else outer.followed_by(own)

    def __len__(self) -> int:
        return len(self.lineup.entries)

    def __bool__(self) -> bool:
        return True

    def __iter__(self) -> Iterator[HookHandle]:
        return (HookHandle(entry, self) for entry in self.lineup.entries)

    # A registry that goes away with its module or thread must not keep the engine on. At the end of
    # the interpreter nothing needs to be turned off, and what that takes may be gone.
    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        # Where Ctrl-C came before it was made, it has no lineup.
        if getattr(self, "lineup", EMPTY).entries and not is_finalizing():
            self.clear()

    def __repr__(self) -> str:
        names = ", ".join(entry.name for entry in self.lineup.entries)
        return f"<HookRegistry: {names or 'empty'}>"


def discard_all(registered: Iterable[tuple[HookRegistry, Entry]]) -> None:
    """Remove entries, the last one first; none stays because another one's `deleted` raises.

    Raises:
        BaseException: the first that a hook's `deleted` raised, with the others as its details.
    """
    errors: list[BaseException] = []
    for registry, entry in reversed(list(registered)):
        try:
            registry.discard(entry)
        except BaseException as error:  # noqa: BLE001 - all others are removed first
            errors.append(error)
    for another in errors[1:]:
        add_detail(errors[0], f"another hook's deleted raised {another!r}")
    if errors:
        raise errors[0]
