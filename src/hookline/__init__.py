"""Hooks for PyTorch: watch, change or stop what flows through a model, without changing it.

The names here are loaded when they are first used, so that reading a report needs no torch.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from types import ModuleType
from typing import TYPE_CHECKING, Any

from hookline._version import __version__ as __version__
from hookline.core import stream as _stream

if TYPE_CHECKING:
    from hookline import edits as edits
    from hookline import function_hooks as function_hooks
    from hookline import module_hooks as module_hooks
    from hookline.core.calls import Inputs as Inputs
    from hookline.core.handle import HookHandle as HookHandle
    from hookline.core.pause import paused as paused
    from hookline.core.phases import HookKind as HookKind
    from hookline.core.phases import Phase as Phase
    from hookline.core.registry import HookRegistry as HookRegistry
    from hookline.errors import CaptureError as CaptureError
    from hookline.errors import CaptureKeyError as CaptureKeyError
    from hookline.errors import CaptureLimitError as CaptureLimitError
    from hookline.errors import CompileError as CompileError
    from hookline.errors import HooklineError as HooklineError
    from hookline.errors import HookNameError as HookNameError
    from hookline.errors import HookTypeError as HookTypeError
    from hookline.errors import HookValueError as HookValueError
    from hookline.errors import HookWarning as HookWarning
    from hookline.errors import MissingExtraError as MissingExtraError
    from hookline.errors import NonFiniteError as NonFiniteError
    from hookline.errors import RecomputeError as RecomputeError
    from hookline.errors import RunFileError as RunFileError
    from hookline.errors import SelectionError as SelectionError
    from hookline.function_hooks import TimerHook as TimerHook
    from hookline.functions.call import FunctionCall as FunctionCall
    from hookline.functions.hook import FunctionHook as FunctionHook
    from hookline.functions.hook import get_function_hooks as get_function_hooks
    from hookline.functions.node import FunctionNode as FunctionNode
    from hookline.hooks.attention import attention as attention
    from hookline.hooks.capture import Capture as Capture
    from hookline.hooks.capture import capture as capture
    from hookline.hooks.capture_file import load_capture as load_capture
    from hookline.hooks.captured import Captured as Captured
    from hookline.hooks.captured_call import CapturedCall as CapturedCall
    from hookline.hooks.editing import Edit as Edit
    from hookline.hooks.patch import Patch as Patch
    from hookline.hooks.patch import patch as patch
    from hookline.hooks.store import Captures as Captures
    from hookline.modules.call import ModuleCall as ModuleCall
    from hookline.modules.gate import BackwardHookGate as BackwardHookGate
    from hookline.modules.hook import ModuleHook as ModuleHook
    from hookline.modules.hook import add_hook as add_hook
    from hookline.modules.hook import delete_hook as delete_hook
    from hookline.modules.hook import get_module_hooks as get_module_hooks
    from hookline.modules.listing import Registration as Registration
    from hookline.modules.listing import clear_hooks as clear_hooks
    from hookline.modules.listing import hooks_of as hooks_of
    from hookline.modules.register import register_forward_hook as register_forward_hook
    from hookline.modules.register import register_forward_pre_hook as register_forward_pre_hook
    from hookline.modules.register import register_full_backward_hook as register_full_backward_hook
    from hookline.modules.register import (
        register_full_backward_pre_hook as register_full_backward_pre_hook,
    )
    from hookline.modules.register import (
        register_module_forward_hook as register_module_forward_hook,
    )
    from hookline.modules.register import (
        register_module_forward_pre_hook as register_module_forward_pre_hook,
    )
    from hookline.modules.register import (
        register_module_full_backward_hook as register_module_full_backward_hook,
    )
    from hookline.modules.register import (
        register_module_full_backward_pre_hook as register_module_full_backward_pre_hook,
    )
    from hookline.modules.replace import GradInput as GradInput
    from hookline.modules.wrapper import BackwardHook as BackwardHook
    from hookline.modules.wrapper import ForwardHook as ForwardHook
    from hookline.modules.wrapper import ForwardPreHook as ForwardPreHook
    from hookline.modules.wrapper import Hooks as Hooks
    from hookline.modules.wrapper import with_hooks as with_hooks
    from hookline.runs import Run as Run
    from hookline.runs import load_run as load_run
    from hookline.runs import record as record
    from hookline.torch_base.select import select as select
    from hookline.torch_base.selection import Selection as Selection
    from hookline.watch import Watch as Watch
    from hookline.watch import watch as watch


def _print_tables(name: str, rows: Iterable[Any], empty: str, file: Any) -> None:
    from hookline.report.rows import print_rows

    print_rows(name, rows, empty, file)


_stream.print_tables = _print_tables

if not TYPE_CHECKING:
    from importlib import import_module

    from hookline._late import late

    _HOMES = {
        "core.calls": ("Inputs",),
        "core.handle": ("HookHandle",),
        "core.pause": ("paused",),
        "core.phases": ("HookKind", "Phase"),
        "core.registry": ("HookRegistry",),
        "errors": (
            "CaptureError",
            "CaptureKeyError",
            "CaptureLimitError",
            "CompileError",
            "HookNameError",
            "HookTypeError",
            "HookValueError",
            "HookWarning",
            "HooklineError",
            "MissingExtraError",
            "NonFiniteError",
            "RecomputeError",
            "RunFileError",
            "SelectionError",
        ),
        "function_hooks": ("TimerHook",),
        "functions.call": ("FunctionCall",),
        "functions.hook": ("FunctionHook", "get_function_hooks"),
        "functions.node": ("FunctionNode",),
        "hooks.attention": ("attention",),
        "hooks.capture": ("Capture", "capture"),
        "hooks.capture_file": ("load_capture",),
        "hooks.captured": ("Captured",),
        "hooks.captured_call": ("CapturedCall",),
        "hooks.editing": ("Edit",),
        "hooks.patch": ("Patch", "patch"),
        "hooks.store": ("Captures",),
        "modules.call": ("ModuleCall",),
        "modules.gate": ("BackwardHookGate",),
        "modules.hook": ("ModuleHook", "add_hook", "delete_hook", "get_module_hooks"),
        "modules.listing": ("Registration", "clear_hooks", "hooks_of"),
        "modules.register": (
            "register_forward_hook",
            "register_forward_pre_hook",
            "register_full_backward_hook",
            "register_full_backward_pre_hook",
            "register_module_forward_hook",
            "register_module_forward_pre_hook",
            "register_module_full_backward_hook",
            "register_module_full_backward_pre_hook",
        ),
        "modules.replace": ("GradInput",),
        "modules.wrapper": (
            "BackwardHook",
            "ForwardHook",
            "ForwardPreHook",
            "Hooks",
            "with_hooks",
        ),
        "runs": ("Run", "load_run", "record"),
        "torch_base.select": ("select",),
        "torch_base.selection": ("Selection",),
        "watch": ("Watch", "watch"),
    }
    _HOME_OF = {name: home for home, names in _HOMES.items() for name in names}
    _MODULES = ("edits", "function_hooks", "module_hooks")

    class _Package(ModuleType):
        """Leaves `watch` and `record` the verbs where importing a submodule would put that."""

        def __setattr__(self, name: str, value: object) -> None:
            if name not in _HOME_OF or not isinstance(value, ModuleType):
                super().__setattr__(name, value)

    sys.modules[__name__].__class__ = _Package

    __all__ = [*_HOME_OF, *_MODULES, "__version__"]  # noqa: PLE0604 - all that is loaded late

    def __dir__() -> list[str]:
        return __all__

    _load = late(__name__, _HOME_OF)

    def __getattr__(name: str) -> object:
        return import_module(f"hookline.{name}") if name in _MODULES else _load(name)
