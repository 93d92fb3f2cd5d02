"""How cost grows with the number of hooks, modules, nested calls, passes and threads.

Prints a table in Markdown, and draws it: `python -m benchmarks.growth --plot growth.svg`.
"""

from __future__ import annotations

import argparse
import gc
import random
import tempfile
import threading
import tracemalloc
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
from time import thread_time

import torch
from torch import nn

import hookline
from benchmarks.machine import about, sentence
from benchmarks.models import tiny
from benchmarks.works import observe
from hookline.module_hooks import NonFiniteHook, TimerHook


@dataclass(frozen=True, slots=True)
class Growing:
    """Something whose cost is looked at for several sizes.

    Attributes:
        name: what grows.
        unit: what a figure is.
        sizes: how far it grows.
        sample: measures one figure for a size.
        timed: whether figures are times, which need several rounds.
    """

    name: str
    unit: str
    sizes: tuple[int, ...]
    sample: Callable[[int], float]
    timed: bool = True


@dataclass(frozen=True, slots=True)
class Point:
    """What was measured for a size: median and quartiles over the rounds."""

    size: int
    figure: float
    low: float
    high: float


def _microseconds(run: Callable[[], object], times: int) -> float:
    run()
    begin = thread_time()
    for _ in range(times):
        run()
    return (thread_time() - begin) / times * 1e6


def _hooks(count: int) -> float:
    layer = nn.Identity()
    with ExitStack() as stack:
        for _ in range(count):
            stack.enter_context(hookline.register_forward_hook(layer, observe))
        return _microseconds(lambda: layer(1), 200)


def _modules(count: int) -> float:
    model, hook = tiny(count), hookline.ModuleHook()
    gc.collect()
    gc.freeze()  # how long the collector looks through the model itself is another matter
    try:
        return _microseconds(lambda: hookline.watch(model, hook).close(), max(1, 200 // count))
    finally:
        gc.unfreeze()


def _depth(count: int) -> float:
    model: nn.Module = nn.ReLU()
    for _ in range(count - 1):
        model = nn.Sequential(model)
    x = torch.ones(2, requires_grad=True)
    with TimerHook():
        return _microseconds(lambda: model(x).sum().backward(), max(1, 50 // count))


def _passes(count: int) -> float:
    model, x = tiny(10), torch.zeros(2)
    with TimerHook():
        for _ in range(count):
            model(x)
        return _microseconds(lambda: model(x), 20)


def _threads(count: int) -> float:
    times: list[float] = []

    def work() -> None:
        layer = nn.Identity()
        with TimerHook():
            times.append(_microseconds(lambda: layer(1), 300))

    running = [threading.Thread(target=work) for _ in range(count)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    return median(times)


def _recorded(count: int, path: Path) -> None:
    model, x = nn.Sequential(*[nn.Linear(4, 4) for _ in range(10)]), torch.zeros(2, 4)
    with hookline.record(path, model):
        for _ in range(count):
            model(x).sum().backward()


def _file_size(count: int) -> float:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.hookline"
        _recorded(count, path)
        return path.stat().st_size / 1024


def _memory(count: int) -> float:
    """What Python holds more at the end of the passes than before the first."""
    model, x = nn.Sequential(*[nn.Linear(4, 4) for _ in range(10)]), torch.zeros(2, 4)
    tracemalloc.start()
    try:
        with TimerHook(), NonFiniteHook(action="record"):
            before, _ = tracemalloc.get_traced_memory()
            for _ in range(count):
                model(x).sum().backward()
            gc.collect()
            return (tracemalloc.get_traced_memory()[0] - before) / 1024
    finally:
        tracemalloc.stop()


GROWING = (
    Growing("hooks on one module", "µs a call", (1, 2, 4, 8, 16, 32, 64), _hooks),
    Growing(
        "modules of a model", "µs, a watch set up and removed", (10, 100, 1_000, 10_000), _modules
    ),
    Growing(
        "modules inside each other",
        "µs, timed forward and backward",
        (1, 2, 5, 10, 20, 50, 100),
        _depth,
    ),
    Growing("threads, each with a scope", "µs a call", (1, 2, 4, 8), _threads),
    Growing("passes before", "µs a pass", (8, 64, 512, 4_096), _passes),
    Growing("passes of a run", "KiB, the file", (8, 64, 512, 4_096), _file_size, timed=False),
    Growing("passes under hooks", "KiB held", (8, 64, 512, 4_096), _memory, timed=False),
)


def measured(growing: Growing, rounds: int) -> list[Point]:
    """Its figures, a sample of each size in every round, in random order."""
    if not growing.timed:
        return [Point(size, *[growing.sample(size)] * 3) for size in growing.sizes]
    samples: dict[int, list[float]] = {size: [] for size in growing.sizes}
    for _ in range(rounds):
        for size in random.sample(growing.sizes, len(growing.sizes)):
            samples[size].append(growing.sample(size))
    return [_point(size, each) for size, each in samples.items()]


def _point(size: int, samples: list[float]) -> Point:
    low, middle, high = quantiles(samples, n=4)
    return Point(size, middle, low, high)


def table(found: dict[Growing, list[Point]]) -> str:
    """The figures as a table in Markdown."""
    lines = ["| what grows | a figure is | at each size |", "|---|---|---|"]
    for growing, points in found.items():
        figures = ", ".join(f"{point.size:,}: {point.figure:,.4g}" for point in points)
        lines.append(f"| {growing.name} | {growing.unit} | {figures} |")
    return "\n".join(lines)


def main() -> None:
    """Measure, print, and draw if asked to."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.growth", description=__doc__)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--plot", type=Path, help="the picture to write, as .svg")
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = {growing: measured(growing, options.rounds) for growing in GROWING}
    print(f"{sentence(about())}\n\n{table(found)}")
    if options.plot:
        from benchmarks.growth_plot import draw

        draw(found, options.plot)


if __name__ == "__main__":
    main()
