"""Value hooks on a wrapped layer: a transparent wrapper with hooks of its own.

The wrapper is a *twin*: an object of the layer's own class that shares its `__dict__` and takes
its slot values over. So type, parameters, state dict, attributes and repr are the layer's, and a
copy or a pickle of it is the bare layer; only its hooks, in the engine's side table, are its own.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from types import MemberDescriptorType
from typing import Any, Final, Protocol, TypeVar, runtime_checkable

from torch import Tensor, nn

from hookline.core.calls import Inputs
from hookline.core.entry import Callback, Entry
from hookline.core.handle import HookHandle
from hookline.core.names import hook_name
from hookline.core.phases import HookKind
from hookline.core.registry import HookRegistry
from hookline.core.travel import StaysHere
from hookline.errors import HookTypeError
from hookline.modules.call import ModuleCall
from hookline.modules.places import registry_of
from hookline.modules.replace import bare_or_inputs
from hookline.modules.targets import check_callable_module, check_hook
from hookline.torch_base.tree import describe

Layer = TypeVar("Layer", bound=nn.Module)

_PLACEHOLDER: Final = "_hookline_placeholder"


@runtime_checkable
class ForwardPreHook(Protocol):
    """Runs before the layer and may replace its input."""

    def __call__(self, value: Any, /) -> Any:
        """Get the input, or `Inputs` where there are several; None leaves it unchanged."""
        ...


@runtime_checkable
class ForwardHook(Protocol):
    """Runs after the layer and may replace its output."""

    def __call__(self, value: Any, output: Any, /) -> Any:
        """Get the input that the layer saw and the output; None leaves the output unchanged."""
        ...


@runtime_checkable
class BackwardHook(Protocol):
    """Runs when the gradient of the output arrives, and may replace it."""

    def __call__(self, gradient: Tensor, /) -> Tensor | None:
        """Get the gradient, of the output's shape; None leaves it unchanged."""
        ...


class Hooks(StaysHere):
    """Registers value hooks on a wrapped layer; `with_hooks` gives it.

    Attributes:
        registry: what all handles and the wrapper share.
    """

    def __init__(self, registry: HookRegistry) -> None:
        self.registry: Final = registry

    def add_forward_pre_hook(self, hook: ForwardPreHook) -> HookHandle:
        """Add a hook that gets the input and may return another.

        Pre-hooks run in registration order, each with what the one before gave.

        Args:
            hook: gets the bare value of a single positional argument, else
                [Inputs][hookline.Inputs], and returns the same or None.

        Raises:
            HookTypeError: it is not callable.

        Example:
            >>> import torch, hookline
            >>> layer, hooks = hookline.with_hooks(torch.nn.ReLU())
            >>> _ = hooks.add_forward_pre_hook(lambda x: x + 1)
            >>> layer(torch.zeros(2))
            tensor([1., 1.])
        """
        return self.add(HookKind.forward_pre, hook)

    def add_forward_hook(self, hook: ForwardHook) -> HookHandle:
        """Add a hook that gets the layer's input and the output, and may return another output.

        Args:
            hook: `(value, output)`; the value as for pre-hooks, as the layer saw it.

        Raises:
            HookTypeError: it is not callable.
        """
        return self.add(HookKind.forward, hook)

    def add_backward_hook(self, hook: BackwardHook) -> HookHandle:
        """Add a hook that gets the gradient of the output and may return another.

        It is attached where the output needs a gradient. Of an output of several tensors it is
        called for each that gets one. The last hook's result flows on into the layer.

        Args:
            hook: gets and returns a gradient of the output's shape, dtype and device.

        Raises:
            HookTypeError: it is not callable.
        """
        return self.add(HookKind.backward, hook)

    def add(self, kind: HookKind | int | str, hook: Any) -> HookHandle:
        """Add a hook of a kind given by its name or number.

        Raises:
            HookTypeError: it is not callable.
            HookValueError: there is no such kind.
        """
        kind = HookKind(kind)
        check_hook(hook)
        return self.registry.add(_entry(kind, hook))

    def __repr__(self) -> str:
        return f"<Hooks of a wrapped layer: {self.registry!r}>"


