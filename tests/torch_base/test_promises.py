"""A checkpoint repeats a forward with the hooks that changed it, or says that they are gone."""

from __future__ import annotations

import gc
import threading
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


def assert_same_grads(plain, saving):
    """The gradients are those of the net without checkpoints."""
    for one, other in zip(grads(plain), grads(saving), strict=True):
        torch.testing.assert_close(one, other)


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
    assert_same_grads(plain, saving)


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
    assert_same_grads(plain, saving)


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
    assert_same_grads(plain, saving)
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
    assert_same_grads(plain, saving)


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


# ------------------------------------------------------- hooks that leave the repeat as it is


def doubled(model, x):
    """The gradients where the first layer of a net's first block gives twice its output."""
    with patch(model, {"blocks.0.up": scale(2.0)}):
        model(x).sum().backward()
    return grads(model)


class First(ModuleHook):
    """Doubles the output of the first call that it sees."""

    done = False

    def forward_postprocess(self, call):
        if not self.done:
            call.replace(call.out * 2)
        self.done = True


class FirstInput(ModuleHook):
    done = False

    def forward_preprocess(self, call):
        if not self.done:
            call.replace((call.args[0] * 2,))
        self.done = True


def torch_style(module):
    """A hook in torch's manner that doubles the output of the first call."""
    done = []

    def double(module, args, output):
        done.append(True)
        return output * 2 if len(done) == 1 else None

    return hookline.register_forward_hook(module, double)


def torch_style_input(module):
    done = []

    def double(module, args, kwargs):
        done.append(True)
        return ((args[0] * 2,), kwargs) if len(done) == 1 else None

    return hookline.register_forward_pre_hook(module, double)


ONCE = {
    "object": lambda module: add_hook(module, First()),
    "object-input": lambda module: add_hook(module, FirstInput()),
    "torch-style": torch_style,
    "torch-style-input": torch_style_input,
}


@both
@pytest.mark.parametrize("once", ONCE.values(), ids=ONCE)
def test_r8_a_hook_that_changes_only_the_first_call(reentrant, once, x):
    """It is still there, and the repeat is not what the forward was."""
    _, model = nets(reentrant)
    with once(model.blocks[0].up):
        loss = model(x).sum()
        with pytest.raises(
            RecomputeError, match=r"changed the (in|out)puts? of blocks\.0\.up.* and does not now"
        ):
            loss.backward()


@both
@pytest.mark.parametrize("kind", ["output", "input"])
def test_r8_hooks_in_torchs_manner(reentrant, kind, x):
    """Gone at the repeat they are an error that names them; kept, gradients are right."""
    plain, saving = nets(reentrant)

    def double(module, args, output):
        return output * 2

    def double_input(module, args):
        return (args[0] * 2,)

    def register(model):
        if kind == "input":
            return hookline.register_forward_pre_hook(model.blocks[0].up, double_input)
        return hookline.register_forward_hook(model.blocks[0].up, double)

    with register(saving):
        loss = saving(x).sum()
    with pytest.raises(RecomputeError, match=rf"double.* changed the {kind}s? of blocks\.0\.up"):
        loss.backward()
    saving.zero_grad()
    for model in (plain, saving):
        with register(model):
            model(x).sum().backward()
    assert_same_grads(plain, saving)


@both
@pytest.mark.parametrize("kind", ["output", "input"])
def test_r8_value_hooks(reentrant, kind, x):
    """Those on a wrapped layer likewise, also where the layer inside is wrapped too."""
    for inner in (False, True):
        plain, saving = nets(reentrant)
        layer, inside = hookline.with_hooks(saving.blocks[0].up)
        saving.blocks[0].up, outside = hookline.with_hooks(layer)
        hooks = inside if inner else outside

        def double(hooks):
            if kind == "input":
                return hooks.add_forward_pre_hook(lambda x: x * 2)
            return hooks.add_forward_hook(lambda x, out: out * 2)

        with double(hooks):
            loss = saving(x).sum()
        with pytest.raises(RecomputeError, match=f"lambda.* changed the {kind}"):
            loss.backward()
        saving.zero_grad()
        with double(hooks):
            saving(x).sum().backward()
        with patch(plain, {"blocks.0.up": scale(2.0, on=kind)}):
            plain(x).sum().backward()
        assert_same_grads(plain, saving)


