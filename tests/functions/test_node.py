"""`FunctionNode`: any callable as one function, with hooks of its own."""

import copy
import functools
import gc
import operator
import pickle
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from hookline import FunctionHook, FunctionNode, HookNameError, HookTypeError, ModuleHook
from hookline.core.thread import module_switch
from tests.custom import Square
from tests.logs import PHASES, FunctionLog


class Log(FunctionLog):
    """Notes every event, in a list that several hooks may share."""

    def __init__(self, name="Log", events=None):
        self.name = name
        self.events = [] if events is None else events
        self.targets = []

    def added(self, target):
        self.targets.append(("added", target))

    def deleted(self, target):
        self.targets.append(("deleted", target))

    def _log(self, phase, function):
        self.events.append((self.name, phase, function.label))


def swish(x):
    return x * torch.sigmoid(x)


class Callable:
    def __call__(self, x):
        return x

    def method(self, x):
        return x


# Calling.


def test_plain_call():
    """Without hooks it returns what the function returns, with nothing turned on."""
    node = FunctionNode(lambda *args, **kwargs: (args, kwargs))

    assert node(1, two=2) == ((1,), {"two": 2})
    assert not module_switch


def test_c4_only_that_function():
    """A hook of a node sees its calls, forward and backward, and no other function."""
    relu = FunctionNode(torch.relu)
    log = Log()
    relu.add_hook(log)
    x = torch.tensor([-1.0, 2.0], requires_grad=True)
    y = relu(x * 2)
    y.sum().backward()
    relu.delete_hook("Log")

    assert [phase for _, phase, _ in log.events] == list(PHASES)
    assert {label.partition("[")[0] for _, _, label in log.events} == {"relu"}
    assert torch.equal(y, torch.relu(x * 2))
    assert torch.equal(x.grad, torch.tensor([0.0, 2.0]))


def test_function_of_ones_own_is_one_function():
    """What a Python function calls inside belongs to it, also for hooks on all functions."""
    x = torch.linspace(-1, 1, 5, requires_grad=True)
    swish(x).sum().backward()
    expected = x.grad
    x.grad = None
    log = Log()
    with log:
        FunctionNode(swish)(x).sum().backward()

    names = [(phase, label.partition("[")[0]) for _, phase, label in log.events]
    assert names == [
        ("forward_pre", "swish"),
        ("forward", "swish"),
        ("forward_pre", "sum"),
        ("forward", "sum"),
        ("backward_pre", "sum"),
        ("backward", "sum"),
        ("backward_pre", "swish"),
        ("backward", "swish"),
    ]
    assert torch.equal(x.grad, expected)


def test_node_inside_a_node():
    """A node that a hooked node calls belongs to it; called by itself it has its events."""
    inner = FunctionNode(swish)
    outer = FunctionNode(lambda x: inner(x) + 1, "outer")
    events = []
    inner.add_hook(Log("inner", events))
    x = torch.ones(2)
    inner(x)
    outer.add_hook(Log("outer", events))
    outer(x)
    outer.delete_hook("outer")
    inner.delete_hook("inner")

    assert [event[:2] for event in events] == [
        ("inner", "forward_pre"),
        ("inner", "forward"),
        ("outer", "forward_pre"),
        ("outer", "forward"),
    ]


def test_what_hooks_are_given():
    """Tensors among positional and keyword arguments in order, and all tensors returned."""
    seen = {}

    class Look(FunctionHook):
        def forward_postprocess(self, function, in_data):
            seen["in"], seen["out"], seen["node"] = in_data, function.outputs, function.node

        def backward_preprocess(self, function, in_data, out_grad):
            seen["grads"] = out_grad

    def both(pair, *, scale):
        return {"sum": pair[0] + scale, "product": pair[1] * scale}

    node = FunctionNode(both)
    node.add_hook(Look())
    a, b, c = (torch.full((2,), value, requires_grad=True) for value in (1.0, 2.0, 3.0))
    out = node([a, b], scale=c)
    (out["sum"] * 5).sum().backward()
    node.delete_hook("Look")

    assert [id(t) for t in seen["in"]] == [id(a), id(b), id(c)]
    assert [id(t) for t in seen["out"]] == [id(out["sum"]), id(out["product"])]
    assert seen["node"] is node
    assert torch.equal(seen["grads"][0], torch.full((2,), 5.0))
    assert seen["grads"][1] is None


