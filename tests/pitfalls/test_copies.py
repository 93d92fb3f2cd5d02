"""Copies, pickles and TorchScript of hooked modules.

The numbers are those of the list of pitfalls in torch 2.13 that this library was built against.
"""

import copy
import io
import pickle

import pytest
import torch
from torch import nn

from hookline import (
    HooklineError,
    ModuleHook,
    add_hook,
    hooks_of,
    register_forward_hook,
    register_full_backward_hook,
    with_hooks,
)

X = torch.ones(1, 2)


class Recorder:
    def __init__(self):
        self.calls = 0

    def __call__(self, *_):
        self.calls += 1


class Counts(ModuleHook):
    def __init__(self):
        self.calls = 0

    def forward_postprocess(self, call):
        self.calls += 1


MANNERS = {
    "callable object": register_forward_hook,
    "bound method": lambda module, recorder: register_forward_hook(module, recorder.__call__),
    "lambda": lambda module, recorder: register_forward_hook(module, lambda *_: recorder()),
    "backward": register_full_backward_hook,
    "hook object": add_hook,
}


@pytest.mark.parametrize("manner", MANNERS)
@pytest.mark.parametrize("copied", [copy.deepcopy, copy.copy])
def test_p42_a_copy_is_free_and_independent(manner, copied):
    """It fires nothing, its own hooks are its own, and handles remove where they registered."""
    recorder = Counts() if manner == "hook object" else Recorder()
    module = nn.Linear(2, 2)
    with MANNERS[manner](module, recorder):
        clone = copied(module)
        clone(X).sum().backward()
        assert recorder.calls == 0

        with register_forward_hook(clone, lambda *_: None):
            assert (len(hooks_of(clone)), len(hooks_of(module))) == (1, 1)
        module(X).sum().backward()
        assert recorder.calls == 1
    module(X).sum().backward()
    assert recorder.calls == 1
    assert hooks_of(module) == []


def test_p42_a_copy_of_a_wrapped_layer_is_the_bare_layer():
    """Wrapped again, it has hooks of its own."""
    module, hooks = with_hooks(nn.Linear(2, 2))
    with hooks.add_forward_hook(lambda x, out: out * 0):
        clone = copy.deepcopy(module)
        assert module(X).count_nonzero() == 0
        assert clone(X).count_nonzero() > 0
        again, _ = with_hooks(clone)
        assert again(X).count_nonzero() > 0


@pytest.mark.parametrize("manner", MANNERS)
@pytest.mark.parametrize(
    "save",
    [
        pickle.dumps,
        lambda module: torch.save(module, io.BytesIO()),
        lambda module: torch.save(module.state_dict(), io.BytesIO()),
    ],
    ids=["pickle", "torch.save", "state_dict"],
)
def test_p43_a_hooked_module_is_saved_like_any_other(manner, save):
    """Whatever the hook is: lambda, closure, method, or an object that holds anything."""
    recorder = Counts() if manner == "hook object" else Recorder()
    recorder.held = open(__file__)  # noqa: PTH123, SIM115 - something that cannot be pickled
    module = nn.Sequential(nn.Linear(2, 2))
    with recorder.held, MANNERS[manner](module[0], recorder), MANNERS[manner](module, recorder):
        save(module)


# ---------------------------------------------------------------------------------- TorchScript


def net():
    return nn.Sequential(nn.Linear(2, 2), nn.ReLU())


@pytest.mark.parametrize("made", [torch.jit.script, lambda module: torch.jit.trace(module, X)])
@pytest.mark.parametrize("inside", [False, True])
def test_p38_torchscript_modules_are_recognised(made, inside):
    """Hooks on them are refused by one clear error that says what to do instead."""
    scripted = made(net())
    target = next(scripted.children()) if inside else scripted
    for put in (register_forward_hook, register_full_backward_hook):
        with pytest.raises(TypeError, match="is TorchScript") as caught:
            put(target, lambda *_: None)
        assert isinstance(caught.value, HooklineError)
        assert "put hooks on the module before scripting" in str(caught.value)
    with pytest.raises(TypeError, match="is TorchScript"):
        add_hook(target, Counts())
    with pytest.raises(TypeError, match="is TorchScript"):
        with_hooks(target)


@pytest.mark.parametrize("manner", MANNERS)
def test_p38_a_hooked_model_can_be_scripted(manner):
    """Hooks need no types and leave nothing in what is scripted; the original keeps them."""
    recorder = Counts() if manner == "hook object" else Recorder()
    module = net()
    with MANNERS[manner](module[0], recorder):
        scripted = torch.jit.script(module)
        scripted(X).sum().backward()
        assert recorder.calls == 0
        assert torch.equal(scripted(X), module(X))
        module(X).sum().backward()
    assert recorder.calls == (1 if manner == "backward" else 2)


def test_p38_a_wrapped_layer_can_be_scripted():
    """It is scripted as the bare layer."""
    layer, hooks = with_hooks(nn.Linear(2, 2))
    module = nn.Sequential(layer)
    expected = module(X)
    with hooks.add_forward_hook(lambda x, out: out * 0):
        assert torch.equal(torch.jit.script(module)(X), expected)


def test_p38_a_scope_sees_a_scripted_module_as_one_call():
    """The modules inside run outside of Python."""

    class Paths(ModuleHook):
        def __init__(self):
            self.paths = []

        def forward_postprocess(self, call):
            self.paths.append(call.path)

    model = nn.Sequential(torch.jit.script(net()), nn.Linear(2, 2))
    with Paths() as paths:
        model(X)
    assert paths.paths == ["0", "1", ""]