@both
@pytest.mark.parametrize("on", ["input", "output"])
def test_r8_hooks_that_rest_during_the_backward(reentrant, on, x):
    """Inside of `paused()` nothing is changed: so nothing that was is repeated there."""
    _, model = nets(reentrant)
    with patch(model, {"blocks.0.up": scale(2.0, on=on)}):
        loss = model(x).sum()
        with hookline.paused(), pytest.raises(RecomputeError, match=r"of blocks\.0\.up"):
            loss.backward()
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_r8_what_a_paused_backward_does_not_need_is_no_error(x):
    """Where the checkpoint stops early, before the changed call, gradients are right."""
    plain, saving = nets(False)
    for model in (plain, saving):
        with patch(model, {"blocks.*.down": scale(3.0)}):
            loss = model(x).sum()
            with hookline.paused():
                loss.backward()
    assert_same_grads(plain, saving)


# ---------------------------------------------------------------- it never comes wrongly


@both
def test_r8_a_change_to_other_values_is_a_change(reentrant, x):
    """Noise that is drawn anew is the affair of the hook."""
    _, model = nets(reentrant)

    def noise(module, args, out):
        return out + torch.randn_like(out)

    with (
        patch(model, {"blocks.1.up": torch.randn_like}),
        hookline.register_forward_hook(model.blocks[0].up, noise),
    ):
        model(x).sum().backward()


@both
def test_r8_what_gives_its_values_back_changes_nothing(reentrant, x):
    """A hook that returns what it got, or replaces tensors by themselves, may go."""

    class Same(ModuleHook):
        def forward_preprocess(self, call):
            call.replace(hookline.Inputs(call.args, dict(call.kwargs)))

        def forward_postprocess(self, call):
            call.replace(call.out)

    _, model = nets(reentrant)
    up = model.blocks[0].up
    with (
        Same(),
        hookline.register_forward_hook(up, lambda module, args, out: out),
        hookline.register_forward_pre_hook(up, lambda module, args: (args[0],)),
    ):
        loss = model(x).sum()
    loss.backward()


@both
def test_r8_hooks_that_the_part_puts_on_itself(reentrant, x):
    """They come and go with each run of it, so the repeat has its own."""
    plain, saving = nets(reentrant)
    block = saving.blocks[0]
    expected = doubled(plain, x)

    def part(x):
        with patch(saving, {"blocks.0.up": scale(2.0)}):
            return block(x)

    def part_with_hook(x):
        with hookline.register_forward_hook(block.up, lambda module, args, out: out * 2):
            return block(x)

    for run in (part, part_with_hook):
        saving.zero_grad()
        saving.blocks[1](checkpoint(run, x, use_reentrant=reentrant)).sum().backward()
        for one, other in zip(expected, grads(saving), strict=True):
            torch.testing.assert_close(one, other)


