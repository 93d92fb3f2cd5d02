"""Torch's way to register module hooks: the same signatures and return rules, on any module.

What is better than torch's own methods: keyword arguments reach the hooks that have room for
them; returned inputs are never mistaken for each other; backward hooks see every tensor of nested
structures, leave in-place operations legal, and end when the parameters' gradients are there; a
removed hook is never called again; nothing is put on the module.
"""

from __future__ import annotations

from typing import Literal, TypeVar, overload

from torch import nn

from hookline.core.entry import Callback, Entry
from hookline.core.handle import HookHandle
from hookline.core.names import hook_name
from hookline.core.phases import Phase
from hookline.core.registry import HookRegistry
from hookline.modules import adapters
from hookline.modules.places import everywhere, registry_of
from hookline.modules.protocols import (
    FullForwardHook,
    PlainForwardHook,
    TorchBackwardHook,
    TorchBackwardPreHook,
    TorchForwardPreHook,
)
from hookline.modules.targets import check_callable_module, check_hook

Module = TypeVar("Module", bound=nn.Module)


def _add(
    registry: HookRegistry,
    phase: Phase,
    hook: object,
    callback: Callback,
    *,
    prepend: bool = False,
    always: bool = False,
) -> HookHandle:
    backward = phase in (Phase.BACKWARD_PRE, Phase.BACKWARD)
    entry = Entry(
        hook,
        {phase: callback},
        name=hook_name(hook),
        always=always,
        needs_grad_input=phase is Phase.BACKWARD,
        joint=backward,
    )
    return registry.add(entry, prepend=prepend)


def _registry(module: nn.Module, hook: object) -> HookRegistry:
    """The registry of a module, once the hook is seen to be one."""
    check_hook(hook)
    check_callable_module(module)
    return registry_of(module)


def _everywhere(hook: object) -> HookRegistry:
    """The registry of all modules, once the hook is seen to be one."""
    check_hook(hook)
    return everywhere


def register_forward_pre_hook(
    module: Module,
    hook: TorchForwardPreHook[Module],
    *,
    prepend: bool = False,
    with_kwargs: bool | None = None,
) -> HookHandle:
    """Register a hook that runs before the forward of a module and may replace its inputs.

    The counterpart of `torch.nn.Module.register_forward_pre_hook`.

    Args:
        module: the module.
        hook: `(module, args)` or `(module, args, kwargs)`. It returns None to leave the inputs
            unchanged; `Inputs(args, kwargs)`, or `(args, kwargs)` from a hook that takes kwargs,
            for all inputs; a tuple for the positional ones; anything else for the only one.
        prepend: run it before the hooks that are registered on this module.
        with_kwargs: whether it takes kwargs; found from its signature by default.

    Returns:
        A handle that removes it.

    Raises:
        HookTypeError: it is not callable or takes neither form; when it runs, if what it returns
            changes the number of positional arguments other than by `Inputs`.

    Example:
        >>> import torch, hookline
        >>> layer = torch.nn.Linear(10, 5)
        >>> def show(module, input_args, input_kwargs):
        ...     print("Input shape:", input_args[0].shape)
        >>> handle = hookline.register_forward_pre_hook(layer, show)
        >>> _ = layer(torch.zeros(3, 10))
        Input shape: torch.Size([3, 10])
        >>> handle.remove()
    """
    registry = _registry(module, hook)
    callback = adapters.forward_pre(hook, with_kwargs=with_kwargs)
    return _add(registry, Phase.FORWARD_PRE, hook, callback, prepend=prepend)


@overload
def register_forward_hook(
    module: Module,
    hook: PlainForwardHook[Module],
    *,
    prepend: bool = ...,
    with_kwargs: Literal[False] | None = ...,
    always_call: bool = ...,
) -> HookHandle: ...


@overload
def register_forward_hook(
    module: Module,
    hook: FullForwardHook[Module],
    *,
    prepend: bool = ...,
    with_kwargs: Literal[True] | None = ...,
    always_call: bool = ...,
) -> HookHandle: ...


