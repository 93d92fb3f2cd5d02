"""`PrintHook` of modules and functions: one line an event."""

import io
import re
import sys

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from hookline import FunctionNode, add_hook, delete_hook, function_hooks, module_hooks
from hookline.hooks.values import value_text


class Net(nn.Module):
    """Two layers of which the first is called twice."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.head = nn.Linear(2, 1)

    def forward(self, x):
        return self.head(self.layer(self.layer(x)))


def lines(file):
    return file.getvalue().splitlines()


def heads(file):
    """What stands before the values in each line."""
    return [line.split(": ")[0] for line in lines(file)]


# Modules.


def test_module_lines():
    """Forward and backward of each module, inner ones first, with path and call index."""
    file, net = io.StringIO(), Net()
    with module_hooks.PrintHook(file):
        net(torch.ones(1, 2)).sum().backward()

    order = ["forward layer[0]", "forward layer[1]", "forward head[0]", "forward Net[0]"]
    order += ["backward Net[0]", "backward head[0]", "backward layer[1]", "backward layer[0]"]
    assert [re.sub(r"#\d+", "", head) for head in heads(file)] == order


def test_module_values():
    """A line has the values of the output, and in the backward of its gradient."""
    file, layer, x = io.StringIO(), nn.Linear(3, 2), torch.randn(4, 3)
    with module_hooks.PrintHook(file):
        y = layer(x)
        (y * 3).sum().backward()

    forward, backward = lines(file)
    assert forward.endswith(f"[0]: output {value_text(y)}")
    assert backward.endswith(f"[0]: grad_output[0] {value_text(torch.full((4, 2), 3.0))}")


def test_module_with_structured_output():
    """Every tensor of an output stands in the line under its path."""
    file, lstm, x = io.StringIO(), nn.LSTM(2, 3), torch.ones(4, 1, 2)
    with module_hooks.PrintHook(file):
        out, (h, _) = lstm(x)
        (out.sum() + h.sum()).backward()
    forward, backward = lines(file)

    assert [part.split()[0] for part in forward.partition(": ")[2].split("; ")] == [
        *("output[0]", "output[1][0]", "output[1][1]")
    ]
    assert "float32[4, 1, 3] cpu" in forward
    assert backward.startswith("backward ")


def test_module_without_tensors():
    """A module that returns no tensor has a line without values."""

    class Size(nn.Module):
        def forward(self, x):
            return len(x)

    file = io.StringIO()
    with module_hooks.PrintHook(file):
        assert Size()(torch.ones(3)) == 3

    (line,) = lines(file)
    assert line.startswith("forward Size")


def test_recomputing_is_said():
    """What a checkpoint repeats says so."""
    file, net = io.StringIO(), Net()
    with module_hooks.PrintHook(file):
        x = torch.ones(1, 2, requires_grad=True)
        checkpoint(net.layer, x, use_reentrant=True).sum().backward()
    first, *again = heads(file)

    assert not first.endswith(" (recomputing)")
    assert again == [f"{first} (recomputing)", f"{first.replace('for', 'back')} (recomputing)"]


def test_one_module():
    """On one module it prints that module's lines only."""
    file, net = io.StringIO(), Net()
    add_hook(net.head, module_hooks.PrintHook(file))
    net(torch.ones(1, 2))
    delete_hook(net.head, "PrintHook")

    assert [head.partition("[")[0] for head in heads(file)] == ["forward head"]


# Functions.


def test_function_lines():
    """Each function's forward and backward by its address."""
    file, net = io.StringIO(), Net()
    x = torch.ones(1, 2)
    with function_hooks.PrintHook(file):
        net(x).backward()

    order = ["layer:linear[0]", "layer:linear[1]", "head:linear[0]"]
    assert heads(file) == [
        *(f"forward {label}" for label in order),
        *(f"backward {label}" for label in reversed(order)),
    ]


def test_function_values():
    """Values of the outputs, and of the gradients; several stand under their places."""
    file = io.StringIO()
    x = torch.tensor([[1.0, 5.0], [2.0, 3.0]], requires_grad=True)
    with function_hooks.PrintHook(file):
        values, places = x.max(dim=1)
        (values * 2).sum().backward()
    first, *_, last = lines(file)

    assert first.endswith(f"]: output[0] {value_text(values)}; output[1] {value_text(places)}")
    assert last.endswith(f"]: out_grad[0] {value_text(torch.full((2,), 2.0))}; out_grad[1] None")


def test_function_that_writes():
    """A function that only writes shows what it wrote into."""
    file, x = io.StringIO(), torch.zeros(3)
    with function_hooks.PrintHook(file):
        x[1] = 6.0
        torch._foreach_add_([x], 1.0)

    first, second = lines(file)
    assert first.startswith("forward setitem[")
    assert first.endswith("output float32[3] cpu min=0 mean=2 max=6 std=2.828")
    assert second.endswith("output float32[3] cpu min=1 mean=3 max=7 std=2.828")


def test_one_function():
    """On a `FunctionNode` it prints that function's lines only."""
    file, relu = io.StringIO(), FunctionNode(torch.relu)
    relu.add_hook(function_hooks.PrintHook(file))
    relu(torch.ones(2) + 1)
    relu.delete_hook("PrintHook")

    assert [head.partition("[")[0] for head in heads(file)] == ["forward relu"]


# Both.


@pytest.mark.parametrize("hooks", [module_hooks, function_hooks])
def test_goes_to_the_present_stdout(hooks, capsys):
    """Without a file, lines go to what standard output is when they are printed."""
    hook = hooks.PrintHook()
    stdout, sys.stdout = sys.stdout, io.StringIO()
    try:
        with hook:
            nn.ReLU()(torch.ones(2))
        assert "forward" in sys.stdout.getvalue()
    finally:
        sys.stdout = stdout
    assert capsys.readouterr().out == ""

    with hook:
        nn.ReLU()(torch.ones(2))
    assert "forward" in capsys.readouterr().out


@pytest.mark.parametrize("hooks", [module_hooks, function_hooks])
def test_file_without_flush(hooks):
    """Whatever has `write` will do, and is flushed line by line where it can be."""

    class Write:
        def __init__(self):
            self.text = ""

        def write(self, text):
            self.text += text

    class Flush(Write):
        flushed = 0

        def flush(self):
            self.flushed += 1

    layer, x = nn.ReLU(), torch.ones(2)
    for file in (Write(), Flush()):
        with hooks.PrintHook(file):
            layer(x)
        assert file.text.endswith("min=1 mean=1 max=1 std=0\n")
    assert file.flushed == file.text.count("\n") == 1


@pytest.mark.parametrize("hooks", [module_hooks, function_hooks])
def test_r2_printing_changes_nothing(hooks):
    """Outputs, gradients and random numbers are bitwise those of a run without it."""

    def run():
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(4, 4), nn.Dropout(), nn.ReLU(inplace=True))
        y = net(torch.randn(3, 4))
        y.square().sum().backward()
        return [y, *[p.grad for p in net.parameters()], torch.get_rng_state()]

    expected = run()
    with hooks.PrintHook(io.StringIO()):
        seen = run()

    assert all(map(torch.equal, seen, expected))
