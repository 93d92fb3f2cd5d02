"""Capturing what flows through modules and functions: the hooks and the verb."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, Unpack

from torch import nn

from hookline.core.calls import Key
from hookline.core.records import Silent
from hookline.core.thread import module_switch
from hookline.errors import HookValueError
from hookline.functions.call import Tensors
from hookline.functions.hook import FunctionHook
from hookline.hooks.capturing import (
    CaptureOptions,
    Capturing,
    Goal,
    StopForward,
    check_options,
    gradients_in,
)
from hookline.hooks.store import Captures, Place, Store, near_or_all
from hookline.hooks.watches import Watches
from hookline.modules.hook import ModuleHook
from hookline.modules.silence import NO_GRADIENT
from hookline.modules.targets import can_be_called
from hookline.torch_base.given import Given
from hookline.torch_base.select import Pattern, check_model, selection_in
from hookline.torch_base.selection import Choice, Selection, listed

if TYPE_CHECKING:
    from hookline.functions.call import FunctionCall
    from hookline.modules.call import ModuleCall


class ModuleCaptureHook(Capturing, ModuleHook):
    """Captures what flows through modules; [capture][hookline.capture] is the short way.

    Args:
        what: `"input"`, `"output"`, `"grad"` (of the output), `"grad_input"`, or several.
        calls: hold `"all"` calls of each module, the `"first"` or the `"last"`.
        copy: whether to copy tensors; see `capture`.
        keep_graph: whether to keep the autograd graph.
        reduce: a function of each tensor whose result is held in the tensor's place.
        dtype: what to convert floating-point tensors to.
        device: where to move tensors.
        limit: the most bytes to hold.
        overflow: at the limit, raise an `"error"` or drop the `"oldest"` calls.

    Attributes:
        captured: what was captured so far, by path.

    Raises:
        HookTypeError: an option is of the wrong type.
        HookValueError: an option has an unknown value.

    Example:
        >>> import torch
        >>> from hookline.module_hooks import CaptureHook
        >>> model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU())
        >>> with CaptureHook() as hook:
        ...     model(torch.ones(2, 3)).sum().backward()
        >>> list(hook.captured), hook.captured["1"].grad.shape
        (['0', '1', ''], torch.Size([2, 4]))
    """

    name = "CaptureHook"

    def forward_preprocess(self, call: ModuleCall) -> None:
        """Capture the inputs, before the module can change them."""
        self._take_input(call, self._place(call, call.path), call.args, call.kwargs)

    def forward_postprocess(self, call: ModuleCall) -> None:
        """Capture the output."""
        if not call.recomputing:
            self._take_output(call, self._place(call, call.path), call.out)
            if self._goal is not None:
                self._goal.reached_module(call)

    def backward_preprocess(self, call: ModuleCall) -> None:
        """Capture the gradients of the outputs."""
        self._take_gradient(call, self._place(call, call.path), "grad", call.grad_output)

    def backward_postprocess(self, call: ModuleCall) -> None:
        """Capture the gradients that came late, and those of the inputs."""
        if call.window is not None and call.window.late and "grad" in self._what:
            self._take_gradient(call, self._place(call, call.path), "grad", call.grad_output)
        if self.needs_grad_input:
            gradients = call.grad_input
            both = (tuple(gradients), gradients.kwargs)
            self._take_gradient(call, self._place(call, call.path), "grad_input", both)


class FunctionCaptureHook(Capturing, FunctionHook):
    """Captures what flows through functions, by address without the index: `layers.0:softmax`.

    What [hookline.module_hooks.CaptureHook][] says of arguments and results holds here too, but
    that functions give no gradients of their inputs.

    Args:
        **options: those of the hook for modules.

    Raises:
        HookTypeError: an option is of the wrong type.
        HookValueError: an option has an unknown value, or `what` has `"grad_input"`.

    Example:
        >>> import torch
        >>> from hookline.function_hooks import CaptureHook
        >>> with CaptureHook(what=("input", "output")) as hook:
        ...     _ = torch.exp(torch.zeros(2))
        >>> hook.captured["exp"].input, hook.captured["exp"].output
        (tensor([0., 0.]), tensor([1., 1.]))
    """

    name = "CaptureHook"

    def __init__(self, **options: Unpack[CaptureOptions]) -> None:
        super().__init__(**options)
        if self.needs_grad_input:
            msg = (
                "functions give no gradients of their inputs; capture what='grad' of the functions "
                "or modules that made them"
            )
            raise HookValueError(msg)

    def forward_preprocess(self, function: FunctionCall, in_data: Tensors) -> None:
        """Capture the inputs, before the function can change them."""
        self._take_input(function, self._address(function), in_data, {})

    def forward_postprocess(self, function: FunctionCall, in_data: Tensors) -> None:
        """Capture the output; of a function that only writes, what it wrote into."""
        if not function.recomputing:
            out = function.out
            if out is None and function.outputs:
                out = function.outputs[0]
            self._take_output(function, self._address(function), out)
            if self._goal is not None:
                self._goal.reached_function(function)

    def backward_preprocess(
        self, function: FunctionCall, in_data: Tensors, out_grad: Tensors
    ) -> None:
        """Capture the gradients of the outputs."""
        self._take_gradient(function, self._address(function), "grad", out_grad)

    def backward_postprocess(
        self, function: FunctionCall, in_data: Tensors, out_grad: Tensors
    ) -> None:
        """Capture the gradients that came late."""
        if function.window is not None and function.window.late:
            self._take_gradient(function, self._address(function), "grad", out_grad)

    def _address(self, function: FunctionCall) -> Place:
        return self._place(function, function.module_path, function.name)


class Capture(Captures):
    """What is being captured of a model, until it is closed; afterwards what was captured.

    Made by [capture][hookline.capture]; a context manager.
    """

    def __init__(
        self, store: Store, watches: Watches, selected: tuple[str, ...], goal: Goal | None
    ) -> None:
        super().__init__(store)
        self._watches = watches
        self._selected = selected
        self._goal = goal
        self.asked: frozenset[str] = frozenset()
        """The gradients that were asked for by name."""

    def __reduce__(self) -> tuple[Any, ...]:
        return Captures, (self._store,)  # elsewhere there is nothing to be closed

    def close(self) -> None:
        """Stop capturing; what was captured stays. A second call does nothing."""
        self._watches.close()

    def silent(self) -> list[Silent]:
        """What was selected but never called while the capture was active, with likely causes.

        With `what="grad"` or `"grad_input"`, also that of which no such gradient came; `hooks` then
        names it.
        """
        return self._watches.silent() + [
            Silent(name, entry.type, *NO_GRADIENT, (kind,), entry.root)
            for name, entry in self.items()
            for kind in sorted(self.asked)
            if entry.held and not any(kind in call.values for call in entry)
        ]

    def _why(self, name: str) -> str:
        """Why nothing was captured under a name, as the end of an error's text."""
        for row in self.silent():
            if row.path == name:
                return f": {row.cause}; {row.advice}"
        if name in self._selected:
            held = f"there are {listed(list(self)) or 'no names'}"
            return f": no call of it is held (it may have raised, or been cleared); {held}"
        return near_or_all(name, "selected are", self._selected)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        self._watches.close(kind, error, traceback)
        return isinstance(error, StopForward) and error.goal is self._goal


