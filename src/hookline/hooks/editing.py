"""One edit of a patch: what it changes, which part of it, and when."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection
from dataclasses import KW_ONLY, dataclass, field
from typing import TypeAlias

from torch import Tensor

from hookline.core.calls import Call
from hookline.core.names import hook_name
from hookline.errors import HookTypeError, HookValueError
from hookline.hooks.leafpath import Keys, target_of
from hookline.hooks.pick import At, EditError, at_text, check_at, put, take
from hookline.torch_base.readable import shape_of
from hookline.torch_base.tree import describe

Calls: TypeAlias = int | slice | Collection[int] | Callable[[Call], object] | None
"""Which calls: a number, several, a slice of numbers, or a predicate of the call; None for all."""

Change: TypeAlias = Callable[[Tensor, "Site"], object]


@dataclass(frozen=True, slots=True)
class Site:
    """Where an edit is at work.

    Attributes:
        call: the call; None where an edit is called by itself.
        rest: the steps from what the edit is on to the tensor.
    """

    call: Call | None = None
    rest: Keys = ()


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Edit:
    """One change of a value; made by the functions of `hookline.edits`.

    Called with a tensor, it gives the changed one, so that it can be tried out.

    Attributes:
        text: what it does, in words.
        change: gives the new tensor.
        on: what it changes: a path that begins with `output`, `input` or `grad`.
        at: which part of each tensor.
        calls: in which calls.
    """

    text: str
    change: Change
    _: KW_ONLY
    on: str = "output"
    at: At = None
    calls: Calls = None
    keys: Keys = field(init=False)
    """The steps of `on`."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "keys", target_of(self.on))
        check_at(self.at)
        _check_calls(self.calls)

    @property
    def target(self) -> str:
        """What it changes: `output`, `input` or `grad`."""
        return str(self.keys[0])

    @property
    def counts(self) -> bool:
        """Whether calls must be numbered for it."""
        return self.calls is not None and not callable(self.calls)

    def takes(self, number: int | None, call: Call) -> bool:
        """Whether it is for a call.

        Args:
            number: how many calls of the module or function were seen before; None if unknown.
            call: the call.
        """
        match self.calls:
            case None:
                return True
            case int():
                return number == self.calls
            case slice():
                return number is not None and number in _range(self.calls)
            case Collection():
                return number in self.calls
            case predicate:
                return bool(predicate(call))

    def changed(self, value: Tensor, site: Site) -> Tensor:
        """The value after the edit; the given tensor stays as it is.

        Raises:
            EditError: what would take its place does not fit, or there is no such part.
        """
        part = take(value, self.at)
        new = _fitting(self.change(part, site), part)
        return value if new is part else put(value, self.at, new)

    def __call__(self, value: Tensor) -> Tensor:
        """The value after the edit.

        Raises:
            HookTypeError: what would take its place is no tensor.
            HookValueError: it has another shape, dtype or device, or there is no such part.
        """
        try:
            return self.changed(value, Site())
        except EditError as error:
            msg = f"{self!r}: {error}"
            raise error.kind(msg) from error.__cause__

    def __repr__(self) -> str:
        options = [f"on={self.on!r}"] if self.on != "output" else []
        if self.at is not None:
            options.append(f"at={at_text(self.at)}")
        if self.calls is not None:
            options.append(f"calls={_calls_text(self.calls)}")
        return f"<Edit {' '.join([self.text, *options])}>"


def _fitting(new: object, old: Tensor) -> Tensor:
    if not isinstance(new, Tensor):
        hint = "; return the new value, also after changing it in place" if new is None else ""
        msg = f"gave {describe(new)} in place of {describe(old)}{hint}"
        raise EditError(HookTypeError, msg)
    if shape_of(new) != shape_of(old) or new.dtype != old.dtype or new.device != old.device:
        msg = (
            f"gave {describe(new)} on {new.device} in place of {describe(old)} on {old.device}; "
            "shape, dtype and device must stay"
        )
        raise EditError(HookValueError, msg)
    return new


def _check_calls(calls: object) -> None:
    match calls:
        case None:
            return
        case slice(start=start, stop=stop, step=step):
            fine = all(end is None or end >= 0 for end in (start, stop)) and (step or 1) > 0
        case bool() | str() | bytes():
            fine = False
        case int():
            fine = calls >= 0
        case Collection():
            fine = all(type(number) is int and number >= 0 for number in calls)
        case _:
            fine = callable(calls)
    if not fine:
        msg = (
            f"calls={calls!r}: which calls is said by a number from 0, several, a slice of such, "
            "or a predicate of the call; how many there will be is not known"
        )
        raise HookValueError(msg)


def _range(calls: slice) -> range:
    return range(
        calls.start or 0, sys.maxsize if calls.stop is None else calls.stop, calls.step or 1
    )


def _calls_text(calls: object) -> str:
    if isinstance(calls, slice):
        return at_text(calls)
    return hook_name(calls) if callable(calls) else repr(calls)
