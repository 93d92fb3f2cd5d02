"""Times under activation checkpointing, exact on a clock that the layers themselves move on."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from hookline.core import clock as core_clock
from hookline.function_hooks import TimerHook as FunctionTimerHook
from hookline.module_hooks import TimerHook
from tests.matrix.items.checkpoint import ALL, NEW, OLD, InSequence, OfAFunction, Parts, Twice

CLOCK = SimpleNamespace(now=0)


@pytest.fixture(autouse=True)
def _clock(monkeypatch):
    CLOCK.now = 0
    monkeypatch.setattr(core_clock, "perf_counter_ns", lambda: CLOCK.now)


class Spends(torch.autograd.Function):
    """Takes the time of its layer in each direction."""

    @staticmethod
    def forward(ctx, x, layer):
        layer.runs[torch._C._current_graph_task_id() != -1] += 1
        CLOCK.now += layer.forward_ns
        ctx.layer = layer
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        assert ctx.saved_tensors  # where a checkpoint dropped them, it computes them again
        CLOCK.now += ctx.layer.backward_ns
        ctx.layer.backwards += 1
        return gradient * 2, None


class Layer(nn.Module):
    """Takes so long, and counts its runs in the forward and inside of backwards."""

    made = 0

    def __init__(self):
        super().__init__()
        Layer.made += 1
        self.forward_ns, self.backward_ns = 10**Layer.made, 3 * 10**Layer.made
        self.runs, self.backwards = {False: 0, True: 0}, 0

    def forward(self, x):
        return Spends.apply(x, self)


def in_sequence(**options):
    """The helper for sequences, over layers that take time."""
    model = InSequence(**options)
    model.body = nn.Sequential(*[Layer() for _ in range(4)])
    return model


def of_a_function(**options):
    """A checkpoint around a function that calls two modules."""
    model = OfAFunction(**options)
    model.block, model.head = Layer(), Layer()
    return model


def nested(outer, inner):
    """A checkpoint in a checkpoint."""
    return Parts(Parts(Layer(), Layer(), **inner), Layer(), **outer)


MODELS = {
    "non-reentrant": lambda: Parts(nn.Sequential(Layer(), Layer()), **NEW),
    "reentrant": lambda: Parts(nn.Sequential(Layer(), Layer()), **OLD),
    "no early stop": lambda: Parts(nn.Sequential(Layer(), Layer()), Layer(), **ALL),
    "some parts": lambda: Parts(Layer(), Layer(), Layer(), only=[1], **NEW),
    "nested": lambda: nested(NEW, NEW),
    "nested, no early stop": lambda: nested(ALL, ALL),
    "nested, reentrant": lambda: nested(OLD, OLD),
    "nested, old outside": lambda: nested(OLD, NEW),
    "nested, old inside": lambda: nested(NEW, OLD),
    "repeated": lambda: Twice(Layer(), Layer(), **NEW),
    "repeated, reentrant": lambda: Twice(Layer(), Layer(), **OLD),
    "sequence": lambda: in_sequence(**NEW),
    "sequence, reentrant": lambda: in_sequence(**OLD),
    "of a function": lambda: of_a_function(**NEW),
}


# Torch warns of an inner reentrant checkpoint where gradients are off.
@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad=True")
@pytest.mark.parametrize("name", MODELS)
def test_timers_tell_forward_repetition_and_backward_apart(name):
    """Each layer's rows hold its runs times its time, in each direction, and the sum is the whole.

    The layers count their own runs; a timer of functions sees the same.
    """
    Layer.made = 0
    model = MODELS[name]()
    with TimerHook() as modules, FunctionTimerHook() as functions:
        x = torch.ones(1, requires_grad=True)
        out = model(x)
        middle = CLOCK.now
        out.backward()

    rows = {(row.path, row.direction): row for row in modules.rows()}
    layers = {path: each for path, each in model.named_modules() if isinstance(each, Layer)}
    assert sum(layer.runs[True] for layer in layers.values())
    for path, layer in layers.items():
        first, again, back = (rows.get((path, way)) for way in ("forward", "recompute", "backward"))
        assert (first.calls, nanoseconds(first)) == of(layer.runs[False], layer.forward_ns)
        assert (back.calls, nanoseconds(back)) == of(layer.backwards, layer.backward_ns)
        if again is None:
            assert not layer.runs[True]
        else:
            assert (again.calls, nanoseconds(again)) == of(layer.runs[True], layer.forward_ns)
    assert round(rows["", "forward"].total_time * 1e9) == middle
    assert sum(map(nanoseconds, rows.values())) == CLOCK.now

    spent = {
        way: sum(
            nanoseconds(r) for r in functions.rows() if (r.name, r.direction) == ("Spends", way)
        )
        for way in ("forward", "recompute", "backward")
    }
    assert spent == {
        "forward": sum(e.runs[False] * e.forward_ns for e in layers.values()),
        "recompute": sum(e.runs[True] * e.forward_ns for e in layers.values()),
        "backward": sum(e.backwards * e.backward_ns for e in layers.values()),
    }


def of(runs, each):
    """How many runs, and how long they take."""
    return runs, runs * each


def nanoseconds(row):
    """The time of a row without what is inside."""
    return round(row.self_time * 1e9)
