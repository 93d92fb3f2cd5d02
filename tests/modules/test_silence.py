"""What was watched and never ran, with the likely cause."""

import gc
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel

from hookline import FunctionHook, ModuleHook, register_forward_hook, watch, with_hooks
from hookline.core.records import Silent
from hookline.errors import HookValueError, HookWarning


class Forward(ModuleHook):
    def forward_postprocess(self, call):
        pass


class Backward(ModuleHook):
    def backward_preprocess(self, call):
        pass


class Functions(FunctionHook):
    def forward_preprocess(self, function, in_data):
        pass


class Net(nn.Module):
    """A branch that is not taken, a part that is used by a function, and plain parts."""

    def __init__(self):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        self.branch = nn.Linear(4, 4)
        self.used = nn.Linear(4, 4)
        self.head = nn.Linear(4, 2)

    def forward(self, x, *, branch=False):
        x = self.enc(x)
        if branch:
            x = self.branch(x)
        return self.head(F.linear(x, self.used.weight, self.used.bias))


@pytest.fixture
def x():
    torch.manual_seed(0)
    return torch.randn(3, 4)


def causes(watched):
    return {row.path: row.cause for row in watched.silent()}


def gpt2():
    sizes = {"n_embd": 16, "n_layer": 2, "n_head": 2}
    model = GPT2LMHeadModel(GPT2Config(vocab_size=32, n_positions=8, **sizes))
    return model, (torch.arange(8).reshape(1, 8),)


def transformer():
    return nn.Transformer(8, 2, 2, 2, 8, batch_first=True), (torch.randn(1, 3, 8),) * 2


def encoder():
    layer = nn.TransformerEncoderLayer(8, 2, 8, batch_first=True)
    return nn.TransformerEncoder(layer, 2).eval(), (torch.randn(1, 3, 8),)


def plain():
    return Net(), (torch.randn(3, 4),)


@pytest.mark.parametrize("build", [gpt2, transformer, encoder, plain])
def test_r9_just_the_modules_that_torchs_own_hooks_do_not_see(build):
    """On real models, with and without gradients, each silent module is listed once."""
    model, inputs = build()
    seen = set()
    handles = [m.register_forward_hook(lambda m, *_: seen.add(m)) for m in model.modules()]
    model(*inputs)
    for handle in handles:
        handle.remove()
    expected = [path for path, module in model.named_modules() if module not in seen]

    with torch.no_grad(), watch(model, Forward()) as watched:
        model(*inputs)

    assert [row.path for row in watched.silent()] == expected
    assert expected


def test_r9_modules_of_an_exported_program(x):
    """They hold parameters and nothing else, which is told in place of a list of no modules."""
    program = torch.export.export(nn.Sequential(nn.Linear(4, 4)), (x,)).module()
    with watch(program, Forward()) as watched:
        program(x)
    row = next(row for row in watched.silent() if row.path == "0")
    assert row.cause == "no forward"
    assert row.advice.endswith("hook that, or the model before the export")
    with pytest.raises(HookValueError, match="only holds parameters, as the modules of a program"):
        watch(program, Forward(), where="0")
    with pytest.raises(HookValueError, match="there is no module in it either"):
        with_hooks(nn.ModuleList())


def test_r9_a_row_says_what_and_why():
    """Path, class, cause, advice and which hooks, in a record and in a line."""
    model, inputs = transformer()
    with watch(model, Forward(), Backward(), where="encoder.**") as watched:
        model(*inputs).sum().backward()
    rows = watched.silent()
    assert rows[0] == Silent(
        "encoder.layers",
        "ModuleList",
        "no forward",
        "containers are never called; watch the modules in it: 'encoder.layers.0', "
        "'encoder.layers.1'",
        ("Forward", "Backward"),
        "Transformer",
    )
    assert str(rows[0]).startswith("encoder.layers (ModuleList): no forward; containers are")
    assert [(row.path, row.cause) for row in rows[1:]] == [
        ("encoder.layers.0.self_attn.out_proj", "fused"),
        ("encoder.layers.1.self_attn.out_proj", "fused"),
    ]
    assert "watch 'encoder.layers.1.self_attn', or '" in rows[2].advice


def test_r9_the_function_that_is_advised_runs():
    """What stands in the advice for a fused module is an address that has events."""
    model, inputs = transformer()
    with watch(model, Forward(), where="**.out_proj") as watched:
        model(*inputs)
    for row in watched.silent():
        address = row.advice.split("'")[3]
        with watch(model, Functions(), where=address) as instead:
            model(*inputs)
        assert instead.silent() == []


def test_r9_nothing_ran():
    """Before the model runs, every module is silent and nothing more is known."""
    net = Net()
    with watch(net, Forward()) as watched:
        pass
    assert causes(watched) == dict.fromkeys((p for p, _ in net.named_modules()), "never called")


