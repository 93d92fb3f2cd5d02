"""A function that can carry hooks of its own."""

# Annotations are no strings here: beartype would not understand those of a `ParamSpec`.

from collections.abc import Callable
from functools import partial
from typing import Any, Final, Generic, ParamSpec, TypeVar

import torch

from hookline.core.entry import EMPTY
from hookline.core.registry import HookRegistry
from hookline.core.scope import entry_of, register_object
from hookline.core.thread import module_switch
from hookline.errors import HookNameError, HookTypeError
from hookline.functions.engine import run_function
from hookline.functions.hook import FunctionHook
from hookline.functions.mode import inside_backward
from hookline.functions.naming import classify
from hookline.functions.places import lineup_of
from hookline.torch_base import private
from hookline.torch_base.stack import current_thread

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")


class FunctionNode(Generic[_Parameters, _Result]):
    """A callable as one function, to which hooks can be added.

    Torch functions that it calls belong to it, in forward and in backward: so a Python function
    of your own, or a compiled one, counts as one function.

    Args:
        function: any callable on tensors.
        name: its name; found from the callable by default.

    Example:
        >>> import torch, hookline
        >>> class Show(hookline.FunctionHook):
        ...     def forward_preprocess(self, function, in_data):
        ...         print("calls", function.name)
        >>> relu = FunctionNode(torch.relu)
        >>> relu.add_hook(Show())
        >>> relu(torch.ones(2))
        calls relu
        tensor([1., 1.])
        >>> relu.delete_hook("Show")
    """

    def __init__(self, function: Callable[_Parameters, _Result], name: str | None = None) -> None:
        if not callable(function):
            msg = f"FunctionNode takes a callable, not {type(function).__name__}: {function!r}"
            raise HookTypeError(msg)
        if isinstance(function, type) and issubclass(function, torch.autograd.Function):
            name = function.__name__
            msg = f"{name} is a class and not called itself; give FunctionNode({name}.apply)"
            raise HookTypeError(msg)
        self.function: Final = function
        self.name: Final = name or _name_of(function)
        self.registry: Final = HookRegistry(module_switch)

    def add_hook(self, hook: FunctionHook, name: str | None = None) -> None:
        """Add a hook; it lives on in the backward of calls made meanwhile.

        Args:
            hook: the hook; its `added(node)` is called.
            name: the name to register it under; its own by default. A scoped hook of the same
                name gives way to it here.

        Raises:
            HookNameError: the name is taken.
            HookTypeError: it is no `FunctionHook`.
        """
        entry = entry_of(hook, FunctionHook, name or getattr(hook, "name", None))
        if entry.key in self.registry.named():
            msg = (
                f"Hook {entry.key} already exists on {self.name}; delete_hook({entry.key!r}) "
                "removes it, add_hook(hook, 'another name') keeps both"
            )
            raise HookNameError(msg)
        register_object(self.registry, entry, self)

    def delete_hook(self, name: str) -> None:
        """Remove a hook; its `deleted(node)` is called.

        Args:
            name: the name it was added under.

        Raises:
            HookNameError: there is none of that name.
        """
        entry = self.registry.named().get(name)
        if entry is None:
            known = ", ".join(self.registry.named()) or "none"
            msg = f"Hook {name} does not exist; hooks here: {known}"
            raise HookNameError(msg)
        self.registry.discard(entry)

    def __call__(self, *args: _Parameters.args, **kwargs: _Parameters.kwargs) -> _Result:
        """Call the function, with its hooks and the thread's."""
        if len(self.registry):
            return self._apart(args, kwargs)
        return self._run(args, kwargs)

    def _apart(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What the compiler leaves out of its graphs: hooks on the node are called by Python."""
        return self._run(args, kwargs)

    def _run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        thread = current_thread()
        lineup = lineup_of(thread, self)
        if lineup is EMPTY or thread.hidden or thread.busy or inside_backward(thread):
            return self.function(*args, **kwargs)
        return run_function(self.function, self.name, args, kwargs, lineup, thread, node=self)

    def __reduce__(self) -> tuple[Any, ...]:
        return FunctionNode, (self.function, self.name)  # hooks do not travel

    def __repr__(self) -> str:
        return f"<FunctionNode {self.name}: {len(self.registry)} hook(s)>"


setattr(FunctionNode._apart, private.APART, True)  # noqa: SLF001


def _name_of(function: Callable[..., Any]) -> str:
    if isinstance(function, partial):
        return _name_of(function.func)
    name = getattr(function, "__name__", None)
    if name is None:
        return type(function).__name__
    owner = getattr(function, "__self__", None)
    if isinstance(owner, type) and name == "apply":
        return owner.__name__
    of_torch = str(getattr(function, "__module__", "")).startswith("torch")
    return classify(function).name if of_torch or not hasattr(function, "__code__") else name
