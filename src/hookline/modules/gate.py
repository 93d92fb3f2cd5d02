"""What stands on an output and applies the backward value hooks to its gradient."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from torch import Tensor

from hookline.core.events import blame
from hookline.errors import HookTypeError
from hookline.torch_base.gradients import check_gradient
from hookline.torch_base.tree import describe

if TYPE_CHECKING:
    from hookline.core.entry import Entry
    from hookline.core.registry import HookRegistry
    from hookline.core.thread import Thread
    from hookline.modules.call import ModuleCall


class BackwardHookGate:
    """Applies the backward hooks of a registry to a gradient, in order.

    Hooks are looked up at each gradient: one that is removed is not called any more.

    Args:
        registry: where the hooks are registered.

    Example:
        >>> import torch, hookline
        >>> layer, hooks = hookline.with_hooks(torch.nn.Linear(2, 2))
        >>> _ = hooks.add_backward_hook(lambda grad: grad * 2)
        >>> BackwardHookGate(hooks.registry)(torch.ones(2))
        tensor([2., 2.])
    """

    def __init__(self, registry: HookRegistry) -> None:
        self.registry: Final = registry

    def __call__(self, gradient: Tensor) -> Tensor:
        """The gradient that flows on.

        Args:
            gradient: the gradient of the output, of any shape.

        Raises:
            HookTypeError: a hook returned something else than a tensor.
            HookValueError: a hook returned a tensor of another shape, dtype or device.
        """
        for entry in self.registry.lineup.gradients:
            gradient = _apply(entry, gradient)
        return gradient


def apply_gradient_hooks(
    entries: tuple[Entry, ...], gradient: Tensor, call: ModuleCall, thread: Thread
) -> Tensor:
    """Apply the backward value hooks of a call; an error leaves with its note."""
    notes = thread.notes
    for entry in entries:
        try:
            gradient = _apply(entry, gradient)
        except BaseException as error:
            blame(error, entry, call, thread, notes)
            raise
    return gradient


def _apply(entry: Entry, gradient: Tensor) -> Tensor:
    if not entry.alive or entry.gradient is None:
        return gradient
    new = entry.gradient(gradient)
    if new is None:
        return gradient
    if not isinstance(new, Tensor):
        msg = f"backward hook {entry.name} must return a tensor or None, not {describe(new)}"
        raise HookTypeError(msg)
    check_gradient(new, gradient, f"backward hook {entry.name}")
    return new
