"""The work that is measured, and what it is measured under."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

import hookline
from benchmarks.runner import Variant, Work

warnings.filterwarnings("ignore", message="Full backward hook is firing")


class Watching(hookline.ModuleHook):
    def forward_preprocess(self, call):
        pass

    def forward_postprocess(self, call):
        pass


class WatchingBackward(hookline.ModuleHook):
    def backward_preprocess(self, call):
        pass

    def backward_postprocess(self, call):
        pass


class FunctionsForward(hookline.FunctionHook):
    def forward_preprocess(self, function, in_data):
        pass

    def forward_postprocess(self, function, in_data):
        pass


class FunctionsBoth(FunctionsForward):
    def backward_preprocess(self, function, in_data, out_grad):
        pass

    def backward_postprocess(self, function, in_data, out_grad):
        pass


class EmptyMode(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def observe(*_: Any) -> None:
    """An observing hook."""


def on_each(
    modules: Iterable[nn.Module], register: Callable[[nn.Module], Any]
) -> Callable[[], AbstractContextManager[None]]:
    """A variant with something registered on each module."""

    @contextmanager
    def registered() -> Iterator[None]:
        with ExitStack() as stack:
            for module in modules:
                stack.callback(register(module).remove)
            yield

    return registered


def forward_hooks() -> Work:
    """An observing forward hook on each of 100 modules; the other modules; a scope."""
    model = nn.Sequential(*[nn.Identity() for _ in range(100)])
    x = torch.zeros(4)
    variants: dict[str, Variant] = {
        "plain": nullcontext,
        "torch, a forward hook on each": on_each(model, lambda m: m.register_forward_hook(observe)),
        "hookline, a forward hook on each": on_each(
            model, lambda m: hookline.register_forward_hook(m, observe)
        ),
        "hookline, modules without hooks": on_each(
            [model], lambda m: hookline.register_forward_hook(m, observe)
        ),
        "ModuleHook scope, begin and end": Watching,
    }
    return Work("module call (Identity)", lambda: model(x), 100, variants)


def backward_hooks() -> Work:
    """Backward hooks on each module of an MLP, forward and backward."""
    layers = [layer for _ in range(20) for layer in (nn.Linear(8, 8), nn.ReLU())]
    model = nn.Sequential(*layers)
    x = torch.randn(2, 8)
    every = list(model.modules())
    variants: dict[str, Variant] = {
        "plain": nullcontext,
        "torch, a full backward hook on each": on_each(
            every, lambda m: m.register_full_backward_hook(observe)
        ),
        "hookline, a full backward hook on each": on_each(
            every, lambda m: hookline.register_full_backward_hook(m, observe)
        ),
        "hookline, an observing hook on each": on_each(
            every, lambda m: hookline.add_hook(m, WatchingBackward())
        ),
        "ModuleHook scope": WatchingBackward,
        "TimerHook scope": hookline.module_hooks.TimerHook,
    }
    return Work(
        "module, forward and backward (MLP)", lambda: model(x).sum().backward(), 41, variants, 3
    )


def function_hooks_forward() -> Work:
    """Function hooks on a chain of additions without gradients."""
    x = torch.ones(4)

    def run() -> None:
        for _ in range(50):
            torch.add(x, x)

    variants: dict[str, Variant] = {
        "plain": nullcontext,
        "an empty TorchFunctionMode": EmptyMode,
        "FunctionHook, forward": FunctionsForward,
    }
    return Work("function call (add)", run, 50, variants)


def function_hooks_both() -> Work:
    """Function hooks on a chain of multiplications, forward and backward."""
    weight, x = torch.ones(4, requires_grad=True), torch.ones(4)

    def run() -> None:
        value = weight
        for _ in range(50):
            value = value * x
        value.sum().backward()

    variants: dict[str, Variant] = {
        "plain": nullcontext,
        "an empty TorchFunctionMode": EmptyMode,
        "FunctionHook, forward and backward": FunctionsBoth,
        "TimerHook": hookline.TimerHook,
    }
    return Work("function, forward and backward (mul)", run, 51, variants, 3)


WORKS = (forward_hooks, backward_hooks, function_hooks_forward, function_hooks_both)