class Twice(nn.Module):
    """One layer, called twice."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return self.layer(self.layer(x).tanh()).tanh()


class Saving(nn.Module):
    """A checkpoint of all that a module does; `bare`, without a call of the module itself."""

    def __init__(self, reentrant, *, bare=False):
        super().__init__()
        self.inner = Twice()
        self.reentrant, self.bare = reentrant, bare

    def forward(self, x):
        run = self.inner.forward if self.bare else self.inner
        return (
            run(x) if self.reentrant is None else checkpoint(run, x, use_reentrant=self.reentrant)
        )


def twice(reentrant, edits, x, *, bare=False):
    """A model with a checkpoint, and the gradients of the edited one without."""
    torch.manual_seed(0)
    plain, saving = Saving(None), Saving(reentrant, bare=bare)
    saving.load_state_dict(plain.state_dict())
    with patch(plain, edits):
        plain(x).sum().backward()
    return saving, grads(plain)


SOME = [
    {"inner.layer": [scale(3.0), scale(2.0, on="input")]},
    {"inner.layer": scale(3.0, calls=0)},
    {"inner.layer": scale(3.0, calls=1)},
    {"inner.layer": scale(3.0, calls=1, on="input")},
    {"inner.layer": [scale(3.0, calls=1), scale(2.0, calls=0, on="input")]},
]


@both
@pytest.mark.parametrize("edits", SOME, ids=str)
def test_r8_one_layer_that_is_called_twice(reentrant, edits, x):
    """Whichever of its calls are changed, they are when they are repeated."""
    saving, expected = twice(reentrant, edits, x)
    with hookline.watch(saving, hookline.module_hooks.TimerHook()), patch(saving, edits):
        saving(x).sum().backward()
    for one, other in zip(expected, grads(saving), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("edits", SOME[1:], ids=str)
def test_r8_one_call_of_two_that_are_not_told_apart(edits, x):
    """Without a repeated call around them they are not: then it is an error, and no wrong number.

    A reentrant checkpoint tells them apart in any case.
    """
    saving, expected = twice(True, edits, x, bare=True)
    with patch(saving, edits):
        saving(x).sum().backward()
    for one, other in zip(expected, grads(saving), strict=True):
        torch.testing.assert_close(one, other)
    saving, _ = twice(False, edits, x, bare=True)
    with patch(saving, edits):
        loss = saving(x).sum()
        with pytest.raises(RecomputeError, match=r"does not now|changes more calls now"):
            loss.backward()


class Gelu(nn.Module):
    def __init__(self):
        super().__init__()
        self.gelu = hookline.FunctionNode(F.gelu)

    def forward(self, x):
        return self.gelu(x)


@both
def test_r8_hooks_on_a_function_node(reentrant, x):
    """Kept, they change the repeat; gone, that is told."""

    class Shift(FunctionHook):
        def forward_postprocess(self, function, in_data):
            function.replace(function.out + 1)

    model = Gelu()
    block = nn.Sequential(nn.Linear(4, 4), model, nn.Linear(4, 4))

    def run():
        return checkpoint(block, x, use_reentrant=reentrant).sum()

    model.gelu.add_hook(Shift())
    run().backward()
    loss = run()
    model.gelu.delete_hook("Shift")
    with pytest.raises(RecomputeError, match="Shift changed the output of function"):
        loss.backward()


@both
@pytest.mark.parametrize(
    "how", ["opened after the forward", "paused in the forward", "torch-style"]
)
def test_a_change_that_only_the_repeat_would_get_is_refused(reentrant, how):
    """Gradients would be neither those of the changed model nor those of the unchanged one."""
    _, net = nets(reentrant)
    x = torch.ones(2, 4, requires_grad=True)
    target = net.blocks[1].up
    if how == "paused in the forward":
        with patch(net, {"blocks.1.up": scale(3.0)}):
            with hookline.paused():
                out = net(x)
            with pytest.raises(RecomputeError, match=r"and no hook did in the forward"):
                out.sum().backward()
        return
    out = net(x)
    opened = (
        patch(net, {"blocks.1.up": scale(3.0)})
        if how == "opened later"
        else hookline.register_forward_hook(target, lambda *a: a[-1] * 3, with_kwargs=False)
    )
    with opened, pytest.raises(RecomputeError, match=r"up \(Linear\), call 0"):
        out.sum().backward()


@both
def test_many_passes_before_the_backward_are_no_reason(reentrant):
    """Also where the passes of the forwards are not remembered any more."""
    plain, net = nets(reentrant)
    x = torch.ones(2, 4, requires_grad=True)
    edits = {"blocks.1.up": scale(3.0)}
    with patch(net, edits):
        outs = [net(x) for _ in range(80)]
        outs[0].sum().backward()
    with patch(plain, edits):
        plain(x).sum().backward()
    for mine, other in zip(net.parameters(), plain.parameters(), strict=True):
        assert torch.equal(mine.grad, other.grad)


@both
def test_a_backward_in_another_thread_is_no_reason(reentrant):
    """The forward was changed there, too, by the same hook."""
    _, net = nets(reentrant)
    x = torch.ones(2, 4, requires_grad=True)
    raised = []

    def backward(out):
        try:
            out.sum().backward()
        except Exception as error:  # noqa: BLE001 - whatever it is
            raised.append(error)

    with patch(net, {"blocks.1.up": scale(3.0)}):
        thread = threading.Thread(target=backward, args=(net(x),))
        thread.start()
        thread.join()
    assert raised == []
    assert net.blocks[1].up.weight.grad is not None
