"""The public API as users type it. Never run; pyright checks it."""

# pyright: reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, Literal, assert_type
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

import hookline
from hookline import (
    BackwardHook,
    BackwardHookGate,
    ForwardHook,
    ForwardPreHook,
    FunctionCall,
    FunctionHook,
    FunctionNode,
    GradInput,
    HookHandle,
    HookKind,
    HookRegistry,
    Hooks,
    Inputs,
    ModuleCall,
    ModuleHook,
    Phase,
    Registration,
    edits,
    function_hooks,
    module_hooks,
)
from hookline.core.records import (
    FlopRow,
    MemoryRow,
    NonFiniteRow,
    ParameterRow,
    Silent,
    StatsRow,
    TimeRow,
    UncountedRow,
)

linear = nn.Linear(2, 2)
layer, hooks = hookline.with_hooks(linear)
assert_type(layer, nn.Linear)
assert_type(hooks, Hooks)


def double(gradient: Tensor, /) -> Tensor:
    return gradient * 2


def masked(value: Any, /) -> Inputs:
    return Inputs((value,), {"mask": None})


def normed(value: Tensor, output: Tensor, /) -> Tensor:
    return output / output.norm()


backward: BackwardHook = double
before: ForwardPreHook = masked
after: ForwardHook = normed
hooks.add_backward_hook(lambda value, output: output)  # pyright: ignore[reportArgumentType]
assert_type(hooks.add_backward_hook(double), HookHandle)
assert_type(hooks.add_forward_pre_hook(lambda value: value), HookHandle)
assert_type(hooks.add_forward_hook(lambda value, output: output), HookHandle)
assert_type(HookKind.backward.phase, Phase)
assert_type(hooks.registry, HookRegistry)
assert_type(BackwardHookGate(hooks.registry)(torch.ones(2)), Tensor)
assert_type(Inputs((1,), {"mask": None}).kwargs, dict[str, Any])


