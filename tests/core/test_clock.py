"""A thread's clock that stands still while hooks run."""

import pytest

from hookline.core import clock as clock_module
from hookline.core.clock import Clock


class Time:
    """The time that the clock is given, in nanoseconds."""

    def __init__(self):
        self.now = 1_000

    def __call__(self):
        return self.now


@pytest.fixture
def time(monkeypatch):
    time = Time()
    monkeypatch.setattr(clock_module, "perf_counter_ns", time)
    return time


def test_a_reading_is_the_time_at_the_freeze(time):
    """While an event runs, every hook reads the time at which it began."""
    clock = Clock()
    clock.freeze()
    time.now += 500
    assert clock.now == 1_000
    clock.thaw()


def test_the_time_that_hooks_take_does_not_count(time):
    """Of the time between two events, only what the program took counts."""
    clock = Clock()
    readings = []
    for programs, hooks in [(10, 1_000), (20, 5_000), (30, 0)]:
        time.now += programs
        clock.freeze()
        readings.append(clock.now)
        time.now += hooks
        clock.thaw()

    assert readings == [1_010, 1_030, 1_060]


def test_only_the_last_thaw_lets_it_go_on(time):
    """Events inside of events do not start the clock again, nor change its reading."""
    clock = Clock()
    clock.freeze()
    time.now += 100
    clock.freeze()
    time.now += 100
    assert clock.now == 1_000
    clock.thaw()
    time.now += 100
    clock.thaw()

    time.now += 7
    clock.freeze()
    assert clock.now == 1_007
    clock.thaw()


def test_clocks_do_not_share_their_time(time):
    """Each thread has a clock of its own."""
    one, other = Clock(), Clock()
    one.freeze()
    time.now += 100
    one.thaw()
    for clock in (one, other):
        clock.freeze()

    assert (one.now, other.now) == (1_000, 1_100)


def test_the_real_time_goes_forward():
    """Readings never go back, hooks or not."""
    clock = Clock()
    readings = []
    for _ in range(100):
        clock.freeze()
        readings.append(clock.now)
        clock.thaw()

    assert readings == sorted(readings)
