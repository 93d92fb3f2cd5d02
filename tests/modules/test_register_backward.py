"""Backward hooks in torch's signatures, against torch's own and against plain autograd (P5)."""

from __future__ import annotations

import copy
import gc
import weakref
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn
from transformers import BertConfig, BertModel
from transformers.modeling_outputs import BaseModelOutput

import hookline
from hookline import GradInput
from hookline.errors import HookTypeError, HookValueError
from hookline.torch_base.tree import leaves, map_tensors, tensors
from tests.custom import Cube

FORMS = ("local", "global")


def register(form, kind, module, hook):
    """Register a hook on one module, or on all modules."""
    if form == "local":
        return getattr(hookline, f"register_{kind}")(module, hook)
    return getattr(hookline, f"register_module_{kind}")(hook)


class Pair(NamedTuple):
    first: Tensor
    second: Tensor


# Against torch's own where those work.


def digits_cnn():
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Sequential(nn.Linear(64, 16), nn.Tanh(), nn.LayerNorm(16)),
        nn.Linear(16, 10),
    )


class Residual(nn.Module):
    """Uses its input twice and a layer twice."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(10, 10)
        self.norm = nn.LayerNorm(10)

    def forward(self, x):
        return self.norm(x + self.linear(self.linear(x).relu()))


class TwoByTwo(nn.Module):
    """Two inputs and two outputs, of which each depends on both."""

    def __init__(self):
        super().__init__()
        self.bilinear = nn.Bilinear(10, 10, 4)

    def forward(self, a, b):
        mixed = self.bilinear(a, b)
        return mixed.sin(), (mixed * a.sum()).cos()


def digits(count=8):
    data = load_digits()
    images = torch.tensor(data.images[:count] / 16, dtype=torch.float32)[:, None]
    return images.requires_grad_()


def randn(*shape):
    return torch.randn(*shape).requires_grad_()


MODELS = {
    "cnn on digits": (digits_cnn, lambda: (digits(),)),
    "residual": (Residual, lambda: (randn(3, 10),)),
    "bilinear": (lambda: nn.Bilinear(10, 10, 4), lambda: (randn(3, 10), randn(3, 10))),
    "two by two": (TwoByTwo, lambda: (randn(3, 10), randn(3, 10))),
    "one input without gradient": (TwoByTwo, lambda: (randn(3, 10), torch.ones(3, 10))),
    "softmax": (lambda: nn.Sequential(nn.Linear(10, 4), nn.Softmax(-1)), lambda: (randn(3, 10),)),
}


def loss_of(out):
    """A loss in which each tensor of an output has its own weight."""
    return sum(((t * (i + 1)).sin().sum() for i, t in enumerate(tensors(out))), torch.zeros(()))


def run_with_hooks(model, args, attach):
    """The events of one forward and backward, and the gradients of inputs and parameters."""
    args = tuple(arg.detach().clone().requires_grad_(arg.requires_grad) for arg in args)
    events, handles = [], []
    for name, module in model.named_modules():
        handles += attach(module, partial(_event, events, name))
    loss_of(model(*args)).backward()
    for handle in handles:
        handle.remove()
    return events, [t.grad for t in (*args, *model.parameters())]


def _event(events, name, phase, change):
    def hook(module, *gradients):
        events.append((name, phase, map_tensors(Tensor.clone, gradients)))
        return change(gradients[0]) if change else None

    return hook


def ours(change_out=None, change_in=None):
    """Attach hookline's two kinds of backward hooks."""

    def attach(module, event):
        return [
            hookline.register_full_backward_pre_hook(module, event("begin", change_out)),
            hookline.register_full_backward_hook(module, event("end", change_in)),
        ]

    return attach


def torchs(change_out=None, change_in=None):
    """Attach torch's own."""

    def attach(module, event):
        return [
            module.register_full_backward_pre_hook(event("begin", change_out)),
            module.register_full_backward_hook(event("end", change_in)),
        ]

    return attach


def assert_same_gradients(found, expected):
    """Compare lists of gradients of which some are None."""
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        if one is None or other is None:
            assert one is other
        else:
            torch.testing.assert_close(one, other)


def assert_same_events(found, expected):
    """Compare what hooks were called, in which order, and with which gradients."""
    assert [event[:2] for event in found] == [event[:2] for event in expected]
    for (_, _, one), (_, _, other) in zip(found, expected, strict=True):
        for part, reference in zip(one, other, strict=True):
            assert len(part) == len(reference)
            for gradient, torchs in zip(part, reference, strict=True):
                if gradient is None:  # torch's joint node fills in zeros
                    assert torchs is None or not torchs.any()
                else:
                    torch.testing.assert_close(gradient, torchs)


