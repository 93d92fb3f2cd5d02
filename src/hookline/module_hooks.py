"""The ready-made hooks for modules."""

from __future__ import annotations

from hookline.hooks.printer import ModulePrintHook as PrintHook
from hookline.hooks.ranges import ModuleRangeHook as RangeHook
from hookline.hooks.timer import ModuleTimerHook as TimerHook

__all__ = ["PrintHook", "RangeHook", "TimerHook"]
