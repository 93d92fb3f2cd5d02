"""`TimerHook` of modules: exact times of nested calls, directions, threads, and the report."""

import io
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import hookline
from hookline import HookValueError, ModuleHook, add_hook, delete_hook, with_hooks
from hookline.core import clock as core_clock
from hookline.core.records import TimeRow
from hookline.module_hooks import TimerHook
from hookline.record.runs import Rank, RunData
from hookline.report.terminal import print_run
from hookline.torch_base.paths import roots


@pytest.fixture
def time(monkeypatch):
    """A clock that goes on only when a test says so: `time.now += nanoseconds`."""
    fake = SimpleNamespace(now=0)
    monkeypatch.setattr(core_clock, "perf_counter_ns", lambda: fake.now)
    return fake


class Spends(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, layer):
        ctx.save_for_backward(x)
        ctx.layer = layer
        layer.time.now += layer.forward_ns
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        assert ctx.saved_tensors  # where a checkpoint dropped them, it computes them again
        ctx.layer.time.now += ctx.layer.backward_ns
        if ctx.layer.fails == "backward":
            raise LookupError
        return gradient * 2, None


class Takes(nn.Module):
    """Takes so many nanoseconds in each direction, before and after the layers inside it."""

    def __init__(self, time, forward, backward=0, *inner):
        super().__init__()
        self.time, self.forward_ns, self.backward_ns = time, forward, backward
        self.inner = nn.ModuleList(inner)
        self.fails = None

    def forward(self, x):
        x = Spends.apply(x, self)
        for layer in self.inner:
            x = layer(x)
        if self.fails == "forward":
            raise LookupError
        return x


class Plain(nn.Sequential):
    """Takes no time of its own."""


def ones(**kwargs):
    return torch.ones(1, requires_grad=True, **kwargs)


def nanoseconds(seconds):
    return round(seconds * 1e9)


def table(timer, *directions):
    """`{(path, direction): (calls, inclusive, self)}` in nanoseconds."""
    return {
        (row.path, row.direction): (
            row.calls,
            nanoseconds(row.total_time),
            nanoseconds(row.self_time),
        )
        for row in timer.rows()
        if not directions or row.direction in directions
    }


# ------------------------------------------------------------------------------ exact times


def test_nested_calls(time):
    """Inclusive times hold what is inside, self times do not, in both directions."""
    model = Plain(Takes(time, 10, 100, Takes(time, 1, 2), Takes(time, 3, 4)), Takes(time, 5, 6))
    with TimerHook() as timer:
        out = model(ones())
        time.now += 10_000  # between the two: nobody's
        out.backward()

    assert table(timer) == {
        ("0.inner.0", "forward"): (1, 1, 1),
        ("0.inner.1", "forward"): (1, 3, 3),
        ("0", "forward"): (1, 14, 10),
        ("1", "forward"): (1, 5, 5),
        ("", "forward"): (1, 19, 0),
        ("1", "backward"): (1, 6, 6),
        ("0.inner.1", "backward"): (1, 4, 4),
        ("0.inner.0", "backward"): (1, 2, 2),
        ("0", "backward"): (1, 106, 100),
        ("", "backward"): (1, 112, 0),
    }
    assert nanoseconds(timer.total_time()) == 19 + 112


def test_self_times_add_up_to_the_whole(time):
    """The self times of all modules are the time of the outermost calls."""
    model = Plain(*(Takes(time, n, 2 * n, Takes(time, 3 * n, n)) for n in range(1, 6)))
    with TimerHook() as timer:
        for _ in range(3):
            model(ones()).backward()

    assert sum(row.self_time for row in timer.rows()) == pytest.approx(timer.total_time())
    assert nanoseconds(timer.total_time()) == 3 * sum(n + 2 * n + 3 * n + n for n in range(1, 6))


def test_repeated_calls(time):
    """Calls of one module are one row: number, sum, minimum, median and maximum."""
    layer = Takes(time, 0)
    with TimerHook() as timer:
        for layer.forward_ns, layer.backward_ns in ((30, 5), (10, 7), (500, 6)):
            layer(ones()).backward()
    forward, backward = timer.rows()

    assert (forward.calls, backward.calls) == (3, 3)
    times = (forward.total_time, forward.minimum, forward.median, forward.maximum)
    assert times == pytest.approx((540e-9, 10e-9, 30e-9, 500e-9))
    times = (backward.total_time, backward.minimum, backward.median, backward.maximum)
    assert times == pytest.approx((18e-9, 5e-9, 6e-9, 7e-9))


