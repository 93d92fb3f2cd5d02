"""Letting all hooks of a thread rest for a while."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from hookline.core.thread import local


@contextmanager
def paused() -> Generator[None]:
    """Let all hooks rest in this thread: nothing that runs inside is seen or changed by them.

    For what should see the bare model: recording it (`torch.export`, `torch.jit.trace`,
    `torch.fx`), a reference run, a measurement. The hooks stay registered. The backward of a
    forward that ran inside has no events either, nor has a backward inside.

    Example:
        >>> import torch, hookline
        >>> layer = torch.nn.ReLU()
        >>> handle = hookline.register_forward_hook(layer, lambda module, args, out: out + 1)
        >>> with hookline.paused():
        ...     layer(torch.zeros(2))
        tensor([0., 0.])
        >>> layer(torch.zeros(2))
        tensor([1., 1.])
        >>> handle.remove()
    """
    thread = local.thread
    was_busy, thread.busy = thread.busy, True
    try:
        yield
    finally:
        thread.busy = was_busy
