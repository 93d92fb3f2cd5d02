"""Runs of autograd's engine: when calls begin and end in them, and that nothing stays behind."""

import contextlib
import gc
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from hookline.core.calls import Call
from hookline.core.demand import demand
from hookline.core.entry import Entry, Lineup
from hookline.core.phases import Phase
from hookline.core.thread import local
from hookline.torch_base import backward, stack
from hookline.torch_base.marks import Role, mark
from hookline.torch_base.private import sequence_number
from hookline.torch_base.window import Window

ORIGINAL = torch.autograd._engine_run_backward


@pytest.fixture(autouse=True)
def engine(monkeypatch):
    """The engine's part at autograd's entry, on for the test, with hooks that want backwards."""
    monkeypatch.setattr(demand, "backward", 1)
    backward.patch.install()
    yield
    backward.patch.uninstall()


class Events(list):
    """What happened, in order; its `lineup` notes begins, ends and aborts of calls."""

    def __init__(self):
        def note(what):
            return lambda name, *_: self.append((what, name))

        self.on_begin = lambda name: None
        callbacks = {
            Phase.BACKWARD_PRE: lambda name: (self.append(("begin", name)), self.on_begin(name)),
            Phase.BACKWARD: note("end"),
        }
        entry = Entry(
            None,
            callbacks,
            name="events",
            paired=True,
            aborted=lambda call, error: self.append(("aborted", call.name)),
        )
        self.lineup = Lineup([entry])

    def watch(self, name, tensor):
        """Note when the node that made a tensor has run."""
        tensor.grad_fn.register_hook(lambda *_: self.append(("node", name)))
        return tensor

    def of(self, *what):
        return [event for event in self if event[0] in what]


class SomeWindow(Window):
    def current(self):
        return self.call.events.lineup

    def arguments(self):
        return (self.call.name,)


class SomeCall(Call):
    """The call of some level: what it makes inside `with` is its own."""

    window_type = SomeWindow

    def __init__(self, name, events, parent=None):
        self.name, self.events, self.parent = name, events, parent

    def __enter__(self):
        self.thread = local.thread.number
        self.start = sequence_number()
        return self

    def __exit__(self, *_):
        self.stop = sequence_number()

    def returns(self, tensor, place=0):
        mark(tensor.grad_fn, tensor, self, Role.OUTPUT, place)
        return tensor

    def describe(self):
        return self.name


def leaf(value=1.0):
    return torch.full((2,), value, requires_grad=True)


# ---------------------------------------------------------------------------- begins and ends


def test_a_call_begins_before_its_first_node_and_ends_after_its_last():
    """The nodes of the call run between begin and end; those around it outside."""
    events, x = Events(), leaf()
    before = events.watch("before", x * 2)
    with SomeCall("call", events) as call:
        inner = events.watch("inner", before.exp())
        out = call.returns(events.watch("out", inner * 3))
    after = events.watch("after", out + 1)
    after.sum().backward()

    assert events == [
        ("node", "after"),
        ("begin", "call"),
        ("node", "out"),
        ("node", "inner"),
        ("end", "call"),
        ("node", "before"),
    ]


def test_calls_nest_as_they_did_in_forward():
    """Inner calls begin after and end before the call around them; siblings follow each other."""
    events, x = Events(), leaf()
    with SomeCall("outer", events) as outer:
        with SomeCall("first", events, outer) as first:
            y = first.returns(x * 2)
        with SomeCall("second", events, outer) as second:
            y = second.returns(y * 3)
        outer.returns(y)
    y.sum().backward()

    assert events == [
        ("begin", "outer"),
        ("begin", "second"),
        ("end", "second"),
        ("begin", "first"),
        ("end", "first"),
        ("end", "outer"),
    ]


def test_a_call_that_only_encloses_others_is_there_too():
    """The call around has no node of its own in the run, but its inner call's nodes are its own."""
    events, x = Events(), leaf()
    with SomeCall("outer", events) as outer:
        with SomeCall("inner", events, outer) as inner:
            aside = inner.returns(x * 2)
        outer.returns(x * 5)
    aside.sum().backward()

    assert events == [("begin", "outer"), ("begin", "inner"), ("end", "inner"), ("end", "outer")]


