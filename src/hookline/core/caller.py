"""Where a program calls, seen from inside of hookline: what a warning should point to."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Final

_BETWEEN: Final = ("hookline.", "torch.")
"""Where the frames are between the program's call and a warning."""


def caller_level() -> int:
    """The `stacklevel` that points to the innermost frame which is neither ours nor torch's."""
    level, frame = 1, sys._getframe(1)  # noqa: SLF001 - as `warnings` itself does
    while _is_between(frame) and frame.f_back is not None:
        level, frame = level + 1, frame.f_back
    return level


def _is_between(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__")).startswith(_BETWEEN)
