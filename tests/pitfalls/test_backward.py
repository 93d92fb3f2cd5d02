"""When torch's backward hooks run, and what they get.

The numbers are those of the list of pitfalls in torch 2.13 that this library was built against.
"""

import gc
import weakref

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, vmap

import hookline
from hookline import (
    ModuleHook,
    clear_hooks,
    register_forward_hook,
    register_full_backward_hook,
    register_full_backward_pre_hook,
)


class Events(ModuleHook):
    """Keeps `(path, phase)` of the backward events, and what came with them."""

    def __init__(self, *, inputs=False):
        self.needs_grad_input = inputs
        self.rows = []

    def note(self, call):
        self.rows.append((call.path, str(call.phase)))

    backward_preprocess = backward_postprocess = note


# ------------------------------------------------------------------------------- returned values


@pytest.mark.parametrize("batch", [5, 1, 2])
@pytest.mark.parametrize(
    ("register", "hook"),
    [
        (register_full_backward_pre_hook, lambda module, grad_output: grad_output[0] * 2),
        (register_full_backward_hook, lambda module, grad_input, grad_output: grad_input[0] * 2),
    ],
    ids=["gradient of the output", "gradient of the input"],
)
def test_p15_a_bare_tensor_may_be_returned(register, hook, batch):
    """Where there is one gradient, it can be given as it is, whatever the size of the batch."""
    module, x = nn.Linear(3, 2), torch.randn(batch, 3, requires_grad=True)
    (expected,) = torch.autograd.grad(module(x).sum(), x)
    with register(module, hook):
        module(x).sum().backward()

    assert torch.equal(x.grad, expected * 2)


def test_p15_a_bare_tensor_for_several_gradients_is_refused():
    """With two inputs it cannot be told which one is meant; the error shows what is."""
    module = nn.Bilinear(2, 2, 1)
    x, y = (torch.ones(1, 2, requires_grad=True) for _ in range(2))
    with (
        register_full_backward_hook(module, lambda module, gi, go: gi[0]),
        pytest.raises(TypeError, match="another structure") as caught,
    ):
        module(x, y).sum().backward()

    assert "Bilinear" in str(caught.value)
    assert "('gradient', 'gradient')" in str(caught.value)


def test_p23_the_hooks_of_the_last_node_are_not_offered():
    """There is no `register_backward_hook`, whose gradients are not those of the module."""
    assert not [
        name for name in dir(hookline) if name.endswith("_backward_hook") and "full" not in name
    ]

    net, shapes = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 4)), []
    with register_full_backward_hook(
        net, lambda module, gi, go: shapes.append([tuple(each.shape) for each in (*gi, *go)])
    ):
        net(torch.ones(1, 3, requires_grad=True)).sum().backward()
    assert shapes == [[(1, 3), (1, 4)]]


# ------------------------------------------------------------------------------ parts and orders


@pytest.mark.parametrize("inputs", [False, True])
@pytest.mark.parametrize("wanted", ["weight", "bias", "x"])
def test_p28_a_partial_backward_has_both_events(wanted, inputs):
    """Begin and end come in pairs, with None for gradients that were not computed."""
    module, x = nn.Linear(3, 2), torch.randn(5, 3, requires_grad=True)
    tensors = {"weight": module.weight, "bias": module.bias, "x": x}
    gradients = []

    class Pair(Events):
        def backward_postprocess(self, call):
            self.note(call)
            gradients.append(call.grad_input)

    events = Pair(inputs=inputs)
    with events:
        y = module(x)
        (expected,) = torch.autograd.grad(y.sum(), tensors[wanted], retain_graph=True)
        y.sum().backward(inputs=[tensors[wanted]])

    assert events.rows == [("", "backward_pre"), ("", "backward")] * 2
    assert torch.equal(tensors[wanted].grad, expected)
    if not inputs:
        assert gradients == [None, None]
    elif wanted == "x":
        assert all(torch.equal(gradient[0], expected) for gradient in gradients)
    else:
        assert [tuple(gradient) for gradient in gradients] == [(None,)] * 2


def test_p28_nothing_is_kept_after_a_partial_backward():
    """While the graph lives, no gradient of the run does."""
    module, fired = nn.Linear(3, 2), []
    x = torch.randn(5, 3, requires_grad=True)
    with (
        register_full_backward_hook(module, lambda *_: fired.append("end")),
        register_full_backward_pre_hook(module, lambda *_: fired.append("begin")),
    ):
        output = module(x)
        gradient = torch.ones_like(output)
        gone = weakref.ref(gradient)
        torch.autograd.grad(output, module.weight, gradient, retain_graph=True)
        del gradient
        assert gone() is None
    assert fired == ["begin", "end"]
    assert output.grad_fn is not None


def penalty(net, x):
    """The gradient of the sum of squares of the gradient of the input."""
    (gradient,) = torch.autograd.grad(net(x).sum(), x, create_graph=True)
    return gradient, (gradient**2).sum()


