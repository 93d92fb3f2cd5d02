"""Troubles people report: saving, copying and scripting models with hooks.

The numbers are those of the list of reported troubles that this library was built against.
"""

import copy
import io
import pickle
import threading

import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

import hookline
from hookline import HooklineError, ModuleHook, add_hook, hooks_of, with_hooks

DIGITS = torch.tensor(load_digits().data[:8], dtype=torch.float32) / 16


def build():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))


class HoldsLocks(ModuleHook):
    """A hook with a lock, a file and a queue of its own."""

    def __init__(self):
        self.lock, self.seen = threading.Lock(), []

    def forward_postprocess(self, call):
        with self.lock:
            self.seen.append(call.path)


def closures(model):
    store = {}

    def hook(module, args, output):
        store["output"] = output

    return [hookline.register_forward_hook(module, hook) for module in model.modules()]


def lambdas(model):
    return [
        hookline.register_full_backward_hook(module, lambda *_: None) for module in model.modules()
    ]


def objects(model):
    hook = HoldsLocks()
    return [add_hook(module, hook) for module in model.modules()]


def wrappers(model):
    model[0], hooks = with_hooks(model[0])
    return [hooks.add_forward_hook(lambda x, out: None), hooks.add_backward_hook(lambda g: None)]


@pytest.mark.parametrize("put", [closures, lambdas, objects, wrappers])
def test_c07_a_model_with_hooks_is_saved(put):
    """While hooks are on and just ran; what is loaded computes the same and has none."""
    expected = build()(DIGITS)
    model = build()
    handles = put(model)
    model(DIGITS).sum().backward()
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    loaded = torch.load(buffer, weights_only=False)

    for clone in (loaded, pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        assert torch.equal(clone(DIGITS), expected)
        assert hooks_of(clone) == []
    for handle in handles:
        handle.remove()


@pytest.mark.parametrize("put", [closures, lambdas, objects, wrappers])
def test_c07_state_dicts_stay_as_they_are(put):
    """Keys, values and metadata; a strict load works in both directions."""
    plain, model = build(), build()
    handles = put(model)
    model(DIGITS)

    assert list(model.state_dict()) == list(plain.state_dict())
    assert model.state_dict()._metadata == plain.state_dict()._metadata
    plain.load_state_dict(model.state_dict())
    model.load_state_dict(plain.state_dict())
    for handle in handles:
        handle.remove()


def test_c07_a_whole_training_state():
    """Model, optimizer and schedule in one file, as checkpoints are written."""
    model = build()
    optimizer = torch.optim.AdamW(model.parameters())
    with HoldsLocks():
        model(DIGITS).sum().backward()
        optimizer.step()
        buffer = io.BytesIO()
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, buffer)
    buffer.seek(0)
    state = torch.load(buffer, weights_only=True)

    again = build()
    again.load_state_dict(state["model"])
    torch.optim.AdamW(again.parameters()).load_state_dict(state["optimizer"])
    assert torch.equal(again(DIGITS), model(DIGITS))


MADE = {
    "script": torch.jit.script,
    "trace": lambda model: torch.jit.trace(model, DIGITS),
    "loaded": lambda model: reloaded(torch.jit.script(model)),
}


def reloaded(scripted):
    buffer = io.BytesIO()
    torch.jit.save(scripted, buffer)
    buffer.seek(0)
    return torch.jit.load(buffer)


@pytest.mark.parametrize("made", MADE)
@pytest.mark.parametrize("inside", [False, True])
def test_c17_hooks_on_torchscript_are_refused(made, inside):
    """Scripted, traced or loaded: one clear error that names the target and the way out."""
    scripted = MADE[made](build())
    target = getattr(scripted, "0") if inside else scripted
    for register in (
        hookline.register_forward_pre_hook,
        hookline.register_forward_hook,
        hookline.register_full_backward_pre_hook,
        hookline.register_full_backward_hook,
    ):
        with pytest.raises(
            TypeError, match="is TorchScript: its modules run outside of Python"
        ) as e:
            register(target, lambda *_: None)
        assert isinstance(e.value, HooklineError)
        assert type(target).__name__ in str(e.value)


@pytest.mark.parametrize("put", [closures, lambdas, objects, wrappers])
def test_c17_a_model_with_hooks_can_be_scripted(put):
    """Hooks that are no TorchScript do not break it."""
    model = build()
    handles = put(model)
    scripted = torch.jit.script(model)
    for handle in handles:
        handle.remove()

    assert torch.equal(scripted(DIGITS), model(DIGITS))
