"""What was found not to be finite: rows, in the order in which places were first seen."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, Final

from hookline.core.calls import Call, Pass
from hookline.core.records import NonFiniteRow
from hookline.hooks.finite import Found
from hookline.hooks.subject import Subject, subject_of

PRODUCER: Final = "producer"
PROPAGATOR: Final = "propagator"
BAD_PARAMETER: Final = "bad parameter"

_PLACE: Final = attrgetter(*Subject._fields, "verdict")


@dataclass(slots=True)
class Finding:
    """A row that goes on counting.

    Attributes:
        row: the first time in full.
        times: how often it was seen since.
        skipped: whether an AMP scaler skipped the step, once that is known.
    """

    row: NonFiniteRow
    times: int = 1
    skipped: bool | None = None

    @property
    def is_origin(self) -> bool:
        """Whether this is where it came up."""
        return self.row.verdict != PROPAGATOR


class Findings:
    """The findings of one hook, one for each place, direction and verdict.

    Attributes:
        latest: for each direction, the pass in which something was last found.
    """

    def __init__(self) -> None:
        self._found: dict[tuple[object, ...], Finding] = {}
        self._lock = threading.RLock()  # the collector may remove the hook while it is held
        self.latest: dict[str, Pass] = {}

    def add(self, call: Call, row: NonFiniteRow) -> tuple[Finding, bool]:
        """Count a finding; gives it, and whether the place is new."""
        key = _PLACE(row)
        with self._lock:
            self.latest[row.direction] = call.running
            finding = self._found.get(key)
            if finding is not None:
                finding.times += 1
                return finding, False
            finding = self._found[key] = Finding(row)
            return finding, True

    def __len__(self) -> int:
        return len(self._found)

    def rows(self) -> list[NonFiniteRow]:
        """All findings, in order."""
        with self._lock:
            found = list(self._found.values())
        return [replace(f.row, times=f.times, skipped=f.skipped) for f in found]

    @property
    def times(self) -> int:
        """How often anything was found."""
        with self._lock:
            return sum(finding.times for finding in self._found.values())

    def reset(self) -> None:
        """Forget all."""
        with self._lock:
            self._found.clear()
            self.latest.clear()


def row_of(
    call: Any, direction: str, why: tuple[str, str], leaf: str, found: Found, scale: float | None
) -> NonFiniteRow:
    """The row of one finding.

    Args:
        call: the call.
        direction: of the call.
        why: verdict and cause.
        leaf: the tensor's path.
        found: what is wrong with it.
        scale: the loss scale, if there is one.
    """
    return NonFiniteRow(
        **subject_of(call, direction)._asdict(),
        verdict=why[0],
        cause=why[1],
        leaf=leaf,
        index=call.index,
        pass_number=call.pass_number,
        step=call.step,
        nan=found.nan,
        inf=found.inf,
        shape=found.shape,
        dtype=found.dtype,
        position=found.position,
        scale=scale,
    )


def in_words(row: NonFiniteRow) -> str:
    """One finding as a sentence, for errors and warnings.

    Example:
        >>> where = ("Net", "head", "Linear", "module", "train", "forward")
        >>> row = NonFiniteRow(
        ...     *where, "producer", "", "output", 0, 9, 9, 3, 1, (4, 10), "float32", (0, 7)
        ... )
        >>> print(in_words(row))
        forward of head (Linear) in Net, call 0 in pass 9 (train, step 9): output float32[4, 10]
        has 3 NaN and 1 Inf, first at (0, 7); producer: its inputs and parameters are finite
    """
    if row.level == "function":
        where = row.name if row.path is None else f"{row.path}:{row.name}"
    else:
        where = f"{row.path} ({row.type})" if row.path else row.root
    inside = f" in {row.root}" if row.root and row.path != "" else ""
    scale = "" if row.scale is None else f", loss scale {row.scale:g}"
    return (
        f"{row.direction} of {where}{inside}, call {row.index} in pass {row.pass_number} "
        f"({row.mode}, step {row.step}{scale}): {row.leaf} {row.dtype}{list(row.shape)} "
        f"{_counts(row)}; {row.verdict}: {_reason(row)}"
    )


def _counts(row: NonFiniteRow) -> str:
    if row.nan is None:
        return "is not finite (gone before its values could be counted)"
    counts = [f"{n} {what}" for n, what in ((row.nan, "NaN"), (row.inf, "Inf")) if n]
    first = "" if row.position is None else f", first at {row.position}"
    return f"has {' and '.join(counts)}{first}"


def _reason(row: NonFiniteRow) -> str:
    if row.verdict == BAD_PARAMETER:
        return f"{row.cause} is not finite"
    if row.verdict == PROPAGATOR:
        return f"it came from {row.cause}" if row.cause else "what it was given is not finite"
    if row.direction == "backward":
        return "the gradient that it was given is finite"
    return "its inputs and parameters are finite"
