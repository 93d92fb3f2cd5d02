"""Hook objects for functions."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from torch import Tensor

from hookline.core.registry import HookRegistry
from hookline.core.scope import HookObject
from hookline.core.thread import Thread
from hookline.functions.reach import scoped
from hookline.torch_base.stack import current_thread

if TYPE_CHECKING:
    from hookline.functions.call import FunctionCall


class FunctionHook(HookObject):
    """An object whose callbacks run before and after the forward and backward of functions.

    `with hook:` watches every torch function that this thread calls: `F.linear(...)`, `x + y`, a
    custom `autograd.Function`, a compiled region; what such a function calls inside belongs to
    it. Override what you need; return values are ignored, and `function.replace(value)` changes
    what flows. Callbacks are called positionally, so their parameters may have other names. Each
    begin that ran is followed by exactly one end: the `postprocess` or `aborted`. Torch functions
    that a callback calls fire no hooks. The design and its rules are Chainer's `FunctionHook`.

    Backward callbacks are those of the hooks that are registered when backward runs. If the
    forward ran outside of any scope, the functions are named after their autograd nodes, and
    have empty `in_data`.

    Attributes:
        name: the name it is registered under; the class name unless a class or instance sets it.
        retain_inputs: set it to True to keep inputs for the backward that autograd does not save.

    Example:
        >>> import torch, hookline
        >>> class Names(hookline.FunctionHook):
        ...     def forward_postprocess(self, function, in_data):
        ...         print(function.name, [tuple(t.shape) for t in function.outputs])
        >>> with Names():
        ...     _ = torch.relu(torch.ones(2, 3) + 1)
        ones [(2, 3)]
        add [(2, 3)]
        relu [(2, 3)]
    """

    def forward_preprocess(
        self, function: FunctionCall, in_data: tuple[Tensor | None, ...], /
    ) -> None:
        """Before the forward; `in_data` are the input tensors in order."""

    def forward_postprocess(
        self, function: FunctionCall, in_data: tuple[Tensor | None, ...], /
    ) -> None:
        """After the forward; `function.outputs` are known too."""

    def backward_preprocess(
        self,
        function: FunctionCall,
        in_data: tuple[Tensor | None, ...],
        out_grad: tuple[Tensor | None, ...],
        /,
    ) -> None:
        """The backward begins; `out_grad` has one gradient an output, None where there is none."""

    def backward_postprocess(
        self,
        function: FunctionCall,
        in_data: tuple[Tensor | None, ...],
        out_grad: tuple[Tensor | None, ...],
        /,
    ) -> None:
        """The backward is done."""

    @classmethod
    def scope_in(cls, thread: Thread) -> HookRegistry:
        """The registry of the function hooks scoped to a thread."""
        return scoped(thread)


def get_function_hooks() -> Mapping[str, FunctionHook]:
    """The function hooks scoped to this thread: by name, in order, read-only.

    Example:
        >>> import hookline
        >>> with hookline.function_hooks.PrintHook():
        ...     list(hookline.get_function_hooks())
        ['PrintHook']
    """
    named = current_thread().functions.named()
    return MappingProxyType({name: entry.hook for name, entry in named.items()})  # type: ignore[misc]