def test_the_end_comes_when_the_leaves_have_their_gradients():
    """Ends run after what the call accumulates; a leaf that another call feeds comes later."""
    own, shared = [leaf(), leaf()], leaf()
    events, grads = Events(), {}
    events.on_begin = lambda name: grads.setdefault(f"begin {name}", own[int(name)].grad)
    x = torch.ones(2)
    for number in range(2):
        with SomeCall(str(number), events) as call:
            x = call.returns(x * own[number] + shared)
    ends = []
    entry = Entry(
        None,
        {Phase.BACKWARD: lambda name: ends.append((own[int(name)].grad, shared.grad))},
        name="ends",
    )
    events.lineup = Lineup([*events.lineup.entries, entry])
    x.sum().backward()

    assert grads == {"begin 1": None, "begin 0": None}
    assert [tuple(None if g is None else g.tolist() for g in pair) for pair in ends] == [
        ([2.0, 2.0], None),
        ([1.0, 1.0], [2.0, 2.0]),
    ]


def test_what_is_still_open_ends_with_the_run():
    """A call at the beginning of the graph has no node below: it ends before `backward` returns."""
    events, x = Events(), leaf()
    with SomeCall("call", events) as call:
        out = call.returns(x * 2)
    out.sum().backward()

    assert events == [("begin", "call"), ("end", "call")]


def test_a_partial_run_has_the_calls_on_its_way_only():
    """`inputs=` and `grad`: calls off the path have no events; the way may end inside a call."""
    events, x, y = Events(), leaf(), leaf()
    with SomeCall("x", events) as call:
        one = call.returns(x * 2)
    with SomeCall("y", events) as call:
        middle = y * 3
        two = call.returns(middle.exp())
    total = (one + two).sum()

    torch.autograd.grad(total, x, retain_graph=True)
    assert events == [("begin", "x"), ("end", "x")]
    events.clear()
    total.backward(inputs=[y], retain_graph=True)
    assert events == [("begin", "y"), ("end", "y")]
    events.clear()
    torch.autograd.grad(total, middle, retain_graph=True)
    assert events == [("begin", "y"), ("end", "y")]
    events.clear()
    torch.autograd.grad(total, [one, two])
    assert events == []


def test_calls_of_two_threads_do_not_mix():
    """Numbers of nodes are each thread's own: every call has its begin and end in order."""
    events = {name: Events() for name in "ab"}

    def forward(name):
        x = leaf()
        for number in range(3):
            with SomeCall(f"{name}{number}", events[name]) as outer:
                with SomeCall(f"{name}{number}.inner", events[name], outer) as inner:
                    x = inner.returns(x * 2)
                x = outer.returns(x + 1)
        return x

    outs = []
    for name in "ab":
        with ThreadPoolExecutor(1) as pool:
            outs.append(pool.submit(forward, name).result())
    sum(outs).sum().backward()

    for name in "ab":
        assert events[name] == [
            event
            for number in (2, 1, 0)
            for event in (
                ("begin", f"{name}{number}"),
                ("begin", f"{name}{number}.inner"),
                ("end", f"{name}{number}.inner"),
                ("end", f"{name}{number}"),
            )
        ]


def test_without_hooks_for_backward_nothing_is_walked(monkeypatch):
    """As long as no hook wants backward events, marks are not looked at."""
    monkeypatch.setattr(demand, "backward", 0)
    monkeypatch.setattr(backward, "visits", lambda *_: pytest.fail("the graph was walked"))
    leaf().sum().backward()


# ------------------------------------------------------------------------- gradients on the way


def test_gradients_are_collected_and_may_be_changed():
    """A window sees the gradient of each output and says which one flows on."""
    x, seen = leaf(), []

    class Doubles(SomeWindow):
        def begin(self, thread):
            seen.append(self.out[0].tolist())
            self.out[0] = self.out[0] * 2
            super().begin(thread)

    class DoublingCall(SomeCall):
        window_type = Doubles

    with DoublingCall("call", Events()) as call:
        out = call.returns(x * 3)
    (out * 5).sum().backward()

    assert seen == [[5.0, 5.0]]
    assert x.grad.tolist() == [30.0, 30.0]


