"""Turning the function level on and off: the mode, the patch of custom functions, and others'."""

import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

from hookline import FunctionHook, FunctionNode, ModuleHook, get_function_hooks
from hookline.core.records import TimeRow
from hookline.core.scope import entry_of
from hookline.functions import places, reach
from hookline.record.measures import Measures
from hookline.record.run import Recorder
from hookline.torch_base.private import apply_owner
from tests.custom import Double
from tests.functions.reached import BOUND_IS_SEEN, is_patched


class Log(FunctionHook):
    """Notes the functions that it sees, by name."""

    def __init__(self, name="Log", names=None):
        self.name = name
        self.names = [] if names is None else names
        self.backwards = []

    def forward_postprocess(self, function, in_data):
        self.names.append(function.name)

    def backward_postprocess(self, function, in_data, out_grad):
        self.backwards.append(function.name)


class Counting(TorchFunctionMode):
    """A mode of somebody else's: notes what it sees and hands it on."""

    def __init__(self):
        self.names = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.names.append(func.__name__)
        return func(*args, **(kwargs or {}))


bound = Double.apply  # before any hook is on


def double(x):
    return Double.apply(x)


def modes():
    return [torch._C._get_function_stack_at(i) for i in range(torch._C._len_torch_function_stack())]


def close(hook):
    hook.__exit__(None, None, None)


# The mode.


def test_r1_nothing_on_without_hooks():
    """No mode and no patch before a scope and after it."""
    assert modes() == []
    assert not is_patched()
    with Log():
        assert len(modes()) == 1
        assert is_patched()

    assert modes() == []
    assert not is_patched()


def test_r1_other_hooks_turn_nothing_on():
    """Neither module hooks nor the hooks of a `FunctionNode` need the mode or the patch."""

    class Modules(ModuleHook):
        def forward_preprocess(self, call):
            pass

    node = FunctionNode(torch.relu)
    node.add_hook(Log())
    with Modules():
        assert modes() == []
        assert not is_patched()
    node.delete_hook("Log")


def test_one_mode_for_many_hooks():
    """However many hooks there are, one mode is on the stack, and each sees a function once."""
    with Log("a") as a, Log("b") as b, Log("c") as c:
        assert len(modes()) == 1
        torch.zeros(2)

    assert a.names == b.names == c.names == ["zeros"]


def test_scopes_end_in_any_order():
    """The hook that was first may go first; the mode goes with the last."""
    a, b, c = Log("a"), Log("b"), Log("c")
    for hook in (a, b, c):
        hook.__enter__()
    close(a)
    torch.zeros(2)
    close(c)
    torch.ones(2)
    close(b)
    torch.full((2,), 1.0)

    assert (a.names, b.names, c.names) == ([], ["zeros", "ones"], ["zeros"])
    assert modes() == []


def test_c1_removed_on_any_exit():
    """An error that leaves the scope takes the mode off."""
    with pytest.raises(SystemExit), Log():
        raise SystemExit

    assert modes() == []
    assert not is_patched()


def test_failed_start_leaves_nothing(monkeypatch):
    """If turning on fails half-way, nothing stays on, and a later scope works."""

    error = OSError("no patch today")

    def refuse():
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(reach._custom_switch, "_on", refuse, raising=True)
        with pytest.raises(OSError, match="no patch today") as caught:
            Log().__enter__()
    assert caught.value is error
    assert modes() == []
    assert get_function_hooks() == {}

    with Log() as log:
        double(torch.ones(2))
    assert log.names == ["ones", "Double"]


# Modes of others.


