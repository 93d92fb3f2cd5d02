"""Hooks that silently do not run: hookline says so, and why.

The numbers are those of the list of pitfalls in torch 2.13 that this library was built against.
"""

import pytest
import torch
from torch import nn

from hookline import (
    CaptureError,
    FunctionHook,
    ModuleHook,
    capture,
    register_full_backward_hook,
    watch,
)
from hookline.module_hooks import PrintHook, StatsHook, TimerHook


class Forward(ModuleHook):
    def __init__(self):
        self.seen = []

    def forward_postprocess(self, call):
        self.seen.append(call.path)


class Backward(ModuleHook):
    def __init__(self):
        self.seen = []

    def backward_preprocess(self, call):
        self.seen.append(call.path)


class Names(FunctionHook):
    def __init__(self):
        self.labels = []

    def forward_postprocess(self, function, in_data):
        self.labels.append(function.label)


def causes(watched):
    return {row.path: row.cause for row in watched.silent()}


# Calling forward directly.


class Block(nn.Module):
    """Calls one of its layers, and the forward of another."""

    def __init__(self, inner):
        super().__init__()
        self.called, self.direct = nn.Linear(4, 4), inner

    def forward(self, x):
        return self.called(self.direct.forward(x))


DIRECT = {
    "linear": lambda: nn.Linear(4, 4),
    "conv": lambda: nn.Sequential(nn.Unflatten(1, (1, 4)), nn.Conv1d(1, 1, 1), nn.Flatten()),
    "norm": lambda: nn.LayerNorm(4),
    "embedding in it": lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU()),
    "block": lambda: Block(nn.Linear(4, 4)),
}


@pytest.mark.parametrize("inner", DIRECT)
def test_p01_forward_called_directly_is_reported(inner):
    """Once the backward has been there, its parameters tell; so do the modules in it."""
    model, hook = Block(DIRECT[inner]()), Forward()
    with watch(model, hook) as watched:
        model(torch.ones(2, 4)).sum().backward()

    assert "direct" not in hook.seen
    assert "called" in hook.seen
    assert causes(watched)["direct"] == "bypassed"
    assert [row.hooks for row in watched.silent() if row.path == "direct"] == [("Forward",)]


def test_p01_without_a_backward_there_is_a_report_all_the_same():
    """Nothing tells then that it was used; the advice covers both."""
    model = Block(nn.Linear(4, 4))
    with watch(model, Forward()) as watched:
        model(torch.ones(2, 4))
    (row,) = watched.silent()
    assert (row.path, row.cause) == ("direct", "not called")


def test_p01_the_root_itself():
    """A user who calls `model.forward(x)` sees what is inside; the root is reported."""
    model, hook = nn.Sequential(nn.Linear(4, 4), nn.ReLU()), Forward()
    with watch(model, hook) as watched:
        model.forward(torch.ones(2, 4))
    assert hook.seen == ["0", "1"]
    (row,) = watched.silent()
    assert (row.path, row.cause) == ("", "bypassed")
    assert "call the module itself" in row.advice


def test_p01_functions_of_a_forward_that_was_called_directly():
    """They are seen at the function level, in the module that called the forward."""
    model = Block(nn.Linear(4, 4))
    with Names() as names, Forward():
        model(torch.ones(2, 4))
    assert names.labels[1:] == [":linear[0]", "called:linear[0]"]  # after that of torch.ones


# Parameters that a function uses.


def attention(**options):
    return nn.MultiheadAttention(8, 2, **options)


X = torch.linspace(-1, 1, 24).reshape(3, 1, 8)


@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("mode", ["train", "eval", "no_grad"])
@pytest.mark.parametrize("options", [{}, {"kdim": 8, "vdim": 8, "bias": False}, {"dropout": 0.1}])
def test_p02_the_output_projection_of_attention(options, mode, need_weights):
    """`out_proj` is reported as fused, and the functions that do its work are seen."""
    model = attention(**options).train(mode == "train")
    hook, names = Forward(), Names()
    with torch.set_grad_enabled(mode == "train"), names, watch(model, hook) as watched:
        model(X, X, X, need_weights=need_weights)

    assert hook.seen == [""]
    (row,) = watched.silent()
    assert (row.path, row.cause) == ("out_proj", "fused")
    assert "multi_head_attention_forward" in row.advice
    assert ":multi_head_attention_forward[0]" in names.labels


BATCH = {"batch_first": True}
TRANSFORMERS = {
    "encoder layer": (lambda: nn.TransformerEncoderLayer(8, 2, 16), 1),
    "encoder": (lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, **BATCH), 3), 1),
    "decoder layer": (lambda: nn.TransformerDecoderLayer(8, 2, 16), 2),
    "transformer": (lambda: nn.Transformer(8, 2, 2, 1, 16, **BATCH), 2),
}


