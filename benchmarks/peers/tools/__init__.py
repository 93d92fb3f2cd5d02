"""One file a tool: how each piece of work is done with it."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec

from benchmarks.peers.tool import Tool

GROUPS = {
    "transformerlens": ("transformer_lens", "transformer-lens"),
    "nnsight": ("nnsight", "nnsight"),
    "pyvene": ("pyvene", "pyvene"),
    "captum": ("captum", "captum"),
    "torchlens": ("torchlens", "torchlens"),
    "tdhook": ("tdhook", "tdhook"),
    "torchs": ("torch", "torch"),
}
"""The files, each with the package that it imports and the distribution that has the version."""


def missing() -> list[str]:
    """The distributions that are not installed."""
    return [name for package, name in GROUPS.values() if find_spec(package) is None]


def installed() -> list[str]:
    """The files whose packages are there."""
    return [group for group, (package, _) in GROUPS.items() if find_spec(package)]


def tools(group: str) -> list[Tool]:
    """The tools of a file."""
    return [tool() for tool in import_module(f"{__name__}.{group}").TOOLS]
