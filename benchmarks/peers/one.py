"""Measure one tool, beside torch's hooks and hookline: `python -m benchmarks.peers.one`."""

from __future__ import annotations

import gc
import json
import sys
from dataclasses import asdict
from pathlib import Path

import torch

from benchmarks.machine import load
from benchmarks.peers.tool import Tool
from benchmarks.peers.tools import ours, raw, tools
from benchmarks.peers.works import PIECES, keeps
from benchmarks.runner import Figure, measure


def figures(looked_at: list[Tool], beside: list[Tool], rounds: int) -> list[Figure]:
    """The figures of all pieces of work in which a tool takes part."""
    found: list[Figure] = []
    for piece in PIECES:
        if any(piece.done_by(tool) for tool in looked_at):
            work = piece.build([*beside, *looked_at])
            gc.collect()
            gc.freeze()  # what some tool imported is no business of the others
            found += measure(work, rounds)
    return found


def main(group: str, rounds: str, result: str) -> None:
    """Measure, and keep as JSON."""
    torch.set_num_threads(1)
    beside, looked_at = [tool() for tool in (*raw.TOOLS, *ours.TOOLS)], tools(group)
    before = load()
    rows = [asdict(figure) for figure in figures(looked_at, beside, int(rounds))]
    found = {
        "group": group,
        "tools": [tool.name for tool in looked_at],
        "load": [before, load()],
        "keeps": {tool.name: keeps(tool) for tool in (*beside, *looked_at)},
        "remarks": [tool.remark for tool in looked_at if tool.remark],
        "figures": rows,
    }
    Path(result).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
