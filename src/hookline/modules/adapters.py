"""Torch-style hooks as the engine calls them: given what they take, their results put in place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hookline.core.calls import Inputs
from hookline.core.entry import Callback
from hookline.core.names import hook_name
from hookline.errors import HookTypeError
from hookline.modules.call import ModuleCall
from hookline.modules.signature import (
    BACKWARD,
    BACKWARD_PRE,
    FORWARD,
    FORWARD_PRE,
    check_takes,
    takes_kwargs,
)
from hookline.torch_base.tree import describe


def forward_pre(hook: Callable[..., Any], *, with_kwargs: bool | None) -> Callback:
    """A forward pre-hook, which may replace the inputs."""
    name = f"forward pre-hook {hook_name(hook)}"
    if not takes_kwargs(hook, FORWARD_PRE, with_kwargs):

        def plain(call: ModuleCall) -> None:
            value = hook(call.module, call.args)
            if value is not None:
                call.put_inputs(value, name)

        return plain

    def complete(call: ModuleCall) -> None:
        value = hook(call.module, call.args, call.kwargs)
        if value is not None:
            call.put_inputs(_as_inputs(value), name)

    return complete


def _as_inputs(value: object) -> object:
    """`(args, kwargs)`, as torch's hooks with kwargs return it, are complete inputs."""
    match value:
        case (tuple() as args, dict() as kwargs) if type(value) is tuple:
            return Inputs(args, kwargs)
        case _:
            return value


def forward(hook: Callable[..., Any], *, with_kwargs: bool | None) -> Callback:
    """A forward hook, which may replace the output."""
    name = f"forward hook {hook_name(hook)}"
    if not takes_kwargs(hook, FORWARD, with_kwargs):

        def plain(call: ModuleCall) -> None:
            value = hook(call.module, call.args, call.out)
            if value is not None:
                call.put_output(value, name)

        return plain

    def complete(call: ModuleCall) -> None:
        value = hook(call.module, call.args, call.kwargs, call.out)
        if value is not None:
            call.put_output(value, name)

    return complete


def backward_pre(hook: Callable[..., Any]) -> Callback:
    """A backward pre-hook, which may replace the gradients of the outputs."""
    check_takes(hook, BACKWARD_PRE)
    name = f"backward pre-hook {hook_name(hook)}"

    def callback(call: ModuleCall) -> None:
        module = call.found()
        if module is None:  # made for one call, such as a loss
            return
        value = hook(module, call.grad_output)
        if value is not None:
            call.replace_grad_output(value, name)

    return callback


def backward(hook: Callable[..., Any]) -> Callback:
    """A backward hook, which may replace those of the inputs."""
    check_takes(hook, BACKWARD)
    name = f"backward hook {hook_name(hook)}"

    def callback(call: ModuleCall) -> None:
        module = call.found()
        if module is None:  # made for one call, such as a loss
            return
        value = hook(module, call.grad_input, call.grad_output)
        if value is not None:
            if call.inputs_outline is None:
                msg = (
                    f"{name} of {call.describe()} returned {describe(value)}, but was registered "
                    "after the forward, when the gradients of the inputs flow on already; register "
                    "it before the forward, or return None"
                )
                raise HookTypeError(msg)
            call.replace_grad_input(value, name)

    return callback
