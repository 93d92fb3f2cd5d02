"""The edits of a patch: what each does to a tensor. Users import them from `hookline.edits`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import torch
from torch import Tensor

from hookline.core.names import hook_name
from hookline.errors import HookTypeError, HookValueError
from hookline.hooks.leafpath import Keys, keys_of, target_of
from hookline.hooks.pick import At, at_text, check_at, put, take
from hookline.torch_base.tree import describe, leaves

if TYPE_CHECKING:
    from hookline.core.calls import Call

Calls: TypeAlias = int | slice | Collection[int] | Callable[[Any], object] | None
"""Which calls: a number, several, a slice of numbers, or a predicate of the call; None for all."""

Number: TypeAlias = int | float | complex
Change: TypeAlias = Callable[[Tensor, "Site"], object]


@dataclass(frozen=True, slots=True)
class Site:
    """Where an edit is at work.

    Attributes:
        call: the call; None where an edit is called by itself.
        rest: the steps from what the edit is on to the tensor.
    """

    call: Call | None = None
    rest: Keys = ()


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Edit:
    """One change of a value; made by the functions of `hookline.edits`.

    Called with a tensor, it gives the changed one, so that it can be tried out.

    Attributes:
        text: what it does, in words.
        change: gives the new tensor.
        on: what it changes: a path that begins with `output`, `input` or `grad`.
        at: which part of each tensor.
        calls: in which calls.
    """

    text: str
    change: Change
    _: KW_ONLY
    on: str = "output"
    at: At = None
    calls: Calls = None
    keys: Keys = field(init=False)
    """The steps of `on`."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "keys", target_of(self.on))
        check_at(self.at)
        _check_calls(self.calls)

    @property
    def target(self) -> str:
        """What it changes: `output`, `input` or `grad`."""
        return str(self.keys[0])

    @property
    def counts(self) -> bool:
        """Whether calls must be numbered for it."""
        return self.calls is not None and not callable(self.calls)

    def takes(self, number: int | None, call: Call) -> bool:
        """Whether it is for a call.

        Args:
            number: how many calls of the module or function were seen before; None if unknown.
            call: the call.
        """
        match self.calls:
            case None:
                return True
            case int():
                return number == self.calls
            case slice():
                return number is not None and number in _range(self.calls)
            case Collection():
                return number in self.calls
            case predicate:
                return bool(predicate(call))

    def changed(self, value: Tensor, site: Site) -> Tensor:
        """The value after the edit; the given tensor stays as it is.

        Raises:
            HookTypeError: what would take its place is no tensor.
            HookValueError: it has another shape, dtype or device, or there is no such part.
        """
        part = take(value, self.at)
        new = self.change(part, site)
        _check_fits(new, part)
        return value if new is part else put(value, self.at, new)

    def __call__(self, value: Tensor) -> Tensor:
        """The value after the edit."""
        return self.changed(value, Site())

    def __repr__(self) -> str:
        options = [f"on={self.on!r}"] if self.on != "output" else []
        if self.at is not None:
            options.append(f"at={at_text(self.at)}")
        if self.calls is not None:
            options.append(f"calls={_calls_text(self.calls)}")
        return f"<Edit {' '.join([self.text, *options])}>"


def _check_fits(new: object, old: Tensor) -> Any:
    if not isinstance(new, Tensor):
        hint = "; return the new value, also after changing it in place" if new is None else ""
        msg = f"gave {describe(new)} in place of {describe(old)}{hint}"
        raise HookTypeError(msg)
    if new.shape != old.shape or new.dtype != old.dtype or new.device != old.device:
        msg = (
            f"gave {describe(new)} on {new.device} in place of {describe(old)} on {old.device}; "
            "shape, dtype and device must stay"
        )
        raise HookValueError(msg)
    return new


def _check_calls(calls: object) -> None:
    match calls:
        case None:
            return
        case slice(start=start, stop=stop, step=step):
            fine = all(end is None or end >= 0 for end in (start, stop)) and (step or 1) > 0
        case bool() | str() | bytes():
            fine = False
        case int():
            fine = calls >= 0
        case Collection():
            fine = all(type(number) is int and number >= 0 for number in calls)
        case _:
            fine = callable(calls)
    if not fine:
        msg = (
            f"calls={calls!r}: which calls is said by a number from 0, several, a slice of such, "
            "or a predicate of the call; how many there will be is not known"
        )
        raise HookValueError(msg)


def _range(calls: slice) -> range:
    return range(calls.start or 0, sys.maxsize if calls.stop is None else calls.stop, calls.step or 1)


def _calls_text(calls: object) -> str:
    if isinstance(calls, slice):
        return at_text(calls)
    return hook_name(calls) if callable(calls) else repr(calls)


