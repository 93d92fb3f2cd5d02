"""Watching a whole program: every thread, no clash of names, and faults that stay ours."""

import threading
from collections import Counter

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import hookline
from hookline import ModuleCall, ModuleHook, add_hook, get_module_hooks
from hookline.core.records import FlopRow, StatsRow, TimeRow
from hookline.core.thread import module_switch
from hookline.function_hooks import TimerHook as FunctionTimer
from hookline.hooks.meter import TimeMeter
from hookline.module_hooks import TimerHook
from hookline.record.measures import Measures
from hookline.record.rows import PassRow
from hookline.record.run import Recorder


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.body(x).relu())


def step(net):
    """One training step without the update; gives loss and gradients."""
    net.zero_grad()
    loss = net(torch.linspace(-1, 1, 12).reshape(3, 4)).square().sum()
    loss.backward()
    return [loss.detach(), *(parameter.grad.clone() for parameter in net.parameters())]


def calls_of(recorder):
    """How many calls were measured, by level, root, path or name, and direction."""
    found = Counter()
    for row in recorder.tables().get(TimeRow, []):
        # An earlier test's model that is not collected yet has the name without a number.
        root = row.root.partition("#")[0]
        found[row.level, root, row.name or row.path, row.direction] += row.calls
    return found


def in_threads(count, work):
    threads = [threading.Thread(target=work) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_every_module_is_measured():
    """Forwards and backwards of all modules, of any root, built before or inside."""
    before, loss = Net(), nn.MSELoss()
    with Recorder(Measures(time=True)) as recorder:
        inside = nn.Sequential(nn.Linear(2, 2))
        for _ in range(3):
            loss(before(torch.ones(1, 4)), torch.zeros(1, 2)).backward()
        inside(torch.ones(1, 2))

    both = [("Net", path) for path in ("", "body", "head")] + [("MSELoss", "")]
    assert calls_of(recorder) == {
        **{("module", *at, way): 3 for at in both for way in ("forward", "backward")},
        **{("module", "Sequential", path, "forward"): 1 for path in ("", "0")},
    }


def test_what_a_checkpoint_repeats_is_told_apart():
    """Recomputed forwards are rows of their own."""
    net = Net()
    x = torch.ones(1, 4, requires_grad=True)
    with Recorder(Measures(time=True)) as recorder:
        checkpoint(net, x, use_reentrant=False).sum().backward()

    assert {row.calls for row in recorder.tables().get(TimeRow, [])} == {1}
    assert {(row.path, row.direction) for row in recorder.tables().get(TimeRow, [])} == {
        (path, direction)
        for path in ("", "body", "head")
        for direction in ("forward", "backward", "recompute")
    }


@pytest.mark.parametrize("level", ["module", "both"])
def test_section_6_a_run_sees_all_threads(level):
    """Threads that run already and threads that start later are all measured."""
    net, ready, go = Net(), threading.Barrier(3), threading.Event()

    def work():
        ready.wait()
        go.wait()
        for _ in range(5):
            net(torch.ones(1, 4)).sum().backward()

    earlier = [threading.Thread(target=work) for _ in range(2)]
    for thread in earlier:
        thread.start()
    ready.wait()
    with Recorder(Measures(time=True, level=level)) as recorder:
        go.set()
        for thread in earlier:
            thread.join()
        in_threads(2, lambda: net(torch.ones(1, 4)).sum().backward())
        net(torch.ones(1, 4)).sum().backward()

    calls = calls_of(recorder)
    for path in ("", "body", "head"):
        assert calls["module", "Net", path, "forward"] == 2 * 5 + 2 + 1
        assert calls["module", "Net", path, "backward"] == 2 * 5 + 2 + 1
    if level == "both":  # a mode cannot be put into a thread that runs already
        assert calls["function", "Net", "linear", "forward"] >= 2 * (2 + 1)
        assert calls["function", "Net", "linear", "backward"] >= 2 * (2 + 1)


@pytest.mark.parametrize(
    ("level", "levels"),
    [("module", {"module"}), ("function", {"function"}), ("both", {"module", "function"})],
)
def test_levels(level, levels):
    """Modules, functions or both are measured."""
    with Recorder(Measures(time=True, level=level)) as recorder:
        step(Net())

    assert {row.level for row in recorder.tables().get(TimeRow, [])} == levels


def test_r10_an_unknown_level_is_refused():
    """The error lists what there is."""
    with pytest.raises(ValueError, match="'layer' is no level; choose one of module, function"):
        Measures(time=True, level="layer")


def test_r10_there_must_be_something_to_measure():
    """The error lists what there is."""
    with pytest.raises(ValueError, match="nothing to measure; choose from time, nonfinite"):
        Measures()


@pytest.mark.parametrize("level", ["module", "function", "both"])
def test_r1_nothing_stays_on_when_it_is_left(level):
    """Also by an error of the program, and if it is entered again."""
    recorder = Recorder(Measures(time=True, level=level))
    for error in (None, ValueError, KeyboardInterrupt):
        try:
            with recorder:
                step(Net())
                if error:
                    raise error
        except (ValueError, KeyboardInterrupt):
            pass
        assert not module_switch
        step(Net())

    assert {row.calls % 3 for row in recorder.tables().get(TimeRow, [])} == {0}


def test_r2_the_program_computes_the_same():
    """Bitwise equal losses and gradients, and its random numbers are its own."""
    net = Net()
    torch.manual_seed(0)
    expected = [*step(net), torch.rand(3)]
    torch.manual_seed(0)
    with Recorder(Measures(time=True, level="both")):
        found = [*step(net), torch.rand(3)]

    assert all(map(torch.equal, found, expected))


# -------------------------------------------------------------------------------------- names


def test_section_6_names_never_clash_with_the_programs_own():
    """The program may open timers of the same class, in scopes and on modules."""
    net = Net()
    with Recorder(Measures(time=True, level="both")) as recorder:
        assert "TimerHook" not in get_module_hooks()
        with TimerHook() as modules, FunctionTimer() as functions, add_hook(net.head, TimerHook()):
            assert list(get_module_hooks()) == ["TimerHook"]
            step(net)
        step(net)

    calls = calls_of(recorder)
    assert calls["module", "Net", "head", "forward"] == 2
    assert calls["function", "Net", "linear", "forward"] == 4
    assert modules.summary()["body"]["occurrence"] == 2
    # The hook on the module has taken the place of the scoped one of its name there.
    assert "head" not in modules.summary()
    assert functions.summary()["linear"]["forward"]["calls"] == 2


def test_section_6_a_run_in_a_run_measures_too():
    """A program that records itself can be run under hooks, whatever both measure."""
    net = Net()
    everything = {"time": True, "stats": True, "memory": True, "flops": True, "nonfinite": True}
    with Recorder(Measures(**everything, level="both", every=1)) as outer:
        step(net)
        with Recorder(Measures(**everything, level="both", every=1)) as inner:
            step(net)
        step(net)

    for recorder, count in ((outer, 3), (inner, 1)):
        assert recorder.faults == []
        tables = recorder.tables()
        assert calls_of(recorder)["module", "Net", "head", "backward"] == count
        assert calls_of(recorder)["function", "Net", "linear", "backward"] == 2 * count
        [row] = [row for row in tables[PassRow] if row.root.startswith("Net")]
        assert row.passes == count
        flops = [r for r in tables[FlopRow] if (r.path, r.level) == ("head", "module")]
        assert {row.calls for row in flops} == {count}
        stats = [r for r in tables[StatsRow] if (r.path, r.level) == ("head", "module")]
        assert {row.calls for row in stats} == {count}


def test_r4_hooks_of_a_run_are_on_no_model():
    """Listing and clearing what is on a model does not touch the run's hooks."""
    net = Net()
    with Recorder(Measures(time=True)) as recorder:
        assert hookline.hooks_of(net) == []
        hookline.clear_hooks(net)
        step(net)

    assert calls_of(recorder)["module", "Net", "", "backward"] == 1


# ------------------------------------------------------------------------------------- faults


class Broken:
    """Stands in a method of the timers' meter and fails at one of its calls."""

    def __init__(self, monkeypatch, method, at, error=ZeroDivisionError):
        self.count = 0
        original = getattr(TimeMeter, method)

        def stand_in(meter, call, *arguments):
            if isinstance(call, ModuleCall):
                self.count += 1
                if self.count == at:
                    msg = "broken"
                    raise error(msg)
            return original(meter, call, *arguments)

        monkeypatch.setattr(TimeMeter, method, stand_in)


# A step has three forwards and three backwards, so a fault in each phase and at its edges.
@pytest.mark.parametrize("method", ["begin", "end"])
@pytest.mark.parametrize("at", [1, 2, 3, 4, 6])
def test_section_6_a_fault_switches_the_hook_off_and_the_program_goes_on(method, at, monkeypatch):
    """Results are those of the plain program; the fault is kept with its traceback."""
    net = Net()
    expected = step(net)
    broken = Broken(monkeypatch, method, at)
    with Recorder(Measures(time=True)) as recorder:
        for _ in range(2):
            assert all(map(torch.equal, step(net), expected))
        assert not module_switch

    assert broken.count == at
    (fault,) = recorder.faults
    assert fault.startswith("TimerHook was switched off; the program went on\nTraceback")
    assert fault.endswith("ZeroDivisionError: broken")
    assert sum(calls_of(recorder).values()) <= at


def test_section_6_a_fault_after_an_error_of_the_program(monkeypatch):
    """The program's error comes out as the same object, without a word of our fault."""
    net, error = Net(), ValueError("the program's")
    net.head.forward = lambda x: exec("raise error", {"error": error})  # noqa: S102
    Broken(monkeypatch, "end", 2)
    with (
        Recorder(Measures(time=True)) as recorder,
        pytest.raises(ValueError, match="program's") as caught,
    ):
        step(net)

    assert caught.value is error
    assert "ZeroDivisionError" not in "".join(error.__notes__)
    assert len(recorder.faults) == 1


def test_section_6_other_hooks_go_on(monkeypatch):
    """Of two measurements, the one without a fault is complete."""
    net = Net()
    Broken(monkeypatch, "begin", 1)
    with Recorder(Measures(time=True, level="both")) as recorder:
        step(net)

    assert {row.level for row in recorder.tables().get(TimeRow, [])} == {"function"}
    assert calls_of(recorder)["function", "Net", "linear", "backward"] == 2
    assert len(recorder.faults) == 1


def test_section_6_an_interrupt_is_no_fault(monkeypatch):
    """Ctrl-C that meets the program inside of our hook still interrupts it."""
    net = Net()
    Broken(monkeypatch, "begin", 2, KeyboardInterrupt)
    with Recorder(Measures(time=True)) as recorder, pytest.raises(KeyboardInterrupt):
        step(net)

    assert recorder.faults == []


def test_errors_of_the_program_and_its_hooks_are_no_faults():
    """They come out with their note, and the run goes on."""

    class Fails(ModuleHook):
        def forward_postprocess(self, call):
            if call.path == "body":
                msg = "hook"
                raise ValueError(msg)

    net = Net()
    with Recorder(Measures(time=True)) as recorder:
        with pytest.raises(ValueError, match="hook") as caught, Fails():
            step(net)
        with pytest.raises(RuntimeError):
            net(torch.ones(1, 3))
        step(net)

    assert caught.value.__notes__ == [
        "hookline: raised by forward hook Fails of body (Linear), call 0"
    ]
    assert recorder.faults == []
    # A call that raised counts up to there.
    assert calls_of(recorder)["module", "Net", "", "forward"] == 3


def test_a_second_timer_that_cannot_be_set_takes_the_first_along(monkeypatch):
    """If set-up fails half-way, nothing stays on."""

    def fail(self, target):
        msg = "no modes"
        raise OSError(msg)

    monkeypatch.setattr(FunctionTimer, "added", fail)
    with pytest.raises(OSError, match="no modes"):
        Recorder(Measures(time=True, level="both")).__enter__()

    assert not module_switch
