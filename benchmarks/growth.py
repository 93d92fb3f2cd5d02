"""How cost grows with the number of hooks, modules, nested calls, passes and threads.

Prints a table in Markdown: `python -m benchmarks.growth`. Linear growth shows as a constant figure.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from time import thread_time

import torch
from torch import nn

import hookline
from benchmarks.works import observe
from hookline.module_hooks import TimerHook

_SIZES = {
    "hooks": (1, 4, 16, 64),
    "modules": (10, 100, 1_000, 10_000),
    "depth": (1, 10, 50, 100),
    "passes": (10, 100, 1_000),
    "threads": (1, 2, 4, 8),
}


def fastest(run: Callable[[], object], rounds: int = 7) -> float:
    """The least thread time of several runs, in microseconds."""
    times: list[float] = []
    for _ in range(rounds):
        begin = thread_time()
        run()
        times.append(thread_time() - begin)
    return min(times) * 1e6


def hooks(count: int) -> float:
    """Microseconds a hook and call: one module with many hooks."""
    layer = nn.Identity()
    with ExitStack() as stack:
        for _ in range(count):
            stack.enter_context(hookline.register_forward_hook(layer, observe))
        return fastest(lambda: [layer(1) for _ in range(200)]) / 200 / count


def modules(count: int) -> float:
    """Microseconds a module: set-up and removal of a watch on so many."""
    model = nn.Sequential(*[nn.Identity() for _ in range(count)])
    return fastest(lambda: hookline.watch(model, TimerHook()).close(), 3) / count


def depth(count: int) -> float:
    """Microseconds a call: so many modules inside each other, forward and backward."""
    model: nn.Module = nn.ReLU()
    for _ in range(count - 1):
        model = nn.Sequential(model)
    x = torch.ones(2, requires_grad=True)
    with TimerHook():
        return fastest(lambda: [model(x).sum().backward() for _ in range(5)]) / 5 / count


def passes(count: int) -> float:
    """Microseconds a call: the last of so many passes under one timer."""
    model, x = nn.Sequential(*[nn.Identity() for _ in range(10)]), torch.zeros(2)
    with TimerHook():
        for _ in range(count):
            model(x)
        return fastest(lambda: model(x)) / 11


def threads(count: int) -> float:
    """Microseconds a call: in so many threads at once, each with a scope of its own."""
    times: list[float] = []

    def work() -> None:
        layer = nn.Identity()
        with TimerHook():
            times.append(fastest(lambda: [layer(1) for _ in range(300)]) / 300)

    running = [threading.Thread(target=work) for _ in range(count)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    return sum(times) / count


def rows() -> Iterator[str]:
    """The lines of the table."""
    yield "| what grows | a figure is | at each size |\n|---|---|---|"
    for grown in (hooks, modules, depth, passes, threads):
        sizes = _SIZES[grown.__name__]
        figures = ", ".join(f"{size:,}: {grown(size):.1f}" for size in sizes)
        yield f"| {grown.__name__} | {grown.__doc__} | {figures} |"


if __name__ == "__main__":
    torch.set_num_threads(1)
    for row in rows():
        print(row, flush=True)
