"""Replicas: what `DataParallel` makes of a model for each device, for one forward.

Each stands for the module that it was made of: it has that one's hooks, path and root. It may be
gone when the forward is over, so nothing is known by it, and the backward is the module's.
"""

from __future__ import annotations

from typing import Final
from weakref import ref

from torch import nn

from hookline.core.calls import Key

originals: Final[dict[Key[nn.Module], Key[nn.Module]]] = {}
"""The module that each replica was made of."""


def add_replica(replica: nn.Module, original: nn.Module) -> None:
    """Remember what a replica was made of, as long as it is there."""
    originals[ref(replica, _forget)] = key_of(original)


def _forget(key: Key[nn.Module]) -> None:
    originals.pop(key, None)


def key_of(module: nn.Module) -> Key[nn.Module]:
    """What a module is known by; for a replica, that of its original."""
    key = ref(module)
    return originals.get(key, key) if originals else key
