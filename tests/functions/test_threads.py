"""Function hooks and threads: scopes stay in theirs, backward takes its caller's; forks."""

import gc
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch import nn

from hookline import HookNameError, get_function_hooks
from hookline.core.records import TimeRow
from hookline.functions import places
from hookline.record.measures import Measures
from hookline.record.run import Recorder
from tests.custom import Square
from tests.functions.reached import is_patched
from tests.logs import FunctionLog

PROGRAMS = Path(__file__).parent / "programs"


class Log(FunctionLog):
    """Notes the phase, the function and the thread of every event."""

    def __init__(self, name="Log"):
        self.name = name
        self.events = []
        self.threads = set()
        self.calls = []

    def _log(self, phase, function):
        self.events.append((phase, function.label))
        self.threads.add(threading.get_ident())
        self.calls.append(function)

    def labels(self, phase="forward_pre"):
        return [label for p, label in self.events if p == phase]


def modes():
    """How many function modes are on this thread's stack."""
    return torch._C._len_torch_function_stack()


def in_thread(work):
    """Run it in a thread of its own and give what it returned, or raise what it raised."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result()


def digits_like(width, seed):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 2)), torch.randn(3, 4)


def run_program(name, *args):
    return subprocess.run(
        [sys.executable, PROGRAMS / name, *args], capture_output=True, text=True, check=False
    )


# Scopes.


def test_c1_two_threads_see_their_own_functions_only():
    """Threads with their own hooks and models, event by event in turn, see only their own."""
    model_a, x_a = digits_like(5, 0)
    model_b, x_b = nn.Sequential(nn.Tanh(), nn.Linear(4, 3, bias=False)), torch.randn(2, 4)
    turn = threading.Barrier(2)

    class InTurn(Log):
        def _log(self, phase, function):
            turn.wait(30)
            super()._log(phase, function)

    def work(log, model, x, extra):
        with log:
            model(x).sum().backward()
        for _ in range(extra):  # the other one has more events
            turn.wait(30)

    def alone(model, x):
        with Log() as log:
            model(x).sum().backward()
        return log.events

    expected = [alone(model_a, x_a), alone(model_b, x_b)]
    extra = len(expected[0]) - len(expected[1])
    logs = [InTurn("same"), InTurn("same")]
    with ThreadPoolExecutor(2) as pool:
        futures = [
            pool.submit(work, logs[0], model_a, x_a, 0),
            pool.submit(work, logs[1], model_b, x_b, extra),
        ]
        for future in futures:
            future.result()

    assert extra > 0
    assert [log.events for log in logs] == expected
    assert [len(log.threads) for log in logs] == [1, 1]
    assert logs[0].threads != logs[1].threads


def test_c1_another_thread_sees_nothing_and_has_no_mode():
    """A thread without hooks has no mode on its stack, no hooks, no events; custom ones neither."""

    def work():
        x = torch.ones(3, requires_grad=True)
        Square.apply(x + 1).sum().backward()
        return modes(), dict(get_function_hooks())

    with Log() as log:
        assert modes() == 1
        assert in_thread(work) == (0, {})
    assert log.events == []


def test_c1_scope_in_a_thread_leaves_the_main_thread_alone():
    """While another thread has a scope open, this one is not seen, and has nothing on."""
    opened, done = threading.Event(), threading.Event()

    def work():
        with Log() as log:
            opened.set()
            done.wait(30)
            torch.zeros(2)
        return log.labels()

    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(work)
        opened.wait(30)
        Square.apply(torch.ones(3, requires_grad=True)).sum().backward()
        assert modes() == 0
        assert get_function_hooks() == {}
        done.set()
        assert future.result() == ["zeros[0]"]


def test_c1_two_scopes_of_one_hook_object():
    """One hook object may be entered in several threads; leaving one leaves the others."""
    log = Log()
    with log:

        def work():
            with log:
                torch.zeros(1)
            torch.ones(1)

        in_thread(work)
        torch.full((1,), 2.0)

    assert [name.partition("[")[0] for name in log.labels()] == ["zeros", "full"]


def test_leaving_in_another_thread_is_an_error():
    """A scope belongs to its thread: closing it elsewhere says so, and it stays open here."""
    log = Log()
    with log:
        with pytest.raises(HookNameError, match="no open scope in this thread"):
            in_thread(lambda: log.__exit__(None, None, None))
        assert dict(get_function_hooks()) == {"Log": log}


def test_c1_suspended_generator():
    """A scope in a generator stays open while it is suspended, and goes when it is closed."""
    log = Log()

    def values():
        with log:
            yield torch.zeros(1)
            yield torch.ones(1)

    generator = values()
    torch.full((1,), 1.0)
    next(generator)
    torch.full((1,), 2.0)
    next(generator)
    generator.close()
    torch.full((1,), 3.0)

    assert [name.partition("[")[0] for name in log.labels()] == ["zeros", "full", "ones"]
    assert modes() == 0


def test_r5_collected_generator():
    """A generator that is dropped while suspended in a scope takes its hook along."""

    def values():
        with Log():
            yield

    generator = values()
    next(generator)
    assert modes() == 1
    del generator
    gc.collect()

    assert modes() == 0


def test_r5_thread_that_ends_inside_a_scope():
    """What it left open is removed with a warning that names it, and torch is as before."""

    def work():
        Log("left open").__enter__()
        torch.zeros(2)

    def run():
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        gc.collect()

    with pytest.warns(ResourceWarning, match=r"inside of `with` for left open; they are removed"):
        run()
    assert not is_patched()


# Backward.


def test_c8_backward_in_another_thread_has_that_threads_hooks():
    """Forward here, backward in a thread with hooks: its hooks get the events, ours none."""
    model, x = digits_like(5, 1)
    with Log("here") as here:
        loss = model(x).square().sum()
        forward = list(here.calls)

        def work():
            with Log("there") as there:
                loss.backward()
            return there

        there = in_thread(work)

    assert {phase for phase, _ in here.events} == {"forward_pre", "forward"}
    assert [phase for phase, _ in there.events] == ["backward_pre", "backward"] * 5
    assert there.labels("backward_pre") == here.labels("forward")[::-1]
    assert [call for call in there.calls if call not in forward] == []


def test_c8_backward_in_a_thread_without_hooks():
    """Forward here, backward in a thread without hooks: no events, and the gradients are right."""
    model, x = digits_like(5, 2)
    model(x).square().sum().backward()
    expected = [parameter.grad for parameter in model.parameters()]
    model.zero_grad()
    with Log() as log:
        loss = model(x).square().sum()
        in_thread(loss.backward)

    assert {phase for phase, _ in log.events} == {"forward_pre", "forward"}
    for parameter, gradient in zip(model.parameters(), expected, strict=True):
        assert torch.equal(parameter.grad, gradient)


def test_c8_forward_in_another_thread():
    """What another thread computed unrecorded is named after its nodes in our backward."""
    x = torch.ones(3, requires_grad=True)
    y = in_thread(lambda: x.exp().sin())
    with Log() as log:
        (y * 2).sum().backward()

    names = [name.partition("[")[0] for name in log.labels("backward_pre")]
    assert names == ["sum", "mul", "sin", "exp"]
    assert log.labels("backward") == log.labels("backward_pre")


def test_c8_graph_of_two_recording_threads():
    """A graph made by two recording threads: each function has one backward, rightly paired."""
    x = torch.ones(3, requires_grad=True)

    def work():
        with Log():
            for _ in range(20):  # the numbers of this thread's nodes go on beyond ours
                y = x.exp().sin()
            return y

    y = in_thread(work)
    with Log() as log:
        (y * 2).cos().sum().backward()

    names = [name.partition("[")[0] for name in log.labels("backward_pre")]
    assert sorted(names) == ["cos", "exp", "mul", "sin", "sum"]
    assert sorted(log.labels("backward")) == sorted(log.labels("backward_pre"))


def test_r11_deep_reentrant_backward_in_autograds_own_threads():
    """Beyond 60 backwards inside each other autograd goes on in its own threads, with our hooks."""
    result = run_program("reentrant.py", "70")

    assert result.stderr == ""
    assert result.stdout.splitlines() == [
        "seen in more than one thread: True",
        "backwards: {'mul': 1, 'neg': 70}",
        "each begin has its end: True",
        "repeated in forward: ['mul', 'neg']",
        "gradient right: True",
        "modes left: 0",
    ]


# All threads.


def test_r11_hooks_on_all_threads_reach_threads_started_meanwhile():
    """A thread that starts while there are hooks for all threads is seen from its first call."""
    with Recorder(Measures(time=True, level="function")) as recorder:
        torch.zeros(2)

        def work():
            torch.ones(2)
            assert modes() == 1

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        in_thread(lambda: torch.full((2,), 1.0))
    torch.arange(3)

    assert sorted(row.name for row in recorder.tables().get(TimeRow, [])) == [
        "full",
        "ones",
        "zeros",
    ]
    assert modes() == 0


def test_r11_threads_started_before_and_after_are_not_seen():
    """Threads that ran before, or start afterwards, have nothing on."""
    with ThreadPoolExecutor(1) as before:
        before.submit(int).result()
        with Recorder(Measures(time=True, level="function")) as recorder:
            assert before.submit(modes).result() == 0
            before.submit(torch.zeros, 2).result()
    assert in_thread(modes) == 0

    assert recorder.tables().get(TimeRow, []) == []


def test_r1_thread_that_outlives_the_hooks_on_all_threads():
    """It is not seen any more once they are gone, and the custom function's patch is off."""
    begun, gone = threading.Event(), threading.Event()

    def work():
        torch.zeros(2)
        begun.set()
        gone.wait(30)
        Square.apply(torch.ones(2, requires_grad=True)).sum().backward()

    with Recorder(Measures(time=True, level="function")) as recorder:
        thread = threading.Thread(target=work)
        thread.start()
        begun.wait(30)
    assert not is_patched()
    gone.set()
    thread.join()

    assert [row.name for row in recorder.tables().get(TimeRow, [])] == ["zeros"]


