"""Five kinds of models are made to overflow at a known place, and the place is named."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from hookline import NonFiniteError, watch
from hookline.function_hooks import NonFiniteHook as FunctionNonFiniteHook
from hookline.module_hooks import NonFiniteHook
from hookline.torch_base.tree import tensors

BOTH = pytest.mark.parametrize("level", [NonFiniteHook, FunctionNonFiniteHook])
PARTS = pytest.mark.parametrize("part", [0.0, 0.6, 0.99])


@pytest.fixture(autouse=True)
def _without_dropout(case):
    case.model.eval()


def layers(model):
    """The modules that compute something by themselves."""
    kinds = (nn.Dropout, nn.Flatten, nn.Identity)
    return [
        (path, module)
        for path, module in model.named_modules()
        if path and not list(module.children()) and not isinstance(module, kinds)
    ]


def chosen(model, part):
    found = layers(model)
    return found[int(part * len(found))]


def is_finite(values):
    return all(t.isfinite().all() for t in tensors(values) if t.is_floating_point())


class First:
    """The first module whose output is not finite, found with torch's own hooks."""

    def __init__(self, model):
        self.found, self.given = None, []
        self.handles = []
        for path, module in model.named_modules():
            self.handles += [
                module.register_forward_pre_hook(self.before, with_kwargs=True),
                module.register_forward_hook(self.after(path)),
            ]

    def before(self, module, args, kwargs):
        self.given.append(is_finite((args, kwargs)))

    def after(self, path):
        def look(module, args, output):
            finite = self.given.pop()
            if self.found is None and not is_finite(output) and finite:
                own = all(p.isfinite().all() for p in module.parameters())
                self.found = path, "producer" if own else "bad parameter"

        return look

    def remove(self):
        for handle in self.handles:
            handle.remove()


SATURATED = {"lstm"}  # its gates keep everything finite


def test_a_wild_learning_rate(case):
    """SGD with a rate of 1e8: the layer is that which torch's own hooks find first."""
    first = First(case.model)
    optimizer = torch.optim.SGD(case.model.parameters(), lr=1e8)
    with watch(case.model, nonfinite := NonFiniteHook(backward=False)):
        for _ in range(6):
            optimizer.zero_grad()
            case.loss().backward()
            optimizer.step()
            if first.found:
                break
    first.remove()
    row = nonfinite.first
    assert (first.found is None) == (case.name in SATURATED)
    assert (row and (row.path, row.verdict)) == first.found


@BOTH
def test_a_wild_learning_rate_is_stopped_in_time(case, level):
    """`raise` stops the training before a weight that is not finite is stored."""
    optimizer = torch.optim.SGD(case.model.parameters(), lr=1e8)

    def train():
        for _ in range(8):
            optimizer.zero_grad()
            case.loss().backward()
            assert all(p.isfinite().all() for p in case.model.parameters())
            optimizer.step()

    with watch(case.model, level("raise")):
        if case.name in SATURATED:
            train()
            return
        with pytest.raises(NonFiniteError) as caught:
            train()
    assert caught.value.row.verdict in ("producer", "bad parameter")


class Log(torch.autograd.Function):
    """The identity, but for one value: its logarithm is that of zero."""

    @staticmethod
    def forward(ctx, x, where):
        out = x.clone()
        out.view(-1)[where] = torch.log(torch.zeros(()))
        return out

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


class ZeroByZero(torch.autograd.Function):
    """The identity; its gradient has a 0/0."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.clone(memory_format=torch.contiguous_format)
        zero = torch.zeros(())
        gradient.view(-1)[0] = zero / zero
        return gradient


def zero_by_zero(x):
    return ZeroByZero.apply(x)  # torch 2.14 shows no call of an `apply` bound before the scope


class Around(nn.Module):
    """A layer with something after it."""

    def __init__(self, layer, then):
        super().__init__()
        self.layer, self.then = layer, then

    def forward(self, *args, **kwargs):
        out = self.layer(*args, **kwargs)
        return (self.then(out[0]), *out[1:]) if isinstance(out, tuple) else self.then(out)


class Then(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def plant(model, part, function):
    """Put a function behind a layer; gives its path."""
    path, layer = chosen(model, part)
    parent, _, name = path.rpartition(".")
    owner = model.get_submodule(parent)
    setattr(owner, name, Around(layer, Then(function)))
    return f"{path}.then"


def contiguous_log(x):
    x = x.contiguous()
    return Log.apply(x, x.numel() // 2)


@PARTS
@BOTH
def test_a_log_of_zero(case, part, level):
    """Planted behind a layer: by module the place, by function the operation in it."""
    path = plant(case.model, part, contiguous_log)
    with watch(case.model, nonfinite := level(backward=False)):
        case.loss()
    row = nonfinite.first
    assert (row.path, row.verdict, row.direction) == (path, "producer", "forward")
    assert (row.inf, row.nan) == (1, 0)
    if level is FunctionNonFiniteHook:
        assert row.name == "Log"


@PARTS
@BOTH
def test_a_zero_by_zero_in_the_backward_only(case, part, level):
    """The forward is finite throughout; the producer is found in the backward."""
    path = plant(case.model, part, zero_by_zero)
    for parameter in case.model.parameters():
        parameter.requires_grad_()
    with watch(case.model, nonfinite := level()):
        case.loss().backward()
    row = nonfinite.first
    assert (row.path, row.verdict, row.direction) == (path, "producer", "backward")
    assert row.nan >= 1
    assert all(each.direction == "backward" for each in nonfinite.rows())
    if level is FunctionNonFiniteHook:
        assert row.name == "ZeroByZero"


@PARTS
@BOTH
def test_an_overflow_of_float16(case, part, level):
    """A value that is fine in float32 is none in float16: the conversion is the producer."""
    path = plant(case.model, part, lambda x: (x * 0 + 70000.0).half().to(x.dtype))
    with watch(case.model, nonfinite := level(backward=False)):
        case.loss()
    row = nonfinite.first
    assert (row.path, row.verdict) == (path, "producer")
    assert row.inf == math.prod(row.shape)
    if level is FunctionNonFiniteHook:
        assert (row.name, row.dtype) == ("half", "float16")


@PARTS
@BOTH
def test_a_nan_in_a_weight(case, part, level):
    """Any parameter of a layer: named, with its layer."""
    found = [(path, module) for path, module in layers(case.model) if list(module.parameters())]
    _, layer = found[int(part * len(found))]
    for name, parameter in layer.named_parameters():
        kept = parameter.detach().clone()
        with torch.no_grad():
            parameter.fill_(math.nan)
        with watch(case.model, nonfinite := level(backward=False)):
            case.loss()
        with torch.no_grad():
            parameter.copy_(kept)
        row = nonfinite.first
        assert row.verdict == "bad parameter"
        assert row.cause.rpartition(".")[2] == name
        # A tied one is used first where it stands first.
        assert case.model.get_parameter(f"{row.path}.{name}") is parameter


@BOTH
def test_without_any_of_that_there_is_no_alarm(case, level):
    """Three steps of a real training, masks of -inf included."""
    case.model.train()
    optimizer = torch.optim.AdamW(case.model.parameters(), lr=1e-3)
    with watch(case.model, nonfinite := level("raise")):
        for _ in range(3):
            optimizer.zero_grad()
            case.loss().backward()
            optimizer.step()
    assert nonfinite.rows() == []
