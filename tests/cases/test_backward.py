"""Troubles people report: when backward hooks run and what they get.

The numbers are those of the list of reported troubles that this library was built against.
"""

import gc
import weakref

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, vmap

from hookline import (
    ModuleHook,
    clear_hooks,
    register_forward_hook,
    register_full_backward_hook,
    register_full_backward_pre_hook,
)


class Log(ModuleHook):
    """Keeps `path phase` of each backward event."""

    def __init__(self, *, inputs=False):
        self.needs_grad_input = inputs
        self.lines = []

    def backward_preprocess(self, call):
        self.lines.append(f"begin {call.path}")

    def backward_postprocess(self, call):
        self.lines.append(f"end {call.path}")


@pytest.mark.parametrize("input_needs_grad", [False, True])
@pytest.mark.parametrize("inputs", [False, True])
def test_c14_the_first_layer_is_like_any_other(input_needs_grad, inputs):
    """Its end comes when its parameters have their gradients, whether its input needs one."""
    net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    log = Log(inputs=inputs)
    for name, parameter in net.named_parameters():
        parameter.register_post_accumulate_grad_hook(lambda p, n=name: log.lines.append(n))
    with log:
        net(torch.randn(2, 3, requires_grad=input_needs_grad)).sum().backward()

    def layer(path):
        between = log.lines[log.lines.index(f"begin {path}") + 1 : log.lines.index(f"end {path}")]
        return sorted(between)

    assert log.lines[0] == "begin "
    assert log.lines[-1] == "end "
    assert layer("1") == ["1.bias", "1.weight"]
    assert layer("0") == ["0.bias", "0.weight"]


@pytest.mark.parametrize("input_needs_grad", [False, True])
def test_c14_the_gradient_of_an_input_that_needs_none_is_none(input_needs_grad):
    """And it is right where one is needed."""
    layer, seen = nn.Linear(3, 2), []
    x = torch.randn(4, 3, requires_grad=input_needs_grad)
    with register_full_backward_hook(layer, lambda module, gi, go: seen.append(gi[0])):
        layer(x).sum().backward()
    expected = layer.weight.detach().sum(0).expand(4, 3) if input_needs_grad else None
    assert seen[0] is expected is None or torch.allclose(seen[0], expected)


METHODS = {
    "backward": lambda loss, net: loss.backward(create_graph=True),
    "grad": lambda loss, net: torch.autograd.grad(loss, list(net.parameters()), create_graph=True),
    "grad of one": lambda loss, net: torch.autograd.grad(loss, net[0].weight, create_graph=True),
}


# Torch warns of the cycle that `backward` makes by itself, broken below.
@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph=True")
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("manner", ["pre-hook", "hook", "scope", "scope with inputs"])
def test_c34_second_order_methods_run_with_flat_memory(manner, method):
    """No gradient is kept from step to step."""
    net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))

    gone = []

    def look(module, *gradients):
        gone.extend(weakref.ref(grad) for grads in gradients for grad in grads if grad is not None)

    class Looks(Log):
        def backward_postprocess(self, call):
            look(call.module, call.grad_output, call.grad_input or ())

    hooks = {
        "pre-hook": lambda: register_full_backward_pre_hook(net[0], look),
        "hook": lambda: register_full_backward_hook(net[0], look),
        "scope": Looks,
        "scope with inputs": lambda: Looks(inputs=True),
    }[manner]()
    gc.collect()
    gc.disable()  # nothing may wait for the collector
    try:
        with hooks:
            for _ in range(3):
                x = torch.randn(2, 4, requires_grad=True)
                loss = net(x).pow(2).sum()
                METHODS[method](loss, net)
                gone += [weakref.ref(x), weakref.ref(loss)]
                for tensor in [x, *net.parameters()]:
                    tensor.grad = None
                del loss, x, tensor
                assert [kept() for kept in gone] == [None] * len(gone)
    finally:
        gc.enable()
    assert len(gone) > 3 * 2


@pytest.fixture
def hooked():
    net, seen = nn.Linear(2, 2), []

    def forward(module, args, output):
        seen.append(("forward", torch._C._functorch.is_batchedtensor(output)))

    register_forward_hook(net, forward)
    register_full_backward_hook(net, lambda *_: seen.append(("backward", None)))
    yield net, dict(net.named_parameters()), seen
    clear_hooks(net)


def test_c35_forward_hooks_under_vmap(hooked):
    """They run once, with a batched value; results and later gradients are as without hooks."""
    net, _, seen = hooked
    rows = torch.randn(3, 2)
    out = vmap(net)(rows)
    out.sum().backward()

    assert seen == [("forward", True)]
    assert torch.allclose(out, torch.nn.functional.linear(rows, net.weight, net.bias))
    assert torch.allclose(net.weight.grad, rows.sum(0).expand(2, 2))


