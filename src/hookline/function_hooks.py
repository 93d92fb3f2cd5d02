"""The ready-made hooks for functions."""

from __future__ import annotations

from hookline.hooks.capture import FunctionCaptureHook as CaptureHook
from hookline.hooks.nonfinite import FunctionNonFiniteHook as NonFiniteHook
from hookline.hooks.printer import FunctionPrintHook as PrintHook
from hookline.hooks.ranges import FunctionRangeHook as RangeHook
from hookline.hooks.stats import FunctionStatsHook as StatsHook
from hookline.hooks.timer import FunctionTimerHook as TimerHook

__all__ = ["CaptureHook", "NonFiniteHook", "PrintHook", "RangeHook", "StatsHook", "TimerHook"]
