"""Troubles people report: attaching, listing, ordering and removing hooks, and threads.

The numbers are those of the list of reported troubles that this library was built against.
"""

import re
import threading
from contextlib import ExitStack

import pytest
import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook as torch_global_hook

import hookline
from hookline import (
    ModuleHook,
    add_hook,
    clear_hooks,
    delete_hook,
    get_module_hooks,
    hooks_of,
    register_forward_hook,
    register_forward_pre_hook,
    register_full_backward_hook,
    register_full_backward_pre_hook,
    register_module_forward_hook,
    with_hooks,
)
from hookline.core.thread import module_switch

X = torch.ones(2, 3)


class Breaks(ModuleHook):
    """Raises at one of its events."""

    def __init__(self, phase, error):
        self.phase, self.error = phase, error

    def check(self, call):
        if call.phase == self.phase:
            raise self.error

    forward_preprocess = forward_postprocess = check
    backward_preprocess = backward_postprocess = check


PHASES = ["forward_pre", "forward", "backward_pre", "backward"]


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("error", [IndexError("hook"), KeyboardInterrupt()])
def test_c19_a_hook_that_raised_leaves_nothing(phase, error):
    """Every way out of a scope takes it off; the model runs as before, its tables untouched."""
    net = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    expected = net(X)
    tables = [{key: len(v) for key, v in vars(m).items() if "hooks" in key} for m in net.modules()]
    with pytest.raises(type(error)) as caught, Breaks(phase, error):
        net(X).sum().backward()

    assert caught.value is error
    assert not module_switch
    assert get_module_hooks() == {}
    assert torch.equal(net(X), expected)
    net(X).sum().backward()
    assert tables == [
        {key: len(v) for key, v in vars(m).items() if "hooks" in key} for m in net.modules()
    ]


def test_c19_nested_scopes_unwind_in_order():
    """An error inside of several scopes closes them from the inside out."""
    closed = []

    class Tells(ModuleHook):
        def __init__(self, name):
            self.name = name

        def deleted(self, target):
            closed.append((self.name, list(get_module_hooks())))

    with pytest.raises(ZeroDivisionError), Tells("a"), Tells("b"), Tells("c"):
        raise ZeroDivisionError
    assert closed == [("c", ["a", "b", "c"]), ("b", ["a", "b"]), ("a", ["a"])]


def test_c19_a_patch_is_undone():
    """A hook that changed values and failed at its second call does not go on changing them."""
    net = nn.Linear(3, 3)
    expected, calls = net(X), []

    def doubles_once(module, args, output):
        calls.append(1)
        return output[:, 7] if len(calls) == 2 else output * 2

    with register_forward_hook(net, doubles_once):
        assert torch.equal(net(X), expected * 2)
        with pytest.raises(IndexError):
            net(X)
    assert torch.equal(net(X), expected)


def test_c25_all_hooks_of_a_model_are_listed_and_cleared():
    """Path, phase, hook and handle of each, in order; clearing removes exactly these."""
    net = nn.Sequential(nn.Linear(3, 3), nn.Sequential(nn.ReLU()))
    foreign = []
    net[0].register_forward_hook(lambda *_: foreign.append("torch"))
    other = nn.Linear(3, 3)
    kept = register_forward_hook(other, lambda *_: foreign.append("other"))

    def kwargs_hook(module, args, kwargs, output): ...

    class Both(ModuleHook):
        def forward_preprocess(self, call): ...

        def backward_postprocess(self, call): ...

    hook = Both()
    register_forward_hook(net[0], kwargs_hook, with_kwargs=True, always_call=True)
    add_hook(net[1][0], hook)
    handle = register_full_backward_pre_hook(net, print)

    rows = [(row.path, str(row.phase), row.hook) for row in hooks_of(net)]
    assert rows == [
        ("", "backward_pre", print),
        ("0", "forward", kwargs_hook),
        *[("1.0", "forward_pre", hook), ("1.0", "backward", hook)],
    ]
    assert all(row.handle.active for row in hooks_of(net))

    clear_hooks(net)
    assert hooks_of(net) == []
    assert not handle.active
    net(X)
    other(X)
    assert foreign == ["torch", "other"]
    kept.remove()