def test_a_module_inside_itself(time):
    """A recursive module counts each call; its self time counts what is inside once."""

    class Recursive(nn.Module):
        def forward(self, x, depth):
            time.now += 10
            return self(x, depth - 1) if depth else x * 1

    with TimerHook() as timer:
        Recursive()(torch.ones(1), 2)

    assert table(timer) == {("", "forward"): (3, 30 + 20 + 10, 30)}
    assert nanoseconds(timer.total_time()) == 30


def test_a_shared_module_is_timed_where_it_is_called(time):
    """One layer under two names: each call goes to the name by which it was called."""
    shared = Takes(time, 10, 20)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = Plain(shared)
            self.decoder = Plain(shared, Takes(time, 1, 1))

        def forward(self, x):
            return self.decoder(self.encoder(x))

    with TimerHook() as timer:
        Net()(ones()).backward()

    got = table(timer)
    assert got["encoder.0", "forward"] == got["decoder.0", "forward"] == (1, 10, 10)
    assert got["encoder.0", "backward"] == got["decoder.0", "backward"] == (1, 20, 20)
    assert got["", "forward"] == (1, 21, 0)


def test_a_wrapped_layer_is_one_call(time):
    """Value hooks and wrappers around a layer add no call and no time."""
    layer, hooks = with_hooks(with_hooks(Takes(time, 10, 20))[0])
    hooks.add_forward_hook(lambda x, out: setattr(time, "now", time.now + 1000))
    hooks.add_backward_hook(lambda grad: setattr(time, "now", time.now + 1000))
    with TimerHook() as timer:
        layer(ones()).backward()

    assert table(timer) == {("", "forward"): (1, 10, 10), ("", "backward"): (1, 20, 20)}


# --------------------------------------------------------------------------- other hooks' time


class Slow(ModuleHook):
    """Takes a long time in all its callbacks."""

    def __init__(self, time):
        self.time = time

    def _take(self, *_):
        self.time.now += 1_000_000

    forward_preprocess = forward_postprocess = _take
    backward_preprocess = backward_postprocess = aborted = _take


def test_what_other_hooks_take_is_nobodys_time(time):
    """Hooks of all manners, before and after the timer, in all phases, count nowhere."""
    layer = Takes(time, 10, 100, Takes(time, 1, 2))
    slow = Slow(time)._take
    with Slow(time).renamed("before"), TimerHook() as timer, Slow(time).renamed("after"):
        for kind in ("forward_pre", "forward", "full_backward_pre", "full_backward"):
            getattr(hookline, f"register_{kind}_hook")(layer.inner[0], slow)
        add_hook(layer, Slow(time), name="local")
        layer(ones()).backward()
    delete_hook(layer, "local")
    hookline.clear_hooks(layer)

    assert table(timer) == {
        ("inner.0", "forward"): (1, 1, 1),
        ("", "forward"): (1, 11, 10),
        ("inner.0", "backward"): (1, 2, 2),
        ("", "backward"): (1, 102, 100),
    }


def test_what_hooks_take_when_a_call_fails_is_nobodys_time(time):
    """`aborted` of others does not count either."""
    layer = Takes(time, 10)
    layer.fails = "forward"
    with Slow(time), TimerHook() as timer, pytest.raises(LookupError):
        layer(ones())

    assert table(timer) == {("", "forward"): (1, 10, 10)}


# ---------------------------------------------------------------------------------- failures


def test_a_call_that_raises_counts_up_to_there(time):
    """Its time is that until it raised; so is that of the calls around it."""
    inner = Takes(time, 5)
    model = Plain(Takes(time, 1, 0, inner), Takes(time, 100))
    inner.fails = "forward"
    with TimerHook() as timer, pytest.raises(LookupError):
        model(ones())

    assert table(timer) == {
        ("0.inner.0", "forward"): (1, 5, 5),
        ("0", "forward"): (1, 6, 1),
        ("", "forward"): (1, 6, 0),
    }


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_the_timer_is_right_after_a_failure(time, where):
    """A failing run changes nothing about the times of the next."""

    def model():
        return Plain(Takes(time, 10, 20, Takes(time, 1, 2)), Takes(time, 5, 6))

    with TimerHook() as expected:
        model()(ones()).backward()
    roots.clear()
    failing = model()
    failing[0].inner[0].fails = where
    with TimerHook() as timer:
        with pytest.raises(LookupError):
            failing(ones()).backward()
        failing[0].inner[0].fails = None
        timer.reset()
        failing(ones()).backward()

    assert table(timer) == table(expected)
    assert timer.total_time() == expected.total_time()


