"""Torch's fused path through encoders, which never calls the modules inside.

In eval without gradients `nn.TransformerEncoder` and its layers run one fused kernel unless they
find hooks in torch's own tables, which do not show ours. While something inside is watched, the
fused path is turned off for the duration of the call; results may differ in the last bits.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

import torch
from torch import nn

from hookline.core.calls import Key
from hookline.core.entry import EMPTY
from hookline.core.thread import Thread
from hookline.modules.places import outer_lineup, table

_FUSED: Final = (nn.TransformerEncoder, nn.TransformerEncoderLayer, nn.MultiheadAttention)


class _ByType(dict[type, bool]):
    def __missing__(self, cls: type) -> bool:
        found = self[cls] = issubclass(cls, _FUSED)
        return found


has_fast_path: Final = _ByType()
"""Whether modules of a class have a fused path."""


@contextmanager
def children_called(module: nn.Module, thread: Thread) -> Generator[None]:
    """Make a module call the modules in it, if one of them is watched."""
    if not torch.backends.mha.get_fastpath_enabled() or not _watched_below(module, thread):
        yield
        return
    torch.backends.mha.set_fastpath_enabled(value=False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(value=True)


def _watched_below(module: nn.Module, thread: Thread) -> bool:
    if outer_lineup(thread) is not EMPTY:
        return True
    below = (child for child in module.modules() if child is not module)
    return any(len(table[key]) for child in below if (key := Key(child)) in table)