@pytest.mark.parametrize("name", MODELS)
def test_p5_gradients_and_order_are_those_of_torchs_own_hooks(name):
    """Every module of several models, watched from outside and inside."""
    torch.manual_seed(0)
    make, make_args = MODELS[name]
    model, args = make(), make_args()

    found, gradients = run_with_hooks(copy.deepcopy(model), args, ours())
    expected, same = run_with_hooks(copy.deepcopy(model), args, torchs())
    _, plain = run_with_hooks(copy.deepcopy(model), args, lambda *_: [])

    assert len(found) >= 2 * len(list(model.modules()))
    assert_same_events(found, expected)
    assert_same_gradients(gradients, same)
    assert_same_gradients(gradients, plain)


def _scaled(gradients):
    return tuple(None if g is None else g * 2 + 0.1 for g in gradients)


@pytest.mark.parametrize("name", MODELS)
def test_p5_replaced_gradients_flow_on_as_with_torchs_own_hooks(name):
    """Those of outputs and of inputs, changed at every module."""
    torch.manual_seed(0)
    make, make_args = MODELS[name]
    model, args = make(), make_args()

    found = run_with_hooks(copy.deepcopy(model), args, ours(_scaled, _scaled))
    expected = run_with_hooks(copy.deepcopy(model), args, torchs(_scaled, _scaled))
    plain = run_with_hooks(copy.deepcopy(model), args, lambda *_: [])

    assert_same_events(found[0], expected[0])
    assert_same_gradients(found[1], expected[1])
    assert not torch.equal(found[1][0], plain[1][0])


def test_p5_torchs_own_hooks_run_inside_ours(linear, x):
    """Both on one module; ours begin first and end last."""
    log = []
    handles = [
        linear.register_full_backward_pre_hook(lambda *_: log.append("torch begin")),
        linear.register_full_backward_hook(lambda *_: log.append("torch end")),
        hookline.register_full_backward_pre_hook(linear, lambda *_: log.append("begin")),
        hookline.register_full_backward_hook(linear, lambda *_: log.append("end")),
    ]

    linear(x.requires_grad_()).sum().backward()

    assert log == ["begin", "torch begin", "torch end", "end"]
    for handle in handles:
        handle.remove()


# Against plain autograd where torch's own hooks see nothing.


@dataclass
class Answer:
    logits: Tensor
    hidden: list
    label: str = "cat"


OUTPUTS = {
    "tensor": lambda a, b: a,
    "tuple": lambda a, b: (a, b),
    "list": lambda a, b: [a, b],
    "dict": lambda a, b: {"a": a, "b": b},
    "nested": lambda a, b: (a, [b, {"again": a * b}], None, 3),
    "named tuple": Pair,
    "dataclass": lambda a, b: Answer(a, [b]),
    "model output": lambda a, b: BaseModelOutput(last_hidden_state=a, hidden_states=(b,)),
    "one without gradient": lambda a, b: (a, b.detach(), torch.ones(2)),
    "one twice": lambda a, b: (a, b, a),
}


class Makes(nn.Module):
    """Gives two tensors in the structure that is asked for."""

    def __init__(self, structure):
        super().__init__()
        self.linear = nn.Linear(10, 5)
        self.structure = structure

    def forward(self, x):
        hidden = self.linear(x)
        return self.structure(hidden.sin(), hidden.exp())


def plain_gradients(loss, wanted):
    """Gradients by plain autograd, None for those that need none."""
    needing = [t for t in wanted if t.requires_grad]
    found = iter(torch.autograd.grad(loss, needing, allow_unused=True, retain_graph=True))
    return [next(found) if t.requires_grad else None for t in wanted]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", OUTPUTS)
def test_p5_every_tensor_of_an_output_has_its_gradient_in_the_outputs_structure(form, name, x):
    """However nested; a 1-tuple for a bare tensor, None where nothing has a gradient."""
    module = Makes(OUTPUTS[name])
    seen = []

    def see(kind):
        return lambda m, *grads: seen.append((kind, grads)) if m is module else None

    with (
        register(form, "full_backward_pre_hook", module, see("begin")),
        register(form, "full_backward_hook", module, see("end")),
    ):
        loss_of(module(x.clone().requires_grad_())).backward()

    x = x.clone().requires_grad_()
    out = map_tensors(lambda t: t.view_as(t), module(x))  # one edge for each place
    expected_in, *expected_out = plain_gradients(loss_of(out), [x, *tensors(out)])
    (_, begin), (_, end) = seen
    structure = out if name != "tensor" else (out,)
    paths = [path for path, _ in leaves(structure)]
    expected = {p: g for p, g in zip(paths, expected_out, strict=True) if g is not None}
    for grad_output in (begin[0], end[1]):
        assert type(grad_output) is type(structure)
        found = dict(leaves(grad_output))
        assert found.keys() == expected.keys()
        for path, gradient in found.items():
            torch.testing.assert_close(gradient, expected[path])
    assert isinstance(end[0], GradInput)
    torch.testing.assert_close(end[0][0], expected_in)


class Takes(nn.Module):
    """Adds up the tensors of its inputs, each with a weight of its own."""

    def forward(self, *args, **kwargs):
        found = tensors((args, kwargs))
        return sum(t.sin().sum() * (i + 1) for i, t in enumerate(found) if t.is_floating_point())