@pytest.mark.parametrize("order", ["theirs above", "theirs below"])
def test_r6_with_a_mode_of_the_users(order):
    """A mode above or below ours sees what it saw without hooks, and so do we."""
    theirs, log = Counting(), Log()
    outer, inner = (log, theirs) if order == "theirs above" else (theirs, log)
    with outer, inner:
        x = torch.ones(2, requires_grad=True)
        (x + 1).sum().backward()
    alone = Counting()
    with alone:
        x = torch.ones(2, requires_grad=True)
        (x + 1).sum().backward()

    assert log.names == ["ones", "add", "sum"]
    assert log.backwards == ["sum", "add"]
    assert theirs.names == alone.names


def test_functions_that_a_backward_repeats():
    """What a reentrant checkpoint repeats is seen in forward and backward, whoever calls it."""

    def inner(x):
        return x.exp().sin()

    def run(x):
        x.grad = None
        checkpoint(inner, x * 2, use_reentrant=True).sum().backward()
        return x.grad

    x = torch.ones(2, requires_grad=True)
    expected = run(x)
    for theirs in (nullcontext(), Counting()):
        with theirs, Log() as log:
            gradient = run(x)
        assert log.names == ["mul", "exp", "sin", "sum", "exp", "sin"]
        assert log.backwards == ["sum", "sin", "exp", "mul"]
        assert torch.equal(gradient, expected)