def test_a_backward_that_raises_counts_up_to_there(time):
    """What had begun is ended, with the time until then."""
    model = Plain(Takes(time, 1, 20), Takes(time, 1, 300))
    model[0].fails = "backward"
    with TimerHook() as timer, pytest.raises(LookupError):
        model(ones()).backward()

    assert table(timer, "backward") == {
        ("1", "backward"): (1, 300, 300),
        ("0", "backward"): (1, 20, 20),
        ("", "backward"): (1, 320, 0),
    }


# ------------------------------------------------------------------------ directions and modes


@pytest.mark.parametrize("reentrant", [True, False], ids=["reentrant", "non-reentrant"])
def test_what_a_checkpoint_repeats_is_kept_apart(time, reentrant):
    """The repeated forward has a row of its own, and is no part of the backward's self time."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = Takes(time, 10, 20, Takes(time, 1, 2))
            self.head = Takes(time, 100, 200)

        def forward(self, x):
            return self.head(checkpoint(self.layer, x * 1, use_reentrant=reentrant))

    with TimerHook() as timer:
        Net()(ones()).backward()

    got = table(timer)
    repeated = {key: value for key, value in got.items() if key[1] == "recompute"}
    assert repeated == {
        ("layer.inner.0", "recompute"): (1, 1, 1),
        ("layer", "recompute"): (1, 11, 10),
    }
    assert got["layer", "forward"] == (1, 11, 10)
    assert got["", "forward"] == (1, 111, 0)
    assert got["head", "backward"] == (1, 200, 200)
    assert got["layer.inner.0", "backward"][2] == 2
    assert got["layer", "backward"][2] == 20
    assert got["", "backward"] == (1, 200 + 22 + 11, 0)
    assert nanoseconds(timer.total_time()) == 111 + 233


def test_modes_are_kept_apart(time):
    """Passes in train, eval and no-grad mode have rows of their own; the summary adds them up."""
    layer = Takes(time, 10)
    with TimerHook() as timer:
        layer(ones())
        layer.eval()(ones())
        layer(ones())
        with torch.no_grad():
            layer.train()(ones())

    assert [(row.mode, row.calls) for row in timer.rows()] == [
        ("train", 1),
        ("eval", 2),
        ("no_grad", 1),
    ]
    assert timer.summary()["Takes"]["occurrence"] == 4
    assert nanoseconds(timer.summary()["Takes"]["elapsed_time"]) == 40


def test_a_backward_inside_a_forward(time):
    """A gradient penalty's inner backward is part of the forward around it."""

    class Penalty(nn.Module):
        def __init__(self):
            super().__init__()
            self.critic = Takes(time, 10, 20)

        def forward(self, x):
            time.now += 1
            return torch.autograd.grad(self.critic(x), x)[0]

    with TimerHook() as timer:
        Penalty()(ones())

    assert table(timer) == {
        ("critic", "forward"): (1, 10, 10),
        ("critic", "backward"): (1, 20, 20),
        ("", "forward"): (1, 31, 1),
    }
    assert nanoseconds(timer.total_time()) == 31


# ----------------------------------------------------------------------------------- threads


