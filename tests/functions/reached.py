"""Where calls of custom functions are seen: whether anybody stands there, and what goes past."""

import torch


def _applies():
    return [vars(cls).get("apply") for cls in torch.autograd.Function.__mro__]


_ORIGINAL = _applies()

BOUND_IS_SEEN = isinstance(vars(torch.autograd.Function)["apply"], classmethod)
"""Whether an `apply` that was bound earlier leads through Python: until torch 2.13 it does."""


def is_patched():
    """Whether an `apply` that custom functions inherit is another than at first."""
    return _applies() != _ORIGINAL