def register_forward_hook(
    module: Module,
    hook: PlainForwardHook[Module] | FullForwardHook[Module],
    *,
    prepend: bool = False,
    with_kwargs: bool | None = None,
    always_call: bool = False,
) -> HookHandle:
    """Register a hook that runs after the forward of a module and may replace its output.

    The counterpart of `torch.nn.Module.register_forward_hook`.

    Args:
        module: the module.
        hook: `(module, args, output)` or `(module, args, kwargs, output)`. It returns None to
            leave the output unchanged; anything else takes its place.
        prepend: run it before the hooks that are registered on this module.
        with_kwargs: whether it takes kwargs; found from its signature by default.
        always_call: run it also where the call raises, with None as output; what it raises then
            becomes a detail of the first error.

    Returns:
        A handle that removes it.

    Raises:
        HookTypeError: it is not callable or takes neither form; when it runs, if it returns a
            number or text in place of a tensor.

    Example:
        >>> import torch, hookline
        >>> layer = torch.nn.ReLU()
        >>> with hookline.register_forward_hook(layer, lambda module, args, output: output + 1):
        ...     layer(torch.zeros(2))
        tensor([1., 1.])
    """
    registry = _registry(module, hook)
    callback = adapters.forward(hook, with_kwargs=with_kwargs)
    return _add(registry, Phase.FORWARD, hook, callback, prepend=prepend, always=always_call)


def register_full_backward_pre_hook(
    module: Module, hook: TorchBackwardPreHook[Module], *, prepend: bool = False
) -> HookHandle:
    """Register a hook on the gradients of a module's outputs, which it may replace.

    The counterpart of `torch.nn.Module.register_full_backward_pre_hook`.

    Args:
        module: the module.
        hook: `(module, grad_output)`; grad_output is a 1-tuple for a tensor output, else it has
            the output's structure. It returns None, the same structure, or a bare tensor where
            there is exactly one gradient.
        prepend: run it before the hooks that are registered on this module.

    Returns:
        A handle that removes it; also between forward and backward.

    Raises:
        HookTypeError: it is not callable; when it runs, if it returns another structure.

    Example:
        >>> import torch, hookline
        >>> layer, x = torch.nn.ReLU(), torch.ones(2, requires_grad=True)
        >>> _ = hookline.register_full_backward_pre_hook(layer, lambda module, grad: grad[0] * 3)
        >>> layer(x).sum().backward()
        >>> x.grad
        tensor([3., 3.])
    """
    registry = _registry(module, hook)
    return _add(registry, Phase.BACKWARD_PRE, hook, adapters.backward_pre(hook), prepend=prepend)


def register_full_backward_hook(
    module: Module, hook: TorchBackwardHook[Module], *, prepend: bool = False
) -> HookHandle:
    """Register a hook on the gradients of a module's inputs, which it may replace.

    The counterpart of `torch.nn.Module.register_full_backward_hook`. It runs once a call and
    backward, when the module's own backward is done and its parameters have their gradients (but
    those that another call still feeds), also if no input needs a gradient. Inputs that need one
    are passed on as aliases, on which in-place operations stay legal.

    Args:
        module: the module.
        hook: `(module, grad_input, grad_output)`; grad_input is a tuple by positional argument
            with an attribute `kwargs`, each entry in its argument's structure. It returns None,
            the same structure, or a bare tensor where there is exactly one gradient.
        prepend: run it before the hooks that are registered on this module.

    Returns:
        A handle that removes it; also between forward and backward.

    Raises:
        HookTypeError: it is not callable; when it runs, if it returns another structure.

    Example:
        >>> import torch, hookline
        >>> layer, x = torch.nn.Linear(2, 1), torch.ones(1, 2, requires_grad=True)
        >>> def clip(module, grad_input, grad_output):
        ...     return grad_input[0].clamp(-0.1, 0.1)
        >>> _ = hookline.register_full_backward_hook(layer, clip)
        >>> layer(x).sum().backward()
        >>> bool(x.grad.abs().max() <= 0.1)
        True
    """
    registry = _registry(module, hook)
    return _add(registry, Phase.BACKWARD, hook, adapters.backward(hook), prepend=prepend)


