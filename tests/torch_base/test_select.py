"""Choosing modules of a model, and functions that they call, by patterns."""

import re
import warnings
from typing import NamedTuple

import pytest
import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel

import hookline
from hookline import (
    HookTypeError,
    HookValueError,
    Selection,
    SelectionError,
    TimerHook,
    capture,
    select,
    watch,
    with_hooks,
)
from hookline.torch_base.paths import MAX_PATHS


def gpt2():
    """A small GPT-2 with random weights, whose head is tied to its embedding."""
    sizes = {"n_embd": 16, "n_layer": 3, "n_head": 2}
    return GPT2LMHeadModel(GPT2Config(vocab_size=32, n_positions=8, **sizes))


def transformer():
    """Torch's own encoder and decoder, two layers each."""
    return nn.Transformer(8, 2, 2, 2, 8, batch_first=True)


class Shared(nn.Module):
    """One block under two names, and once more inside a container."""

    def __init__(self):
        super().__init__()
        self.b = nn.Sequential(nn.Linear(2, 2), nn.Tanh())
        self.c = self.b
        self.d = nn.ModuleList([nn.ReLU(), self.b])

    def forward(self, x):
        return self.d[1](self.c(self.b(x)))


class Level(nn.Module):
    """Holds the next one under two names, so that paths double at each level."""

    def __init__(self, inner):
        super().__init__()
        self.a = inner
        self.b = inner

    def forward(self, x):
        return self.b(x)


def twice_shared(levels):
    model = nn.Linear(2, 2)
    for _ in range(levels):
        model = Level(model)
    return model


class Way(NamedTuple):
    """A pattern, and a plain loop's condition for the same modules."""

    pattern: object
    wanted: object


def parts(path):
    return path.split(".") if path else []


GPT2_WAYS = {
    "exact": Way("transformer.h.1.attn", lambda p, m: p == "transformer.h.1.attn"),
    "root": Way("", lambda p, m: p == ""),
    "star": Way("transformer.h.*.mlp", lambda p, m: len(parts(p)) == 4 and p.endswith(".mlp")),
    "set": Way("transformer.h.[!1]", lambda p, m: p in ("transformer.h.0", "transformer.h.2")),
    "across": Way("**.c_proj", lambda p, m: p.endswith(".c_proj")),
    "below": Way("transformer.h.0.**", lambda p, m: f"{p}.".startswith("transformer.h.0.")),
    "within": Way("transformer.**.ln_?", lambda p, m: re.search(r"\.ln_[^.]$", p)),
    "regex": Way(re.compile(r"h\.\d\.attn$"), lambda p, m: re.search(r"h\.\d\.attn$", p)),
    "regex anywhere": Way(re.compile("attn"), lambda p, m: "attn" in p),
    "class": Way(nn.LayerNorm, lambda p, m: isinstance(m, nn.LayerNorm)),
    "base class": Way(nn.Module, lambda p, m: True),
    "callable": Way(lambda p, m: "mlp" in p and not list(m.children()), None),
}
GPT2_WAYS["callable"] = GPT2_WAYS["callable"]._replace(wanted=GPT2_WAYS["callable"].pattern)


@pytest.mark.parametrize("way", GPT2_WAYS.values(), ids=GPT2_WAYS)
def test_each_kind_of_pattern_on_gpt2(way):
    """Each selects what a loop over `named_modules()` finds, in the same order."""
    model = gpt2()
    expected = [
        (path, module) for path, module in model.named_modules() if way.wanted(path, module)
    ]

    selected = select(model, way.pattern)

    assert list(selected) == expected
    assert len(expected) > 0


def test_without_a_pattern_all_modules_are_selected():
    """That is what `named_modules()` lists, with its names."""
    for model in (gpt2(), transformer(), Shared()):
        assert list(select(model)) == list(model.named_modules())
        assert select(model).paths == select(model, "**").paths


def test_modules_themselves_are_patterns():
    """A module of the model selects itself, under its path."""
    model = transformer()
    attention = model.decoder.layers[1].multihead_attn
    assert list(select(model, attention)) == [("decoder.layers.1.multihead_attn", attention)]
    assert select(model, model.encoder, model).paths == ("encoder", "")


