"""The ready-made hooks for functions."""

from __future__ import annotations

from hookline.hooks.printer import FunctionPrintHook as PrintHook
from hookline.hooks.ranges import FunctionRangeHook as RangeHook
from hookline.hooks.timer import FunctionTimerHook as TimerHook

__all__ = ["PrintHook", "RangeHook", "TimerHook"]
