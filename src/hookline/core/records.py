"""What was measured, as plain rows: the shape in which hooks hand it to reports."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TimeRow:
    """The time of all calls of one module or function, in one mode and direction.

    All times are in seconds.

    Example:
        >>> row = TimeRow("Net", "head", "Linear", "module", "train", "forward", 1, *[0.5] * 5)
        >>> row.calls, row.total_time
        (1, 0.5)
    """

    root: str
    """The topmost module that contains it, by class name; `""` outside any module."""
    path: str | None
    """The module's path below the root, `""` for the root itself.

    Of a function: the path of the module that called it, `None` outside any module.
    """
    type: str
    """The class name of the module; of a function, what is known of its kind, else `""`."""
    level: str
    """`"module"` or `"function"`."""
    mode: str
    """`"train"`, `"eval"` or `"no_grad"`."""
    direction: str
    """`"forward"`, `"backward"`, or `"recompute"`: a forward repeated by checkpointing."""
    calls: int
    """How many calls the times below are of."""
    self_time: float
    """What all calls took together, without the calls made inside them."""
    total_time: float
    """What all calls took together, the calls made inside them included."""
    minimum: float
    """The shortest call."""
    median: float
    """The call in the middle."""
    maximum: float
    """The longest call."""
    name: str = ""
    """The name of the function; `""` for a module."""
    clock: str = "host"
    """`"host"`, or `"device"` where device events were timed."""
