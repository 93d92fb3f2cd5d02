"""Gradients that hooks put in the place of others."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hookline.errors import HookValueError
from hookline.torch_base.private import torch_function_off
from hookline.torch_base.readable import shape_of
from hookline.torch_base.tree import describe


def check_gradient(new: Tensor, old: Tensor, hook: str) -> None:
    """Refuse a gradient that cannot take another's place.

    Args:
        new: the gradient that a hook gave.
        old: the one in whose place it comes.
        hook: the hook in words, for the error.

    Raises:
        HookValueError: if it has another shape, dtype or device.
    """
    if shape_of(new) != shape_of(old) or new.dtype != old.dtype or new.device != old.device:
        msg = (
            f"{hook} gave {describe(new)} on {new.device} in place of {describe(old)} on "
            f"{old.device}; shape, dtype and device must stay"
        )
        raise HookValueError(msg)


class Part:
    """A view's part of the gradient of its base.

    Args:
        base: the tensor whose memory the view shows.
        view: the view.
    """

    __slots__ = ("_base", "_offset", "_view")

    def __init__(self, base: Tensor, view: Tensor) -> None:
        self._base = base.size(), base.stride()
        self._view = view.size(), view.stride()
        self._offset = view.storage_offset() - base.storage_offset()

    def cut(self, gradient: Tensor) -> Tensor:
        """The view's part; not to be written into."""
        with torch_function_off():
            whole = gradient.detach()
            return self._of(whole if whole.stride() == self._base[1] else self._copy(whole))

    def paste(self, gradient: Tensor, new: Tensor) -> Tensor:
        """The gradient of the base with another part for the view."""
        with torch_function_off():
            whole = self._copy(gradient.detach())
            self._of(whole).copy_(new)
            return whole

    def _copy(self, gradient: Tensor) -> Tensor:
        shape, strides = self._base
        like: dict[str, Any] = {"dtype": gradient.dtype, "device": gradient.device}
        return torch.empty_strided(shape, strides, **like).copy_(gradient)

    def _of(self, whole: Tensor) -> Tensor:
        return whole.as_strided(*self._view, whole.storage_offset() + self._offset)