# The edits. Each takes the same three options, which `Edit` explains.


def zero(*, on: str = "output", at: At = None, calls: Calls = None) -> Edit:
    """Put zeros in place of the value; no gradient flows through them.

    Args:
        on: what to change: `"output"`, `"input"` or `"grad"` (the gradient of the output), all
            of its tensors; or one leaf: `"output[1][0]"`, `"output.hidden_states[2]"`,
            `"input[0]"` (the first positional argument), `"input.mask"` (an argument by name,
            however it is passed). The other edits take the same three options.
        at: which part of each tensor: what may stand in `tensor[...]`, such as
            `(slice(None), -1)`, or a `head(index, count)`.
        calls: in which calls of the module or function, counted from 0 since the patch is on
            (in text generation, the steps): a number, a set or range of numbers, a slice, or a
            predicate, which gets the call.

    Example:
        >>> import torch
        >>> from hookline.edits import zero
        >>> zero(at=(slice(None), -1))(torch.ones(2, 3))
        tensor([[1., 1., 0.],
                [1., 1., 0.]])
    """
    return Edit("zero()", lambda part, _: torch.zeros_like(part), on=on, at=at, calls=calls)


def mean(
    dim: int | tuple[int, ...] = 0, *, on: str = "output", at: At = None, calls: Calls = None
) -> Edit:
    """Put the mean in place of each value, as for mean-ablation.

    Args:
        dim: over which dimensions of the value, or of the part that `at=` means; over the batch
            by default.
        on: what to change; see `zero`.
        at: which part of each tensor; see `zero`.
        calls: in which calls; see `zero`.

    Example:
        >>> import torch
        >>> from hookline.edits import mean
        >>> mean(0)(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
        tensor([[2., 3.],
                [2., 3.]])
    """

    def change(part: Tensor, _: Site) -> Tensor:
        # Not the expanded tensor itself, into which no later in-place operation could write.
        return _try("mean", lambda: part.mean(dim, keepdim=True).expand_as(part).clone(), part)

    return Edit(f"mean(dim={dim})", change, on=on, at=at, calls=calls)


def scale(
    factor: Number | Tensor, *, on: str = "output", at: At = None, calls: Calls = None
) -> Edit:
    """Multiply the value.

    Args:
        factor: a number, or a tensor that broadcasts to the value.
        on: what to change; see `zero`.
        at: which part of each tensor; see `zero`.
        calls: in which calls; see `zero`.
    """
    _check_operand("scale", factor)
    return Edit(
        f"scale({_shown(factor)})",
        lambda part, _: _try("multiply", lambda: part * factor, part, factor),
        on=on,
        at=at,
        calls=calls,
    )


def add(
    vector: Number | Tensor, *, on: str = "output", at: At = None, calls: Calls = None
) -> Edit:
    """Add to the value, as for steering; gradients flow through.

    Args:
        vector: a tensor that broadcasts to the value, such as a vector of its last dimension, or
            a number.
        on: what to change; see `zero`.
        at: which part of each tensor; see `zero`.
        calls: in which calls; see `zero`.
    """
    _check_operand("add", vector)
    return Edit(
        f"add({_shown(vector)})",
        lambda part, _: _try("add", lambda: part + vector, part, vector),
        on=on,
        at=at,
        calls=calls,
    )


def clamp(  # noqa: PLR0913 - torch's two, and the options of every edit
    min: Number | Tensor | None = None,  # noqa: A002 - torch's name for it
    max: Number | Tensor | None = None,  # noqa: A002 - as above
    *,
    on: str = "output",
    at: At = None,
    calls: Calls = None,
) -> Edit:
    """Keep the value within bounds.

    Args:
        min: the lower bound; a number, or a tensor that broadcasts to the value.
        max: the upper bound.
        on: what to change; see `zero`.
        at: which part of each tensor; see `zero`.
        calls: in which calls; see `zero`.
    """
    bounds: Any = (min, max)
    if min is None and max is None:
        msg = "clamp needs a bound: clamp(min=0.0), clamp(-1.0, 1.0)"
        raise HookValueError(msg)
    return Edit(
        f"clamp({_shown(min)}, {_shown(max)})",
        lambda part, _: _try("clamp", lambda: torch.clamp(part, *bounds), part, *bounds),
        on=on,
        at=at,
        calls=calls,
    )


