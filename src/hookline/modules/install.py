"""Turns the engine of modules on with the first hook, and off with the last."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Final

from torch import nn
from torch.nn.modules.module import register_module_module_registration_hook
from torch.optim.optimizer import register_optimizer_step_post_hook

from hookline.core.thread import local, module_switch
from hookline.modules import recorded
from hookline.modules.engine import calls
from hookline.modules.places import everywhere, replicate, table
from hookline.torch_base import backward
from hookline.torch_base.late import LateImport
from hookline.torch_base.patch import Patch, Stand
from hookline.torch_base.paths import roots
from hookline.torch_base.private import COMPILER, REPLICATE
from hookline.torch_base.stack import steps


def _replicating(stand: Stand) -> Callable[..., Any]:
    original = stand.original

    def replicate_for_data_parallel(module: nn.Module) -> nn.Module:
        replica = original(module)
        if stand.active:
            replicate(module, replica)
        return replica

    return replicate_for_data_parallel


class _Helpers:
    """Torch's own public hooks that tell the engine of new modules and of optimizer steps."""

    def __init__(self) -> None:
        self._handles: list[Any] = []

    def install(self) -> None:
        self._handles.append(register_module_module_registration_hook(roots.learn))
        self._handles.append(register_optimizer_step_post_hook(steps.taken))

    def uninstall(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []


_parts: Final = (
    calls,
    LateImport(COMPILER, calls),
    Patch(nn.Module, REPLICATE, _replicating),
    backward.patch,
    recorded.patch,
    _Helpers(),
)


def _install() -> None:
    roots.version += 1  # modules may have been moved unseen
    for part in _parts:
        part.install()


def _uninstall() -> None:
    for part in reversed(_parts):
        part.uninstall()


def _forget_in_child() -> None:
    """In a forked child (a DataLoader worker) nothing of ours is on."""
    for registry in (*table.values(), everywhere):
        registry.forget()
    local.thread.forget()
    module_switch.reset()


module_switch.connect(_install, _uninstall)
os.register_at_fork(after_in_child=_forget_in_child)
