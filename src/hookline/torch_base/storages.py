"""The memory behind tensors: storages, which views and in-place operations share."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor, UntypedStorage

from hookline.torch_base.private import (
    has_own_operations,
    is_transformed,
    torch_function_off,
    unwrapped,
)

_PLAIN: Final = frozenset({Tensor, torch.nn.Parameter, torch.nn.Buffer})
_NARROWER: Final = {
    torch.int64: torch.empty((), dtype=torch.uint8),
    torch.float64: torch.empty((), dtype=torch.float32),
    torch.complex128: torch.empty((), dtype=torch.complex64),
}


def storages_of(tensor: Tensor) -> list[UntypedStorage]:
    """The storages that hold a tensor.

    One for most; several for a sparse, jagged or otherwise composed tensor, of a sharded one
    (`DTensor`) those in this process; none where torch tells of none, as of MKL-DNN's.

    Example:
        >>> x = torch.ones(2, 3)
        >>> storages_of(x)[0] is storages_of(x[1])[0]
        True
        >>> [size_of(storage) for storage in storages_of(torch.eye(3).to_sparse())]
        [48, 12]
    """
    try:
        with torch_function_off():
            plain = type(tensor) in _PLAIN and tensor.layout is torch.strided
            if plain and not is_transformed(tensor):
                return [tensor.untyped_storage()]
            with torch.no_grad():
                return _unusual(tensor)
    except Exception:  # noqa: BLE001 - a tensor of any class may refuse in any way
        return []


def size_of(storage: UntypedStorage) -> int:
    """The size of a storage in bytes; 0 where it is only a symbol, inside of a trace."""
    size: Any = storage.nbytes()
    return size if isinstance(size, int) else 0


def is_number(tensor: Tensor) -> bool:
    """Whether it is a Python number that an operation made a tensor of, as autograd keeps it.

    Such a tensor gives way to the dtype of any other; there is no plainer sign of it.

    Example:
        >>> is_number(torch.tensor(2.5, dtype=torch.float64))
        False
    """
    narrower = None if tensor.dim() else _NARROWER.get(tensor.dtype)
    return narrower is not None and torch.result_type(tensor, narrower) is not tensor.dtype


def _unusual(tensor: Any) -> list[UntypedStorage]:
    while is_transformed(tensor):
        tensor = unwrapped(tensor)
    return [storage for part in _parts(tensor) for storage in storages_of(part)] or [
        tensor.untyped_storage()
    ]


def _parts(tensor: Any) -> list[Tensor]:
    """The tensors that a tensor is made of; none for one that has a storage of its own."""
    if has_own_operations(type(tensor)) and hasattr(tensor, "__tensor_flatten__"):
        return [getattr(tensor, name) for name in tensor.__tensor_flatten__()[0]]
    if tensor.layout is torch.sparse_coo:
        return [tensor._indices(), tensor._values()]  # noqa: SLF001 - these work uncoalesced
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
    return []
