"""Turning what a hook gave back into the inputs, output or gradients of a call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from hookline.core.calls import Inputs
from hookline.errors import HookTypeError
from hookline.torch_base.gradients import check_gradient
from hookline.torch_base.outline import Misfit, Outline
from hookline.torch_base.tree import describe

if TYPE_CHECKING:
    from hookline.modules.call import ModuleCall

_NEVER_AN_OUTPUT = (bool, int, float, complex, str, bytes)


class GradInput(tuple[Any, ...]):  # noqa: SLOT001 - a tuple subclass has its attributes in a dict
    """The gradients of a call's inputs: a tuple by positional argument.

    Each entry has the structure of its argument; what needs no gradient is None.

    Attributes:
        kwargs: the same for the keyword arguments, by name.
    """

    kwargs: dict[str, Any]

    @classmethod
    def of(cls, args: tuple[Any, ...], kwargs: dict[str, Any]) -> GradInput:
        """Put the gradients of the positional and the keyword arguments together."""
        self = cls(args)
        self.kwargs = kwargs
        return self

    def __repr__(self) -> str:
        named = f", kwargs={self.kwargs!r}" if self.kwargs else ""
        return f"GradInput({tuple(self)!r}{named})"


def bare_or_inputs(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What a value hook gets: the bare value of a single positional argument, else `Inputs`."""
    return args[0] if len(args) == 1 and not kwargs else Inputs(args, kwargs)


def new_inputs(
    call: ModuleCall, value: object, hook: str
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The inputs after a hook gave `value` in their place.

    `Inputs` are complete; an exact tuple is the positional arguments, with the keywords kept;
    anything else is the only positional argument.

    Raises:
        HookTypeError: if the latter two change the number of positional arguments.
    """
    if isinstance(value, Inputs):
        return value.args, value.kwargs
    args = value if type(value) is tuple else (value,)
    if len(args) != len(call.args):
        msg = (
            f"{hook} of {call.describe()} gave {len(args)} positional argument(s) in place of "
            f"{len(call.args)}: {describe(value)} for {describe(call.args)}; to change their "
            "number, give all inputs: Inputs((first, second), {'name': value})"
        )
        raise HookTypeError(msg)
    return args, call.kwargs


def new_output(call: ModuleCall, value: object, hook: str) -> Any:
    """The output after a hook gave `value` in its place.

    Raises:
        HookTypeError: if a plain number, bool or text would take the place of a tensor, which is
            what a hook that was meant to observe returns by accident.
    """
    if isinstance(call.out, Tensor) and isinstance(value, _NEVER_AN_OUTPUT):
        msg = (
            f"{hook} of {call.describe()} gave {value!r} in place of {describe(call.out)}; "
            "give a tensor; a hook that only observes must return None"
        )
        raise HookTypeError(msg)
    return value


def new_gradients(
    call: ModuleCall, outline: Outline, value: object, hook: str, known: dict[int, Tensor | None]
) -> list[Tensor | None]:
    """The gradients, slot by slot, after a hook gave `value` in their place.

    Args:
        call: the call, for the error.
        outline: the structure in which the hook got them.
        value: the same structure, or a bare tensor where there is exactly one gradient.
        hook: the hook in words, for the error.
        known: the gradients in whose place they come, by place.

    Raises:
        HookTypeError: if `value` has another structure.
        HookValueError: if a gradient has another shape, dtype or device.
    """
    new = _read(call, outline, value, hook)
    for place, gradient in enumerate(new):
        old = known.get(place)
        if gradient is not None and old is not None:
            check_gradient(gradient, old, f"{hook} of {call.describe()}")
    return new


def _read(call: ModuleCall, outline: Outline, value: object, hook: str) -> list[Tensor | None]:
    if isinstance(value, Tensor) and outline.count == 1:
        return [value]
    try:
        return outline.read(value)
    except Misfit:
        expected = outline.fill(["gradient"] * outline.count)
        msg = (
            f"{hook} of {call.describe()} gave gradients of another structure: "
            f"{describe(_shown(value))} in place of {_shown(expected)!r}; give the structure that "
            "the hook got, or nothing to leave them unchanged"
        )
        raise HookTypeError(msg) from None


def _shown(value: Any) -> Any:
    """Gradients of inputs without their empty dict of those by keyword, as users know them."""
    match value:
        case (args, dict() as kwargs) if not kwargs:
            return args
        case _:
            return value
