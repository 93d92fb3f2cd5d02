"""Measure, print tables in Markdown, and write them and the figures as JSON."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

import torch

from benchmarks.machine import about, load, sentence
from benchmarks.programs import PROGRAMS
from benchmarks.runner import Figure, measure
from benchmarks.whole import starts, tables, whole_programs
from benchmarks.works import WORKS


def table(figures: list[Figure]) -> str:
    """The figures as a Markdown table."""
    lines = ["| work | under | µs a call | quartiles | ratio |", "|---|---|--:|--:|--:|"]
    for figure in figures:
        sign = "" if figure.ratio == 1.0 else "+"
        lines.append(
            f"| {figure.work} | {figure.variant} | {figure.extra:{sign}.2f} "
            f"| {figure.low:.2f} to {figure.high:.2f} | {figure.ratio:.2f} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Run the benchmarks."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "--only", default="", help="works with this in their function's name; `whole_programs`"
    )
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--process-rounds", type=int, default=5, help="of whole processes")
    parser.add_argument("--output", type=Path, default=Path(".benchmarks"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    told = about()
    works = [work for work in (*WORKS, *PROGRAMS) if options.only in work.__name__]
    figures = [figure for work in works for figure in measure(work(), options.rounds)]
    parts = [table(figures)] if figures else []
    programs = starting = []
    if options.only in whole_programs.__name__:
        programs, starting = whole_programs(options.process_rounds), starts(options.process_rounds)
        parts.append(tables(programs, starting))
    told["load"] += f" before, {load()} after"
    text = "\n\n".join([sentence(told), *parts]) + "\n"
    options.output.mkdir(exist_ok=True)
    (options.output / "figures.md").write_text(text, encoding="utf-8")
    kept = {"about": told, "calls": figures, "programs": programs, "starts": starting}
    rows = json.dumps(kept, indent=1, default=asdict)
    (options.output / "figures.json").write_text(rows, encoding="utf-8")
    sys.stdout.write(text)


if __name__ == "__main__":
    main()
