"""Hooks that changed a forward which a checkpoint will repeat must change it when it does.

Else the backward gets what an unchanged forward made, and gradients belong to neither. The engine
may be off by then, so the checkpoint itself is given something to run: it puts a guard at each
changed call. Only a checkpoint's part with changes in it pays for that. For the same reason hooks
may not change in a repeat what none has changed in the forward.

Which of several calls of one module a checkpoint repeats is not always known. So of hooks that are
still there it is only asked that no more calls are left as they are, or are changed, than were in
the whole pass.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import Any, Final, NamedTuple, NoReturn
from weakref import ref

from torch import Tensor, nn

from hookline.core.calls import Call, Pass
from hookline.core.entry import Entry
from hookline.core.handle import HookHandle
from hookline.core.phases import Phase
from hookline.core.thread import Thread, local
from hookline.errors import RecomputeError
from hookline.torch_base import private
from hookline.torch_base.tree import tensors

_VALUES: Final = {Phase.FORWARD_PRE: "the inputs", Phase.FORWARD: "the output"}

Guard = Callable[[Entry], HookHandle | None]
"""Registers a hook where a call was changed, behind all others; None if that is gone."""


class _Change(NamedTuple):
    """One change of a call by a hook.

    Attributes:
        entry: the hook's registration, which is not kept; None where it is not known.
        identity: which calls are meant.
        counted: what calls are counted by.
        running: the pass.
        what: the hook and what it changed, in words.
        phase: when.
        guard: registers a hook there.
    """

    entry: ref[Entry] | None
    identity: object
    counted: object
    running: Pass
    what: str
    phase: Phase
    guard: Guard

    @property
    def is_gone(self) -> bool:
        """Whether the hook is known to be there no more."""
        entry = None if self.entry is None else self.entry()
        return self.entry is not None and (entry is None or not entry.alive)

    def tallies(self) -> tuple[int, int]:
        """How many calls in the pass were left as they are, and how many were changed."""
        changed = len(self.running.changed[self.counted, self.phase])
        return self.running.calls_of(self.counted) - changed, changed

    def refuse(self, now: str) -> NoReturn:
        """Stop a repeat that is not what the forward was.

        Args:
            now: what the hook does, in words.

        Raises:
            RecomputeError: always.
        """
        now = "is gone" if self.is_gone else now
        msg = (
            f"{self.what} in the forward, and {now} now that a checkpoint repeats it for the "
            "backward: gradients would belong to neither. Keep the hook until backward() is over, "
            "as by calling it inside of the same `with`, and change a repeated call as the first"
        )
        raise RecomputeError(msg)


class _Repeated:
    """Runs what a checkpoint repeats, and makes sure of the hooks that changed it."""

    def __init__(self, run: Callable[..., Any]) -> None:
        self._run = run
        self._changes: dict[object, _Change] = {}

    def add(self, change: _Change) -> None:
        """Remember a change, once for each place."""
        self._changes.setdefault((change.entry, change.identity, change.phase), change)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        thread = local.thread
        place = _guarded_bare if thread.busy else _guarded
        with ExitStack() as opened:
            for change in self._changes.values():
                handle = place(change, thread)
                if handle is not None:
                    opened.enter_context(handle)
            _repeating.parts.append(self)
            opened.callback(_repeating.parts.remove, self)
            return self._run(*args, **kwargs)

    def has(self, counted: object, phase: Phase) -> bool:
        """Whether the forward of such a call was changed at a phase."""
        return any(c.counted == counted and c.phase is phase for c in self._changes.values())


class _Repeating(threading.local):
    """The parts that the thread repeats now, the outermost first."""

    def __init__(self) -> None:
        self.parts: list[_Repeated] = []


_repeating: Final = _Repeating()


class _Guard:
    """Stands behind all hooks of a repeated call, and looks at what they made of it."""

    changes: Final = False  # it makes none itself

    def __init__(self, change: _Change, thread: Thread) -> None:
        self._change = change
        self._thread = thread
        self._left_most, self._changed_most = change.tallies()
        self._left = self._changed = 0
        self._entry: Final = Entry(self, {change.phase: self._look}, name="checkpoint", paired=True)
        self.handle = change.guard(self._entry)

    def _look(self, call: Call, *_: object) -> None:
        if local.thread is not self._thread or call.identity != self._change.identity:
            return
        if self._change.phase in call.changed:
            self._changed += 1
            if self._changed > self._changed_most:
                self._change.refuse("changes more calls")
        elif self._is_last():
            self._left += 1
            if self._left > self._left_most or self._change.is_gone:
                self._change.refuse("does not")

    def _is_last(self) -> bool:
        """Whether no hook that was registered since the repeat began may still change the call."""
        assert self.handle is not None
        entries = self.handle.registry.lineup.entries
        behind = entries[entries.index(self._entry) :]
        return all(isinstance(entry.hook, _Guard) for entry in behind)


def _guarded(change: _Change, thread: Thread) -> HookHandle | None:
    return _Guard(change, thread).handle


def _guarded_bare(change: _Change, thread: Thread) -> AbstractContextManager[Any] | None:
    """The same where hooks rest, so that nobody changes a call: by a hook of torch's."""
    module = change.identity() if isinstance(change.identity, ref) else None
    if not isinstance(module, nn.Module) or (change.tallies()[0] and not change.is_gone):
        return None

    def refuse(*_: object) -> None:
        if local.thread is thread:
            change.refuse("rests")

    if change.phase is Phase.FORWARD_PRE:
        return module.register_forward_pre_hook(refuse)
    return module.register_forward_hook(refuse)


