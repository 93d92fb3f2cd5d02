"""Hooks that changed a forward which a checkpoint will repeat must be there when it does.

Else the backward gets what an unchanged forward made, and gradients belong to neither. The engine
may be off by then, so the checkpoint itself is given something to run: it puts a guard at each
changed call whose hook is gone. Only a checkpoint's part with changes in it pays for that.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, Final, NamedTuple
from weakref import ref

from hookline.core.calls import Call
from hookline.core.entry import Entry
from hookline.core.handle import HookHandle
from hookline.core.phases import Phase
from hookline.core.thread import Thread, local
from hookline.errors import RecomputeError
from hookline.torch_base import private

Guard = Callable[[Entry], HookHandle | None]
"""Registers a hook where a call was changed; None if that is gone."""


class _Change(NamedTuple):
    """One change of a call by a hook.

    Attributes:
        entry: the hook's registration, which is not kept.
        identity: which calls are meant.
        what: the hook and what it changed, in words.
        phase: when.
        guard: registers a hook there.
    """

    entry: ref[Entry]
    identity: object
    what: str
    phase: Phase
    guard: Guard


class _Watching:
    """Makes no change itself: what stands in the place of a hook that is gone."""

    changes: Final = False


class _Repeated:
    """Runs what a checkpoint repeats, and makes sure of the hooks that changed it."""

    def __init__(self, run: Callable[..., Any]) -> None:
        self._run = run
        self._changes: dict[object, _Change] = {}

    def add(self, change: _Change) -> None:
        """Remember a change, once for each place."""
        self._changes.setdefault((change.entry, change.identity, change.phase), change)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with ExitStack() as opened:
            for change in self._changes.values():
                entry = change.entry()
                if entry is None or not entry.alive:
                    handle = change.guard(_missing(change, local.thread))
                    if handle is not None:
                        opened.enter_context(handle)
            return self._run(*args, **kwargs)


def _missing(change: _Change, thread: Thread) -> Entry:
    """What refuses a call that nobody changes any more."""

    def refuse(call: Call, *_: object) -> None:
        if local.thread is thread and call.identity == change.identity and not call.changed:
            msg = (
                f"{change.what} in the forward, and is gone now that a checkpoint repeats it for "
                "the backward: gradients would belong to neither. Keep the hook until backward() "
                "is over, as by calling it inside of the same `with`"
            )
            raise RecomputeError(msg)

    return Entry(_Watching(), {change.phase: refuse}, name="checkpoint", paired=True)


def note_change(call: Call, phase: Phase, guard: Guard) -> None:
    """Tell that the hook which runs changes its call, in the forward.

    Args:
        call: the call.
        phase: at which the change is made.
        guard: registers a hook for such calls.
    """
    call.changed = True
    entry = local.thread.busy
    if not isinstance(entry, Entry):
        return
    for part, name in private.checkpointed_parts():
        run = getattr(part, name)
        if not isinstance(run, _Repeated):
            run = _Repeated(run)
            setattr(part, name, run)
        value = "the inputs" if phase is Phase.FORWARD_PRE else "the output"
        what = f"{entry.name} changed {value} of {call.describe()}"
        run.add(_Change(ref(entry), call.identity, what, phase, guard))
