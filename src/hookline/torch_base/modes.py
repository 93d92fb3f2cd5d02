"""This thread's stack of function modes, from which one may be taken wherever it lies.

The public `with` needs last in, first out; scopes may end in any order, and other modes may lie
above ours.
"""

from __future__ import annotations

from typing import Any

from hookline.torch_base import private


def is_on(mode: Any) -> bool:
    """Whether a mode is on the stack; while it handles a function, torch takes it off."""
    return any(private.mode_at(place) is mode for place in range(private.mode_count()))


def put_on(mode: Any) -> bool:
    """Put a mode on top, unless it is on; tells whether it was put."""
    absent = not is_on(mode)
    if absent:
        private.push_mode(mode)
    return absent


def take_out(mode: Any) -> None:
    """Take a mode off the stack, wherever and however often it lies there."""
    modes = [private.pop_mode() for _ in range(private.mode_count())]
    for other in reversed(modes):
        if other is not mode:
            private.push_mode(other)
