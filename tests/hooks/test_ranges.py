"""`RangeHook`: modules and functions by name in profiles, nested as they ran."""

from contextlib import ExitStack

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile
from torch.utils.checkpoint import checkpoint

from hookline import FunctionNode, HookValueError, add_hook, delete_hook
from hookline.function_hooks import RangeHook as FunctionRangeHook
from hookline.module_hooks import RangeHook as ModuleRangeHook


class Net(nn.Module):
    """A layer that is called twice, inside of another module, and a head."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(2, 2), nn.Tanh())
        self.head = nn.Linear(2, 1)

    def forward(self, x):
        return self.head(self.body(self.body(x)))


class Faulty(torch.autograd.Function):
    """Raises in one direction."""

    @staticmethod
    def forward(ctx, x, direction):
        ctx.direction = direction
        if direction == "forward":
            raise ZeroDivisionError
        return x.exp()

    @staticmethod
    def backward(ctx, gradient):
        if ctx.direction == "backward":
            raise ZeroDivisionError
        return gradient, None


def profiled(work, *hooks):
    """The ranges of our hooks in the order of their begins, each with those around it."""
    with profile(activities=[ProfilerActivity.CPU]) as profiler, ExitStack() as stack:
        for hook in hooks:
            stack.enter_context(hook)
        work()
    events = [e for e in profiler.events() if e.name.endswith((".forward", ".backward"))]
    events.sort(key=lambda event: (event.time_range.start, -event.time_range.end))
    return [nesting(event, events) for event in events]


def nesting(event, events):
    """The names of the ranges around an event and its own, outermost first."""
    names = []
    while event is not None:
        if event in events:
            names.insert(0, event.name.replace("Net#2", "Net"))
        event = event.cpu_parent
    return " > ".join(names)


FORWARD = [
    "Net.forward",
    *[
        "Net.forward > body.forward",
        *(f"Net.forward > body.forward > body.{i}.forward" for i in "01"),
    ]
    * 2,
    "Net.forward > head.forward",
]
BACKWARD = [
    "Net.backward",
    "Net.backward > head.backward",
    *[
        "Net.backward > body.backward",
        *(f"Net.backward > body.backward > body.{i}.backward" for i in "10"),
    ]
    * 2,
]


def test_modules_nest_by_path():
    """Each module's forward and backward is a range inside of that of the module around it."""
    net, x = Net(), torch.ones(1, 2)

    assert profiled(lambda: net(x).sum().backward(), ModuleRangeHook()) == FORWARD + BACKWARD


def test_functions_go_by_address():
    """Functions do not nest; each has its address, with the call's index."""
    net, x = Net(), torch.ones(1, 2)
    forward = ["body.0:linear[0]", "body.1:tanh[0]", "body.0:linear[1]", "body.1:tanh[1]"]
    forward.append("head:linear[0]")

    assert profiled(lambda: net(x).backward(), FunctionRangeHook()) == [
        *(f"{label}.forward" for label in forward),
        *(f"{label}.backward" for label in reversed(forward)),
    ]


def test_functions_inside_modules():
    """With both levels on, a function's range lies in that of the module that calls it."""
    net, x = nn.Sequential(nn.Linear(2, 2), nn.ReLU()), torch.ones(1, 2)
    ranges = profiled(lambda: net(x).sum().backward(), ModuleRangeHook(), FunctionRangeHook())

    inner = [line.partition(" > ")[2] for line in ranges if line.count(" > ") == 2]
    assert inner == [
        "0.forward > 0:linear[0].forward",
        "1.forward > 1:relu[0].forward",
        "1.backward > 1:relu[0].backward",
        "0.backward > 0:linear[0].backward",
    ]


def test_operators_lie_in_their_ranges():
    """Torch's own operators lie inside the range of the function or module that ran them."""
    net, x = Net(), torch.ones(1, 2)
    with profile(activities=[ProfilerActivity.CPU]) as profiler, ModuleRangeHook():
        net(x)
    (tanh, _) = [event for event in profiler.events() if event.name == "body.1.forward"]

    assert "aten::tanh" in {child.name for child in tanh.cpu_children}


