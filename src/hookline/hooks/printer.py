"""A line for each event: what came out, and which gradients came back."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from torch import Tensor

from hookline.core.stream import Writable, print_to
from hookline.core.travel import MadeAnew
from hookline.functions.call import FunctionCall, Tensors
from hookline.functions.hook import FunctionHook
from hookline.hooks.values import value_text
from hookline.modules.hook import ModuleHook
from hookline.torch_base.tree import leaves

if TYPE_CHECKING:
    from hookline.modules.call import ModuleCall


class Printer(MadeAnew):
    """What the printers of both levels have in common."""

    def __init__(self, file: Writable | None = None) -> None:
        self._file = file

    def _line(self, phase: str, call: Any, values: Iterable[tuple[str, Tensor | None]]) -> None:
        # An address has the index in it, a path has not.
        label = call.label if isinstance(call, FunctionCall) else f"{call.label}[{call.index}]"
        repeated = " (recomputing)" if call.recomputing else ""
        shown = "; ".join(f"{name} {value_text(tensor)}" for name, tensor in values)
        print_to(self._file, f"{phase} {label}{repeated}: {shown}\n")


class ModulePrintHook(Printer, ModuleHook):
    """Prints a line for each forward and backward of modules.

    A line has the phase, the path and call index, and for each tensor its shape, dtype, device,
    min, mean, max and std, with NaN and Inf counted.

    Args:
        file: where to; standard output by default, looked up when a line is printed.

    Example:
        >>> import torch
        >>> from hookline.module_hooks import PrintHook
        >>> with PrintHook():
        ...     _ = torch.nn.ReLU()(torch.ones(2))
        forward ReLU[0]: output float32[2] cpu min=1 mean=1 max=1 std=0
    """

    name = "PrintHook"

    def forward_postprocess(self, call: ModuleCall) -> None:
        """Print the outputs."""
        self._line("forward", call, leaves(call.out, "output"))

    def backward_preprocess(self, call: ModuleCall) -> None:
        """Print the gradients of the outputs."""
        self._line("backward", call, leaves(call.grad_output, "grad_output"))


class FunctionPrintHook(Printer, FunctionHook):
    """Prints a line for each forward and backward of functions.

    Args:
        file: where to; standard output by default, looked up when a line is printed.

    Example:
        >>> import torch
        >>> from hookline.function_hooks import PrintHook
        >>> with PrintHook():
        ...     _ = torch.tensor([1.0, float("nan")]).exp()
        forward tensor[0]: output float32[2] cpu min=1 mean=1 max=1 std=0 nan=1
        forward exp[0]: output float32[2] cpu min=2.718 mean=2.718 max=2.718 std=0 nan=1
    """

    name = "PrintHook"

    def forward_postprocess(self, function: FunctionCall, in_data: Tensors) -> None:
        """Print the outputs."""
        self._line("forward", function, leaves(function.result))

    def backward_preprocess(
        self, function: FunctionCall, in_data: Tensors, out_grad: Tensors
    ) -> None:
        """Print the gradients of the outputs."""
        named = ((f"out_grad[{place}]", gradient) for place, gradient in enumerate(out_grad))
        self._line("backward", function, named)