@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize("name", TRANSFORMERS)
def test_p02_every_projection_in_a_transformer(name, mode):
    """All of them, and nothing else that has a forward; in evaluation, too, where torch fuses."""
    make, count = TRANSFORMERS[name]
    model, inputs = make().train(mode == "train"), [X] * count
    with watch(model, Forward()) as watched:
        model(*inputs)

    fused = {path for path, cause in causes(watched).items() if cause == "fused"}
    assert fused == {path for path, _ in model.named_modules() if path.endswith("out_proj")}
    others = {path: cause for path, cause in causes(watched).items() if path not in fused}
    assert set(others.values()) <= {"no forward"}


def test_p02_a_projection_that_is_named():
    """A capture of it says why there is nothing."""
    model = attention()
    with capture(model, "out_proj") as acts:
        model(X, X, X)
    with pytest.raises(KeyError, match=r"fused; nn\.MultiheadAttention never calls it"):
        acts["out_proj"]


def test_p02_other_functions_that_take_parameters():
    """Whatever module another one's forward takes the weight from."""

    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.head = nn.Embedding(5, 4), nn.Linear(4, 5, bias=False)

        def forward(self, tokens):
            return nn.functional.linear(self.embed(tokens), self.head.weight)

    model = Tied()
    with watch(model, Forward()) as watched:
        model(torch.tensor([[1, 2]])).sum().backward()
    assert causes(watched) == {"head": "bypassed"}


# Backward hooks without a backward.


class Detaches(nn.Module):
    def forward(self, x):
        return x.detach() * 2


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_p48_no_gradients_at_all(mode):
    """Every module is reported, with what there is to be done."""
    model, hook = nn.Sequential(nn.Linear(2, 2), nn.Tanh()), Backward()
    with mode(), watch(model, hook) as watched:
        model(torch.ones(1, 2))
    assert hook.seen == []
    assert causes(watched) == dict.fromkeys(["", "0", "1"], "no gradient")
    assert "with gradients on" in watched.silent()[0].advice


MODELS = {
    "detaches": (lambda: nn.Sequential(nn.Linear(2, 2), Detaches(), nn.Linear(2, 2)), {"0", "1"}),
    "frozen": (
        lambda: nn.Sequential(nn.Linear(2, 2).requires_grad_(requires_grad=False), nn.Linear(2, 2)),
        {"0"},
    ),
    "all frozen but the head": (
        lambda: nn.Sequential(
            nn.Sequential(nn.Linear(2, 2), nn.ReLU()).requires_grad_(requires_grad=False),
            nn.Linear(2, 2),
        ),
        {"0", "0.0", "0.1"},
    ),
    "integers": (lambda: nn.Sequential(Ids(), nn.Embedding(3, 2)), {"0"}),
}


class Ids(nn.Module):
    def forward(self, x):
        return (x > 0).long().sum(-1)


@pytest.mark.parametrize("name", MODELS)
def test_p48_a_backward_that_does_not_reach(name):
    """Just the modules that it does not reach are reported."""
    make, silent = MODELS[name]
    model, hook = make(), Backward()
    with watch(model, hook) as watched:
        model(torch.ones(1, 2)).sum().backward()
    assert causes(watched) == dict.fromkeys(silent, "no gradient")
    assert set(hook.seen) == {path for path, _ in model.named_modules()} - silent


def test_p48_a_hook_of_torchs_kind_stays_silent_where_nothing_flows():
    """As torch's, but it runs where a gradient arrives although no input needs one."""
    fired = []
    linear = nn.Linear(2, 2)
    with register_full_backward_hook(linear, lambda *_: fired.append(1)):
        with torch.no_grad():
            linear(torch.ones(1, 2))
        assert fired == []
        linear(torch.ones(1, 2)).sum().backward()
    assert fired == [1]


def test_p48_ready_made_hooks_of_both_directions():
    """They ran forward, so they are not silent; that there was no backward their rows show."""
    model, stats, timer = nn.Linear(2, 2), StatsHook(every=1), TimerHook()
    with torch.no_grad(), watch(model, stats, timer, PrintHook(file=open_nothing())) as watched:
        model(torch.ones(1, 2))
    assert watched.silent() == []
    assert {row.direction for row in [*stats.rows(), *timer.rows()]} == {"forward"}


def open_nothing():
    class Nothing:
        def write(self, text): ...

    return Nothing()


def test_p48_a_capture_says_that_no_gradient_came():
    """The error tells it from what was not asked for."""
    model = nn.Linear(2, 2)
    with torch.no_grad(), capture(model, what=("output", "grad")) as acts:
        model(torch.ones(1, 2))
    with pytest.raises(
        CaptureError, match="no gradient arrived before the capture ended"
    ) as caught:
        _ = acts[""].grad
    assert "what='grad'" in str(caught.value)