def test_c12_replace():
    """A hook of the node changes inputs, output and gradient of its calls."""

    class Change(FunctionHook):
        def forward_preprocess(self, function, in_data):
            function.replace(in_data[0] + 1)

        def forward_postprocess(self, function, in_data):
            function.replace(function.outputs[0] * 10)

        def backward_preprocess(self, function, in_data, out_grad):
            function.replace(out_grad[0] + 0.5)

    node = FunctionNode(torch.square)
    node.add_hook(Change())
    x = torch.tensor([2.0, 3.0], requires_grad=True)
    y = node(x)
    y.sum().backward()
    node.delete_hook("Change")

    assert torch.equal(y, (x + 1).square() * 10)
    # The factor 10 lies behind the function, whose own output's gradient is changed.
    assert torch.equal(x.grad, 2 * (x + 1).detach() * (10 + 0.5))


def test_retain_inputs():
    """With `retain_inputs` the inputs are there in the backward, whatever autograd saves."""
    seen = []

    class Keep(FunctionHook):
        retain_inputs = True

        def backward_postprocess(self, function, in_data, out_grad):
            seen.append([t.tolist() for t in in_data])

    node = FunctionNode(torch.add)
    node.add_hook(Keep())
    node(torch.ones(1, requires_grad=True), torch.zeros(1)).backward()
    node.delete_hook("Keep")

    assert seen == [[[1.0], [0.0]]]


def test_place_of_calls_without_a_scope():
    """With local hooks only, the module that calls and the index are known all the same."""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.act = node
            self.inner = nn.ModuleDict({"a": Layer(), "b": Layer()})

        def forward(self, x):
            return self.act(self.inner["b"](self.inner["a"](x)))

    class Layer(nn.Module):
        def forward(self, x):
            return node(node(x))

    node = FunctionNode(swish)
    log = Log()
    model = Model()
    node.add_hook(log)
    model(torch.ones(2))
    node(torch.ones(2))
    node.delete_hook("Log")

    assert [label for _, phase, label in log.events if phase == "forward"] == [
        "inner.a:swish[0]",
        "inner.a:swish[1]",
        "inner.b:swish[0]",
        "inner.b:swish[1]",
        ":swish[0]",
        log.events[-1][2],
    ]
    assert log.events[-1][2].startswith("swish[")


def test_compiled_function():
    """A compiled function is one function by its own name, forward and backward."""
    compiled = FunctionNode(torch.compile(swish, backend="eager", fullgraph=True))
    x = torch.linspace(-1, 1, 5, requires_grad=True)
    swish(x).sum().backward()
    expected = x.grad
    x.grad = None
    log = Log()
    compiled.add_hook(log)
    compiled(x).sum().backward()
    compiled.delete_hook("Log")

    assert [phase for _, phase, _ in log.events] == list(PHASES)
    assert len({label for _, _, label in log.events}) == 1
    assert log.events[0][2].startswith("swish[")
    assert torch.equal(x.grad, expected)


def test_all_threads():
    """A node's hooks see its calls in every thread."""
    node = FunctionNode(swish)
    log = Log()
    node.add_hook(log)
    threads = []
    with ThreadPoolExecutor(1) as pool:
        pool.submit(lambda: (threads.append(threading.get_ident()), node(torch.ones(2)))).result()
    node.delete_hook("Log")

    assert threads != [threading.get_ident()]
    assert [phase for _, phase, _ in log.events] == ["forward_pre", "forward"]


def test_c11_call_by_a_callback():
    """A node that a hook object calls fires no events."""
    node = FunctionNode(swish)

    class Calls(Log):
        def forward_preprocess(self, function, in_data):
            super().forward_preprocess(function, in_data)
            node(torch.ones(2))

    log = Calls()
    node.add_hook(log)
    with log.renamed("scoped"):
        node(torch.ones(2))
    node.delete_hook("Log")

    assert [phase for _, phase, _ in log.events].count("forward_pre") == 3  # `ones`, and twice node


# Adding and deleting.


def test_c4_name_taken():
    """A second hook of the same name is an error, and the first stays."""
    node = FunctionNode(swish)
    first, second = Log(), Log()
    node.add_hook(first)
    with pytest.raises(HookNameError) as caught:
        node.add_hook(second)
    assert str(caught.value).startswith("Hook Log already exists on swish; ")
    assert isinstance(caught.value, KeyError)

    node(torch.ones(2))
    node.delete_hook("Log")
    assert len(first.events) == 2
    assert second.events == second.targets == []


def test_c4_unknown_name():
    """Deleting a hook that is not there is an error that names it."""
    with pytest.raises(HookNameError) as caught:
        FunctionNode(swish).delete_hook("Missing")

    assert str(caught.value) == "Hook Missing does not exist; hooks here: none"
    assert isinstance(caught.value, KeyError)


class Modules(ModuleHook):
    pass


