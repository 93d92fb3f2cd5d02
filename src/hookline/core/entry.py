"""One registration, and what is registered at one place prepared for the call."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, Self, TypeAlias
from weakref import WeakKeyDictionary

from hookline.core.phases import BACKWARD_PRE, FORWARD, FORWARD_PRE, Phase

Callback: TypeAlias = Callable[..., object]

_BACKWARD: Final = frozenset({Phase.BACKWARD_PRE, Phase.BACKWARD})


class Entry:
    """One registered hook, with the callbacks that it has.

    The three manners of hooks differ only in how their callbacks read and change a call; each
    builds entries, and everything behind them treats all entries alike.

    Args:
        hook: what the user registered.
        callbacks: the callback of each phase the hook takes part in.
        name: how listings and errors call the hook.
        key: the name under which the hook is registered, if it is registered by name.
        paired: the hook's begins and ends belong together (hook objects): an end comes exactly
            where the begin came, and torch calls inside the hook fire no hooks.
        aborted: called instead of the end where the call raised.
        gradient: changes one gradient of an output as it arrives (value hooks).
        always: the `forward` callback runs also where the call raised.
        needs_grad_input: the gradients of the inputs are wanted.
        joint: the gradients of all outputs are wanted at once, before any flows on.
        retains: inputs are kept for the backward.
        timed: the hook reads the thread's clock.
        mode: a dispatch mode that stands on the thread while the hook's calls run.
    """

    __slots__ = (
        "__weakref__",
        "aborted",
        "alive",
        "always",
        "callbacks",
        "counted",
        "farewell",
        "fired",
        "gradient",
        "hook",
        "joint",
        "key",
        "mode",
        "name",
        "needs_grad_input",
        "paired",
        "retains",
        "timed",
        "watches_backward",
    )

    def __init__(  # noqa: PLR0913 - one keyword for each thing that a hook may ask for
        self,
        hook: Any,
        callbacks: dict[Phase, Callback],
        *,
        name: str,
        key: str | None = None,
        paired: bool = False,
        aborted: Callback | None = None,
        gradient: Callback | None = None,
        always: bool = False,
        needs_grad_input: bool = False,
        joint: bool = False,
        retains: bool = False,
        timed: bool = False,
        mode: Any = None,
    ) -> None:
        self.hook: Final = hook
        self.callbacks: Final = callbacks
        self.name: Final = name
        self.key: Final = key
        self.paired: Final = paired
        self.aborted: Final = aborted
        self.gradient: Final = gradient
        self.always: Final = always
        self.needs_grad_input: Final = needs_grad_input
        self.joint: Final = joint
        self.retains: Final = retains
        self.timed: Final = timed
        self.mode: Final = mode
        self.watches_backward: Final = gradient is not None or not _BACKWARD.isdisjoint(callbacks)
        """Whether the hook runs in a phase of the backward."""
        self.alive = True
        """False as soon as the hook is removed; looked at before every call of it."""
        self.counted = False
        """Whether what it asks of the engine is counted: see `Demand`."""
        self.farewell: Callable[[], object] | None = None
        """Called once, just before the hook is removed, in whatever way that happens."""
        self.fired = False
        """Whether it was ever called in an event."""

    def guarded(self, guard: Callable[[Callback], Callback]) -> dict[str, Any]:
        """The arguments of an entry like this one, with something around each of its callbacks.

        Args:
            guard: makes the callback that is called in the place of one.
        """
        found = {name: getattr(self, name) for name in _ASKED}
        for name in ("aborted", "gradient"):
            callback = getattr(self, name)
            found[name] = None if callback is None else guard(callback)
        return {
            "hook": self.hook,
            "callbacks": {phase: guard(each) for phase, each in self.callbacks.items()},
            **found,
        }

    @property
    def phases(self) -> tuple[Phase, ...]:
        """The phases in which the hook runs, in the order of a call."""
        found = set(self.callbacks)
        if self.gradient is not None:
            found.add(Phase.BACKWARD_PRE)
        return tuple(phase for phase in Phase if phase in found)

    @property
    def backward_only(self) -> bool:
        """Whether the hook runs in no phase of the forward; then no failed forward is its own."""
        forward = Phase.FORWARD_PRE in self.callbacks or Phase.FORWARD in self.callbacks
        return self.watches_backward and not forward

    def __repr__(self) -> str:
        state = "" if self.alive else " removed"
        return f"<Entry{state} {self.name} at {', '.join(self.phases)}>"


_ASKED: Final = (
    "name",
    "key",
    "paired",
    "always",
    "needs_grad_input",
    "joint",
    "retains",
    "timed",
    "mode",
)
"""What an entry is told besides its callbacks."""

Pairs: TypeAlias = tuple[tuple[Entry, Callback], ...]


class Lineup:
    """The entries of one event in their order, with a tuple prepared for each phase.

    A lineup never changes: registering and removing make a new one, so whoever runs through one
    has a snapshot. Order: scoped hooks of the thread, hooks for all modules, hooks of the one
    module or function; within each in the order of registration, those with `prepend` in front.
    The tuples are prepared when the first event needs them, so registering costs little: until
    then it is an `_Unprepared`, since Python takes long to read the attributes of a class with a
    `__getattr__`.
    """

    __slots__ = (
        "__weakref__",
        "_merged",
        "always",
        "backward",
        "backward_pre",
        "entries",
        "forward",
        "forward_pre",
        "gradients",
        "joint",
        "modes",
        "needs_grad_input",
        "paired",
        "paired_backward",
        "retains",
        "surrounds",
        "watches_backward",
    )

    entries: tuple[Entry, ...]
    forward_pre: Pairs
    forward: Pairs
    backward_pre: Pairs
    backward: Pairs
    gradients: tuple[Entry, ...]
    paired: tuple[Entry, ...]
    paired_backward: tuple[Entry, ...]
    always: Pairs
    modes: tuple[Any, ...]
    watches_backward: bool
    needs_grad_input: bool
    joint: bool
    retains: bool
    surrounds: bool
    """Whether more is to be done around the layer than to fire events."""
    _merged: WeakKeyDictionary[Lineup, Lineup] | None

    def __new__(cls, entries: Iterable[Entry] = ()) -> Self:
        """A lineup that is not prepared yet."""
        new = object.__new__(_Unprepared)
        new.entries = tuple(entries)
        return new  # type: ignore[return-value]

    # Threads may prepare one lineup at once: each attribute is set once, to what it stays.
    def _prepare(self) -> None:
        """Sort the entries, in one pass over them: `watch` makes a lineup for each module."""
        forward_pre = forward = backward_pre = backward = always = ()
        gradients = modes = paired = paired_backward = ()
        watches_backward = needs_grad_input = joint = retains = False
        for entry in self.entries:
            for phase, callback in entry.callbacks.items():
                pairs = ((entry, callback),)
                if phase is FORWARD:
                    forward += pairs
                    always += pairs if entry.always else ()
                elif phase is FORWARD_PRE:
                    forward_pre += pairs
                elif phase is BACKWARD_PRE:
                    backward_pre += pairs
                else:
                    backward += pairs
            if entry.gradient is not None:
                gradients += (entry,)
            if entry.paired:
                paired += () if entry.backward_only else (entry,)
                paired_backward += (entry,) if entry.watches_backward else ()
            if entry.mode is not None:
                modes += (entry.mode,)
            watches_backward |= entry.watches_backward
            needs_grad_input |= entry.needs_grad_input
            joint |= entry.joint
            retains |= entry.retains
        self.forward_pre, self.forward, self.always = forward_pre, forward, always
        self.backward_pre, self.backward, self.gradients = backward_pre, backward, gradients
        self.paired, self.paired_backward, self.modes = paired, paired_backward, modes
        self.watches_backward, self.joint, self.retains = watches_backward, joint, retains
        self.needs_grad_input = needs_grad_input
        self.surrounds = needs_grad_input or bool(modes)
        self._merged = None

    def followed_by(self, own: Lineup) -> Lineup:
        """This lineup with another behind it.

        A named entry of the other takes the place of one here that has its name.
        """
        if not own.entries:
            return self
        known = self._merged
        if known is None:
            # Kept no longer than both lineups are in use, so that a removed hook leaves no trace.
            known = self._merged = WeakKeyDictionary()
        merged = known.get(own)
        if merged is None:
            merged = known[own] = self._merge(own)
        return merged

    def _merge(self, own: Lineup) -> Lineup:
        named = {e.key: e for e in own.entries if e.key is not None}
        taken = {e.key for e in self.entries if e.key in named}
        front = [named[e.key] if e.key in taken and e.key else e for e in self.entries]
        return Lineup(front + [e for e in own.entries if e.key is None or e.key not in taken])


class _Unprepared(Lineup):
    """A lineup that no event has looked at yet; when one does, it becomes a plain one."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        if name not in Lineup.__slots__:
            raise AttributeError(name)
        self._prepare()
        self.__class__ = Lineup  # pyright: ignore[reportAttributeAccessIssue]
        return getattr(self, name)


EMPTY: Final = Lineup()
