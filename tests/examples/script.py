"""Runs an example as a user would."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"


def output_of(name: str, *args: object, prefix: tuple[object, ...] = ()) -> str:
    """What `python -W error examples/NAME ARGS` prints; it must end well, and say nothing else."""
    command = [sys.executable, "-W", "error", *prefix, EXAMPLES / name, *args]
    result = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, check=False, timeout=600
    )
    assert result.returncode == 0, result.stderr
    assert not result.stderr or prefix
    return result.stdout
