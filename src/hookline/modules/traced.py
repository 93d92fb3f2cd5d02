"""Hooks on modules inside of a region that is being compiled.

What a user registers on a module is traced into the region, in torch's signatures and as value
hooks, pre and post. Hook objects are not: a region is one call to them. A module with hooks that
cannot be traced (those that run in the backward or after errors, and those that
`torch.compiler.disable` marks) is called outside of the graphs, as it is without a compiler.

The compiler calls `plan_here` while it traces; what that finds is a constant of the code, which is
compiled again when a hook comes or goes.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, count
from types import CodeType
from typing import Any, Final, NamedTuple, TypeAlias
from weakref import WeakKeyDictionary, WeakSet, ref

import torch
from torch import nn

from hookline.core.calls import Key
from hookline.core.demand import demand
from hookline.core.entry import Entry
from hookline.core.phases import Phase
from hookline.core.thread import local
from hookline.errors import CompileError, HookWarning
from hookline.modules.call import ModuleCall
from hookline.modules.places import everywhere, registries_at, table, traced_inside
from hookline.modules.recorded import hooks_on
from hookline.modules.unreached import tell_traced
from hookline.torch_base import private
from hookline.torch_base.recording import warn_of
from hookline.torch_base.regions import forget, is_compiler_there, refuse, traced_module
from hookline.torch_base.wrappers import hands_on, innermost

State: TypeAlias = tuple[tuple[Entry, ...], ...]
"""The hooks on a module that take part in regions: its own, then those of layers that it wraps."""


class Level(NamedTuple):
    """The callbacks around a module, or around the layer in it that it wraps."""

    before: tuple[Callable[..., Any], ...]
    after: tuple[Callable[..., Any], ...]


class Plan(NamedTuple):
    """How a module is called in a region.

    Attributes:
        levels: the hooks to trace, outermost first.
        apart: calls the module outside of the graphs, where hooks need that.
        reason: which hooks need that, and what to do about it.
    """

    levels: tuple[Level, ...]
    apart: Callable[..., Any] | None
    reason: str


class _Plans:
    """The plans as attributes: the compiler sees one that is added while it traces.

    It looks each up by its name, so that code is not valid any more once one is gone.
    """


plans: Final = _Plans()
_names: Final[dict[State, str]] = {}
_serial: Final = count()

_PATIENCE: Final = 3
"""How often code may be compiled again for what its hooks keep."""

_codes: Final[WeakKeyDictionary[nn.Module, WeakSet[CodeType]]] = WeakKeyDictionary()
"""The code objects that were compiled with a guard of ours for a module."""


def traced_call(
    original: Callable[..., Any], module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Call a module with the hooks that are traced; the compiler runs this, not Python."""
    name = plan_here()
    if name is None:
        return original(module, *args, **kwargs)
    plan = getattr(plans, name)
    if plan.apart is not None:
        return plan.apart(module, args, kwargs)
    return _run(original, module, args, kwargs, plan.levels)


def _run(
    original: Callable[..., Any],
    module: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    levels: tuple[Level, ...],
) -> Any:
    if not levels:
        return original(module, *args, **kwargs)
    call = ModuleCall()
    call.key, call.cls, call.args, call.kwargs = ref(module), type(module), args, kwargs
    for callback in levels[0].before:
        callback(call)
    call.out = _run(original, module, call.args, call.kwargs, levels[1:])
    for callback in levels[0].after:
        callback(call)
    return call.out