def test_c35_backward_hooks_under_grad(hooked):
    """A functional gradient runs them once; it equals that of plain autograd."""
    net, parameters, seen = hooked
    x = torch.randn(2)
    detached = {name: value.detach() for name, value in parameters.items()}
    found = grad(lambda p: functional_call(net, p, (x,)).sum())(detached)

    assert seen == [("forward", False), ("backward", None)]
    assert torch.allclose(found["weight"], x.expand(2, 2))
    assert torch.equal(found["bias"], torch.ones(2))


def test_c35_gradients_of_each_sample(hooked):
    """`vmap` of `grad` runs both kinds of hooks."""
    net, parameters, seen = hooked
    rows = torch.randn(3, 2)
    detached = {name: value.detach() for name, value in parameters.items()}
    found = vmap(grad(lambda p, x: functional_call(net, p, (x,)).sum()), (None, 0))(detached, rows)

    assert [what for what, _ in seen] == ["forward", "backward"]
    assert torch.allclose(found["weight"], rows.unsqueeze(1).expand(3, 2, 2))


class ThreeInputs(nn.Module):
    def forward(self, a, b, c):
        return (a * b).sub(c)


@pytest.mark.parametrize("needs", [(1, 1, 1), (1, 0, 1), (0, 0, 1), (0, 0, 0)])
@pytest.mark.parametrize("keywords", [False, True])
def test_c41_one_gradient_for_each_input(needs, keywords):
    """As many entries as inputs, None where the input is not differentiable."""
    weight = torch.ones(1, requires_grad=True)  # so that there is a backward in any case
    module, seen = ThreeInputs(), []
    values = [torch.full((1,), 2.0 + i, requires_grad=bool(n)) for i, n in enumerate(needs)]
    with register_full_backward_hook(module, lambda module, gi, go: seen.append(gi)):
        named = dict(zip("abc", values, strict=True)) if keywords else {}
        out = module(**named) if keywords else module(*values)
        (out * weight).sum().backward()

    if not any(needs):
        assert seen == []  # the module has no backward of its own
        return
    ((*positional,),) = seen
    gradients = list(seen[0].kwargs.values()) if keywords else positional
    expected = [3.0, 2.0, -1.0]
    assert [None if g is None else g.item() for g in gradients] == [
        value if need else None for value, need in zip(expected, needs, strict=True)
    ]


def test_c41_inputs_that_are_no_tensors():
    """They have None in their place, and structures keep theirs."""

    class Mixed(nn.Module):
        def forward(self, x, flag, pair, *, names):
            return x * 2 + pair[1] if flag else x

    module, seen = Mixed(), []
    x, y = torch.ones(1, requires_grad=True), torch.ones(1, requires_grad=True)
    with register_full_backward_hook(module, lambda module, gi, go: seen.append(gi)):
        module(x, True, ("text", y), names=["a"]).backward()

    (grads,) = seen
    assert (grads[0].item(), grads[1]) == (2.0, None)
    assert (grads[2][0], grads[2][1].item()) == (None, 1.0)
    assert grads.kwargs == {"names": [None]}


SITUATIONS = {
    "all": lambda net, x: net(x).sum().backward(),
    "weight only": lambda net, x: torch.autograd.grad(net(x).sum(), net.weight),
    "bias only": lambda net, x: torch.autograd.grad(net(x).sum(), net.bias),
    "input only": lambda net, x: torch.autograd.grad(net(x).sum(), x),
    "frozen weight": lambda net, x: freeze(net, "weight")(x).sum().backward(),
    "frozen module": lambda net, x: net.requires_grad_(False)(x).sum().backward(),
    "frozen input": lambda net, x: net(x.detach()).sum().backward(),
    "part of the output": lambda net, x: net(x)[:, :1].sum().backward(),
}


def freeze(net, name):
    getattr(net, name).requires_grad_(False)
    return net


@pytest.mark.parametrize("inputs", [False, True])
@pytest.mark.parametrize("situation", SITUATIONS)
def test_c56_a_pair_of_events_in_every_situation(situation, inputs):
    """One begin and one end, whatever is frozen, unused or not asked for."""
    net, x = nn.Linear(2, 2), torch.randn(1, 2, requires_grad=True)
    with Log(inputs=inputs) as log:
        SITUATIONS[situation](net, x)
    assert log.lines == ["begin ", "end "]


