"""Every kind of hook, put on a model so that it looks at all and changes nothing."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

from torch import Tensor, nn

import hookline
from hookline import FunctionHook, ModuleHook, function_hooks, module_hooks
from hookline.modules.targets import can_be_called
from tests.matrix.case import flat

Kind = Callable[[nn.Module], AbstractContextManager[Any]]


class Seen:
    """Counts what a hook was shown, so that a hook that was never called is noticed."""

    def __init__(self) -> None:
        self.count = 0

    def look(self, *values: Any) -> None:
        """Look at values as a careful hook does."""
        self.count += 1
        for tensor in flat(values):
            if isinstance(tensor, Tensor):
                _ = tensor.layout, tensor.dtype, tensor.requires_grad


class Modules(Seen, ModuleHook):
    """A hook object with all callbacks."""

    def __init__(self, *, inputs: bool = False) -> None:
        super().__init__()
        self.needs_grad_input = inputs

    def forward_preprocess(self, call):
        self.look(call.args, call.kwargs)

    def forward_postprocess(self, call):
        self.look(call.out)

    def backward_preprocess(self, call):
        self.look(call.grad_output)

    def backward_postprocess(self, call):
        self.look(call.grad_output, call.grad_input)

    def aborted(self, call, exception):
        self.look()


class Functions(Seen, FunctionHook):
    """A hook object with all callbacks."""

    def __init__(self, *, retains: bool = False) -> None:
        super().__init__()
        self.retain_inputs = retains

    def forward_preprocess(self, function, in_data):
        self.look(in_data)

    def forward_postprocess(self, function, in_data):
        self.look(in_data, function.outputs)

    def backward_preprocess(self, function, in_data, out_grad):
        self.look(in_data, out_grad)

    def backward_postprocess(self, function, in_data, out_grad):
        self.look(in_data, out_grad)

    def aborted(self, function, exception):
        self.look()


def registered(*names: str) -> Kind:
    """Hooks with torch's signatures, on each module of the model."""

    @contextmanager
    def kind(model: nn.Module) -> Iterator[Callable[[], int]]:
        seen = Seen()
        with ExitStack() as stack:
            for module in filter(can_be_called, list(model.modules())):
                for name in names:
                    register = getattr(hookline, f"register_{name}")
                    stack.enter_context(register(module, lambda *values: seen.look(values[1:])))
            yield lambda: seen.count

    return kind


def on_all_modules(*names: str) -> Kind:
    """Hooks with torch's signatures, on all modules at once."""

    @contextmanager
    def kind(model: nn.Module) -> Iterator[Callable[[], int]]:
        seen = Seen()
        with ExitStack() as stack:
            for name in names:
                register = getattr(hookline, f"register_module_{name}")
                stack.enter_context(register(lambda *values: seen.look(values[1:])))
            yield lambda: seen.count

    return kind


def scoped(*make: Callable[[], Any], count: Callable[..., int]) -> Kind:
    """Hook objects, each in a scope of the thread."""

    @contextmanager
    def kind(model: nn.Module) -> Iterator[Callable[[], int]]:
        hooks = [each() for each in make]
        with ExitStack() as stack:
            for hook in hooks:
                stack.enter_context(hook)
            yield lambda: min(count(hook) for hook in hooks)

    return kind


@contextmanager
def wrapping(model: nn.Module) -> Iterator[Callable[[], int]]:
    """Value hooks on wrappers in the place of all modules without layers inside."""
    seen, wrappers = Seen(), {}
    with ExitStack() as stack:
        for parent in list(model.modules()):
            for name, child in list(parent.named_children()):
                if any(map(can_be_called, child.children())) or not can_be_called(child):
                    continue
                if id(child) not in wrappers:
                    wrapped, hooks = hookline.with_hooks(child)
                    wrappers[id(child)] = wrapped, child
                    stack.enter_context(hooks.add_forward_pre_hook(seen.look))
                    stack.enter_context(hooks.add_forward_hook(seen.look))
                    stack.enter_context(hooks.add_backward_hook(seen.look))
                setattr(parent, name, wrappers[id(child)][0])
        yield lambda: seen.count


@contextmanager
def watching(model: nn.Module) -> Iterator[Callable[[], int]]:
    """Both levels by `watch`."""
    modules, functions = Modules(), Functions()
    with hookline.watch(model, modules, functions):
        yield lambda: min(modules.count, functions.count)


@contextmanager
def capturing(model: nn.Module) -> Iterator[Callable[[], int]]:
    """Inputs, outputs and gradients of all modules."""
    with hookline.capture(model, "**", what=("input", "output", "grad")) as captures:
        yield lambda: len(captures)


@contextmanager
def patching(model: nn.Module) -> Iterator[Callable[[], int]]:
    """Each output is replaced by itself."""
    seen = Seen()

    def itself(tensor: Tensor) -> Tensor:
        seen.look(tensor)
        return tensor

    with hookline.patch(model, {nn.Module: itself}):
        yield lambda: seen.count


def _rows(hook: Any) -> int:
    return len(hook.rows())


@contextmanager
def printing(model: nn.Module) -> Iterator[Callable[[], int]]:
    """A line for each call of both levels."""
    file = io.StringIO()
    with module_hooks.PrintHook(file=file), function_hooks.PrintHook(file=file):
        yield file.tell


def constants(call: Any, leaf: str, tensor: Tensor) -> bool:
    """Numbers that the program gives itself, as quantisation's observers begin with infinity."""
    return call.name == "tensor"


_LEVELS = module_hooks, function_hooks

KINDS: dict[str, Kind] = {
    "forward hooks": registered("forward_pre_hook", "forward_hook"),
    "backward hooks": registered("full_backward_pre_hook", "full_backward_hook"),
    "hooks on all modules": on_all_modules("forward_pre_hook", "forward_hook"),
    "backward hooks on all": on_all_modules("full_backward_pre_hook", "full_backward_hook"),
    "ModuleHook": scoped(Modules, count=lambda hook: hook.count),
    "ModuleHook, inputs": scoped(lambda: Modules(inputs=True), count=lambda hook: hook.count),
    "FunctionHook": scoped(Functions, count=lambda hook: hook.count),
    "FunctionHook, retains": scoped(lambda: Functions(retains=True), count=lambda hook: hook.count),
    "TimerHook": scoped(*(each.TimerHook for each in _LEVELS), count=_rows),
    "StatsHook": scoped(*(lambda h=each: h.StatsHook(every=1) for each in _LEVELS), count=_rows),
    "NonFiniteHook": scoped(
        lambda: module_hooks.NonFiniteHook(action="raise"),
        lambda: function_hooks.NonFiniteHook(action="raise", allow=constants),
        count=lambda _: 1,
    ),
    "MemoryHook": scoped(*(each.MemoryHook for each in _LEVELS), count=_rows),
    "FlopHook": scoped(*(each.FlopHook for each in _LEVELS), count=lambda _: 1),
    "PrintHook": printing,
    "RangeHook": scoped(*(each.RangeHook for each in _LEVELS), count=lambda _: 1),
    "with_hooks": wrapping,
    "watch": watching,
    "capture": capturing,
    "patch": patching,
}

ALIASING = {"backward hooks", "backward hooks on all", "ModuleHook, inputs", "patch"}
"""Kinds that have inputs or outputs passed on as views. Where such a tensor is used several times,
its gradients are then added up in another order, which may change the last bits of the sum."""