def plan_here() -> str | None:
    """The name of the plan for the module whose call is being traced; None if it has no hooks.

    Raises:
        CompileError: it has hooks that cannot be traced, and the region must be one graph.
    """
    traced = traced_module("module")
    module, state = traced.module, state_of(traced.module)
    if torch.compiler.is_exporting():
        if not local.thread.busy:
            warn_of(hooks_on(module), "torch.export")
        return None
    traced_inside.add(module)
    if demand.aims:
        tell_traced(module)
    if state or everywhere.lineup.entries or _is_hooked(type(module)):
        traced.guard(state_of, state)
        _codes.setdefault(module, WeakSet()).add(traced.region)
    if not state:
        return None
    name = _names.get(state) or _add_plan(module, state)
    plan: Plan = getattr(plans, name)
    if plan.apart is None and traced.failures(f".{name}.") >= _PATIENCE:
        delattr(plans, name)
        name = _add_plan(module, state, restless=True)
        plan = getattr(plans, name)
        warnings.warn(plan.reason, HookWarning, stacklevel=2)
    if plan.apart is not None and traced.whole:
        refuse(CompileError, f"fullgraph=True: {plan.reason}")
    return name


setattr(plan_here, private.CONSTANT, True)


def _add_plan(module: nn.Module, state: State, *, restless: bool = False) -> str:
    name = _names[state] = f"hooks_{next(_serial)}"
    setattr(plans, name, _plan_of(type(module).__name__, state, restless=restless))
    return name


def _plan_of(what: str, state: State, *, restless: bool) -> Plan:
    names = [e.name for level in state for e in level if restless or needs_python(e)]
    reason = _reason(what, names, "change with each call" if restless else "are called by Python")
    apart = torch.compiler.disable(_call, reason=reason) if names else None
    return Plan(tuple(map(_level, state)), apart, reason)


def _reason(what: str, names: Iterable[str], why: str) -> str:
    return (
        f"hooks on {what} cannot be part of a graph, since they, or what they keep, {why}: "
        f"{', '.join(names)}. The module is called outside of the graph; to keep it inside, put "
        "them on what torch.compile returned, or use hooks that run in the forward only and keep "
        "nothing but tensors"
    )


def _level(entries: tuple[Entry, ...]) -> Level:
    def at(phase: Phase) -> tuple[Callable[..., Any], ...]:
        return tuple(e.callbacks[phase] for e in entries if phase in e.callbacks)

    return Level(at(Phase.FORWARD_PRE), at(Phase.FORWARD))


def needs_python(entry: Entry) -> bool:
    """Whether a hook cannot be traced, so that its module runs outside of the graphs."""
    return entry.watches_backward or entry.always or hasattr(entry.hook, private.APART)


def _call(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return module(*args, **kwargs)


def state_of(module: nn.Module) -> State:
    """The hooks on a module that take part in a region in which it is called now."""
    thread = local.thread
    if thread.busy or runs_above(module, thread.stack):
        return ()
    own = [registry.lineup.entries for registry in registries_at(ref(module))] or [()]
    own[0] = (*everywhere.lineup.entries, *own[0])
    levels = (tuple(e for e in entries if not e.paired) for entries in own)
    return tuple(level for level in levels if level)


def runs_above(module: nn.Module, stack: Sequence[object]) -> bool:
    """Whether the call above is that of a region which was made of a module: its hooks ran there.

    Args:
        module: the module that is being called.
        stack: what runs, outermost first.
    """
    for above in reversed(stack):
        if type(above) is ModuleCall:
            return above.region is not None and above.region() is innermost(module)
        if not hands_on[type(above)]:  # type: ignore[index] # a module that is not watched
            break
    return False


def _is_hooked(cls: type) -> bool:
    """Whether a module of a class has hooks that take part."""
    of_class = (registry for key, registry in list(table.items()) if type(key()) is cls)
    return any(not e.paired for registry in of_class for e in registry.lineup.entries)


def hooks_changed(key: Key[nn.Module] | None, entry: Entry) -> None:
    """Make compiled code invalid where a hook came or went.

    Args:
        key: the module; None for all modules.
        entry: the hook.
    """
    if not entry.alive:
        _drop_plans(entry)
    if not is_compiler_there():
        return
    if key is None:
        forget(nn.Module, set(chain.from_iterable(_codes.values())))
    elif (module := key()) is not None:
        forget(type(module), set(_codes.get(module, ())))


def _drop_plans(entry: Entry) -> None:
    for state, name in list(_names.items()) if _names else ():
        if any(entry in level for level in state):
            del _names[state]
            delattr(plans, name)