def replace(
    value: Any,
    *,
    broadcast: bool = False,
    on: str = "output",
    at: At = None,
    calls: Calls = None,
) -> Edit:
    """Put another value in place of it: one captured in another run, say.

    Args:
        value: a tensor of the same shape; a number to fill with; or a structure, whose tensors
            take the places of those at the same paths.
        broadcast: also take a tensor that must be repeated to have the shape.
        on: what to change; see `zero`.
        at: which part of each tensor; see `zero`.
        calls: in which calls; see `zero`.

    Example:
        >>> import torch, hookline
        >>> from hookline.edits import replace
        >>> model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU())
        >>> with hookline.capture(model, "0") as clean:
        ...     expected = model(torch.ones(2, 3))
        >>> with hookline.patch(model, {"0": replace(clean["0"].output)}):
        ...     torch.equal(model(torch.zeros(2, 3)), expected)
        True
    """
    named = None
    if not isinstance(value, Tensor | int | float | complex):
        named = {(keys_of(path) or (path,))[1:]: tensor for path, tensor in leaves(value, "")}
        if not named:
            msg = f"replace takes a tensor, a number, or a structure of tensors, not {value!r}"
            raise HookTypeError(msg)

    def change(part: Tensor, site: Site) -> Tensor:
        new = value
        if named is not None:
            new = named.get(site.rest)
            if new is None:
                msg = f"has no tensor for this place; what was given is {describe(value)}"
                raise HookValueError(msg)
        return _filled(part, new) if not isinstance(new, Tensor) else _repeated(new, part, broadcast)

    return Edit(f"replace({_shown(value)})", change, on=on, at=at, calls=calls)


def _filled(part: Tensor, number: Number) -> Tensor:
    if torch.result_type(part, number) != part.dtype:
        msg = f"gave {number!r} in place of {describe(part)}, which cannot hold it"
        raise HookValueError(msg)
    return torch.full_like(part, number)


def _repeated(new: Tensor, part: Tensor, broadcast: bool) -> Tensor:  # noqa: FBT001 - see `replace`
    if broadcast:
        new = _try("broadcast", lambda: new.expand_as(part), part, new)
    # A copy, since the model may go on to write into it.
    return new.clone()


def apply(
    function: Callable[..., Tensor],
    *,
    with_call: bool = False,
    on: str = "output",
    at: At = None,
    calls: Calls = None,
) -> Edit:
    """Put what a function gives in place of the value; a bare function in a patch means this.

    Args:
        function: gets a copy of the tensor, into which it may write, and returns the new one. Its
            errors come out as they are.
        with_call: whether it gets the call as a second argument.
        on: what to change; see `zero`.
        at: which part of each tensor; see `zero`.
        calls: in which calls; see `zero`.
    """
    if not callable(function):
        msg = f"apply takes a function of a tensor, not {function!r}"
        raise HookTypeError(msg)

    def change(part: Tensor, site: Site) -> object:
        return function(part.clone(), site.call) if with_call else function(part.clone())

    return Edit(hook_name(function), change, on=on, at=at, calls=calls)


def _check_operand(name: str, operand: object) -> None:
    if not isinstance(operand, Tensor | int | float | complex):
        msg = f"{name} takes a number or a tensor, not {describe(operand)}"
        raise HookTypeError(msg)


def _shown(operand: object) -> str:
    return describe(operand)


_ERRORS: Final = (RuntimeError, TypeError, IndexError, ValueError)


def _try(what: str, compute: Callable[[], Tensor], part: Tensor, *operands: object) -> Tensor:
    try:
        return compute()
    except _ERRORS as error:
        given = "".join(f" with {describe(o)}" for o in operands if isinstance(o, Tensor))
        msg = f"cannot {what} {describe(part)}{given}: {error}"
        raise HookValueError(msg) from error


def edits_of(given: object) -> tuple[Edit, ...]:
    """The edits that are meant by what stands in a patch.

    Args:
        given: an edit; a function of a tensor; a tensor or number to replace by; or several in a
            list, in order.

    Raises:
        HookTypeError: it is nothing of that kind.
    """
    if isinstance(given, list | tuple):
        found = tuple(edit for each in given for edit in edits_of(each))
        if found:
            return found
    elif isinstance(given, Edit):
        return (given,)
    elif isinstance(given, Tensor | int | float | complex) and not isinstance(given, bool):
        return (replace(given),)
    elif callable(given) and not isinstance(given, type):
        return (apply(given),)
    hint = ""
    if callable(given) and given in _MAKERS:
        hint = f"; did you mean {hook_name(given)}()?"
    elif leaves(given):
        hint = "; for a structure, write replace(...)"
    msg = (
        "an edit is one of hookline.edits, a function of a tensor, a tensor or number to replace "
        f"by, or a list of such, not {describe(given)}{hint}"
    )
    raise HookTypeError(msg)


_MAKERS: Final = (zero, mean, scale, add, clamp, replace, apply)
