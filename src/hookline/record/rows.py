"""What a run keeps besides the rows of its hooks (those are in `core.records`)."""

from __future__ import annotations

import array
import sys
from collections.abc import Iterable
from dataclasses import dataclass

from hookline.core.records import DirectedRow


@dataclass(frozen=True, slots=True)
class RunRow:
    """What a run was, in one process.

    Example:
        >>> row = RunRow("a1", ("train.py",), "running", 1_700_000_000.0, 1_700_000_001.0)
        >>> row.program, row.seconds
        (('train.py',), 1.0)
    """

    id: str
    """The same for all processes of a run."""
    program: tuple[str, ...]
    """The program and its arguments."""
    state: str
    """`"running"`, `"finished"`, `"failed"` (an error ended it) or `"interrupted"` (Ctrl-C). A file
    that says `running` although no such process is there was left by one that was killed."""
    started: float
    """When it began, in seconds since 1970."""
    updated: float
    """When this file was last written to."""
    error: str = ""
    """What ended it, as a traceback would say it in its last line."""
    options: tuple[str, ...] = ()
    """What was measured, as options of `hookline run`."""
    steps: int = 0
    """The optimizer steps so far."""
    rank: int = 0
    """Which process of the run this is."""
    ranks: int = 1
    """How many processes the run has."""
    process: int = 0
    """The number of the process on its machine."""
    host: str = ""
    """The machine."""
    hookline: str = ""
    """The version of hookline."""
    torch: str = ""
    """The version of torch."""
    python: str = ""
    """The version of Python."""
    platform: str = ""
    """The operating system and processor."""

    @property
    def seconds(self) -> float:
        """How long it ran, up to the last time the file was written to."""
        return self.updated - self.started


@dataclass(frozen=True, slots=True)
class ModuleRow:
    """A module of a root, whether it was called or not, in the order of `named_modules()`.

    Example:
        >>> ModuleRow("Net", "head", "Linear", 1, 330).path
        'head'
    """

    root: str
    """The root's name."""
    path: str
    """The path; `""` for the root itself."""
    type: str
    """The class name."""
    place: int
    """Its place in the order of `named_modules()`."""
    parameters: int
    """How many numbers its own parameters hold, those of modules in it left out."""


@dataclass(frozen=True, slots=True)
class PassRow:
    """How many passes of a root there were in one mode.

    Example:
        >>> PassRow("Net", "train", 60, 59).passes
        60
    """

    root: str
    """The root's name."""
    mode: str
    """`"train"`, `"eval"` or `"no_grad"`."""
    passes: int
    """How many."""
    last: int
    """The number of the last, counted over all modes of the root."""


@dataclass(frozen=True, slots=True)
class EventRow(DirectedRow):
    """One call in one direction, in full: for the timeline of a pass.

    Example:
        >>> EventRow(
        ...     "Net", "head", "Linear", "module", "train", "forward", "", 0, 3, 3, 1, 0.5, 0.1
        ... ).index
        0
    """

    name: str
    """The name of the function; `""` for a module."""
    index: int
    """The call index in the pass."""
    pass_number: int
    """The pass of the root."""
    step: int
    """The optimizer steps before it."""
    thread: int
    """The thread whose time it took, numbered from 0; its events are nested intervals."""
    begin: float
    """When it began, in seconds of that thread's time, without what hooks took."""
    duration: float
    """How long it took, in seconds, calls inside it included."""


@dataclass(frozen=True, slots=True)
class SeriesRow:
    """One number over the passes of a root, in at most 256 bins of equal width.

    Example:
        >>> where = ("Net", "head", "", "module", "train", "forward", "output", "norm", 0, 1)
        >>> row = SeriesRow(*where, pack([0.5, 0.25]))
        >>> row.values
        (0.5, 0.25)
    """

    root: str
    """The root's name."""
    path: str | None
    """As in the rows of times or statistics that it belongs to; so are the next five."""
    name: str
    """The function."""
    level: str
    """The level."""
    mode: str
    """The mode."""
    direction: str
    """The direction."""
    leaf: str
    """The tensor; `""` for times."""
    metric: str
    """What it is: `"time"` (seconds a call, mean of the bin), `"norm"` (mean L2 norm), `"abs_max"`
    (largest), `"zero_share"` (mean), `"nonfinite"` (how many values), ..."""
    first: int
    """The pass with which the first bin begins."""
    width: int
    """How many passes are in a bin."""
    packed: bytes
    """The bins as 32-bit floats, little-endian; NaN where there was nothing."""

    @property
    def values(self) -> tuple[float, ...]:
        """The bins; NaN where there was nothing."""
        return tuple(array.array("f", _little(self.packed)))


def pack(values: Iterable[float]) -> bytes:
    """Bins as a `SeriesRow` holds them.

    Example:
        >>> pack([0.5]).hex()
        '0000003f'
    """
    return _little(array.array("f", values).tobytes())


def _little(packed: bytes) -> bytes:
    """Numbers of this machine in the file's order of bytes, and back."""
    if sys.byteorder == "little":
        return packed
    numbers = array.array("f", packed)
    numbers.byteswap()
    return numbers.tobytes()


@dataclass(frozen=True, slots=True)
class FaultRow:
    """Something that went wrong in hookline itself, or that could not be done; the program went on.

    Example:
        >>> FaultRow("--where 'encodr' matched nothing").text
        "--where 'encodr' matched nothing"
    """

    text: str
    """What happened, with a traceback where there is one."""
