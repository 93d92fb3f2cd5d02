"""Which call an event belongs to, where torch does not tell.

The numbers are those of the list of pitfalls in torch 2.13 that this library was built against.
"""

from collections import Counter

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from hookline import ModuleHook, register_forward_hook, register_full_backward_hook
from hookline.module_hooks import TimerHook

X = torch.linspace(-1, 1, 4).reshape(2, 2)


class Log(ModuleHook):
    """Keeps a line for each event: its sign, the path, and a star for what is recomputed."""

    def __init__(self):
        self.lines, self.calls = [], []

    def write(self, sign, call):
        self.lines.append(f"{sign}{call.path or 'root'}{'*' if call.recomputing else ''}")
        self.calls.append(call)

    def forward_preprocess(self, call):
        self.write(">", call)

    def forward_postprocess(self, call):
        self.write("<", call)

    def aborted(self, call, exception):
        self.write("x", call)


def net():
    return nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 2))


def test_p33_a_recomputation_is_marked_and_balanced():
    """A checkpoint that stops early ends what it had begun, with the error that steers it."""
    model, log = net(), Log()
    with log:
        y = checkpoint(model, X.clone().requires_grad_(), use_reentrant=False)
        assert log.lines == [">root", ">0", "<0", ">1", "<1", ">2", "<2", "<root"]
        log.lines.clear()
        y.sum().backward()

    assert log.lines == [">root*", ">0*", "<0*", ">1*", "<1*", ">2*", "x2*", "xroot*"]


def test_p33_without_early_stop_all_ends_come():
    """Then the part is computed to its end again."""
    model, log = net(), Log()
    with log:
        y = checkpoint(model, X.clone().requires_grad_(), use_reentrant=False, early_stop=False)
        log.lines.clear()
        y.sum().backward()

    assert log.lines == [">root*", ">0*", "<0*", ">1*", "<1*", ">2*", "<2*", "<root*"]


@pytest.mark.parametrize("reentrant", [True, False])
def test_p33_a_timer_tells_recomputation_from_forward(reentrant):
    """What is computed again is kept apart and does not count as a forward."""
    model = net()
    with TimerHook() as timer:
        checkpoint(model, X.clone().requires_grad_(), use_reentrant=reentrant).sum().backward()

    assert len(timer.summary()) == 4
    for entry in timer.summary().values():
        calls = {way: entry[way]["calls"] for way in ("forward", "recompute", "backward")}
        assert calls == {"forward": 1, "recompute": 1, "backward": 1}


def test_p34_a_reentrant_checkpoint_tells_its_two_forwards():
    """The first runs without gradients, the second inside the backward; one backward belongs."""
    module, seen = nn.Linear(2, 2), []

    class Notes(ModuleHook):
        def forward_postprocess(self, call):
            seen.append(("forward", call.recomputing, call.out.requires_grad, call.index))

        def backward_postprocess(self, call):
            seen.append(("backward", call.recomputing, call.index))

    with Notes():
        checkpoint(module, X.clone().requires_grad_(), use_reentrant=True).sum().backward()

    assert seen == [
        ("forward", False, False, 0),
        ("forward", True, True, 0),
        ("backward", True, 0),
    ]


@pytest.mark.parametrize("reentrant", [True, False])
def test_p34_plain_hooks_run_under_checkpoints_too(reentrant):
    """Hooks in torch's manner see both forwards, and the backward once."""
    module, seen = nn.Tanh(), []
    with (
        register_forward_hook(module, lambda *_: seen.append("forward")),
        register_full_backward_hook(module, lambda *_: seen.append("backward")),
    ):
        checkpoint(module, X.clone().requires_grad_(), use_reentrant=reentrant).sum().backward()

    # Non-reentrant, the recomputation ends before the only module's forward hooks.
    assert Counter(seen) == {"forward": 2 if reentrant else 1, "backward": 1}


class Shared(nn.Module):
    def __init__(self):
        super().__init__()
        self.p = self.q = nn.Linear(2, 2)
        self.left, self.right = nn.Sequential(self.p), nn.Sequential(nn.Tanh(), self.p)

    def forward(self, x):
        return self.right(self.left(self.q(self.p(x))))


def test_p46_a_shared_module_knows_by_which_parent_it_runs():
    """Its path is that of the parent which calls it, and all its names are listed."""
    model, rows = Shared(), []

    class Notes(ModuleHook):
        def forward_preprocess(self, call):
            if call.module is model.p:
                rows.append((call.path, call.index, call.paths))

    with Notes():
        model(X)

    names = ("p", "q", "left.0", "right.1")
    # Two attributes of one parent cannot be told apart: the module is the same object.
    assert rows == [
        ("p", 0, names),
        ("p", 1, names),
        ("left.0", 2, names),
        ("right.1", 3, names),
    ]


def test_p46_two_models_that_share_a_module():
    """A module in two models has the path of the one that runs."""
    shared, rows = nn.Linear(2, 2), []
    first = nn.Sequential(shared)
    second = nn.ModuleDict({"deep": nn.Sequential(nn.Tanh(), shared)})

    class Second(nn.Module):
        def __init__(self):
            super().__init__()
            self.parts = second

        def forward(self, x):
            return self.parts["deep"](x)

    class Notes(ModuleHook):
        def forward_preprocess(self, call):
            if call.type == "Linear":
                rows.append((call.root.partition("#")[0], call.path))

    other = Second()
    with Notes():
        first(X)
        other(X)
        first(X)

    assert rows == [("Sequential", "0"), ("Second", "parts.deep.1"), ("Sequential", "0")]


def test_p47_the_events_of_a_call_share_one_object():
    """Marks that a hook leaves on the call in the forward are there in its backward."""
    linear, matched = nn.Linear(2, 2), []

    class Marks(ModuleHook):
        def forward_preprocess(self, call):
            call.mark = call.args[0].sum().item()

        def forward_postprocess(self, call):
            call.out_sum = call.out.sum().item()

        def backward_postprocess(self, call):
            matched.append((call.index, call.mark, call.grad_output[0].sum().item()))

    with Marks():
        first, second = linear(X), linear(X + 1)
        (first.sum() + 10 * second.sum()).backward()

    # Each call is a pass of its own here, so both have index 0.
    assert matched == [(0, (X + 1).sum().item(), 40.0), (0, X.sum().item(), 4.0)]


def test_p47_repeated_calls_in_one_pass():
    """A recurrent use: gradients come in reverse, each with the index of its forward."""

    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell = nn.RNNCell(2, 2)

        def forward(self, x):
            state = torch.zeros(2)
            for row in x:
                state = self.cell(row, state)
            return state

    seen = {}

    class Notes(ModuleHook):
        def forward_postprocess(self, call):
            call.value = call.out.detach().clone()

        def backward_preprocess(self, call):
            if call.path == "cell":
                seen[call.index] = (call.value, call.grad_output[0].clone())

    model = Recurrent()
    x = torch.linspace(-1, 1, 8).reshape(4, 2)
    with Notes():
        model(x).sum().backward()

    # The same by hand, with each state's gradient.
    states = [torch.zeros(2)]
    for row in x:
        states.append(model.cell(row, states[-1]))
        states[-1].retain_grad()
    states[-1].sum().backward()
    assert list(seen) == [3, 2, 1, 0]
    for index, (value, gradient) in seen.items():
        assert torch.equal(value, states[index + 1])
        assert torch.equal(gradient, states[index + 1].grad)
