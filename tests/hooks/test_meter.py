"""How timers measure: calls that nest, threads, and devices whose times come late."""

import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from hookline.core.thread import local
from hookline.hooks.meter import TimeMeter
from hookline.hooks.subject import Subject


def measured(path, **changes):
    fields = {"root": "Net", "type": "M", "level": "module", "mode": "train"}
    fields |= {"direction": "forward", "name": ""}
    return Subject(**{**fields, "path": path, **changes})


class Device:
    """A device that works through its events one by one, and takes a given time to each."""

    def __init__(self):
        self.events = []
        self.done = 0
        self.waits = 0
        self.time = 0.0

    def new_event(self):
        return Event(self)

    def work(self, milliseconds):
        """Work that is queued now: events recorded later come after it."""
        self.time += milliseconds

    def finish(self, count=None):
        """The device gets through its first events, or all."""
        self.done = len(self.events) if count is None else count


class Event:
    def __init__(self, device):
        self.device = device

    def record(self):
        self.place = len(self.device.events)
        self.time = self.device.time
        self.device.events.append(self)

    def query(self):
        return self.place < self.device.done

    def synchronize(self):
        if not self.query():
            self.device.waits += 1
            self.device.finish(self.place + 1)

    def elapsed_time(self, end):
        assert self.query()
        assert end.query()
        return end.time - self.time


def run(meter, calls, now=0):
    """Measure calls, each `(path, own nanoseconds before, calls inside, after)`; gives the end."""
    for path, before, inside, after in calls:
        call = SimpleNamespace(now=now)
        meter.begin(call, measured(path))
        now = run(meter, inside, now + before)
        call.now = now = now + after
        meter.end(call)
    return now


def totals(meter):
    if meter.clock == "host":
        meter.settle()
    return {what.path: (s.count, s.total, s.self_total) for what, s in meter.durations.items()}


def history(meter):
    if meter.clock == "host":
        meter.settle()
    return [(what.path, duration) for what, duration in meter.history]


# Calls that nest.


def test_times_inside_each_other():
    """A call's time includes what is inside it, its own time does not; the outermost are summed."""
    meter = TimeMeter(10)
    b = ("b", 5, [("c", 100, [], 0), ("c", 50, [], 0)], 7)
    run(meter, [("a", 1, [b, ("d", 20, [], 0)], 2), ("d", 30, [], 0)])

    assert totals(meter) == {
        "c": (2, 150, 150),
        "b": (1, 162, 12),
        "d": (2, 50, 50),
        "a": (1, 185, 3),
    }
    assert meter.outermost == 185 + 30


def test_recursion():
    """A call inside a call of its own kind counts in both, once as own time."""
    meter = TimeMeter(10)
    run(meter, [("a", 1, [("a", 10, [("a", 100, [], 0)], 0)], 0)])

    assert totals(meter) == {"a": (3, 111 + 110 + 100, 111)}
    assert meter.outermost == 111


def test_history_is_in_the_order_of_ends_and_bounded():
    """Inner calls come before those around them; beyond the bound the oldest are dropped."""
    meter = TimeMeter(3)
    run(meter, [("a", 1, [("b", 2, [("c", 3, [], 0)], 0)], 0), ("d", 4, [], 0)])

    assert history(meter) == [("b", 5), ("a", 6), ("d", 4)]


def test_what_differs_is_kept_apart():
    """Calls are one series only where all that is known of them agrees."""
    meter = TimeMeter(10)
    for direction in ("forward", "backward", "forward"):
        call = SimpleNamespace(now=0)
        meter.begin(call, measured("a", direction=direction))
        call.now = 10
        meter.end(call)

    assert [(row.direction, row.calls) for row in meter.rows()] == [("forward", 2), ("backward", 1)]


