"""Torch's fused path through encoders, which never calls the modules inside.

In eval without gradients `nn.TransformerEncoder` and its layers run fused kernels unless they
find hooks in torch's own tables, which do not show ours. While something inside is watched, the
fused path is turned off for the duration of the call, as torch does for hooks of its own. Results
may differ in the last bits; and where a padding mask is given, the padded places of an encoder's
output, which the fused path fills with zeros, hold values that mean nothing.

Torch has one setting for all threads, so a call in another thread may lose its fused path too.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from typing import Final

import torch
from torch import nn

from hookline.core.calls import Key
from hookline.core.entry import EMPTY
from hookline.core.switch import Switch, lock
from hookline.core.thread import Thread
from hookline.modules.places import outer_lineup, registries_at

# Not `nn.MultiheadAttention`: it calls no module on either of its paths.
FUSED: Final = (nn.TransformerEncoder, nn.TransformerEncoderLayer)
"""The modules that have a fused path."""

_mha: Final = torch.backends.mha
_unfused: Final = Switch()
_unfused.connect(
    on=partial(_mha.set_fastpath_enabled, value=False),
    off=partial(_mha.set_fastpath_enabled, value=True),
)
os.register_at_fork(after_in_child=_unfused.reset)


@contextmanager
def children_called(module: nn.Module, thread: Thread) -> Generator[None]:
    """Make a module call the modules in it, if one of them is watched."""
    with lock:
        usable = bool(_unfused) or _mha.get_fastpath_enabled()
    if not usable or not _watched_below(module, thread):
        yield
        return
    owner = object()
    try:
        _unfused.hold(owner)
        yield
    finally:
        try:
            _unfused.release(owner)
        except BaseException:  # Ctrl-C: what has begun is finished
            _unfused.release(owner)
            raise


def _watched_below(module: nn.Module, thread: Thread) -> bool:
    if outer_lineup(thread) is not EMPTY:
        return True
    below = (child for child in module.modules() if child is not module)
    return any(len(registry) for child in below for registry in registries_at(Key(child)))
