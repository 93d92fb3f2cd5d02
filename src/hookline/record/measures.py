"""What a run measures: which ready-made hooks, at which levels."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from typing import Any, Final, Literal, TypeAlias, get_args

from hookline.core.scope import HookObject
from hookline.errors import HookValueError

Level: TypeAlias = Literal["module", "function", "both"]
LEVELS: Final = get_args(Level)


@dataclass(frozen=True, slots=True)
class Measures:
    """What to measure, and of what.

    Raises:
        HookValueError: the level is unknown, or there is nothing to measure.

    Example:
        >>> [hook.name for hook in Measures(time=True, level="both").hooks()]
        ['TimerHook', 'TimerHook']
    """

    time: bool = False
    """Forward and backward time."""
    nonfinite: bool = False
    """Where NaN and Inf come from."""
    stats: bool = False
    """Activations, gradients and, of modules, parameters."""
    memory: bool = False
    """Bytes of outputs, and bytes that are kept for the backward."""
    flops: bool = False
    """FLOPs, and operators that they are not known of."""
    print: bool = False
    """A line for each call, on stderr."""
    level: Level = "module"
    """`"module"`, `"function"` or `"both"`."""
    every: int = 100
    """Of which passes statistics are made: each so-manyth."""

    def __post_init__(self) -> None:
        if self.level not in LEVELS:
            msg = f"{self.level!r} is no level; choose one of {', '.join(LEVELS)}"
            raise HookValueError(msg)
        if self.every < 1:
            msg = f"every={self.every!r}: give a whole number of passes, 1 for all of them"
            raise HookValueError(msg)
        if not self._wanted:
            msg = f"there is nothing to measure; choose from {', '.join(MAKERS)}"
            raise HookValueError(msg)

    @property
    def options(self) -> tuple[str, ...]:
        """The same as options of `hookline run`."""
        every = ("--every", str(self.every)) if self.stats else ()
        return (*(f"--{name}" for name in self._wanted), "--level", self.level, *every)

    def hooks(self) -> Iterator[HookObject]:
        """New hooks that measure this."""
        from hookline import function_hooks, module_hooks

        for name in self._wanted:
            hook, options = MAKERS[name]
            if self.level != "function":
                yield getattr(module_hooks, hook)(**options(self))
            if self.level != "module":
                yield getattr(function_hooks, hook)(**options(self))

    @property
    def _wanted(self) -> list[str]:
        return [field.name for field in fields(self) if getattr(self, field.name) is True]


def _none(_: Measures) -> dict[str, Any]:
    return {}


MAKERS: Final[dict[str, tuple[str, Callable[[Measures], dict[str, Any]]]]] = {
    "time": ("TimerHook", _none),
    "nonfinite": ("NonFiniteHook", _none),
    "stats": ("StatsHook", lambda measures: {"every": measures.every}),
    "memory": ("MemoryHook", _none),
    "flops": ("FlopHook", _none),
    "print": ("PrintHook", lambda _: {"file": sys.stderr}),
}
"""For each thing to measure, the name of its hooks and how they are made."""
