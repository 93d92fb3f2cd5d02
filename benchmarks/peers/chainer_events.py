"""What a function takes in Chainer, and what hooks of its own add. Knows no torch.

Run by a Python that has Chainer (`requirements-chainer.txt`): prints microseconds a function,
forward and backward, one sample of each way a round, as JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import nullcontext
from time import thread_time

import chainer
import numpy as np
from chainer.function_hooks import TimerHook

LENGTH, REPEAT = 50, 20


class Empty(chainer.FunctionHook):
    """All four callbacks, as they are: they do nothing."""

    name = "Empty"


def multiplications() -> None:
    """A chain of multiplications of four numbers, forward and backward."""
    weight, x = chainer.Variable(np.ones(4, "f")), np.ones(4, "f")
    value = weight
    for _ in range(LENGTH):
        value = value * x
    chainer.functions.sum(value).backward()
    if weight.grad is None:
        msg = "the backward did not run"
        raise AssertionError(msg)


def sample(hook: Callable[[], object]) -> float:
    """Microseconds a function, forward and backward."""
    with hook():
        multiplications()
        begin = thread_time()
        for _ in range(REPEAT):
            multiplications()
        return (thread_time() - begin) / REPEAT / (LENGTH + 1) * 1e6


def main(rounds: int) -> None:
    """Measure, a sample of each in every round."""
    ways: dict[str, Callable[[], object]] = {
        "plain": nullcontext,
        "an empty FunctionHook": Empty,
        "TimerHook": TimerHook,
    }
    samples: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, hook in ways.items():
            samples[name].append(sample(hook))
    versions = {"chainer": chainer.__version__, "numpy": np.__version__}
    print(json.dumps({"versions": versions, "samples": samples}))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 15)