def test_rows_are_in_seconds():
    """Each row has what it is of, and its times in seconds."""
    meter = TimeMeter(10)
    run(meter, [("a", own, [("b", 500, [], 0)], 0) for own in (1000, 3000, 2000)])
    row = meter.rows()[1]

    assert (row.root, row.path, row.type, row.level, row.mode) == (
        "Net",
        "a",
        "M",
        "module",
        "train",
    )
    assert (row.direction, row.name, row.clock) == ("forward", "", "host")
    assert row.calls == 3
    assert row.total_time == pytest.approx(7500e-9)
    assert row.self_time == pytest.approx(6000e-9)
    assert (row.minimum, row.median, row.maximum) == pytest.approx((1500e-9, 2500e-9, 3500e-9))


def test_ends_in_another_order():
    """Calls may end in another order than that of their begins; each has its own time."""
    meter = TimeMeter(10)
    first, second = SimpleNamespace(now=0), SimpleNamespace(now=10)
    meter.begin(first, measured("first"))
    meter.begin(second, measured("second"))
    first.now = 100
    meter.end(first)
    second.now = 130
    meter.end(second)

    assert history(meter) == [("first", 100), ("second", 120)]
    assert meter._stacks == {}


def test_end_without_a_begin():
    """The end of a call whose begin was not measured changes nothing."""
    meter = TimeMeter(10)
    meter.end(SimpleNamespace(now=5))
    outer = SimpleNamespace(now=0)
    meter.begin(outer, measured("a"))
    meter.end(SimpleNamespace(now=5))
    outer.now = 7
    meter.end(outer)

    assert totals(meter) == {"a": (1, 7, 7)}


def test_one_call_measured_twice():
    """A call that is begun twice, by two registrations of one timer, nests in itself."""
    meter = TimeMeter(10)
    call = SimpleNamespace(now=0)
    for _ in range(2):
        meter.begin(call, measured("a"))
    call.now = 10
    for _ in range(2):
        meter.end(call)

    assert totals(meter) == {"a": (2, 20, 10)}
    assert meter.outermost == 10


def test_dropped_calls():
    """Calls whose end will not come are forgotten: later ones are outermost again."""
    meter = TimeMeter(10)
    meter.begin(SimpleNamespace(now=0), measured("a"))
    meter.drop_running()
    run(meter, [("b", 5, [], 0)])

    assert totals(meter) == {"b": (1, 5, 5)}
    assert meter.outermost == 5


def test_reset_keeps_what_runs():
    """What was measured is forgotten; a call that runs is measured to its end."""
    meter = TimeMeter(10)
    outer = SimpleNamespace(now=0)
    meter.begin(outer, measured("a"))
    run(meter, [("b", 5, [], 0)])
    meter.reset()
    assert (meter.rows(), list(meter.history), meter.outermost) == ([], [], 0)

    outer.now = 20
    meter.end(outer)
    assert totals(meter) == {"a": (1, 20, 15)}
    assert meter.outermost == 20


# Threads.


def test_threads_have_stacks_of_their_own():
    """Calls of two threads that overlap in time are not inside each other."""
    meter = TimeMeter(10)
    call = SimpleNamespace(now=0)
    meter.begin(call, measured("here"))
    with ThreadPoolExecutor(1) as pool:
        pool.submit(run, meter, [("there", 5, [("inner", 3, [], 0)], 0)]).result()
    call.now = 50
    meter.end(call)

    assert totals(meter) == {"inner": (1, 3, 3), "there": (1, 8, 5), "here": (1, 50, 50)}
    assert meter.outermost == 58
    assert meter._stacks == {}


def test_thread_with_a_borrowed_clock():
    """A worker that acts with its caller's clock goes on in the caller's stack."""
    meter = TimeMeter(10)
    caller = local.thread
    outer = SimpleNamespace(now=0)
    meter.begin(outer, measured("outer"))

    def work():
        local.thread.borrow(caller)
        run(meter, [("inner", 5, [], 0)])

    with ThreadPoolExecutor(1) as pool:
        pool.submit(work).result()
    outer.now = 20
    meter.end(outer)

    assert totals(meter) == {"inner": (1, 5, 5), "outer": (1, 20, 15)}