def test_one_timer_in_two_threads(monkeypatch):
    """Calls that overlap in two threads are measured each by its own thread's time."""
    times = threading.local()
    monkeypatch.setattr(core_clock, "perf_counter_ns", lambda: getattr(times, "now", 0))
    timer, both = TimerHook(), threading.Barrier(2, timeout=60)

    class Works(nn.Module):
        def __init__(self, amount):
            super().__init__()
            self.amount = amount

        def forward(self, x):
            both.wait()  # now both are inside
            times.now += self.amount
            both.wait()
            return x * 1

    class One(nn.Sequential):
        pass

    class Two(nn.Sequential):
        pass

    def work(model):
        times.now = model[0].amount  # each thread's time is its own affair
        with timer.renamed(f"in {threading.get_ident()}"):
            for _ in range(5):
                model(torch.ones(1))

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(work, [One(Works(10)), Two(Works(3000))]))

    got = {
        (row.root, row.path): (row.calls, nanoseconds(row.total_time), nanoseconds(row.self_time))
        for row in timer.rows()
    }
    assert got == {
        ("One", "0"): (5, 50, 50),
        ("One", ""): (5, 50, 0),
        ("Two", "0"): (5, 15_000, 15_000),
        ("Two", ""): (5, 15_000, 0),
    }
    assert nanoseconds(timer.total_time()) == 15_050
    assert len(timer.call_history) == 20


def test_a_backward_in_another_thread(time):
    """A local timer measures it there."""
    layer = Takes(time, 10, 20)
    add_hook(layer, timer := TimerHook())
    out = layer(ones())
    with ThreadPoolExecutor(1) as pool:
        pool.submit(out.backward).result()

    assert table(timer) == {("", "forward"): (1, 10, 10), ("", "backward"): (1, 20, 20)}


def test_a_backward_in_autograds_own_threads(time):
    """So deeply nested that autograd goes on in a worker: all calls are there and add up."""

    class Deep(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, level):
            ctx.level = level
            return x * 1

        @staticmethod
        def backward(ctx, gradient):
            threads.add(threading.get_ident())
            if ctx.level:
                with torch.enable_grad():
                    Net()(ones(), ctx.level - 1).backward()
            return gradient, None

    class Net(nn.Module):
        def forward(self, x, level):
            return Deep.apply(Spends.apply(x, spends), level)

    spends, threads, levels = Takes(time, 1, 2), set(), 70
    with TimerHook() as timer:
        Net()(ones(), levels).backward()

    assert len(threads) == 2
    calls = dict.fromkeys(("forward", "backward"), 0)
    own = dict(calls)
    for row in timer.rows():
        calls[row.direction] += row.calls
        own[row.direction] += nanoseconds(row.self_time)
    assert calls == {"forward": levels + 1, "backward": levels + 1}
    assert own == {"forward": levels + 1, "backward": 2 * (levels + 1)}
    assert nanoseconds(timer.total_time()) == 1 + 3 * levels + 2


# ------------------------------------------------------------------ totals, history, summary


def test_total_time_is_that_of_outermost_calls(time):
    """Calls inside others are part of them, whatever the number of roots."""

    class Other(nn.Sequential):
        pass

    model, other = Plain(Takes(time, 10)), Other(Takes(time, 7), Takes(time, 8))
    with TimerHook() as timer:
        assert timer.total_time() == 0
        other(model(ones()))
        other[0](ones())

    assert nanoseconds(timer.total_time()) == 10 + 15 + 7


def test_call_history(time):
    """Names and seconds in the order in which the calls ended."""
    model = Plain(Takes(time, 10, 100), Takes(time, 20, 200))
    with TimerHook() as timer:
        model(ones()).backward()

    assert [(name, nanoseconds(seconds)) for name, seconds in timer.call_history] == [
        ("0", 10),
        ("1", 20),
        ("Plain", 30),
        ("1", 200),
        ("0", 100),
        ("Plain", 300),
    ]


def test_call_history_is_bounded(time):
    """Only the latest calls are kept; what is added up is not affected."""
    layer = Takes(time, 1)
    with TimerHook(history=3) as timer:
        for layer.forward_ns in range(10):
            layer(torch.ones(1))

    assert [nanoseconds(seconds) for _, seconds in timer.call_history] == [7, 8, 9]
    assert nanoseconds(timer.total_time()) == sum(range(10))


def test_summary(time):
    """Chainer's keys, and ours: self time, and each direction that occurred by itself."""
    model = Plain(Takes(time, 10, 100, Takes(time, 1, 2)))
    with TimerHook() as timer:
        model(ones()).backward()
        model(ones())
    summary = timer.summary()

    assert list(summary) == ["0.inner.0", "0", "Plain"]
    assert summary["0"] == {
        "elapsed_time": pytest.approx(124e-9),
        "occurrence": 3,
        "self_time": pytest.approx(120e-9),
        "forward": pytest.approx(
            {
                "calls": 2,
                "total_time": 22e-9,
                "self_time": 20e-9,
                "minimum": 11e-9,
                "median": 11e-9,
                "maximum": 11e-9,
            }
        ),
        "backward": pytest.approx(
            {
                "calls": 1,
                "total_time": 102e-9,
                "self_time": 100e-9,
                "minimum": 102e-9,
                "median": 102e-9,
                "maximum": 102e-9,
            }
        ),
    }


