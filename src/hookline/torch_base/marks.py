"""The marks that calls leave on autograd nodes: whose output or input a node's gradient is.

A mark stands in the node's `metadata` and lives as long as the graph. It holds the call, which
holds no tensor, and never a node: a reference upwards would be a cycle that no collector sees.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING, Final

from hookline.torch_base.private import ALIAS, MARKS, node_metadata

if TYPE_CHECKING:
    from torch import Tensor
    from torch.autograd.graph import Node

    from hookline.core.calls import Call
    from hookline.torch_base.gradients import Part


class Role(Enum):
    """What happens to the gradient that arrives at a marked node."""

    OUTPUT = auto()
    """It is the gradient of an output: seen and changed here."""
    OUTPUT_SEEN = auto()
    """It is the gradient of an output: only seen here; all are changed together."""
    OUTPUT_PASSED = auto()
    """The place where jointly changed gradients of outputs flow on."""
    OUTPUT_PART = auto()
    """It holds the gradient of an output that is a view of what the node makes."""
    INPUT_SEEN = auto()
    """It is the call's gradient of an input: seen here."""
    INPUT_PASSED = auto()
    """The place where gradients of inputs flow on, after the call's backward."""
    INPUT = auto()
    """It is the gradient of the call's only input: seen here, and flows on after the call's end."""


OUTPUT, OUTPUT_SEEN, OUTPUT_PASSED, OUTPUT_PART, INPUT_SEEN, INPUT_PASSED, INPUT = Role
"""The members as plain names, for the hot paths; see `hookline.core.phases`."""


class Mark:
    """One tensor of one call.

    Attributes:
        call: whose tensor it is.
        role: what happens to the gradient.
        place: the tensor's number among the call's outputs or inputs.
        slot: which of the node's gradients is the tensor's.
        part: which part of the gradient is the tensor's, where it is only a part of it.
        leaf: whether the node is that of an alias of a leaf, which gets the gradient as it is.
    """

    __slots__ = ("call", "leaf", "part", "place", "role", "slot")

    def __init__(
        self,
        call: Call,
        role: Role,
        place: int,
        slot: int,
        part: Part | None = None,
        leaf: bool = False,  # noqa: FBT001, FBT002 - made for every call; keywords take longer
    ) -> None:
        self.call: Final = call
        self.role: Final = role
        self.place: Final = place
        self.slot: Final = slot
        self.part: Final = part
        self.leaf: Final = leaf


def mark(
    node: Node, tensor: Tensor, call: Call, role: Role, place: int, part: Part | None = None
) -> None:
    """Leave a mark on the node that makes a tensor; inner calls come before outer ones."""
    metadata = node_metadata(node)
    leaf = ALIAS in metadata and metadata[ALIAS]
    entry = Mark(call, role, place, tensor.output_nr, part, leaf)
    if MARKS in metadata:
        metadata[MARKS].append(entry)
    else:
        metadata[MARKS] = [entry]