def test_p30_each_backward_run_has_its_own_events():
    """A gradient penalty: both runs have paired events, and gradients are as without hooks."""
    net = nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 2))
    x = torch.ones(1, 2, requires_grad=True)
    penalty(net, x)[1].backward()
    expected = [parameter.grad for parameter in net.parameters()]
    net.zero_grad()
    events = Events(inputs=True)
    with events:
        _, value = penalty(net, x)
        first, events.rows = events.rows, []
        value.backward()

    def both(path):
        return [(path, "backward_pre"), (path, "backward")]

    assert first == [("", "backward_pre"), *both("2"), *both("1"), *both("0"), ("", "backward")]
    # The second run goes through the same nodes as far as the penalty depends on them.
    assert sorted(events.rows) == sorted([*both("1"), *both("0"), *both("")])
    found = [parameter.grad for parameter in net.parameters()]
    assert all(a is b is None or torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_p30_gradients_carry_a_graph_in_the_first_run_only():
    """With `create_graph` a hook sees gradients that can be differentiated, and else none such."""
    module, seen = nn.Tanh(), []
    x = torch.ones(2, requires_grad=True)
    with register_full_backward_hook(
        module,
        lambda module, gi, go: seen.append((gi[0].requires_grad, torch.is_grad_enabled())),
    ):
        penalty(module, x)[1].backward()

    assert seen == [(True, True), (False, False)]


def test_p30_a_hook_takes_part_in_the_second_order():
    """What a hook makes of a gradient is differentiated too, as if it stood in the model."""
    module = nn.Tanh()
    x = torch.linspace(-1, 1, 3).requires_grad_()
    with register_full_backward_hook(module, lambda module, gi, go: gi[0] ** 2):
        gradient, value = penalty(module, x)
    (found,) = torch.autograd.grad(value, x)  # without the hook, which would square it as well

    slope = 1 - torch.tanh(x) ** 2
    (expected,) = torch.autograd.grad((slope**4).sum(), x)
    assert torch.allclose(gradient, slope**2)
    assert torch.allclose(found, expected)


@pytest.mark.parametrize("input_needs_grad", [True, False])
@pytest.mark.parametrize(
    ("build", "shape"), [(lambda: nn.Linear(3, 2), (5, 3)), (lambda: nn.Conv1d(3, 2, 1), (5, 3, 4))]
)
def test_p32_the_end_comes_when_parameters_have_their_gradients(build, shape, input_needs_grad):
    """Whether or not an input needs a gradient, and without a warning about it."""
    module, ready = build(), []

    def hook(module, grad_input, grad_output):
        ready.append([parameter.grad.clone() for parameter in module.parameters()])

    x = torch.randn(shape, requires_grad=input_needs_grad)
    with register_full_backward_hook(module, hook):
        module(x).sum().backward()

    ((weight, bias),) = ready
    assert torch.equal(weight, module.weight.grad)
    assert torch.equal(bias, module.bias.grad)


def test_p32_embeddings_and_frozen_layers():
    """Layers whose input is no float, or whose parameters are frozen, have the same events."""
    embedding, frozen = nn.Embedding(5, 2), nn.Linear(2, 2).requires_grad_(False)
    net = nn.Sequential(embedding, frozen, nn.Linear(2, 1))
    events = Events()
    with events:
        net(torch.tensor([[1, 2]])).sum().backward()

    assert events.rows == [
        ("", "backward_pre"),
        *[(path, phase) for path in "210" for phase in ("backward_pre", "backward")],
        ("", "backward"),
    ]


# -------------------------------------------------------------------------------- torch.func


@pytest.fixture
def linear():
    module, seen = nn.Linear(2, 2), []
    register_forward_hook(module, lambda module, args, out: seen.append(("forward", out.shape)))
    register_full_backward_pre_hook(module, lambda module, go: seen.append(("begin", go[0].shape)))
    register_full_backward_hook(module, lambda module, gi, go: seen.append(("end", go[0].shape)))
    yield module, seen
    clear_hooks(module)


def loss(module, x=None):
    x = torch.linspace(-1, 1, 2) if x is None else x
    return lambda parameters: functional_call(module, parameters, (x,)).pow(2).sum()


TRANSFORMS = {
    "grad": grad,
    "jacrev": jacrev,
    "jacfwd of grad": lambda f: jacfwd(grad(f)),
    "jacrev of grad": lambda f: jacrev(grad(f)),
    "hessian": hessian,
    "grad of grad": lambda f: grad(lambda p: sum(g.sum() for g in grad(f)(p).values())),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_p40_function_transforms_work_with_hooks(linear, name):
    """Results are those without hooks, and the hooks on the gradients run."""
    module, seen = linear
    parameters = {key: value.detach() for key, value in module.named_parameters()}
    found = TRANSFORMS[name](loss(module))(parameters)
    clear_hooks(module)
    expected = TRANSFORMS[name](loss(module))(parameters)

    assert all(map(torch.equal, tensors(found), tensors(expected)))
    assert {what for what, _ in seen} == {"forward", "begin", "end"}
    assert {tuple(shape) for _, shape in seen} == {(2,)}


def tensors(tree):
    return torch.utils._pytree.tree_leaves(tree)


def test_p40_gradients_of_each_sample(linear):
    """`vmap` over `grad`: hooks see one sample's shapes, and gradients are right."""
    module, seen = linear
    parameters = {key: value.detach() for key, value in module.named_parameters()}
    rows = torch.linspace(-1, 1, 6).reshape(3, 2)
    found = vmap(lambda x: grad(loss(module, x))(parameters))(rows)
    expected = [grad(loss(module, x))(parameters) for x in rows]

    for key in parameters:
        assert torch.allclose(found[key], torch.stack([each[key] for each in expected]))
    assert [(what, tuple(shape)) for what, shape in seen[:3]] == [
        *[("forward", (2,)), ("begin", (2,)), ("end", (2,))],
    ]


def test_p40_vmap_alone(linear):
    """Forward hooks run once, on values of one sample's shape; results are unchanged."""
    module, seen = linear
    rows = torch.linspace(-1, 1, 6).reshape(3, 2)

    assert torch.equal(vmap(module)(rows), module(rows))
    assert [(what, tuple(shape)) for what, shape in seen] == [
        *[("forward", (2,)), ("forward", (3, 2))],
    ]


def test_p40_forward_mode(linear):
    """A derivative in forward mode goes through, also for a dual that requires a gradient."""
    module, seen = linear
    x = torch.ones(2)
    with forward_ad.dual_level():
        out = module(forward_ad.make_dual(x.clone().requires_grad_(), x))
        tangent = forward_ad.unpack_dual(out).tangent

    assert torch.allclose(tangent, module.weight.detach() @ x)
    assert [what for what, _ in seen] == ["forward"]


# ------------------------------------------------------------------------------ tensors and nodes


def test_p53_a_leaf_that_passes_through():
    """The output is a parameter itself: its own hooks run each time, and nothing stays on it."""

    class Passes(nn.Module):
        def forward(self, x):
            return x

    module, seen = Passes(), []
    weight = nn.Parameter(torch.ones(2))
    with (
        register_full_backward_pre_hook(module, lambda module, go: (go[0] * 3,)),
        register_full_backward_hook(module, lambda module, gi, go: seen.append(gi[0].tolist())),
    ):
        for _ in range(2):
            gc.collect()
            (module(weight).sum() + weight.sum()).backward()

    # Only what flows through the module is tripled.
    assert weight.grad.tolist() == [2 * (3 + 1)] * 2
    assert seen == [[3.0, 3.0]] * 2
    assert not weight._backward_hooks


@pytest.mark.parametrize("inputs", [False, True])
def test_p65_no_hooks_pile_up_on_a_tensor(inputs):
    """A leaf that is used for many calls carries no hook for them, then or afterwards."""
    module, x = nn.Linear(2, 2), torch.ones(1, 2, requires_grad=True)
    node = torch.autograd.graph.get_gradient_edge(x).node
    with Events(inputs=inputs) as events:
        for _ in range(50):
            module(x).sum().backward()
            assert not x._backward_hooks

    assert len(events.rows) == 100
    assert "hookline" not in node.metadata
    assert torch.allclose(x.grad, 50 * module.weight.sum(0, keepdim=True))


def test_p58_hooks_run_in_the_state_of_the_backward():
    """Gradients are off in all backward hooks, the outermost end included, as in torch."""
    net, seen = nn.Sequential(nn.Linear(2, 2)), []

    class States(ModuleHook):
        def note(self, call):
            dtype = call.grad_output[0].dtype
            seen.append((torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"), dtype))

        backward_preprocess = backward_postprocess = note

    with States():
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = net(torch.ones(1, 2, requires_grad=True))
        y.sum().backward()

    assert seen == [(False, False, torch.bfloat16)] * 4


def test_p58_a_hook_may_change_parameters_in_place():
    """An update inside of the backward, at the end of each module, is legal for all of them."""
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    before = [parameter.detach().clone() for parameter in net.parameters()]

    def update(module, grad_input, grad_output):
        for parameter in module.parameters(recurse=module is net):
            parameter.sub_(parameter.grad, alpha=0.5)

    for module in net.modules():
        register_full_backward_hook(module, update)
    net(torch.ones(1, 2)).sum().backward()
    clear_hooks(net)

    for parameter, old in zip(net.parameters(), before, strict=True):
        assert torch.allclose(parameter, old - parameter.grad)  # by its layer, then by the whole