def test_many_threads_at_once():
    """No call is lost when threads measure at the same time."""
    meter = TimeMeter(100_000)
    ready = threading.Barrier(4)

    def work():
        ready.wait()
        run(meter, [("a", 1, [("b", 2, [], 0)], 0)] * 500)

    with ThreadPoolExecutor(4) as pool:
        for future in [pool.submit(work) for _ in range(4)]:
            future.result()

    assert totals(meter) == {"b": (2000, 4000, 4000), "a": (2000, 6000, 2000)}
    assert meter.outermost == 6000
    assert len(meter.history) == 4000


# Devices.


@pytest.fixture
def device():
    return Device()


@pytest.fixture
def meter(device):
    return TimeMeter(10, device.new_event)


def device_run(meter, device, calls):
    """As `run`, with milliseconds of work on the device."""
    for path, before, inside, after in calls:
        call = SimpleNamespace()
        meter.begin(call, measured(path))
        device.work(before)
        device_run(meter, device, inside)
        device.work(after)
        meter.end(call)


def test_device_times_are_those_of_its_events(meter, device):
    """Times are what passed on the device between begin and end, inner calls apart."""
    device_run(meter, device, [("a", 1, [("b", 2, [], 0.5)], 0.25), ("b", 4, [], 0)])
    (b, a) = meter.rows()

    assert (b.path, b.calls, b.total_time, b.self_time) == ("b", 2, 6.5e-3, 6.5e-3)
    assert (a.path, a.calls, a.total_time, a.self_time) == ("a", 1, 3.75e-3, 1.25e-3)
    assert a.clock == b.clock == meter.clock == "device"
    assert meter.outermost == 7_750_000


def test_device_events_are_read_late_and_without_waiting(meter, device):
    """While the device works nothing is read and nothing waits; what is through is read later."""
    device_run(meter, device, [("a", 1, [("b", 2, [], 0)], 0)])
    assert meter.durations == {}

    device.finish(3)  # the events are: begin a, begin b, end b, end a
    device_run(meter, device, [("c", 3, [], 0)])
    assert set(totals(meter)) == {"b"}
    device.finish()
    device_run(meter, device, [("d", 4, [], 0)])
    assert set(totals(meter)) == {"b", "a", "c"}
    assert device.waits == 0


def test_device_reads_children_before_parents(meter, device):
    """However late they are read: a parent's own time is less that of the calls inside it."""
    device_run(meter, device, [("a", 1, [("b", 2, [("c", 4, [], 0)], 0)], 8)] * 2)
    device.finish()
    meter.settle()

    assert [path for path, _ in history(meter)] == ["c", "b", "a"] * 2
    ms = 1_000_000
    assert totals(meter) == {
        "c": (2, 8 * ms, 8 * ms),
        "b": (2, 12 * ms, 4 * ms),
        "a": (2, 30 * ms, 18 * ms),
    }


def test_device_settle_waits(meter, device):
    """Asked for its results, the meter waits for the device."""
    device_run(meter, device, [("a", 1, [("b", 2, [], 0)], 0)])
    assert meter.durations == {}
    meter.settle()

    assert device.waits == 2  # for the end of b, then for that of a
    assert set(totals(meter)) == {"a", "b"}
    assert not meter._pending


def test_device_reset_forgets_what_is_pending(meter, device):
    """After a reset nothing that was measured before comes in late."""
    device_run(meter, device, [("a", 1, [], 0)])
    meter.reset()
    device.finish()
    device_run(meter, device, [("b", 2, [], 0)])

    assert [row.path for row in meter.rows()] == ["b"]
    assert device.waits == 1


def test_calls_are_added_up_some_at_a_time():
    """However long a program runs, only a bounded number of its calls is kept one by one."""
    meter, told = TimeMeter(10), []
    meter.listener = told.append
    for now in range(1_000):
        call = SimpleNamespace(now=now, index=0, running=SimpleNamespace(number=now, step=0))
        meter.begin(call, measured("a"))
        call.now = now + 1
        meter.end(call)
        assert len(meter._pending) + len(told) == now + 1
        assert len(meter._pending) < 128
    meter.settle()
    assert [timed.number for timed in told] == list(range(1_000))
    assert meter.outermost == 1_000
