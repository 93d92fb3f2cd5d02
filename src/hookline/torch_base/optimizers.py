"""What optimizers do, and which of their steps are one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from hookline.torch_base.private import steps_around


def parameters_of(optimizer: Any) -> Iterator[Tensor]:
    """What an optimizer updates."""
    for group in optimizer.param_groups:
        yield from group["params"]


def is_part_of_a_step(optimizer: Any) -> bool:
    """Whether the step that an optimizer takes is a part of another: they update the same.

    `ZeroRedundancyOptimizer` has another optimizer take its steps; and a class that was derived
    from an optimizer may call the step of that. To be asked in a hook of the step.
    """
    _, *outer = steps_around()
    if not outer:
        return False
    own = {id(parameter) for parameter in parameters_of(optimizer)}
    return any(id(parameter) in own for each in outer for parameter in parameters_of(each))
