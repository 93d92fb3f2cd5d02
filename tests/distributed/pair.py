"""Two processes that run the same checks together, each with what it found.

A module of checks has functions `check_*()`, called in order in both processes of one group
(gloo, on the CPU). The first that fails in a process ends it, and the other then fails at its next
collective operation, so nobody waits for long.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import traceback
from collections.abc import Iterator
from datetime import timedelta
from importlib import import_module
from pathlib import Path

import torch
import torch.distributed as dist

ROOT = Path(__file__).parents[2]
LIMIT = 600.0
"""Seconds after which both processes are killed."""

Found = dict[str, str]
"""For each check that ended `"ok"`, or the traceback of its failure."""


def names(checks: str) -> list[str]:
    """The names of a module's checks, in order."""
    return [name for name in vars(import_module(checks)) if name.startswith("check_")]


def run_pair(checks: str, folder: Path) -> list[Found]:
    """Run a module's checks in two processes; gives what each found."""
    command = [sys.executable, "-W", "error", "-m", __name__, checks, str(folder)]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "WORLD_SIZE": "2"}
    with contextlib.ExitStack() as stack:
        logs = [stack.enter_context((folder / f"log.{rank}").open("w+")) for rank in range(2)]
        pair = [
            subprocess.Popen(
                command, cwd=ROOT, env={**env, "RANK": str(rank)}, stdout=log, stderr=log
            )
            for rank, log in enumerate(logs)
        ]
        try:
            for process in pair:
                process.wait(LIMIT)
        finally:
            for process in pair:
                process.kill()
                process.wait()
        return [_read(folder / f"found.{rank}", log) for rank, log in enumerate(logs)]


def _read(file: Path, log) -> Found:
    log.seek(0)
    found = json.loads(file.read_text()) if file.exists() else {}
    return {**found, "log": log.read()}


@contextlib.contextmanager
def group(folder: Path) -> Iterator[None]:
    """The process group, met through a file: no port can be taken."""
    store = dist.FileStore(str(folder / "store"), 2)
    rank = int(os.environ["RANK"])
    dist.init_process_group(
        "gloo", store=store, rank=rank, world_size=2, timeout=timedelta(seconds=600)
    )
    yield
    dist.destroy_process_group()


def main() -> None:
    checks, folder = import_module(sys.argv[1]), Path(sys.argv[2])
    found: Found = {}
    torch.set_num_threads(1)
    with group(folder):
        for name in names(sys.argv[1]):
            try:
                getattr(checks, name)()
                found[name] = "ok"
            except BaseException:  # noqa: BLE001 - the test that waits for it tells of it
                found[name] = traceback.format_exc()
            (folder / f"found.{dist.get_rank()}").write_text(json.dumps(found))
            if found[name] != "ok":
                os._exit(1)  # what the other waits for will never come: let it know


if __name__ == "__main__":
    main()
