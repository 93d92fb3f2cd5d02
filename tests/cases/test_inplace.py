"""Troubles people report: backward hooks beside in-place operations.

The numbers are those of the list of reported troubles that this library was built against.
"""

from contextlib import ExitStack

import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

from hookline import (
    ModuleHook,
    register_full_backward_hook,
    register_full_backward_pre_hook,
    with_hooks,
)

DIGITS = torch.tensor(load_digits().images[:8], dtype=torch.float32).unsqueeze(1) / 16
LABELS = torch.tensor(load_digits().target[:8])


def cnn():
    torch.manual_seed(0)
    return nn.Sequential(
        *[nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True)],
        *[nn.Conv2d(4, 10, 3), nn.Hardswish(inplace=True), nn.Dropout(0.2, inplace=True)],
        *[nn.AdaptiveAvgPool2d(1), nn.ELU(inplace=True), nn.Flatten()],
    )


def train(model, steps=2):
    """Losses and final parameters of a short training."""
    torch.manual_seed(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(DIGITS), LABELS)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return [*losses, *(parameter.detach() for parameter in model.parameters())]


class Norms(ModuleHook):
    """Keeps the norm of each output's gradient."""

    def __init__(self, *, inputs=False):
        self.needs_grad_input = inputs
        self.norms = {}

    def backward_postprocess(self, call):
        self.norms.setdefault(call.path, []).append(call.grad_output[0].norm())


def wrap_all(model):
    """Wraps every layer, each with a backward hook that looks only."""
    norms = {}
    for index, layer in enumerate(model):
        model[index], hooks = with_hooks(layer)

        def hook(gradient, path=str(index)):
            norms.setdefault(path, []).append(gradient.norm())

        hooks.add_backward_hook(hook)
    return norms


@pytest.mark.parametrize("position", range(9))
@pytest.mark.parametrize("register", [register_full_backward_hook, register_full_backward_pre_hook])
def test_c01_a_backward_hook_on_any_layer(register, position):
    """Before, on or after an in-place layer: the training is bitwise that without the hook."""
    expected = train(cnn())
    model, seen = cnn(), []
    with register(model[position], lambda *_: seen.append(1)):
        found = train(model)

    assert seen == [1, 1]
    assert all(map(torch.equal, found, expected))


@pytest.mark.parametrize("inputs", [False, True])
def test_c01_hooks_on_all_layers_at_once(inputs):
    """A whole network with in-place layers under a scope, with and without input gradients."""
    expected = train(cnn())
    model = cnn()
    with Norms(inputs=inputs) as norms:
        found = train(model)

    assert all(map(torch.equal, found, expected))
    assert {path: len(values) for path, values in norms.norms.items()} == {
        path: 2 for path, _ in model.named_modules()
    }


def test_c01_the_gradients_are_those_of_plain_autograd():
    """Each layer's gradient equals that of its own output before the next layer changed it."""
    model = cnn().eval()
    with Norms() as norms:
        nn.functional.cross_entropy(model(DIGITS), LABELS).backward()

    # The same network with nothing in place, and each output's gradient kept by torch.
    plain = cnn().eval()
    outputs, x = {}, DIGITS
    for index, layer in enumerate(plain):
        layer.inplace = False
        outputs[str(index)] = x = layer(x)
        x.retain_grad()
    nn.functional.cross_entropy(x, LABELS).backward()
    for path, output in outputs.items():
        assert torch.allclose(norms.norms[path][0], output.grad.norm())


def test_c01_value_hooks_on_in_place_layers():
    """Wrapped layers with backward hooks train as the bare ones do."""
    expected = train(cnn())
    model = cnn()
    norms = wrap_all(model)
    found = train(model)

    assert all(map(torch.equal, found, expected))
    assert {len(values) for values in norms.values()} == {2}
    assert len(norms) == len(model)


class Looks(ModuleHook):
    def backward_preprocess(self, call): ...

    def backward_postprocess(self, call): ...


LAYERS = {
    "identity": nn.Identity,
    "dropout in eval": lambda: nn.Dropout(0.5).eval(),
    "nothing": nn.Sequential,
    "linear": lambda: nn.Linear(2, 2),
    "in place": lambda: nn.Sequential(nn.Linear(2, 2), nn.ReLU(inplace=True)),
    "view": lambda: nn.Unflatten(1, (1, 2)),
}


@pytest.mark.parametrize("layer", LAYERS)
def test_c61_looking_forward_changes_no_object(layer):
    """What is returned is the same object, or has the same kind of node, as without hooks."""
    module, x = LAYERS[layer](), torch.ones(1, 2, requires_grad=True)
    plain = module(x)

    class LooksForward(ModuleHook):
        def forward_preprocess(self, call): ...

        def forward_postprocess(self, call): ...

    with LooksForward():
        watched = module(x)
    assert (watched is x) == (plain is x)
    assert type(watched.grad_fn) is type(plain.grad_fn)
    assert watched.is_leaf == plain.is_leaf


@pytest.mark.parametrize("layer", LAYERS)
def test_c61_looking_backward_changes_no_object_of_the_layers_own(layer):
    """Only an output that is an input itself gets an alias, so that its gradient is the layer's."""
    module, x = LAYERS[layer](), torch.ones(1, 2, requires_grad=True)
    plain = module(x)
    with Looks():
        watched = module(x)

    assert torch.equal(watched, plain)
    if plain is x:
        assert watched.data_ptr() == x.data_ptr()
        assert watched.grad_fn.name() == "ViewBackward0"
    else:
        assert type(watched.grad_fn) is type(plain.grad_fn)


def test_c61_no_node_is_added_to_the_graph():
    """The graph of a watched network has the nodes that it has without, in number and kind."""

    def nodes(y):
        found, pending = [], [y.grad_fn]
        while pending:
            node = pending.pop()
            if node is not None and node not in found:
                found.append(node)
                pending += [following for following, _ in node.next_functions]
        return sorted(node.name() for node in found)

    model = cnn()
    expected = nodes(model(DIGITS))
    with ExitStack() as stack:
        stack.enter_context(Looks())
        for module in model.modules():
            stack.enter_context(register_full_backward_pre_hook(module, lambda *_: None))
        assert nodes(model(DIGITS)) == expected


def test_c61_an_identity_under_a_hook_that_changes_gradients():
    """Where the output is the input itself, only what flows through the module is changed."""
    module, x = nn.Identity(), torch.ones(1, requires_grad=True)
    with register_full_backward_pre_hook(module, lambda module, gradient: gradient[0] * 10):
        (module(x) + x).sum().backward()

    assert x.grad.item() == 11.0
