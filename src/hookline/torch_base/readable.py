"""Tensors whose numbers can be looked at: what a hook that measures values is given to read.

Not every tensor has numbers, and not every one may be asked for them. Left alone are those of
integers and truth values (they hold no NaN), empty and meta tensors, fake ones, those inside a
`torch.func` transform or under `is_grads_batched`, all that is being traced (a look would become
part of the trace), and subclasses that have operations of their own.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor, nn

from hookline.torch_base.private import (
    dispatch_mode,
    dispatch_mode_keys,
    dispatch_modes,
    has_own_operations,
    is_batched_gradient,
    is_tracing,
    is_transformed,
    torch_function_off,
    transform_level,
)

_PLAIN: Final = frozenset({Tensor, nn.Parameter, nn.Buffer})
_DTYPES: Final = frozenset({torch.float32, torch.float64, torch.float16, torch.bfloat16})
_TRACING: Final = tuple(getattr(dispatch_mode_keys, name) for name in ("PROXY", "FAKE"))


def readable(tensor: Tensor) -> Tensor | None:
    """The numbers of a tensor, free of autograd, or None if it has none that can be read.

    Returns:
        A strided tensor of floating point or complex numbers, without a copy where that can be:
        for a sparse tensor, the values that it stores; for a sharded one (`DTensor`), those in
        this process; for a nested one, all of them.

    Example:
        >>> readable(torch.eye(2).to_sparse())
        tensor([1., 1.])
        >>> readable(torch.arange(3)) is None
        True
    """
    if type(tensor) in _PLAIN:
        dtype = tensor.dtype
        if dtype in _DTYPES and tensor.layout is torch.strided and not tensor.is_nested:
            return None if in_a_trace(tensor) or not tensor.numel() else tensor.detach()
        if not (dtype.is_floating_point or dtype.is_complex):
            return None
    try:
        with torch.no_grad(), torch_function_off():
            return _unusual(tensor)
    except Exception:  # noqa: BLE001 - a subclass may refuse anything in any way
        return None


def in_a_trace(tensor: Tensor) -> bool:
    """Whether a look at the tensor would be recorded, or is not possible."""
    if tensor.is_meta or is_tracing() or transform_level() is not None or is_transformed(tensor):
        return True
    if is_batched_gradient(tensor):
        return True
    if dispatch_modes() and any(dispatch_mode(key) is not None for key in _TRACING):
        return True
    return tensor.is_cuda and torch.cuda.is_current_stream_capturing()


def _unusual(tensor: Any) -> Tensor | None:
    if in_a_trace(tensor) or getattr(tensor, "fake_mode", None) is not None:
        return None
    tensor = local_part(tensor)
    if tensor.is_nested:
        tensor = tensor.values()
    if has_own_operations(type(tensor)):
        return None
    tensor = tensor.detach()
    if type(tensor) is not Tensor:
        tensor = tensor.as_subclass(Tensor)
    if tensor.layout is not torch.strided:
        tensor = stored_values(tensor)
    dtype = tensor.dtype
    if not tensor.numel() or not (dtype.is_floating_point or dtype.is_complex):
        return None
    if dtype.is_complex:
        return tensor.resolve_conj()
    return tensor if dtype in _DTYPES else tensor.float()


def stored_values(tensor: Tensor) -> Tensor:
    """The values that a tensor which is not strided stores."""
    if tensor.layout is torch.sparse_coo:
        return tensor.coalesce().values()
    return tensor.to_dense() if tensor.is_mkldnn else tensor.values()


def is_sharded(tensor: Any) -> bool:
    """Whether a tensor is a `DTensor`, spread over processes, or this process's part of it."""
    return hasattr(tensor, "placements") and hasattr(tensor, "to_local")


def local_part(tensor: Any) -> Tensor:
    """Of a sharded tensor, the part in this process; any other tensor as it is."""
    return tensor.to_local() if is_sharded(tensor) else tensor


def copied(tensor: Any) -> Tensor:
    """A copy that asks no other process for anything.

    The `clone` of a `DTensor` may: one that stands for a sum over processes is added up.
    """
    if type(tensor) in _PLAIN or not is_sharded(tensor):
        return tensor.clone()
    part = tensor.to_local().clone()
    mesh, placements = tensor.device_mesh, tensor.placements
    size = {"shape": tensor.shape, "stride": tensor.stride()}
    return type(tensor).from_local(part, mesh, placements, run_check=False, **size)


def version_of(tensor: Tensor) -> int | None:
    """How often a tensor was written to; None if nobody counts that."""
    if tensor.is_inference():
        return None
    return tensor._version  # noqa: SLF001 - torch documents it


def gradient_of(tensor: Tensor) -> Tensor | None:
    """The gradient that a backward left at a tensor; None, without a warning, if it keeps none."""
    return tensor.grad if tensor.is_leaf or tensor.retains_grad else None


def has_views(tensor: Tensor) -> bool:
    """Whether torch makes views of a tensor through which gradients flow.

    Of sparse and opaque ones it makes none, and of strided nested ones none that autograd's hooks
    may change.
    """
    if tensor.layout is torch.strided:
        return not tensor.is_nested
    return tensor.layout is torch.jagged


def shape_of(tensor: Tensor) -> tuple[int, ...]:
    """The shape; of a strided nested tensor, which has none, with -1 where its parts differ."""
    if not (tensor.is_nested and tensor.layout is torch.strided):
        return tuple(tensor.shape)
    parts = tensor.detach().unbind()
    sizes = [set(each) for each in zip(*(part.shape for part in parts), strict=True)]
    return (len(parts), *(each.pop() if len(each) == 1 else -1 for each in sizes))