def test_c25_one_hook_can_be_removed_by_its_listing():
    """The handle in the list is as good as the one that was lost."""
    net, fired = nn.Sequential(nn.Linear(3, 3)), []
    register_forward_hook(net[0], lambda *_: fired.append("lost"))
    register_forward_hook(net, lambda *_: fired.append("kept"))
    next(row for row in hooks_of(net) if row.path == "0").handle.remove()
    net(X)
    assert fired == ["kept"]
    clear_hooks(net)


def test_c25_what_was_removed_is_not_listed():
    """Hooks of scopes and of all modules are not the model's; removed ones are gone."""
    net = nn.Linear(3, 3)
    with register_module_forward_hook(print), Breaks("none", None):
        register_forward_hook(net, print).remove()
        assert hooks_of(net) == []


REGISTER = {
    "forward_pre": register_forward_pre_hook,
    "forward": register_forward_hook,
    "backward_pre": register_full_backward_pre_hook,
    "backward": register_full_backward_hook,
}


@pytest.mark.parametrize("phase", REGISTER)
def test_c45_one_order_in_every_phase(phase):
    """Scopes, hooks on all modules, the module's own; each as registered, `prepend` in front."""
    module, order = nn.Linear(3, 3), []
    register = REGISTER[phase]

    def note(name):
        return lambda *_: order.append(name)

    class Scoped(ModuleHook):
        def __init__(self, name):
            self.name = name

        def note(self, call):
            if call.phase == phase:
                order.append(self.name)

        forward_preprocess = forward_postprocess = note
        backward_preprocess = backward_postprocess = note

    everywhere = getattr(hookline, register.__name__.replace("register_", "register_module_"))
    with ExitStack() as stack:
        stack.enter_context(register(module, note("local 1")))
        stack.enter_context(register(module, note("local 2")))
        stack.enter_context(register(module, note("local 0"), prepend=True))
        stack.enter_context(everywhere(note("global 1")))
        stack.enter_context(everywhere(note("global 0"), prepend=True))
        stack.enter_context(Scoped("scope 0"))
        stack.enter_context(Scoped("scope 1"))
        module(X.clone().requires_grad_()).sum().backward()

    assert order == [
        f"{place} {number}"
        for place, count in [("scope", 2), ("global", 2), ("local", 3)]
        for number in range(count)
    ]


def test_c45_a_replaced_value_is_what_later_hooks_see():
    """In the order of the hooks, inputs and outputs alike."""
    module, seen = nn.Identity(), []

    def add(number):
        def pre(module, args):
            seen.append(args[0])
            return args[0] + number

        return pre

    with (
        register_forward_pre_hook(module, add(1)),
        register_forward_pre_hook(module, add(10)),
        register_forward_hook(module, lambda module, args, out: seen.append((args[0], out))),
        register_forward_hook(module, lambda module, args, out: out * 2),
        register_forward_hook(module, lambda module, args, out: seen.append(out)),
    ):
        assert module(0) == 22
    assert seen == [0, 1, (11, 11), 22]


def test_c45_hooks_stand_outside_of_torch_s_own():
    """Torch's hooks of the module, local and global, run inside of ours."""
    module, order = nn.Linear(3, 3), []
    module.register_forward_pre_hook(lambda *_: order.append("torch pre"))
    module.register_forward_hook(lambda *_: order.append("torch"))
    handle = torch_global_hook(lambda *_: order.append("torch global"))
    with (
        register_forward_pre_hook(module, lambda *_: order.append("ours pre")),
        register_forward_hook(module, lambda *_: order.append("ours")),
    ):
        module(X)
    handle.remove()
    assert order == ["ours pre", "torch pre", "torch global", "torch", "ours"]


class Counts(ModuleHook):
    def __init__(self):
        self.counts = {}

    def forward_postprocess(self, call):
        key = (call.root, call.path)
        self.counts[key] = self.counts.get(key, 0) + 1


