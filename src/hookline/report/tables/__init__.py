"""The tables of a run: each a file with a function `sheets(run)`, which says what stands in it.

They are plain data; `report.terminal` draws them.
"""

from __future__ import annotations

from typing import Final

TABLES: Final = (
    "times",
    "memory",
    "flops",
    "stats",
    "parameters",
    "ranks",
    "nonfinite",
    "silent",
)
"""The files, in the order in which their tables are shown; `--table` takes these names."""
