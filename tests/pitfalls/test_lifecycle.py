"""When torch's hooks are on and when they are off.

The numbers are those of the list of pitfalls in torch 2.13 that this library was built against.
"""

import pytest
import torch
from torch import nn

import hookline
from hookline import (
    HooklineError,
    ModuleHook,
    add_hook,
    register_forward_hook,
    register_forward_pre_hook,
    register_full_backward_hook,
    register_full_backward_pre_hook,
    register_module_forward_hook,
    register_module_forward_pre_hook,
    register_module_full_backward_hook,
    register_module_full_backward_pre_hook,
    with_hooks,
)
from hookline.core.thread import module_switch

X = torch.linspace(-1, 1, 12).reshape(1, 3, 4)


class Paths(ModuleHook):
    def __init__(self):
        self.paths = []

    def forward_postprocess(self, call):
        self.paths.append(call.path)


# ---------------------------------------------------------------------------------- never called


def encoder(layers=2):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True, dropout=0.0)
    return nn.TransformerEncoder(layer, layers)


@pytest.mark.parametrize("watched", ["all", "one inside"])
@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_p03_modules_inside_an_encoder_are_seen_in_eval(watched, context):
    """The fused path, which calls no module inside, is off for the call, and back on after it."""
    model = encoder().eval()
    with context():
        expected = model(X)
        paths = Paths()
        hook = paths if watched == "all" else add_hook(model.layers[1].linear1, paths)
        with hook:
            found = model(X)
        assert torch.backends.mha.get_fastpath_enabled()
        assert torch.equal(model(X), expected)

    assert torch.allclose(found, expected, atol=1e-6)
    called = [path for path, _ in model.named_modules() if not path.endswith("out_proj")]
    if watched == "all":
        assert set(paths.paths) == set(called) - {"layers"}
    else:
        assert paths.paths == ["layers.1.linear1"]


def test_p03_training_and_evaluation_show_the_same_modules():
    """What is called in training is called in evaluation too."""
    model = encoder(1)
    with Paths() as training:
        model.train()(X)
    with Paths() as evaluation, torch.no_grad():
        model.eval()(X)

    assert training.paths == evaluation.paths
    assert len(training.paths) == 10


def test_p03_the_fused_path_stays_where_nothing_inside_is_watched(monkeypatch):
    """Other modules may be watched, or the encoder itself; a setting of the user's stays too."""
    model, seen = encoder().eval(), []
    fused = torch._transformer_encoder_layer_fwd
    monkeypatch.setattr(
        torch, "_transformer_encoder_layer_fwd", lambda *args: seen.append(1) or fused(*args)
    )
    with torch.no_grad():
        with register_forward_hook(nn.Linear(1, 1), print):
            model(X)
        assert len(seen) == 2
        with register_forward_hook(model, lambda *_: None):
            model(X)
        assert len(seen) == 4
        torch.backends.mha.set_fastpath_enabled(value=False)
        try:
            with Paths():
                model(X)
            assert not torch.backends.mha.get_fastpath_enabled()
        finally:
            torch.backends.mha.set_fastpath_enabled(value=True)
    assert len(seen) == 4


