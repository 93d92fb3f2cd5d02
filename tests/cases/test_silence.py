"""Troubles people report: hooks that never run, and nobody says so.

The numbers are those of the list of reported troubles that this library was built against.
"""

import pytest
import torch
from torch import nn

import hookline
from hookline import FunctionHook, ModuleHook, capture, patch, watch
from hookline.edits import zero


class Seen(ModuleHook):
    def __init__(self):
        self.paths = []

    def forward_postprocess(self, call):
        self.paths.append(call.path)


class Functions(FunctionHook):
    def __init__(self):
        self.labels = []

    def forward_postprocess(self, function, in_data):
        self.labels.append(function.label)


class Block(nn.Module):
    """Runs its attention by `.forward`, as some published models do."""

    def __init__(self, attention=None):
        super().__init__()
        self.att, self.ffn = attention or nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x):
        return self.ffn(self.att.forward(x))


X = torch.ones(1, 3)
INNER = {
    "linear": lambda: nn.Linear(3, 3),
    "sequential": lambda: nn.Sequential(nn.Linear(3, 3), nn.Tanh()),
    "block in block": Block,
    "norm": lambda: nn.LayerNorm(3),
    "prelu": nn.PReLU,
}


@pytest.mark.parametrize("inner", INNER)
def test_c05_a_forward_that_is_called_directly_is_the_reported_cause(inner):
    """With gradients, the parameters that were used tell, whatever the type is."""
    block, seen = Block(INNER[inner]()), Seen()
    with watch(block, seen) as watched:
        block(X).sum().backward()

    rows = {row.path: row for row in watched.silent()}
    assert rows["att"].cause == "bypassed"
    assert "forward() was called directly" in rows["att"].advice
    assert "ffn" in seen.paths
    assert "ffn" not in rows


@pytest.mark.parametrize("verb", ["watch", "capture", "patch"])
def test_c05_every_verb_reports_it(verb):
    """The same report from a capture and a patch."""
    block = Block()
    opened = {
        "watch": lambda: watch(block, Seen(), where="att"),
        "capture": lambda: capture(block, "att"),
        "patch": lambda: patch(block, {"att": zero()}),
    }[verb]()
    with opened:
        block(X).sum().backward()
    assert [(row.path, row.cause) for row in opened.silent()] == [("att", "bypassed")]


def test_c05_the_functions_of_that_forward_can_be_watched():
    """As the advice says: in the module around it."""
    block, functions = Block(), Functions()
    with watch(block, functions, where=":linear") as watched:
        block(X)
    assert functions.labels == [":linear[0]"]
    assert watched.silent() == []


# Asking for what did not run.


