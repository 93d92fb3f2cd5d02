"""Registering, running and removing tens of thousands of times, with something going wrong at random.

Every cycle is one of the scenarios of `interrupts`. In it an error is raised by a hook, by `added`
or `deleted`, by the model, by its backward, or Ctrl-C comes: at a random point of our own code, or
as a real signal at a random moment. Memory stays flat, nothing is left behind, and the model gives
bitwise what it gave at first.
"""

from __future__ import annotations

import gc
import os
import random
import signal
import time
import tracemalloc
from pathlib import Path

import torch

from hookline.core.thread import local
from tests.soak import interrupts
from tests.soak.interrupts import NET, ONES, SCENARIOS, FunctionLog, Log, Points, left, tidy, X


class Boom(Exception):
    """What goes wrong on purpose."""


class Faulty:
    """A hook object that raises in one of its callbacks."""

    def __init__(self, where):
        super().__init__()
        self.where = where

    def added(self, target):
        self.fail("added")

    def deleted(self, target):
        self.fail("deleted")

    def forward_preprocess(self, *told):
        self.fail("forward_pre")

    def forward_postprocess(self, *told):
        self.fail("forward")

    def backward_preprocess(self, *told):
        self.fail("backward_pre")

    def backward_postprocess(self, *told):
        self.fail("backward")

    def fail(self, where):
        if where == self.where:
            raise Boom(where)


class FaultyModule(Faulty, Log):
    """The same of modules."""


class FaultyFunction(Faulty, FunctionLog):
    """The same of functions."""


CALLBACKS = ("added", "deleted", "forward_pre", "forward", "backward_pre", "backward")


def failing_hook(random):
    kind = random.choice([FaultyModule, FaultyFunction])
    with FunctionLog(), Log(), kind(random.choice(CALLBACKS)):
        interrupts.step()


def failing_model(random):
    with Log(), FunctionLog():
        NET(torch.ones(2, random.choice([1, 2, 4])))


def failing_backward(random):
    def fail(_):
        raise Boom

    with Log(), FunctionLog():
        out = NET(X)
        out.register_hook(fail)
        out.backward(ONES)


def interrupted(random, points):
    scenario = random.choice(SCENARIOS)
    Points(random.randrange(1, points[scenario] + 1)).run(lambda: scenario([]))


def signalled(random, points):
    """Ctrl-C as the system sends it, at some moment of a scenario or just before or after it."""
    scenario = random.choice(SCENARIOS)
    try:
        signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-5, 0.005))
        scenario([])
        time.sleep(0.006)
    except KeyboardInterrupt:
        pass
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def run_cycles(*, count: int, number: int = 0, signals: bool = True) -> str:
    """Run so many cycles; gives the figures in words.

    Args:
        count: how many.
        number: where the random numbers start.
        signals: whether real signals are among what goes wrong.
    """
    chance = random.Random(number)
    points = {scenario: interrupts.points_of(scenario) for scenario in SCENARIOS}
    plain = interrupts.step()
    kinds = [failing_hook, failing_model, failing_backward]
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    figures = []
    missed = 0
    tracemalloc.start()
    try:
        for cycle in range(count):
            kind = chance.randrange(6)
            try:
                if kind < len(kinds):
                    kinds[kind](chance)
                elif kind == 3:
                    interrupted(chance, points)
                elif kind == 4 and signals:
                    signalled(chance, points)
                else:
                    chance.choice(SCENARIOS)([])
            except (Boom, RuntimeError):
                pass
            except KeyboardInterrupt:  # came just after the scenario
                pass
            if left():
                assert kind == 4, left()  # where a `with` is left just when the signal comes
                missed += 1
                tidy()
            if cycle % 50 == 0:
                got = interrupts.step()
                assert all(torch.equal(a, b) for a, b in zip(got, plain, strict=True))
            if cycle % max(1, count // 10) == max(1, count // 10) - 1:
                figures.append(_figures())
    finally:
        tracemalloc.stop()
        signal.signal(signal.SIGALRM, before)
    half = len(figures) // 2
    growth = [late - early for early, late in zip(figures[half], figures[-1], strict=True)]
    assert growth[0] < 200_000, f"traced memory grew by {growth[0]} bytes: {figures}"
    assert growth[1] < 500, f"objects grew by {growth[1]}: {figures}"
    assert len(local.thread.passes) <= 64
    lines = [f"{t / 1e6:.2f} MB traced, {o} objects, {r / 1e6:.0f} MB resident" for t, o, r in figures]
    return "\n".join([*lines, f"{missed} signals came just where a with block was left"])


def _figures() -> tuple[int, int, int]:
    """Traced bytes, objects, and resident bytes."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return tracemalloc.get_traced_memory()[0], len(gc.get_objects()), pages * os.sysconf("SC_PAGESIZE")
