"""How large numbers are: counts by powers of two."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

LOWEST: Final = -48
HIGHEST: Final = 32
BINS: Final = HIGHEST - LOWEST + 2
"""How many bins there are."""
SAMPLE: Final = 1024
"""So many numbers of a tensor are looked at."""

_EDGES: Final = (5e-324, *(2.0**power for power in range(LOWEST, HIGHEST + 1)), float("inf"))


def edges() -> tuple[float, ...]:
    """Where bins begin and end, one number more than there are bins.

    A magnitude is in the bin that begins with it or below it and ends above it. The first bin is of
    all that is smaller than 2⁻⁴⁸ but not zero, the last of all from 2³² up. Zeros and what is not
    finite are in none.

    Example:
        >>> edges()[1] == 2.0**-48, len(edges()) == BINS + 1
        (True, True)
    """
    return (0.0, *_EDGES[1:])


def magnitudes(sample: Tensor, factor: float = 1.0) -> Tensor:
    """Count the magnitudes of some numbers by bin, on their own device.

    Args:
        sample: floating point or complex numbers, flat.
        factor: what to multiply them by before.

    Returns:
        `BINS` integers.

    Example:
        >>> import torch
        >>> counts = magnitudes(torch.tensor([0.0, 1.0, -1.5, 2.0, float("nan")]))
        >>> [(edges()[place], n) for place, n in enumerate(counts.tolist()) if n]
        [(1.0, 2), (2.0, 1)]
    """
    numbers = sample.abs().double() * factor
    # What is no smaller than inf is in no bin; NaN cannot be searched in.
    ordered = torch.where(numbers.isnan(), float("inf"), numbers).sort().values
    limits = torch.tensor(_EDGES, dtype=torch.float64, device=sample.device)
    return torch.searchsorted(ordered, limits).diff()
