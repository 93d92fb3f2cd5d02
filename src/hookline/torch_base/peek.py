"""The gradient of a tensor, seen as it arrives where the tensor was made, without touching it.

A call's gradients of its inputs can be had apart from those of other uses only by an alias of the
input. Where the whole gradient of the tensor will do, a mark on its node is enough: nothing is put
into the graph, and the mark goes with it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias
from weakref import ref

from torch import Tensor

from hookline.core.calls import Call
from hookline.core.entry import EMPTY, Lineup
from hookline.core.thread import Thread
from hookline.torch_base.marks import Mark, Role, mark
from hookline.torch_base.private import MARKS, NO_SEQUENCE, node_metadata, node_number
from hookline.torch_base.window import Window

Viewer: TypeAlias = Callable[[Any, "Peek", Tensor], None]
"""Called with who looks, the `Peek`, and the gradient."""


class Peek(Call):
    """A tensor whose gradient is looked at, and the calls that it was given to.

    In a run of autograd's engine it stands among the calls, as one that has no nodes of its own.

    Args:
        owner: who looks; held weakly.
        number: the number of the tensor's node.
        look: called with the owner, this and the gradient as it arrives.

    Attributes:
        uses: the calls that the tensor was given to, each with the name of the argument.
    """

    def __init__(self, owner: object, number: int, look: Viewer) -> None:
        self.owner: Final = ref(owner)
        self.look: Final = look
        self.start = self.stop = number
        self.uses: list[tuple[Call, str]] = []

    def describe(self) -> str:
        """The tensor in words, for errors."""
        return " and ".join(f"{name} of {call.describe()}" for call, name in self.uses)


class PeekWindow(Window):
    """Shows the gradient to the owner; it has no begin and no end."""

    __slots__ = ()
    looks_on = True
    call: Peek  # pyright: ignore[reportIncompatibleVariableOverride]

    def __init__(self, call: Call, run: Any) -> None:
        super().__init__(call, run)
        self.started = True  # so that it never begins

    def current(self) -> Lineup:
        """No hook is registered for it."""
        return EMPTY

    def collect(self, mark: Mark, gradient: Tensor | None, thread: Thread) -> None:
        """A gradient has arrived."""
        owner = self.call.owner()
        if gradient is None or owner is None:
            return
        thread.busy = True
        try:
            self.call.look(owner, self.call, gradient)
        finally:
            thread.busy = False

    def passed_on(self, mark: Mark, gradient: Tensor | None) -> Tensor | None:
        """Nothing is changed."""
        return gradient


Peek.window_type = PeekWindow


def peek(
    call: Call,
    inputs: Sequence[tuple[str, Tensor]],
    owner: object,
    look: Viewer,
) -> None:
    """Look at the gradients of a call's inputs as they arrive in a backward run.

    The gradient of a tensor that is used more than once is the sum over all uses. Leaves are left
    out; their gradient is in `.grad` once the backward is over.

    Args:
        call: the call.
        inputs: its input tensors, each with the name of the argument.
        owner: who looks; two owners do not disturb each other.
        look: called with the owner, the `Peek` and the gradient.
    """
    for name, tensor in inputs:
        node = tensor.grad_fn
        if node is None:
            continue
        number = node_number(node)
        if number >= NO_SEQUENCE:
            continue
        found = _existing(node, tensor.output_nr, owner)
        if found is None:
            found = Peek(owner, number, look)
            found.thread = call.thread
            mark(node, tensor, found, Role.OUTPUT, 0)
        found.uses.append((call, name))


def _existing(node: Any, slot: int, owner: object) -> Peek | None:
    for each in node_metadata(node).get(MARKS, ()):
        call = each.call
        if isinstance(call, Peek) and each.slot == slot and call.owner() is owner:
            return call
    return None
