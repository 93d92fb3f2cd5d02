"""Hooks on given modules that compiled code hides are told at the first pass."""

from __future__ import annotations

import gc
import re
import warnings
import weakref

import pytest
import torch
from torch import nn

import hookline
from hookline import ModuleHook, add_hook, capture, patch, watch
from hookline.core.demand import demand
from hookline.edits import scale
from hookline.function_hooks import TimerHook as FunctionTimer
from hookline.module_hooks import TimerHook

# Torch's compiler warns of itself where it looks at an input that an outer module made.
pytestmark = [
    pytest.mark.usefixtures("fresh_compiler"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor"),
]


class Net(nn.Module):
    """Compiled whole, also where it is compiled in place."""

    def __init__(self):
        super().__init__()
        self.enc = nn.Linear(4, 4)
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        return self.head(torch.relu(self.enc(x)))


class Part(nn.Module):
    """A model of which one part is compiled."""

    def __init__(self):
        super().__init__()
        self.free = nn.Linear(4, 4)
        self.net = torch.compile(Net(), backend="aot_eager")

    def forward(self, x):
        return self.net(self.free(x))


class Seen(ModuleHook):
    def __init__(self):
        self.labels = []

    def forward_preprocess(self, call):
        self.labels.append(call.label)


@pytest.fixture
def x():
    torch.manual_seed(0)
    return torch.randn(3, 4)


def compiled(kind):
    """What to call, and what to put hooks on."""
    net = Net()
    if kind == "in place":
        net.compile(backend="aot_eager")
        return net, net
    fast = torch.compile(net, backend="aot_eager")
    return fast, (fast if kind == "outer" else net)


KINDS = ("outer", "inner", "in place")


@pytest.mark.parametrize("late", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("kind", KINDS)
def test_r9_a_patch_inside_of_compiled_code_is_told(kind, late, x):
    """Whatever it is put on, before and after compiling: once, with what it is for."""
    called, target = compiled(kind)
    plain = called(x) if late else None
    edits = {"enc": scale(2.0), ":relu": scale(3.0)}
    with patch(target, edits) as patched:
        with pytest.warns(hookline.HookWarning) as told:
            out = called(x)
        assert len(told) == 1
        assert told[0].filename == __file__
        message = str(told[0].message)
        assert re.search(r"patch \d+ on 'enc', ':relu'\. ", message)
        assert "set_stance('force_eager')" in message
        called(x)  # a second warning would be an error
        causes = {row.path: row.cause for row in patched.silent()}
        assert causes == {"enc": "compiled", ":relu": "compiled"}
    assert plain is None or torch.equal(out, plain)


@pytest.mark.parametrize("kind", KINDS)
def test_r9_a_capture_is_told_and_says_compiled(kind, x):
    """Also where parameters have gradients, by which modules look bypassed."""
    called, target = compiled(kind)
    called(x).sum().backward()
    with capture(target, "enc", "head") as acts, pytest.warns(hookline.HookWarning, match="'head'"):
        called(x)
    assert [row.cause for row in acts.silent()] == ["compiled", "compiled"]
    with pytest.raises(hookline.CaptureKeyError, match="compiled"):
        _ = acts["enc"]


@pytest.mark.parametrize("kind", KINDS)
def test_r9_a_hook_object_on_a_module_inside_is_told(kind, x):
    """It is named with the path from what is called; its removal ends it."""
    called, target = compiled(kind)
    hook = Seen()
    inner = target._orig_mod.head if kind == "outer" else target.head
    with add_hook(inner, hook), pytest.warns(hookline.HookWarning, match="Seen on 'head'"):
        called(x)
    called(x)
    assert not hook.labels
    assert not demand.aims


@pytest.mark.parametrize("kind", KINDS)
def test_r9_observers_of_everything_are_not_told(kind, x):
    """A scope, and a watch of all modules, see a region as one call: as documented."""
    called, target = compiled(kind)
    with TimerHook(), FunctionTimer(), watch(target, Seen(), FunctionTimer().renamed("all")):
        called(x).sum().backward()


def test_r9_what_is_on_the_model_inside_takes_part_around_the_region(x):
    """The call of the region is that of its module, and what the region calls is its function."""
    net = Net()
    fast = torch.compile(net, backend="aot_eager")
    plain = fast(x)
    with patch(net, {"": scale(3.0)}) as patched:
        assert torch.equal(fast(x), plain * 3)
        assert not patched.silent()
    with patch(net, {":CompiledFunction": scale(2.0)}) as patched:
        assert torch.equal(fast(x), plain * 2)
        assert not patched.silent()
    after = []
    with capture(net, "", stop=True) as acts:
        after.append(fast(x))
    assert torch.equal(acts[""].output, plain)
    assert not after


def test_r9_hooks_on_the_compiled_model_are_not_told(x):
    """They run, on either of the two."""
    called, target = compiled("inner")
    hook = Seen()
    with watch(target, hook, where=""), add_hook(called, hook, "again"):
        called(x)
    assert hook.labels == ["Net", "Net"]


def test_r9_a_compiled_part_and_what_is_around_it(x):
    """Only what is inside is told, by its path in the whole."""
    model = Part()
    hook = Seen()
    with (
        watch(model, hook, where=["free", "net", "net.enc"]),
        pytest.warns(hookline.HookWarning, match=r"Seen on 'net\.enc'\. "),
    ):
        model(x)
    assert hook.labels == ["free", "net"]


def test_r9_the_same_part_called_by_itself(x):
    """Each hook waits for a call of a model that it is on."""
    model, other = Part(), torch.compile(Net(), backend="aot_eager")
    with watch(model, Seen(), where="net.head"):
        other(x)
        model.free(x)
        with pytest.warns(hookline.HookWarning, match=r"Seen on 'net\.head'"):
            model.net(x)
        model(x)


def test_r9_what_runs_uncompiled_is_not_told(x):
    """Where the compiler is told to stay away, by stance or for a module, hooks are reached."""
    net = Net()
    fast = torch.compile(net, backend="aot_eager")
    with patch(fast, {"enc": scale(0.0)}):
        with torch.compiler.set_stance("force_eager"):
            assert torch.equal(fast(x), net.head(torch.zeros(3, 4)))
        with pytest.warns(hookline.HookWarning, match="'enc'"):
            fast(x)  # only what was compiled settles it


def test_r9_a_module_kept_out_of_compiled_code_is_reached(x):
    """As the warning advises; the rest stays compiled."""
    net = Net()
    net.enc = torch.compiler.disable(net.enc)
    fast = torch.compile(net, backend="aot_eager")
    hook = Seen()
    with watch(net, hook, where="enc"):
        fast(x)
    assert hook.labels == ["enc"]


def test_r5_what_waits_for_a_pass_keeps_nothing(x):
    """A hook that is removed before any pass leaves nothing; nor does a model that is gone."""
    net, hook = Net(), Seen()
    gone = weakref.ref(hook)
    with watch(net, hook, where="enc"):
        assert len(demand.aims) == 1
    assert not demand.aims
    add_hook(net.head, hook)
    del net, hook
    gc.collect()
    assert not demand.aims
    assert gone() is None


def test_r2_a_model_that_was_never_compiled_is_looked_at_once(x):
    """The first pass settles it, without a word."""
    net, hook = Net(), Seen()
    with warnings.catch_warnings(), watch(net, hook, where=["enc", "head"]):
        warnings.simplefilter("error")
        torch.compile(Net(), backend="aot_eager")(x)  # so that the compiler is there
        net(x)
        assert not demand.aims
    assert hook.labels == ["enc", "head"]


# ------------------------------------------------- functions that are given to torch.compile


class Step(nn.Module):
    """A model of which a method is compiled, that calls a part."""

    def __init__(self):
        super().__init__()
        self.free = nn.Linear(4, 4)
        self.net = Net()
        self.run = torch.compile(self._run, backend="aot_eager")

    def _run(self, x):
        return self.net(x)

    def forward(self, x):
        return self.run(self.free(x))


class Decorated(Net):
    forward = torch.compile(Net.forward, backend="aot_eager")


def compiled_function(kind):
    """What to call, the model, the prefix of the paths inside, and what else runs."""
    if kind == "method":
        model = Step()
        return model, model, "net."
    if kind == "forward":
        model = Decorated()
        return model, model, ""
    model = Net()
    if kind == "lambda":
        return torch.compile(lambda x: model(x) + 1, backend="aot_eager"), model, ""
    parts = torch.compile(lambda x: model.head(model.enc(x)), backend="aot_eager")
    return parts, model, ""


FUNCTIONS = ("lambda", "parts", "method", "forward")


@pytest.mark.parametrize("kind", FUNCTIONS)
def test_r9_a_compiled_function_is_told_when_it_is_compiled(kind, x):
    """Once, with all that it hides; and the modules in it are `compiled`, whatever else ran."""
    called, model, prefix = compiled_function(kind)
    with capture(model, f"{prefix}enc", f"{prefix}head") as acts:
        with pytest.warns(hookline.HookWarning, match="capture") as told:
            called(x)
        called(x)  # a second warning would be an error
    message = str(told[0].message)
    assert len(told) == (2 if kind == "parts" else 1)
    assert told[0].filename == __file__
    assert f"{prefix}enc" in "".join(str(each.message) for each in told)
    assert "torch.compile" in message
    assert {row.path: row.cause for row in acts.silent()} == {
        f"{prefix}enc": "compiled",
        f"{prefix}head": "compiled",
    }


@pytest.mark.parametrize("kind", ["lambda", "parts", "forward"])
def test_r9_a_function_that_was_compiled_before(kind, x):
    """No hook was on when it was, and none of the model's modules is seen: that is told too."""
    called, model, _ = compiled_function(kind)
    called(x)
    with watch(model, TimerHook()) as watched:
        called(x)
    causes = {row.path: row.cause for row in watched.silent()}
    assert causes["enc"] == causes["head"] == "compiled"


def test_r9_what_is_no_part_of_a_compiled_function_is_never_called(x):
    """A model that has nothing to do with it has another cause."""
    called, _, _ = compiled_function("lambda")

    class Other(nn.Module):
        def forward(self, x):
            return x

    other = Other()
    with watch(other, TimerHook()) as watched:
        called(x)
    assert [row.cause for row in watched.silent()] == ["never called"]


def test_r9_scopes_are_not_told_of_compiled_functions(x):
    """They take what there is."""
    called, model, _ = compiled_function("lambda")
    with TimerHook(), watch(model, Seen()):
        called(x)
