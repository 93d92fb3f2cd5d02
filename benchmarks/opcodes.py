"""How many instructions of Python's hookline takes for one call on each of its hottest paths.

Free of noise, so that a slow-down is noticed in review without a timed test: `tests/benchmarks`
compares with `opcodes.json`. Counted are the instructions in hookline's own files, by the
difference of two chains, so that what comes once a pass drops out.

`python -m benchmarks.opcodes` prints a table, and with `--write` makes these the figures to compare
with.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import nn

import hookline
from benchmarks.works import (
    FunctionsBoth,
    FunctionsForward,
    Watching,
    WatchingBackward,
    observe,
    on_each,
)

REFERENCE = Path(__file__).with_name("opcodes.json")
VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"
_OURS = str(Path(hookline.__file__).parent)
_SHORT, _LONG = 5, 15

Path_ = Callable[[int], tuple[AbstractContextManager[object], Callable[[], object]]]
"""Gives, for a number of calls, what is on and what is run."""


def _modules_nobody_watches(count: int) -> Any:
    model, x = nn.Sequential(*[nn.Identity() for _ in range(count)]), torch.zeros(2)
    watched = [nn.Identity()]
    registered = on_each(watched, lambda m: hookline.register_forward_hook(m, observe))
    return registered(), lambda: model(x)


def _forward_hook(count: int) -> Any:
    model, x = nn.Sequential(*[nn.Identity() for _ in range(count)]), torch.zeros(2)
    registered = on_each(model, lambda m: hookline.register_forward_hook(m, observe))
    return registered(), lambda: model(x)


def _module_scope(count: int) -> Any:
    model, x = nn.Sequential(*[nn.Identity() for _ in range(count)]), torch.zeros(2)
    return Watching(), lambda: model(x)


def _module_backward(count: int) -> Any:
    model, x = nn.Sequential(*[nn.ReLU() for _ in range(count)]), torch.ones(2, requires_grad=True)
    return WatchingBackward(), lambda: model(x).sum().backward()


def _function_forward(count: int) -> Any:
    x = torch.ones(2)
    return FunctionsForward(), lambda: [torch.add(x, x) for _ in range(count)]


def _function_both(count: int) -> Any:
    weight, x = torch.ones(2, requires_grad=True), torch.ones(2)

    def run() -> None:
        value = weight
        for _ in range(count):
            value = value * x
        value.sum().backward()

    return FunctionsBoth(), run


PATHS: dict[str, Path_] = {
    "a module that nobody watches, while hooks are on": _modules_nobody_watches,
    "a forward hook on the module": _forward_hook,
    "a ModuleHook scope, begin and end": _module_scope,
    "a ModuleHook scope, forward and backward": _module_backward,
    "a FunctionHook, forward": _function_forward,
    "a FunctionHook, forward and backward": _function_both,
}


def count_run(run: Callable[[], object]) -> int:
    """The instructions in hookline's files that one run takes."""
    total = 0

    def local(frame: FrameType, event: str, _: object) -> Any:
        nonlocal total
        total += event == "opcode"
        return local

    def enter(frame: FrameType, event: str, _: object) -> Any:
        if not frame.f_code.co_filename.startswith(_OURS):
            return None
        # Python 3.13 tells of a frame's instructions only where it has a trace function already.
        frame.f_trace, frame.f_trace_lines, frame.f_trace_opcodes = local, False, True
        return local

    before = sys.gettrace()
    sys.settrace(enter)
    try:
        run()
    finally:
        sys.settrace(before)
    return total


def per_call(path: Path_) -> float:
    """The instructions that one call takes on a path."""
    found: list[int] = []
    for count in (_SHORT, _LONG):
        on, run = path(count)
        with on:
            run()
            run()
            found.append(count_run(run))
    return (found[1] - found[0]) / (_LONG - _SHORT)


def reference() -> dict[str, dict[str, float]]:
    """The figures to compare with, for each version of Python."""
    return json.loads(REFERENCE.read_text(encoding="utf-8"))


def main() -> None:
    """Count, print a table in Markdown, and keep the figures if asked to."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.opcodes", description=__doc__)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    known = reference() if REFERENCE.exists() else {}
    figures = {name: per_call(path) for name, path in PATHS.items()}
    before = known.get(VERSION, {})
    print(f"| Python {VERSION}: instructions a call | now | kept |\n|---|--:|--:|")
    for name, figure in figures.items():
        print(f"| {name} | {figure:g} | {before.get(name, float('nan')):g} |")
    if options.write:
        known[VERSION] = figures
        REFERENCE.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
