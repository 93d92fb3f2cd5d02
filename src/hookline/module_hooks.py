"""The ready-made hooks for modules."""

from __future__ import annotations

from typing import TYPE_CHECKING

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

if TYPE_CHECKING:
    from hookline.hooks.capture import ModuleCaptureHook as CaptureHook
    from hookline.hooks.flops import ModuleFlopHook as FlopHook
    from hookline.hooks.memory import ModuleMemoryHook as MemoryHook
    from hookline.hooks.nonfinite import ModuleNonFiniteHook as NonFiniteHook
    from hookline.hooks.patch_hooks import ModulePatchHook as PatchHook
    from hookline.hooks.printer import ModulePrintHook as PrintHook
    from hookline.hooks.ranges import ModuleRangeHook as RangeHook
    from hookline.hooks.stats import ModuleStatsHook as StatsHook
    from hookline.hooks.timer import ModuleTimerHook as TimerHook
else:
    from hookline._late import late

    _HOMES = {
        "CaptureHook": "hooks.capture:ModuleCaptureHook",
        "FlopHook": "hooks.flops:ModuleFlopHook",
        "MemoryHook": "hooks.memory:ModuleMemoryHook",
        "NonFiniteHook": "hooks.nonfinite:ModuleNonFiniteHook",
        "PatchHook": "hooks.patch_hooks:ModulePatchHook",
        "PrintHook": "hooks.printer:ModulePrintHook",
        "RangeHook": "hooks.ranges:ModuleRangeHook",
        "StatsHook": "hooks.stats:ModuleStatsHook",
        "TimerHook": "hooks.timer:ModuleTimerHook",
    }

    __getattr__ = late(__name__, _HOMES)

    def __dir__() -> list[str]:
        return __all__