@pytest.mark.parametrize(
    ("hook", "given"),
    [
        (print, "<built-in function print>"),
        (Log, "the class Log; did you mean an instance of it?"),
        (Modules(), "Modules, a ModuleHook"),
        (None, "None"),
    ],
    ids=["function", "class", "module hook", "None"],
)
def test_c4_not_a_function_hook(hook, given):
    """Something else than a function hook is refused, and nothing is registered."""
    node = FunctionNode(swish)
    with pytest.raises(HookTypeError, match="Hook must be of type FunctionHook, not ") as caught:
        node.add_hook(hook)

    assert given in str(caught.value)
    assert isinstance(caught.value, TypeError)
    assert len(node.registry) == 0


def test_c4_explicit_name():
    """One hook under several names is called once for each, and deleted by each."""
    node = FunctionNode(swish)
    log = Log()
    assert node.add_hook(log, "one") is None
    node.add_hook(log, name="two")
    node(torch.ones(2))
    node.delete_hook("one")
    node(torch.ones(2))
    node.delete_hook("two")

    assert [phase for _, phase, _ in log.events] == [
        *("forward_pre", "forward_pre", "forward", "forward"),
        *("forward_pre", "forward"),
    ]
    with pytest.raises(HookNameError, match="Hook Log does not exist"):
        node.delete_hook("Log")


def test_c3_added_and_deleted_get_the_node():
    """`added` and `deleted` are told which function it is."""
    node = FunctionNode(swish)
    log = Log()
    node.add_hook(log)
    node.delete_hook("Log")

    assert log.targets == [("added", node), ("deleted", node)]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_c3_error_in_added(error):
    """If `added` raises, nothing stays registered."""

    class Refuses(Log):
        def added(self, target):
            raise error

    node = FunctionNode(swish)
    hook = Refuses()
    with pytest.raises(error):
        node.add_hook(hook)
    node(torch.ones(2))

    assert len(node.registry) == 0
    assert not module_switch
    assert hook.events == []


def test_c3_error_in_deleted():
    """If `deleted` raises, the hook is gone all the same."""

    class Refuses(Log):
        def deleted(self, target):
            raise ValueError

    node = FunctionNode(swish)
    node.add_hook(Refuses("Refuses"))
    with pytest.raises(ValueError):  # noqa: PT011 - it has no text
        node.delete_hook("Refuses")

    assert len(node.registry) == 0


def test_c5_scoped_hooks_come_first():
    """In every phase: the thread's hooks in order, then the node's own in order."""
    node = FunctionNode(swish)
    events = []
    node.add_hook(Log("own 1", events))
    node.add_hook(Log("own 2", events))
    x = torch.ones(2, requires_grad=True)
    with Log("scoped 1", events), Log("scoped 2", events):
        y = node(x)
        y.backward(torch.ones(2))
    node.delete_hook("own 1")
    node.delete_hook("own 2")

    order = ("scoped 1", "scoped 2", "own 1", "own 2")
    mine = [(name, phase) for name, phase, label in events if "swish" in label]
    assert mine == [(name, phase) for phase in PHASES for name in order]


def test_c5_local_hook_takes_the_place_of_a_scoped_one():
    """A local hook of a scoped one's name runs at its place, for this function only."""
    node = FunctionNode(swish)
    events = []
    local = Log("b", events)
    node.add_hook(local)
    x = torch.ones(2, requires_grad=True)
    scoped = [Log(name, []) for name in "abc"]
    with scoped[0], scoped[1], scoped[2]:
        for hook in (scoped[0], scoped[2]):
            hook.events = events
        node(x)
        torch.relu(x)
    node.delete_hook("b")

    assert [event[:2] for event in events[:6]] == [
        (name, phase) for phase in ("forward_pre", "forward") for name in "abc"
    ]
    assert all("swish" in label for _, _, label in events[:6])
    assert all("relu" in label for _, _, label in scoped[1].events)
    assert len(scoped[1].events) == 2


# Life and death.


def test_c9_a_hook_whose_place_is_taken_meanwhile_gets_its_end():
    """A scoped hook that began ends, though one on the function has got its name by then."""
    node = FunctionNode(swish)
    scoped, local, x = Log("same"), Log("same"), torch.ones(2)

    class Adds(FunctionHook):
        def forward_preprocess(self, function, in_data):
            node.add_hook(local)

    with scoped, Adds():
        node(x)
    node.delete_hook("same")

    assert [phase for _, phase, _ in scoped.events] == ["forward_pre", "forward"]
    assert local.events == []


def test_c4_alive_until_backward():
    """The node may be dropped after the forward: its hooks run in the backward, then all goes."""
    log = Log()

    def forward(x):
        node = FunctionNode(swish)
        node.add_hook(log)
        return node(x), weakref.ref(node)

    x = torch.ones(2, requires_grad=True)
    y, node = forward(x)
    log.targets.clear()
    y.sum().backward()
    assert [phase for _, phase, _ in log.events] == list(PHASES)

    del y
    assert node() is None
    assert not module_switch


