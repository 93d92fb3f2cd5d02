"""Registering, running and removing tens of thousands of times, with faults at random.

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
import sys
import time
from collections import Counter
from contextlib import suppress
from functools import partial
from pathlib import Path

import torch

import hookline
from hookline.core.thread import local
from tests.soak import interrupts
from tests.soak.interrupts import NET, ONES, SCENARIOS, FunctionLog, Log, Points, X, left, tidy


class BoomError(Exception):
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
            raise BoomError(where)


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
        raise BoomError

    with Log(), FunctionLog():
        out = NET(X)
        out.register_hook(fail)
        out.backward(ONES)


def one_hook(random):
    """A hook of any manner on one layer, which may raise."""
    layer, fails = NET.first, random.choice([True, False, False])

    def hook(*_):
        if fails:
            raise BoomError

    def run():
        layer(X).backward(ONES)

    kind = random.randrange(8)
    name = CALLBACKS[random.randrange(len(CALLBACKS))] if fails else "never"
    if kind < len(REGISTER):
        with REGISTER[kind](layer, hook):
            run()
    elif kind == 4:
        wrapper, hooks = hookline.with_hooks(layer)
        with hooks.add(random.randrange(3), hook):
            wrapper(X).backward(ONES)
    elif kind == 5:
        hookline.add_hook(layer, FaultyModule(name))
        try:
            run()
        finally:
            hookline.delete_hook(layer, "FaultyModule")
    else:
        with (FaultyModule if kind == 6 else FaultyFunction)(name):
            run()


REGISTER = (
    partial(hookline.register_forward_pre_hook, with_kwargs=False),
    partial(hookline.register_forward_hook, with_kwargs=False),
    hookline.register_full_backward_pre_hook,
    hookline.register_full_backward_hook,
)


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


KINDS = (one_hook, failing_hook, failing_model, failing_backward, interrupted, signalled)
WEIGHTS = (75, 5, 5, 5, 5, 5)


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
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    figures = []
    missed, ran = 0, Counter()
    try:
        for cycle in range(count):
            (kind,) = chance.choices(KINDS, WEIGHTS)
            if kind is signalled and not signals:
                kind = one_hook
            with suppress(BoomError, RuntimeError, KeyboardInterrupt):
                kind(chance, points) if kind in (interrupted, signalled) else kind(chance)
            ran[kind.__name__] += 1
            if left():
                assert kind is signalled, left()  # a `with` is left just when the signal comes
                missed += 1
                tidy()
            if cycle % 50 == 0:
                got = interrupts.step()
                assert all(torch.equal(a, b) for a, b in zip(got, plain, strict=True))
            if cycle % max(1, count // 10) == max(1, count // 10) - 1:
                figures.append(_figures())
    finally:
        signal.signal(signal.SIGALRM, before)
    half = len(figures) // 2
    growth = [late - early for early, late in zip(figures[half], figures[-1], strict=True)]
    assert growth[0] < 2000, f"allocated blocks grew by {growth[0]}: {figures}"
    assert growth[1] < 500, f"objects grew by {growth[1]}: {figures}"
    assert len(local.thread.passes) <= 64
    lines = [f"{b} blocks, {o} objects, {r / 1e6:.0f} MB resident" for b, o, r in figures]
    kinds = ", ".join(f"{name} {times}" for name, times in ran.items())
    return "\n".join([*lines, kinds, f"{missed} signals came just where a with block was left"])


def _figures() -> tuple[int, int, int]:
    """Allocated blocks, objects, and resident bytes."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    resident = pages * os.sysconf("SC_PAGESIZE")
    return sys.getallocatedblocks(), len(gc.get_objects()), resident