def test_mode_above_decides_what_we_see():
    """We see the calls that a mode above ours makes of it, since it stands before us."""

    class Twice(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            if func is torch.relu:
                return torch.sigmoid(func(*args, **(kwargs or {})))
            return func(*args, **(kwargs or {}))

    x = torch.ones(2)
    with Log() as log, Twice():
        y = torch.relu(x)

    assert log.names == ["relu", "sigmoid"]
    assert torch.equal(y, torch.sigmoid(torch.relu(x)))


def test_r6_scope_that_ends_under_a_mode_of_the_users():
    """Our mode is taken out from below others, which stay in their order."""
    log, first, second = Log(), Counting(), Counting()
    log.__enter__()
    with first, second:
        close(log)
        assert modes() == [first, second]
        torch.zeros(2)
    assert modes() == []

    assert log.names == []
    assert first.names == second.names == ["zeros"]


def test_r6_scope_that_begins_and_ends_inside_a_mode_of_the_users():
    """A mode below ours is still there afterwards."""
    theirs = Counting()
    with theirs:
        with Log() as log:
            torch.zeros(2)
        assert modes() == [theirs]
        torch.ones(2)

    assert log.names == ["zeros"]
    assert theirs.names == ["zeros", "ones"]


@pytest.mark.parametrize("order", ["device inside", "device outside"])
def test_device_context(order):
    """A `torch.device` context gives tensors their device, and we see one function each."""
    log, device = Log(), torch.device("meta")
    outer, inner = (log, device) if order == "device inside" else (device, log)
    with outer, inner:
        x = torch.ones(2)
        y = x + 1

    assert (x.device.type, y.device.type) == ("meta", "meta")
    assert log.names == ["ones", "add"]
    assert modes() == []


def test_default_device_set_in_a_scope():
    """The default device may change while a scope is open, and stays changed after it."""
    try:
        with Log() as log:
            torch.set_default_device("meta")
            assert torch.ones(2).device.type == "meta"
        assert len(modes()) == 1  # torch's own
        assert torch.ones(2).device.type == "meta"
    finally:
        torch.set_default_device(None)

    assert log.names == ["ones"]
    assert modes() == []


def test_tensor_subclass():
    """A tensor subclass with its own `__torch_function__` has one event a call, and its type."""

    class Tagged(torch.Tensor):
        seen = ()

        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            cls.seen = (*cls.seen, func.__name__)
            return super().__torch_function__(func, types, args, kwargs or {})

    x = torch.ones(2).as_subclass(Tagged)
    with Log() as log:
        y = x + 1

    assert log.names == ["add"]
    assert type(y) is Tagged
    assert "add" in Tagged.seen


# The patch of custom functions.


def test_custom_function_bound_before():
    """A custom function is seen by its class name, also through an `apply` bound before.

    Where torch leads that past Python, what it calls is seen, and its backward by its name.
    """
    x = torch.ones(2, requires_grad=True)
    with Log() as log:
        (bound(x) + Double.apply(x)).sum().backward()

    assert log.names == ["Double" if BOUND_IS_SEEN else "mul", "Double", "add", "sum"]
    assert log.backwards == ["sum", "add", "Double", "Double"]
    assert torch.equal(x.grad, torch.full((2,), 4.0))


def test_custom_function_inside_another():
    """What a custom function calls, custom ones and torch's own, belongs to it."""

    class Outer(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return double(x.exp())

        @staticmethod
        def backward(ctx, gradient):
            return double(gradient)

    x = torch.ones(2, requires_grad=True)
    with Log() as log:
        Outer.apply(x).sum().backward()

    assert log.names == ["Outer", "sum"]
    assert log.backwards == ["sum", "Outer"]


def test_r6_foreign_patch_over_ours():
    """Who patches `apply` over ours stays; ours hands on, and is used again by later scopes."""
    seen = []
    log = Log()
    log.__enter__()
    ours = vars(apply_owner)["apply"]

    def theirs(cls, *args):
        seen.append(cls.__name__)
        return ours.__get__(None, cls)(*args)

    foreign = classmethod(theirs)
    apply_owner.apply = foreign
    try:
        double(torch.ones(2))
        close(log)
        assert vars(apply_owner)["apply"] is foreign
        y = double(torch.ones(2))
        assert torch.equal(y, torch.full((2,), 2.0))
        assert log.names == ["ones", "Double"]
        with Log() as later:
            double(torch.ones(2))
        assert later.names == ["ones", "Double"]
        assert vars(apply_owner)["apply"] is foreign
        assert seen == ["Double"] * 3
    finally:
        apply_owner.apply = ours

    # It put ours back, which hands on only, and is gone after the next scope.
    double(torch.ones(2))
    with Log() as again:
        double(torch.ones(2))
    assert again.names == ["ones", "Double"]
    assert log.names == ["ones", "Double"]
    assert not is_patched()


def test_r6_foreign_patch_below_ours(monkeypatch):
    """A patch of `apply` that was there before is called, and is there again afterwards."""
    seen = []

    def theirs(cls, *args):
        seen.append(cls.__name__)
        return super(apply_owner, cls).apply(*args)

    foreign = classmethod(theirs)
    with monkeypatch.context() as patched:
        patched.setattr(apply_owner, "apply", foreign)
        with Log() as log:
            double(torch.ones(2))
        assert vars(apply_owner)["apply"] is foreign

    assert log.names == ["ones", "Double"]
    assert seen == ["Double"]


# Changes inside of events.


@pytest.mark.parametrize("phase", ["forward_preprocess", "forward_postprocess"])
def test_p6_hook_that_leaves_in_its_callback(phase):
    """A scope may be closed in the hook's own callback: no event follows, others go on."""

    class Leaves(FunctionHook):
        def __init__(self):
            self.calls = 0

    def leave(self, function, in_data):
        self.calls += 1
        close(self)

    hook = type("Leaving", (Leaves,), {phase: leave})()
    with Log() as other:
        hook.__enter__()
        torch.zeros(2)
        torch.ones(2)

    assert hook.calls == 1
    assert other.names == ["zeros", "ones"]
    assert modes() == []


def test_r1_last_hook_leaves_in_its_callback():
    """Then nothing is seen any more, and nothing is on after the next scope at the latest."""

    class Leaves(Log):
        def forward_postprocess(self, function, in_data):
            super().forward_postprocess(function, in_data)
            close(self)

    hook = Leaves()
    hook.__enter__()
    torch.zeros(2)
    double(torch.ones(2))
    assert hook.names == ["zeros"]
    assert not is_patched()

    with Log() as log:
        torch.ones(2)
    assert log.names == ["ones"]
    assert modes() == []


def test_r1_last_hook_leaves_in_the_backward():
    """The same in a callback of the backward; the gradients are right."""

    class Leaves(Log):
        def backward_postprocess(self, function, in_data, out_grad):
            super().backward_postprocess(function, in_data, out_grad)
            close(self)

    hook = Leaves()
    x = torch.ones(2, requires_grad=True)
    hook.__enter__()
    (x * 3).exp().sum().backward()

    assert hook.backwards == ["sum"]
    assert torch.equal(x.grad, 3 * (x * 3).exp().detach())
    with Log():
        pass
    assert modes() == []


def test_hook_that_replaces_itself_in_its_callback():
    """The last hook goes and another comes in one callback: one mode, each function seen once."""

    class Hands(Log):
        def forward_postprocess(self, function, in_data):
            super().forward_postprocess(function, in_data)
            close(self)
            successor.__enter__()

    hook, successor = Hands("first"), Log("second")
    hook.__enter__()
    torch.zeros(2)
    torch.ones(2)
    double(torch.ones(2))
    close(successor)

    assert hook.names == ["zeros"]
    assert successor.names == ["ones", "ones", "Double"]
    assert modes() == []
    assert not is_patched()


def test_p6_hook_added_in_a_callback():
    """A hook that comes in a callback waits for the next function."""
    added = Log("added")

    class Adds(FunctionHook):
        def forward_preprocess(self, function, in_data):
            if not added.names and "added" not in get_function_hooks():
                added.__enter__()

    with Adds():
        torch.zeros(2)
        torch.ones(2)
    close(added)

    assert added.names == ["ones"]


def test_scope_inside_a_custom_function():
    """A scope that is opened and closed in a custom function's forward leaves nothing on."""

    class Opens(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            with inner:
                return x.exp()

        @staticmethod
        def backward(ctx, gradient):
            return gradient

    inner = Log("inner")
    Opens.apply(torch.ones(2))
    assert inner.names == ["exp"]
    assert modes() == []
    assert not is_patched()


# Hooks on all threads.


def test_all_threads_and_a_scope_are_independent():
    """The mode stays while either needs it, whichever goes first."""
    log = Log()
    with Recorder(Measures(time=True, level="function")) as recorder:
        log.__enter__()
        torch.zeros(2)
    torch.ones(2)
    assert len(modes()) == 1
    close(log)
    assert modes() == []
    with log:
        with Recorder(Measures(time=True, level="function")) as second:
            torch.arange(2)
        assert len(modes()) == 1

    assert log.names == ["zeros", "ones", "arange"]
    assert [row.name for row in recorder.tables().get(TimeRow, [])] == ["zeros"]
    assert [row.name for row in second.tables()[TimeRow]] == ["arange"]
    assert modes() == []
    assert len(places.everywhere) == 0
    assert not is_patched()


def test_c5_hooks_on_all_threads_come_after_the_threads_own():
    """In each event the thread's scopes come first, then the hooks on all threads."""
    order = []

    class Named(Log):
        def forward_preprocess(self, function, in_data):
            order.append(self.name)

    handle = places.everywhere.add(entry_of(Named("everywhere"), FunctionHook, "everywhere"))
    try:
        with Named("scoped"):
            torch.zeros(2)
    finally:
        handle.remove()

    assert order == ["scoped", "everywhere"]


@pytest.mark.parametrize(
    "kinds",
    [["registered"], ["everywhere"], ["modules"], ["functions"], ["registered", "functions"]],
    ids=" ".join,
)
def test_interpreter_ends_quietly_with_hooks_on(kinds):
    """A program that ends with hooks still on says nothing about it."""
    program = Path(__file__).parent / "programs" / "left_on.py"
    result = subprocess.run(
        [sys.executable, program, *kinds], capture_output=True, text=True, check=False
    )

    assert (result.returncode, result.stdout, result.stderr) == (0, "done\n", "")
