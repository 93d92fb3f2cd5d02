"""Troubles people report: timers that measure something else.

The numbers are those of the list of reported troubles that this library was built against.
"""

import threading
import time

import pytest
import torch
from torch import nn

from hookline import HookValueError, ModuleHook, watch
from hookline.function_hooks import TimerHook as FunctionTimerHook
from hookline.hooks import timer as timer_module
from hookline.module_hooks import TimerHook


class Device:
    """A device that works through a queue: launching takes no time, waiting does."""

    def __init__(self):
        self.now, self.done, self.waits = 0, 0, 0

    def launch(self, cost):
        self.now += cost

    def event(self):
        return Event(self)


class Event:
    """Stands in for a CUDA event: its time is that of the queue where it was recorded."""

    def __init__(self, device):
        self.device = device

    def record(self):
        self.time = self.device.now

    def query(self):
        return self.time <= self.device.done

    def synchronize(self):
        if not self.query():
            self.device.waits += 1
            self.device.done = self.time

    def elapsed_time(self, end):
        return end.time - self.time


class Kernel(nn.Module):
    def __init__(self, device, cost):
        super().__init__()
        self.device, self.cost = device, cost

    def forward(self, x):
        self.device.launch(self.cost)
        return x * 1


@pytest.fixture
def device(monkeypatch):
    device = Device()
    monkeypatch.setattr(timer_module, "_new_event", lambda clock: device.event)
    return device


COSTS = [[50, 1, 1], [1, 50, 1], [7], [3, 2, 1, 4, 8]]


@pytest.mark.parametrize("costs", COSTS)
@pytest.mark.parametrize("make", [TimerHook, FunctionTimerHook])
def test_c15_device_time_goes_to_the_layer_that_launched(device, costs, make):
    """Not to that which waits; read late, with one synchronisation for all."""
    model = nn.Sequential(*[Kernel(device, cost) for cost in costs])
    if make is FunctionTimerHook:  # the function itself has to launch
        model = nn.Sequential(*[Launches(device, cost) for cost in costs])
    timer = make()
    with watch(model, timer):
        model(torch.ones(1))
        assert device.waits == 0
    rows = {row.path: row for row in timer.rows()}
    waits = device.waits
    for number, cost in enumerate(costs):
        assert rows[str(number)].total_time * 1e3 == pytest.approx(cost)
    if make is TimerHook:
        assert rows[""].total_time * 1e3 == pytest.approx(sum(costs))
        assert rows[""].self_time == pytest.approx(0)
    assert waits <= len(costs) + 1  # none while the model ran
    timer.rows()
    assert device.waits == waits


class Launch(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, device, cost):
        device.launch(cost)
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None, None


class Launches(Kernel):
    def forward(self, x):
        return Launch.apply(x, self.device, self.cost)


def test_c15_a_clock_that_is_not_there_is_refused():
    """On a CPU, device time cannot be had; nothing else is measured in its place."""
    assert not torch.cuda.is_available()
    with pytest.raises(HookValueError, match="device"):
        TimerHook(clock="device")


@pytest.mark.parametrize("clock", ["auto", "host"])
def test_c15_on_a_cpu_it_is_the_hosts_clock(clock):
    """And rows say which it was."""
    with TimerHook(clock=clock) as timer:
        Sleeps(0.01)(torch.ones(1))
    (row,) = timer.rows()
    assert row.clock == "host"
    assert row.total_time >= 0.01


# Calls inside calls.


class Sleeps(nn.Module):
    def __init__(self, seconds, *inner):
        super().__init__()
        self.seconds, self.inner = seconds, nn.ModuleList(inner)

    def forward(self, x):
        time.sleep(self.seconds)
        for layer in self.inner:
            x = layer(x)
        return x


class Clock:
    """A time that passes only while a module sleeps."""

    def __init__(self, monkeypatch):
        self.now = 0
        monkeypatch.setattr(time, "sleep", self.sleep)
        monkeypatch.setattr(time, "perf_counter_ns", lambda: self.now)

    def sleep(self, seconds):
        self.now += round(seconds * 1e9)