def test_c56_an_unused_output_of_a_module():
    """A module whose second output nobody uses has its pair; one that is not used has none."""

    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(2, 2), nn.Linear(2, 2)

        def forward(self, x):
            return self.a(x), self.b(x)

    net = Two()
    with Log() as log:
        net(torch.ones(1, 2))[0].sum().backward()
    assert log.lines == ["begin ", "begin a", "end a", "end "]


@pytest.mark.parametrize("input_needs_grad", [True, False])
@pytest.mark.parametrize(
    ("build", "x"),
    [
        (lambda: nn.Linear(2, 2), torch.ones(3, 2)),
        (lambda: nn.LayerNorm(2), torch.ones(3, 2)),
        (lambda: nn.LSTM(2, 2), torch.ones(3, 1, 2)),
        (lambda: nn.MultiheadAttention(2, 1), torch.ones(3, 1, 2)),
    ],
    ids=["Linear", "LayerNorm", "LSTM", "MultiheadAttention"],
)
def test_c57_parameters_are_ready_at_the_end(build, x, input_needs_grad):
    """All of the module's own gradients are there, new ones, in every step."""
    module, ready = build(), []

    class Ready(ModuleHook):
        def backward_postprocess(self, call):
            if call.module is module:
                ready.append([parameter.grad.clone() for parameter in module.parameters()])

    with Ready():
        for scale in (1.0, 3.0):
            module.zero_grad()
            given = (x * scale).requires_grad_(input_needs_grad)
            arguments = (given,) * (3 if isinstance(module, nn.MultiheadAttention) else 1)
            out = module(*arguments)
            (out[0] if isinstance(out, tuple) else out).square().sum().backward()
            for seen, parameter in zip(ready[-1], module.parameters(), strict=True):
                assert torch.equal(seen, parameter.grad)
    assert len(ready) == 2


class Three(nn.Module):
    def forward(self, x):
        return x * 2, {"b": x * 3}, x * 4


def test_c71_one_event_for_the_gradients_of_several_outputs():
    """All together, with None for those that no gradient reached, in full and partial runs."""
    module, received = Three(), []
    x = torch.ones(1, requires_grad=True)

    def joint(module, grads):
        a, b, c = grads
        received.append([None if g is None else g.item() for g in (a, b["b"], c)])

    with register_full_backward_pre_hook(module, joint):
        a, b, c = module(x)
        (a + b["b"]).sum().backward(retain_graph=True)
        torch.autograd.grad((a + b["b"] * 5 + c).sum(), x, retain_graph=True)
        c.backward()
    assert received == [[1.0, 1.0, None], [1.0, 5.0, 1.0], [None, None, 1.0]]


def test_c71_gradients_can_be_changed_jointly():
    """A hook that needs all of them to change each, such as clipping by their common norm."""
    module, x = Three(), torch.ones(1, requires_grad=True)

    def clip(module, grads):
        a, b, c = grads
        norm = torch.stack([a, b["b"], c]).norm()
        return a / norm, {"b": b["b"] / norm}, c / norm

    with register_full_backward_pre_hook(module, clip):
        a, b, c = module(x)
        (2 * a + 3 * b["b"] + 6 * c).sum().backward()
    assert x.grad.item() == pytest.approx((2 * 2 + 3 * 3 + 4 * 6) / 7)


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("manner", ["pre-hook", "hook", "scope with inputs"])
def test_c77_backward_hooks_do_nothing_where_gradients_are_off(context, manner):
    """Inference code with in-place layers runs as ever: same object, no node, no event."""
    net = nn.Sequential(nn.Linear(2, 2), nn.ReLU(inplace=True))
    seen = []
    hooks = {
        "pre-hook": lambda: register_full_backward_pre_hook(net[0], lambda *_: seen.append(1)),
        "hook": lambda: register_full_backward_hook(net[0], lambda *_: seen.append(1)),
        "scope with inputs": lambda: Log(inputs=True),
    }[manner]()
    with context():
        x = torch.ones(1, 2, requires_grad=True)
        expected = net(x)
        with hooks:
            out = net(x)
        assert torch.equal(out, expected)

    assert out.grad_fn is None
    assert not out.requires_grad
    assert seen == getattr(hooks, "lines", []) == []


def test_c77_an_output_that_needs_no_gradient():
    """A module that detaches has no backward, and the rest has its own."""

    class Detaches(nn.Module):
        def forward(self, x):
            return x.detach() * 2

    net = nn.Sequential(nn.Linear(2, 2), Detaches())
    x = torch.ones(1, 2, requires_grad=True)
    with Log() as log:
        (net(x) + x).sum().backward()
    assert log.lines == []
    assert x.grad.tolist() == [[1.0, 1.0]]