def pre(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Inputs:
    return Inputs(args, kwargs)


with hookline.register_forward_pre_hook(linear, pre) as handle:
    assert_type(handle, HookHandle)


def clip(module: nn.Linear, grad_input: GradInput, grad_output: tuple[Tensor]) -> Tensor:
    assert_type(grad_input.kwargs, dict[str, Any])
    return grad_output[0].clamp(-module.in_features, module.in_features)


# A lambda's parameters are known by their number, and what needs another module is refused.
hookline.register_forward_pre_hook(linear, lambda module, args: (args[0] * module.in_features,))
hookline.register_forward_pre_hook(linear, lambda module, args, kwargs: (args, {**kwargs}))
hookline.register_forward_hook(linear, lambda module, args, output: output * module.in_features)
hookline.register_forward_hook(linear, lambda module, args, kwargs, output: kwargs.get("mask"))
hookline.register_forward_hook(linear, lambda module, args: None)  # pyright: ignore[reportCallIssue, reportArgumentType]
hookline.register_forward_hook(linear, lambda m, a, output: output, with_kwargs=True)  # pyright: ignore[reportCallIssue, reportArgumentType]
hookline.register_full_backward_pre_hook(linear, lambda module, grad_output: grad_output)
hookline.register_full_backward_hook(linear, clip)
hookline.register_full_backward_hook(nn.ReLU(), clip)  # pyright: ignore[reportArgumentType]
hookline.register_module_forward_pre_hook(lambda module, args, kwargs: module.training)
hookline.register_module_forward_hook(print, prepend=True, with_kwargs=False, always_call=True)
hookline.register_module_forward_hook(lambda module, args, kwargs, output: kwargs)
hookline.register_module_full_backward_pre_hook(lambda module, grad_output: None)
hookline.register_module_full_backward_hook(lambda module, grad_input, grad_output: None)
hookline.register_module_full_backward_hook(clip)  # pyright: ignore[reportArgumentType]


began: WeakKeyDictionary[ModuleCall, int] = WeakKeyDictionary()


class Watcher(ModuleHook):
    def forward_postprocess(self, call: ModuleCall) -> None:
        assert_type(call.path, str)
        assert_type(call.index, int)
        assert_type(call.mode, Literal["train", "eval", "no_grad"])
        call.replace(call.output)  # pyright: ignore[reportAttributeAccessIssue]
        call.replace(call.out)

    # Callbacks are called positionally, so their parameters may have any names.
    def backward_postprocess(self, c: ModuleCall) -> None:
        began[c] += len(c.paths)

    def added(self, module: nn.Module | None) -> None:
        pass

    def aborted(self, module_call: ModuleCall, error: BaseException) -> None:
        pass


class Misfit(ModuleHook):
    def forward_preprocess(self) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        pass

    def forward_postprocess(self, call: FunctionCall) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        pass


class Functions(FunctionHook):
    def forward_preprocess(self, fn: FunctionCall, inputs: tuple[Tensor | None, ...]) -> None:
        assert_type(fn.outputs, tuple[Tensor, ...] | None)

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

assert_type(hookline.add_hook(linear, Watcher(), "mine"), HookHandle)
hookline.add_hook(linear, Functions())  # pyright: ignore[reportArgumentType]
hookline.delete_hook(linear, "mine")
assert_type(hookline.get_module_hooks(), Mapping[str, ModuleHook])
assert_type(hookline.get_function_hooks(), Mapping[str, FunctionHook])
with hookline.paused():
    linear(torch.ones(2))
assert_type(hookline.hooks_of(linear), list[Registration])
hookline.clear_hooks(linear)
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
assert_type(watched.selection, hookline.Selection)
assert_type(selection.assert_count(2), hookline.Selection)
assert_type(selection.where(lambda path, module: path != ""), hookline.Selection)
hookline.select(linear, 3)  # pyright: ignore[reportArgumentType]
hookline.watch(linear, "no hook")  # pyright: ignore[reportArgumentType]

with hookline.capture(
    linear, "act", ":relu[0]", what=("output", "grad"), calls="last", limit=2**20, overflow="oldest"
) as acts:
    assert_type(acts, hookline.Capture)
    assert_type(acts["act"], hookline.Captured)
    assert_type(acts["act"].first, hookline.CapturedCall)
    assert_type(acts["act"].leaves("grad"), dict[str, Tensor])
    assert_type(acts.in_pass(0), hookline.Captures)
    assert_type(acts.silent(), list[Silent])
    assert_type(acts.nbytes, int)
hookline.capture(linear, what="outputs")  # pyright: ignore[reportArgumentType]
hookline.capture(linear, copies=True)  # pyright: ignore[reportCallIssue]
assert_type(hookline.load_capture("acts.safetensors"), hookline.Captures)

edit = edits.add(torch.ones(2), on="output[0]", at=(slice(None), 3), calls={0, 2})
assert_type(edit, hookline.Edit)
assert_type(edit(torch.ones(2)), Tensor)
with hookline.patch(
    linear, {"act": [edit, edits.clamp(min=0)], nn.Linear: lambda t: t * 2, ":add": 0.0}, first=True
) as patched:
    assert_type(patched, hookline.Patch)
    assert_type(patched.edits[0].path, str)
    assert_type(patched.edits[0].edit, hookline.Edit)
    assert_type(patched.silent(), list[Silent])
by_name: dict[str, hookline.Edit] = {"act": edit}
hookline.patch(linear, by_name)
hookline.patch(linear, {"act": "twice"})  # pyright: ignore[reportArgumentType]
hookline.patch(linear, {3: edit})  # pyright: ignore[reportArgumentType]
edits.apply(torch.relu, at=edits.head(1, 4))
edits.apply(lambda value, call: value * call.index, with_call=True)
edits.apply(lambda value, call: value)  # pyright: ignore[reportArgumentType]
edits.zero(calls=lambda call: call.index > 2)
edits.scale("twice")  # pyright: ignore[reportArgumentType]
edits.zero(calls="first")  # pyright: ignore[reportArgumentType]

assert_type(hookline.attention(linear, calls="first")["attn"].output, Any)

with module_hooks.StatsHook(every=10, scaler=torch.amp.GradScaler("cpu")) as stats:
    assert_type(stats, module_hooks.StatsHook)
    assert_type(stats.rows(), list[StatsRow])
    assert_type(stats.parameter_rows(), list[ParameterRow])
assert_type(function_hooks.StatsHook().rows(), list[StatsRow])
for level in (module_hooks.NonFiniteHook, function_hooks.NonFiniteHook):
    nonfinite = level("warn", backward=False, allow=["act", nn.Softmax])
    assert_type(nonfinite.first, NonFiniteRow | None)
    assert_type(nonfinite.rows(), list[NonFiniteRow])
module_hooks.NonFiniteHook("ignore")  # pyright: ignore[reportArgumentType]
function_hooks.NonFiniteHook("ignore")  # pyright: ignore[reportArgumentType]
assert_type(module_hooks.CaptureHook(calls="first").captured["act"], hookline.Captured)
assert_type(module_hooks.PatchHook(edits.zero(), first=True).edits, tuple[hookline.Edit, ...])
function_hooks.CaptureHook(what="outputs")  # pyright: ignore[reportArgumentType]
module_hooks.PrintHook(sys.stderr)
module_hooks.RangeHook(nvtx=False)
function_hooks.RangeHook()
function_hooks.AttentionHook(reduce=lambda weights: weights.mean(1))

node = FunctionNode(torch.relu)
node.add_hook(Functions())
node.add_hook(Watcher())  # pyright: ignore[reportArgumentType]
assert_type(node(torch.ones(2)), Tensor)
node(torch.ones(2), 2)  # pyright: ignore[reportCallIssue]

with hookline.record("run.hookline", linear, stats=True, level="both", where="encoder.*") as run:
    assert_type(run.to_rows("memory"), list[dict[str, Any]])
    assert_type(run.rows(TimeRow), list[TimeRow])
    run.export("report.html")
kept: hookline.Run = run
assert_type(hookline.load_run("run.hookline"), hookline.Run)
hookline.record(linear)  # pyright: ignore[reportArgumentType]
hookline.record(level="modules")  # pyright: ignore[reportArgumentType]
hookline.record(where=3)  # pyright: ignore[reportArgumentType]

try:
    hookline.select(linear, "fc")
except (
    hookline.CaptureError,
    hookline.CaptureKeyError,
    hookline.CaptureLimitError,
    hookline.CompileError,
    hookline.HookNameError,
    hookline.HookTypeError,
    hookline.HookValueError,
    hookline.MissingExtraError,
    hookline.NonFiniteError,
    hookline.RecomputeError,
    hookline.RunFileError,
    hookline.SelectionError,
) as error:
    base: hookline.HooklineError = error
warning: type[UserWarning] = hookline.HookWarning
assert_type(hookline.__version__, str)
hookline.Typo  # noqa: B018  # pyright: ignore[reportAttributeAccessIssue]
assert_type(module_hooks.MemoryHook().print_report(), None)
module_hooks.TimerHook().print_report("ms")
module_hooks.TimerHook().print_report("m")  # pyright: ignore[reportArgumentType]
assert_type(function_hooks.StatsHook().print_report(sys.stderr), None)