def test_several_patterns_select_in_their_order():
    """First what the first selects, then what the others add; each module once."""
    model = transformer()
    selected = select(model, "decoder.norm", nn.LayerNorm, "encoder.norm")
    first, *rest = selected.paths
    assert first == "decoder.norm"
    others = [p for p, m in model.named_modules() if isinstance(m, nn.LayerNorm)]
    assert rest == [path for path in others if path != "decoder.norm"]


@pytest.mark.parametrize(
    ("pattern", "paths"),
    [
        ("c", ["c"]),
        ("c.0", ["c.0"]),
        ("d.1", ["d.1"]),
        ("d.*", ["d.0", "d.1"]),
        ("c.*", ["c.0", "c.1"]),
        ("*.1", ["b.1", "d.1"]),
        (nn.Linear, ["b.0"]),
        (re.compile("^d"), ["d.1", "d.1.0", "d.1.1", "d", "d.0"]),
        (lambda path, module: path.startswith("c"), ["c", "c.0", "c.1"]),
    ],
)
def test_a_shared_module_matches_by_any_of_its_paths(pattern, paths):
    """It appears once, under the path that matched first."""
    model = Shared()
    selected = select(model, pattern)
    assert sorted(selected.paths) == sorted(paths)
    assert all(model.get_submodule(path) is module for path, module in selected)
    assert len(set(map(id, selected.modules))) == len(selected)


def test_a_shared_module_is_selected_once_by_several_patterns():
    """The pattern that comes first gives the path."""
    model = Shared()
    assert select(model, "c", "b").paths == ("c",)
    assert select(model, "b", "c").paths == ("b",)


def test_nineteen_nested_shared_modules():
    """Half a million paths are no obstacle: each of the 20 modules is there once."""
    model = twice_shared(19)
    assert len(select(model)) == 20
    assert list(select(model)) == list(model.named_modules())

    selected = select(model, nn.Linear)
    assert len(selected) == 1
    assert model.get_submodule(selected.paths[0]) is selected.modules[0]


def test_a_path_that_is_not_listed_is_found_by_name():
    """Not all paths of a much shared module are listed, but all can be given."""
    model = twice_shared(19)
    unlisted = ".".join("ba" * 10)[: 2 * 19 - 1]
    assert list(select(model, unlisted)) == [(unlisted, select(model, nn.Linear).modules[0])]
    assert MAX_PATHS < 2**19


def test_names_with_special_characters():
    """What is there under just that name is meant, before it is read as a pattern."""
    keys = ("a:b", "[0]", "x*", "y?")
    model = nn.ModuleDict({key: nn.Linear(1, 1) for key in (*keys, "xx", "yy")})
    for key in keys:
        assert list(select(model, key)) == [(key, model[key])]
    assert select(model, "*").paths == tuple(model)
    assert [c.function for c in select(model, "a:b").choices] == [None]