def capture(
    model: nn.Module,
    *patterns: Pattern,
    stop: bool = False,
    **options: Unpack[CaptureOptions],
) -> Capture:
    """Capture what flows through modules or functions of a model, by name.

    Active at once, until `close()` or the end of `with`.

    What is captured is detached, and copied: later in-place operations, which autograd allows on
    outputs, do not change it. A copy is saved where a value is new anyway (moved, converted).
    `copy=False` keeps aliases in place of copies, at no cost in time; that one was overwritten
    is then an error when it is read. (Small parts of large storages, and tensors of inference
    mode, are copied all the same.)

    Gradients are those of a backward that runs while the capture is active.

    Args:
        model: the model.
        patterns: which modules: a path, a glob by segment (`layers.*.attn`, `**.norm`), a compiled
            regular expression, a class, a callable `(path, module) -> bool`; or which functions,
            by address: `layers.*.attn:softmax`, `layers.0:add[1]`. None: all modules.
        stop: end the forward as soon as each of them was captured once. The `with` block ends
            there too.
        **options: see `CaptureOptions`.

            * what: `"input"`, `"output"`, `"grad"` (of the output), `"grad_input"`, or several;
              `("output", "grad")` by default, with `stop` only `"output"`.
            * calls: hold `"all"` calls of each module, only the `"first"` or only the `"last"`.
            * copy: True: always copy; False: never; None: copy what is detached.
            * keep_graph: do not detach. What needs a gradient is then held as it is; with
              `copy=True`, as a copy that belongs to the graph.
            * reduce: a function of each tensor whose result is held in the tensor's place.
            * dtype: what to convert tensors of floating-point numbers to; others stay.
            * device: where to move tensors.
            * limit: the most bytes to hold.
            * overflow: beyond that, raise an `"error"`, or drop the `"oldest"` calls.

    Returns:
        The captures: a mapping by path or address, filled as the model runs. In it,
        `acts[path].output`, `.input`, `.grad` and `.grad_input` give the value of the only call;
        `.outputs` and so on those of all; `.first`, `.last` and `acts[path][i]` one call.

    Raises:
        SelectionError: a pattern matches nothing.
        HookTypeError: an option is of the wrong type.
        HookValueError: an option has an unknown value, or options exclude each other.
        CaptureLimitError: from the forward or backward, when the limit is reached.

    Example:
        >>> import torch, hookline
        >>> model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(inplace=True))
        >>> with hookline.capture(model, "0") as acts:
        ...     model(torch.ones(2, 3)).sum().backward()
        >>> acts["0"].output.shape, acts["0"].grad.shape
        (torch.Size([2, 4]), torch.Size([2, 4]))
    """
    check_options("capture", options, CaptureOptions.__annotations__)
    if stop:
        _check_stop(options)
    asked = gradients_in(options.get("what", ()))
    options.setdefault("what", "output" if stop else ("output", "grad"))
    with module_switch.held():
        given = Given(check_model(model))
        selection = selection_in(model, given.root.seats, patterns)
        made = _capturing(given, selection, options, stop=stop)
    made.asked = asked
    return made


