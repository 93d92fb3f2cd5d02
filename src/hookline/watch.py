"""Hooks on the selected modules of one model, and on the functions that these call."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Self, TypeAlias

from torch import nn

from hookline.core.demand import demand
from hookline.core.entry import EMPTY, Entry
from hookline.core.notes import add_detail
from hookline.core.records import Silent
from hookline.core.registry import HookRegistry, discard_all
from hookline.core.scope import Renamed, entries_of, no_hook, put_object
from hookline.core.thread import module_switch
from hookline.core.travel import StaysHere
from hookline.errors import HookNameError, HookTypeError, HookValueError, SelectionError
from hookline.functions.chosen import Chosen, register_chosen
from hookline.functions.hook import FunctionHook
from hookline.modules.hook import ModuleHook
from hookline.modules.places import registry_of
from hookline.modules.targets import which_are_seen
from hookline.modules.unreached import ModuleAim
from hookline.torch_base.given import Given
from hookline.torch_base.select import Where, check_model, patterns_of, selection_in
from hookline.torch_base.selection import Choice, Selection, listed
from hookline.watched import Watched

Named: TypeAlias = Sequence[tuple[Any, str]]
"""Hooks, each with the name to register it under."""


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
    check_model(model)
    named, patterns = _named(hooks), patterns_of(where)
    with module_switch.held():
        given = Given(model)
        choices = selection_in(model, given.root.seats, patterns).choices
        return Watch(given, choices, named, aimed=where is not None, prepend=prepend)


class Watch(StaysHere):
    """Hooks on the selected modules of a model, until it is closed; `watch` gives it.

    It keeps neither the model nor its modules alive.

    Args:
        given: the model, walked while the switch of modules is held.
        choices: what is watched in it.
        hooks: the hooks, each with the name to register it under.
        aimed: whether it was chosen, so that hooks which can not be reached are told.
        prepend: run them before the hooks that are registered there.
    """

    def __init__(
        self,
        given: Given,
        choices: Sequence[Choice],
        hooks: Named,
        *,
        aimed: bool,
        prepend: bool = False,
    ) -> None:
        self._placed: list[tuple[HookRegistry, Entry]] = []
        self._aimed: Final = aimed
        modules = [(hook, name) for hook, name in hooks if isinstance(hook, ModuleHook)]
        functions = [(hook, name) for hook, name in hooks if isinstance(hook, FunctionHook)]
        seen = which_are_seen(choices)
        _check_levels(modules, functions, choices)
        self._watched = Watched(given, choices, [name for _, name in modules])
        try:
            if modules:
                self._put_on_modules(modules, choices, seen, prepend=prepend)
            self._put_on_functions(functions, choices, prepend=prepend)
        except BaseException as error:
            self._close_after(error)
            raise

    def _put_on_modules(
        self, hooks: Named, choices: Sequence[Choice], seen: Iterable[bool], *, prepend: bool
    ) -> None:
        makers = [(entries_of(hook, ModuleHook, name), name) for hook, name in hooks]
        if prepend:
            makers.reverse()
        placed = self._placed
        for (path, module, _, function, _), is_seen, seat in zip(
            choices, seen, self._watched.seats, strict=True
        ):
            if not is_seen or function is not None:
                continue
            registry = registry_of(module)
            for make, name in makers:
                if registry.lineup is not EMPTY and name in registry.named():
                    msg = (
                        f"Hook {name} already exists on {path!r}; "
                        "watch(model, hook.renamed('another name')) keeps both"
                    )
                    raise HookNameError(msg)
                entry = make()
                placed.append((registry, entry))
                if self._aimed:
                    demand.aims[entry] = (ModuleAim(seat.called, path),)
                put_object(registry, entry, module, prepend=prepend)
                seat.entries.append(entry)

    def _put_on_functions(self, hooks: Named, choices: Sequence[Choice], *, prepend: bool) -> None:
        for hook, name in reversed(hooks) if prepend else hooks:
            chosen = Chosen(choices)
            handle = register_chosen(hook, name, chosen, prepend=prepend)
            self._placed.append((handle.registry, handle.entry))
            self._watched.chosen.append((name, chosen))
            if self._aimed:
                demand.aims[handle.entry] = chosen.targets

    @property
    def selection(self) -> Selection:
        """What is watched, as far as it is still there.

        Raises:
            HookValueError: the model is gone.
        """
        return self._watched.selection()

    @property
    def closed(self) -> bool:
        """Whether its hooks were removed."""
        return not self._placed

    def close(self) -> None:
        """Remove the hooks, the last one first; a second call does nothing.

        Raises:
            BaseException: the first that a hook's `deleted` raised, once all hooks are gone.
        """
        try:
            discard_all(self._placed)
        except BaseException:  # Ctrl-C: what has begun is finished
            discard_all(self._placed)
            raise
        finally:
            self._placed = []

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
        if "_watched" not in vars(self):  # Ctrl-C before it was made
            return
        try:
            if any(entry.alive for _, entry in self._placed):
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
        return self._watched.silent()

    def __repr__(self) -> str:
        state = "closed" if self.closed else "open"
        names, places = ", ".join(self._watched.names), len(self._watched.seats)
        return f"<Watch of {self._watched.root.name}, {state}: {names} at {places} places>"


def _named(hooks: Iterable[object]) -> Named:
    """The hooks, each with the name to register it under."""
    named: list[tuple[Any, str]] = []
    for given in hooks:
        hook, name = given, getattr(given, "name", "")
        if isinstance(given, Renamed):
            hook = given.hook
        if not isinstance(hook, ModuleHook | FunctionHook):
            patterns = "; patterns go into where=" if isinstance(hook, str | list) else ""
            msg = f"watch takes ModuleHook and FunctionHook objects, not {no_hook(hook)}{patterns}"
            raise HookTypeError(msg)
        named.append((hook, name))
    if not named:
        msg = "watch needs a hook: watch(model, TimerHook())"
        raise HookTypeError(msg)
    return named


def _check_levels(modules: Named, functions: Named, choices: Sequence[Choice]) -> None:
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
