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
WITH_POINTS = (interrupted, signalled)
FAULTS = (BoomError, RuntimeError, KeyboardInterrupt)


class Cycles:
    """The cycles so far: how many of each kind there were, what came out of them, what was left.

    Args:
        number: where the random numbers start.
        signals: whether real signals are among what goes wrong.
    """

    def __init__(self, number, *, signals):
        self.chance = random.Random(number)
        self.kinds = KINDS if signals else KINDS[:-1]
        self.points = {scenario: interrupts.points_of(scenario) for scenario in SCENARIOS}
        self.plain = [tensor.clone() for tensor in interrupts.step()]
        self.ran, self.came_out = Counter(), Counter()
        self.missed = self.of_torch = 0

    def one(self):
        """One cycle, after which nothing of ours is left."""
        (kind,) = self.chance.choices(self.kinds, WEIGHTS[: len(self.kinds)])
        self.ran[kind.__name__] += 1
        try:
            kind(self.chance, self.points) if kind in WITH_POINTS else kind(self.chance)
        except FAULTS as error:
            self.came_out[type(error).__name__] += 1
        if kind is signalled:
            self.of_torch += take_out_torchs()
        if left():
            assert kind is signalled, left()  # a `with` is left just when the signal comes
            self.missed += 1
            tidy()

    def compare(self):
        """The model gives bitwise what it gave at first."""
        got = interrupts.step()
        assert all(torch.equal(a, b) for a, b in zip(got, self.plain, strict=True))

    def __str__(self):
        return "\n".join(
            [
                "cycles: " + ", ".join(f"{name} {times}" for name, times in self.ran.items()),
                "came out: " + ", ".join(f"{name} {n}" for name, n in self.came_out.items()),
                f"{self.missed} signals came just where a with block was left",
                f"{self.of_torch} just where torch puts its checkpoint hooks on or takes them off",
            ]
        )


def take_out_torchs() -> bool:
    """Take off what torch's own checkpoint left on; hookline puts on nothing of the kind.

    Where Ctrl-C comes as its `with` for saved tensors is entered or left, its hooks stay on, with
    and without hookline, and all that is saved from then on counts to the one checkpoint.
    """
    found = False
    while _saved_tensor_hooks(True) is not None:
        torch._C._autograd._pop_saved_tensors_default_hooks()
        found = True
    return found


_saved_tensor_hooks = torch._C._autograd._top_saved_tensors_default_hooks


def run_cycles(*, count: int, number: int = 0, signals: bool = True) -> str:
    """Run so many cycles; gives the figures in words.

    Args:
        count: how many.
        number: where the random numbers start.
        signals: whether real signals are among what goes wrong.
    """
    cycles = Cycles(number, signals=signals)
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    looks = {count * share // 100 for share in (2, 20, 60, 80, 100)}
    figures = []
    try:
        for cycle in range(1, count + 1):
            cycles.one()
            if cycle % 50 == 0:
                cycles.compare()
            if cycle in looks:
                figures.append((cycle, *_figures()))
    finally:
        signal.signal(signal.SIGALRM, before)
    _, *early = figures[-3]
    _, *late = figures[-1]
    assert late[0] - early[0] < 2000, f"allocated blocks grew: {figures}"
    assert late[1] - early[1] < 500, f"objects grew: {figures}"
    assert len(local.thread.passes) <= 64
    lines = [f"{c}: {b} blocks, {o} objects, {r / 1e6:.0f} MB resident" for c, b, o, r in figures]
    return "\n".join([*lines, str(cycles)])


def _figures() -> tuple[int, int, int]:
    """Allocated blocks, objects, and resident bytes."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    resident = pages * os.sysconf("SC_PAGESIZE")
    return sys.getallocatedblocks(), len(gc.get_objects()), resident