def test_summary_adds_up_modes(time):
    """Over modes, sums and extremes are of all; the median is of the mode with most calls."""
    layer = Takes(time, 0)
    with TimerHook() as timer:
        for layer.forward_ns in (10, 900, 20):
            layer(ones())
        layer.eval()
        for layer.forward_ns in (15, 500):
            layer(ones())

    assert timer.summary()["Takes"]["forward"] == pytest.approx(
        {
            "calls": 5,
            "total_time": 1445e-9,
            "self_time": 1445e-9,
            "minimum": 10e-9,
            "median": 20e-9,
            "maximum": 900e-9,
        }
    )


def test_summary_of_two_roots(time):
    """Where two models share a path, the root's name stands in front."""

    class Generator(nn.Sequential):
        pass

    class Critic(nn.Sequential):
        pass

    generator, critic = Generator(Takes(time, 1)), Critic(Takes(time, 2), Takes(time, 3))
    with TimerHook() as timer:
        critic(generator(ones()))

    assert {name: nanoseconds(row["elapsed_time"]) for name, row in timer.summary().items()} == {
        "Generator.0": 1,
        "Generator": 1,
        "Critic.0": 2,
        "1": 3,
        "Critic": 5,
    }


# --------------------------------------------------------------------------------- the report


def report(timer, *unit):
    out = io.StringIO()
    timer.print_report(*unit, file=out)
    return out.getvalue()


def measured(time):
    model = Plain(Takes(time, 1_240_000_000, 590_000), Takes(time, 410_000, 320))
    with TimerHook() as timer:
        model(ones()).backward()
    return timer


def test_print_report(time):
    """With a unit, Chainer's columns: right-aligned, rows in order of first completion."""
    assert report(measured(time), "auto") == (
        "ModuleName  ElapsedTime  Occurrence  SelfTime  Forward  Backward\n"
        "         0      1.24sec           2   1.24sec  1.24sec   0.00sec\n"
        "         1      0.00sec           2   0.00sec  0.00sec   0.00sec\n"
        "     Plain      1.24sec           2   0.00sec  1.24sec   0.00sec\n"
    )


def test_print_report_with_a_unit_for_each(time):
    """`auto_foreach` takes for each time the unit that suits it; nothing is 0 ns."""
    assert report(measured(time), "auto_foreach") == (
        "ModuleName  ElapsedTime  Occurrence  SelfTime   Forward  Backward\n"
        "         0      1.24sec           2   1.24sec   1.24sec  590.00us\n"
        "         1     410.32us           2  410.32us  410.00us  320.00ns\n"
        "     Plain      1.24sec           2    0.00ns   1.24sec  590.32us\n"
    )


@pytest.mark.parametrize(
    ("unit", "first", "second"),
    [
        ("sec", "1.24sec", "0.00sec"),
        ("ms", "1240.59ms", "0.41ms"),
        ("us", "1240590.00us", "410.32us"),
        ("ns", "1240590000.00ns", "410320.00ns"),
    ],
)
def test_print_report_in_a_given_unit(time, unit, first, second):
    """All times are in that unit."""
    lines = [line.split() for line in report(measured(time), unit).splitlines()]

    assert [line[1] for line in lines[1:3]] == [first, second]
    assert {len(line) for line in report(measured(time), unit).splitlines()} == {
        len(report(measured(time), unit).splitlines()[0])
    }


def test_print_report_is_the_table_of_a_run(time):
    """Without a unit: a row for each module and direction, with its own time and its calls."""
    timer = measured(time)
    out = io.StringIO()
    print_run(RunData([Rank(Path(), {TimeRow: timer.rows()})]), out, limit=None, tables=["times"])
    assert report(timer) == out.getvalue()
    assert "Plain" in out.getvalue()
    assert "410.00 µs" in out.getvalue()