def test_c49_two_models_of_one_class_are_told_apart():
    """One hook over both: its records name the model that they come from."""
    first, second = (nn.Sequential(nn.Linear(3, 3)) for _ in range(2))
    with Counts() as counts:
        first(X)
        second(X)
        second(X)

    roots = sorted({root for root, _ in counts.counts})
    assert len(roots) == 2
    assert sorted(counts.counts.values()) == [1, 1, 2, 2]
    assert {path for _, path in counts.counts} == {"", "0"}


def test_c49_the_same_target_twice_is_refused_or_explicit():
    """A hook object is on a module once under a name; twice only under two names."""
    layer, counts = nn.Linear(3, 3), Counts()
    add_hook(layer, counts)
    with pytest.raises(KeyError, match="Hook Counts already exists"):
        add_hook(layer, counts)
    layer(X)
    assert list(counts.counts.values()) == [1]

    add_hook(layer, counts, name="again")
    layer(X)
    assert list(counts.counts.values()) == [3]
    delete_hook(layer, "Counts")
    delete_hook(layer, "again")
    with pytest.raises(KeyError, match="Hook again does not exist; hooks here: none"):
        delete_hook(layer, "again")


@pytest.mark.parametrize("build", [lambda: nn.ModuleList([nn.Linear(2, 2)]), nn.ModuleDict])
def test_c83_a_list_of_modules_is_refused_with_a_hint(build):
    """It never runs, so a hook on it is an error that names the modules in it."""
    layers = build()
    names = ", ".join(name for name, _ in layers.named_children())
    instead = f"put them on the modules in it ({names})" if names else "no module in it either"
    for put in (
        lambda: register_forward_hook(layers, print),
        lambda: add_hook(layers, Counts()),
        lambda: with_hooks(layers),
    ):
        with pytest.raises(ValueError, match=re.escape(instead)):
            put()


def test_c83_the_modules_in_a_list_are_watched():
    """What runs inside of the container is seen under its path."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(3, 3), nn.ModuleList([nn.ReLU()])])

        def forward(self, x):
            return self.layers[1][0](self.layers[0](x))

    with Counts() as counts:
        Net()(X)
    assert [path for _, path in counts.counts] == ["layers.0", "layers.1.0", ""]


# --------------------------------------------------------------------------------------- threads


def test_c39_scopes_are_of_a_thread_registrations_of_all():
    """Module hooks on a module act in every thread, a scope in its own only."""
    layer, seen = nn.Linear(3, 3), []

    def note(*_):
        seen.append(threading.current_thread().name)

    with register_forward_hook(layer, note), Counts() as scope:
        worker = threading.Thread(target=layer, args=(X,), name="worker")
        worker.start()
        worker.join()
        layer(X)
    assert seen == ["worker", threading.current_thread().name]
    assert list(scope.counts.values()) == [1]


class Deeper(torch.autograd.Function):
    """Calls backward inside of the backward, as reentrant checkpoints do."""

    @staticmethod
    def forward(ctx, x, layer, depth):
        ctx.layer, ctx.depth = layer, depth
        ctx.save_for_backward(x)
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        if ctx.depth:
            with torch.enable_grad():
                inner = x.detach().requires_grad_()
                Deeper.apply(ctx.layer(inner), ctx.layer, ctx.depth - 1).sum().backward()
        return gradient, None, None


def test_c39_backward_events_in_workers_of_autograd():
    """Deep inside of each other, backwards run in worker threads; the scope is there all the same.

    Torch goes over to another thread where backwards are nested more than 60 deep.
    """
    layer, threads = nn.Linear(3, 3), []

    class Notes(ModuleHook):
        def backward_preprocess(self, call):
            threads.append(threading.get_ident())

    depth = 70
    with Notes():
        Deeper.apply(X.clone().requires_grad_(), layer, depth).sum().backward()
    assert len(threads) == depth
    assert len(set(threads)) > 1