def with_hooks(layer: Layer) -> tuple[Layer, Hooks]:
    """Wrap a layer so that hooks can see and replace what flows through it.

    The wrapper takes the layer's place anywhere: in a model, or in another wrapper. It has the
    layer's type, parameters, state dict and attributes, and shares them; values of `__slots__` it
    takes as they are now. Copied or pickled, it is the bare layer. Calls of the layer itself run
    no hooks of the wrapper.

    Args:
        layer: the module to wrap; it stays as it is.

    Returns:
        The wrapper, and the object to register hooks with.

    Raises:
        HookTypeError: it is no module, TorchScript, sharded by `fully_shard`, or also a dict or
            another type that keeps values outside of its attributes.
        HookValueError: it is a container that is never called.

    Example:
        >>> import torch, hookline
        >>> layer, hooks = hookline.with_hooks(torch.nn.Linear(10, 5))
        >>> handle = hooks.add_forward_hook(lambda x, out: out.relu())
        >>> bool((layer(torch.randn(3, 10)) >= 0).all())
        True
        >>> handle.remove()
    """
    check_callable_module(layer)
    if _is_sharded(layer):
        msg = (
            f"this {type(layer).__name__} is sharded by fully_shard, which knows its module by "
            "identity; wrap the layer first and shard afterwards, or use register_forward_hook"
        )
        raise HookTypeError(msg)
    twin = _twin_of(layer)
    return twin, Hooks(registry_of(twin, inner=registry_of(layer)))


def _is_sharded(layer: nn.Module) -> bool:
    # Looked up, not imported: a layer can only be sharded once this has been loaded.
    fsdp = sys.modules.get("torch.distributed.fsdp")
    return fsdp is not None and isinstance(layer, fsdp.FSDPModule)


def _twin_of(layer: Layer) -> Layer:
    cls = type(layer)
    try:
        # Not the class's own `__new__`, which may want arguments or make something else.
        twin: Layer = object.__new__(cls)
    except TypeError:
        msg = (
            f"{cls.__name__} is more than a module: it keeps values outside of its attributes, as "
            "a dict or list does, which a wrapper cannot share; use register_forward_hook"
        )
        raise HookTypeError(msg) from None
    object.__setattr__(twin, "__dict__", _own_table(layer))
    for slot in _slots(cls):
        with suppress(AttributeError):  # it has no value
            slot.__set__(twin, slot.__get__(layer))
    return twin


def _own_table(layer: nn.Module) -> dict[str, Any]:
    """The layer's `__dict__`, with its values in it rather than in the layer.

    Python 3.13 keeps values of attributes in the object, also once its dictionary is shared. When
    the garbage collector finds the object unreachable, it empties what they hold, though the
    dictionary is in use. `popitem` makes a dictionary hold its values itself; it takes out what was
    put in for it, so that the layer has its own attributes all the time.
    """
    table = layer.__dict__
    table[_PLACEHOLDER] = None
    name, value = table.popitem()
    if name != _PLACEHOLDER:  # another thread set it in between
        table[name] = value
        del table[_PLACEHOLDER]
    return table


def _slots(cls: type) -> list[MemberDescriptorType]:
    members = (member for base in cls.__mro__ for member in vars(base).values())
    return [member for member in members if isinstance(member, MemberDescriptorType)]


def _entry(kind: HookKind, hook: Any) -> Entry:
    name = hook_name(hook)
    if kind is HookKind.backward:
        return Entry(hook, {}, name=name, gradient=hook)
    make = _pre if kind is HookKind.forward_pre else _post
    return Entry(hook, {kind.phase: make(hook, name)}, name=name)


def _pre(hook: ForwardPreHook, name: str) -> Callback:
    def callback(call: ModuleCall) -> None:
        value = bare_or_inputs(call.args, call.kwargs)
        new = hook(value)
        if new is None:
            return
        if not isinstance(value, Inputs):
            new = new if isinstance(new, Inputs) else Inputs((new,))
        elif not isinstance(new, Inputs):
            msg = (
                f"forward pre-hook {name} of {call.describe()} must return Inputs(args, kwargs), "
                f"since the layer got several inputs; it returned {describe(new)}"
            )
            raise HookTypeError(msg)
        call.put_inputs(new, f"forward pre-hook {name}")

    return callback


def _post(hook: ForwardHook, name: str) -> Callback:
    def callback(call: ModuleCall) -> None:
        new = hook(bare_or_inputs(call.args, call.kwargs), call.out)
        if new is not None:
            call.put_output(new, f"forward hook {name}")

    return callback
