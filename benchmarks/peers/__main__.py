"""Measure hookline beside other tools on the same work, print tables in Markdown, keep them.

Each tool is measured in a process of its own, with torch's hooks and hookline beside it in the same
rounds: some change torch for as long as the process lives.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

from benchmarks.machine import about
from benchmarks.peers.chainers import beside_chainer
from benchmarks.peers.tables import report
from benchmarks.peers.tools import GROUPS, installed, missing

# Whether glibc gives memory back and fetches it anew is chance, and dearer than any hook.
_KEEP_MEMORY = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(2**33),
    "MALLOC_TOP_PAD_": str(2**28),
}


def _measured(group: str, rounds: int, folder: Path) -> dict | None:
    """What a process of its own found out about a tool; None where it failed, which is told."""
    result = folder / f"peers-{group}.json"
    command = ["-W", "ignore", "-m", "benchmarks.peers.one", group, str(rounds), str(result)]
    done = subprocess.run(
        [sys.executable, *command],
        check=False,
        capture_output=True,
        encoding="utf-8",
        env=os.environ | _KEEP_MEMORY,
    )
    if done.returncode:
        print(f"{group} failed and is left out:\n{done.stderr}", file=sys.stderr)
        return None
    found = json.loads(result.read_text(encoding="utf-8"))
    result.unlink()
    return found


def main() -> None:
    """Run the benchmarks."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    parser.add_argument("--only", choices=GROUPS, action="append", help="this tool (repeatable)")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--output", type=Path, default=Path(".benchmarks"))
    parser.add_argument("--chainer", metavar="PYTHON", help="a Python that has Chainer")
    options = parser.parse_args()
    options.output.mkdir(exist_ok=True)
    absent = missing()
    for name in absent:
        print(f"{name} is not installed and left out", file=sys.stderr)
    groups = [group for group in installed() if not options.only or group in options.only]
    told = about(*(GROUPS[group][1] for group in groups if GROUPS[group][1] != "torch"))
    found = [each for group in groups if (each := _measured(group, options.rounds, options.output))]
    chainer = beside_chainer(options.chainer, options.rounds) if options.chainer else {}
    text = report(told, found, chainer, absent)
    (options.output / "peers.md").write_text(text, encoding="utf-8")
    kept = {"about": told, "missing": absent, "tools": found, "chainer": chainer}
    (options.output / "peers.json").write_text(json.dumps(kept, indent=1), encoding="utf-8")
    sys.stdout.write(text)


if __name__ == "__main__":
    main()
