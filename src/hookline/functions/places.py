"""Where function hooks are registered, and what is registered for a function now."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from hookline.core.entry import EMPTY, Lineup
from hookline.core.registry import HookRegistry
from hookline.core.switch import Switch
from hookline.core.thread import Thread

if TYPE_CHECKING:
    from hookline.functions.node import FunctionNode

everywhere: Final = HookRegistry(Switch(loads="hookline.functions.reach"))
"""The function hooks of all threads."""


def lineup_of(thread: Thread, node: FunctionNode[..., Any] | None = None) -> Lineup:
    """The hooks that run for a function now: the thread's, those of all threads, its own."""
    lineup = thread.functions.lineup
    if everywhere.lineup is not EMPTY:
        lineup = everywhere.behind(lineup)
    return lineup if node is None else node.registry.behind(lineup)