class HalfUsed(nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.unused = nn.Linear(2, 2), nn.Linear(2, 2)
        self.later = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
        self.active = False

    def forward(self, x):
        x = self.used(x)
        return self.later[0](x) if self.active else x


def test_c38_the_error_says_why_the_layer_is_missing():
    """Not a bare KeyError, but the cause."""
    net = HalfUsed()
    with capture(net) as acts:
        net(torch.ones(1, 2))
    assert acts["used"].output.shape == (1, 2)
    for path in ("unused", "later.0", "later.1"):
        with pytest.raises(KeyError, match="not called; the modules around it ran without it"):
            acts[path]


@pytest.mark.parametrize("where", [None, "unused", "*used", nn.Linear, ["used", "later.1"]])
def test_c38_when_the_scope_ends_all_are_listed(where):
    """Whatever pattern selected them, and no others."""
    net, seen = HalfUsed(), Seen()
    with watch(net, seen, where=where) as watched:
        net(torch.ones(1, 2))
    silent = {row.path for row in watched.silent()}
    assert silent | set(seen.paths) == set(watched.selection.paths)
    assert silent.isdisjoint(seen.paths)


def test_c38_what_runs_later_is_listed_no_more():
    """The report is that of the moment."""
    net = HalfUsed()
    with watch(net, Seen(), where=["later.0", "unused"]) as watched:
        net(torch.ones(1, 2))
        assert [row.path for row in watched.silent()] == ["later.0", "unused"]
        net.active = True
        net(torch.ones(1, 2))
        assert [row.path for row in watched.silent()] == ["unused"]


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("where", ["outer", "inner", "in place"])
def test_c38_compiled(where):
    """Of what a compiled region hides nobody knows whether it ran: that is told, at once."""
    net = HalfUsed()
    fast = net if where == "in place" else torch.compile(net, backend="aot_eager")
    if where == "in place":
        net.compile(backend="aot_eager")
    told = pytest.warns(hookline.HookWarning, match="on 'used', 'unused'")
    with capture(net if where == "inner" else fast, "used", "unused") as acts, told:
        fast(torch.ones(1, 2))
    assert {row.path: row.cause for row in acts.silent()} == dict.fromkeys(
        ("used", "unused"), "compiled"
    )
    with pytest.raises(KeyError, match="compiled; it runs inside a compiled region"):
        acts["used"]


def test_c38_a_name_that_is_wrong_is_told_at_once():
    """Before anything runs, with near names."""
    with pytest.raises(hookline.SelectionError, match=r"did you mean 'unused'"):
        capture(HalfUsed(), "unuse")


def test_c38_other_causes():
    """Frozen, fused and compiled modules have their own."""

    class Many(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = nn.MultiheadAttention(4, 2)
            self.frozen = nn.Linear(4, 4).requires_grad_(requires_grad=False)
            self.scripted = torch.jit.trace(nn.Linear(4, 4), torch.ones(1, 4))

        def forward(self, x):
            x, _ = self.attention(x, x, x)
            return self.scripted(nn.functional.linear(x, self.frozen.weight))

    net = Many()
    with watch(net, Seen()) as watched:
        net(torch.ones(2, 1, 4))
    causes = {row.path: row.cause for row in watched.silent()}
    assert causes == {
        "attention.out_proj": "fused",
        "frozen": "not called",
        "scripted": "TorchScript",
    }


# The output projection of attention.


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("training", [False, True])
def test_c75_out_proj_is_known_to_be_bypassed(batch_first, training):
    """Said with the remedy, which works."""
    attention = nn.MultiheadAttention(4, 2, batch_first=batch_first).train(training)
    x = torch.randn(1, 3, 4)
    with watch(attention, Seen(), where="out_proj") as watched:
        attention(x, x, x)
    (row,) = watched.silent()
    assert (row.path, row.cause) == ("out_proj", "fused")
    assert "':multi_head_attention_forward'" in row.advice

    functions = Functions()
    with watch(attention, functions, where=":multi_head_attention_forward"):
        attention(x, x, x)
    assert functions.labels == [":multi_head_attention_forward[0]"]


def test_c75_the_owner_of_a_parameter_that_a_function_uses():
    """A function hook finds it by identity, since arguments come as they are."""
    attention = nn.MultiheadAttention(4, 2)
    name_of = {id(parameter): name for name, parameter in attention.named_parameters()}
    uses = []

    class Uses(FunctionHook):
        def forward_preprocess(self, function, in_data):
            uses.extend((function.name, name_of[id(t)]) for t in in_data if id(t) in name_of)

    x = torch.randn(3, 1, 4)
    with Uses():
        attention(x, x, x)
    assert ("multi_head_attention_forward", "out_proj.weight") in uses
    assert len(uses) == len(name_of)


def test_c75_the_functions_output_is_that_of_the_projection():
    """What a hook on `out_proj` would have seen can be captured from the function."""
    torch.manual_seed(0)
    attention = nn.MultiheadAttention(4, 2)
    x = torch.randn(3, 1, 4)
    with capture(attention, ":multi_head_attention_forward") as acts:
        out, _ = attention(x, x, x)
    assert torch.equal(acts[":multi_head_attention_forward"].output[0], out)
