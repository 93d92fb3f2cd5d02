"""The bins in which magnitudes are counted: powers of two."""

from __future__ import annotations

from typing import Final

LOWEST: Final = -48
HIGHEST: Final = 32
BINS: Final = HIGHEST - LOWEST + 2
"""How many bins there are."""

_EDGES: Final = (0.0, *(2.0**power for power in range(LOWEST, HIGHEST + 1)), float("inf"))


def edges() -> tuple[float, ...]:
    """Where bins begin and end, one number more than there are bins.

    A magnitude is in the bin that begins with it or below it and ends above it. The first bin is of
    all that is smaller than 2⁻⁴⁸ but not zero, the last of all from 2³² up. Zeros and what is not
    finite are in none.

    Example:
        >>> edges()[1] == 2.0**-48, len(edges()) == BINS + 1
        (True, True)
    """
    return _EDGES
