"""What modules and functions hold in memory: outputs, and what autograd keeps for the backward."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hookline.core.records import MemoryRow
from hookline.functions.call import Tensors
from hookline.functions.hook import FunctionHook
from hookline.hooks.allocator import CudaAllocator
from hookline.hooks.measuring import Measuring
from hookline.hooks.memory_meter import MemoryMeter
from hookline.hooks.subject import subject_of
from hookline.modules.hook import ModuleHook
from hookline.torch_base.tree import tensors

if TYPE_CHECKING:
    from hookline.functions.call import FunctionCall
    from hookline.modules.call import ModuleCall


class Memory(Measuring[MemoryRow, MemoryMeter]):
    """What the memory hooks of both levels have in common."""

    def __init__(self, *, peaks: bool = False) -> None:
        self._meter = MemoryMeter(CudaAllocator(peaks=peaks))

    def _begin(self, call: Any) -> None:
        if not call.recomputing:
            self._meter.begin(call, subject_of(call, "forward"))


class ModuleMemoryHook(Memory, ModuleHook):
    """Measures the outputs of modules, and what autograd keeps of them for the backward.

    Counted are storages, each once: a view holds the whole storage that it is of, and shares it
    with the tensor that it is a view of.

    * *Outputs*: the storages of a call's outputs, but those of its inputs, as of a module that
      works in place, gives a view of its input or the input itself.
    * *Saved*: the storages that the call's autograd nodes keep for the backward and that an
      output leads to. Each belongs to the call that kept it first, and to the calls around that
      one, so the figures of the calls inside a call and its own (`self_saved_bytes`) add up to
      the whole. What the model holds anyway, its parameters and buffers, is left out.
    * *Packed*: what went through `saved_tensors_hooks` or is in an activation checkpoint is counted
      apart, with the bytes of the tensors that it was packed into, where these can be seen.
      Nothing is unpacked, so no checkpoint computes anything again.

    Nothing of this needs a backward, or a device. With CUDA in use, the change of what the
    allocator of the current device has given out is measured too, and the peak where asked for.
    Calls that raise and forwards that activation checkpointing repeats are left out.

    Args:
        peaks: measure the peak of what is allocated during each call. For this, the allocator's
            peak is started anew at each call, which shows in `torch.cuda.max_memory_allocated()`.

    Raises:
        HookValueError: peaks are wanted, and there is no CUDA device.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from hookline.module_hooks import MemoryHook
        >>> model = nn.Sequential(nn.Linear(64, 64), nn.Sigmoid(), nn.Linear(64, 8))
        >>> with MemoryHook() as memory:
        ...     _ = model(torch.randn(32, 64))
        >>> for row in memory.rows():
        ...     print(row.path or row.root, row.output_bytes, row.saved_bytes, row.parameter_bytes)
        0 8192 8192 16640
        1 8192 8192 0
        2 1024 0 2080
        Sequential 1024 16384 18720
    """

    name = "MemoryHook"

    def forward_preprocess(self, call: ModuleCall) -> None:
        """Start to measure."""
        self._begin(call)

    def forward_postprocess(self, call: ModuleCall) -> None:
        """Measure what the call leaves behind."""
        self._meter.end(call, tensors(call.out), tensors((call.args, call.kwargs)))

    def aborted(self, call: ModuleCall, exception: BaseException) -> None:
        """Leave the call out."""
        self._meter.abort(call)


class FunctionMemoryHook(Memory, FunctionHook):
    """Measures the outputs of functions, and what autograd keeps of them for the backward.

    What [hookline.module_hooks.MemoryHook][] says holds here too. Functions are told apart by the
    module that calls them and their name.

    Args:
        peaks: measure the peak of what is allocated during each call, as for modules.

    Raises:
        HookValueError: peaks are wanted, and there is no CUDA device.

    Example:
        >>> import torch
        >>> from hookline.function_hooks import MemoryHook
        >>> x = torch.randn(10, 10, requires_grad=True)
        >>> with MemoryHook() as memory:
        ...     y = torch.tanh(-x).view(100)
        >>> [(row.name, row.output_bytes, row.saved_bytes) for row in memory.rows()]
        [('neg', 400, 0), ('tanh', 400, 400), ('view', 0, 0)]
    """

    name = "MemoryHook"

    def forward_preprocess(self, function: FunctionCall, in_data: Tensors) -> None:
        """Start to measure."""
        self._begin(function)

    def forward_postprocess(self, function: FunctionCall, in_data: Tensors) -> None:
        """Measure what the call leaves behind."""
        inputs = [tensor for tensor in in_data if tensor is not None]
        self._meter.end(function, function.outputs or (), inputs)

    def aborted(self, call: FunctionCall, exception: BaseException) -> None:
        """Leave the call out."""
        self._meter.abort(call)
