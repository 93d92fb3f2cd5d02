"""Where module hooks are registered, and what is registered for one module now.

The registrations of one module stand in a side table under a weak reference to it, never on the
module: so copies, pickles and state dicts are what they would be without hooks.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final
from weakref import ref

from torch import nn

from hookline.core.calls import Key
from hookline.core.entry import EMPTY, Lineup
from hookline.core.registry import HookRegistry
from hookline.core.switch import lock
from hookline.core.thread import Thread, module_switch
from hookline.torch_base.replicas import add_replica
from hookline.torch_base.wrappers import hands_on, is_compiled

if TYPE_CHECKING:
    from hookline.modules.call import ModuleCall

table: Final[dict[Key[nn.Module], HookRegistry]] = {}
"""The registries of modules."""

traced: Final[dict[Key[nn.Module], HookRegistry]] = {}
"""Those of them with hooks that take part in compiled regions. The compiler reads the whole of what
it looks at, so this is apart; what `torch.compile` made stands around regions and is not in it."""

everywhere: Final = HookRegistry(module_switch)
"""The hooks on all modules, in all threads."""


def _forget(key: Key[nn.Module], is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
    traced.pop(key, None)
    registry = table.pop(key, None)
    if registry is not None and not registry.wrapped and not is_finalizing():
        registry.clear()  # a handle may outlive the module; it must not keep the engine on


def registry_of(module: nn.Module, inner: HookRegistry | None = None) -> HookRegistry:
    """The registry of a module, made if need be.

    Args:
        module: the module.
        inner: the registry of the layer that it wraps, if it is a wrapper.
    """
    with lock:
        registry = table.get(ref(module))
        if registry is None:
            registry = table[ref(module, _forget)] = HookRegistry(module_switch, inner)
        return registry


def traced_registry_of(module: nn.Module, inner: HookRegistry | None = None) -> HookRegistry:
    """The registry of a module, for hooks that take part in compiled regions; see `registry_of`."""
    with lock:
        registry = registry_of(module, inner)
        if ref(module) not in traced and not is_compiled(type(module)):
            traced[ref(module, _forget)] = registry
        return registry


def replicate(module: nn.Module, replica: nn.Module) -> None:
    """Let a replica stand for a module, with the hooks of that."""
    with lock:
        add_replica(replica, module)
        registry = table.get(ref(module))
        if registry is not None:
            table[ref(replica, _forget_replica)] = registry


def _forget_replica(key: Key[nn.Module]) -> None:
    table.pop(key, None)


def registries_at(key: Key[nn.Module]) -> Iterator[HookRegistry]:
    """The registry of a module, then those of the layers that it wraps."""
    registry = table.get(key)
    while registry is not None:
        yield registry
        registry = registry.inner


def outer_lineup(thread: Thread) -> Lineup:
    """The hooks that run for every module in this thread: its scopes, then those on all modules."""
    scoped = thread.modules.lineup
    return scoped if everywhere.lineup is EMPTY else everywhere.behind(scoped)


def lineup_of(call: ModuleCall, thread: Thread) -> Lineup:
    """The hooks registered for a call now, in order."""
    if call.wrapped is not None:
        registry = call.wrapped()
        return EMPTY if registry is None else registry.lineup
    own = table.get(call.key)
    outer = EMPTY if hands_on[call.cls] else outer_lineup(thread)
    return outer if own is None else own.behind(outer)
