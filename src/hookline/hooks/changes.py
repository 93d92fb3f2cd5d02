"""The edits that there are. Users import them from `hookline.edits`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal, TypeAlias, overload

import torch
from torch import Tensor

from hookline.core.calls import Call
from hookline.core.names import hook_name
from hookline.errors import HookTypeError, HookValueError
from hookline.hooks.editing import Calls, Edit, Site
from hookline.hooks.leafpath import keys_of
from hookline.hooks.pick import At, EditError
from hookline.torch_base.tree import describe, leaves

Number: TypeAlias = int | float | complex
EditLike: TypeAlias = Edit | Callable[[Tensor], object] | Tensor | Number
"""What stands for an edit in a patch; a tensor or number is put in place of the value."""


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

    Example:
        >>> import torch
        >>> from hookline.edits import scale
        >>> scale(2)(torch.ones(3))
        tensor([2., 2., 2.])
    """
    _check_operand("scale", factor)
    return Edit(
        f"scale({describe(factor)})",
        lambda part, _: _try("multiply", lambda: part * factor, part, factor),
        on=on,
        at=at,
        calls=calls,
    )


def add(vector: Number | Tensor, *, on: str = "output", at: At = None, calls: Calls = None) -> Edit:
    """Add to the value, as for steering; gradients flow through.

    Args:
        vector: a tensor that broadcasts to the value, such as a vector of its last dimension, or
            a number.
        on: what to change; see `zero`.
        at: which part of each tensor; see `zero`.
        calls: in which calls; see `zero`.

    Example:
        >>> import torch
        >>> from hookline.edits import add
        >>> add(torch.tensor([1.0, 0.0]))(torch.zeros(2, 2))
        tensor([[1., 0.],
                [1., 0.]])
    """
    _check_operand("add", vector)
    return Edit(
        f"add({describe(vector)})",
        lambda part, _: _try("add", lambda: part + vector, part, vector),
        on=on,
        at=at,
        calls=calls,
    )


def clamp(
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

    Example:
        >>> import torch
        >>> from hookline.edits import clamp
        >>> clamp(min=0, max=1)(torch.tensor([-1.0, 0.5, 2.0]))
        tensor([0.0000, 0.5000, 1.0000])
    """
    bounds: Any = (min, max)
    if min is None and max is None:
        msg = "clamp needs a bound: clamp(min=0.0), clamp(-1.0, 1.0)"
        raise HookValueError(msg)
    return Edit(
        f"clamp({describe(min)}, {describe(max)})",
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
                raise EditError(HookValueError, msg)
        return (
            _filled(part, new) if not isinstance(new, Tensor) else _repeated(new, part, broadcast)
        )

    return Edit(f"replace({describe(value)})", change, on=on, at=at, calls=calls)


def _filled(part: Tensor, number: Number) -> Tensor:
    if torch.result_type(part, number) != part.dtype:
        msg = f"gave {number!r} in place of {describe(part)}, which cannot hold it"
        raise EditError(HookValueError, msg)
    return torch.full_like(part, number)


def _repeated(new: Tensor, part: Tensor, broadcast: bool) -> Tensor:  # noqa: FBT001 - see `replace`
    if broadcast:
        new = _try("broadcast", lambda: new.expand_as(part), part, new)
    # A copy, since the model may go on to write into it.
    return new.clone()


@overload
def apply(
    function: Callable[[Tensor], object],
    *,
    with_call: Literal[False] = ...,
    on: str = ...,
    at: At = ...,
    calls: Calls = ...,
) -> Edit: ...


@overload
def apply(
    function: Callable[[Tensor, Call], object],
    *,
    with_call: Literal[True],
    on: str = ...,
    at: At = ...,
    calls: Calls = ...,
) -> Edit: ...


def apply(
    function: Callable[..., object],
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

    Example:
        >>> import torch
        >>> from hookline.edits import apply
        >>> apply(torch.relu, at=0)(torch.tensor([-1.0, -2.0]))
        tensor([ 0., -2.])
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


_ERRORS: Final = (RuntimeError, TypeError, IndexError, ValueError)


def _try(what: str, compute: Callable[[], Tensor], part: Tensor, *operands: object) -> Tensor:
    try:
        return compute()
    except _ERRORS as error:
        given = "".join(f" with {describe(o)}" for o in operands if isinstance(o, Tensor))
        msg = f"cannot {what} {describe(part)}{given}: {error}"
        raise EditError(HookValueError, msg) from error


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
    elif callable(given) and not isinstance(given, type) and not _is_maker(given):
        return (apply(given),)
    hint = ""
    if _is_maker(given):
        hint = f"; did you mean {hook_name(given)}(...)?"
    elif leaves(given):
        hint = "; for a structure, write replace(...)"
    msg = (
        "an edit is one of hookline.edits, a function of a tensor, a tensor or number to replace "
        f"by, or a list of such, not {describe(given)}{hint}"
    )
    raise HookTypeError(msg)


def _is_maker(given: object) -> bool:
    return any(given is maker for maker in _MAKERS)


_MAKERS: Final = (zero, mean, scale, add, clamp, replace, apply)