def test_an_untouched_gradient_is_the_same_object():
    """Where nothing was changed, the engine hands on what it had."""
    events, x, seen = Events(), leaf(), []
    with SomeCall("call", events) as call:
        out = call.returns(x * 3)
    out.grad_fn.register_prehook(lambda grads: seen.append(grads[0]))  # before ours
    gradient = torch.full((2,), 7.0)
    out.grad_fn.register_hook(lambda _, grads: seen.append(grads[0]))  # after the node
    out.backward(gradient)

    assert seen[0].data_ptr() == seen[1].data_ptr() == gradient.data_ptr()


# ------------------------------------------------------------------------- errors and clean-up


class Trouble(Exception):  # noqa: N818 - it is no error of anybody's
    pass


class Fails(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, fail):
        ctx.fail = fail
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        if ctx.fail:
            ctx.fail.clear()
            raise Trouble
        return grad, None


def test_an_error_aborts_what_is_open_inner_first():
    """Before the error leaves, open calls are aborted; a second run has all its events."""
    events, x = Events(), leaf()
    with SomeCall("outer", events) as outer:
        with SomeCall("inner", events, outer) as inner:
            y = inner.returns(Fails.apply(x, [1]))
        with SomeCall("done", events, outer) as done:
            y = done.returns(y * 2)
        outer.returns(y)
    total = y.sum()
    with pytest.raises(Trouble) as caught:
        total.backward(retain_graph=True)

    assert caught.value.__notes__ == ["hookline: in the backward of inner"]
    assert events == [
        ("begin", "outer"),
        ("begin", "done"),
        ("end", "done"),
        ("begin", "inner"),
        ("aborted", "inner"),
        ("aborted", "outer"),
    ]
    events.clear()
    total.backward()
    assert len(events.of("begin")) == len(events.of("end")) == 3
    assert x.grad.tolist() == [2.0, 2.0]


def test_an_error_outside_of_all_calls_gets_no_note():
    """It is not of a watched call."""
    events, x = Events(), leaf()
    with SomeCall("call", events) as call:
        out = call.returns(x * 2)
    failing = Fails.apply(out, [1])
    with pytest.raises(Trouble) as caught:
        failing.sum().backward()

    assert not hasattr(caught.value, "__notes__")
    assert events == []


@pytest.mark.parametrize("fail", [False, True])
def test_nothing_of_a_run_stays_on_the_graph(fail, monkeypatch):
    """With the graph still alive and no garbage collection, the run and its windows are gone."""
    runs, windows = [], []
    plan = backward.Run.plan

    def planning(self, *args):
        runs.append(weakref.ref(self))
        plan(self, *args)

    class SeenWindow(SomeWindow):
        def __init__(self, call, run):
            super().__init__(call, run)
            windows.append(weakref.ref(self))

    class SeenCall(SomeCall):
        window_type = SeenWindow

    monkeypatch.setattr(backward.Run, "plan", planning)
    events, x = Events(), leaf()
    gc.disable()
    try:
        with SeenCall("call", events) as call:
            out = call.returns(Fails.apply(x, [1] if fail else []))
        with contextlib.suppress(Trouble):
            out.sum().backward(retain_graph=True)
        assert len(runs) == len(windows) == 1
        assert [kept() for kept in runs + windows] == [None, None]
    finally:
        gc.enable()

    assert [event[0] for event in events] == ["begin", "aborted" if fail else "end"]
    thread = local.thread
    assert (thread.runs, thread.stack, thread.busy) == ([], [], False)


def test_r5_ctrl_c_as_a_run_ends_leaves_nothing_for_the_next(monkeypatch):
    """Where it comes as the run is taken back from worker threads, that is done all the same."""
    presses = [1]

    def end_lending(outer):
        if presses:
            presses.pop()
            raise KeyboardInterrupt
        stack.end_lending(outer)

    monkeypatch.setattr(backward, "end_lending", end_lending)
    events, x = Events(), leaf()
    with SomeCall("call", events) as call:
        out = call.returns(x * 2)
    with pytest.raises(KeyboardInterrupt):
        out.sum().backward()

    assert stack.lent() is None
    assert local.thread.runs == []


