"""What torch-style hooks take and may return, for editors and type checkers."""

from __future__ import annotations

from typing import Any, Protocol, TypeAlias, TypeVar, runtime_checkable

from torch import nn

from hookline.modules.replace import GradInput

Hooked_contra = TypeVar("Hooked_contra", bound=nn.Module, contravariant=True)


@runtime_checkable
class PlainForwardPreHook(Protocol[Hooked_contra]):
    """Runs before a module's forward and may replace its inputs."""

    def __call__(self, module: Hooked_contra, args: tuple[Any, ...], /) -> Any:
        """Get the positional arguments; None leaves the inputs unchanged."""
        ...


@runtime_checkable
class FullForwardPreHook(Protocol[Hooked_contra]):
    """Runs before a module's forward and may replace its inputs, keyword arguments too."""

    def __call__(
        self, module: Hooked_contra, args: tuple[Any, ...], kwargs: dict[str, Any], /
    ) -> Any:
        """Get all arguments; None leaves them unchanged."""
        ...


@runtime_checkable
class PlainForwardHook(Protocol[Hooked_contra]):
    """Runs after a module's forward and may replace its output."""

    def __call__(self, module: Hooked_contra, args: tuple[Any, ...], output: Any, /) -> Any:
        """Get the positional arguments and the output; None leaves the output unchanged."""
        ...


@runtime_checkable
class FullForwardHook(Protocol[Hooked_contra]):
    """Runs after a module's forward and may replace its output; gets keyword arguments too."""

    def __call__(
        self, module: Hooked_contra, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any, /
    ) -> Any:
        """Get all arguments and the output; None leaves the output unchanged."""
        ...


@runtime_checkable
class TorchBackwardPreHook(Protocol[Hooked_contra]):
    """Runs when the gradients of a module's outputs are there, and may replace them."""

    def __call__(self, module: Hooked_contra, grad_output: Any, /) -> Any:
        """Get a 1-tuple for a tensor output, else the output's structure; None: unchanged."""
        ...


@runtime_checkable
class TorchBackwardHook(Protocol[Hooked_contra]):
    """Runs when a module's backward is done, and may replace the gradients of its inputs."""

    def __call__(self, module: Hooked_contra, grad_input: GradInput, grad_output: Any, /) -> Any:
        """Get the gradients by argument and those of the outputs; None: unchanged."""
        ...


TorchForwardPreHook: TypeAlias = (
    PlainForwardPreHook[Hooked_contra] | FullForwardPreHook[Hooked_contra]
)