class NoForward(nn.Module):
    """Holds modules and is never called."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(2, 2)


CONTAINERS = {
    "ModuleList": lambda: nn.ModuleList([nn.Linear(2, 2), nn.ReLU()]),
    "ModuleDict": lambda: nn.ModuleDict({"a": nn.Linear(2, 2)}),
    "ParameterList": lambda: nn.ParameterList([nn.Parameter(torch.ones(1))]),
    "own class": NoForward,
}
WAYS = {
    "forward pre": lambda module: register_forward_pre_hook(module, print),
    "forward": lambda module: register_forward_hook(module, print),
    "backward pre": lambda module: register_full_backward_pre_hook(module, print),
    "backward": lambda module: register_full_backward_hook(module, print),
    "hook object": lambda module: add_hook(module, Paths()),
    "wrapper": with_hooks,
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("container", CONTAINERS)
def test_p04_containers_are_refused(container, way):
    """A module without a forward can never fire, so hooking it is an error that says what can."""
    module = CONTAINERS[container]()
    with pytest.raises(ValueError, match="has no forward, so it is never called") as caught:
        WAYS[way](module)

    assert isinstance(caught.value, HooklineError)
    assert type(module).__name__ in str(caught.value)
    names = [name for name, _ in module.named_children()]
    assert (f"({', '.join(names)})" if names else "no module in it") in str(caught.value)
    assert not module_switch


def test_p04_a_container_with_a_forward_of_its_own_is_a_module():
    """What counts is whether it can be called."""

    class Chain(nn.ModuleList):
        def forward(self, x):
            for layer in self:
                x = layer(x)
            return x

    chain, fired = Chain([nn.Linear(2, 2)]), []
    with register_forward_hook(chain, lambda *_: fired.append(1)):
        chain(torch.ones(1, 2))
    assert fired == [1]


# ---------------------------------------------------------------------------- removed and added


BACKWARD = {
    "backward pre": register_full_backward_pre_hook,
    "backward": register_full_backward_hook,
}


@pytest.mark.parametrize("register", BACKWARD.values(), ids=BACKWARD)
def test_p19_a_hook_removed_before_backward_is_silent(register):
    """Leaving `with`, or `remove`, between forward and backward: it is not called any more."""
    module, fired = nn.Linear(2, 1), []
    x = torch.ones(1, 2, requires_grad=True)
    with register(module, lambda *_: fired.append(1)):
        y = module(x)
    handle = register(module, lambda *_: fired.append(2))
    z = module(x)
    handle.remove()
    (y + z).backward()

    assert fired == []
    assert x.grad is not None


def test_p19_scopes_and_value_hooks_too():
    """A scope that was left, and a value hook that was removed."""
    module, hooks = with_hooks(nn.Linear(2, 1))
    fired = []

    class Notes(ModuleHook):
        def backward_preprocess(self, call):
            fired.append("scope")

    handle = hooks.add_backward_hook(lambda gradient: fired.append("value"))
    with Notes():
        y = module(torch.ones(1, 2))
    handle.remove()
    y.backward()

    assert fired == []


@pytest.mark.parametrize("register", BACKWARD.values(), ids=BACKWARD)
def test_p19_a_hook_that_removes_another_during_the_backward(register):
    """Removed in the middle of a run: from then on it is not called."""
    net, fired = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1)), []
    later = register(net[0], lambda *_: fired.append("first layer"))

    def remove(*_):
        fired.append("second layer")
        later.remove()

    with register(net[1], remove):
        net(torch.ones(1, 2, requires_grad=True)).backward()
    assert fired == ["second layer"]


@pytest.mark.parametrize("register", BACKWARD.values(), ids=BACKWARD)
def test_p20_a_hook_registered_between_forward_and_backward_fires(register):
    """It fires for the calls that were watched, by whatever hook, when their forward ran."""
    module, fired = nn.Linear(2, 1), []
    x = torch.ones(1, 2, requires_grad=True)
    with register_full_backward_pre_hook(module, lambda *_: None):
        y = module(x)
        with register(module, lambda *_: fired.append(1)):
            y.backward()
    assert fired == [1]


def test_p20_hooks_registered_during_a_call_wait_for_the_next_event():
    """Those of later events of the same call fire; one for the running event waits."""
    module, fired = nn.Linear(2, 1), []
    handles = []

    def register_others(module, args):
        fired.append("pre")
        if not handles:
            handles.extend(
                [
                    register_forward_pre_hook(module, lambda *_: fired.append("second pre")),
                    register_forward_hook(module, lambda *_: fired.append("forward")),
                    register_full_backward_pre_hook(module, lambda *_: fired.append("begin")),
                    register_full_backward_hook(module, lambda *_: fired.append("end")),
                ]
            )

    with register_forward_pre_hook(module, register_others):
        module(torch.ones(1, 2, requires_grad=True)).backward()
        assert fired == ["pre", "forward", "begin", "end"]
        fired.clear()
        module(torch.ones(1, 2, requires_grad=True)).backward()
        assert fired == ["pre", "second pre", "forward", "begin", "end"]
    for handle in handles:
        handle.remove()


# --------------------------------------------------------------------------------- nothing sticks


@pytest.mark.parametrize("rounds", [1, 3])
def test_p22_removing_leaves_nothing_behind(rounds):
    """No flag decides what may be registered next; the module's own dict never changes."""
    module = nn.Linear(2, 1)
    before = {name: value for name, value in vars(module).items() if "hook" in name}
    registers = [register_full_backward_hook, register_full_backward_pre_hook]
    for _ in range(rounds):
        for register in (*registers, *reversed(registers)):
            fired = []
            with register(module, lambda *_, fired=fired: fired.append(1)):
                module(torch.ones(1, 2)).backward()
            assert fired == [1]
    after = {name: value for name, value in vars(module).items() if "hook" in name}

    assert after == before
    # Torch's own backward hooks of either kind are as free as before.
    module.register_full_backward_hook(lambda *_: None).remove()


GLOBAL = {
    "forward pre": (register_module_forward_pre_hook, register_forward_pre_hook),
    "forward": (register_module_forward_hook, register_forward_hook),
    "backward pre": (register_module_full_backward_pre_hook, register_full_backward_pre_hook),
    "backward": (register_module_full_backward_hook, register_full_backward_hook),
}


@pytest.mark.parametrize("kind", GLOBAL)
def test_p24_hooks_on_all_modules_have_the_options_of_local_ones(kind):
    """`prepend` works among those on all modules, which come before a module's own."""
    everywhere, local = GLOBAL[kind]
    module, order = nn.Linear(2, 1), []

    def note(name):
        return lambda *_: order.append(name)

    with (
        local(module, note("local"), prepend=True),
        everywhere(note("second")),
        everywhere(note("first"), prepend=True),
        everywhere(note("third"), prepend=False),
    ):
        module(torch.ones(1, 2)).backward()
    assert order == ["first", "second", "third", "local"]
    assert not module_switch


@pytest.mark.parametrize("kind", ["forward pre", "forward"])
@pytest.mark.parametrize("with_kwargs", [None, True])
def test_p24_hooks_on_all_modules_take_kwargs(kind, with_kwargs):
    """By their signature or when told to; the keyword arguments are there."""
    seen = []

    def pre(module, args, kwargs):
        seen.append((len(args), sorted(kwargs)))

    def post(module, args, kwargs, output):
        seen.append((len(args), sorted(kwargs)))

    hook = pre if kind == "forward pre" else post
    with GLOBAL[kind][0](hook, with_kwargs=with_kwargs):
        nn.Linear(2, 1)(input=torch.ones(1, 2))
    assert seen == [(0, ["input"])]


def test_p24_removing_from_all_modules_is_complete():
    """Torch's own global tables never had anything of it, and say so."""
    from torch.nn.modules.module import _global_forward_hooks_with_kwargs, _has_any_global_hook

    handle = register_module_forward_hook(
        lambda module, args, kwargs, output: None, with_kwargs=True, always_call=True
    )
    nn.Linear(2, 1)(torch.ones(1, 2))
    assert not _has_any_global_hook()
    handle.remove()
    assert not _global_forward_hooks_with_kwargs
    assert not module_switch
    assert hookline.hooks_of(nn.Linear(2, 1)) == []
