"""How large numbers are: counts by powers of two."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from hookline.core.magnitudes import edges

SAMPLE: Final = 1024
"""So many numbers of a tensor are looked at."""

# The first bin begins above zero: zeros are in none.
_EDGES: Final = (5e-324, *edges()[1:])


def magnitudes(sample: Tensor, factor: float = 1.0) -> Tensor:
    """Count the magnitudes of some numbers by bin, on their own device.

    Args:
        sample: floating point or complex numbers, flat.
        factor: what to multiply them by before.

    Returns:
        As many integers as there are bins in `hookline.core.magnitudes`.

    Example:
        >>> import torch
        >>> from hookline.core.magnitudes import edges
        >>> counts = magnitudes(torch.tensor([0.0, 1.0, -1.5, 2.0, float("nan")]))
        >>> [(edges()[place], n) for place, n in enumerate(counts.tolist()) if n]
        [(1.0, 2), (2.0, 1)]
    """
    numbers = sample.abs().double() * factor
    limits = torch.tensor(_EDGES, dtype=torch.float64, device=sample.device)
    # Zeros are below the first limit, and neither inf nor NaN is below the last.
    places = torch.searchsorted(limits, numbers, right=True)
    counts = places.new_zeros(len(_EDGES) + 1)
    return counts.scatter_add_(0, places, torch.ones_like(places))[1:-1]
