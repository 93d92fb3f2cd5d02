"""Which -inf are meant: attention masks, and scores that were masked.

A mask is no fault, and log(0) is one; both are -inf. What tells them apart is where the -inf came
from. An output whose only values that are not finite are -inf raises no alarm if

* the inputs explain each of them: where it lies, an input that spreads to the output's shape is
  -inf already (`scores + mask`); or they are just where a tensor of truth values is true, or just
  where it is false (`masked_fill`, `where`), in functions and in modules;
* or a function was given the number -inf itself by the program (`full`, `masked_fill_`, `tensor`
  …), or only moves values about (`cat`, `pad`, `max` …) of which no other is infinite;
* or a module that is given no floating point numbers gives nothing but 0 and -inf: it makes a mask;
* or it is a tensor that was let through before, handed on.

log(0) is none of these: its input is finite, so no -inf in it explains the one that comes out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import torch
from torch import Tensor

from hookline.torch_base.readable import local_part, readable

GIVEN: Final = frozenset(
    """
    as_tensor asarray fill fill_ fill_diagonal_ full full_like index_fill index_fill_ new_full
    new_tensor scalar_tensor tensor
    """.split()  # noqa: SIM905 - reads better as text
)
"""Functions that put a number of the program's own into a tensor."""

MOVES: Final = frozenset(
    """
    amax amin as_strided_copy broadcast_tensors cat clone column_stack concat concatenate contiguous
    copy_ dstack flip gather hstack index_copy index_copy_ index_put index_put_ index_select max
    maximum min minimum pad repeat repeat_interleave roll rot90 scatter scatter_ sort stack take
    take_along_dim tile topk to tril tril_ triu triu_ type_as vstack
    """.split()  # noqa: SIM905
)
"""Functions whose results are values that they were given, elsewhere."""

VIEWS: Final = frozenset(
    """
    T H mT mH adjoint as_strided atleast_1d atleast_2d atleast_3d chunk detach detach_ diagonal
    expand expand_as flatten getitem imag movedim moveaxis narrow permute real reshape reshape_as
    select setitem split split_with_sizes squeeze squeeze_ swapaxes swapdims t t_ tensor_split
    transpose transpose_ unbind unflatten unfold unsqueeze unsqueeze_ view view_as view_as_complex
    view_as_real hsplit vsplit dsplit requires_grad_ alias
    """.split()  # noqa: SIM905
)
"""Functions that show or store values which were seen where they were made."""

UNINITIALISED: Final = frozenset(
    """
    empty empty_like empty_permuted empty_strided new_empty new_empty_strided resize_ resize_as_
    set_
    """.split()  # noqa: SIM905
)
"""Functions whose results hold whatever was in memory."""


def is_mask(tensor: Tensor, name: str = "") -> bool:
    """Whether a tensor that is not finite looks like an additive mask: nothing but 0 and -inf.

    Other finite values may be in it if the argument's name says what it is (`attn_bias`).
    """
    values = readable(tensor)
    if values is None or values.is_complex():
        return False
    hidden = values == -torch.inf
    rest = values[~hidden]
    named = "mask" in name or "bias" in name
    return bool(hidden.any()) and bool((rest.isfinite() if named else rest == 0).all())


def explained(out: Tensor, inputs: Iterable[Tensor]) -> bool:
    """Whether the inputs of a call explain each -inf of its output."""
    out, values = local_part(out), readable(out)
    if values is None or values.shape != out.shape:
        return False
    masked = left = values == -torch.inf
    flags: list[Tensor] = []
    for tensor in map(local_part, inputs):
        if tensor.is_meta or tensor.layout is not torch.strided or not _spreads(tensor, out):
            continue
        if tensor.dtype is torch.bool and tensor.dim():
            flags.append(tensor)
        elif (numbers := readable(tensor)) is not None and not numbers.is_complex():
            left = left & (numbers != -torch.inf)
    return not left.any() or any(
        not (left & ~hidden).any() and bool((masked | ~hidden).all())
        for flag in flags
        for hidden in (flag, ~flag)
    )


def _spreads(tensor: Tensor, out: Tensor) -> bool:
    """Whether a tensor has, by broadcasting, a value for each of an output."""
    if tensor.dim() > out.dim() or tensor.device != out.device:
        return False
    pairs = zip(reversed(tensor.shape), reversed(out.shape), strict=False)
    return all(mine in (1, theirs) for mine, theirs in pairs)


def makes_mask(out: Tensor, inputs: Sequence[Tensor]) -> bool:
    """Whether a module was given no floating point numbers and gives nothing but 0 and -inf."""
    return not any(t.is_floating_point() or t.is_complex() for t in inputs) and is_mask(out)
