"""Errors under function hooks: the same object comes out, ends are paired, nothing is left on."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from hookline import FunctionHook, FunctionNode, ModuleHook, TimerHook
from hookline.core.thread import local
from hookline.module_hooks import TimerHook as ModuleTimerHook
from tests.functions.reached import is_patched
from tests.logs import PHASES, FunctionLog

ERRORS = (ValueError, KeyboardInterrupt, SystemExit)
CLEANED = "while cleaning up: "


class Log(FunctionLog):
    """Notes every event of a function, and raises at one of them."""

    def __init__(self, name, events, *, at=None, error=None, function="exp", aborted_error=None):
        self.name = name
        self.events = events
        self.at = at
        self.error = error
        self.function = function
        self.aborted_error = aborted_error
        self.aborted_by = []

    def _log(self, phase, function):
        self.events.append((self.name, phase, function.name))
        if (phase, function.name) == (self.at, self.function) and self.error is not None:
            raise self.error

    def aborted(self, call, exception):
        self.events.append((self.name, "aborted", call.name))
        self.aborted_by.append(exception)
        if self.aborted_error is not None:
            raise self.aborted_error


class Faulty(torch.autograd.Function):
    """Raises in one direction."""

    @staticmethod
    def forward(ctx, x, error, direction):
        ctx.error = error if direction == "backward" else None
        if direction == "forward":
            raise error
        return x.exp()

    @staticmethod
    def backward(ctx, gradient):
        if ctx.error is not None:
            raise ctx.error
        return gradient, None, None


def assert_clean(*, hooks=0):
    """Between events, and with so many scopes open, just this is on."""
    thread = local.thread
    assert torch._C._len_torch_function_stack() == bool(hooks)
    assert len(thread.functions) == hooks
    assert not thread.busy
    assert not thread.hidden
    assert thread.culprit is None
    assert thread.stack == []
    assert thread.runs == []
    assert thread.clock.depth == 0


def our_notes(error):
    return [note for note in getattr(error, "__notes__", ()) if note.startswith("hookline: ")]


def assert_paired(events, names):
    """Each begin of each hook has one end, and ends come in the inverse order of begins."""
    for name in names:
        running = []
        for _, phase, function in [event for event in events if event[0] == name]:
            if phase in ("forward_pre", "backward_pre"):
                running.append(function)
            else:
                assert running.pop() == function
        assert running == []


def step(x):
    """A forward and backward of three functions; `exp` is the one in the middle."""
    (x * 2).exp().sum().backward()


def expected_gradient():
    x = torch.arange(3.0, requires_grad=True)
    step(x)
    return x.grad


# A callback raises.


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("phase", PHASES)
def test_c9_error_of_a_callback(phase, error):
    """It leaves as the same object; the hooks whose begin ran get one end; a retry works."""
    expected = expected_gradient()
    x = torch.arange(3.0, requires_grad=True)
    events, raised = [], error("from the callback")
    hooks = [Log("a", events), Log("b", events, at=phase, error=raised), Log("c", events)]
    with hooks[0], hooks[1], hooks[2]:
        with pytest.raises(error) as caught:
            step(x)
        assert caught.value is raised
        assert_clean(hooks=3)

        # The one whose begin raised has no end, since it counts as not run.
        begins = [e for e in events if e[0] == "b" and e[2] == "exp"]
        assert begins[-1] == ("b", phase, "exp")
        if phase.endswith("pre"):
            events.remove(("b", phase, "exp"))
            assert ("c", phase, "exp") not in events
            assert events[-1] == ("a", "aborted", "exp")
        else:
            assert events[-1] == ("c", "aborted", "exp")
        assert_paired(events, "abc")
        assert [hook.aborted_by for hook in hooks if hook.aborted_by] == [[raised]]

        events.clear()
        hooks[1].error = x.grad = None
        step(x)
        assert_paired(events, "abc")
        assert len(events) == 3 * 3 * 4
        assert torch.equal(x.grad, expected)
    assert_clean()


@pytest.mark.parametrize("phase", PHASES)
def test_r3_note_of_a_callback(phase):
    """One note says which hook raised, in which phase of which function."""
    x = torch.arange(3.0, requires_grad=True)
    raised = ValueError("from the callback")
    with Log("first", []), Log("culprit", [], at=phase, error=raised):
        with pytest.raises(ValueError, match="from the callback"):
            step(x)

        (note,) = our_notes(raised)
        assert note.startswith(f"hookline: raised by {phase} hook culprit of function exp[")

        with pytest.raises(ValueError, match="from the callback"):
            step(x)
        assert len(our_notes(raised)) == 1


def test_r3_note_names_the_module_path_and_index():
    """Inside a model the note has the function's address, with the call's index."""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Sequential(nn.Linear(2, 2), nn.Tanh())

        def forward(self, x):
            return self.inner(self.inner(x))

    raised = ValueError("second call")

    class Second(FunctionHook):
        def forward_preprocess(self, function, in_data):
            if function.index == 1 and function.name == "tanh":
                raise raised

    with Second(), pytest.raises(ValueError, match="second call"):
        Model()(torch.ones(1, 2))

    assert our_notes(raised) == [
        "hookline: raised by forward_pre hook Second of function inner.1:tanh[1]"
    ]


@pytest.mark.parametrize("phase", PHASES)
def test_c9_error_in_aborted_becomes_a_detail(phase):
    """What another hook raises while it is ended is a note on the first error."""
    x = torch.arange(3.0, requires_grad=True)
    raised = ValueError("first")
    hooks = [
        Log("a", [], aborted_error=KeyError("in a")),
        Log("b", [], at=phase, error=raised),
        Log("c", [], aborted_error=KeyError("in c")),
    ]
    with hooks[0], hooks[1], hooks[2], pytest.raises(ValueError, match="first") as caught:
        step(x)

    assert caught.value is raised
    name = "a" if phase.endswith("pre") else "c"
    details = [note for note in raised.__notes__ if note.startswith(CLEANED)]
    assert details == [f"{CLEANED}{name} raised KeyError('in {name}')"]
    assert len(our_notes(raised)) == 1


def test_c9_hook_without_aborted():
    """A hook that does not override `aborted` is simply not told."""

    class Plain(FunctionHook):
        def forward_preprocess(self, function, in_data):
            pass

    with Plain(), Log("b", [], at="forward", error=ValueError()), pytest.raises(ValueError):  # noqa: PT011
        torch.exp(torch.ones(2))
    assert_clean()


# A function raises.


def test_r3_error_of_a_function():
    """The function's own error: same type and text, and one note with the inputs' shapes."""
    events = []
    with Log("a", events):
        with pytest.raises(RuntimeError, match="cannot be multiplied") as caught:
            torch.ones(2, 3) @ torch.ones(2, 3)
        assert_clean(hooks=1)

    assert events[-2:] == [("a", "forward_pre", "matmul"), ("a", "aborted", "matmul")]
    (note,) = our_notes(caught.value)
    assert note.startswith("hookline: raised in function matmul[0], inputs ")
    assert note.count("float32[2, 3]") == 2


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_c9_error_of_a_custom_function(direction, error):
    """Raised in the forward or backward of a custom function, it leaves as the same object."""
    raised = error("inside")
    x = torch.ones(2, requires_grad=True)
    events = []
    with Log("a", events), Log("b", events):
        with pytest.raises(error) as caught:
            Faulty.apply(x * 2, raised, direction).sum().backward()
        assert caught.value is raised
        assert_clean(hooks=2)
        begin = "forward_pre" if direction == "forward" else "backward_pre"
        assert events[-4:] == [
            ("a", begin, "Faulty"),
            ("b", begin, "Faulty"),
            ("a", "aborted", "Faulty"),
            ("b", "aborted", "Faulty"),
        ]
        assert_paired(events, "ab")
        assert len(our_notes(raised)) == 1
        assert "Faulty" in our_notes(raised)[0]

        events.clear()
        x.grad = None
        Faulty.apply(x * 2, raised, None).sum().backward()
        assert_paired(events, "ab")
        assert torch.equal(x.grad, torch.full((2,), 2.0))


def test_r3_error_in_a_model_has_the_innermost_note():
    """With module hooks on too, the one note is the function's: it is the innermost call."""

    class Modules(ModuleHook):
        def __init__(self):
            self.ends = []

        def forward_preprocess(self, call):
            pass

        def aborted(self, call, exception):
            self.ends.append(call.label)

    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(3, 3))
    with Modules() as modules, Log("a", []), pytest.raises(RuntimeError) as caught:
        model(torch.ones(1, 2))

    (note,) = our_notes(caught.value)
    assert note.startswith("hookline: raised in function 1:linear[0], inputs ")
    assert modules.ends == ["1", "Sequential"]


