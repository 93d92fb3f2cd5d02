"""What hookline has on a model, and taking off exactly that."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import nn

from hookline.core.handle import HookHandle
from hookline.core.phases import Phase
from hookline.core.registry import HookRegistry, discard_all
from hookline.modules.places import registries_at
from hookline.modules.targets import check_callable_module
from hookline.torch_base.paths import paths_in


class Registration(NamedTuple):
    """One phase of one hook on one module.

    Attributes:
        path: the module's dotted name; `""` is the model itself.
        phase: when the hook runs.
        hook: what was registered.
        handle: removes it.
    """

    path: str
    phase: Phase
    hook: Any
    handle: HookHandle


def hooks_of(model: nn.Module) -> list[Registration]:
    """All that hookline has on the modules of a model; scopes and hooks on all modules are not.

    Args:
        model: the model.

    Returns:
        One row for each hook and phase, in the order of the modules and of registration.

    Example:
        >>> import torch, hookline
        >>> model = torch.nn.Sequential(torch.nn.ReLU())
        >>> _ = hookline.register_forward_hook(model[0], print)
        >>> [(row.path, row.phase.value) for row in hookline.hooks_of(model)]
        [('0', 'forward')]
    """
    found: dict[HookRegistry, str] = {}
    for module_key, paths in _paths(model).items():
        for registry in registries_at(module_key):  # a region and its module lead to the same
            found.setdefault(registry, paths[0])
    return [
        Registration(path, phase, handle.hook, handle)
        for registry, path in found.items()
        for handle in registry
        for phase in handle.entry.phases
    ]


def clear_hooks(model: nn.Module) -> None:
    """Remove all that `hooks_of` lists, and nothing else.

    Args:
        model: the model.

    Raises:
        BaseException: the first that a hook's `deleted` raised, once all hooks are gone.

    Example:
        >>> import torch, hookline
        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 2))
        >>> _ = hookline.register_forward_hook(model[0], print)
        >>> hookline.clear_hooks(model)
        >>> hookline.hooks_of(model)
        []
    """
    registered = dict.fromkeys((row.handle.registry, row.handle.entry) for row in hooks_of(model))
    discard_all(registered)


def _paths(model: nn.Module) -> dict[Any, tuple[str, ...]]:
    if not isinstance(model, nn.Module):
        check_callable_module(model)
    return paths_in(model)