# --------------------------------------------------------------------------- runs inside runs


class Nested(torch.autograd.Function):
    """Its backward works on a graph of its own, some levels deep."""

    @staticmethod
    def forward(ctx, x, work):
        ctx.work = work
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        with torch.enable_grad():
            ctx.work()
        return grad, None


def test_a_run_inside_a_run_has_its_own_calls():
    """The inner run's calls begin and end inside the outer call that is open."""
    events, x = Events(), leaf()

    def work():
        with SomeCall("inside", events) as call:
            out = call.returns(leaf() * 2)
        out.sum().backward()

    with SomeCall("outside", events) as call:
        y = call.returns(Nested.apply(x * 1, work))
    y.sum().backward()

    assert events == [
        ("begin", "outside"),
        ("begin", "inside"),
        ("end", "inside"),
        ("end", "outside"),
    ]


def test_a_run_over_the_same_graph_started_inside_is_a_run_of_its_own():
    """Each of the two runs has each event once."""
    events, x = Events(), leaf()
    with SomeCall("call", events) as call:
        y = call.returns(x * 2)
    total = y.sum()
    again = [1]

    def work():
        if again:
            again.clear()
            total.backward(retain_graph=True)

    (Nested.apply(y, work).sum() + total).backward()

    assert events == [("begin", "call"), ("end", "call")] * 2
    assert x.grad.tolist() == [6.0, 6.0]


def levels(events, depth, threads, fail=()):
    """Work for `Nested` that nests so deep that autograd goes on in a worker thread."""

    def work(level):
        threads.add(local.thread)
        if level in fail:
            raise Trouble
        if level < depth:
            with SomeCall(level, events) as call:
                out = call.returns(Nested.apply(leaf() * 1, lambda: work(level + 1)))
            out.sum().backward()

    return work


def test_r11_worker_threads_act_for_the_thread_that_called():
    """Where autograd hands a nested run to a worker, events and hooks are those of the caller."""
    events, threads, depth = Events(), set(), 70
    levels(events, depth, threads)(0)

    assert len(threads) == 2
    assert events == [("begin", n) for n in range(depth)] + [
        ("end", n) for n in reversed(range(depth))
    ]
    worker = next(thread for thread in threads if thread is not local.thread)
    assert worker.works_for is local.thread
    assert worker.modules is local.thread.modules
    assert worker.clock is local.thread.clock


def test_r3_an_error_in_a_worker_thread_keeps_its_note():
    """It comes out of all levels with the note of the innermost call, and all are aborted."""
    events, threads, depth = Events(), set(), 70
    with pytest.raises(Trouble) as caught:
        levels(events, depth, threads, fail=[depth])(0)

    assert len(threads) == 2
    assert caught.value.__notes__ == [f"hookline: in the backward of {depth - 1}"]
    assert events.of("aborted") == [("aborted", n) for n in reversed(range(depth))]
    assert events.of("end") == []


def test_c11_a_run_started_by_a_callback_is_not_watched():
    """While a hook object's callback runs, backwards in it have no events."""
    events, x = Events(), leaf()
    with SomeCall("first", events) as first:
        y = first.returns(x * 2)
    with SomeCall("second", events) as second:
        y = second.returns(y * 3)
    total = y.sum()

    def on_begin(name):
        assert torch.autograd.grad(total, x, retain_graph=True)[0].tolist() == [6.0, 6.0]
        events.append(("inside", name))

    events.on_begin = on_begin
    total.backward(retain_graph=True)

    assert events == [
        (what, name) for name in ("second", "first") for what in ("begin", "inside", "end")
    ]


def test_the_entry_is_torchs_own_again(engine):
    """Taken out, the function is the very object that was there."""
    assert torch.autograd._engine_run_backward is not ORIGINAL
    backward.patch.uninstall()
    try:
        assert torch.autograd._engine_run_backward is ORIGINAL
    finally:
        backward.patch.install()
