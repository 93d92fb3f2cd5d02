"""Changing what flows through modules and functions of a model, by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self, TypeVar

from torch import nn

from hookline.core.calls import Key
from hookline.core.patterns import FunctionPattern
from hookline.core.records import Silent
from hookline.core.thread import module_switch
from hookline.core.travel import StaysHere
from hookline.errors import HookTypeError, HookValueError
from hookline.hooks.changes import EditLike, edits_of
from hookline.hooks.editing import Edit
from hookline.hooks.patch_hooks import FunctionPatchHook, ModulePatchHook
from hookline.hooks.patching import Placed
from hookline.hooks.watches import Watches
from hookline.torch_base.given import Given
from hookline.torch_base.select import Pattern, Seats, check_model, selection_in
from hookline.torch_base.selection import Choice
from hookline.torch_base.wrappers import class_names

if TYPE_CHECKING:
    from hookline.functions.call import FunctionCall
    from hookline.modules.call import ModuleCall

Selecting = TypeVar("Selecting", bound=Pattern)


class PatchedEdit(NamedTuple):
    """One edit of a patch.

    Attributes:
        path: what it changes: the path of a module, or the address of functions.
        edit: the edit.
    """

    path: str
    edit: Edit

    def __str__(self) -> str:
        return f"{self.path!r}: {self.edit!r}"


class Patch(StaysHere):
    """Edits of what flows through a model, until it is closed; `patch` gives it."""

    def __init__(self, placed: Iterable[Placed], watches: Watches) -> None:
        self._placed: Final = list(placed)
        self._watches: Final = watches

    @property
    def edits(self) -> list[PatchedEdit]:
        """The edits with what they change, in the order in which they are made there."""
        return [PatchedEdit(each.path, each.edit) for each in self._placed]

    @property
    def closed(self) -> bool:
        """Whether the model runs as it is again."""
        return self._watches.closed

    def close(self) -> None:
        """Let the model run as it is again; a second call does nothing."""
        self._watches.close()

    def silent(self) -> list[Silent]:
        """What was selected and has not been changed by every edit for it, with likely causes.

        Modules and functions that were never called while the patch was on; and edits that were
        never made where calls were seen, since no gradient came to be changed or the call that
        they are for was not reached. `hooks` then names the edits.

        Example:
            >>> import torch, hookline
            >>> from hookline.edits import scale
            >>> model = torch.nn.Sequential(torch.nn.Linear(2, 2))
            >>> with torch.no_grad(), hookline.patch(model, {"0": scale(2.0, on="grad")}) as halved:
            ...     _ = model(torch.ones(1, 2))
            >>> [(row.path, row.cause, row.hooks) for row in halved.silent()]
            [('0', 'no gradient', ("<Edit scale(2.0) on='grad'>",))]
        """
        idle = (each.silent for each in self._placed)
        return [*self._watches.silent(), *(row for row in idle if row is not None)]

    def __enter__(self) -> Self:
        if self.closed:
            msg = "this patch is closed; call patch(...) again"
            raise HookValueError(msg)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._watches.close(kind, error, traceback)

    def __repr__(self) -> str:
        state = "closed" if self.closed else "open"
        return "".join([f"<Patch, {state}", *(f"\n  {row}" for row in self.edits), ">"])


def patch(
    model: nn.Module,
    edits: Mapping[Selecting, EditLike | Sequence[EditLike]],
    *,
    first: bool = False,
    prepend: bool = False,
) -> Patch:
    """Change what flows through modules or functions of a model, by name.

    Active at once, until `close()` or the end of `with`; then the model runs as before, bit for
    bit. Nothing that the model made is written into, and containers come back as the type they
    were.

    Where several edits change one value, they are made in the order in which they stand here, each
    on what the one before it left; patches and other hooks that are registered later see the
    result of earlier ones (with `prepend`, the other way round). Inputs are changed before the
    module and its own hooks see them; outputs, after those.

    Args:
        model: the model.
        edits: for each pattern (a path, a glob, an address such as `"layers.0:add[1]"`, a class
            …; see [select][hookline.select]) what to do: an edit of [hookline.edits][]; a function
            of a tensor; a tensor or number to replace by; or a list of these. Edits say what they
            change (`on=`: the output by default, the input, the gradient of the output, or one
            leaf of these), which part of it (`at=`) and in which calls (`calls=`).
        first: change the outputs of modules before the forward hooks that others put on them see
            them: those by which `transformers` collects `output_hidden_states`, say. Torch's own
            table of the module then holds a hook for the duration of each call.
        prepend: make the edits before the hooks that are registered there.

    Returns:
        A context manager; its `edits` lists what it does, in order.

    Raises:
        SelectionError: a pattern matches nothing.
        HookTypeError: something is no edit; from the forward or backward, if an edit gives
            something else than a tensor.
        HookValueError: from the forward or backward, if an edit gives another shape, dtype or
            device, or is on a leaf that there is not.

    Example:
        >>> import torch, hookline
        >>> from hookline.edits import scale, zero
        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
        >>> x = torch.ones(1, 2)
        >>> with hookline.patch(model, {"0": [zero(), 3.0], "1": scale(2.0)}) as patched:
        ...     model(x)
        tensor([[6., 6.]])
        >>> patched
        <Patch, closed
          '0': <Edit zero()>
          '0': <Edit replace(3.0)>
          '1': <Edit scale(2.0)>>
    """
    with module_switch.held():
        given = Given(check_model(model))
        plan = _Plan(model, given.root.seats, edits)
        watches = Watches(given, plan.hooks(first=first), "patch", prepend=prepend)
    return Patch(plan.placed, watches)


class _Plan:
    """Which edits are for which modules and functions."""

    def __init__(self, model: nn.Module, seats: Seats, edits: Mapping[Any, object]) -> None:
        if not isinstance(edits, Mapping) or not edits:
            msg = f"patch takes a dict {{pattern: edit}} with an edit or more in it, not {edits!r}"
            raise HookTypeError(msg)
        self.placed: list[Placed] = []
        self._modules: dict[Key[nn.Module], list[Placed]] = {}
        self._functions: list[tuple[Key[nn.Module], FunctionPattern, list[Placed]]] = []
        self._choices: list[Choice] = []
        for pattern, given in edits.items():
            several = edits_of(given)
            for choice in selection_in(model, seats, [pattern]).choices:
                cls = class_names[type(choice.module)]
                self._add(choice, [Placed(e, repr(pattern), choice.path, cls) for e in several])

    def _add(self, choice: Choice, placed: list[Placed]) -> None:
        self._choices.append(choice)
        self.placed += placed
        key = Key(choice.called)
        if choice.function is None:
            self._modules.setdefault(key, []).extend(placed)
        else:
            self._functions.append((key, choice.function, placed))

    def hooks(
        self, *, first: bool
    ) -> Iterable[tuple[ModulePatchHook | FunctionPatchHook, list[Choice]]]:
        """A hook for each level at which something is selected, with what is selected there."""
        if self._modules:
            placed = [each for several in self._modules.values() for each in several]
            hook = ModulePatchHook(*(each.edit for each in placed), first=first)
            hook.follow(self._of_module, placed)
            yield hook, [choice for choice in self._choices if choice.function is None]
        if self._functions:
            placed = [each for _, _, several in self._functions for each in several]
            function_hook = FunctionPatchHook(*(each.edit for each in placed))
            function_hook.follow(self._of_function, placed)
            yield function_hook, [choice for choice in self._choices if choice.function is not None]

    def _of_module(self, call: ModuleCall) -> list[Placed]:
        return [each for key in call.keys for each in self._modules.get(key, ())]

    def _of_function(self, call: FunctionCall) -> list[Placed]:
        caller: Any = call.parent
        return [
            each
            for key, function, placed in self._functions
            if key in caller.keys and function.matches(call.name, call.index)
            for each in placed
        ]
