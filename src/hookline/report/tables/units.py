"""How numbers are written in tables: in the unit that suits them.

Set flush right, the points of a column stand under each other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence


def duration(seconds: float) -> str:
    """A time.

    Example:
        >>> duration(0.0123), duration(65.0)
        ('12.30 ms', '65.00  s')
    """
    for unit, size in (("µs", 1e-6), ("ms", 1e-3)):
        text = f"{seconds / size:.2f} {unit}"
        if len(text) <= len("999.99 ms"):
            return text
    return f"{seconds:.2f}  s"


def size(count: float) -> str:
    """A number of bytes.

    Example:
        >>> size(640), size(3 * 2**20)
        ('640   B', '3.00 MiB')
    """
    return _scaled(count, 1024, ("  B", "KiB", "MiB", "GiB", "TiB", "PiB"))


def amount(count: float) -> str:
    """A large number of things, such as FLOPs.

    Example:
        >>> amount(640), amount(3_210_000)
        ('640  ', '3.21 M')
    """
    return _scaled(count, 1000, (" ", "k", "M", "G", "T", "P", "E"))


def percent(share: float) -> str:
    """A share.

    Example:
        >>> percent(0.25)
        '25.0%'
    """
    return f"{share:.1%}"


def number(value: float) -> str:
    """A number of any size, with three digits that matter.

    Example:
        >>> number(0.25), number(1234567.0), number(3e-9)
        ('0.25', '1.23e+06', '3e-09')
    """
    return f"{value:.3g}"


def known(value: float) -> float | None:
    """A number; None where it is NaN: there was nothing to measure.

    Example:
        >>> known(0.5), known(math.nan)
        (0.5, None)
    """
    return None if math.isnan(value) else value


def times(ratio: float) -> str:
    """How many times as much.

    Example:
        >>> times(2.0), times(math.inf)
        ('×2.00', '')
    """
    return f"×{ratio:.2f}" if math.isfinite(ratio) else ""


def plural(count: int, what: str) -> str:
    """So many of something.

    Example:
        >>> plural(1, "pass"), plural(2, "module")
        ('1 pass', '2 modules')
    """
    ending = "es" if what.endswith("s") else "s"
    return f"{count:,} {what}{'' if count == 1 else ending}"


def _scaled(count: float, base: int, units: Sequence[str]) -> str:
    value, place = float(count), 0
    while abs(value) >= base and place < len(units) - 1:
        value, place = value / base, place + 1
    return f"{value:.2f} {units[place]}" if place else f"{value:.0f} {units[0]}"
