"""The public API as users type it. Never run; pyright checks it."""

from __future__ import annotations

from typing import Any, assert_type

import torch
from torch import Tensor, nn

import hookline
from hookline import (
    BackwardHook,
    FunctionCall,
    FunctionHook,
    FunctionNode,
    HookHandle,
    HookKind,
    Hooks,
    Inputs,
    ModuleCall,
    ModuleHook,
    Phase,
    Registration,
)
from hookline.core.records import FlopRow, MemoryRow, Silent, TimeRow, UncountedRow

linear = nn.Linear(2, 2)
layer, hooks = hookline.with_hooks(linear)
assert_type(layer, nn.Linear)
assert_type(hooks, Hooks)


def double(gradient: Tensor, /) -> Tensor:
    return gradient * 2


backward: BackwardHook = double
assert_type(hooks.add_backward_hook(double), HookHandle)
assert_type(hooks.add_forward_pre_hook(lambda value: value), HookHandle)
assert_type(hooks.add_forward_hook(lambda value, output: output), HookHandle)
assert_type(HookKind.backward.phase, Phase)
assert_type(Inputs((1,), {"mask": None}).kwargs, dict[str, Any])


def pre(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Inputs:
    return Inputs(args, kwargs)


with hookline.register_forward_pre_hook(linear, pre) as handle:
    assert_type(handle, HookHandle)
hookline.register_module_forward_hook(print, prepend=True, with_kwargs=False, always_call=True)


class Watcher(ModuleHook):
    def forward_postprocess(self, call: ModuleCall) -> None:
        assert_type(call.path, str)
        assert_type(call.index, int)
        call.replace(call.out)


class Functions(FunctionHook):
    def backward_postprocess(
        self,
        function: FunctionCall,
        in_data: tuple[Tensor | None, ...],
        out_grad: tuple[Tensor | None, ...],
    ) -> None:
        assert_type(function.module_path, str | None)


with Watcher() as watcher, Watcher().renamed("second") as second:
    assert_type(watcher, Watcher)
    assert_type(second, Watcher)

assert_type(hookline.hooks_of(linear), list[Registration])
assert_type(hookline.TimerHook().rows(), list[TimeRow])
assert_type(hookline.module_hooks.TimerHook().total_time(), float)
with hookline.module_hooks.FlopHook() as flops, hookline.function_hooks.FlopHook() as by_function:
    assert_type(flops, hookline.module_hooks.FlopHook)
    assert_type(flops.total_flops(), int)
    assert_type(flops.rows(), list[FlopRow])
    assert_type(by_function.uncounted()[0], UncountedRow)
    assert_type(by_function.rows()[0].operators, tuple[tuple[str, int], ...])
assert_type(hookline.module_hooks.MemoryHook(peaks=False).rows(), list[MemoryRow])
assert_type(hookline.function_hooks.MemoryHook().rows()[0].allocated_bytes, int | None)
selection = hookline.select(linear, "encoder.*", nn.Linear, lambda path, module: True)
assert_type(selection, hookline.Selection)
assert_type(selection[0], tuple[str, nn.Module])
assert_type(selection[1:] | selection - selection.of_type(nn.ReLU), hookline.Selection)
with hookline.watch(
    linear, Watcher(), Functions().renamed("f"), where=["fc", "act:relu"]
) as watched:
    assert_type(watched, hookline.Watch)
    assert_type(watched.silent(), list[Silent])
hookline.watch(linear, Watcher(), where=selection, prepend=True).close()
hookline.watch(linear, "no hook")  # pyright: ignore[reportArgumentType]
node = FunctionNode(torch.relu)
node.add_hook(Functions())
hookline.Typo  # noqa: B018  # pyright: ignore[reportAttributeAccessIssue, reportUnusedExpression]
