"""Where module hooks are registered, and what is registered for one module now.

The registrations of one module stand in a side table under a weak reference to it, never on the
module: so copies, pickles and state dicts are what they would be without hooks.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Final
from weakref import WeakSet, ref

from torch import nn

from hookline.core.calls import Key
from hookline.core.entry import EMPTY, Entry, Lineup
from hookline.core.registry import HookRegistry
from hookline.core.switch import lock
from hookline.core.thread import Thread, module_switch
from hookline.torch_base.replicas import add_replica
from hookline.torch_base.wrappers import hands_on, innermost

if TYPE_CHECKING:
    from hookline.modules.call import ModuleCall

table: Final[dict[Key[nn.Module], HookRegistry]] = {}
"""The registries of modules."""


def _changed(key: Key[nn.Module] | None, entry: Entry) -> None:
    from hookline.modules.traced import hooks_changed  # it stands on what is here

    hooks_changed(key, entry)


everywhere: Final = HookRegistry(module_switch, changed=partial(_changed, None))
"""The hooks on all modules, in all threads."""

in_regions: Final[WeakSet[nn.Module]] = WeakSet()
"""Modules of which what `torch.compile` made of them was called while there were hooks."""

traced_inside: Final[WeakSet[nn.Module]] = WeakSet()
"""Modules that the compiler called while there were hooks: they run inside of compiled code."""


def _forget(key: Key[nn.Module], is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
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
            key = ref(module, _forget)
            registry = table[key] = HookRegistry(module_switch, inner, partial(_changed, key))
        return registry


def around_region(region: nn.Module) -> HookRegistry | None:
    """The registry of what `torch.compile` made of a module, around that of the module.

    The call of the module cannot be seen from outside of the region, and is one with that of the
    region: so hooks on the module run there.
    """
    module = innermost(region)
    if module not in in_regions:
        in_regions.add(module)
    own, inner = table.get(ref(region)), table.get(ref(module))
    if inner is None or (own is not None and own.inner is inner):
        return own
    with lock:
        own = registry_of(region)
        own.wrap(inner)
        return own


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
    lineup = EMPTY if hands_on[call.cls] else thread.modules.lineup
    if everywhere.lineup is not EMPTY and not hands_on[call.cls]:
        lineup = everywhere.behind(lineup)
    own = table.get(call.key)
    if own is None:
        return lineup
    return own.lineup if lineup is EMPTY else own.behind(lineup)
