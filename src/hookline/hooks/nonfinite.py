"""Where NaN and Inf come from: the first call that made one out of finite values."""

from __future__ import annotations

from collections import deque
from functools import cached_property, partial
from typing import Final

import torch
from torch import Tensor

from hookline.functions.call import FunctionCall, Tensors
from hookline.functions.hook import FunctionHook
from hookline.functions.naming import writes
from hookline.hooks.evidence import State, edges_of, name_around, named_inputs
from hookline.hooks.masks import GIVEN, UNINITIALISED, VIEWS
from hookline.hooks.watcher import Watcher
from hookline.modules.call import ModuleCall
from hookline.modules.hook import ModuleHook
from hookline.torch_base.peek import Peek, peek
from hookline.torch_base.private import parameters_of
from hookline.torch_base.readable import version_of
from hookline.torch_base.tree import leaves, tensors

_SEEN_ELSEWHERE: Final = VIEWS | UNINITIALISED
_OVERWRITES: Final = GIVEN | UNINITIALISED | {"copy_", "zero_", "normal_", "uniform_"}
_KEPT: Final = 10_000


class ModuleNonFiniteHook(Watcher, ModuleHook):
    """Finds the module that makes the first NaN or Inf, in forward and in backward.

    Each output, each gradient of an output and of a parameter is looked at, at the price of one
    sum. What is found is told by place: path, call, leaf, how many NaN and Inf, where the first of
    them is, and a verdict: the *producer* was given finite values; a *propagator* was not, or has
    the producer inside; a *bad parameter* is named. What comes up between the calls that are
    watched is laid to the call around them.

    An attention mask of -inf raises no alarm: an -inf that comes out of a call is meant if a mask
    among its inputs explains it; see `hookline.hooks.masks`. That of log(0) is not.

    On a CPU every sum is read at once. On a device they are read together: at the end of each
    forward and backward of the root, where backwards and forwards alternate, and after some
    thousand, unless `action="raise"` asks to be stopped in time. What is gone or overwritten by
    then is named, but not counted, and -inf are then let through if a mask was given at all.

    The gradient of an input is seen together with that of the input's other uses. If those are made
    by code between modules, the verdict may name the module for it; function hooks are exact.

    Args:
        action: `raise` a `NonFiniteError` in the call, `warn` once for each producer, or `record`.
        forward: look at outputs.
        backward: look at gradients.
        allow: calls whose values need not be finite: a path, pattern, regular expression of labels,
            class, function of (call, leaf, tensor), or several of these.
        allow_inf_mask: let attention masks of -inf through.
        scaler: the `torch.amp.GradScaler` in use. Gradients that overflow are then kept as
            expected, with the loss scale: they raise nothing unless an optimizer takes a step with
            them. `skipped` in the row tells that the scaler left the step out.

    Raises:
        HookValueError: there is no such action, or nothing to look at.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from hookline.module_hooks import NonFiniteHook
        >>> class Log(nn.Module):
        ...     def forward(self, x):
        ...         return x.log()
        >>> model = nn.Sequential(nn.ReLU(), Log(), nn.Linear(3, 3))
        >>> with NonFiniteHook() as nonfinite:
        ...     _ = model(torch.tensor([[1.0, 0.0, -2.0]]))
        >>> row = nonfinite.first
        >>> row.path, row.type, row.verdict, row.inf, row.position
        ('1', 'Log', 'producer', 2, (0, 1))
        >>> [(row.path, row.verdict) for row in nonfinite.rows()]
        [('1', 'producer'), ('2', 'propagator'), ('', 'propagator')]
    """

    name = "NonFiniteHook"

    def forward_preprocess(self, call: ModuleCall) -> None:
        """Note what the call is given, so that it can be told later what came of it."""
        self._turn("forward")
        named = named_inputs(call.args, call.kwargs)
        state = self._judge.state(call)
        state.versions = {id(tensor): version_of(tensor) for _, tensor in named}
        if self._forward and vars(call.module).get("inplace"):
            self._look_before([tensor for _, tensor in named], state)
        if self._backward and torch.is_grad_enabled():
            for name, parameter in parameters_of(call.key()).items():
                if parameter is not None:
                    self._meet(call, name, parameter)
            peek(call, named, self, ModuleNonFiniteHook._peeked)

    def forward_postprocess(self, call: ModuleCall) -> None:
        """Look at the outputs."""
        if self._forward and not call.recomputing:
            self._look_at_outputs(call, call.out)
            self._end_of_pass(call)

    def backward_preprocess(self, call: ModuleCall) -> None:
        """Look at the gradients of the outputs."""
        self._turn("backward")
        state = self._judge.state(call)
        state.seen, state.given_bad = (), False
        self._look_at_gradients(call, state)

    def backward_postprocess(self, call: ModuleCall) -> None:
        """Look at the gradients of the parameters, and at those of outputs that came late."""
        outline = call.outputs_outline
        state = self._judge.state(call)
        if outline is not None and len(state.seen) < outline.count:
            self._look_at_gradients(call, state)
        for name, parameter in parameters_of(call.key()).items():
            if parameter is not None:
                self._look_at_parameter(call, name, parameter)
        self._end_of_pass(call)

    def _look_at_gradients(self, call: ModuleCall, state: State) -> None:
        for leaf, tensor in leaves(call.grad_output, "grad_output"):
            if leaf not in state.seen:
                state.seen += (leaf,)
                self._look_at(leaf, tensor, partial(self._judge.grad_output, call))

    def _peeked(self, which: Peek, gradient: Tensor) -> None:
        """The gradient of what calls were given has arrived."""
        if self._registered:
            self._look_at("grad_input", gradient, partial(self._judge.peeked, which))

    def _end_of_pass(self, call: ModuleCall) -> None:
        """Read what is in line where the root's forward or backward ends."""
        if call.path == "" and call.parent is None:
            self._line.read()


