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


def put_on(mode: Any) -> None:
    """Put a mode on top, unless it is on."""
    if not is_on(mode):
        private.push_mode(mode)


def take_out(mode: Any) -> None:
    """Take a mode off the stack, wherever and however often it lies there."""
    modes = [private.mode_at(place) for place in range(private.mode_count())]
    if mode in modes:
        others = [other for other in modes if other is not mode]
        try:
            _put(others)
        except BaseException:  # Ctrl-C: nobody's mode is lost
            _put(others)
            raise


def _put(modes: list[Any]) -> None:
    """Make these the modes on the stack."""
    while private.mode_count():
        private.pop_mode()
    for mode in modes:
        private.push_mode(mode)
