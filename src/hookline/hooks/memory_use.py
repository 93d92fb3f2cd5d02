"""What one module or function takes in memory, over all its calls and passes."""

from __future__ import annotations

from collections.abc import Sequence
from operator import add
from typing import NamedTuple

from torch import Tensor, nn

from hookline.core.calls import Key
from hookline.core.records import MemoryRow
from hookline.core.thread import local
from hookline.hooks.subject import Subject
from hookline.torch_base.storages import size_of, storages_of


class Use(NamedTuple):
    """What one call takes, or all calls of one module or function in a pass; in bytes."""

    output: int = 0
    saved: int = 0
    self_saved: int = 0
    packed_bytes: int = 0
    packed: int = 0

    def plus(self, other: Use) -> Use:
        """Both together."""
        return Use(*map(add, self, other))

    def at_least(self, other: Use) -> Use:
        """The larger of each figure."""
        return Use(*map(max, self, other))


class Usage:
    """What is known of one module or function.

    Attributes:
        module: the module, known weakly; None for a function.
        calls: how many calls there were.
        passes: in how many passes.
        in_call: the largest call.
        in_pass: the largest pass.
        last: the latest pass.
        allocated: the largest growth in a call of what the device's allocator has given out.
        peak: the largest rise during a call above what it was at the begin.
    """

    def __init__(self) -> None:
        self.module: Key[nn.Module] | None = None
        self.calls = 0
        self.passes = 0
        self.in_call = self.in_pass = self.last = Use()
        self.allocated: int | None = None
        self.peak: int | None = None

    def add(self, use: Use, before: Use | None) -> Use:
        """Add a call to what there was `before` in the same pass; gives both together."""
        self.calls += 1
        self.passes += before is None
        self.last = use if before is None else before.plus(use)
        self.in_call = self.in_call.at_least(use)
        self.in_pass = self.in_pass.at_least(self.last)
        return self.last

    def row(self, what: Subject) -> MemoryRow:
        """What is known."""
        fields = what._asdict()
        del fields["direction"]  # what is held is held by the forward
        module = None if self.module is None else self.module()
        parameters = [] if module is None else list(module.parameters())
        # Torch crashes where `grad` is read while a backward in another thread writes it.
        reading = module is not None and not local.thread.onlooker
        gradients = [each.grad for each in parameters if each.grad is not None] if reading else []
        return MemoryRow(
            **fields,
            calls=self.calls,
            passes=self.passes,
            output_bytes=self.in_pass.output,
            saved_bytes=self.in_pass.saved,
            self_saved_bytes=self.in_pass.self_saved,
            output_bytes_call=self.in_call.output,
            saved_bytes_call=self.in_call.saved,
            output_bytes_last=self.last.output,
            saved_bytes_last=self.last.saved,
            packed=self.in_pass.packed,
            packed_bytes=self.in_pass.packed_bytes,
            parameter_bytes=None if module is None else bytes_of(parameters),
            gradient_bytes=bytes_of(gradients) if reading else None,
            allocated_bytes=self.allocated,
            peak_bytes=self.peak,
        )


def bytes_of(held: Sequence[Tensor], besides: Sequence[Tensor] = ()) -> int:
    """The bytes of the storages of tensors that are not also those of others."""
    others = {id(storage) for tensor in besides for storage in storages_of(tensor)}
    found = {id(storage): storage for tensor in held for storage in storages_of(tensor)}
    return sum(size_of(storage) for key, storage in found.items() if key not in others)


def larger(one: int | None, other: int | None) -> int | None:
    """The larger of two figures; None where neither is known."""
    if one is None or other is None:
        return other if one is None else one
    return max(one, other)
