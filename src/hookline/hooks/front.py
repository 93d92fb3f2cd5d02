"""Changing an output before the forward hooks that others put on the module see it.

A forward hook of torch's stands in front of the module's own for the duration of one call; when
the call is over, nothing of it is left on the module.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from torch import nn

from hookline.core.events import note_once
from hookline.core.thread import Thread, local
from hookline.hooks.aside import at_rest
from hookline.modules.call import ModuleCall


class _Hook:
    """The hook of one call. Other calls of the module, in this or another thread, pass it by."""

    def __init__(self, call: ModuleCall, change: Callable[[ModuleCall, Any], Any]) -> None:
        self._call = call
        self._change = change
        self._handle: Final = call.module.register_forward_hook(self, prepend=True)

    def __call__(self, _module: nn.Module, _args: object, output: object) -> object:
        thread = local.thread
        if not _is_running(self._call, thread):
            if self._call.args is None:  # it is over, and its end was not seen
                self.remove()
            return None
        self.remove()
        notes = thread.notes
        try:
            with at_rest(thread):
                return self._change(self._call, output)
        except BaseException as error:
            where = f"raised by a patch in front of {self._call.describe()}"
            note_once(error, where, thread, notes)
            raise

    def remove(self) -> None:
        self._handle.remove()


class Front:
    """The hooks that stand in front now.

    Args:
        change: gives the new output of a call.
    """

    def __init__(self, change: Callable[[ModuleCall, Any], Any]) -> None:
        self._change = change
        self._standing: dict[ModuleCall, _Hook] = {}

    def place(self, call: ModuleCall) -> None:
        """Put a hook in front, for a call that begins."""
        self._standing[call] = _Hook(call, self._change)

    def clear(self, call: ModuleCall) -> None:
        """Remove it, where the call ends."""
        hook = self._standing.pop(call, None)
        if hook is not None:
            hook.remove()

    def clear_module(self, module: nn.Module | None) -> None:
        """Remove those on a module, or all."""
        for call in list(self._standing):
            if module is None or call.key() is module:
                self.clear(call)


def _is_running(call: ModuleCall, thread: Thread) -> bool:
    """Whether a call is the innermost one that runs in a thread, or the layer in it is."""
    top: Any = thread.stack[-1] if thread.stack else None
    while top is not call and getattr(top, "wrapped", None) is not None:
        top = top.parent
    return top is call
