"""How a captured value is kept, and how what was kept is given back."""

from __future__ import annotations

from collections.abc import Callable
from types import NoneType
from typing import Any, Final, TypeAlias

import torch
from torch import Tensor

from hookline.errors import CaptureError, HooklineError, HookTypeError, HookValueError
from hookline.torch_base.private import (
    batch_dim,
    is_batched_gradient,
    is_transformed,
    transform_level,
    unwrapped,
)
from hookline.torch_base.readable import copied, local_part, version_of
from hookline.torch_base.tree import Tree, leaves, map_tensors, tensors

_AS_IT_IS = (NoneType, bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size)
Versions: TypeAlias = tuple[int | None, ...]
_MOST_WASTE = 2
"""An alias may keep a storage of so many times its own size; a smaller part is copied."""


class NotCaptured:
    """Stands in a captured structure for an object that is no tensor and no plain value.

    Holding the object would keep alive what it holds, such as the tensors of a cache. It stands
    also for gradients under `is_grads_batched`, which nobody can read.

    Args:
        kind: the class name of the object.
    """

    __slots__ = ("kind",)

    def __init__(self, kind: str) -> None:
        self.kind: Final = kind

    def __repr__(self) -> str:
        return f"<{self.kind}, not captured>"


class Keep:
    """What to do with each tensor that is captured.

    Args:
        reduce: called with each tensor, detached unless its graph is kept; what it returns is
            kept in the tensor's place.
        dtype: what to convert tensors of floating point (or complex) numbers to.
        device: where to move tensors.
        copy: True to copy always, False to keep aliases that are checked when they are read;
            None for copies of what is detached, and aliases of what keeps its graph.
        graph: keep the autograd graph of tensors that have one.

    Raises:
        HookTypeError: `reduce` is not callable or `dtype` no dtype.
        HookValueError: there is no such device.
    """

    __slots__ = (
        "_alias",
        "_copy",
        "_device",
        "_dtype",
        "_moves",
        "_reduce",
        "aliases",
        "graph",
        "plain",
    )

    def __init__(
        self,
        *,
        reduce: Callable[[Tensor], Any] | None,
        dtype: torch.dtype | None,
        device: torch.device | str | None,
        copy: bool | None,
        graph: bool,
    ) -> None:
        if reduce is not None and not callable(reduce):
            msg = f"reduce= takes a function of a tensor, not {reduce!r}"
            raise HookTypeError(msg)
        if not isinstance(dtype, torch.dtype | None):
            msg = f"dtype= takes a torch.dtype such as torch.float16, not {dtype!r}"
            raise HookTypeError(msg)
        self._reduce = reduce
        self._dtype = dtype
        self._device = _device(device)
        self._copy = copy
        self._moves = dtype is not None or device is not None
        self._alias = copy is False
        self.graph = graph
        self.plain = not (graph or self._alias or self._moves or reduce is not None)
        """Whether tensors are just detached and copied."""

    def value(self, value: Any) -> Any:
        """The value with its tensors kept as asked; a tensor that is there twice is kept once."""
        if isinstance(value, Tensor):
            plain = self.plain and not is_batched_gradient(value)
            return copied(value.detach()) if plain else self._tensor(value)
        tree = Tree.of(value)
        kept: dict[int, Any] = {}
        for tensor in tree.tensors:
            if id(tensor) not in kept:
                kept[id(tensor)] = self._tensor(tensor)
        new = [kept[id(tensor)] for tensor in tree.tensors]
        try:
            return tree.refill(new, _plain_or_stand_in)
        except HooklineError:  # a container that takes no other values
            return dict(zip([path for path, _ in leaves(value, "")], new, strict=True))

    def versions(self, value: Any) -> Versions | None:
        """How often each kept tensor was written to; None where all are copies."""
        if not (self._alias or self.graph):
            return None
        return tuple([version_of(tensor) for tensor in tensors(value)])

    def _tensor(self, tensor: Tensor) -> Any:
        if is_batched_gradient(tensor):
            return NotCaptured("batched gradient")
        if self.graph and tensor.requires_grad:
            whole, alias = tensor, self._copy is not True
        else:
            whole, alias = tensor.detach(), self._alias and _may_be_aliased(tensor)
        if self._reduce is not None:
            return self._reduced(whole)
        moved = self._moved(whole) if self._moves else whole
        return moved if alias or moved is not whole else copied(moved)

    def _reduced(self, whole: Tensor) -> Any:
        result = self._reduce(whole) if self._reduce is not None else whole
        if self.graph:
            return map_tensors(self._moved, result)
        # It may well be a part of the tensor, which will be overwritten.
        return map_tensors(lambda t: _apart(self._moved(t.detach()), t), result)

    def _moved(self, tensor: Tensor) -> Tensor:
        dtype, device = self._dtype, self._device
        if dtype is not None and not _converts(tensor.dtype, dtype):
            dtype = None
        if device is not None and tensor.is_meta:
            device = None
        return tensor if dtype is device is None else tensor.to(device=device, dtype=dtype)