def test_r3_error_that_the_model_catches():
    """A model that catches its functions' errors goes on as without hooks, call after call."""
    error = ValueError("always the same object")

    def attempt(x):
        try:
            return Faulty.apply(x, error, "forward")
        except ValueError:
            return x * 0

    with Log("a", []) as log:
        for _ in range(20):
            attempt(torch.ones(2))

    assert_paired(log.events, "a")
    assert len(error.__notes__) == 1


def test_r3_error_between_functions_has_no_note():
    """An error that no function raised is none of ours."""
    error = ValueError("between")

    def fail():
        F.relu(torch.ones(2))
        raise error

    with Log("a", []), pytest.raises(ValueError, match="between"):
        fail()

    assert our_notes(error) == []


def test_c9_error_of_a_function_node():
    """A function of one's own that raises: its name in the note, one end, nothing hidden after."""
    error = OSError("inside the node")

    def load(x):
        torch.relu(x)
        raise error

    node = FunctionNode(load)
    events = []
    node.add_hook(Log("own", events))
    x = torch.ones(2)
    with Log("scoped", events):
        with pytest.raises(OSError, match="inside the node") as caught:
            node(x)
        assert caught.value is error
        assert_clean(hooks=1)
        torch.relu(x)
    node.delete_hook("own")

    assert events == [
        ("scoped", "forward_pre", "load"),
        ("own", "forward_pre", "load"),
        ("scoped", "aborted", "load"),
        ("own", "aborted", "load"),
        ("scoped", "forward_pre", "relu"),
        ("scoped", "forward", "relu"),
    ]
    assert "function load[0]" in our_notes(error)[0]