@pytest.mark.parametrize("unit", [(), ("auto",), ("auto_foreach",), ("ms",)], ids=str)
def test_print_report_of_nothing(unit):
    """A timer that measured nothing says so."""
    assert report(TimerHook(), *unit) == (
        "TimerHook: there is nothing to show: no call was measured\n"
    )


def test_print_report_in_an_unknown_unit():
    """The error names what there is; it is a `ValueError`."""
    with pytest.raises(ValueError, match="'min' is no unit; choose one of sec, ms, us, ns, auto"):
        report(TimerHook(), "min")
    with pytest.raises(HookValueError):
        report(TimerHook(), "")


def test_print_report_goes_to_standard_output(capsys):
    """To the one there is when it prints, not when the package was imported."""
    TimerHook().print_report()

    assert capsys.readouterr().out.startswith("TimerHook: there is nothing")


def test_print_report_needs_nothing_but_write():
    """A file without `flush` will do."""
    written = []
    TimerHook().print_report("auto", file=SimpleNamespace(write=written.append))

    assert "".join(written).startswith("TimerHook: there is nothing")


# --------------------------------------------------------------------------- scopes and reuse


def test_a_timer_entered_again_goes_on_adding_up(time):
    """Until `reset`, which forgets all that was measured."""
    layer, timer = Takes(time, 10), TimerHook()
    for count in (1, 2, 3):
        with timer:
            layer(ones())
        assert table(timer) == {("", "forward"): (count, 10 * count, 10 * count)}
    layer(ones())  # outside
    assert timer.summary()["Takes"]["occurrence"] == 3

    timer.reset()
    assert (timer.rows(), timer.call_history, timer.summary(), timer.total_time()) == (
        [],
        [],
        {},
        0,
    )
    with timer:
        layer(ones())
    assert table(timer) == {("", "forward"): (1, 10, 10)}


def test_reset_inside_a_call(time):
    """Calls that run are measured to their end; what they held before the reset too."""
    timer = TimerHook()

    class Resets(nn.Module):
        def forward(self, x):
            timer.reset()
            time.now += 5
            return x * 1

    with timer:
        Plain(Takes(time, 10), Resets())(ones())

    assert table(timer) == {("1", "forward"): (1, 5, 5), ("", "forward"): (1, 15, 0)}


def test_a_timer_of_one_module(time):
    """Put on one module it measures only that; as the outermost, it is the total."""
    model = Plain(Takes(time, 10, 20, Takes(time, 1, 2)), Takes(time, 5))
    add_hook(model[0], timer := TimerHook())
    model(ones()).backward()
    delete_hook(model[0], "TimerHook")
    model(ones()).backward()

    assert table(timer) == {("0", "forward"): (1, 11, 11), ("0", "backward"): (1, 22, 22)}
    assert nanoseconds(timer.total_time()) == 33


def test_a_timer_removed_inside_a_call_starts_anew(time):
    """A call whose end it does not see is dropped; later calls are outermost again."""
    layer, timer = Takes(time, 10), TimerHook()

    class Leaves(nn.Module):
        def forward(self, x):
            timer.__exit__(None, None, None)
            return x * 1

    model = Plain(layer, Leaves())
    timer.__enter__()
    model(ones())
    timer.reset()
    with timer:
        layer(ones())

    assert table(timer) == {("0", "forward"): (1, 10, 10)}
    assert nanoseconds(timer.total_time()) == 10


def test_a_backward_outside_of_the_scope_is_not_measured(time):
    """The scope that is open when the backward runs counts."""
    layer = Takes(time, 10, 20)
    with TimerHook() as first:
        out = layer(ones())
    with TimerHook() as second:
        out.backward()

    assert table(first) == {("", "forward"): (1, 10, 10)}
    assert table(second) == {("", "backward"): (1, 20, 20)}


def test_real_time_is_measured():
    """With the real clock, times are positive, and parts are no longer than the whole."""
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
    with TimerHook() as timer:
        for _ in range(3):
            model(torch.randn(32, 64)).sum().backward()
    summary = timer.summary()

    parts = sum(summary[name]["elapsed_time"] for name in "012")
    whole = summary["Sequential"]["elapsed_time"]
    assert 0 < parts < whole
    assert timer.total_time() == pytest.approx(whole)