def test_one_module_and_one_function():
    """On one module or function only its ranges are there."""
    net, relu, x = Net(), FunctionNode(torch.relu), torch.ones(1, 2)
    add_hook(net.head, ModuleRangeHook())
    relu.add_hook(FunctionRangeHook())
    ranges = profiled(lambda: relu(net(x)).backward())
    delete_hook(net.head, "RangeHook")
    relu.delete_hook("RangeHook")

    assert [name.partition("[")[0] for name in ranges[:2]] == ["head.forward", "relu"]
    assert ranges[3:] == ["head.backward"]


def test_checkpoint():
    """What a checkpoint repeats is a range inside of the backward of the module around it."""

    class Checkpointed(Net):
        def forward(self, x):
            return self.head(checkpoint(self.body, x, use_reentrant=True))

    net, x = Checkpointed(), torch.ones(1, 2, requires_grad=True)
    ranges = profiled(lambda: net(x).sum().backward(), ModuleRangeHook())
    again = [line for line in ranges if line.startswith("Checkpointed.backward > body.")]

    assert again == [
        f"Checkpointed.backward > {inside}"
        for inside in (
            "body.forward",
            "body.forward > body.0.forward",
            "body.forward > body.1.forward",
            "body.backward",
            "body.backward > body.1.backward",
            "body.backward > body.0.backward",
        )
    ]


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_c9_ranges_are_closed_after_an_error(direction):
    """An error closes the ranges that are open: what runs later is not inside of them."""

    class Fails(nn.Module):
        def forward(self, x):
            return Faulty.apply(x, direction)

    net, x = nn.Sequential(nn.Linear(2, 2), Fails()), torch.ones(1, 2)
    other = nn.ReLU()
    hooks = ModuleRangeHook(), FunctionRangeHook()

    def work():
        with pytest.raises(ZeroDivisionError):
            net(x).sum().backward()
        other(x)

    ranges = profiled(work, *hooks)
    assert [hook._open for hook in hooks] == [{}, {}]
    assert f"1.{direction} > 1:Faulty[0].{direction}" in [r.partition(" > ")[2] for r in ranges]
    assert ranges[-2].count(" > ") == 0
    assert ranges[-1].startswith(f"{ranges[-2]} > ")
    assert ranges[-1].endswith(":relu[0].forward")


def test_without_a_profiler():
    """With no profiler on, ranges do no harm, and results are bitwise the same."""
    torch.manual_seed(0)
    net, x = Net(), torch.randn(3, 2)
    net(x).sum().backward()
    expected = [parameter.grad for parameter in net.parameters()]
    net.zero_grad()
    with ModuleRangeHook(), FunctionRangeHook():
        net(x).sum().backward()

    for parameter, gradient in zip(net.parameters(), expected, strict=True):
        assert torch.equal(parameter.grad, gradient)


@pytest.mark.parametrize("hook", [ModuleRangeHook, FunctionRangeHook])
def test_nvtx_needs_cuda(hook, monkeypatch):
    """NVTX ranges without a CUDA device are an error that says what works without."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(HookValueError, match=r"nvtx=True needs a CUDA device.*torch\.profiler"):
        hook(nvtx=True)


@pytest.mark.parametrize("hook", [ModuleRangeHook, FunctionRangeHook])
def test_nvtx_ranges(hook, monkeypatch):
    """With NVTX each begin pushes a range by name and each end pops one, after errors too."""
    stack, seen = [], []

    def push(name):
        stack.append(name)
        seen.append(name.partition("[")[0])

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda.nvtx, "range_push", push)
    monkeypatch.setattr(torch.cuda.nvtx, "range_pop", stack.pop)
    net, x = nn.Sequential(nn.Linear(2, 2)), torch.ones(1, 2)
    with hook(nvtx=True):
        net(x).sum().backward()
        with pytest.raises(RuntimeError):
            net(torch.ones(1, 3))

    assert stack == []
    if hook is ModuleRangeHook:
        assert seen[1:4:2] == ["0.forward", "0.backward"]
    else:
        assert seen.count("0:linear") == 3