def note_change(call: Call, phase: Phase, guard: Guard, hook: str = "") -> None:
    """Tell that the hook which runs changes its call, in the forward.

    Args:
        call: the call.
        phase: at which the change is made.
        guard: registers a hook for such calls.
        hook: the hook in words, where it is no hook object.
    """
    entry = local.thread.busy
    who = entry.name if isinstance(entry, Entry) else hook
    if who and call.recomputing:
        _check_forward(call, phase, who)
    layer: Any = call
    while layer is not None:  # a wrapped layer's call is one with that of its wrapper
        layer.changed = (*layer.changed, phase)
        layer = layer.parent if getattr(layer, "wrapped", None) is not None else None
    call.running.changed.setdefault((call.counted, phase), set()).add(call.index)
    if not who:
        return
    for part, name in private.checkpointed_parts():
        run = getattr(part, name)
        if not isinstance(run, _Repeated):
            run = _Repeated(run)
            setattr(part, name, run)
        known = ref(entry) if isinstance(entry, Entry) else None
        what = f"{who} changed {_VALUES[phase]} of {call.describe()}"
        change = _Change(known, call.identity, call.counted, call.running, what, phase, guard)
        run.add(change)


def _check_forward(call: Call, phase: Phase, who: str) -> None:
    """Refuse the change of a repeat whose forward nobody changed.

    Raises:
        RecomputeError: it was not.
    """
    if not (private.is_repeating() or private.is_reentrant_checkpoint(private.current_node())):
        return  # a custom function's own way of computing again, or a checkpoint inside another
    if not any(part.has(call.counted, phase) for part in _repeating.parts):
        msg = (
            f"{who} changes {_VALUES[phase]} of {call.describe()} now that a checkpoint repeats it "
            "for the backward, and no hook did in the forward: gradients would belong to neither. "
            "Put the hook on before the forward, or remove it before backward()"
        )
        raise RecomputeError(msg)


def is_other(new: object, old: object) -> bool:
    """Whether what a hook gave has other tensors in it than what was there."""
    if isinstance(new, Tensor) or isinstance(old, Tensor):
        return new is not old
    return list(map(id, tensors(new))) != list(map(id, tensors(old)))