def test_r6_programs_own_thread_profile_is_given_back():
    """`threading.setprofile` of the program runs in threads as without us, and is put back."""
    events = []

    def profile(frame, event, _):
        events.append((event, frame.f_code.co_name))

    def work():
        return torch.ones(2)

    def profiled():
        events.clear()
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        return list(events)

    threading.setprofile(profile)
    try:
        plain = profiled()
        with Recorder(Measures(time=True, level="function")) as recorder:
            seen = profiled()
            assert threading.getprofile() != profile
        assert threading.getprofile() is profile
    finally:
        threading.setprofile(None)

    # Python 3.13 may tell a profile of its own setting, before the thread runs anything.
    first, ours = (next(e for e in each if e[0] == "call") for each in (plain, seen))
    assert first == ours == ("call", "run")
    assert ("call", "work") in seen
    assert ("return", "work") in seen
    assert [row.name for row in recorder.tables().get(TimeRow, [])] == ["ones"]


def test_r6_profile_set_meanwhile_stays():
    """A profile that the program sets while our hooks are on is not taken away."""

    def profile(*_):
        pass

    try:
        with Recorder(Measures(time=True, level="function")):
            threading.setprofile(profile)
        assert threading.getprofile() is profile
    finally:
        threading.setprofile(None)


def test_r1_no_profile_stays():
    """Without a profile of the program's own, none is left, nor in a thread that was reached."""
    with Recorder(Measures(time=True, level="function")):
        assert in_thread(sys.getprofile) is None
        assert threading.getprofile() is not None

    assert threading.getprofile() is None
    assert len(places.everywhere) == 0


# Forks.


def test_r12_forked_child_has_no_function_hooks():
    """In a forked child no hook, mode, patch or thread profile is on; in the parent all stays."""
    result = run_program("forked.py")

    assert result.stderr == ""
    assert result.stdout.splitlines() == [
        "child: events [], modes 0, hooks [], apply patched False, profile None",
        "child after leaving: events [], modes 0, hooks [], apply patched False, profile None",
        "child's own scope: ['ones']",
        "parent: events ['zeros'], modes 1, hooks ['Log'], apply patched True, profile ours",
        "after: events ['zeros'], modes 0, hooks [], apply patched False, profile None",
    ]


def test_r12_loader_workers_have_no_function_hooks():
    """Forked DataLoader workers run without our mode, and their samples are right."""
    result = run_program("loader.py")

    assert result.stderr == ""
    assert result.stdout.splitlines() == ["modes in workers: {0}", "samples: [0.0, 2.0, 4.0, 6.0]"]
