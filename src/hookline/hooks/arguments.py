"""What a module calls its inputs."""

from __future__ import annotations

import inspect

from torch import nn


def parameter_names(module: nn.Module | None) -> list[str]:
    """The names of the parameters of a module's `forward`; none where they can't be known.

    Example:
        >>> parameter_names(nn.Bilinear(1, 1, 1))
        ['input1', 'input2']
    """
    try:
        return [] if module is None else list(inspect.signature(module.forward).parameters)
    except (TypeError, ValueError):
        return []
