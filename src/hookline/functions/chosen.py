"""A function hook for some functions only: those that chosen modules call."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from torch import nn

from hookline.core.calls import Key
from hookline.core.entry import Callback, Entry
from hookline.core.handle import HookHandle
from hookline.core.scope import entry_of, register_object
from hookline.errors import HookNameError
from hookline.functions.hook import FunctionHook
from hookline.functions.places import everywhere
from hookline.torch_base.selection import Choice

if TYPE_CHECKING:
    from hookline.functions.call import FunctionCall


class Target:
    """The functions that one choice means.

    Attributes:
        choice: the path or address, and which functions of the module are meant.
        fired: whether one of them ran.
    """

    __slots__ = ("fired", "function", "key", "path")

    def __init__(self, choice: Choice) -> None:
        self.path: Final = choice.path
        self.function: Final = choice.function
        self.key: Final[Key[nn.Module]] = Key(choice.called)
        self.fired = False

    def means(self, name: str) -> bool:
        """Whether functions of a name are meant."""
        return self.function is None or self.function.names(name)

    def takes(self, index: int) -> bool:
        """Whether the call of that number is meant, where its name is."""
        return self.function is None or self.function.index in (None, index)


class _Caller:
    """A module that is chosen itself, or some of the functions that it calls.

    Attributes:
        called: for each function that it called, by name, those of its targets that mean it.
    """

    __slots__ = ("called", "targets")

    def __init__(self) -> None:
        self.targets: list[Target] = []
        self.called: dict[str, tuple[Target, ...]] = {}


class Chosen:
    """Which functions a hook is for, and which of them ran.

    Args:
        choices: the modules and functions that were chosen.
    """

    def __init__(self, choices: Iterable[Choice]) -> None:
        self.targets: Final = [Target(choice) for choice in choices]
        self._callers: Final[dict[Key[nn.Module], _Caller]] = {}
        for target in self.targets:
            self._callers.setdefault(target.key, _Caller()).targets.append(target)

    def takes(self, call: FunctionCall) -> bool:
        """Whether a call is one of those that the hook is for; the same in all its phases."""
        # A function's parent is the call of the module whose forward calls it.
        parent: Any = call.parent
        if parent is None:
            return False
        caller = self._callers.get(parent.key)
        if caller is None and parent.region is not None:
            caller = self._callers.get(parent.region)
        if caller is None:
            return False
        targets = caller.called.get(call.name)
        if targets is None:
            targets = tuple(t for t in caller.targets if t.means(call.name))
            caller.called[call.name] = targets
        taken = False
        for target in targets:
            if target.takes(call.index):
                target.fired = taken = True
        return taken

    def called_by(self, key: Key[nn.Module]) -> tuple[str, ...]:
        """The names of the functions that a chosen module called."""
        caller = self._callers.get(key)
        return () if caller is None else tuple(caller.called)

    def shared_with(self, other: Chosen) -> str | None:
        """A path or address where both choose functions of one module, if there is any."""
        both = self._callers.keys() & other._callers.keys()
        return next((self._callers[key].targets[0].path for key in both), None)


class _ChosenEntry(Entry):
    """The registration of a hook for chosen functions."""

    __slots__ = ("chosen",)

    def __init__(self, hook: FunctionHook, name: str, chosen: Chosen) -> None:
        # No key: to scoped hooks of the same name it gives no way, since they see other functions
        # too.
        plain = entry_of(hook, FunctionHook, None)
        arguments = plain.guarded(partial(_guarded, chosen))
        arguments["name"] = name
        super().__init__(**arguments)
        self.chosen: Final = chosen


def register_chosen(
    hook: FunctionHook, name: str, chosen: Chosen, *, prepend: bool = False
) -> HookHandle:
    """Register a function hook in all threads, for chosen functions; `added(None)` is called.

    Args:
        hook: the hook.
        name: the name it goes by; the same one may not be used twice for functions of one module.
        chosen: what it is for.
        prepend: run it before others of all threads.

    Raises:
        HookNameError: the name is taken.
    """
    for other in everywhere.lineup.entries:
        if not isinstance(other, _ChosenEntry) or other.name != name:
            continue
        path = chosen.shared_with(other.chosen)
        if path is not None:
            msg = (
                f"Hook {name} already exists for functions at {path!r}; "
                "watch(model, hook.renamed('another name')) keeps both"
            )
            raise HookNameError(msg)
    return register_object(everywhere, _ChosenEntry(hook, name, chosen), None, prepend=prepend)


def _guarded(chosen: Chosen, callback: Callback) -> Callback:
    takes = chosen.takes

    def guarded(call: FunctionCall, *rest: Any) -> None:
        if takes(call):
            callback(call, *rest)

    return guarded
