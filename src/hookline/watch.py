"""Hooks on the selected modules of one model, and on the functions that these call."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple, Self, TypeAlias

from torch import nn

from hookline.core.calls import Key, Pass
from hookline.core.entry import EMPTY, Entry
from hookline.core.handle import HookHandle
from hookline.core.notes import add_detail
from hookline.core.patterns import FunctionPattern
from hookline.core.phases import Phase
from hookline.core.records import Silent
from hookline.core.registry import HookRegistry
from hookline.core.scope import HookObject, Renamed, entries_of, put_object
from hookline.core.thread import local
from hookline.errors import HookNameError, HookTypeError, HookValueError, SelectionError
from hookline.functions.chosen import Chosen, register_chosen, remove_chosen
from hookline.functions.hook import FunctionHook
from hookline.modules.hook import ModuleHook
from hookline.modules.places import registry_of
from hookline.modules.silence import NO_GRADIENT, Reason, Reasons, function_not_called
from hookline.modules.targets import which_are_seen
from hookline.torch_base.paths import paths_in, roots
from hookline.torch_base.select import Where, check_model, patterns_of, selection_in
from hookline.torch_base.selection import Choice, Selection, listed
from hookline.torch_base.wrappers import class_names

_Named: TypeAlias = list[tuple[Any, str]]
_FORWARD: Final = frozenset({Phase.FORWARD_PRE, Phase.FORWARD})


def watch(
    model: nn.Module,
    *hooks: ModuleHook | FunctionHook | Renamed[Any],
    where: Where = None,
    prepend: bool = False,
) -> Watch:
    """Put hooks on the selected modules of a model, and on the functions that these call.

    Module hooks run for the calls of the selected modules, in all threads. Function hooks run for
    the functions that the forwards of the selected modules call, or for those that are selected
    by address, in this thread and in those that start later. What a scope or `add_hook` registers
    besides runs in the same order as with them; a scoped module hook of the same name gives way.

    Containers without a forward (`nn.ModuleList`) and TorchScript modules have no calls to see;
    they are left out where a pattern means them among others, and refused where one names them.

    Args:
        model: the model, or a wrapper of it; it becomes the root of what it contains, where it is
            not known to be a part of a larger one.
        *hooks: the hooks, each registered under its own name or that of `hook.renamed("name")`.
            `added(module)` is called for each module, `added(None)` for function hooks, and the
            same with `deleted` when they are removed.
        where: a pattern or several, as [select][hookline.select] takes them, or a `Selection`;
            all modules by default.
        prepend: run them before the hooks that are registered there, in the given order.

    Returns:
        A context manager; leaving it, or `close()`, removes the hooks. Keep it: once collected,
        it removes them too.

    Raises:
        SelectionError: a pattern matches nothing, or nothing that a hook can see.
        HookNameError: a hook of the name is on one of the modules; nothing stays registered.
        HookTypeError: the model is no module, a hook no hook, or a pattern no pattern; a module
            was named that is TorchScript.
        HookValueError: a container was named.

    Example:
        >>> import torch, hookline
        >>> class Show(hookline.ModuleHook):
        ...     def forward_postprocess(self, call):
        ...         print(call.path, tuple(call.out.shape))
        >>> model = torch.nn.TransformerEncoderLayer(8, 2, 16)
        >>> with hookline.watch(model, Show(), where="linear?"):
        ...     _ = model(torch.zeros(3, 1, 8))
        linear1 (3, 1, 16)
        linear2 (3, 1, 8)
    """
    return Watch(model, hooks, where, prepend=prepend)


class _Seat(NamedTuple):
    """A selected module or function, held weakly."""

    path: str
    module: Key[nn.Module]
    called: Key[nn.Module]
    function: FunctionPattern | None
    exact: bool

    @property
    def type(self) -> str:
        """The class name of the module; empty once it is gone."""
        module = self.module()
        return "" if module is None else class_names[type(module)]


class Watch:
    """Hooks on the selected modules of a model, until it is closed; `watch` gives it.

    It keeps neither the model nor its modules alive.
    """

    def __init__(
        self,
        model: nn.Module,
        hooks: Iterable[HookObject | Renamed[Any]],
        where: Where = None,
        *,
        prepend: bool = False,
    ) -> None:
        self._placed: list[tuple[HookRegistry, Entry, Key[nn.Module]]] = []
        self._handles: list[HookHandle] = []
        self._chosen: list[tuple[str, Chosen]] = []
        named = _named(hooks)
        modules = [(hook, name) for hook, name in named if isinstance(hook, ModuleHook)]
        functions = [(hook, name) for hook, name in named if isinstance(hook, FunctionHook)]
        patterns = patterns_of(where)
        self._root = roots.declare(check_model(model))
        self._model = Key(model)
        self._first_pass = 1 + max((p.number for p in self._passes()), default=-1)
        choices = selection_in(model, self._root.seats, patterns).choices
        seen = which_are_seen(choices)
        _check_levels(modules, functions, choices)
        self._names = [name for _, name in modules]
        self._seats = [_Seat(p, Key(m), Key(called), f, e) for p, m, called, f, e in choices]
        self._entries: list[list[Entry]] = [[] for _ in choices]
        try:
            if modules:
                self._put_on_modules(modules, choices, seen, prepend=prepend)
            self._put_on_functions(functions, choices, prepend=prepend)
        except BaseException as error:
            self._close_after(error)
            raise

    def _put_on_modules(
        self, hooks: _Named, choices: Sequence[Choice], seen: Iterable[bool], *, prepend: bool
    ) -> None:
        makers = [(entries_of(hook, ModuleHook, name), name) for hook, name in hooks]
        if prepend:
            makers.reverse()
        placed = self._placed
        for (path, _, module, function, _), is_seen, seat, entries in zip(
            choices, seen, self._seats, self._entries, strict=True
        ):
            if not is_seen or function is not None:
                continue
            registry = registry_of(module)
            for make, name in makers:
                if registry.lineup is not EMPTY and name in registry.named():
                    msg = f"Hook {name} already exists on {path!r}"
                    raise HookNameError(msg)
                entry = make()
                placed.append((registry, entry, seat.called))
                put_object(registry, entry, module, prepend=prepend)
                entries.append(entry)

    def _put_on_functions(self, hooks: _Named, choices: Sequence[Choice], *, prepend: bool) -> None:
        for hook, name in reversed(hooks) if prepend else hooks:
            chosen = Chosen(choices)
            self._handles.append(register_chosen(hook, name, chosen, prepend=prepend))
            self._chosen.append((name, chosen))

    @property
    def selection(self) -> Selection:
        """What is watched, as far as it is still there.

        Raises:
            HookValueError: the model is gone.
        """
        model = self._model()
        if model is None:
            msg = f"the model of {self!r} is gone"
            raise HookValueError(msg)
        alive = ((seat, seat.module(), seat.called()) for seat in self._seats)
        return Selection(
            model,
            [
                Choice(seat.path, module, called, seat.function, seat.exact)
                for seat, module, called in alive
                if module is not None and called is not None
            ],
        )

    @property
    def closed(self) -> bool:
        """Whether its hooks were removed."""
        return not self._placed and not self._handles

    def close(self) -> None:
        """Remove the hooks, the last one first; a second call does nothing.

        Raises:
            BaseException: the first that a hook's `deleted` raised, once all hooks are gone.
        """
        errors: list[BaseException] = []
        while self._handles or self._placed:
            try:
                self._remove_last()
            except BaseException as error:  # noqa: BLE001 - all others are removed first
                errors.append(error)
        for another in errors[1:]:
            add_detail(errors[0], f"another hook's deleted raised {another!r}")
        if errors:
            raise errors[0]

    def _remove_last(self) -> None:
        if self._handles:
            handle = self._handles[-1]
            try:
                remove_chosen(handle)
            finally:
                handle.remove()
                self._handles.pop()
            return
        registry, entry, key = self._placed[-1]
        try:
            if entry.counted:
                entry.hook.deleted(key())
        finally:
            registry.discard(entry)
            self._placed.pop()

    def _close_after(self, error: BaseException) -> None:
        try:
            self.close()
        except BaseException as another:  # noqa: BLE001 - the first error wins
            add_detail(error, f"removing the hooks raised {another!r}")

    def __enter__(self) -> Self:
        if self.closed:
            msg = "this watch is closed; call watch(...) again"
            raise HookValueError(msg)
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if error is None:
            self.close()
        else:
            self._close_after(error)

    # The default is there still when the interpreter shuts down and modules are emptied.
    def __del__(self, warn: Callable[..., None] = warnings.warn) -> None:
        if "_chosen" not in vars(self):  # Ctrl-C before it was made
            return
        try:
            if any(h.active for h in self._handles) or any(e.alive for _, e, _ in self._placed):
                warn(f"{self!r} was collected while open; its hooks are removed", ResourceWarning)
        finally:  # also where Ctrl-C comes here
            self.close()

    def silent(self) -> list[Silent]:
        """What was selected, but whose hooks never ran while it was watched; also once closed.

        Returns:
            A row for each such module or function, with the likely cause, in the order of the
            selection. A module that calls no functions itself is no reason for one.

        Example:
            >>> import torch, hookline
            >>> model = torch.nn.MultiheadAttention(8, 2)
            >>> with hookline.watch(model, hookline.module_hooks.TimerHook()) as watched:
            ...     _ = model(*[torch.zeros(3, 1, 8)] * 3)
            >>> [(row.path, row.type, row.cause) for row in watched.silent()]
            [('out_proj', 'NonDynamicallyQuantizableLinear', 'fused')]
        """
        model = self._model()
        ran = self._ran()
        reasons = Reasons(model, {} if model is None else paths_in(model), ran)
        found: dict[tuple[int, Reason], list[str]] = {}
        for place, seat in enumerate(self._seats):
            for name, reason in (
                *self._without_events(place, seat, ran, reasons),
                *self._without_functions(place, seat, ran, reasons),
            ):
                found.setdefault((place, reason), []).append(name)
        return [
            Silent(self._seats[place].path, self._seats[place].type, *reason, tuple(names))
            for (place, reason), names in found.items()
        ]

    def _without_events(
        self, place: int, seat: _Seat, ran: set[object], reasons: Reasons
    ) -> Iterator[tuple[str, Reason]]:
        """The module hooks that never ran at a seat, and why."""
        if seat.function is not None:
            return
        entries = self._entries[place]
        for name in self._names if not entries else ():
            yield name, reasons.of(seat.path, seat.module())
        for entry in entries:
            if not entry.fired:
                late = seat.called in ran and _FORWARD.isdisjoint(entry.phases)
                yield entry.name, NO_GRADIENT if late else reasons.of(seat.path, seat.module())

    def _without_functions(
        self, place: int, seat: _Seat, ran: set[object], reasons: Reasons
    ) -> Iterator[tuple[str, Reason]]:
        """The function hooks that never ran at a seat, and why."""
        for name, chosen in self._chosen:
            called = chosen.called_by(seat.called)
            if chosen.targets[place].fired or (seat.function is None and seat.called in ran):
                continue
            if seat.function is not None and seat.called in ran:
                yield name, function_not_called(seat.function, called)
            else:
                path = seat.path if seat.function is None else seat.path.rpartition(":")[0]
                yield name, reasons.of(path, seat.module())

    def _ran(self) -> set[object]:
        """The modules that are known to have run while it was open."""
        ran: set[object] = {
            seat.called
            for seat, entries in zip(self._seats, self._entries, strict=True)
            if any(entry.fired for entry in entries)
            or any(chosen.called_by(seat.called) for _, chosen in self._chosen)
        }
        ran.update(*(p.starts for p in self._passes() if p.number >= self._first_pass))
        return ran | {seat.module for seat in self._seats if seat.called in ran}

    def _passes(self) -> list[Pass]:
        """The latest passes of the model in this thread."""
        return [p for p in local.thread.passes if p.root is self._root]

    def __repr__(self) -> str:
        names = ", ".join(dict.fromkeys((*self._names, *(name for name, _ in self._chosen))))
        state = "closed" if self.closed else "open"
        return f"<Watch of {self._root.name}, {state}: {names} at {len(self._seats)} places>"


def _named(hooks: Iterable[object]) -> _Named:
    """The hooks, each with the name to register it under."""
    named: _Named = []
    for given in hooks:
        hook, name = given, getattr(given, "name", "")
        if isinstance(given, Renamed):
            hook = given.hook
        if not isinstance(hook, ModuleHook | FunctionHook):
            what = f"the class {hook.__name__}" if isinstance(hook, type) else repr(hook)
            hint = "; did you mean an instance of it?" if isinstance(hook, type) else ""
            msg = f"watch takes ModuleHook and FunctionHook objects, not {what}{hint}"
            raise HookTypeError(msg)
        named.append((hook, name))
    if not named:
        msg = "watch needs a hook: watch(model, TimerHook())"
        raise HookTypeError(msg)
    return named


def _check_levels(modules: _Named, functions: _Named, choices: Sequence[Choice]) -> None:
    """Refuse hooks that nothing selected is for, and addresses that no hook is for.

    Raises:
        SelectionError: there are such.
    """
    addresses = [choice.path for choice in choices if choice.function is not None]
    if addresses and not functions:
        msg = f"{listed(addresses)}: addresses select functions, which take a FunctionHook"
        raise SelectionError(msg)
    if modules and len(addresses) == len(choices):
        name = modules[0][1]
        msg = f"{name} is a ModuleHook, and only functions are selected: {listed(addresses)}"
        raise SelectionError(msg)
