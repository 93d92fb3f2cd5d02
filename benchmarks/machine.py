"""What figures were measured with, and how busy the machine was."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version
from pathlib import Path

from hookline._version import __version__


def processor() -> str:
    """The processor's name; `platform` knows none on Linux."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def load() -> str:
    """How many programs wanted a core lately: over the last 1, 5 and 15 minutes."""
    return ", ".join(f"{each:.1f}" for each in os.getloadavg())


def about(*packages: str) -> dict[str, str]:
    """Versions, processor and load, in words.

    Args:
        packages: whose versions to tell besides.
    """
    versions = {"hookline": __version__} | {name: version(name) for name in ("torch", *packages)}
    cores = f"{processor()}, {os.cpu_count()} cores"
    return versions | {"Python": platform.python_version(), "processor": cores, "load": load()}


def sentence(told: dict[str, str]) -> str:
    """All of it, as a line of Markdown."""
    return ", ".join(f"{name} {value}" for name, value in told.items())
