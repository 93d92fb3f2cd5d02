"""Hook objects for modules."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from torch import nn

from hookline.core.calls import Key
from hookline.core.demand import demand
from hookline.core.handle import HookHandle
from hookline.core.registry import HookRegistry
from hookline.core.scope import HookObject, entry_of, register_object
from hookline.core.thread import Thread
from hookline.errors import HookNameError
from hookline.modules.places import registry_of
from hookline.modules.targets import check_callable_module
from hookline.modules.unreached import ModuleAim
from hookline.torch_base.stack import current_thread

if TYPE_CHECKING:
    from hookline.modules.call import ModuleCall


class ModuleHook(HookObject):
    """An object whose callbacks run before and after the forward and the backward of modules.

    `with hook:` watches every module call of this thread; [add_hook][hookline.add_hook] one
    module. Override what you need; return values are ignored, and `call.replace(value)` changes
    what flows. Each begin that ran is followed by exactly one end: the `postprocess` or `aborted`.
    The design is Chainer's `LinkHook`, completed by the backward.

    Attributes:
        name: the name it is registered under; the class name unless a class or instance sets it.
        needs_grad_input: set it to True to get `call.grad_input`; inputs that need a gradient are
            then passed on as aliases.

    Example:
        >>> import torch, hookline
        >>> class Shapes(hookline.ModuleHook):
        ...     def forward_postprocess(self, call):
        ...         print(call.label, tuple(call.out.shape))
        >>> model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU())
        >>> with Shapes():
        ...     _ = model(torch.zeros(2, 3))
        0 (2, 4)
        1 (2, 4)
        Sequential (2, 4)
    """

    def forward_preprocess(self, call: ModuleCall, /) -> None:
        """Before the forward; `call.args` and `call.kwargs` are known."""

    def forward_postprocess(self, call: ModuleCall, /) -> None:
        """After the forward; `call.out` is known too."""

    def backward_preprocess(self, call: ModuleCall, /) -> None:
        """The backward begins; `call.grad_output` is known."""

    def backward_postprocess(self, call: ModuleCall, /) -> None:
        """The backward is done, parameters' gradients included; `call.grad_input` too."""

    @classmethod
    def scope_in(cls, thread: Thread) -> HookRegistry:
        """The registry of the module hooks scoped to a thread."""
        return thread.modules


def add_hook(module: nn.Module, hook: ModuleHook, name: str | None = None) -> HookHandle:
    """Register a hook object on one module, for all threads.

    Args:
        module: the module whose calls it sees.
        hook: the hook; its `added(module)` is called.
        name: the name to register it under; its own by default. A scoped hook of the same name
            gives way to it at this module.

    Returns:
        A handle that removes it, as [delete_hook][hookline.delete_hook] does by name.

    Raises:
        HookNameError: the name is taken on this module.
        HookTypeError: it is no `ModuleHook`, or the module can never be called.

    Example:
        >>> import torch, hookline
        >>> layer = torch.nn.Linear(2, 2)
        >>> timer = hookline.module_hooks.TimerHook()
        >>> handle = hookline.add_hook(layer, timer)
        >>> hookline.delete_hook(layer, "TimerHook")
    """
    check_callable_module(module)
    entry = entry_of(hook, ModuleHook, name or getattr(hook, "name", None))
    registry = registry_of(module)
    if entry.key in registry.named():
        msg = (
            f"Hook {entry.key} already exists on this {type(module).__name__}; delete_hook(module, "
            f"{entry.key!r}) removes it, add_hook(module, hook, 'another name') keeps both"
        )
        raise HookNameError(msg)
    handle = register_object(registry, entry, module)
    if entry.alive:  # its `added` may have removed it
        demand.aims[entry] = (ModuleAim(Key(module)),)
    return handle


def delete_hook(module: nn.Module, name: str) -> None:
    """Remove a hook object from a module; its `deleted(module)` is called.

    Args:
        module: the module.
        name: the name it was registered under.

    Raises:
        HookNameError: nothing is registered there under the name.
        HookTypeError: it is no module.

    Example:
        >>> import torch, hookline
        >>> layer = torch.nn.Linear(2, 2)
        >>> _ = hookline.add_hook(layer, hookline.module_hooks.TimerHook(), "mine")
        >>> hookline.delete_hook(layer, "mine")
        >>> hookline.hooks_of(layer)
        []
    """
    check_callable_module(module)
    registry = registry_of(module)
    entry = registry.named().get(name)
    if entry is None:
        known = ", ".join(registry.named()) or "none"
        msg = f"Hook {name} does not exist; hooks here: {known}"
        raise HookNameError(msg)
    registry.discard(entry)


def get_module_hooks() -> Mapping[str, ModuleHook]:
    """The module hooks scoped to this thread: by name, in order, read-only.

    Example:
        >>> import hookline
        >>> with hookline.module_hooks.TimerHook(), hookline.module_hooks.PrintHook():
        ...     list(hookline.get_module_hooks())
        ['TimerHook', 'PrintHook']
    """
    named = current_thread().modules.named()
    return MappingProxyType({name: entry.hook for name, entry in named.items()})  # type: ignore[misc]
