"""The loss scale of mixed precision training: how much gradients are multiplied by."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from hookline.errors import HookTypeError


class LossScale:
    """The scale in use.

    Args:
        scaler: a `torch.amp.GradScaler`, a function that gives the scale, or None for no scaling.

    Raises:
        HookTypeError: it is something else.

    Attributes:
        given: whether there is any.
    """

    def __init__(self, scaler: Any) -> None:
        self._read: Final = _reader(scaler)
        self._scaler: Final = scaler
        self.given: Final = scaler is not None

    @property
    def active(self) -> bool:
        """Whether gradients are scaled now."""
        enabled = getattr(self._scaler, "is_enabled", None)
        return self.given and (enabled is None or bool(enabled()))

    def now(self) -> float:
        """The scale; 1 where there is none. A scaler on a device waits for it."""
        return self._read() if self.active else 1.0


def _reader(scaler: Any) -> Callable[[], float]:
    if scaler is None:
        return lambda: 1.0
    read = getattr(scaler, "get_scale", scaler)
    if not callable(read) or isinstance(scaler, type):
        msg = f"scaler= takes a GradScaler or a function that gives the scale, not {scaler!r}"
        raise HookTypeError(msg)
    return lambda: float(read())  # type: ignore[arg-type] - what it gives is the user's affair


def applied_scale(optimizer: Any) -> float:
    """The scale of the gradients that an optimizer is about to use.

    A scaler takes it out of them before, but for optimizers that do so themselves (`fused=True`).
    """
    scale = getattr(optimizer, "grad_scale", None)
    return 1.0 if scale is None else float(scale)
