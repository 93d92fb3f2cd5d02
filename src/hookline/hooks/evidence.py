"""What is known of calls, and of the tensors and parameters that they were given."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any
from weakref import ref

from torch import Tensor, nn

from hookline.core.calls import Call
from hookline.core.names import joined
from hookline.hooks.finite import seems_finite
from hookline.modules.call import ModuleCall
from hookline.torch_base.private import node_number
from hookline.torch_base.tree import leaves


class State:
    """What one hook knows of one call.

    Attributes:
        versions: how often each input had been written to when the call began, by identity.
        before: whether what the call overwrites was finite then; None if nobody looked.
        was_mask: whether what it overwrites was a mask.
        edges: the numbers of the autograd nodes that made its inputs; None for other inputs.
        inside: for each direction, the call inside it that is to blame.
        blamed: the directions in which it was blamed itself.
        found: whether something was found in its forward, or inside of it.
        given_bad: whether the gradients of its outputs were not finite; None before the backward.
        seen: the gradients of its outputs that were looked at.
    """

    __slots__ = (
        "before",
        "blamed",
        "edges",
        "found",
        "given_bad",
        "inside",
        "seen",
        "versions",
        "was_mask",
    )

    def __init__(self) -> None:
        self.versions: dict[int, int | None] = {}
        self.before: bool | None = None
        self.was_mask = False
        self.edges: tuple[int | None, ...] = ()
        self.inside: dict[str, str] = {}
        self.blamed: tuple[str, ...] = ()
        self.found = False
        self.given_bad: bool | None = None
        self.seen: tuple[str, ...] = ()


class Remembered:
    """Tensors known by identity, held weakly."""

    def __init__(self) -> None:
        self._refs: dict[int, ref[Tensor]] = {}

    def add(self, tensor: Tensor) -> None:
        """Remember a tensor."""
        key = id(tensor)
        refs = self._refs
        refs[key] = ref(tensor, lambda _: refs.pop(key, None) and None)

    def discard(self, tensor: Tensor) -> None:
        """Forget a tensor."""
        self._refs.pop(id(tensor), None)

    def clear(self) -> None:
        """Forget all."""
        self._refs.clear()

    def __contains__(self, tensor: Tensor) -> bool:
        found = self._refs.get(id(tensor))
        return found is not None and found() is tensor


def calls_around(call: Call) -> Iterator[Call]:
    """The watched calls inside of which a call runs, innermost first."""
    above = call.parent
    while above is not None:
        yield above
        above = above.parent


def bad_parameter(call: Any) -> str | None:
    """The full name of a parameter or buffer of a module call that is not finite."""
    for name, tensor in _parameters(call.key()):
        if not seems_finite(tensor):
            return joined(call.path, name)
    return None


def _parameters(module: nn.Module | None) -> Iterator[tuple[str, Tensor]]:
    """Parameters and buffers, those of the module itself first; none of one that is gone."""
    if module is not None:
        for recurse in (False, True):
            yield from module.named_parameters(recurse=recurse)
            yield from module.named_buffers(recurse=recurse)


def name_around(call: Call, tensor: Tensor | None, other: str = "") -> str:
    """The full name of a parameter or buffer of the modules that are running, if it is one."""
    for above in calls_around(call) if tensor is not None else ():
        if isinstance(above, ModuleCall):
            for name, known in _parameters(above.key()):
                if known is tensor:
                    return joined(above.path, name)
    return other


def named_inputs(args: Sequence[Any], kwargs: dict[str, Any]) -> list[tuple[str, Tensor]]:
    """The tensors that a call is given, each with its path; not those that it is to write into."""
    named: list[tuple[str, Tensor]] = []
    for place, value in enumerate(args):
        if isinstance(value, Tensor):
            named.append((f"args[{place}]", value))
        elif value is not None:
            named += leaves(value, f"args[{place}]")
    for name, value in kwargs.items() if kwargs else ():
        if name != "out":
            named += leaves(value, f"kwargs[{name!r}]")
    return named


def edges_of(tensors: Sequence[Tensor | None]) -> tuple[int | None, ...]:
    """The numbers of the autograd nodes that made tensors; None for those that have none."""
    nodes = [None if tensor is None else tensor.grad_fn for tensor in tensors]
    return tuple([None if node is None else node_number(node) for node in nodes])
