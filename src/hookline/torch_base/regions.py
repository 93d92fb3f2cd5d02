"""Regions that `torch.compile` made: what the compiler is looking at, and what it made of code.

Compiled code is valid as long as its guards hold. Nothing in them shows that hooks were registered
where there were none, so that code is thrown away here; and nothing tells one module from another
of its class, so that modules of a class with hooks get a guard of their own.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Iterator
from types import CodeType, FunctionType
from typing import Any, Final, NamedTuple, NoReturn
from weakref import WeakKeyDictionary

from torch import nn

from hookline.torch_base import private

_NOTE: Final = "the hooks that hookline has on it are those that were traced"
_open: Final[WeakKeyDictionary[Any, frozenset[type]]] = WeakKeyDictionary()
"""For the guards of each compiled code: the classes of modules that have no guard of ours."""


class Traced(NamedTuple):
    """A module whose call the compiler is tracing.

    Attributes:
        module: the module.
        source: where compiled code will find it; None for one that is made in the region.
        region: the code that is being compiled.
        whole: whether the region must be compiled as one graph (`fullgraph=True`).
        exported: whether it is traced for `torch.export`, not for this process.
    """

    module: nn.Module
    source: Any
    region: CodeType
    whole: bool
    exported: bool

    def failures(self, text: str) -> int:
        """How often the code was not valid any more for a reason that names something."""
        known = private.compiler().utils.guard_failures
        return sum(text in reason for reason in known.get(self.region, ()))

    def guard(self, state_of: Callable[[nn.Module], object], state: object) -> None:
        """Make the code valid only for modules in a state: that of this one, now."""
        if self.source is None:
            return

        def add_guard(builder: Any, guard: Any) -> None:
            manager = builder.get_guard_manager(guard)
            # As a value of its own: the compiler may skip what it takes to be a module's own.
            inner = manager.lambda_manager(
                python_lambda=state_of,
                source=f"hookline({guard.name})",
                example_value=state,
                guard_manager_enum=private.compiler().guards.GuardManagerType.GUARD_MANAGER,
            )
            inner.add_lambda_guard(lambda value: value == state, [_NOTE], None)

        private.compiler().guards.install_guard(self.source.make_guard(add_guard))


def traced_module(name: str) -> Traced:
    """What is being traced, called by what stands as a constant in traced code.

    Args:
        name: the variable of the function being traced that holds a module.
    """
    compiler = private.compiler()
    output = compiler.symbolic_convert.InstructionTranslator.current_tx().output
    variable = output.current_tx.symbolic_locals[name].realize()
    module = getattr(variable, "value", None)
    if module is None:
        module = output.get_submodule(variable.module_key)
    whole = bool(output.root_tx.one_graph or output.root_tx.error_on_graph_break)
    return Traced(module, variable.source, output.root_tx.f_code, whole, bool(output.export))


def refuse(error: type[Exception], message: str) -> NoReturn:
    """Stop the compiler by an error of ours, which it hands on as it does its own."""
    unsupported = private.compiler().exc.Unsupported
    name = error.__name__
    raised = type(name, (error, unsupported), {"__module__": error.__module__})
    raise raised(message)


def is_compiler_there() -> bool:
    """Whether the compiler was imported, so that there may be compiled code."""
    return "torch._dynamo.convert_frame" in sys.modules


def forget(cls: type[nn.Module], codes: Collection[CodeType] = ()) -> None:
    """Throw away compiled code that calls modules of a class without a guard of ours.

    Args:
        cls: the class; `nn.Module` means any module.
        codes: code objects of which all that was compiled is thrown away.
    """
    compiler = private.compiler()
    with compiler.convert_frame.compile_lock:
        for code in _known_codes():
            if code in codes or any(_calls(entry, cls) for entry in private.compiled_codes(code)):
                private.forget_compiled(code)


def is_guarded(cls: type[nn.Module]) -> bool:
    """Whether there is compiled code that holds for modules of a class: it calls some, or did."""
    return is_compiler_there() and any(
        guarded is cls
        for code in _known_codes()
        for entry in private.compiled_codes(code)
        for guarded, _ in _guarded(entry.guard_manager.root)
    )


def stay_out(package: str, through: Collection[str]) -> None:
    """Keep the compiler off the functions of ours that Python runs between two graphs.

    Args:
        package: of all modules below it that are loaded now.
        through: the names of functions that call the program's code, which is compiled again.
    """
    skip, default = private.FrameAction.SKIP, private.FrameAction.DEFAULT
    for name, module in list(sys.modules.items()):
        if name.startswith(package):
            for code in _codes_of(name, vars(module).values()):
                below = default if code.co_name in through else skip
                private.set_strategy(code, private.FrameStrategy(skip, below))


def _codes_of(module: str, values: Iterable[Any]) -> Iterator[CodeType]:
    """The code of all functions and methods that a module defines."""
    for value in values:
        if getattr(value, "__module__", None) == module and isinstance(value, type):
            members = (m for m in vars(value).values() if not isinstance(m, type))
            yield from _codes_of(module, members)
        function = getattr(value, "fget", None) or getattr(value, "__func__", value)
        if isinstance(function, FunctionType) and function.__module__ == module:
            yield from _with_inner(function.__code__)


def _with_inner(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _with_inner(constant)


def _known_codes() -> Iterator[CodeType]:
    seen = list(private.compiler().convert_frame.input_codes.seen)
    yield from (code for code_ref in seen if (code := code_ref()) is not None)


def _calls(entry: Any, cls: type[nn.Module]) -> bool:
    guards = entry.guard_manager
    classes = _open.get(guards)
    if classes is None:
        found = _guarded(guards.root)
        classes = _open[guards] = frozenset(each for each, is_ours in found if not is_ours)
    return bool(classes) if cls is nn.Module else cls in classes


def _guarded(manager: Any) -> Iterator[tuple[type, bool]]:
    """The classes of modules that stand in guards, and whether one of ours is among these."""
    pending = [manager]
    while pending:
        manager = pending.pop()
        below = list(manager.get_child_managers())
        cls = manager.get_type_of_guarded_value()
        if issubclass(cls, nn.Module):
            yield cls, any(map(_is_ours, below))
        pending += below
        if hasattr(manager, "get_key_value_managers"):
            pairs = manager.get_key_value_managers().values()
            pending += [part for pair in pairs for part in pair if part is not None]


def _is_ours(manager: Any) -> bool:
    return any(_NOTE in guard.verbose_code_parts() for guard in manager.get_leaf_guards())