def test_c9_error_of_a_tensor_hook_in_backward():
    """An error of the user's tensor hook in the backward ends the functions that are open."""
    error = ValueError("from the tensor hook")

    def fail(gradient):
        raise error

    x = torch.ones(2, requires_grad=True)
    events = []
    with Log("a", events):
        y = x * 2
        z = y.exp()
        y.register_hook(fail)
        with pytest.raises(ValueError, match="from the tensor hook") as caught:
            z.sum().backward()
        assert_clean(hooks=1)

    assert caught.value is error
    assert_paired(events, "a")
    assert len(our_notes(error)) == 1


def test_c9_backward_twice_is_torchs_error():
    """Torch's own errors of a run come out as they are, and the open functions are ended."""
    x = torch.ones(2, requires_grad=True)
    events = []
    with Log("a", events):
        y = x.exp().sum()
        y.backward()
        with pytest.raises(RuntimeError, match="second time"):
            y.backward()
        with pytest.raises(RuntimeError, match="does not require grad"):
            torch.ones(1).backward()
        assert_clean(hooks=1)
    assert_paired(events, "a")


# Timers afterwards.


@pytest.mark.parametrize("phase", PHASES)
def test_c9_timer_is_right_after_a_failure(phase):
    """After an error its calls are closed: later calls are outermost again, and add up."""
    x = torch.arange(3.0, requires_grad=True)
    raised = ValueError("once")
    with TimerHook() as timer, Log("b", [], at=phase, error=raised) as culprit:
        with pytest.raises(ValueError, match="once"):
            step(x)
        assert timer._meter._stacks == {}
        culprit.error = None
        timer.reset()
        step(x)

    assert [name for name, _ in timer.call_history] == ["mul", "exp", "sum", "sum", "exp", "mul"]
    assert timer.total_time() == pytest.approx(sum(time for _, time in timer.call_history))
    assert all(row.self_time == row.total_time for row in timer.rows())


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_c9_timers_of_both_levels_after_a_failure(direction):
    """An error deep in a model closes the calls of both timers, and counts up to where it was."""

    class Model(nn.Module):
        def forward(self, x):
            return Faulty.apply(x, ValueError("deep"), direction).sum()

    model, x = nn.Sequential(nn.Linear(2, 2), Model()), torch.ones(1, 2)
    with ModuleTimerHook() as modules, TimerHook() as functions:
        with pytest.raises(ValueError, match="deep"):
            model(x).backward()
        for timer in (modules, functions):
            assert timer._meter._stacks == {}

    assert functions.summary()["Faulty"][direction]["calls"] == 1
    calls = {row.path: row.calls for row in modules.rows() if row.direction == direction}
    assert calls["1"] == calls[""] == 1


def test_r1_nothing_stays_after_an_error_leaves_the_scope():
    """An error that leaves `with` takes the mode and the patch off."""
    with pytest.raises(KeyboardInterrupt), Log("a", []):
        Faulty.apply(torch.ones(2), KeyboardInterrupt(), "forward")

    assert_clean()
    assert not is_patched()
