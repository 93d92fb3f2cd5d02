"""Whether a program is being recorded, to be run later without Python: then no hook belongs in it.

What a hook computes would become part of the program, and what it keeps would be a stand-in for a
value. So hooks rest while `torch.jit.trace`, `torch.fx.symbolic_trace`, `torch.export` and
`make_fx` record.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any, Final

import torch

from hookline.core.entry import Entry
from hookline.errors import HookWarning
from hookline.torch_base.private import (
    compiling,
    dispatch_mode,
    dispatch_mode_keys,
    dispatch_modes,
    fx_flag,
    fx_flags,
    is_tracing,
)

_COMPILER: Final = "torch.compile"
_PROXY: Final[Any] = dispatch_mode_keys.PROXY


def recorded_by() -> str | None:
    """What records the operations of this thread; None if nothing does."""
    # Asked at every watched call. Where a thread has not set a variable, `getattr` takes long.
    if compiling.__dict__.get("tracing_context") is not None:
        return "torch.export" if torch.compiler.is_exporting() else _COMPILER
    if is_tracing():
        return "torch.jit.trace"
    if fx_flags.__dict__.get(fx_flag):
        return "torch.export" if torch.compiler.is_exporting() else "torch.fx.symbolic_trace"
    if dispatch_modes() and dispatch_mode(_PROXY) is not None:
        return "torch.export" if torch.compiler.is_exporting() else "make_fx"
    return None


def left_out(what: str, entries: Iterable[Entry], recorder: str) -> None:
    """Warn of hooks on one thing which change what flows; see `warn_of`."""
    warn_of(((what, entry) for entry in entries), recorder)


def warn_of(entries: Iterable[tuple[str, Entry]], recorder: str) -> None:
    """Warn of hooks which change what flows, since the recorded program is without them.

    Args:
        entries: what there is, each with what it is on.
        recorder: what records.
    """
    names = [f"{entry.name} on {what}" for what, entry in entries if _changes(entry)]
    if names and recorder != _COMPILER:  # what it calls is no module of the program's
        msg = (
            f"{recorder} records the program without hooks: {', '.join(names)} left out. Remove "
            "them first, or record inside of hookline.paused()"
        )
        warnings.warn(msg, HookWarning, stacklevel=3)


def _changes(entry: Entry) -> bool:
    return bool(entry.hook.changes if entry.paired else entry.callbacks or entry.gradient)
