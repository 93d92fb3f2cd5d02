"""Hooks that stand around each call of both levels and directions, and need not tell them apart."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from hookline.functions.call import Tensors
from hookline.functions.hook import FunctionHook
from hookline.modules.hook import ModuleHook

if TYPE_CHECKING:
    from hookline.functions.call import FunctionCall
    from hookline.modules.call import ModuleCall


class ModuleBrackets(ModuleHook):
    """A module hook that begins and ends something with each forward and backward.

    Attributes:
        _end: called with a call that ends, well or not.
    """

    _end: Callable[[Any], object]

    def _begin(self, call: ModuleCall, direction: str) -> None:
        """A call begins: its `forward`, its `backward`, or a `recompute` of its forward."""
        raise NotImplementedError  # what it is that begins, each hook says

    def forward_preprocess(self, call: ModuleCall) -> None:
        """Begin the forward."""
        self._begin(call, "recompute" if call.recomputing else "forward")

    def forward_postprocess(self, call: ModuleCall) -> None:
        """End the forward."""
        self._end(call)

    def backward_preprocess(self, call: ModuleCall) -> None:
        """Begin the backward."""
        self._begin(call, "backward")

    def backward_postprocess(self, call: ModuleCall) -> None:
        """End the backward."""
        self._end(call)

    def aborted(self, call: ModuleCall, exception: BaseException) -> None:
        """End a call that raised; what it did until then counts."""
        self._end(call)


class FunctionBrackets(FunctionHook):
    """A function hook that begins and ends something with each forward and backward.

    Attributes:
        _end: called with a function that ends, well or not.
    """

    _end: Callable[[Any], object]

    def _begin(self, call: FunctionCall, direction: str) -> None:
        """A function begins: its `forward`, its `backward`, or a `recompute` of its forward."""
        raise NotImplementedError  # what it is that begins, each hook says

    def forward_preprocess(self, function: FunctionCall, in_data: Tensors) -> None:
        """Begin the forward."""
        self._begin(function, "recompute" if function.recomputing else "forward")

    def forward_postprocess(self, function: FunctionCall, in_data: Tensors) -> None:
        """End the forward."""
        self._end(function)

    def backward_preprocess(
        self, function: FunctionCall, in_data: Tensors, out_grad: Tensors
    ) -> None:
        """Begin the backward."""
        self._begin(function, "backward")

    def backward_postprocess(
        self, function: FunctionCall, in_data: Tensors, out_grad: Tensors
    ) -> None:
        """End the backward."""
        self._end(function)

    def aborted(self, call: FunctionCall, exception: BaseException) -> None:
        """End a function that raised; what it did until then counts."""
        self._end(call)
