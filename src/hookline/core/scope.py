"""Hook objects: named, with paired callbacks, and scoped to a thread by `with`."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import Any, ClassVar, Generic, Self, TypeVar
from weakref import ref

from hookline.core.callbacks import CALLBACKS, warn_of_idle, warn_of_signatures, warn_of_slips
from hookline.core.entry import Entry
from hookline.core.handle import HookHandle
from hookline.core.phases import Phase
from hookline.core.registry import HookRegistry
from hookline.core.thread import Thread, local
from hookline.errors import HookNameError, HookTypeError


class HookObject:
    """What module hooks and function hooks have in common.

    Attributes:
        name: the name under which the hook is registered. A class that sets none has its class
            name; an instance may set its own.
        timed: True for a hook that reads `call.now`, the thread's time without hooks.
        needs_grad_input: True for a module hook that wants the gradients of the inputs.
        joint: True for a module hook that changes the gradients of several outputs: where they come
            from different autograd nodes, it gets them all at once, before any flows on.
        retain_inputs: True for a function hook that wants inputs kept for the backward.
        operator_mode: a torch dispatch mode that sees the operators inside the hook's calls. The
            engine keeps it on the thread while they run, forward and backward.
        changes: True for a hook that is there to change what flows, of which a warning says where
            it cannot, as in a program that is being recorded.
        watched_phases: the phases that an instance takes part in, where not in all whose callbacks
            its class overrides.
    """

    name: str = "HookObject"
    timed: ClassVar[bool] = False
    needs_grad_input: bool = False
    joint: bool = False
    retain_inputs: bool = False
    operator_mode: Any = None
    changes: bool = False
    watched_phases: Collection[Phase] | None = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "name" not in vars(cls):
            cls.name = cls.__name__
        warn_of_slips(cls, _level_of(cls))
        warn_of_signatures(cls, _level_of(cls))

    @property
    def level(self) -> type[HookObject]:
        """The base class of the hook's level, whose callbacks are empty."""
        return _level_of(type(self))

    def added(self, target: Any, /) -> None:
        """Called once registered: with None for a scope, else with the module or function."""

    def deleted(self, target: Any, /) -> None:
        """Called before it is removed: with None for a scope, else the module or function.

        Once for each `added`, in whatever way it is removed; with None also for a module that is
        gone. Only a forked child, where nothing is on, tells nobody.
        """

    def opened(self) -> None:
        """Called in its thread when a scope of the hook has been opened there."""

    def closed(self) -> None:
        """Called when the hook's last scope in this thread is closed, before that is removed."""

    def aborted(self, call: Any, exception: BaseException, /) -> None:
        """Called instead of an end whose begin ran, where the call or a later hook raised."""

    @classmethod
    def scope_in(cls, thread: Thread) -> HookRegistry:
        """The registry of this level's scoped hooks in a thread."""
        raise NotImplementedError  # each level has a registry of its own

    def __enter__(self) -> Self:
        enter(self, self.name)
        return self

    def __exit__(self, *_: object) -> None:
        leave(self)

    def renamed(self, name: str) -> Renamed[Self]:
        """The same hook as a scope of another name, so that two of one class nest.

        Args:
            name: what the scope is called.

        Returns:
            A context manager that gives this hook.

        Example:
            >>> from hookline.module_hooks import TimerHook
            >>> with TimerHook() as whole, TimerHook().renamed("part") as part:
            ...     pass
        """
        return Renamed(self, name)


_Hook = TypeVar("_Hook", bound="HookObject")


def _level_of(cls: type[HookObject]) -> type[HookObject]:
    return next(each for each in cls.__mro__ if HookObject in each.__bases__)


class Renamed(Generic[_Hook]):
    """A hook object's scope under another name; see `HookObject.renamed`."""

    def __init__(self, hook: _Hook, name: str) -> None:
        self.hook = hook
        self.name = name

    def __enter__(self) -> _Hook:
        enter(self.hook, self.name)
        return self.hook

    def __exit__(self, *_: object) -> None:
        leave(self.hook)


