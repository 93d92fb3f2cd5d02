"""Which arguments a torch-style hook takes; settled once, when it is registered."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from inspect import CO_VARARGS
from types import FunctionType
from typing import Any

from hookline.core.names import hook_name
from hookline.errors import HookTypeError

FORWARD_PRE = ("module", "args")
FORWARD = ("module", "args", "output")
BACKWARD_PRE = ("module", "grad_output")
BACKWARD = ("module", "grad_input", "grad_output")


def takes_kwargs(
    hook: Callable[..., Any],
    default: tuple[str, ...],
    with_kwargs: bool | None,  # noqa: FBT001 - as torch calls it
) -> bool:
    """Whether a hook is to be called with the keyword arguments too.

    If the signature binds torch's default count of arguments, that form; else, if it binds one
    more, the form with kwargs. A signature that cannot be read means the default.

    Args:
        hook: the hook.
        default: the names of torch's default arguments.
        with_kwargs: the user's word, which overrides the signature.

    Raises:
        HookTypeError: the signature binds neither.

    Example:
        >>> takes_kwargs(lambda module, args, kwargs: None, FORWARD_PRE, None)
        True
    """
    if with_kwargs is not None:
        return with_kwargs
    signature = _signature_against(hook, len(default))
    if signature is None:
        return False
    if _binds(signature, len(default) + 1):
        return True
    longer = (*default[:2], "kwargs", *default[2:])
    msg = (
        f"hook {hook_name(hook)}{signature} takes neither ({', '.join(default)}) "
        f"nor ({', '.join(longer)}); give it one of these forms, or say which it takes by "
        "with_kwargs=False or True"
    )
    raise HookTypeError(msg)


def check_takes(hook: Callable[..., Any], form: tuple[str, ...]) -> None:
    """Refuse a hook whose signature shows that it cannot be called with the arguments of a form.

    Args:
        hook: the hook.
        form: the names of the arguments.

    Raises:
        HookTypeError: it does.

    Example:
        >>> check_takes(lambda module, grad_output: None, BACKWARD_PRE)
    """
    signature = _signature_against(hook, len(form))
    if signature is not None:
        msg = f"hook {hook_name(hook)}{signature} does not take ({', '.join(form)})"
        raise HookTypeError(msg)


def _signature_against(hook: Callable[..., Any], count: int) -> inspect.Signature | None:
    """The signature of a hook that shows that it cannot take so many arguments; else None."""
    if type(hook) is FunctionType and _plainly_takes(hook, count):
        return None
    try:
        signature = inspect.signature(hook)
    except (TypeError, ValueError):  # one that cannot be read shows nothing
        return None
    return None if _binds(signature, count) else signature


def _plainly_takes(hook: FunctionType, count: int) -> bool:
    """Whether a function shows at once that it takes so many arguments: a signature takes long."""
    code = hook.__code__
    if hook.__dict__ or code.co_kwonlyargcount:  # it may say something else of its signature
        return False
    least = code.co_argcount - len(hook.__defaults__ or ())
    return least <= count and (count <= code.co_argcount or bool(code.co_flags & CO_VARARGS))


def _binds(signature: inspect.Signature, count: int) -> bool:
    try:
        signature.bind(*[None] * count)
    except TypeError:
        return False
    return True
