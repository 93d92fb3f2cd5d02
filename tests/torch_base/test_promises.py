"""A checkpoint repeats a forward with the hooks that changed it, or says that they are gone."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

import hookline
from hookline import FunctionHook, ModuleHook, RecomputeError, add_hook, patch
from hookline.edits import add, scale

both = pytest.mark.parametrize("reentrant", [False, True], ids=["non-reentrant", "reentrant"])


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(4, 8)
        self.down = nn.Linear(8, 4)

    def forward(self, x):
        return self.down(F.gelu(self.up(x)))


class Net(nn.Module):
    """Two blocks, each a checkpoint of its own or none; nested, one around both besides."""

    def __init__(self, *, reentrant=None, nested=False):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.reentrant, self.nested = reentrant, nested

    def forward(self, x):
        if self.nested:
            return checkpoint(self.inner, x, use_reentrant=self.reentrant)
        return self.inner(x)

    def inner(self, x):
        for block in self.blocks:
            x = self.block(block, x)
        return x

    def block(self, block, x):
        if self.reentrant is None:
            return block(x)
        return checkpoint(block, x, use_reentrant=self.reentrant)


def nets(reentrant, *, nested=False):
    """Two nets of the same weights, without checkpoints and with them."""
    torch.manual_seed(0)
    plain, saving = Net(), Net(reentrant=reentrant, nested=nested)
    saving.load_state_dict(plain.state_dict())
    return plain, saving


@pytest.fixture
def x():
    torch.manual_seed(1)
    return torch.randn(3, 4, requires_grad=True)


def grads(model):
    return [p.grad for p in model.parameters()]


EDITS = [
    {"blocks.0.up": scale(3.0)},
    {"blocks.1.up": scale(3.0, on="input")},
    {"blocks.*:gelu": add(1.0)},
    {"blocks.0": scale(2.0, on="input")},
]


@both
@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")  # inside of another
@pytest.mark.parametrize("nested", [False, True], ids=["flat", "nested"])
@pytest.mark.parametrize("edits", EDITS, ids=str)
def test_r8_a_patch_that_is_gone_is_an_error(reentrant, nested, edits, x):
    """Gradients of neither model are not given; kept open, they are the patched one's."""
    plain, saving = nets(reentrant, nested=nested)
    with patch(plain, edits):
        plain(x).sum().backward()
    with patch(saving, edits):
        loss = saving(x).sum()
    with pytest.raises(RecomputeError, match=r"patch \d+ changed the (in|out)puts? of .*blocks"):
        loss.backward()
    saving.zero_grad()
    with patch(saving, edits):
        saving(x).sum().backward()
    for one, other in zip(grads(plain), grads(saving), strict=True):
        torch.testing.assert_close(one, other)


@both
def test_r8_the_same_patch_anew_will_do(reentrant, x):
    """It need not be the same object: what counts is that somebody changes the call."""
    plain, saving = nets(reentrant)
    edits = {"blocks.0.up": scale(3.0), "blocks.1:gelu": add(1.0)}
    with patch(plain, edits):
        plain(x).sum().backward()
    with patch(saving, edits):
        loss = saving(x).sum()
    with patch(saving, edits):
        loss.backward()
    for one, other in zip(grads(plain), grads(saving), strict=True):
        torch.testing.assert_close(one, other)


@both
def test_r8_hook_objects_of_both_levels(reentrant, x):
    """Whoever calls `replace`, in a scope or on a module, whatever else is on later."""

    class Double(ModuleHook):
        def forward_postprocess(self, call):
            if call.path == "blocks.0.up":
                call.replace(call.out * 2)

    class Shift(FunctionHook):
        def forward_preprocess(self, function, in_data):
            if function.name == "gelu":
                function.replace(in_data[0] + 1)

    _, model = nets(reentrant)
    for hook in (Double(), Shift()):
        with hook:
            loss = model(x).sum()
        with hookline.module_hooks.TimerHook(), pytest.raises(RecomputeError, match=hook.name):
            loss.backward()
    with add_hook(model.blocks[0].up, Double()):
        loss = model(x).sum()
    with pytest.raises(RecomputeError, match="Double"):
        loss.backward()


def test_r8_what_the_backward_does_not_need_is_no_error(x):
    """Where the checkpoint stops early, before the changed call, gradients are right."""
    plain, saving = nets(False)
    for model in (plain, saving):
        with patch(model, {"blocks.*.down": scale(3.0)}):
            loss = model(x).sum()
        loss.backward()
    for one, other in zip(grads(plain), grads(saving), strict=True):
        torch.testing.assert_close(one, other)
    with set_checkpoint_early_stop(False), patch(saving, {"blocks.*.down": scale(3.0)}):
        loss = saving(x).sum()
    with pytest.raises(RecomputeError):
        loss.backward()


@both
def test_r8_a_patch_in_front_of_other_hooks(reentrant, x):
    """Its edit is made by a hook of torch's, and promised all the same."""
    plain, saving = nets(reentrant)
    edits = {"blocks.0.up": scale(3.0)}
    with patch(saving, edits, first=True):
        loss = saving(x).sum()
    with pytest.raises(RecomputeError, match=r"changed the output of blocks\.0\.up"):
        loss.backward()
    saving.zero_grad()
    with patch(saving, edits, first=True):
        loss = saving(x).sum()
    with patch(saving, edits, first=True):
        loss.backward()
    with patch(plain, edits):
        plain(x).sum().backward()
    for one, other in zip(grads(plain), grads(saving), strict=True):
        torch.testing.assert_close(one, other)


@both
def test_r8_observers_and_edits_of_gradients_may_go(reentrant, x):
    """Only who changes the forward makes a promise."""
    _, model = nets(reentrant)
    with (
        hookline.module_hooks.TimerHook(),
        patch(model, {"blocks.0.up": scale(3.0, on="grad")}),
        patch(model, {"blocks.0.up": scale(3.0, calls=7)}),
    ):
        loss = model(x).sum()
    loss.backward()


def test_r8_outside_of_checkpoints_a_patch_may_go(x):
    """What autograd keeps is that of the patched forward: its gradients are right."""
    plain, _ = nets(None)
    with patch(plain, {"blocks.0.up": scale(3.0)}):
        loss = plain(x).sum()
    loss.backward()


@both
def test_r5_what_was_promised_keeps_no_hook(reentrant, x):
    """The graph knows of the change, and keeps neither hook nor model."""
    _, model = nets(reentrant)

    class Double(ModuleHook):
        def forward_postprocess(self, call):
            call.replace(call.out * 2)

    hook = Double()
    gone = weakref.ref(hook)
    with hook:
        loss = model(x).sum()
    del hook
    gc.collect()
    assert gone() is None
    with pytest.raises(RecomputeError, match="Double changed the output"):
        loss.backward()
