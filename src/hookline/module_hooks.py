"""The ready-made hooks for modules."""

from __future__ import annotations

from hookline.hooks.timer import TimerHook

__all__ = ["TimerHook"]
