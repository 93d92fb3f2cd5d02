"""Chainer's own function hooks, measured in a Python that has Chainer."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import torch

from benchmarks.runner import figures_of, measure
from benchmarks.works import function_hooks_both

_SCRIPT = Path(__file__).with_name("chainer_events.py")


def _fails(python: str, code: str) -> bool:
    done = subprocess.run([python, "-c", code], check=False, stderr=subprocess.DEVNULL)
    return done.returncode != 0


def beside_chainer(python: str, rounds: int) -> dict[str, object]:
    """Chainer's versions, and the figures of its hooks and of hookline's on the same chain.

    Nothing, which is told, where Chainer is not to be had.

    Args:
        python: a Python in whose environment Chainer is.
        rounds: how many samples of each.
    """
    if not Path(python).exists() or _fails(python, "import chainer"):
        print(f"{python} has no Chainer, which is left out", file=sys.stderr)
        return {}
    torch.set_num_threads(1)
    command = [python, "-W", "ignore", str(_SCRIPT), str(rounds)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, encoding="utf-8")
    told = json.loads(done.stdout)
    figures = [*figures_of("Chainer", told["samples"]), *measure(function_hooks_both(), rounds)]
    return {"versions": told["versions"], "figures": [asdict(figure) for figure in figures]}
