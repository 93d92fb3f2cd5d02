"""Named ranges, so that a profile shows modules and functions by their names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from hookline.core.travel import MadeAnew
from hookline.errors import HookValueError
from hookline.hooks.brackets import FunctionBrackets, ModuleBrackets


class Ranges(MadeAnew):
    """What the range hooks of both levels have in common."""

    def __init__(self, *, nvtx: bool = False) -> None:
        if nvtx and not torch.cuda.is_available():
            msg = "nvtx=True needs a CUDA device, and there is none; torch.profiler needs none"
            raise HookValueError(msg)
        self._nvtx = nvtx
        self._open: dict[Any, Callable[[], object]] = {}

    def _begin(self, call: Any, direction: str) -> None:
        # To a profile, a forward that a checkpoint repeats is a forward.
        name = f"{call.label}.{'forward' if direction == 'recompute' else direction}"
        if self._nvtx:
            torch.cuda.nvtx.range_push(name)
            self._open[call] = torch.cuda.nvtx.range_pop
        else:
            profiled = torch.profiler.record_function(name)
            profiled.__enter__()
            self._open[call] = lambda: profiled.__exit__(None, None, None)

    def _end(self, call: Any) -> None:
        close = self._open.pop(call, None)
        if close is not None:
            close()


class ModuleRangeHook(Ranges, ModuleBrackets):
    """Marks the forward and backward of each module as a range for profilers.

    Ranges are called `path.forward` and `path.backward`; the root goes by its class name.

    Args:
        nvtx: mark NVTX ranges (Nsight) in place of those of `torch.profiler`.

    Raises:
        HookValueError: NVTX was asked for and there is no CUDA device.

    Example:
        >>> import torch
        >>> from hookline.module_hooks import RangeHook
        >>> with torch.profiler.profile() as profile, RangeHook():
        ...     _ = torch.nn.ReLU()(torch.ones(2))
        >>> "ReLU.forward" in {event.key for event in profile.key_averages()}
        True
    """

    name = "RangeHook"


class FunctionRangeHook(Ranges, FunctionBrackets):
    """Marks the forward and backward of each function as a range for profilers.

    Ranges are called by a function's address, such as `layers.3:softmax[0].backward`.

    Args:
        nvtx: mark NVTX ranges (Nsight) in place of those of `torch.profiler`.

    Raises:
        HookValueError: NVTX was asked for and there is no CUDA device.

    Example:
        >>> import torch
        >>> from hookline.function_hooks import RangeHook
        >>> with torch.profiler.profile() as profile, RangeHook():
        ...     _ = torch.nn.functional.relu(torch.ones(2))
        >>> any(event.key.endswith("relu[0].forward") for event in profile.key_averages())
        True
    """

    name = "RangeHook"