class FunctionNonFiniteHook(Watcher, FunctionHook):
    """Finds the function that makes the first NaN or Inf, in forward and in backward.

    What [hookline.module_hooks.NonFiniteHook][] says holds here too, with the same arguments.
    Functions that only show or store values (views, `setitem`) and those that give uninitialised
    memory (`empty`) are not looked at. The gradients of tensors that no function made, parameters
    among them, are looked at once the function's backward has written them.

    In a backward whose forward ran outside of the scope, functions have no known inputs, so that
    only propagators are told.

    Args:
        action: `raise`, `warn` or `record`, as for modules.
        forward: look at outputs.
        backward: look at gradients.
        allow: functions whose values need not be finite: a name, an address such as `**.attn:log`,
            the path of a module, a regular expression of labels, a function of (call, leaf,
            tensor), or several of these.
        allow_inf_mask: let attention masks of -inf through.
        scaler: the `torch.amp.GradScaler` in use.

    Raises:
        HookValueError: there is no such action, or nothing to look at.

    Example:
        >>> import torch
        >>> from hookline.function_hooks import NonFiniteHook
        >>> w = torch.zeros(2, requires_grad=True)
        >>> with NonFiniteHook() as nonfinite:
        ...     (w * 3).sqrt().sum().backward()
        >>> row = nonfinite.first
        >>> row.name, row.direction, row.verdict, row.leaf, row.inf
        ('sqrt', 'backward', 'producer', 'grad_input[0]', 2)
    """

    name = "NonFiniteHook"

    @cached_property
    def _ran(self) -> deque[FunctionCall]:
        return deque(maxlen=_KEPT)

    def forward_preprocess(self, function: FunctionCall, in_data: Tensors) -> None:
        """Note what the function is given, so that it can be told later what came of it."""
        self._turn("forward")
        name = function.name
        if self._forward and writes(name) and name not in _SEEN_ELSEWHERE | _OVERWRITES:
            state = self._judge.state(function)
            written = tensors(function.args[:1])
            state.versions = {id(tensor): version_of(tensor) for tensor in written}
            if len(written) == 1:
                self._look_before(written, state)
        if self._backward and torch.is_grad_enabled():
            self._judge.state(function).edges = edges_of(in_data)
            for place, tensor in enumerate(in_data):
                if tensor is not None and tensor.is_leaf and tensor.requires_grad:
                    name = partial(name_around, function, tensor, f"in_data[{place}]")
                    self._meet(function, name, tensor)

    def forward_postprocess(self, function: FunctionCall, in_data: Tensors) -> None:
        """Look at the outputs."""
        if self._forward and not function.recomputing and function.name not in _SEEN_ELSEWHERE:
            self._look_at_outputs(function, function.result)

    def backward_preprocess(
        self, function: FunctionCall, in_data: Tensors, out_grad: Tensors
    ) -> None:
        """Look at the gradients of the outputs."""
        if self._turn("backward"):
            self._ran.clear()
        self._judge.state(function).given_bad = False
        for place, tensor in enumerate(out_grad):
            if tensor is not None:
                leaf = f"grad_output[{place}]"
                self._look_at(leaf, tensor, partial(self._judge.between, function, self._ran))
        self._ran.append(function)

    def backward_postprocess(
        self, function: FunctionCall, in_data: Tensors, out_grad: Tensors
    ) -> None:
        """Look at the gradients of tensors that no function made."""
        for place, tensor in enumerate(in_data):
            if tensor is not None and tensor.is_leaf and tensor.requires_grad:
                name = partial(name_around, function, tensor, f"in_data[{place}]")
                self._look_at_parameter(function, name, tensor)