def test_torchscript_modules_are_selected():
    """They are modules with paths, whatever can be done with them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scripted = torch.jit.script(nn.Sequential(nn.Linear(1, 1), nn.Sequential(nn.ReLU())))
    for model, prefix in ((scripted, ""), (nn.Sequential(scripted), "0.")):
        assert list(select(model)) == list(model.named_modules())
        assert select(model, f"{prefix}1.0", f"{prefix}*").paths == tuple(
            prefix + path for path in ("1.0", "0", "1")
        )
    with pytest.raises(SelectionError, match="at its top are '0', '1'"):
        select(scripted, "x")


def test_addresses_select_functions():
    """They stand in the selection with the address, and with the module that calls them."""
    model = transformer()
    selected = select(model, "encoder.layers.*.self_attn:softmax", "encoder.layers.0:relu[1]")

    assert selected.paths == (
        "encoder.layers.0.self_attn:softmax",
        "encoder.layers.1.self_attn:softmax",
        "encoder.layers.0:relu[1]",
    )
    assert selected.modules[0] is model.encoder.layers[0].self_attn
    assert [str(choice.function) for choice in selected.choices] == [
        "softmax",
        "softmax",
        "relu[1]",
    ]
    assert select(model, ":relu").paths == (":relu",)
    assert select(model, ":relu").modules == (model,)


def test_functions_and_their_module_are_different_members():
    """One module may be selected itself, and for some of its functions."""
    model = transformer()
    both = select(model, "encoder.norm", "encoder.norm:layer_norm", "encoder.norm:mul")
    assert both.paths == ("encoder.norm", "encoder.norm:layer_norm", "encoder.norm:mul")


def test_a_wrapped_layer_is_selected_as_it_stands_in_the_model():
    """What `with_hooks` gave is the module that the model calls."""
    model = transformer()
    model.encoder.norm, _ = with_hooks(model.encoder.norm)
    assert select(model, "encoder.norm").modules[0] is model.encoder.norm


# Errors.


@pytest.mark.parametrize(
    ("pattern", "says"),
    [
        (
            "encoder.layer.0.self_attn",
            "is named 'encoder.layer.0.self_attn'; did you mean 'encoder.layers.0.self_attn'",
        ),
        ("self_attn", "is named 'self_attn'; did you mean '**.self_attn'?"),
        ("module.encoder", "did you mean 'encoder'?"),
        ("encoder.layer.*.norm1", "no module of Transformer matches 'encoder.layer.*.norm1'; did"),
        ("encodr:softmax", "is named 'encodr'; did you mean 'encoder'"),
        ("zzz", "at its top are 'encoder', 'decoder'"),
        (nn.Conv2d, "no module of Transformer is a Conv2d; there are 'Transformer', "),
        (re.compile("zz$"), "'zz$' is found in no path of Transformer: '', 'encoder', "),
        (lambda path, module: None, "<lambda> is true for no module of Transformer"),
        (nn.Linear(1, 1), "this Linear is not in this Transformer"),
    ],
)
def test_r10_what_matches_nothing_is_an_error(pattern, says):
    """It says what was given, in which model, and what may have been meant."""
    with pytest.raises(SelectionError) as caught:
        select(transformer(), "encoder", pattern)
    assert says in str(caught.value)


@pytest.mark.parametrize("pattern", [3, None, {"encoder": 1}])
def test_r10_what_is_no_pattern(pattern):
    """The kinds that there are are listed."""
    with pytest.raises(HookTypeError, match=r"a pattern is a path, a glob, .* not "):
        select(transformer(), pattern)


@pytest.mark.parametrize("given", [["0", "1"], ("0", "1")])
def test_r10_several_patterns_in_one_are_refused_with_how_to_give_them(given):
    """As people write it at first, wherever patterns come in."""
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    says = r"not a (list|tuple); give several .*: capture\(model, '0', '1'\)"
    with pytest.raises(HookTypeError, match=says):
        select(model, given)
    with pytest.raises(HookTypeError, match=says):
        capture(model, given)
    with pytest.raises(HookTypeError, match=says):
        watch(model, TimerHook(), where=[given])
    with pytest.raises(HookTypeError, match=r"patterns go into where="):
        watch(model, TimerHook(), given[0])


def test_r10_a_regular_expression_for_bytes():
    """Paths are text."""
    with pytest.raises(HookTypeError, match="paths are text"):
        select(transformer(), re.compile(b"encoder"))


@pytest.mark.parametrize(
    ("model", "says"), [(nn.Linear, "not in the class Linear"), ("x", "not in str"), (None, "None")]
)
def test_r10_what_is_no_model(model, says):
    """A class or something else than a module."""
    with pytest.raises(HookTypeError, match=says):
        select(model, "x")


def test_a_callable_may_raise():
    """Its error comes out as it is."""
    error = RuntimeError("mine")

    def broken(path, module):
        raise error

    with pytest.raises(RuntimeError) as caught:
        select(transformer(), broken)
    assert caught.value is error


# What a selection can do.


def test_a_selection_is_a_sequence():
    """Length, items, slices, iteration and membership."""
    model = transformer()
    selected = select(model, nn.LayerNorm)
    pairs = [(p, m) for p, m in model.named_modules() if isinstance(m, nn.LayerNorm)]

    assert len(selected) == len(pairs) == 12
    assert selected[0] == pairs[0]
    assert selected[-1] == pairs[-1]
    assert list(selected[2:4]) == pairs[2:4]
    assert isinstance(selected[:2], Selection)
    assert selected.paths == tuple(path for path, _ in pairs)
    assert selected.modules == tuple(module for _, module in pairs)
    assert dict(selected) == dict(pairs)
    assert selected.index(pairs[3]) == 3
    with pytest.raises(IndexError):
        selected[99]


def test_membership_by_path_and_module():
    """A path, a module or a pair may be asked for."""
    model = transformer()
    selected = select(model, nn.LayerNorm)
    assert "encoder.norm" in selected
    assert "encoder" not in selected
    assert model.encoder.norm in selected
    assert model.encoder not in selected
    assert ("encoder.norm", model.encoder.norm) in selected
    assert ("decoder.norm", model.encoder.norm) not in selected


def test_where_and_of_type():
    """Narrowing a selection keeps its order and may leave nothing."""
    model = transformer()
    below = select(model, "encoder.layers.0.**")
    pairs = list(below)
    narrow = below.where(lambda path, module: path.endswith("1"))
    assert list(narrow) == [(p, m) for p, m in pairs if p.endswith("1")]
    linear = below.of_type(nn.Linear, nn.LayerNorm)
    assert list(linear) == [(p, m) for p, m in pairs if isinstance(m, nn.Linear | nn.LayerNorm)]
    assert len(linear) == 5
    assert len(below.of_type(nn.Conv2d)) == 0


def test_union_and_difference():
    """`|` adds at the end what is new, `-` takes away."""
    model = gpt2()
    attention, projections = select(model, "**.attn"), select(model, "**.attn.**.c_*", "**.mlp.c_*")
    both = attention | projections
    assert both.paths == (*attention.paths, *projections.paths)
    assert (both - projections).paths == attention.paths
    assert (both - attention).paths == projections.paths
    assert (attention | attention).paths == attention.paths
    assert len(attention - attention) == 0
    assert both.paths == select(model, "**.attn", "**.attn.**.c_*", "**.mlp.c_*").paths


def test_difference_with_functions():
    """A module takes its functions along; functions leave their module."""
    model = transformer()
    functions = select(model, "encoder.norm:layer_norm", "decoder.norm:layer_norm")
    assert (functions - select(model, "encoder.norm")).paths == ("decoder.norm:layer_norm",)
    assert (functions - functions[:1]).paths == functions[1:].paths
    norms = select(model, "encoder.norm", "decoder.norm")
    assert (norms - functions).paths == norms.paths


def test_selections_of_two_models_do_not_mix():
    """They are refused, whichever way they meet."""
    one, other = transformer(), transformer()
    with pytest.raises(HookValueError, match="of two models"):
        select(one, "encoder") | select(other, "encoder")
    with pytest.raises(HookValueError, match="of two models"):
        select(one, "encoder") - select(other, "encoder")
    with pytest.raises(HookValueError, match="of another model"):
        select(one, select(other, "encoder"))
    with pytest.raises(TypeError):
        select(one, "encoder") | "decoder"


def test_a_selection_is_a_pattern_too():
    """Also for functions; an empty one matches nothing."""
    model = transformer()
    given = select(model, "decoder.norm", "encoder.norm:layer_norm")
    assert select(model, given, "encoder").paths == (*given.paths, "encoder")
    with pytest.raises(SelectionError, match="nothing is in"):
        select(model, given - given)


def test_assert_count():
    """The right number gives the selection back; another says which it found."""
    selected = select(transformer(), "encoder.layers.*")
    assert selected.assert_count(2) is selected
    with pytest.raises(SelectionError, match=r"3 expected, 2 selected: 'encoder.layers.0', "):
        selected.assert_count(3)
    with pytest.raises(SelectionError, match="1 expected, 0 selected: none"):
        (selected - selected).assert_count(1)


def test_the_repr_shows_paths():
    """All of a few, the first of many."""
    model = gpt2()
    assert repr(select(model, "lm_head")) == "<Selection of 1 in GPT2LMHeadModel: 'lm_head'>"
    assert repr(select(model, "lm_head") - select(model, "lm_head")).endswith("none>")
    text = repr(select(model))
    assert text.startswith("<Selection of 47 in GPT2LMHeadModel: '', 'transformer', ")
    assert text.endswith(" and 39 more>")
    assert len(list(model.modules())) == 47


def test_selecting_changes_nothing():
    """No hook, no root, no engine: selecting only looks."""
    model = transformer()
    before = torch.nn.Module.__call__
    select(model, "encoder.**")
    assert torch.nn.Module.__call__ is before
    assert hookline.hooks_of(model) == []
