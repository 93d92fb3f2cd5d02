"""What registering a hook returns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Self

from hookline.core.travel import StaysHere

if TYPE_CHECKING:
    from hookline.core.entry import Entry
    from hookline.core.registry import HookRegistry


class HookHandle(StaysHere):
    """Undoes one registration.

    Works as a context manager, and also after the module is gone.

    Attributes:
        registry: the registry that the hook is (or was) in.

    Example:
        >>> import torch, hookline
        >>> layer = torch.nn.Linear(2, 2)
        >>> with hookline.register_forward_hook(layer, lambda m, a, out: print("called")):
        ...     _ = layer(torch.zeros(1, 2))
        called
        >>> _ = layer(torch.zeros(1, 2))
    """

    __slots__ = ("__weakref__", "entry", "registry")

    def __init__(self, entry: Entry, registry: HookRegistry) -> None:
        self.entry: Final = entry
        self.registry: Final = registry

    @property
    def hook(self) -> Any:
        """The hook that was registered."""
        return self.entry.hook

    @property
    def active(self) -> bool:
        """Whether the hook is still registered."""
        return self.entry.alive

    def remove(self) -> None:
        """Remove the hook; it is never called again. A second call does nothing.

        A hook object's `deleted` is called first; what it raises comes out, and the hook is gone.
        """
        self.registry.discard(self.entry)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def __repr__(self) -> str:
        state = "active" if self.active else "removed"
        return f"<HookHandle {state}: {self.entry.name} at {', '.join(self.entry.phases)}>"
