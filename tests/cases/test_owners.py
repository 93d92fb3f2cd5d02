"""Troubles people report: objects that outlive their use, and keep others alive.

The numbers are those of the list of reported troubles that this library was built against.
"""

import gc
import io
import weakref

import pytest
import torch
from torch import nn

import hookline
from hookline import add_hook, capture, function_hooks, hooks_of, module_hooks, patch, watch
from hookline.core.thread import module_switch
from hookline.edits import scale


class Probe(hookline.ModuleHook):
    """An inspection object: a hook that keeps what it saw last."""

    def __init__(self):
        self.activation = None

    def forward_postprocess(self, call):
        self.activation = call.out.detach()


OWNERS = {
    "watch": lambda model: watch(model, Probe()),
    "watch of one module": lambda model: watch(model, Probe(), where="0"),
    "capture": lambda model: capture(model, "*"),
    "capture of a function": lambda model: capture(model, "0:linear"),
    "patch": lambda model: patch(model, {"0": scale(1.0), "0:linear": scale(1.0)}),
    "attention": lambda model: watch(model, module_hooks.StatsHook(every=1)),
}


def net():
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU())


@pytest.mark.parametrize("owner", OWNERS)
def test_c02_objects_made_in_a_loop_do_not_pile_up(owner):
    """Dropped without closing, each is removed with a warning, and nothing of it is left."""
    model, alive = net(), []
    for _ in range(5):
        with pytest.warns(ResourceWarning, match="was collected while open"):
            make_use_and_drop(owner, model, alive)
        assert hooks_of(model) == []
    assert [ref() for ref in alive] == [None] * 5
    assert not module_switch


def make_use_and_drop(owner, model, alive):
    made = OWNERS[owner](model)
    model(torch.randn(2, 4))
    alive.append(weakref.ref(made))
    del made
    gc.collect()


@pytest.mark.parametrize("owner", OWNERS)
def test_c02_closed_ones_go_silently_and_may_be_closed_twice(owner):
    """As context managers, and by hand."""
    model, alive = net(), []
    for _ in range(3):
        with OWNERS[owner](model) as made:
            model(torch.randn(2, 4))
        made.close()
        alive.append(weakref.ref(made))
        del made
    gc.collect()
    assert [ref() for ref in alive] == [None] * 3
    assert hooks_of(model) == []


@pytest.mark.parametrize("owner", OWNERS)
def test_c02_the_model_is_not_kept_alive(owner):
    """By the owner of hooks, while it is open."""
    model = net()
    ref = weakref.ref(model)
    made = OWNERS[owner](model)
    model(torch.randn(2, 4))
    del model
    gc.collect()
    assert ref() is None
    made.close()


def test_c02_a_removed_hook_is_let_go():
    """Though the model lives on, nothing holds the hook or what it saw."""
    model, alive = net(), []
    for _ in range(3):
        probe = Probe()
        handle = add_hook(model[0], probe)
        model(torch.randn(2, 4))
        handle.remove()
        alive += [weakref.ref(probe), weakref.ref(probe.activation)]
        del probe, handle
    gc.collect()
    assert [ref() for ref in alive] == [None] * 6


# Reference cycles through what autograd saved.

WITH_ARGUMENTS = {
    "PatchHook": lambda cls: cls(scale(1.0)),
    "PrintHook": lambda cls: cls(file=io.StringIO()),
    "StatsHook": lambda cls: cls(every=1),
    "CaptureHook": lambda cls: cls(calls="last", reduce=torch.sum),
}
HOOKS = [
    pytest.param(getattr(level, name), id=f"{level.__name__.rpartition('.')[2]}.{name}")
    for level in (module_hooks, function_hooks)
    for name in level.__all__
]
SAVE_THEIR_OUTPUT = {
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "exp": torch.exp,
    "softmax": lambda x: torch.softmax(x, -1),
    "sqrt": lambda x: torch.sqrt(x * x + 1),
    "relu": torch.relu,
}


class Applies(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


@pytest.mark.parametrize("operation", SAVE_THEIR_OUTPUT)
@pytest.mark.parametrize("hook_class", HOOKS)
def test_c73_no_ready_made_hook_makes_a_cycle(hook_class, operation):
    """An output that its own node saved goes by counting alone, without any backward."""
    make = WITH_ARGUMENTS.get(hook_class.__name__.removeprefix("Module").removeprefix("Function"))
    hook = make(hook_class) if make else hook_class()
    model, alive = Applies(SAVE_THEIR_OUTPUT[operation]), []
    gc.collect()
    gc.disable()
    try:
        with hook:
            for _ in range(5):
                x = torch.ones(3, requires_grad=True)
                y = model(x)
                assert y.grad_fn is not None
                alive.append(weakref.ref(y))
                del x, y
                torch.ones(1)  # what hooks remember of the latest tensor may be weak only
        assert [ref() for ref in alive] == [None] * 5
    finally:
        gc.enable()


@pytest.mark.parametrize("hook_class", HOOKS)
def test_c73_the_users_own_saved_tensor_hooks_are_called_as_without(hook_class):
    """As often, and nothing is unpacked that the backward does not unpack."""
    make = WITH_ARGUMENTS.get(hook_class.__name__.removeprefix("Module").removeprefix("Function"))

    def counts(hook):
        counted = {"pack": 0, "unpack": 0}

        def pack(tensor):
            counted["pack"] += 1
            return tensor.detach()

        def unpack(tensor):
            counted["unpack"] += 1
            return tensor

        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 3), nn.Sigmoid(), nn.Linear(3, 3), nn.Softmax(-1))
        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            if hook is None:
                model(torch.ones(2, 3)).square().sum().backward()
            else:
                with watch(model, hook):
                    model(torch.ones(2, 3)).square().sum().backward()
        return counted

    plain = counts(None)
    watched = counts(make(hook_class) if make else hook_class())
    if hook_class.__name__.endswith("PatchHook"):  # scaling is an operation of its own
        assert watched["unpack"] == watched["pack"]
    else:
        assert watched == plain
