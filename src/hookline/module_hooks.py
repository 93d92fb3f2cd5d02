"""The ready-made hooks for modules."""

from __future__ import annotations

from hookline.hooks.capture import ModuleCaptureHook as CaptureHook
from hookline.hooks.flops import ModuleFlopHook as FlopHook
from hookline.hooks.memory import ModuleMemoryHook as MemoryHook
from hookline.hooks.nonfinite import ModuleNonFiniteHook as NonFiniteHook
from hookline.hooks.patch_hooks import ModulePatchHook as PatchHook
from hookline.hooks.printer import ModulePrintHook as PrintHook
from hookline.hooks.ranges import ModuleRangeHook as RangeHook
from hookline.hooks.stats import ModuleStatsHook as StatsHook
from hookline.hooks.timer import ModuleTimerHook as TimerHook

__all__ = [
    "CaptureHook",
    "FlopHook",
    "MemoryHook",
    "NonFiniteHook",
    "PatchHook",
    "PrintHook",
    "RangeHook",
    "StatsHook",
    "TimerHook",
]
