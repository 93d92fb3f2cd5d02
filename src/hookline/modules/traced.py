"""Hooks on modules inside of a region that is being compiled.

What a user registers on a module is traced into the region, in torch's signatures and as value
hooks, pre and post. Hook objects and backward hooks are not: a region is one call to them. The
compiler guards what is read here, so code that was compiled earlier is compiled again when a hook
comes or goes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import ref

from torch import nn

from hookline.core.demand import demand
from hookline.core.phases import Phase
from hookline.core.registry import HookRegistry
from hookline.modules.call import ModuleCall
from hookline.modules.places import everywhere, traced


def traced_call(
    original: Callable[..., Any], module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Call a module with the hooks that are traced; the compiler runs this, not Python."""
    own = traced.get(ref(module))
    # Read so that it is guarded: a hook on a module that had none changes nothing else here.
    if not demand.traced or (own is None and not everywhere.lineup.entries):
        return original(module, *args, **kwargs)
    call = ModuleCall()
    call.key, call.cls, call.args, call.kwargs = ref(module), type(module), args, kwargs
    _run(everywhere, own, Phase.FORWARD_PRE, call)
    call.out = original(module, *call.args, **call.kwargs)
    _run(everywhere, own, Phase.FORWARD, call)
    return call.out


def _run(outer: HookRegistry, own: HookRegistry | None, phase: Phase, call: ModuleCall) -> None:
    entries = outer.lineup.entries if own is None else outer.lineup.entries + own.lineup.entries
    for entry in entries:
        if not entry.paired and phase in entry.callbacks:
            entry.callbacks[phase](call)