def _device(device: torch.device | str | None) -> torch.device | None:
    try:
        return None if device is None else torch.device(device)
    except (RuntimeError, TypeError) as error:
        msg = f"device= takes a device such as 'cpu', not {device!r}: {error}"
        raise HookValueError(msg) from error


def _converts(old: torch.dtype, new: torch.dtype) -> bool:
    """Whether numbers keep their meaning: those of integers (token ids, masks) would not."""
    return (old.is_floating_point and new.is_floating_point) or (old.is_complex and new.is_complex)


def _apart(kept: Tensor, whole: Tensor) -> Tensor:
    return copied(kept) if kept.dtype == whole.dtype and kept.device == whole.device else kept


def _may_be_aliased(tensor: Tensor) -> bool:
    """Whether an alias can be checked when it is read, and keeps no large storage alive."""
    if tensor.is_inference() or tensor.layout is not torch.strided:
        return False
    try:
        return tensor.untyped_storage().nbytes() <= _MOST_WASTE * tensor.nbytes
    except (RuntimeError, NotImplementedError):  # no storage of its own
        return False


def _plain_or_stand_in(value: object) -> object:
    return value if isinstance(value, _AS_IT_IS) else NotCaptured(type(value).__name__)


# Giving back.


def given_back(value: Any, versions: Versions | None, what: str) -> Any:
    """What was kept, checked and ready for use.

    Args:
        value: what was kept.
        versions: what `Keep.versions` gave when it was.
        what: names it in the error.

    Raises:
        CaptureError: an alias was overwritten meanwhile.
    """
    if versions is not None:
        _check_versions(value, versions, what)
    if isinstance(value, Tensor):
        return _outside_transforms(value) if is_transformed(value) else value
    if any(is_transformed(tensor) for tensor in tensors(value)):
        return map_tensors(_outside_transforms, value)
    return value


def _check_versions(value: Any, versions: Versions, what: str) -> None:
    for (path, tensor), version in zip(leaves(value, what), versions, strict=True):
        if version is not None and version_of(tensor) != version:
            msg = (
                f"{path} was overwritten in place after it was captured, and only an alias of it "
                "was kept; pass copy=True to capture a copy"
            )
            raise CaptureError(msg)


def _outside_transforms(tensor: Tensor) -> Tensor:
    """The values behind a tensor of `torch.func`, batch dimensions in front.

    Inside the transform itself it is the tensor as it is.
    """
    if transform_level() is not None:
        return tensor
    dims: list[int] = []
    while is_transformed(tensor):
        dim = batch_dim(tensor)
        if dim >= 0:
            dims.append(dim)
        tensor = unwrapped(tensor)
    for place, dim in enumerate(reversed(dims)):
        tensor = tensor.movedim(dim + place, place)
    return tensor


def bytes_of(value: Any) -> int:
    """The bytes of the tensors in what was kept."""
    return sum(map(_bytes, {id(tensor): tensor for tensor in tensors(value)}.values()))


def _bytes(tensor: Tensor) -> int:
    if tensor.layout is torch.sparse_coo:
        return tensor._indices().nbytes + tensor._values().nbytes  # noqa: SLF001 - works uncoalesced
    if is_transformed(tensor):
        return _bytes(unwrapped(tensor))
    try:
        return local_part(tensor).nbytes
    except (RuntimeError, NotImplementedError):  # other sparse layouts, say
        return tensor.numel() * tensor.element_size()