def test_r9_while_it_is_open_and_afterwards(x):
    """Asked at any time, the answer is that of the moment."""
    net = Net()
    with watch(net, Forward(), where=["branch", "head"]) as watched:
        assert causes(watched) == {"branch": "never called", "head": "never called"}
        net(x)
        assert causes(watched) == {"branch": "not called"}
        net(x, branch=True)
        assert causes(watched) == {}
    assert causes(watched) == {}
    net(x)
    assert causes(watched) == {}


def test_r9_calls_before_and_after_do_not_count(x):
    """Only those while it was watched."""
    net = Net()
    with Forward():
        net(x)
    with watch(net, Forward(), Backward(), where="head") as watched:
        pass
    net(x)
    assert causes(watched) == {"head": "never called"}


def test_r9_gradients_from_before_say_nothing(x):
    """A branch that was taken once, and is not while it is watched, is not bypassed."""
    net = Net()
    net(x, branch=True).sum().backward()
    with watch(net, Forward()) as watched:
        net(x)
    assert causes(watched) == {"branch": "not called", "used": "not called"}
    with watch(net, Forward()) as watched:
        net(x).sum().backward()
    assert causes(watched) == {"branch": "not called", "used": "bypassed"}
    with watch(net, Forward()) as watched:
        net.zero_grad()
        net(x).sum().backward()
    assert causes(watched) == {"branch": "not called", "used": "bypassed"}
    with watch(net, Forward(), where="branch") as watched:
        pass
    assert causes(watched) == {"branch": "never called"}


def test_r9_a_branch_that_is_not_taken(x):
    """What is around it ran."""
    net = Net()
    with watch(net, Forward()) as watched:
        net(x)
    assert causes(watched) == {"branch": "not called", "used": "not called"}


def test_r9_parameters_that_a_function_uses(x):
    """They get gradients, though their module is never called."""
    net = Net()
    with watch(net, Forward()) as watched:
        net(x).sum().backward()
    assert causes(watched) == {"branch": "not called", "used": "bypassed"}
    row = watched.silent()[1]
    assert "its parameters have gradients" in row.advice


def test_r9_forward_that_is_called_directly(x):
    """Of the model, which is told by what runs in it; of a layer, by its gradients."""
    net = Net()
    with watch(net, Forward(), where=["", "enc", "head"]) as watched:
        net.forward(x)
    assert causes(watched) == {"": "bypassed"}
    assert "'enc' in it ran: its forward() was called directly" in watched.silent()[0].advice
    assert str(watched.silent()[0]).startswith("the model (Net): bypassed; ")

    with watch(net, Forward(), where="head") as watched:
        net.head.forward(x).sum().backward()
    assert causes(watched) == {"head": "bypassed"}


def test_r9_children_that_others_call(x):
    """A part whose modules are called one by one is bypassed."""
    net = Net()
    with watch(net, Forward(), where="enc.**") as watched:
        for layer in net.enc:
            x = layer(x)
    assert causes(watched) == {"enc": "bypassed"}


