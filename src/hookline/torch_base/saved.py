"""What autograd keeps for the backward, read from its nodes while the forward runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from torch import Tensor
from torch.autograd.graph import Node

from hookline.torch_base.private import node_number, saved_by, sequence_number


class Saved(NamedTuple):
    """Something that a node keeps.

    Attributes:
        number: the sequence number of the node: tells which call made it.
        value: the tensor; where a hook packed it, what it was packed into; None for a tensor that
            is not needed.
        packed: whether a hook packed it.
    """

    number: int
    value: Any
    packed: bool


class SavedWalk:
    """Walks back from outputs, and meets each node once, however often it is called.

    It knows the nodes by their numbers, which differ within a thread, and holds none of them.
    """

    def __init__(self) -> None:
        self._seen: set[int] = set()

    def back_from(self, outputs: Iterable[Tensor], start: int) -> Iterator[Saved]:
        """What the nodes keep that made the outputs, and were not met before.

        Args:
            outputs: the tensors from which to walk.
            start: nodes with lower numbers were there before, and are not walked through.
        """
        # Some tensors make their nodes when they are asked for, so ask before the range is closed.
        waiting: list[Node | None] = [tensor.grad_fn for tensor in outputs]
        stop, seen = sequence_number(), self._seen
        while waiting:
            node = waiting.pop()
            if node is None:
                continue
            number = node_number(node)
            if start <= number < stop and number not in seen:
                seen.add(number)
                waiting.extend(following for following, _ in node.next_functions)
                for value, packed in saved_by(node):
                    yield Saved(number, value, packed)
