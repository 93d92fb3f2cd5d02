"""Which process of a run this is, and which file is its own."""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

_RUN = ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT")


class Process(NamedTuple):
    """Which process of a run this is.

    Example:
        >>> Process("a", rank=1, ranks=2).file(Path("run.hookline")).name
        'run.hookline.1'
    """

    run: str
    """The same for all processes of a run, and for no other run of the same hour."""
    rank: int
    """The number of the process."""
    ranks: int
    """How many there are."""

    @classmethod
    def here(cls, environment: Mapping[str, str] = os.environ) -> Process:
        """What the launcher (`torchrun`, or whatever sets the same variables) says of this one."""
        try:
            rank, ranks = int(environment["RANK"]), int(environment["WORLD_SIZE"])
        except (KeyError, ValueError):
            return cls(uuid.uuid4().hex, 0, 1)
        return cls(":".join(environment.get(name, "") for name in _RUN), rank, ranks)

    def file(self, path: Path) -> Path:
        """The file of this process: that of the first has the name that was given."""
        return path.with_name(f"{path.name}.{self.rank}") if self.rank else path