TREES = {
    "two": (lambda: Sleeps(2, Sleeps(3)), {"": (5, 2), "inner.0": (3, 3)}, 5),
    "children": (
        lambda: Sleeps(1, Sleeps(2), Sleeps(4, Sleeps(8))),
        {"": (15, 1), "inner.0": (2, 2), "inner.1": (12, 4), "inner.1.inner.0": (8, 8)},
        15,
    ),
    "chain": (
        lambda: Sleeps(1, Sleeps(1, Sleeps(1, Sleeps(1)))),
        {
            "": (4, 1),
            "inner.0": (3, 1),
            "inner.0.inner.0": (2, 1),
            "inner.0.inner.0.inner.0": (1, 1),
        },
        4,
    ),
}


@pytest.fixture
def clock(monkeypatch):
    from hookline.core import clock as clock_module

    clock = Clock(monkeypatch)
    monkeypatch.setattr(clock_module, "perf_counter_ns", lambda: clock.now, raising=False)
    return clock


@pytest.mark.parametrize("tree", TREES)
def test_c37_inclusive_and_own_times(clock, tree):
    """Own times add up to the whole; the total counts outermost calls only."""
    make, expected, total = TREES[tree]
    with TimerHook() as timer:
        make()(torch.ones(1))
    rows = {row.path: (row.total_time, row.self_time) for row in timer.rows()}
    assert rows == {path: pytest.approx(times) for path, times in expected.items()}
    assert timer.total_time() == pytest.approx(total)
    assert sum(own for _, own in rows.values()) == pytest.approx(total)


def test_c37_a_module_that_calls_itself(clock):
    """Re-entry overwrites nothing."""

    class Again(nn.Module):
        def forward(self, x, depth=3):
            time.sleep(1)
            return self(x, depth - 1) if depth else x

    with TimerHook() as timer:
        Again()(torch.ones(1))
    (row,) = timer.rows()
    assert row.calls == 4
    assert (row.minimum, row.maximum) == pytest.approx((1, 4))
    assert timer.total_time() == pytest.approx(4)


def test_c37_forward_and_backward_are_kept_apart(clock):
    """And the backward's total has no forward in it."""

    class Slow(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            time.sleep(1)
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            time.sleep(10)
            return gradient

    class Layer(nn.Module):
        def forward(self, x):
            return Slow.apply(x)

    with TimerHook() as timer:
        nn.Sequential(Layer(), Layer())(torch.ones(1, requires_grad=True)).backward()
    rows = {(row.path, row.direction): row.total_time for row in timer.rows()}
    assert rows == {
        **{(path, "forward"): pytest.approx(1) for path in "01"},
        **{(path, "backward"): pytest.approx(10) for path in "01"},
        ("", "forward"): pytest.approx(2),
        ("", "backward"): pytest.approx(20),
    }
    assert timer.total_time() == pytest.approx(22)


def test_c37_each_thread_has_a_stack_of_its_own():
    """Calls that overlap in time are not taken for nested ones."""
    inside = threading.Barrier(2)

    class Waits(nn.Module):
        def forward(self, x):
            inside.wait()
            return x

    model, timer = nn.Sequential(Waits()), TimerHook()
    with watch(model, timer):
        threads = [threading.Thread(target=model, args=(torch.ones(1),)) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    rows = {row.path: row for row in timer.rows()}
    assert (rows["0"].calls, rows[""].calls) == (2, 2)
    assert rows[""].total_time >= rows["0"].total_time
    assert timer.total_time() == pytest.approx(rows[""].total_time)


def test_c37_other_hooks_are_nobodys_time(clock):
    """A slow hook beside the timer does not make layers slow."""

    class Slow(ModuleHook):
        def forward_postprocess(self, call):
            time.sleep(100)

    with Slow(), TimerHook() as timer, Slow().renamed("behind"):
        Sleeps(1, Sleeps(2))(torch.ones(1))
    assert {row.path: row.total_time for row in timer.rows()} == {
        "": pytest.approx(3),
        "inner.0": pytest.approx(2),
    }
