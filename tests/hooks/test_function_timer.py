"""`TimerHook` of functions: Chainer's example and report, exact times, and modules around them."""

import io
import re
import threading
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers import GPT2Config, GPT2LMHeadModel

import hookline
from hookline import FunctionHook, FunctionNode, HookNameError, HookValueError, TimerHook
from hookline.core import clock as core_clock
from hookline.hooks import timer as timer_module
from hookline.module_hooks import TimerHook as ModuleTimerHook


class Model(nn.Module):
    """The model of Chainer's documentation: `exp(linear(x))`."""

    def __init__(self):
        super().__init__()
        self.l1 = nn.Linear(10, 10)

    def forward(self, x):
        return torch.exp(self.l1(x))


@pytest.fixture
def time(monkeypatch):
    """A clock that goes on only when a test says so: `time.now += nanoseconds`."""
    fake = SimpleNamespace(now=0)
    monkeypatch.setattr(core_clock, "perf_counter_ns", lambda: fake.now)
    return fake


def taking(time, forward, backward=0):
    """A function of one tensor that takes so many nanoseconds in each direction."""

    class Work(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            time.now += forward
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            assert ctx.saved_tensors  # where a checkpoint dropped them, it computes them again
            time.now += backward
            return gradient * 2

    return Work.apply


# Chainer's example.


def test_chainers_example():
    """Two calls inside of `with` are measured and a third outside is not."""
    model, x = Model(), torch.randn(4, 10)
    hook = TimerHook()
    with hook:
        model(x)
        y = model(x)
    history, total = hook.call_history, hook.total_time()
    model(x)
    y.sum().backward()

    assert [name for name, _ in history] == ["linear", "exp", "linear", "exp"]
    assert total == pytest.approx(sum(seconds for _, seconds in history))
    assert total > 0
    assert (hook.call_history, hook.total_time()) == (history, total)


def test_chainers_summary():
    """`summary` has Chainer's keys for each name: time in all, and how often."""
    model = Model()
    with TimerHook() as hook:
        x = torch.randn(4, 10)
        model(model(x)).sum().backward()
    summary = hook.summary()

    assert list(summary) == ["randn", "linear", "exp", "sum"]
    occurrences = {name: entry["occurrence"] for name, entry in summary.items()}
    assert occurrences == {"randn": 1, "linear": 4, "exp": 4, "sum": 2}
    elapsed = defaultdict(float)
    for name, seconds in hook.call_history:
        elapsed[name] += seconds
    assert {name: entry["elapsed_time"] for name, entry in summary.items()} == pytest.approx(
        elapsed
    )


def test_chainers_report():
    """The report has Chainer's columns, right-aligned, rows in order of first completion."""
    with TimerHook() as hook:
        Model()(torch.ones(1, 10))
    out = io.StringIO()
    hook.print_report(file=out)
    header, *rows = out.getvalue().splitlines()

    assert header.split()[:3] == ["FunctionName", "ElapsedTime", "Occurrence"]
    assert {len(line) for line in rows} == {len(header)}
    names = [row.split()[0] for row in rows]
    assert names == list(hook.summary())
    assert names[-2:] == ["linear", "exp"]
    for row in rows:
        assert re.fullmatch(
            r" *\S+ +\d+\.\d\d(sec|ms|us|ns) +\d+( +\d+\.\d\d(sec|ms|us|ns)){3}", row
        )


@pytest.mark.parametrize(
    ("unit", "cells"),
    [
        ("auto", {"linear": "1.24sec", "relu": "0.00sec"}),
        ("auto_foreach", {"linear": "1.24sec", "relu": "1.00ms"}),
        ("sec", {"linear": "1.24sec", "relu": "0.00sec"}),
        ("ms", {"linear": "1240.00ms", "relu": "1.00ms"}),
        ("us", {"linear": "1240000.00us", "relu": "1000.00us"}),
        ("ns", {"linear": "1240000000.00ns", "relu": "1000000.00ns"}),
    ],
)
def test_chainers_units(unit, cells, time):
    """Times are shown in Chainer's units: one for all, or one for each."""
    linear = FunctionNode(taking(time, 1_240_000_000), "linear")
    relu = FunctionNode(taking(time, 500_000), "relu")
    x = torch.ones(1)
    with TimerHook() as hook:
        relu(relu(linear(x)))
    out = io.StringIO()
    hook.print_report(unit, out)

    shown = {line.split()[0]: line.split()[1] for line in out.getvalue().splitlines()[1:]}
    assert shown == cells


def test_report_of_nothing():
    """A timer that measured nothing says so; an unknown unit is an error."""
    out = io.StringIO()
    TimerHook().print_report(file=out)
    assert out.getvalue() == "TimerHook: there is nothing to show: no call was measured\n"
    with pytest.raises(HookValueError, match="'min' is no unit; choose one of sec, ms, us, ns"):
        TimerHook().print_report("min")


def test_report_goes_to_the_present_stdout(capsys):
    """Without a file the report goes to what standard output is now."""
    TimerHook().print_report()

    assert capsys.readouterr().out.startswith("TimerHook: there is nothing")


# Exact times.


def test_forward_and_backward_times(time):
    """Each function's time in each direction, to the nanosecond."""
    first, second = (
        FunctionNode(taking(time, 30, 70), "first"),
        FunctionNode(taking(time, 500, 1100), "second"),
    )
    x = torch.ones(2, requires_grad=True)
    with TimerHook() as hook:
        for _ in range(3):
            y = second(first(x))
            time.now += 10_000  # between functions: nobody's
            y.backward(torch.ones(2))
    rows = {(row.name, row.direction): row for row in hook.rows() if row.name != "ones"}

    assert {key: round(row.total_time * 1e9) for key, row in rows.items()} == {
        ("first", "forward"): 90,
        ("second", "forward"): 1500,
        ("second", "backward"): 3300,
        ("first", "backward"): 210,
    }
    for row in rows.values():
        assert row.calls == 3
        assert row.self_time == row.total_time
        assert row.minimum == row.median == row.maximum == pytest.approx(row.total_time / 3)
    assert hook.total_time() == pytest.approx(5100e-9)


def test_times_without_hooks_of_others(time):
    """What callbacks take, in any phase and of either level, is nobody's time."""

    class Slow(FunctionHook):
        def _take(self, *_):
            time.now += 1_000_000

        forward_preprocess = forward_postprocess = _take
        backward_preprocess = backward_postprocess = _take

    work = FunctionNode(taking(time, 30, 70), "work")
    x = torch.ones(2, requires_grad=True)
    with Slow().renamed("before"), TimerHook() as hook, Slow().renamed("after"):
        work(x).sum().backward()

    times = {name: round(seconds * 1e9) for name, seconds in hook.call_history}
    assert times == {"work": 70, "sum": 0}
    assert [round(s * 1e9) for name, s in hook.call_history if name == "work"] == [30, 70]


def test_statistics(time):
    """Minimum, median and maximum of calls that differ, in the summary too."""
    x = torch.ones(1)
    with TimerHook() as hook:
        for nanoseconds in (300, 100, 1000):
            FunctionNode(taking(time, nanoseconds), "work")(x)
    entry = hook.summary()["work"]

    assert entry["forward"] == pytest.approx(
        {
            "calls": 3,
            "total_time": 1400e-9,
            "self_time": 1400e-9,
            "minimum": 100e-9,
            "median": 300e-9,
            "maximum": 1000e-9,
        }
    )
    assert entry["elapsed_time"] == entry["self_time"] == pytest.approx(1400e-9)
    assert "backward" not in entry


def test_both_timers_exactly(time):
    """A function's time is part of its module's; what the module does besides is its alone."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.child = Child()

        def forward(self, x):
            time.now += 7
            return outer(self.child(x))

    class Child(nn.Module):
        def forward(self, x):
            x = inner(inner(x))
            time.now += 3
            return x

    outer = FunctionNode(taking(time, 100, 1000), "outer")
    inner = FunctionNode(taking(time, 10, 20), "inner")
    net, x = Net(), torch.ones(1, requires_grad=True)
    with ModuleTimerHook() as modules, TimerHook() as functions:
        net(x).sum().backward()

    def nanoseconds(rows):
        return {
            (row.path, row.name, row.direction): (
                round(row.total_time * 1e9),
                round(row.self_time * 1e9),
            )
            for row in rows
            if row.path is not None
        }

    assert nanoseconds(modules.rows()) == {
        ("child", "", "forward"): (23, 23),
        ("", "", "forward"): (130, 107),
        ("child", "", "backward"): (40, 40),
        ("", "", "backward"): (1040, 1000),
    }
    assert nanoseconds(functions.rows()) == {
        ("child", "inner", "forward"): (20, 20),
        ("", "outer", "forward"): (100, 100),
        ("", "outer", "backward"): (1000, 1000),
        ("child", "inner", "backward"): (40, 40),
    }


# Functions inside modules.


def gpt2():
    config = GPT2Config(n_embd=16, n_layer=2, n_head=2, n_positions=16, vocab_size=32)
    model, ids = GPT2LMHeadModel(config), torch.randint(32, (2, 8))
    return model, lambda: model(input_ids=ids, labels=ids).loss


def cnn():
    model = nn.Sequential(
        nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True)),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(36, 10),
    )
    images, labels = torch.rand(8, 1, 8, 8), torch.randint(10, (8,))
    return model, lambda: nn.functional.cross_entropy(model(images), labels)


@pytest.mark.parametrize("make", [gpt2, cnn])
def test_functions_fit_into_their_modules(make):
    """In each module, mode and direction, its functions take no more than it does by itself."""
    torch.manual_seed(0)
    model, loss = make()
    with ModuleTimerHook() as modules, TimerHook() as functions:
        for _ in range(2):
            loss().backward()
        with torch.no_grad():
            loss()
        model.eval()
        loss()
    own = {(row.root, row.path, row.mode, row.direction): row.self_time for row in modules.rows()}
    inside = defaultdict(float)
    for row in functions.rows():
        if row.path is not None:
            inside[row.root, row.path, row.mode, row.direction] += row.self_time

    assert {mode for _, _, mode, _ in inside} == {"train", "no_grad", "eval"}
    assert {direction for *_, direction in inside} == {"forward", "backward"}
    for key, seconds in inside.items():
        assert seconds <= own[key] + 1e-9, key


@pytest.mark.parametrize("make", [gpt2, cnn])
def test_every_function_has_its_module(make):
    """Each function is a row of the module whose forward calls it; those outside have none."""
    model, loss = make()
    with TimerHook() as hook:
        loss().backward()
    paths = {row.path for row in hook.rows()}

    assert paths - {None} <= {name for name, _ in model.named_modules()}
    if make is cnn:
        where = {(row.path, row.name) for row in hook.rows() if row.direction == "backward"}
        assert where == {
            ("0.0", "conv2d"),
            ("0.1", "batch_norm"),
            ("0.2", "relu"),
            ("1", "max_pool2d"),
            ("2", "flatten"),
            ("3", "linear"),
            (None, "cross_entropy"),
        }


def test_modes_outside_of_modules():
    """Outside of modules too, what runs with and without gradients is kept apart."""
    seen = []

    class Place(FunctionHook):
        def forward_preprocess(self, function, in_data):
            seen.append((function.index, function.pass_number))

    x = torch.ones(2)
    with TimerHook() as hook, Place():
        torch.sin(x)
        with torch.no_grad():
            torch.sin(x)
            torch.sin(x)
        torch.sin(x)

    assert {(row.name, row.mode): row.calls for row in hook.rows()} == {
        ("sin", "train"): 2,
        ("sin", "no_grad"): 2,
    }
    (first, number) = seen[0]
    assert seen == [(first + place, number) for place in range(4)]


@pytest.mark.parametrize("reentrant", [True, False], ids=["reentrant", "non-reentrant"])
def test_recompute(reentrant, time):
    """What a checkpoint repeats has a direction of its own, and is part of no function's own."""

    class Net(nn.Module):
        def forward(self, x):
            return work(x)

    net, x = Net(), torch.ones(1, requires_grad=True)
    work = FunctionNode(taking(time, 30, 70), "work")
    with TimerHook() as hook:
        checkpoint(net, x * 1, use_reentrant=reentrant).sum().backward()
    rows = {row.direction: row for row in hook.rows() if row.name == "work"}

    assert {key: round(row.self_time * 1e9) for key, row in rows.items()} == {
        "forward": 30,
        "recompute": 30,
        "backward": 70,
    }
    assert [row.calls for row in rows.values()] == [1, 1, 1]
    assert [row.path for row in rows.values()] == ["", "", ""]


# Scopes, threads, life.


def test_only_one_function():
    """On a `FunctionNode` the timer measures that function only."""
    relu, hook = FunctionNode(torch.relu), TimerHook()
    relu.add_hook(hook)
    relu(torch.ones(2, requires_grad=True) + 1).sum().backward()
    relu.delete_hook("TimerHook")

    assert [name for name, _ in hook.call_history] == ["relu", "relu"]


def test_c2_two_timers():
    """Two timers of one name clash; renamed they nest, the inner one measuring a part."""
    x = torch.ones(2)
    with TimerHook() as whole:
        with pytest.raises(HookNameError, match="hook TimerHook already exists"):
            TimerHook().__enter__()
        torch.sin(x)
        with TimerHook().renamed("part") as part:
            torch.cos(x)

    assert [name for name, _ in whole.call_history] == ["sin", "cos"]
    assert [name for name, _ in part.call_history] == ["cos"]


def test_entered_again():
    """Entered a second time it goes on adding up; after `reset` it begins anew."""
    hook, x = TimerHook(), torch.ones(2)
    for _ in range(2):
        with hook:
            torch.sin(x)
    assert hook.summary()["sin"]["occurrence"] == 2

    hook.reset()
    assert (hook.summary(), hook.call_history, hook.total_time(), hook.rows()) == ({}, [], 0.0, [])
    with hook:
        torch.cos(x)
    assert list(hook.summary()) == ["cos"]


def test_history_is_bounded():
    """`call_history` keeps the latest calls; totals are of all."""
    x = torch.ones(2)
    with TimerHook(history=3) as hook:
        for function in (torch.sin, torch.cos, torch.exp, torch.tanh):
            function(x)

    assert [name for name, _ in hook.call_history] == ["cos", "exp", "tanh"]
    assert len(hook.summary()) == 4


def test_two_threads_in_one_timer():
    """One timer in two threads at once: overlapping calls do not nest in each other."""
    begun = threading.Barrier(2)

    def body(x):
        begun.wait(30)  # both run at the same time
        return x

    function = FunctionNode(body)

    def work():
        with hook:
            function(torch.ones(2))

    hook = TimerHook()
    with ThreadPoolExecutor(2) as pool:
        for future in [pool.submit(work) for _ in range(2)]:
            future.result()

    entry = hook.summary()["body"]
    assert (entry["occurrence"], entry["self_time"]) == (2, entry["elapsed_time"])
    assert hook._meter._stacks == {}


def test_removed_inside_of_a_call():
    """A timer that is removed while a function runs is right when it is used again."""
    hook = TimerHook()

    def leave(x):
        hook.__exit__(None, None, None)
        return x

    x = torch.ones(2)
    hook.__enter__()
    FunctionNode(leave)(x)
    assert hook.rows() == []
    with hook:
        torch.sin(x)

    assert hook.total_time() == pytest.approx(hook.summary()["sin"]["elapsed_time"])
    assert hook.total_time() > 0


def test_top_level_name():
    """As in Chainer, the timer at the top of the package is that of functions."""
    assert hookline.TimerHook is TimerHook is hookline.function_hooks.TimerHook
    assert issubclass(TimerHook, FunctionHook)


# Clocks.


def test_unknown_clock():
    """A clock that does not exist is an error that lists those that do."""
    with pytest.raises(
        HookValueError, match="'cpu' is no clock; choose 'host', 'device' or 'auto'"
    ):
        TimerHook(clock="cpu")


def test_device_clock_needs_a_device(monkeypatch):
    """Asked for device times without a device, it says what to use instead."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(HookValueError, match=r"needs a CUDA device.*use clock='host'"):
        TimerHook(clock="device")


@pytest.mark.parametrize(
    ("clock", "initialised", "expected"),
    [
        ("host", True, "host"),
        ("auto", True, "device"),
        ("auto", False, "host"),
        ("device", False, "device"),
    ],
)
def test_choice_of_the_clock(clock, initialised, expected, monkeypatch):
    """`auto` takes the device's clock where CUDA is in use, and does not start CUDA for it."""
    events = []

    class Event:
        def record(self):
            events.append(self)

        def query(self):
            return False

        def synchronize(self):
            pass

        def elapsed_time(self, end):
            return 2.5

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: initialised)
    monkeypatch.setattr(timer_module, "_cuda_event", Event)
    with TimerHook(clock=clock) as hook:
        torch.sin(torch.ones(2))

    assert {row.clock for row in hook.rows()} == {expected}
    assert len(events) == (4 if expected == "device" else 0)
    if expected == "device":
        assert hook.call_history == [("ones", 2.5e-3), ("sin", 2.5e-3)]