def _capturing(
    given: Given, selection: Selection, options: CaptureOptions, *, stop: bool
) -> Capture:
    """Put a capture on what was selected: a hook for modules, one for functions."""
    modules = [choice for choice in selection.choices if choice.function is None]
    functions = [choice for choice in selection.choices if choice.function is not None]
    hooks: list[tuple[ModuleCaptureHook | FunctionCaptureHook, list[Choice]]] = []
    if modules:
        hooks.append((ModuleCaptureHook(**options), modules))
    if functions:
        hooks.append((FunctionCaptureHook(**options), functions))
    store = hooks[0][0].store
    goal = _goal(modules, functions) if stop else None
    for hook, _ in hooks:
        hook.into(store, goal, given)
    return Capture(store, Watches(given, hooks, "capture"), selection.paths, goal)


def _check_stop(options: CaptureOptions) -> None:
    if "grad" in str(options.get("what", "")):
        msg = "stop=True ends the forward, so no gradient can be captured; drop one of the two"
        raise HookValueError(msg)
    if options.get("calls") == "last":
        msg = 'stop=True ends the forward at the first call of each; calls="last" cannot be told'
        raise HookValueError(msg)


def _goal(modules: list[Choice], functions: list[Choice]) -> Goal:
    """What is to be captured before the forward ends; containers are never called."""
    return Goal(
        {Key(choice.called) for choice in modules if can_be_called(choice.called)},
        {(Key(choice.called), choice.function) for choice in functions if choice.function},
    )