def entry_of(hook: HookObject, base: type[HookObject], key: str | None) -> Entry:
    """The registration of a hook object: the callbacks that it overrides.

    Args:
        hook: the hook.
        base: the base class of its level, whose empty callbacks are left out.
        key: the name it is registered under.

    Raises:
        HookTypeError: if it is no hook object of this level.
    """
    return entries_of(hook, base, key)()


def no_hook(given: object) -> str:
    """What was given where a hook object was expected, in words, and what may have been meant."""
    if isinstance(given, type):
        return f"the class {given.__name__}; did you mean an instance of it?"
    if isinstance(given, HookObject):
        level = f"{given.name}, a {given.level.__name__}"
        return f"{level}; `with hook:` and watch(model, hook) take hooks of both levels"
    if callable(given):
        hint = "a function goes on a module by register_forward_hook(module, function)"
        return f"{given!r}; {hint}"
    return repr(given)


def entries_of(hook: HookObject, base: type[HookObject], key: str | None) -> Callable[[], Entry]:
    """What makes registrations of a hook object, for several places; see `entry_of`."""
    if not isinstance(hook, base):
        msg = f"Hook must be of type {base.__name__}, not {no_hook(hook)}"
        raise HookTypeError(msg)
    phases = CALLBACKS if hook.watched_phases is None else hook.watched_phases
    found = {phase: _overridden(hook, base, CALLBACKS[phase]) for phase in phases}
    callbacks = {phase: callback for phase, callback in found.items() if callback is not None}
    if not callbacks:
        warn_of_idle(type(hook), base)
    return partial(
        Entry,
        hook,
        callbacks,
        name=key or hook.name,
        key=key,
        paired=True,
        aborted=_overridden(hook, base, "aborted"),
        needs_grad_input=hook.needs_grad_input,
        joint=hook.joint,
        retains=hook.retain_inputs,
        timed=hook.timed,
        mode=hook.operator_mode,
    )


def _overridden(hook: HookObject, base: type[HookObject], name: str) -> Any:
    callback = getattr(hook, name)
    return None if getattr(callback, "__func__", None) is getattr(base, name) else callback


def register_object(
    registry: HookRegistry, entry: Entry, target: object, *, prepend: bool = False
) -> HookHandle:
    """Register a hook object and tell it; if `added` raises, nothing stays registered."""
    handle = HookHandle(entry, registry)
    put_object(registry, entry, target, prepend=prepend)
    return handle


def put_object(
    registry: HookRegistry, entry: Entry, target: object, *, prepend: bool = False
) -> None:
    """Register a hook object as `register_object` does, without a handle."""
    entry.farewell = partial(_tell, entry.hook, None if target is None else ref(target))
    try:
        registry.put(entry, prepend=prepend)
        entry.hook.added(target)
    except BaseException:
        entry.farewell = None
        registry.discard(entry)
        raise


def _tell(hook: HookObject, target: ref[Any] | None) -> None:
    hook.deleted(None if target is None else target())


def enter(hook: HookObject, name: str) -> None:
    """Open a scope of the hook in this thread."""
    thread = local.thread
    registry = hook.scope_in(thread)
    handle = register_object(registry, entry_of(hook, hook.level, name), None)
    try:
        hook.opened()
    except BaseException:
        handle.remove()
        raise


def leave(hook: HookObject) -> None:
    """Close the hook's innermost scope in this thread."""
    try:
        scopes = _scopes(hook)
        if len(scopes) == 1:
            hook.closed()
    except BaseException:  # of `closed`, or Ctrl-C: what has begun is finished
        for scope in _scopes(hook)[-1:]:
            scope.remove()
        raise
    if scopes:
        scopes[-1].remove()
    elif not local.thread.forked:  # where the scope was opened in the parent process
        msg = f"hook {hook.name} has no open scope in this thread"
        raise HookNameError(msg)


def _scopes(hook: HookObject) -> list[HookHandle]:
    """The scopes of a hook that are open in this thread, the outermost first."""
    return [handle for handle in hook.scope_in(local.thread) if handle.hook is hook]