def test_r9_torchscript(x):
    """It runs outside of Python."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = nn.Sequential(torch.jit.script(nn.Linear(4, 4)), nn.ReLU())
    with watch(model, Forward()) as watched:
        model(x)
    assert causes(watched) == {"0": "TorchScript"}


def test_r9_modules_that_were_replaced(x):
    """The advice says what is in their place now."""
    net = Net()
    with watch(net, Forward(), where=["branch", "head", "enc.0"]) as watched:
        net.branch = nn.Identity()
        del net.head
        gone, net.enc = net.enc, nn.ReLU()
        gone(x)
    rows = {row.path: row for row in watched.silent()}
    assert {path: row.cause for path, row in rows.items()} == {
        "branch": "replaced",
        "head": "replaced",
    }
    assert "at 'branch' is another module now, of type Identity" in rows["branch"].advice
    assert "there is no 'head' in the model any more" in rows["head"].advice


def test_r9_a_model_that_is_gone():
    """Its modules cannot run any more."""
    net = Net()
    watched = watch(net, Forward(), where="head")
    watched.close()
    del net
    gc.collect()
    assert [(row.cause, row.type) for row in watched.silent()] == [("replaced", "Linear")]
    assert "the model is gone" in watched.silent()[0].advice


def test_r9_a_layer_that_was_wrapped_later_is_not_silent(x):
    """Hooks of the layer run in the wrapper that took its place."""
    net = Net()
    with watch(net, Forward(), where="head") as watched:
        net.head, _ = with_hooks(net.head)
        net(x)
    assert causes(watched) == {}


class Compiled(Net):
    """Torch remembers compiled code by forward, so this one has its own."""

    def forward(self, x):
        return self.head(self.enc(x))


@pytest.mark.parametrize("how", ["around", "in place", "outside"])
def test_r9_compiled_regions(x, how):
    """A compiled model is one call; what is inside of it is silent."""
    net = Compiled()
    if how == "around":
        model = watched_model = torch.compile(net, backend="eager")
    elif how == "in place":
        model = watched_model = net
        net.compile(backend="eager")
    else:
        model, watched_model = torch.compile(net, backend="eager"), net
    model(x)
    with watch(watched_model, Forward()) as watched:
        model(x)
    found = causes(watched)
    assert "" not in found
    assert set(found.values()) == {"compiled"}
    assert set(found) >= {"enc", "enc.0", "enc.1", "head", "branch", "used"}


def test_r9_another_model_of_a_class_that_was_compiled(x):
    """A model that runs as it is has no compiled parts because another one has."""
    torch.compile(Compiled(), backend="eager")(x)
    net = Compiled()
    with watch(net, Forward()) as watched:
        net(x)
    assert causes(watched) == {"branch": "not called", "used": "not called"}


def test_r9_a_compiled_part(x):
    """Only what is in it is silent for that reason."""
    net = Net()
    net.enc = torch.compile(net.enc, backend="eager")
    where = ["", "enc.**", "branch"]
    told = pytest.warns(HookWarning, match="'enc.0', 'enc.1'")
    with watch(net, Forward(), where=where) as watched, told:
        net(x)
    assert causes(watched) == {"enc.0": "compiled", "enc.1": "compiled", "branch": "not called"}


def test_r9_hooks_that_wait_for_a_backward(x):
    """A hook that runs in the backward only is silent where none comes."""
    net = Net()
    with watch(net, Backward(), where=["enc.0", "head"]) as watched:
        with torch.no_grad():
            net(x)
        assert causes(watched) == {"enc.0": "no gradient", "head": "no gradient"}
        net.head(net.enc(x).detach()).sum().backward()
        assert causes(watched) == {"enc.0": "no gradient"}
        net(x).sum().backward()
    assert causes(watched) == {}


def test_r9_each_hook_is_told_apart(x):
    """A module where one hook ran and another did not is listed for the other."""
    net = Net()
    with watch(net, Forward(), Backward(), where=["head", "branch"]) as watched, torch.no_grad():
        net(x)
    assert [(row.path, row.cause, row.hooks) for row in watched.silent()] == [
        ("head", "no gradient", ("Backward",)),
        ("branch", "not called", ("Forward", "Backward")),
    ]


def test_r9_a_hook_that_another_one_kept_from_running(x):
    """Where an earlier hook raises, later ones on the module stay silent."""
    net = Net()

    def fails(module, args):
        raise ArithmeticError

    with watch(net, Forward(), where="head") as watched:
        handle = register_forward_hook(net.head, lambda *_: fails(None, None), prepend=True)
        with pytest.raises(ArithmeticError):
            net(x)
        handle.remove()
    assert causes(watched) == {"head": "not called"}


# Functions.


def test_r9_functions_that_the_module_does_not_call(x):
    """The row has what it calls instead, and near names."""
    net = Net()
    where = ["head:linaer", "head:linear[1]", "enc:relu", "enc.1:relu", ":linear"]
    with watch(net, Functions(), where=where) as watched:
        net(x)
    rows = {row.path: row for row in watched.silent()}
    assert {path: row.cause for path, row in rows.items()} == {
        "head:linaer": "not called",
        "head:linear[1]": "not called",
        "enc:relu": "not called",
    }
    assert "the module called 'linear'; did you mean 'linear'?" in rows["head:linaer"].advice
    assert "never for the index [1] of a pass" in rows["head:linear[1]"].advice
    assert "called no functions itself" in rows["enc:relu"].advice
    assert rows["enc:relu"].type == "Sequential"


def test_r9_functions_of_a_module_that_never_ran(x):
    """The cause is that of the module."""
    net = Net()
    with watch(net, Functions(), where=["branch:linear", "head:linear"]) as watched:
        net(x)
    assert causes(watched) == {"branch:linear": "not called"}


def test_r9_modules_that_call_no_functions_are_no_reason(x):
    """Selected as callers of functions, they are listed only where they did not run."""
    net = Net()
    with watch(net, Functions()) as watched:
        net(x)
    assert causes(watched) == {"branch": "not called", "used": "not called"}


def test_r9_both_levels_in_one_row(x):
    """A module that is silent at both is listed once, with all hooks."""
    net = Net()
    with watch(net, Forward(), Functions(), where=["branch", "head"]) as watched:
        net(x)
    assert [(row.path, row.hooks) for row in watched.silent()] == [
        ("branch", ("Forward", "Functions"))
    ]


@pytest.mark.parametrize("where", ["*", ["used", "unused"]], ids=str)
def test_r9_a_sibling_that_ran_tells_that_the_model_did(where):
    """Also where the model itself is not watched."""

    class Branches(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.unused = nn.Linear(2, 2), nn.Linear(2, 2)

        def forward(self, x):
            return self.used(x)

    model = Branches()
    with watch(model, Forward(), where=where) as watched:
        model(torch.zeros(1, 2))
    assert [(row.path, row.cause) for row in watched.silent()] == [("unused", "not called")]