INPUTS = {
    "one": lambda a, b: ((a,), {}),
    "keyword": lambda a, b: ((), {"x": a}),
    "both": lambda a, b: ((a,), {"mask": b}),
    "nested": lambda a, b: (([a, {"k": b}], 3, None), {"extra": (b.detach(), "text")}),
    "dataclass": lambda a, b: ((Answer(a, [b]),), {}),
    "named tuple by keyword": lambda a, b: ((), {"pair": Pair(a, b)}),
    "integers": lambda a, b: ((a, torch.arange(3)), {}),
    "without gradient": lambda a, b: ((a.detach(), b), {}),
    "same tensor twice": lambda a, b: ((a, a), {"again": a, "b": b}),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", INPUTS)
def test_p5_every_tensor_of_the_inputs_has_its_gradient_in_its_arguments_structure(form, name, x):
    """A tuple by position and `.kwargs` by name; the same tensor twice has two gradients."""
    a, b = x.clone().requires_grad_(), x.exp().requires_grad_()
    args, kwargs = INPUTS[name](a, b)
    module, seen = Takes(), []

    with register(form, "full_backward_hook", module, lambda m, *grads: seen.append(grads)):
        module(*args, **kwargs).backward()

    grad_input, (grad_output,) = seen[0]
    assert torch.equal(grad_output, torch.ones(()))
    assert len(seen) == 1
    assert isinstance(grad_input, GradInput)
    assert len(grad_input) == len(args)
    assert list(grad_input.kwargs) == list(kwargs)
    # The derivative of each, by the formula.
    expected = {
        path: tensor.cos() * (i + 1)
        for i, (path, tensor) in enumerate(leaves((args, kwargs)))
        if tensor.requires_grad
    }
    found = dict(leaves((tuple(grad_input), grad_input.kwargs)))
    assert found.keys() == expected.keys()
    for path, gradient in found.items():
        torch.testing.assert_close(gradient, expected[path])
    for gradient, argument in zip(grad_input, args, strict=True):
        if not isinstance(argument, Tensor):
            assert type(gradient) is type(argument) or gradient is None
    for leaf in (a, b):
        places = [path for path, tensor in leaves((args, kwargs)) if tensor is leaf]
        if places:
            torch.testing.assert_close(leaf.grad, sum(expected[path] for path in places))


@pytest.mark.parametrize(
    ("call", "change", "scale"),
    [
        pytest.param(lambda m, a, b: m(a, b), lambda g: (g[0] * 2, g[1] * 3), (2, 3), id="tuple"),
        pytest.param(lambda m, a, b: m(a, b), lambda g: [g[0], None], (1, None), id="None drops"),
        pytest.param(lambda m, a, b: m(a), lambda g: g[0] * 2, (2, None), id="bare tensor"),
        pytest.param(lambda m, a, b: m(x=a), lambda g: g.kwargs["x"] * 2, (2, None), id="keyword"),
        pytest.param(
            lambda m, a, b: m(a, b=b), lambda g: (g[0] * 2,), (2, 1), id="keywords are kept"
        ),
        pytest.param(
            lambda m, a, b: m(a, b=b),
            lambda g: GradInput.of((g[0],), {"b": g.kwargs["b"] * 3}),
            (1, 3),
            id="keywords changed",
        ),
        pytest.param(
            lambda m, a, b: m([a, {"k": b}]),
            lambda g: ([g[0][0] * 2, {"k": g[0][1]["k"] * 3}],),
            (2, 3),
            id="nested",
        ),
    ],
)
def test_p5_a_hook_gives_back_the_shape_it_got_and_that_flows_on(call, change, scale, x):
    """A bare tensor where there is exactly one gradient."""
    module = Takes()

    def gradients_of(call):
        a, b = x.clone().requires_grad_(), x.exp().requires_grad_()
        call(module, a, b).backward()
        return a.grad, b.grad

    plain = gradients_of(call)
    with hookline.register_full_backward_hook(module, lambda m, grad_in, grad_out: change(grad_in)):
        found = gradients_of(call)

    for one, other, factor in zip(found, plain, scale, strict=True):
        if factor is None:
            assert one is None
        else:
            torch.testing.assert_close(one, other * factor)


@pytest.mark.parametrize("kind", ["full_backward_pre_hook", "full_backward_hook"])
@pytest.mark.parametrize(
    "value", [(), (torch.ones(3, 10),) * 3, {"a": 1}, 5, "text", torch.ones(3, 10)]
)
def test_p5_another_structure_is_refused_with_the_one_that_is_expected(kind, value, x):
    """The error names the hook and the module and stops the backward."""

    class Both(nn.Module):
        def forward(self, a, b):
            return a * 2, b * 3

    module = Both()
    a, b = x.clone().requires_grad_(), x.clone().requires_grad_()

    def careless(module, *gradients):
        return value

    with (
        getattr(hookline, f"register_{kind}")(module, careless),
        pytest.raises(HookTypeError, match="gradients of another structure") as caught,
    ):
        loss_of(module(a, b)).backward()
    assert "careless of Both, call 0" in str(caught.value)
    assert " in place of ('gradient', 'gradient'); give" in str(caught.value)
    assert a.grad is None


@pytest.mark.parametrize("kind", ["full_backward_pre_hook", "full_backward_hook"])
@pytest.mark.parametrize("value", [torch.ones(1), torch.ones(3, 10).double()])
def test_p5_a_gradient_of_another_shape_or_dtype_is_refused(kind, value, x):
    """Autograd would sum or cast it, or fail without saying whose it was."""
    module = nn.Tanh()
    a = x.clone().requires_grad_()
    with (
        getattr(hookline, f"register_{kind}")(module, lambda *_: value),
        pytest.raises(HookValueError, match="shape, dtype and device must stay"),
    ):
        module(a).sum().backward()
    assert a.grad is None


@pytest.mark.parametrize("module", [nn.Identity(), nn.Tanh()], ids=["identity", "tanh"])
def test_p5_a_gradient_that_a_hook_keeps_stays_as_it_is(module, x):
    """Though the leaf below adds to its `.grad`, and zeroes it, in place."""
    kept = []
    x = x.requires_grad_()
    with (
        hookline.register_full_backward_pre_hook(module, lambda m, g: kept.append(g[0])),
        hookline.register_full_backward_hook(module, lambda m, i, o: kept.append(i[0])),
    ):
        module(x).sum().backward()
        copies = [gradient.clone() for gradient in kept]
        module(x).sum().backward()
    x.grad.zero_()

    assert all(map(torch.equal, kept[:2], copies))


def test_p5_a_gradient_that_a_hook_gives_stays_as_it_is(linear, x):
    """The leaf does not take it for its own `.grad`."""
    given = torch.ones(3, 10)
    x = x.requires_grad_()
    with hookline.register_full_backward_hook(linear, lambda m, i, o: given):
        for _ in range(2):
            linear(x).sum().backward()

    assert torch.equal(x.grad, torch.full((3, 10), 2.0))
    assert torch.equal(given, torch.ones(3, 10))


def test_p5_gradients_of_outputs_can_be_replaced_in_every_structure(x):
    """By the same structure, a bare tensor or with None for 'no gradient'."""

    def gradient_with(structure, change):
        torch.manual_seed(0)
        module = Makes(structure)
        a = x.clone().requires_grad_()
        with hookline.register_full_backward_pre_hook(module, lambda m, grads: change(grads)):
            loss_of(module(a)).backward()
        return a.grad

    for structure in OUTPUTS.values():
        plain = gradient_with(structure, lambda grads: None)
        doubled = gradient_with(structure, lambda grads: map_tensors(lambda g: g * 2, grads))
        torch.testing.assert_close(doubled, plain * 2)
    first = gradient_with(OUTPUTS["tensor"], lambda grads: None)
    assert torch.equal(gradient_with(OUTPUTS["tensor"], lambda grads: grads[0]), first)
    only = gradient_with(OUTPUTS["dict"], lambda grads: {"a": grads["a"], "b": None})
    torch.testing.assert_close(only, first)


# In-place operations.


@pytest.mark.parametrize("kind", ["full_backward_pre_hook", "full_backward_hook"])
def test_p5_in_place_operations_after_the_module_stay_legal(kind, linear, x):
    """The gradients are those of the value before it was changed, as plain autograd gives."""
    seen = []
    x = x.requires_grad_()
    with getattr(hookline, f"register_{kind}")(linear, lambda m, *grads: seen.append(grads)):
        out = linear(x)
        out += 1
        out[0] *= 5
        F.relu_(out)
        out.sum().backward()

    weight = torch.ones(3, 1)
    weight[0] = 5
    expected = weight * (F.linear(x, linear.weight, linear.bias) + 1 > 0)
    torch.testing.assert_close(seen[0][-1][0], expected)
    torch.testing.assert_close(x.grad, expected @ linear.weight)
    if kind == "full_backward_hook":
        torch.testing.assert_close(seen[0][0][0], x.grad)


@pytest.mark.parametrize("kind", ["full_backward_pre_hook", "full_backward_hook"])
def test_p5_in_place_operations_before_and_in_the_module_stay_legal(kind, x):
    """`ReLU(inplace=True)` between layers, all of them hooked."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(10, 5), nn.ReLU(inplace=True), nn.Linear(5, 5), nn.Hardtanh(inplace=True)
    )

    def gradients():
        a = x.clone().requires_grad_()
        return torch.autograd.grad(model(a).sin().sum(), [a, *model.parameters()])

    plain, calls = gradients(), []
    handles = [
        getattr(hookline, f"register_{kind}")(m, lambda m, *_: calls.append(type(m).__name__))
        for m in model.modules()
    ]
    hooked = gradients()

    assert all(map(torch.equal, hooked, plain))
    assert sorted(calls) == sorted(type(m).__name__ for m in model.modules())
    for handle in handles:
        handle.remove()


@pytest.mark.parametrize("kind", ["full_backward_pre_hook", "full_backward_hook"])
@pytest.mark.parametrize(
    "module", [nn.Flatten(0), nn.Identity(), nn.Hardtanh(inplace=True)], ids=str
)
def test_p5_views_changed_in_place_keep_the_plain_gradients(kind, module, x):
    """Of outputs that are views, or the input itself; torch's own hooks raise in forward."""

    def gradient():
        a = x.clone().requires_grad_()
        out = module(a * 3)
        out *= 2
        out[0] += 1
        return torch.autograd.grad((out * torch.arange(1.0, out.numel() + 1).view_as(out)).sum(), a)

    plain = gradient()
    with getattr(hookline, f"register_{kind}")(module, lambda *_: None):
        hooked = gradient()

    assert torch.equal(hooked[0], plain[0])


class WritesInto(nn.Module):
    def forward(self, x, buffer):
        buffer[0] = x
        return buffer.sum() * 2


def test_p5_inputs_without_gradient_are_never_touched():
    """A buffer that the module writes into, which torch's own hooks make impossible."""
    x, buffer = torch.ones((), requires_grad=True), torch.zeros(2)
    module, seen = WritesInto(), []
    with hookline.register_full_backward_hook(module, lambda m, *grads: seen.append(grads)):
        module(x, buffer).backward()

    assert seen[0][0] == (torch.tensor(2.0), None)
    assert x.grad == 2
    assert buffer[0] == 1


# When.


def test_p5_the_hook_fires_after_the_parameters_have_their_gradients(x):
    """Also where no input needs one: the first layer, an embedding."""
    torch.manual_seed(0)
    embedding, linear = nn.Embedding(7, 10), nn.Linear(10, 5)
    model = nn.Sequential(embedding, linear)
    log = []

    def see(module, grad_input, grad_output):
        log.append((module, grad_input, module.weight.grad.clone()))

    handles = [hookline.register_full_backward_hook(m, see) for m in (embedding, linear)]
    model(torch.tensor([[1, 2, 1]])).sin().sum().backward()

    assert [module for module, _, _ in log] == [linear, embedding]
    for module, _, gradient in log:
        assert torch.equal(gradient, module.weight.grad)
    assert log[1][1] == (None,)
    assert log[0][1][0].shape == (1, 3, 10)
    for handle in handles:
        handle.remove()


def test_p5_a_call_without_gradients_for_inputs_ends_before_the_next_event_of_another(x):
    """Two branches from data: each one's begin and end stand together."""
    torch.manual_seed(0)
    a, b, head = nn.Linear(10, 4), nn.Linear(10, 4), nn.Linear(4, 2)
    log, handles = [], []
    for name, module in (("a", a), ("b", b), ("head", head)):
        handles += [
            hookline.register_full_backward_pre_hook(
                module, lambda m, g, name=name: log.append(f"{name} begin")
            ),
            hookline.register_full_backward_hook(
                module, lambda m, i, o, name=name: log.append(f"{name} end {m.weight.grad is None}")
            ),
        ]

    head(a(x) * b(x)).sum().backward()

    assert log == [
        *("head begin", "head end False"),
        *("b begin", "b end False"),
        *("a begin", "a end False"),
    ]
    for handle in handles:
        handle.remove()


def test_p5_begins_and_ends_nest_as_the_calls_did_in_forward():
    """Every module of a small BERT, in one backward."""
    torch.manual_seed(0)
    config = BertConfig(
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        vocab_size=50,
        attn_implementation="eager",
    )
    model = BertModel(config).eval()
    tokens = torch.randint(50, (2, 7))
    names = {module: name for name, module in model.named_modules()}
    forward, backward = [], []
    with (
        hookline.register_module_forward_pre_hook(lambda m, a: forward.append(("begin", names[m]))),
        hookline.register_module_forward_hook(lambda m, a, o: forward.append(("end", names[m]))),
        hookline.register_module_full_backward_pre_hook(
            lambda m, g: backward.append(("begin", names[m]))
        ),
        hookline.register_module_full_backward_hook(
            lambda m, i, o: backward.append(("end", names[m]))
        ),
    ):
        out = model(tokens)
        (out.last_hidden_state.sin().sum() + out.pooler_output.sum()).backward()
    hooked = [p.grad for p in model.parameters()]
    model.zero_grad()
    out = model(tokens)
    (out.last_hidden_state.sin().sum() + out.pooler_output.sum()).backward()

    mirrored = [("end" if kind == "begin" else "begin", name) for kind, name in reversed(forward)]
    # Modules without parameters that get no gradient (the embeddings' mask) have no backward.
    took_part = {name for _, name in backward}
    assert backward == [event for event in mirrored if event[1] in took_part]
    assert len(took_part) > 40
    assert_same_gradients(hooked, [p.grad for p in model.parameters()])


def test_p5_it_fires_once_a_call_and_run(linear, x):
    """Twice called: twice, in reverse order; twice backward with `retain_graph`: twice."""
    square = nn.Linear(10, 10)
    seen = []
    x = x.requires_grad_()
    with hookline.register_full_backward_hook(square, lambda m, i, o: seen.append((i, o))):
        hidden = square(x)
        out = square(hidden)
        for factor in (1.0, 2.0):
            (out * factor).sum().backward(retain_graph=True)

    above = torch.ones(3, 10)
    for factor, (second, first) in ((1.0, seen[:2]), (2.0, seen[2:])):
        inner = above * factor @ square.weight
        torch.testing.assert_close(second[1][0], above * factor)
        torch.testing.assert_close(second[0][0], inner)
        torch.testing.assert_close(first[1][0], inner)
        torch.testing.assert_close(first[0][0], inner @ square.weight)
    assert len(seen) == 4


def test_p5_a_shared_weight_has_all_its_gradient_when_the_last_of_its_calls_ends(x):
    """The parameter that another call still feeds is the exception."""
    square = nn.Linear(10, 10)
    seen = []
    with hookline.register_full_backward_hook(
        square, lambda m, i, o: seen.append(None if m.bias.grad is None else m.bias.grad.clone())
    ):
        square(square(x)).sum().backward()

    assert torch.equal(seen[-1], square.bias.grad)


@pytest.mark.parametrize("wanted", ["weight", "input", "both"])
def test_p5_in_a_partial_backward_it_fires_with_the_gradients_that_there_are(wanted, linear, x):
    """`autograd.grad` for the weight alone: torch's own hook never fires there."""
    x = x.requires_grad_()
    seen = []
    with (
        hookline.register_full_backward_pre_hook(linear, lambda m, g: seen.append(("begin", g))),
        hookline.register_full_backward_hook(linear, lambda m, i, o: seen.append(("end", i, o))),
    ):
        out = linear(x)
        targets = {"weight": [linear.weight], "input": [x], "both": [x, linear.weight]}[wanted]
        found = torch.autograd.grad(out.sin().sum(), targets)

    plain = F.linear(x, linear.weight, linear.bias)
    expected = torch.autograd.grad(plain.sin().sum(), targets)
    assert_same_gradients(found, expected)
    assert [event[0] for event in seen] == ["begin", "end"]
    torch.testing.assert_close(seen[0][1][0], plain.cos())
    torch.testing.assert_close(seen[1][2][0], plain.cos())
    (grad_input,) = seen[1][1]
    if wanted == "weight":
        assert grad_input is None
    else:
        torch.testing.assert_close(grad_input, expected[0])


def test_p5_a_partial_backward_that_does_not_reach_a_call_does_not_fire_it(linear, x):
    """`backward(inputs=[...])` for what lies above."""
    head, seen = nn.Linear(5, 2), []
    with hookline.register_full_backward_hook(linear, lambda *_: seen.append("linear")):
        head(linear(x)).sum().backward(inputs=[head.weight])

    assert seen == []
    assert linear.weight.grad is None


def test_p5_gradients_are_released_after_the_run(linear, x):
    """Also in a partial backward, with the graph still alive."""
    x = x.requires_grad_()
    with (
        hookline.register_full_backward_pre_hook(linear, lambda *_: None),
        hookline.register_full_backward_hook(linear, lambda *_: None),
    ):
        out = linear(x)
        gradient = torch.ones_like(out)
        gone = weakref.ref(gradient)
        torch.autograd.grad(out, linear.weight, gradient, retain_graph=True)
        del gradient
        gc.collect()
        assert gone() is None


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_p5_without_gradients_there_is_no_backward_to_see(context, linear, x):
    """And nothing is aliased: the module gets the very input."""
    seen = []
    x = x.requires_grad_()
    with (
        hookline.register_full_backward_hook(linear, lambda *_: seen.append("backward")),
        hookline.register_forward_hook(linear, lambda m, args, out: seen.append(args[0])),
        context(),
    ):
        linear(x)

    assert len(seen) == 1
    assert seen[0] is x


def test_p5_a_pre_hook_alone_aliases_nothing(linear, x):
    """The module gets the very input, and its output has no node of ours."""
    x = x.requires_grad_()
    seen = []
    with (
        hookline.register_full_backward_pre_hook(linear, lambda m, g: None),
        hookline.register_forward_hook(linear, lambda m, args, out: seen.append((args[0], out))),
    ):
        out = linear(x)

    assert seen[0][0] is x
    assert seen[0][1] is out
    assert out.grad_fn.name() == "AddmmBackward0"
    assert not out._is_view()


# Special modules.


def test_p5_only_the_modules_own_contribution_counts(linear, x):
    """Its input is used beside it too (a residual), and by a second module."""
    x = x.requires_grad_()
    seen = []
    with hookline.register_full_backward_hook(linear, lambda m, i, o: seen.append(i[0])):
        (linear(x).sum() * 2 + x.sum() * 100).backward()

    torch.testing.assert_close(seen[0], torch.full((3, 5), 2.0) @ linear.weight)
    torch.testing.assert_close(x.grad, seen[0] + 100)


def test_p5_a_module_whose_output_is_its_input(x):
    """Identity: its gradient is not that of the input's other uses, nor doubled."""
    module, seen = nn.Identity(), []
    x = x.requires_grad_()
    with (
        hookline.register_full_backward_pre_hook(module, lambda m, g: seen.append(g[0])),
        hookline.register_full_backward_hook(module, lambda m, i, o: i[0] * 10),
    ):
        (module(x) * 2 + x).sum().backward()

    assert torch.equal(seen[0], torch.full((3, 10), 2.0))
    assert torch.equal(x.grad, torch.full((3, 10), 21.0))


class GivesParameter(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.arange(3.0))

    def forward(self, x):
        return self.table, x


def test_p5_a_module_whose_output_is_a_parameter_and_its_input(x):
    """Both are aliased; the parameter keeps no hook after many calls."""
    module, seen = GivesParameter(), []
    x = x.requires_grad_()
    with hookline.register_full_backward_pre_hook(
        module, lambda m, grads: seen.append(grads) or tuple(g * 2 for g in grads)
    ):
        for _ in range(3):
            table, same = module(x)
            (table.sum() + same.sum() * 3).backward()

    assert [[float(g.flatten()[0]) for g in grads] for grads in seen] == [[1.0, 3.0]] * 3
    assert torch.equal(module.table.grad, torch.full((3,), 6.0))
    assert torch.equal(x.grad, torch.full((3, 10), 18.0))
    assert not module.table._backward_hooks


def test_p5_joint_replacement_sees_all_gradients_before_one_flows_on(x):
    """Several inputs of a Bilinear: each gets a gradient made from the other's."""
    torch.manual_seed(0)
    module = nn.Bilinear(10, 10, 4)

    def swap(module, grad_input, grad_output):
        return grad_input[1], grad_input[0]

    def gradients(attach):
        a, b = x.clone().requires_grad_(), x.exp().requires_grad_()
        handle = attach(swap)
        module(a, b).sin().sum().backward()
        handle.remove()
        return [a.grad, b.grad]

    found = gradients(partial(hookline.register_full_backward_hook, module))
    assert_same_gradients(found, gradients(module.register_full_backward_hook))


def test_p5_joint_replacement_of_gradients_of_several_outputs(x):
    """Outputs from different autograd nodes, of which each gets the other's."""

    class Both(nn.Module):
        def forward(self, x):
            return x * 2, x.exp()

    module = Both()

    def gradient(attach):
        a = x.clone().requires_grad_()
        handle = attach(lambda m, grads: (grads[1], grads[0]))
        loss_of(module(a)).backward()
        handle.remove()
        return a.grad

    found = gradient(partial(hookline.register_full_backward_pre_hook, module))
    torch.testing.assert_close(found, gradient(module.register_full_backward_pre_hook))


def test_p5_an_lstms_outputs_and_states():
    """`(out, (h, c))`, with the initial states as a nested input."""
    torch.manual_seed(0)
    lstm = nn.LSTM(3, 4, batch_first=True)
    given = [torch.randn(2, 5, 3), torch.randn(1, 2, 4), torch.randn(1, 2, 4)]
    x, h, c = (t.clone().requires_grad_() for t in given)
    seen = []
    with (
        hookline.register_full_backward_pre_hook(lstm, lambda m, grads: seen.append(grads)),
        hookline.register_full_backward_hook(lstm, lambda m, i, o: seen.extend([i, o])),
    ):
        loss_of(lstm(x, (h, c))).backward()
    parameter_gradients = [p.grad for p in lstm.parameters()]

    inputs = [t.clone().requires_grad_() for t in given]
    out, (last_h, last_c) = lstm(inputs[0], (inputs[1], inputs[2]))
    wanted = [out, last_h, last_c, *inputs, *lstm.parameters()]
    expected = torch.autograd.grad(loss_of((out, (last_h, last_c))), wanted)
    begin, grad_input, end = seen
    assert_same_gradients(tensors(begin), expected[:3])
    assert_same_gradients(tensors(end), expected[:3])
    assert len(begin) == 2
    assert len(begin[1]) == 2
    assert [type(part) for part in grad_input] == [Tensor, tuple]
    assert_same_gradients(tensors(tuple(grad_input)), expected[3:6])
    assert_same_gradients(parameter_gradients, expected[6:])


def test_p5_attention_with_one_tensor_as_query_key_and_value():
    """Three gradients of one tensor, whose sum is its gradient."""
    torch.manual_seed(0)
    attention = nn.MultiheadAttention(8, 2, batch_first=True)
    x = torch.randn(2, 5, 8, requires_grad=True)
    seen = []
    with hookline.register_full_backward_hook(attention, lambda m, i, o: seen.append((i, o))):
        out, weights = attention(x, x, value=x)
        (out.sin().sum() + weights.exp().sum()).backward()

    q, k, v = (x.detach().clone().requires_grad_() for _ in range(3))
    out, weights = attention(q, k, v)
    loss = out.sin().sum() + weights.exp().sum()
    expected = torch.autograd.grad(loss, [q, k, v, out, weights])
    grad_input, grad_output = seen[0]
    assert_same_gradients([*grad_input, grad_input.kwargs["value"]], expected[:3])
    assert_same_gradients(grad_output, expected[3:])
    torch.testing.assert_close(x.grad, sum(expected[:3]))


def test_p5_an_encoder_layer_with_all_its_modules(x):
    """Observed by both kinds of hooks everywhere, nothing changes."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, dim_feedforward=16, dropout=0.0, batch_first=True)
    x = torch.randn(2, 5, 8)

    def gradients():
        a = x.clone().requires_grad_()
        return torch.autograd.grad(layer(a).sin().sum(), [a, *layer.parameters()])

    plain, calls = gradients(), []
    with (
        hookline.register_module_full_backward_pre_hook(lambda m, g: calls.append(m)),
        hookline.register_module_full_backward_hook(lambda m, i, o: calls.append(m)),
    ):
        hooked = gradients()

    assert_same_gradients(hooked, plain)
    # The output projection of the attention is used by a fused function and never called.
    assert len(calls) == 2 * (len(list(layer.modules())) - 1)


class Cubes(nn.Module):
    def forward(self, x):
        return Cube.apply(x)


def test_p5_a_custom_function_and_a_module_that_detaches(x):
    """The gradient is that of the function's own backward; a cut graph has none for the input."""

    class Cuts(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(10))

        def forward(self, x):
            return x.detach() * self.scale

    seen = []
    for module in (Cubes(), Cuts()):
        a = x.clone().requires_grad_()
        with hookline.register_full_backward_hook(module, lambda m, i, o: seen.append((i, o))):
            module(a).sum().backward()

    torch.testing.assert_close(seen[0][0][0], 3 * x**2)
    assert seen[1][0] == (None,)
    assert torch.equal(seen[1][1][0], torch.ones(3, 10))


def test_p5_a_gradient_penalty_through_hooked_modules(x):
    """`create_graph`, then a backward through the gradient; hooks fire in both runs."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(10, 4), nn.Tanh(), nn.Linear(4, 1))

    def penalty():
        a = x.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(model(a).sum(), a, create_graph=True)
        return torch.autograd.grad((gradient.norm() - 1) ** 2, list(model.parameters())[:3])

    plain, calls = penalty(), []
    with (
        hookline.register_module_full_backward_pre_hook(lambda m, g: calls.append(("begin", m))),
        hookline.register_module_full_backward_hook(lambda m, i, o: calls.append(("end", m))),
    ):
        hooked = penalty()

    assert_same_gradients(hooked, plain)
    first = [m for kind, m in calls[:8] if kind == "begin"]
    assert first == [model, model[2], model[1], model[0]]
    assert calls.count(("begin", model[1])) == calls.count(("end", model[1])) == 2


def test_p5_function_transforms_work_with_hooks_on(x):
    """`func.grad`, `jacrev` and `vmap`, where torch's own hooks raise or are silent."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(10, 4), nn.Tanh())

    def loss(row):
        return module(row).sum()

    def results():
        return [
            torch.func.grad(loss)(x[0]),
            torch.func.jacrev(module)(x[0]),
            torch.func.vmap(torch.func.grad(loss))(x),
        ]

    plain, calls = results(), []
    with hookline.register_full_backward_hook(module[0], lambda *_: calls.append(1)):
        hooked = results()

    assert_same_gradients(hooked, plain)
    assert len(calls) >= 2


@pytest.mark.parametrize("kind", ["full_backward_pre_hook", "full_backward_hook"])
def test_an_error_in_a_backward_hook_comes_out_as_the_same_object(kind, x):
    """With one note that says which hook, phase, module and call; the next run is clean."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(10, 4), nn.ReLU(), nn.Linear(4, 2))
    error = ValueError("stop")

    def fail(*_):
        raise error

    handle = getattr(hookline, f"register_{kind}")(model[0], fail)
    model(x)  # so that the hooked call is not the first one of its module in the thread
    for _ in range(2):
        with pytest.raises(ValueError, match="stop") as caught:
            model(x).sum().backward()
        assert caught.value is error
        assert len(error.__notes__) == 1
        phase = "backward_pre" if "pre" in kind else "backward"
        assert f"{phase} hook" in error.__notes__[0]
        assert "0 (Linear), call 0" in error.__notes__[0]
    handle.remove()

    model.zero_grad()
    model(x).sum().backward()
    assert model[0].weight.grad is not None
