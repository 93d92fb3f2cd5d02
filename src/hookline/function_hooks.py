"""The ready-made hooks for functions."""

from __future__ import annotations

from typing import TYPE_CHECKING

__all__ = [
    "AttentionHook",
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

if TYPE_CHECKING:
    from hookline.hooks.attention import AttentionHook
    from hookline.hooks.capture import FunctionCaptureHook as CaptureHook
    from hookline.hooks.flops import FunctionFlopHook as FlopHook
    from hookline.hooks.memory import FunctionMemoryHook as MemoryHook
    from hookline.hooks.nonfinite import FunctionNonFiniteHook as NonFiniteHook
    from hookline.hooks.patch_hooks import FunctionPatchHook as PatchHook
    from hookline.hooks.printer import FunctionPrintHook as PrintHook
    from hookline.hooks.ranges import FunctionRangeHook as RangeHook
    from hookline.hooks.stats import FunctionStatsHook as StatsHook
    from hookline.hooks.timer import FunctionTimerHook as TimerHook
else:
    from hookline._late import late

    _HOMES = {
        "AttentionHook": "hooks.attention",
        "CaptureHook": "hooks.capture:FunctionCaptureHook",
        "FlopHook": "hooks.flops:FunctionFlopHook",
        "MemoryHook": "hooks.memory:FunctionMemoryHook",
        "NonFiniteHook": "hooks.nonfinite:FunctionNonFiniteHook",
        "PatchHook": "hooks.patch_hooks:FunctionPatchHook",
        "PrintHook": "hooks.printer:FunctionPrintHook",
        "RangeHook": "hooks.ranges:FunctionRangeHook",
        "StatsHook": "hooks.stats:FunctionStatsHook",
        "TimerHook": "hooks.timer:FunctionTimerHook",
    }

    __getattr__ = late(__name__, _HOMES)

    def __dir__() -> list[str]:
        return __all__
