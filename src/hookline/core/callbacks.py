"""The callbacks of hook objects, and slips in their names, which nothing else would tell of."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from difflib import get_close_matches
from inspect import signature
from types import FunctionType
from typing import Final

from hookline.core.caller import caller_level
from hookline.core.patterns import did_you_mean
from hookline.core.phases import Phase
from hookline.errors import HookWarning

CALLBACKS: Final = {
    Phase.FORWARD_PRE: "forward_preprocess",
    Phase.FORWARD: "forward_postprocess",
    Phase.BACKWARD_PRE: "backward_preprocess",
    Phase.BACKWARD: "backward_postprocess",
}
"""The callback of each phase."""

_CLOSE: Final = 0.85
"""How much a name must be like that of a callback to be taken for a slip."""


def warn_of_slips(cls: type, level: type) -> None:
    """Warn of methods that a class defines under names that are nearly those of callbacks.

    Args:
        cls: the class of a hook, new.
        level: the base class of its level, whose names are no slips.
    """
    for name in _own_methods(cls, level):
        found = get_close_matches(name, CALLBACKS.values(), 1, _CLOSE)
        if found:
            msg = f"{cls.__name__}.{name} is no callback of hooks and never called"
            warnings.warn(msg + did_you_mean(found), HookWarning, stacklevel=caller_level())


def warn_of_signatures(cls: type, level: type) -> None:
    """Warn of callbacks that a class defines and that cannot be called with what they get.

    Args:
        cls: the class of a hook, new.
        level: the base class of its level, which shows what they get.
    """
    for name in CALLBACKS.values():
        callback = vars(cls).get(name)
        if isinstance(callback, FunctionType):
            given, expected = signature(callback), signature(getattr(level, name))
            try:
                given.bind(*expected.parameters)
            except TypeError:
                gets = ", ".join(expected.parameters)
                msg = (
                    f"{cls.__name__}.{name}{given} will fail: that of a {level.__name__} gets "
                    f"({gets})"
                )
                warnings.warn(msg, HookWarning, stacklevel=caller_level())


def warn_of_idle(cls: type, level: type) -> None:
    """Warn of a hook that has no callback, where methods of it look as if they were meant for some.

    Args:
        cls: the class of the hook.
        level: the base class of its level.
    """
    meant = [
        name
        for each in cls.__mro__[: cls.__mro__.index(level)]
        for name in _own_methods(each, level)
        if "forward" in name or "backward" in name
    ]
    if meant:
        msg = (
            f"{cls.__name__} has no callback, so it does nothing; {', '.join(meant)} "
            f"{'is' if len(meant) == 1 else 'are'} never called. "
            f"Callbacks are {', '.join(CALLBACKS.values())}"
        )
        warnings.warn(msg, HookWarning, stacklevel=caller_level())


def _own_methods(cls: type, level: type) -> Iterator[str]:
    for name, value in vars(cls).items():
        if callable(value) and not name.startswith("_") and not hasattr(level, name):
            yield name
