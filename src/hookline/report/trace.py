"""The timeline of a run in the format of Chrome's trace viewer and Perfetto.

The format: the "Trace Event Format" of the Chromium project. On one track complete events (`X`)
must nest, so each thread has one track for each direction.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hookline.record.rows import EventRow
from hookline.record.runs import Rank, RunData

_DIRECTIONS = ("forward", "backward")


def write_trace(run: RunData, path: Path) -> None:
    """Write the calls of the first and last passes, a process for each rank."""
    events = [event for rank in run.ranks for event in trace_of(rank)]
    whole = {"traceEvents": events, "displayTimeUnit": "ms"}
    path.write_text(json.dumps(whole), encoding="utf-8")


def trace_of(rank: Rank) -> Iterator[dict[str, Any]]:
    """The events of one process: names of tracks, then the calls, outer ones first."""
    info, rows = rank.info, rank.rows(EventRow)
    yield _named("process_name", info.rank, 0, f"rank {info.rank}: {' '.join(info.program)}")
    for track in sorted({_track(row) for row in rows}):
        thread, direction = divmod(track, 2)
        name = f"thread {thread} {_DIRECTIONS[direction]}"
        yield _named("thread_name", info.rank, track, name)
    # A viewer takes the first of two events that begin at once for the outer one.
    for row in sorted(rows, key=lambda row: (row.begin, -row.duration)):
        yield _call(row, info.rank)


def _track(row: EventRow) -> int:
    # What a checkpoint repeats runs inside of a backward.
    return 2 * row.thread + (row.direction != "forward")


def _call(row: EventRow, rank: int) -> dict[str, Any]:
    begin = round(row.begin * 1e9)
    end = round((row.begin + row.duration) * 1e9)
    return {
        "name": _label(row),
        "cat": f"{row.level},{row.direction},{row.mode}",
        "ph": "X",
        "ts": begin / 1e3,
        "dur": (end - begin) / 1e3,
        "pid": rank,
        "tid": _track(row),
        "args": {
            "root": row.root,
            "type": row.type,
            "direction": row.direction,
            "mode": row.mode,
            "pass": row.pass_number,
            "step": row.step,
            "index": row.index,
        },
    }


def _label(row: EventRow) -> str:
    if row.level == "module":
        return row.path or row.root
    return row.name if row.path is None else f"{row.path}:{row.name}"


def _named(what: str, process: int, track: int, name: str) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": process, "tid": track, "args": {"name": name}}
