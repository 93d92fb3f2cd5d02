"""Measure, print a table in Markdown, and write it and the figures as JSON."""

from __future__ import annotations

import argparse
import json
import platform
import sys
from dataclasses import asdict
from pathlib import Path

import torch

from benchmarks.programs import PROGRAMS
from benchmarks.runner import Figure, measure
from benchmarks.works import WORKS


def table(figures: list[Figure]) -> str:
    """The figures as a Markdown table."""
    lines = ["| work | under | µs a call | quartiles | ratio |", "|---|---|--:|--:|--:|"]
    for figure in figures:
        sign = "" if figure.ratio == 1.0 else "+"
        lines.append(
            f"| {figure.work} | {figure.variant} | {sign}{figure.extra:.2f} "
            f"| {figure.low:.2f} to {figure.high:.2f} | {figure.ratio:.2f} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Run the benchmarks."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--only", default="", help="works with this in their function's name")
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--output", type=Path, default=Path(".benchmarks"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    works = [work for work in (*WORKS, *PROGRAMS) if options.only in work.__name__]
    figures = [figure for work in works for figure in measure(work(), options.rounds)]
    versions = f"torch {torch.__version__}, Python {platform.python_version()}"
    text = f"{versions}, {platform.processor() or platform.machine()}\n\n{table(figures)}\n"
    options.output.mkdir(exist_ok=True)
    (options.output / "figures.md").write_text(text, encoding="utf-8")
    rows = json.dumps([asdict(figure) for figure in figures], indent=1)
    (options.output / "figures.json").write_text(rows, encoding="utf-8")
    sys.stdout.write(text)


if __name__ == "__main__":
    main()