def register_module_forward_pre_hook(
    hook: TorchForwardPreHook[nn.Module], *, prepend: bool = False, with_kwargs: bool | None = None
) -> HookHandle:
    """Register a forward pre-hook on all modules; they run before a module's own.

    Takes and returns what [register_forward_pre_hook][hookline.register_forward_pre_hook] does.

    Example:
        >>> import torch, hookline
        >>> def show(module, args):
        ...     print(type(module).__name__)
        >>> with hookline.register_module_forward_pre_hook(show):
        ...     _ = torch.nn.Sequential(torch.nn.ReLU())(torch.ones(2))
        Sequential
        ReLU
    """
    registry = _everywhere(hook)
    callback = adapters.forward_pre(hook, with_kwargs=with_kwargs)
    return _add(registry, Phase.FORWARD_PRE, hook, callback, prepend=prepend)


@overload
def register_module_forward_hook(
    hook: PlainForwardHook[nn.Module],
    *,
    prepend: bool = ...,
    with_kwargs: Literal[False] | None = ...,
    always_call: bool = ...,
) -> HookHandle: ...


@overload
def register_module_forward_hook(
    hook: FullForwardHook[nn.Module],
    *,
    prepend: bool = ...,
    with_kwargs: Literal[True] | None = ...,
    always_call: bool = ...,
) -> HookHandle: ...


def register_module_forward_hook(
    hook: PlainForwardHook[nn.Module] | FullForwardHook[nn.Module],
    *,
    prepend: bool = False,
    with_kwargs: bool | None = None,
    always_call: bool = False,
) -> HookHandle:
    """Register a forward hook on all modules; they run before a module's own.

    Takes and returns what [register_forward_hook][hookline.register_forward_hook] does.

    Example:
        >>> import torch, hookline
        >>> def show(module, args, output):
        ...     print(type(module).__name__, tuple(output.shape))
        >>> with hookline.register_module_forward_hook(show):
        ...     _ = torch.nn.Sequential(torch.nn.ReLU())(torch.ones(2))
        ReLU (2,)
        Sequential (2,)
    """
    registry = _everywhere(hook)
    callback = adapters.forward(hook, with_kwargs=with_kwargs)
    return _add(registry, Phase.FORWARD, hook, callback, prepend=prepend, always=always_call)


def register_module_full_backward_pre_hook(
    hook: TorchBackwardPreHook[nn.Module], *, prepend: bool = False
) -> HookHandle:
    """Register a backward pre-hook on all modules; they run before a module's own.

    Takes and returns what
    [register_full_backward_pre_hook][hookline.register_full_backward_pre_hook] does.

    Example:
        >>> import torch, hookline
        >>> layer = torch.nn.Linear(2, 2)
        >>> def show(module, grad_output):
        ...     print(type(module).__name__, float(grad_output[0].sum()))
        >>> with hookline.register_module_full_backward_pre_hook(show):
        ...     layer(torch.ones(1, 2)).sum().backward()
        Linear 2.0
    """
    registry = _everywhere(hook)
    return _add(registry, Phase.BACKWARD_PRE, hook, adapters.backward_pre(hook), prepend=prepend)


def register_module_full_backward_hook(
    hook: TorchBackwardHook[nn.Module], *, prepend: bool = False
) -> HookHandle:
    """Register a backward hook on all modules; they run before a module's own.

    Takes and returns what
    [register_full_backward_hook][hookline.register_full_backward_hook] does.

    Example:
        >>> import torch, hookline
        >>> layer = torch.nn.Linear(2, 2)
        >>> def show(module, grad_input, grad_output):
        ...     print(type(module).__name__, module.bias.grad)
        >>> with hookline.register_module_full_backward_hook(show):
        ...     layer(torch.ones(1, 2)).sum().backward()
        Linear tensor([1., 1.])
    """
    registry = _everywhere(hook)
    return _add(registry, Phase.BACKWARD, hook, adapters.backward(hook), prepend=prepend)
