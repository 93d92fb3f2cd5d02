"""What function hooks must not do in any scenario: change results, break nesting, keep things."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import torch
from torch import Tensor

from hookline import FunctionCall, FunctionHook, ModuleCall, ModuleHook
from tests.functions.check_events import Notes
from tests.functions.scenario import Case, Scenario, differentiable, same, tensors_of


def results(each: Scenario, hook: FunctionHook | None) -> list[Tensor | None]:
    """All that a scenario gives: outputs, gradients, and the state of the random numbers."""
    torch.manual_seed(0)
    case = each.make()
    if hook is None:
        out = _run(case)
    else:
        with hook:
            out = _run(case)
    return [*tensors_of(out), *(t.grad for t in case.leaves), torch.get_rng_state()]


def _run(case: Case) -> Any:
    out = case.forward()
    outputs, gradients = differentiable(out)
    if outputs:
        case.backward(outputs, gradients)
    return out


def check_results(each: Scenario) -> None:
    """The hooks changed nothing."""
    hooked, plain = results(each, Notes()), results(each, None)
    assert len(hooked) == len(plain)
    assert all(map(same, hooked, plain))


class Brackets:
    """The begins and ends of functions and modules in one list, forward and backward."""

    def __init__(self) -> None:
        self.open: list[Any] = []
        self.begun = 0

    def begin(self, call: Any) -> None:
        """A call begins inside of those that are open."""
        if isinstance(call, FunctionCall):
            self._check_module(call)
        self.open.append(call)
        self.begun += 1

    def end(self, call: Any) -> None:
        """The call that began last ends."""
        assert self.open.pop() is call

    def _check_module(self, call: FunctionCall) -> None:
        around = [each.path for each in self.open if isinstance(each, ModuleCall)]
        assert call.module_path == (around[-1] if around else None)


class FunctionBrackets(FunctionHook):
    """Notes the begins and ends of functions."""

    def __init__(self, brackets: Brackets) -> None:
        self.brackets = brackets

    def forward_preprocess(self, function, in_data):
        self.brackets.begin(function)

    def backward_preprocess(self, function, in_data, out_grad):
        self.brackets.begin(function)

    def forward_postprocess(self, function, in_data):
        self.brackets.end(function)

    def backward_postprocess(self, function, in_data, out_grad):
        self.brackets.end(function)

    def aborted(self, function, exception):
        self.brackets.end(function)


class ModuleBrackets(ModuleHook):
    """Notes the begins and ends of modules."""

    def __init__(self, brackets: Brackets) -> None:
        self.forward_preprocess = self.backward_preprocess = brackets.begin
        self.forward_postprocess = self.backward_postprocess = brackets.end

    def aborted(self, call, exception):
        self.forward_postprocess(call)


def check_modules(each: Scenario) -> None:
    """Functions lie in the modules that called them, in both directions; nothing is changed."""
    plain, brackets = results(each, None), Brackets()
    with ModuleBrackets(brackets):
        hooked = results(each, FunctionBrackets(brackets))
    assert brackets.begun
    assert brackets.open == []
    assert all(map(same, hooked, plain))


class Remembers(FunctionHook):
    """Notes which calls and tensors there were, and keeps none of them."""

    def __init__(self) -> None:
        self.seen: list[weakref.ref[Any]] = []

    def forward_preprocess(self, function, in_data):
        self._see(function, *in_data)

    def forward_postprocess(self, function, in_data):
        self._see(*function.outputs)

    def backward_preprocess(self, function, in_data, out_grad):
        self._see(function, *in_data, *out_grad)

    def backward_postprocess(self, function, in_data, out_grad):
        self._see(*out_grad)

    def _see(self, *values: Any) -> None:
        self.seen += [weakref.ref(value) for value in values if value is not None]


def check_nothing_is_kept(each: Scenario) -> None:
    """When the graph is gone, no call and no tensor is left, without the garbage collector."""
    hook = Remembers()
    torch.manual_seed(0)
    gc.disable()
    try:
        case = each.make()
        with hook:
            out = _run(case)
            cyclic = case.cyclic
            del out, case
        if cyclic:
            gc.collect()
        left = [ref() for ref in hook.seen if ref() is not None]
        assert hook.seen
        assert left == []
    finally:
        gc.enable()
