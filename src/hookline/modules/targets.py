"""What hooks can be put on: refusals that say what to do instead."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import nn

from hookline.errors import HookTypeError, HookValueError, SelectionError
from hookline.torch_base.selection import Choice, listed

_NO_FORWARD: Final = nn.Module.forward
_SCRIPT: Final = torch.jit.ScriptModule


def check_callable_module(module: object) -> None:
    """Refuse what is no module, or a module whose call can never be seen.

    Raises:
        HookTypeError: it is no module instance, or TorchScript.
        HookValueError: it is a container that is never called.
    """
    if isinstance(module, type) and issubclass(module, nn.Module):
        msg = f"{module.__name__} is a class; give a module, such as {module.__name__}(...)"
        raise HookTypeError(msg)
    if not isinstance(module, nn.Module):
        msg = f"hooks go on torch.nn.Module objects, not on {type(module).__name__}"
        raise HookTypeError(msg)
    if isinstance(module, torch.jit.ScriptModule):
        msg = (
            f"{type(module).__name__} is TorchScript: its modules run outside of Python, where "
            "no hook can be called; put hooks on the module before scripting, and run that one"
        )
        raise HookTypeError(msg)
    if not has_forward(module):
        children = ", ".join(name for name, _ in module.named_children())
        instead = f"put them on the modules in it ({children})" if children else why_empty(module)
        msg = (
            f"{type(module).__name__} has no forward, so it is never called and hooks on it "
            f"never run; {instead}"
        )
        raise HookValueError(msg)


def can_be_called(module: nn.Module) -> bool:
    """Whether calls of a module can be seen: it is neither a container nor TorchScript."""
    cls = type(module)
    in_python = not issubclass(cls, _SCRIPT)
    return in_python and (cls.forward is not _NO_FORWARD or has_forward(module))


def which_are_seen(choices: Sequence[Choice]) -> list[bool]:
    """For each choice, whether calls of its module can be seen.

    Raises:
        SelectionError: they can of none.
        HookTypeError: a TorchScript module was named.
        HookValueError: a container was named.
    """
    seen = [can_be_called(choice.called) for choice in choices]
    for choice, is_seen in zip(choices, seen, strict=True):
        if not is_seen and choice.exact:
            check_callable_module(choice.called)
    if not any(seen):
        msg = (
            f"{listed(choice.path for choice in choices)}: these are containers or TorchScript, "
            "whose calls no hook can see; select the modules in them"
        )
        raise SelectionError(msg)
    return seen


def has_forward(module: nn.Module) -> bool:
    """Whether a module has a forward; containers such as `nn.ModuleList` have none."""
    forward: Any = getattr(module.forward, "__func__", module.forward)
    return forward is not _NO_FORWARD


def why_empty(module: nn.Module) -> str:
    """What a module without a forward and without modules in it is there for, and what to do."""
    if type(module) is not nn.Module:
        return "there is no module in it either"
    return (
        "it only holds parameters, as the modules of a program that torch.export made do: such a "
        "program runs as a whole; hook that, or the model before the export"
    )


def check_hook(hook: object) -> None:
    """Refuse a hook that cannot be called.

    Raises:
        HookTypeError: it is not callable.
    """
    if not callable(hook):
        msg = f"a hook must be callable, {type(hook).__name__} is not: {hook!r}"
        raise HookTypeError(msg)