def test_p6_deleted_before_the_backward():
    """A hook that is deleted between forward and backward is not called any more."""
    node = FunctionNode(swish)
    log = Log()
    node.add_hook(log)
    y = node(torch.ones(2, requires_grad=True))
    node.delete_hook("Log")
    y.sum().backward()

    assert [phase for _, phase, _ in log.events] == ["forward_pre", "forward"]


def test_c8_added_between_forward_and_backward():
    """A hook that is added after a watched forward runs in the backward."""
    node = FunctionNode(swish)
    first, late = Log("first"), Log("late")
    node.add_hook(first)
    y = node(torch.ones(2, requires_grad=True))
    node.add_hook(late)
    y.sum().backward()
    node.delete_hook("first")
    node.delete_hook("late")

    assert [phase for _, phase, _ in late.events] == ["backward_pre", "backward"]


def test_p6_one_shot_hook():
    """A hook may delete itself in its callback: it ends at once, the others go on."""
    node = FunctionNode(swish)

    class Once(Log):
        def forward_preprocess(self, function, in_data):
            super().forward_preprocess(function, in_data)
            node.delete_hook(self.name)

    events = []
    node.add_hook(Once("once", events))
    node.add_hook(Log("other", events))
    node(torch.ones(2))
    node(torch.ones(2))
    node.delete_hook("other")

    assert [event[:2] for event in events] == [
        ("once", "forward_pre"),
        *[("other", "forward_pre"), ("other", "forward")] * 2,
    ]


def test_r5_dropped_with_its_hooks():
    """A node that is dropped with hooks on it turns everything off, and keeps nothing alive."""
    node, log = FunctionNode(swish), Log()
    node.add_hook(log)
    node(torch.ones(2, requires_grad=True)).sum().backward()
    gone = weakref.ref(node), weakref.ref(log)
    log.targets.clear()
    assert module_switch
    del node, log
    gc.collect()

    assert not module_switch
    assert [ref() for ref in gone] == [None, None]


@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda v: pickle.loads(pickle.dumps(v))]
)
def test_r4_copies_have_no_hooks(copied):
    """A copy or pickle of a node, alone or in a model, is a node of that function without hooks."""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.act = node

    node = FunctionNode(torch.tanh, "squash")
    log = Log()
    node.add_hook(log)
    another = copied(node)
    x = torch.ones(2)
    assert torch.equal(another(x), torch.tanh(x))
    assert (another.name, another.function) == ("squash", torch.tanh)
    assert len(another.registry) == 0
    assert log.events == []
    assert copy.deepcopy(Model()).act is not node

    node.delete_hook("Log")


# Names.


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (torch.relu, "relu"),
        (F.linear, "linear"),
        (torch.Tensor.add_, "add_"),
        (torch.Tensor.__getitem__, "getitem"),
        (operator.matmul, "matmul"),
        (torch.ops.aten.relu.default, "relu"),
        (Square.apply, "Square"),
        (swish, "swish"),
        (lambda x: x, "<lambda>"),
        (functools.partial(torch.sum, dim=0), "sum"),
        (functools.partial(swish), "swish"),
        (Callable(), "Callable"),
        (Callable().method, "method"),
        (nn.ReLU(), "ReLU"),
    ],
)
def test_name_from_the_callable(function, name):
    """The name is that by which hooks on all functions know it, or the callable's own."""
    assert FunctionNode(function).name == name


def test_name_given():
    """A name that is given stands in labels and in the repr."""
    node = FunctionNode(lambda x: x, "same")

    assert node.name == "same"
    assert repr(node) == "<FunctionNode same: 0 hook(s)>"


def test_not_callable():
    """What can't be called is refused at once, saying what was given."""
    with pytest.raises(HookTypeError, match="takes a callable, not str: 'relu'"):
        FunctionNode("relu")


@pytest.mark.usefixtures("fresh_compiler")
def test_hooks_on_a_node_run_where_the_compiler_calls_it():
    """They are called by Python, between two graphs; without hooks the node is part of a graph."""

    class Zero(FunctionHook):
        def forward_postprocess(self, function, in_data):
            function.replace(function.outputs[0] * 0)

    node, x = FunctionNode(torch.tanh), torch.ones(3)
    node.add_hook(Zero())
    compiled = torch.compile(lambda x: node(x + 1), backend="eager")
    assert torch.equal(compiled(x), torch.zeros(3))
    node.delete_hook("Zero")
    assert torch.equal(compiled(x), torch.tanh(x + 1))
    whole = torch.compile(lambda x: node(x - 1), backend="eager", fullgraph=True)
    assert torch.equal(whole(x), torch.tanh(x - 1))
    node.add_hook(Zero())
    with pytest.raises(torch._dynamo.exc.Unsupported, match="FunctionNode"):
        torch.compile(lambda x: node(x * 2), backend="eager", fullgraph=True)(x)
    node.delete_hook("Zero")
