"""Value hooks on a wrapped layer: V1 to V10."""

from __future__ import annotations

import copy
import gc
import inspect
import io
import pickle
import sys
import weakref

import pytest
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.utils import parametrize, prune
from torch.nn.utils.parametrizations import weight_norm
from transformers import GPT2Config, GPT2LMHeadModel

import hookline
from hookline import HookKind, Inputs, Phase, with_hooks
from hookline.errors import HooklineError, HookTypeError, HookValueError
from hookline.modules.places import table
from hookline.modules.wrapper import _own_table


@pytest.fixture
def x():
    torch.manual_seed(0)
    return torch.randn(3, 10)


def wrapped_linear():
    torch.manual_seed(1)
    bare = nn.Linear(10, 5)
    return bare, *with_hooks(bare)


class Doubled(nn.Module):
    """A parametrization."""

    def forward(self, weight):
        return weight * 2


class Attend(nn.Module):
    """Takes several inputs, one of them by keyword."""

    def forward(self, query, key, *, scale=1.0, mask=None):
        out = query * key * scale
        return out if mask is None else out * mask


class Slotted(nn.Module):
    """Keeps part of its state in slots, and copies it."""

    __slots__ = ("calls", "gain")

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        self.gain, self.calls = 2.0, 0

    def forward(self, x):
        self.calls += 1
        return x * self.weight * self.gain

    def __getstate__(self):
        return {**self.__dict__, "slots": (self.gain, self.calls)}

    def __setstate__(self, state):
        self.gain, self.calls = state.pop("slots")
        super().__setstate__(state)


# V1, V2: the forward.


def test_v1_pre_hooks_run_in_order_each_with_what_the_one_before_gave(x):
    """Then the layer gets what the last one gave."""
    bare, layer, hooks = wrapped_linear()
    seen = []
    hooks.add_forward_pre_hook(lambda value: value + 1)
    hooks.add_forward_pre_hook(seen.append)
    hooks.add_forward_pre_hook(lambda value: value * 2)

    out = layer(x)

    assert torch.equal(seen[0], x + 1)
    assert torch.equal(out, bare((x + 1) * 2))


def test_v1_post_hooks_get_the_input_that_the_layer_saw_and_the_output_of_the_one_before(x):
    """In registration order; the last one's output comes out."""
    bare, layer, hooks = wrapped_linear()
    seen = []
    hooks.add_forward_pre_hook(lambda value: value + 1)
    hooks.add_forward_hook(lambda value, out: seen.append((value, out)))
    hooks.add_forward_hook(lambda value, out: out * 2)
    hooks.add_forward_hook(lambda value, out: seen.append((value, out)))
    hooks.add_forward_hook(lambda value, out: out - value.sum())

    out = layer(x)

    plain = bare(x + 1)
    for value, _ in seen:
        assert torch.equal(value, x + 1)
    assert torch.equal(seen[0][1], plain)
    assert torch.equal(seen[1][1], plain * 2)
    assert torch.equal(out, plain * 2 - (x + 1).sum())


def test_v1_as_many_hooks_as_one_likes_equal_a_plain_loop(x):
    """Ten hooks of each kind on digits."""
    digits = torch.tensor(load_digits().data[:8], dtype=torch.float32)
    bare = nn.Linear(64, 10)
    layer, hooks = with_hooks(bare)
    for number in range(10):
        hooks.add_forward_pre_hook(lambda value, number=number: value * 0.5 + number)
        hooks.add_forward_hook(lambda value, out, number=number: out * 0.9 - value.mean() * number)

    expected = digits
    for number in range(10):
        expected = expected * 0.5 + number
    mean, expected = expected.mean(), bare(expected)
    for number in range(10):
        expected = expected * 0.9 - mean * number
    assert torch.equal(layer(digits), expected)


@pytest.mark.parametrize("kind", ["forward_pre", "forward"])
def test_v2_an_error_stops_the_forward_and_comes_out_as_the_same_object(x, kind):
    """Hooks behind it do not run; after it the layer works as before."""
    bare, layer, hooks = wrapped_linear()
    error, seen = ValueError("stop"), []

    def fail(*_):
        raise error

    handle = hooks.add(kind, fail)
    hooks.add(kind, lambda *_: seen.append("behind"))
    hooks.add_forward_hook(lambda *_: seen.append("post"))

    with pytest.raises(ValueError, match="stop") as caught:
        layer(x)
    assert caught.value is error
    assert seen == []
    assert len(error.__notes__) == 1
    for part in (f"{kind} hook", "fail", "Linear", "call 0"):
        assert part in error.__notes__[0]

    handle.remove()
    assert torch.equal(layer(x), bare(x))


def test_v2_an_error_of_the_layer_itself_comes_out_as_it_is(x):
    """With the layer and the shapes of its inputs in a note; post-hooks do not run."""
    _, layer, hooks = wrapped_linear()
    seen = []
    hooks.add_forward_hook(lambda value, out: seen.append(out))

    with pytest.raises(RuntimeError, match="shapes cannot be multiplied") as caught:
        layer(x[:, :4])
    assert seen == []
    assert "float32[3, 4]" in caught.value.__notes__[0]


# V3: the backward.


def gradients(layer, x, weight=1.0):
    """The gradients of a loss with respect to the input and the layer's parameters."""
    x = x.clone().requires_grad_()
    loss = (layer(x).sin() * weight).sum()
    return torch.autograd.grad(loss, [x, *layer.parameters()])


def test_v3_backward_hooks_run_in_order_and_the_last_result_flows_on(x):
    """As if the layer had been followed by a function with that backward."""
    bare, layer, hooks = wrapped_linear()
    seen = []
    hooks.add_backward_hook(lambda grad: grad + 1)
    hooks.add_backward_hook(seen.append)
    hooks.add_backward_hook(lambda grad: grad * 3)

    found = gradients(layer, x)

    x = x.requires_grad_()
    out = bare(x)
    (above,) = torch.autograd.grad(out.sin().sum(), out, retain_graph=True)
    assert torch.equal(seen[0], above + 1)
    expected = torch.autograd.grad(out, [x, *bare.parameters()], (above + 1) * 3)
    assert all(map(torch.equal, found, expected))


def test_v3_hooks_are_not_called_where_the_output_needs_no_gradient(x):
    """Frozen layers, `no_grad` and `inference_mode`; the output is the layer's own."""
    bare, layer, hooks = wrapped_linear()
    calls = []
    hooks.add_backward_hook(calls.append)
    head = nn.Linear(5, 1)

    for context in (torch.no_grad, torch.inference_mode):
        with context():
            assert torch.equal(layer(x), bare(x))
    layer.requires_grad_(False)
    head(layer(x)).sum().backward()
    assert calls == []

    layer.requires_grad_(True)
    head(layer(x)).sum().backward()
    assert len(calls) == 1


def test_v3_an_error_stops_the_backward_and_comes_out_as_the_same_object(x):
    """Later hooks and earlier layers are not reached."""
    bare, layer, hooks = wrapped_linear()
    first = nn.Linear(10, 10)
    error, calls = KeyError("stop"), []

    def fail(grad):
        raise error

    handle = hooks.add_backward_hook(fail)
    hooks.add_backward_hook(calls.append)

    with pytest.raises(KeyError) as caught:
        layer(first(x)).sum().backward()
    handle.remove()
    assert caught.value is error
    assert calls == []
    assert first.weight.grad is None
    assert bare.weight.grad is None
    assert len(error.__notes__) == 1
    assert "backward_pre hook" in error.__notes__[0]


def test_v3_of_several_outputs_the_hook_is_called_for_each_that_gets_a_gradient():
    """An LSTM's three tensors, used one by one and together."""
    torch.manual_seed(0)
    bare = nn.LSTM(3, 4, batch_first=True)
    layer, hooks = with_hooks(bare)
    shapes = []
    hooks.add_backward_hook(lambda grad: shapes.append(tuple(grad.shape)))
    hooks.add_backward_hook(lambda grad: grad * 2)
    x = torch.randn(2, 5, 3)

    def loss(module, *used):
        out, (hidden, cell) = module(x)
        return sum({"out": out, "hidden": hidden, "cell": cell}[name].sin().sum() for name in used)

    for used, expected_shapes in {
        ("out",): [(2, 5, 4)],
        ("cell",): [(1, 2, 4)],
        ("out", "hidden", "cell"): [(1, 2, 4), (1, 2, 4), (2, 5, 4)],
    }.items():
        shapes.clear()
        found = torch.autograd.grad(loss(layer, *used), list(layer.parameters()))
        expected = torch.autograd.grad(loss(bare, *used), list(bare.parameters()))
        assert sorted(shapes) == expected_shapes
        # Every path into the layer was doubled, and the layer's backward is linear.
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other * 2)


def test_v3_hooks_fire_in_each_backward_of_one_forward(x):
    """With `retain_graph`, once a run."""
    _, layer, hooks = wrapped_linear()
    seen = []
    hooks.add_backward_hook(seen.append)
    out = layer(x)

    for factor in (1.0, 2.0, 3.0):
        (out * factor).sum().backward(retain_graph=True)

    assert [float(grad[0, 0]) for grad in seen] == [1.0, 2.0, 3.0]


def test_v3_a_hook_on_what_passes_through_does_not_touch_the_original():
    """An Identity's output is its input, whose other uses keep their gradients."""
    layer, hooks = with_hooks(nn.Identity())
    hooks.add_backward_hook(lambda grad: grad * 10)
    leaf = torch.ones(2, requires_grad=True)

    for _ in range(3):
        (layer(leaf) + leaf).sum().backward()

    assert torch.equal(leaf.grad, torch.full((2,), 33.0))
    assert not leaf._backward_hooks


# V4 to V6: when, handles, order.


@pytest.mark.parametrize(
    "context", [torch.enable_grad, torch.no_grad, torch.inference_mode], ids=lambda c: c.__name__
)
def test_v4_pre_and_post_hooks_run_with_and_without_gradients(x, context):
    """With the same values."""
    bare, layer, hooks = wrapped_linear()
    hooks.add_forward_pre_hook(lambda value: value * 2)
    hooks.add_forward_hook(lambda value, out: out + 1)

    with context():
        assert torch.equal(layer(x), bare(x * 2) + 1)


def test_v5_each_registration_gives_a_handle_that_removes_it(x):
    """Removed once or more often, only that hook goes."""
    bare, layer, hooks = wrapped_linear()
    first = hooks.add_forward_hook(lambda value, out: out + 1)
    second = hooks.add_forward_hook(lambda value, out: out * 2)
    assert torch.equal(layer(x), (bare(x) + 1) * 2)

    first.remove()
    first.remove()
    assert torch.equal(layer(x), bare(x) * 2)
    assert (first.active, second.active) == (False, True)

    with second:
        pass
    assert torch.equal(layer(x), bare(x))


def test_v5_one_hook_registered_twice_has_two_registrations(x):
    """Each with a handle of its own."""
    bare, layer, hooks = wrapped_linear()

    def add_one(value, out):
        return out + 1

    first, second = hooks.add_forward_hook(add_one), hooks.add_forward_hook(add_one)
    assert torch.equal(layer(x), bare(x) + 1 + 1)

    first.remove()
    assert torch.equal(layer(x), bare(x) + 1)
    assert second.active


def test_v5_all_handles_and_the_wrapper_share_one_registry():
    """It is that of the engine for the wrapper, and no other's."""
    _, layer, hooks = wrapped_linear()
    _, other = with_hooks(nn.Linear(1, 1))
    handles = [
        hooks.add_forward_pre_hook(lambda value: None),
        hooks.add_forward_hook(lambda value, out: None),
        hooks.add_backward_hook(lambda grad: None),
        hookline.register_forward_hook(layer, lambda m, args, out: None),
    ]

    registry = hooks.registry

    assert isinstance(registry, hookline.HookRegistry)
    assert all(handle.registry is registry for handle in handles)
    assert other.registry is not registry
    assert [handle.entry for handle in registry] == [handle.entry for handle in handles]
    registry.clear()
    assert not any(handle.active for handle in handles)


@pytest.mark.parametrize("kind", list(HookKind))
def test_v5_removal_takes_effect_within_the_running_event(x, kind):
    """A hook that removes the one behind it (P6)."""
    _, layer, hooks = wrapped_linear()
    calls = []
    hooks.add(kind, lambda *_: later.remove())
    later = hooks.add(kind, lambda *_: calls.append("removed"))

    layer(x).sum().backward()

    assert calls == []


def test_v5_removal_between_forward_and_backward_takes_effect(x):
    """The gradients are those of the bare layer then."""
    bare, layer, hooks = wrapped_linear()
    handle = hooks.add_backward_hook(lambda grad: grad * 0)
    out = layer(x)

    handle.remove()
    out.sum().backward()

    assert torch.equal(bare.bias.grad, torch.full((5,), 3.0))


def test_v5_a_backward_hook_of_a_watched_call_may_be_added_after_the_forward(x):
    """The call is watched for its backward by another hook (P6)."""
    _, layer, hooks = wrapped_linear()
    seen = []
    hooks.add_backward_hook(lambda grad: grad + 1)
    out = layer(x)
    hooks.add_backward_hook(seen.append)

    out.sum().backward()

    assert torch.equal(seen[0], torch.full((3, 5), 2.0))


def test_v5_handles_work_when_the_layer_is_gone():
    """Nothing of it stays on, even where a handle is kept."""
    before = nn.Module.__call__
    layer, hooks = with_hooks(nn.ReLU())
    handle = hooks.add_forward_hook(lambda value, out: None)
    del layer, hooks

    assert not handle.active
    assert nn.Module.__call__ is before
    handle.remove()


def test_v6_the_kinds_run_in_the_order_of_the_computation(x):
    """All forward events in order, then the backward ones in reverse graph order."""
    log = []
    parts = {}
    for name, bare in {"a": nn.Linear(10, 4), "b": nn.Linear(4, 2)}.items():
        parts[name], hooks = with_hooks(bare)
        hooks.add_backward_hook(lambda grad, name=name: log.append(f"{name} backward"))
        hooks.add_forward_hook(lambda value, out, name=name: log.append(f"{name} forward"))
        hooks.add_forward_pre_hook(lambda value, name=name: log.append(f"{name} pre"))
        bare.register_forward_hook(lambda m, args, out, name=name: log.append(f"{name} layer"))

    nn.Sequential(parts["a"], parts["b"])(x).sum().backward()

    assert log == [
        *("a pre", "a layer", "a forward", "b pre", "b layer", "b forward"),
        *("b backward", "a backward"),
    ]


def test_v6_in_nested_wrappers_the_outer_stands_around_the_inner(x):
    """Forward, and backward in reverse; hooks on the bare layer are innermost."""
    log = []

    def note(name, result=None):
        return lambda *_: log.append(name) or result

    layer = nn.Linear(10, 5)
    hookline.register_forward_pre_hook(layer, note("layer pre"))
    hookline.register_forward_hook(layer, note("layer post"))
    hookline.register_full_backward_pre_hook(layer, note("layer backward"))
    for name in ("inner", "middle", "outer"):
        layer, hooks = with_hooks(layer)
        hooks.add_forward_pre_hook(note(f"{name} pre"))
        hooks.add_forward_hook(note(f"{name} post"))
        hooks.add_backward_hook(note(f"{name} backward"))

    layer(x).sum().backward()

    assert log == [
        *("outer pre", "middle pre", "inner pre", "layer pre"),
        *("layer post", "inner post", "middle post", "outer post"),
        *("outer backward", "middle backward", "inner backward", "layer backward"),
    ]


def test_v6_nested_wrappers_change_values_from_the_outside_in(x):
    """And gradients too: `(g + 1) * 2` where the outer adds and the inner doubles."""
    bare = nn.Linear(10, 5)
    inner, inner_hooks = with_hooks(bare)
    outer, outer_hooks = with_hooks(inner)
    outer_hooks.add_forward_pre_hook(lambda value: value + 1)
    inner_hooks.add_forward_pre_hook(lambda value: value * 2)
    inner_hooks.add_forward_hook(lambda value, out: out - 3)
    outer_hooks.add_forward_hook(lambda value, out: out * 4)
    outer_hooks.add_backward_hook(lambda grad: grad + 1)
    inner_hooks.add_backward_hook(lambda grad: grad * 2)

    out = outer(x)
    out.sum().backward()

    assert torch.equal(out, (bare((x + 1) * 2) - 3) * 4)
    assert torch.equal(bare.bias.grad, torch.full((5,), 3 * (1 + 1) * 4 * 2.0))


def test_v6_the_hooks_of_a_wrapper_run_for_the_wrapper_only(x):
    """Calls of the layer itself, or of an inner wrapper, do not run the outer's."""
    bare, inner, inner_hooks = wrapped_linear()
    outer, outer_hooks = with_hooks(inner)
    inner_hooks.add_forward_hook(lambda value, out: out + 1)
    outer_hooks.add_forward_hook(lambda value, out: out * 2)
    plain = F.linear(x, bare.weight, bare.bias)

    assert torch.equal(bare(x), plain)
    assert torch.equal(inner(x), plain + 1)
    assert torch.equal(outer(x), (plain + 1) * 2)


# V7: the wrapper is transparent.


def make_models():
    """The same model bare and with every layer wrapped and hooked."""
    bare = nn.Sequential(nn.Linear(64, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 10))
    wrapped = copy.deepcopy(bare)
    for index, layer in enumerate(wrapped):
        wrapped[index], hooks = with_hooks(layer)
        hooks.add_forward_pre_hook(lambda value: None)
        hooks.add_forward_hook(lambda value, out: None)
        hooks.add_backward_hook(lambda grad: None)
    return bare, wrapped


@pytest.fixture(scope="module")
def digits():
    data = load_digits()
    return torch.tensor(data.data[:64] / 16, dtype=torch.float32), torch.tensor(data.target[:64])


def train(model, digits, steps=3):
    """The outputs and losses of some steps."""
    images, labels = digits
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    seen = []
    for _ in range(steps):
        optimizer.zero_grad()
        out = model(images)
        loss = F.cross_entropy(out, labels)
        loss.backward()
        optimizer.step()
        seen += [out, loss]
    return seen


def test_v7_a_model_of_wrapped_layers_trains_bit_for_bit_alike(digits):
    """Hooks that only observe change neither outputs nor parameters."""
    bare, wrapped = make_models()

    assert all(map(torch.equal, train(bare, digits), train(wrapped, digits)))
    assert all(map(torch.equal, bare.parameters(), wrapped.parameters()))
    assert all(map(torch.equal, bare.buffers(), wrapped.buffers()))


def test_v7_names_types_and_repr_are_those_of_the_layers():
    """Nothing shows that there are hooks."""
    bare, wrapped = make_models()

    assert repr(wrapped) == repr(bare)
    assert list(wrapped.state_dict()) == list(bare.state_dict())
    assert list(dict(wrapped.named_parameters())) == list(dict(bare.named_parameters()))
    assert list(dict(wrapped.named_buffers())) == list(dict(bare.named_buffers()))
    assert list(dict(wrapped.named_modules())) == list(dict(bare.named_modules()))
    for one, other in zip(wrapped, bare, strict=True):
        assert type(one) is type(other)
        assert vars(one).keys() == vars(other).keys()
        assert dir(one) == dir(other)
    assert isinstance(wrapped[0], nn.Linear)


@pytest.mark.parametrize("way", ["bare into wrapped", "wrapped into bare"])
def test_v7_checkpoints_load_both_ways(way, digits):
    """With `strict`, from a file, read with `weights_only`."""
    bare, wrapped = make_models()
    source, target = (bare, wrapped) if way == "bare into wrapped" else (wrapped, bare)
    train(source, digits)
    file = io.BytesIO()
    torch.save(source.state_dict(), file)
    file.seek(0)

    target.load_state_dict(torch.load(file, weights_only=True), strict=True)

    source.eval()
    target.eval()
    assert torch.equal(source(digits[0]), target(digits[0]))


def _saved(model):
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    with torch.serialization.safe_globals([nn.Sequential, nn.Linear, nn.BatchNorm1d, nn.ReLU]):
        return torch.load(file, weights_only=True)


@pytest.mark.parametrize(
    "duplicate",
    [copy.copy, copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model)), _saved],
    ids=["copy", "deepcopy", "pickle", "torch.save, weights_only"],
)
def test_v7_copied_or_pickled_it_comes_back_as_the_bare_layer(duplicate, x):
    """Though its hooks are lambdas, which no pickle could take."""
    bare, layer, hooks = wrapped_linear()
    hooks.add_forward_hook(lambda value, out: out + 1)
    hooks.add_backward_hook(lambda grad: grad * 0)

    for made in (duplicate(layer), duplicate(nn.Sequential(layer))[0]):
        assert type(made) is nn.Linear
        assert hookline.hooks_of(made) == [] or made is layer
        assert vars(made).keys() == vars(bare).keys()
    made = duplicate(layer)
    assert torch.equal(made(x), bare(x))
    assert torch.equal(layer(x), bare(x) + 1)


class KeepsHooks(nn.Module):
    """A model that holds everything that `with_hooks` gave."""

    def __init__(self):
        super().__init__()
        self.layer, self.hooks = with_hooks(nn.Linear(10, 5))
        self.handle = self.hooks.add_forward_hook(lambda value, out: out + 1)

    def forward(self, x):
        return self.layer(x)


@pytest.mark.parametrize(
    "duplicate", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))]
)
def test_v7_a_model_may_keep_its_hooks_and_handles(duplicate, x):
    """Copies and pickles of it have none, and it keeps its own."""
    model = KeepsHooks()

    made = duplicate(model)

    assert made.hooks is None
    assert made.handle is None
    assert hookline.hooks_of(made) == []
    assert torch.equal(model(x), made(x) + 1)
    model.handle.remove()
    assert torch.equal(model(x), made(x))


def test_v7_a_pickle_of_the_wrapper_is_byte_for_byte_that_of_the_layer():
    """So it is loadable where hookline is not installed."""
    bare, layer, hooks = wrapped_linear()
    hooks.add_forward_hook(lambda value, out: out + 1)

    assert pickle.dumps(layer) == pickle.dumps(bare)
    assert b"hookline" not in pickle.dumps(layer)


def test_v7_the_wrapper_shares_attributes_and_modes_with_the_layer():
    """Set on either, seen on both."""
    bare, layer, _ = wrapped_linear()

    layer.eval()
    assert not bare.training
    bare.train()
    assert layer.training
    layer.to(torch.float64)
    assert bare.weight.dtype == torch.float64
    layer.note = "mine"
    assert bare.note == "mine"
    del bare.note
    assert not hasattr(layer, "note")
    layer.requires_grad_(False)
    assert not bare.weight.requires_grad
    layer.register_buffer("mean", torch.zeros(1))
    layer.apply(lambda m: m.register_buffer("std", torch.ones(1)))
    assert list(dict(bare.named_buffers())) == ["mean", "std"]
    assert layer.weight is bare.weight


def test_v7_train_and_eval_reach_the_wrapped_layer(x):
    """Dropout drops in training only."""
    layer, hooks = with_hooks(nn.Dropout(0.5))
    model = nn.Sequential(layer)
    hooks.add_forward_hook(lambda value, out: out * 2)

    assert torch.equal(model.eval()(x), x * 2)
    torch.manual_seed(3)
    dropped = model.train()(x)
    torch.manual_seed(3)
    assert torch.equal(dropped, F.dropout(x, 0.5) * 2)


def test_v7_torchs_own_hooks_on_the_layer_run_inside_and_on_the_wrapper_too(x):
    """They are in the `__dict__` that both share."""
    bare, layer, hooks = wrapped_linear()
    log = []
    first = bare.register_forward_hook(lambda m, args, out: log.append("before") or out + 1)
    hooks.add_forward_hook(lambda value, out: log.append("ours") or out * 2)
    second = layer.register_forward_hook(lambda m, args, out: log.append("after") or out - 3)
    plain = F.linear(x, bare.weight, bare.bias)

    assert torch.equal(layer(x), ((plain + 1) - 3) * 2)
    assert log == ["before", "after", "ours"]

    first.remove()
    second.remove()
    assert torch.equal(layer(x), plain * 2)


def test_v7_hooks_registered_on_the_wrapper_and_on_the_layer_both_run(x):
    """In torch's signatures: the wrapper's outside, the layer's inside."""
    bare, layer, hooks = wrapped_linear()
    hookline.register_forward_hook(bare, lambda m, args, out: out + 1)
    hookline.register_forward_hook(layer, lambda m, args, out: out * 2)
    hooks.add_forward_hook(lambda value, out: out - 3)
    plain = F.linear(x, bare.weight, bare.bias)

    assert torch.equal(layer(x), (plain + 1) * 2 - 3)


def test_v7_a_wrapper_without_hooks_leaves_the_engine_off(x):
    """Made, called and dropped; and after its last hook."""
    before = nn.Module.__call__
    bare, layer, hooks = wrapped_linear()
    assert torch.equal(layer(x), bare(x))
    assert nn.Module.__call__ is before

    hooks.add_forward_hook(lambda value, out: out + 1).remove()
    assert nn.Module.__call__ is before
    assert torch.equal(layer(x), bare(x))


def test_v7_a_dropped_wrapper_leaves_nothing_behind():
    """Neither in the table nor on the layer."""
    bare, layer, hooks = wrapped_linear()
    attributes = set(vars(bare))
    hooks.add_forward_hook(lambda value, out: out + 1)
    count = len(table)

    del layer, hooks

    assert len(table) == count - 1
    assert set(vars(bare)) == attributes


@pytest.mark.parametrize("times", [1, 2])
def test_v7_the_wrapper_lives_on_when_the_collector_finds_the_layer(times):
    """Python 3.13 empties what an unreachable object's attributes hold, though a twin has them."""
    layer = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    names, expected = list(vars(layer)), layer(torch.ones(4))
    for _ in range(times):
        wrapper, _ = with_hooks(layer)
        cycle = [layer]
        cycle.append(cycle)
        layer = wrapper
        del cycle, wrapper
        gc.collect()
    assert torch.equal(layer(torch.ones(4)), expected)
    assert [name for name, _ in layer.named_children()] == ["0", "1"]
    assert list(vars(layer)) == names


def test_r5_what_hooks_inside_a_wrapper_keep_goes_with_it(x):
    """Though the graph knows the calls: it does not hold the hooks."""

    def outputs_kept_by_a_hook(layer, kept):
        hookline.register_forward_hook(layer, lambda m, args, out: kept.append((out, out.sum())))

    bare, layer, _ = wrapped_linear()
    outputs_kept_by_a_hook(bare, [])
    hookline.register_full_backward_pre_hook(bare, lambda m, grads: None)
    gone = weakref.ref(layer(x))

    del bare, layer, _
    gc.collect()

    assert gone() is None


@pytest.mark.parametrize(
    ("change", "undo"),
    [
        (
            lambda layer: parametrize.register_parametrization(layer, "weight", Doubled()),
            lambda layer: parametrize.remove_parametrizations(layer, "weight"),
        ),
        (weight_norm, lambda layer: parametrize.remove_parametrizations(layer, "weight")),
        (
            lambda layer: prune.l1_unstructured(layer, "weight", amount=0.5),
            lambda layer: prune.remove(layer, "weight"),
        ),
    ],
    ids=["parametrize", "weight_norm", "prune"],
)
@pytest.mark.parametrize("nesting", [1, 2])
def test_v7_what_changes_a_layers_weights_works_on_the_wrapper(change, undo, nesting, x):
    """Before and after wrapping, with hooks and without, and undone again."""
    plain = nn.Linear(10, 5)
    before, after = copy.deepcopy(plain), copy.deepcopy(plain)
    for _ in range(nesting):
        after, after_hooks = with_hooks(after)
    change(plain)
    change(before)
    before, before_hooks = with_hooks(before)
    change(after)

    for layer, hooks in ((before, before_hooks), (after, after_hooks)):
        assert list(layer.state_dict()) == list(plain.state_dict())
        with hooks.add_forward_hook(lambda value, out: out + 1):
            assert torch.equal(layer(x), plain(x) + 1)
        assert torch.equal(layer(x), plain(x))
        undo(layer)
        with hooks.add_forward_hook(lambda value, out: out + 1):
            assert torch.equal(layer(x), plain(x) + 1)


def test_v7_a_wrapped_model_can_be_called_with_other_parameters(x):
    """By `functional_call`, which puts them in and takes them out again."""
    bare, layer, hooks = wrapped_linear()
    hooks.add_forward_hook(lambda value, out: out + 1)
    others = {name: p * 2 for name, p in nn.Sequential(bare).named_parameters()}

    out = torch.func.functional_call(nn.Sequential(layer), others, (x,))

    assert torch.equal(out, F.linear(x, bare.weight * 2, bare.bias * 2) + 1)


def test_v7_a_lazy_layer_becomes_its_final_class(x):
    """At the first call, with the parameters that fit its input."""
    layer, hooks = with_hooks(nn.LazyLinear(5))
    hooks.add_forward_hook(lambda value, out: out + 1)

    out = layer(x)

    assert type(layer) is nn.Linear
    assert layer.weight.shape == (5, 10)
    assert torch.equal(out, F.linear(x, layer.weight, layer.bias) + 1)


def test_v7_slots_are_taken_over():
    """Values, what the forward writes into them, copies and pickles."""
    bare = Slotted()
    layer, hooks = with_hooks(bare)
    with hooks.add_forward_hook(lambda value, out: out + 1):
        assert torch.equal(layer(torch.ones(2)), torch.tensor([3.0, 3.0]))
    layer(torch.ones(2))

    assert layer.calls == 2
    for made in (copy.copy(layer), copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert type(made) is Slotted
        assert (made.gain, made.calls) == (2.0, 2)


class Private(nn.Module):
    """With a slot whose name Python changes, and one that stays without a value."""

    __slots__ = ("__gain", "unset")

    def __init__(self):
        super().__init__()
        self.__gain = 3.0

    def forward(self, x):
        return x * self.__gain


class Demanding(nn.Linear):
    """Its `__new__` wants to know more than the class."""

    def __new__(cls, inputs, outputs):
        return super().__new__(cls)


class Cached(nn.Linear):
    """There is but one."""

    only = None

    def __new__(cls, *sizes):
        if cls.only is None:
            cls.only = super().__new__(cls)
        return cls.only


@pytest.mark.parametrize(
    "make",
    [
        Private,
        lambda: Demanding(10, 5),
        lambda: Cached(10, 5),
        lambda: torch.fx.symbolic_trace(nn.Linear(10, 5)),
        lambda: torch.export.export(nn.Linear(10, 5), (torch.ones(3, 10),)).module(),
    ],
    ids=["private slots", "arguments", "cached", "traced", "exported"],
)
def test_v7_however_a_class_makes_its_objects(make, x):
    """The wrapper is another object of the layer's class, and computes what the layer does."""
    bare = make()
    layer, hooks = with_hooks(bare)
    assert layer is not bare
    assert type(layer) is type(bare)
    assert torch.equal(layer(x), bare(x))
    with hooks.add_forward_hook(lambda value, out: out + 1):
        assert torch.equal(layer(x), bare(x) + 1)
    assert not hasattr(layer, "unset")


class Table(nn.Module, dict):
    """A module and a dict."""

    def forward(self, x):
        return x + self["bias"]


def test_v7_what_keeps_values_elsewhere_is_refused():
    """Its items would be missing in the wrapper."""
    with pytest.raises(HookTypeError, match="Table is more than a module: it keeps values outside"):
        with_hooks(Table())


def test_v7_what_a_thread_sets_while_a_layer_is_wrapped_stays():
    """Here a trace function does what another thread might: between two lines."""
    layer = nn.Linear(10, 5)
    names, to_set = list(vars(layer)), [7]

    def trace(frame, event, _):
        table = frame.f_locals.get("table")
        if table is not None and len(table) > len(names) and to_set:
            layer.set = to_set.pop()
        return trace

    def enter(frame, event, _):
        return trace if frame.f_code is inspect.unwrap(_own_table).__code__ else None

    before = sys.gettrace()
    sys.settrace(enter)
    try:
        wrapper, _ = with_hooks(layer)
    finally:
        sys.settrace(before)
    assert (layer.set, wrapper.set) == (7, 7)
    assert list(vars(layer)) == [*names, "set"]


def test_v7_hooks_below_a_wrapped_encoder_run_in_eval_too():
    """Torch's fused path would pass them by."""
    encoder = nn.TransformerEncoderLayer(8, 2, batch_first=True).eval()
    layer, _ = with_hooks(encoder)
    calls = []
    hookline.register_forward_hook(encoder.linear1, lambda m, args, out: calls.append("inside"))
    encoder.linear2, inner = with_hooks(encoder.linear2)
    inner.add_forward_hook(lambda value, out: calls.append("wrapped"))

    with torch.no_grad():
        layer(torch.ones(1, 3, 8))

    assert calls == ["inside", "wrapped"]


def test_v7_a_layer_shared_by_two_wrappers_has_hooks_for_each_place(x):
    """One set of parameters, two sets of hooks."""
    bare = nn.Linear(10, 10)
    first, first_hooks = with_hooks(bare)
    second, second_hooks = with_hooks(bare)
    first_hooks.add_forward_hook(lambda value, out: out + 1)
    second_hooks.add_forward_hook(lambda value, out: out * 2)

    assert torch.equal(nn.Sequential(first, second)(x), bare(bare(x) + 1) * 2)
    assert len(list(nn.Sequential(first, second).parameters())) == 2


def test_v7_a_sharded_module_is_refused_and_sharding_afterwards_works(x):
    """`fully_shard` knows its module by identity."""
    from torch.distributed import HashStore, destroy_process_group, init_process_group
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        with pytest.raises(HookTypeError, match="wrap the layer first and shard afterwards"):
            with_hooks(fully_shard(nn.Linear(10, 5), mesh=mesh))

        bare, layer, hooks = wrapped_linear()
        expected = bare(x) + 1
        fully_shard(layer, mesh=mesh)
        hooks.add_forward_hook(lambda value, out: out + 1)
        torch.testing.assert_close(layer(x), expected)
    finally:
        destroy_process_group()


@pytest.mark.parametrize("given", [None, nn.Linear, lambda x: x])
def test_v7_what_is_no_module_cannot_be_wrapped(given):
    """The error says so, at once."""
    with pytest.raises(HookTypeError):
        with_hooks(given)


# V8, V9: kinds and names.


@pytest.mark.parametrize(
    ("number", "name", "phase"),
    [
        (0, "forward_pre", Phase.FORWARD_PRE),
        (1, "forward", Phase.FORWARD),
        (2, "backward", Phase.BACKWARD_PRE),
    ],
)
def test_v8_a_kind_is_known_by_number_and_name_and_has_a_phase(number, name, phase, x):
    """And a hook may be added by any of them."""
    _, layer, hooks = wrapped_linear()
    kind = HookKind(number)
    assert HookKind(name) is kind
    assert kind.phase is phase
    assert (kind.value, kind.name) == (number, name)
    calls = []
    for given in (number, name, kind):
        handle = hooks.add(given, lambda *_: calls.append("called"))
        assert handle.entry.phases == (phase,)

    layer(x).sum().backward()

    assert calls == ["called"] * 3


@pytest.mark.parametrize("given", [3, -1, "pre", "FORWARD", "backward_pre", None, 1.5])
def test_v8_anything_else_is_an_error_that_lists_the_members(given):
    """A `ValueError`, as of any enumeration."""
    _, _, hooks = wrapped_linear()

    with pytest.raises(ValueError, match="is not a kind of hook") as caught:
        hooks.add(given, print)
    assert isinstance(caught.value, HookValueError)
    for kind in HookKind:
        assert f"'{kind.name}' ({kind.value})" in str(caught.value)
    assert len(hooks.registry) == 0


def test_v9_the_names_of_the_source_exist():
    """Where a user looks for them: at the top of the package."""
    names = [
        *("HookHandle", "HookRegistry", "HookKind", "BackwardHookGate"),
        *("ForwardPreHook", "ForwardHook", "BackwardHook", "with_hooks"),
    ]
    for name in names:
        assert getattr(hookline, name).__name__ == name
    for protocol in (hookline.ForwardPreHook, hookline.ForwardHook, hookline.BackwardHook):
        assert protocol._is_protocol


@pytest.mark.parametrize("kind", list(HookKind))
def test_v9_a_hook_that_cannot_be_called_is_refused_at_once(kind):
    """Nothing is registered."""
    _, _, hooks = wrapped_linear()

    with pytest.raises(HookTypeError, match="must be callable"):
        hooks.add(kind, "print")
    assert len(hooks.registry) == 0


# V10: what hooks get and give.


def test_v10_none_means_unchanged_for_every_kind(x):
    """The very objects go through."""
    bare, layer, hooks = wrapped_linear()
    for kind in HookKind:
        hooks.add(kind, lambda *_: None)

    found = gradients(layer, x)

    assert all(map(torch.equal, found, gradients(bare, x)))
    identity, hooks = with_hooks(nn.Identity())
    hooks.add_forward_pre_hook(lambda value: None)
    hooks.add_forward_hook(lambda value, out: None)
    assert identity(x) is x


@pytest.mark.parametrize("value", [None, (1, 2), [3], {"a": 1}, 0.5, "text"])
def test_v10_a_single_positional_argument_is_given_bare_whatever_it_is(value):
    """Also a tuple, and None."""
    layer, hooks = with_hooks(nn.Identity())
    seen = []
    hooks.add_forward_pre_hook(seen.append)
    hooks.add_forward_hook(lambda given, out: seen.append(given))

    assert layer(value) is value
    assert [given is value for given in seen] == [True, True]


def test_v10_a_pre_hook_may_give_any_value_for_a_single_argument():
    """A tuple is a value here, not a list of arguments."""
    layer, hooks = with_hooks(nn.Identity())
    hooks.add_forward_pre_hook(lambda value: (value, value))

    assert layer(1) == (1, 1)


def test_v10_several_or_keyword_arguments_come_as_inputs(x):
    """To pre-hooks and to post-hooks."""
    layer, hooks = with_hooks(Attend())
    seen = []
    hooks.add_forward_pre_hook(seen.append)
    hooks.add_forward_hook(lambda value, out: seen.append(value))

    layer(x, x + 1)
    layer(x, key=x, scale=2.0)

    assert [type(value) for value in seen] == [Inputs] * 4
    assert [len(value.args) for value in seen] == [2, 2, 1, 1]
    assert seen[0].args[0] is x
    assert seen[2].kwargs == {"key": x, "scale": 2.0}


def test_v10_a_pre_hook_returns_inputs_for_several_arguments(x):
    """It may change, move, add and drop them; the next one and the layer get those."""
    layer, hooks = with_hooks(Attend())
    seen = []
    hooks.add_forward_pre_hook(
        lambda value: Inputs((value.args[0] + 1,), {"key": value.args[1], **value.kwargs})
    )
    hooks.add_forward_pre_hook(seen.append)
    hooks.add_forward_pre_hook(
        lambda value: Inputs(value.args, {**value.kwargs, "mask": torch.zeros(10)})
    )
    hooks.add_forward_hook(lambda value, out: seen.append(value))

    assert torch.equal(layer(x, x, scale=2.0), torch.zeros(3, 10))
    assert list(seen[0].kwargs) == ["key", "scale"]
    assert list(seen[1].kwargs) == ["key", "scale", "mask"]


def test_v10_a_pre_hook_may_give_inputs_for_a_single_argument(x):
    """To add arguments to a call that had but one."""
    layer, hooks = with_hooks(nn.Softmax(dim=0))
    hooks.add_forward_pre_hook(lambda value: Inputs((value * 2,)))
    assert torch.equal(layer(x), (x * 2).softmax(0))

    layer, hooks = with_hooks(Attend())
    hooks.add_forward_pre_hook(lambda value: Inputs((value,), {"key": value}))
    assert torch.equal(layer(x), x * x)


@pytest.mark.parametrize("given", [torch.ones(3, 10), (1, 2), {"key": 1}, [1]])
def test_v10_something_else_than_inputs_for_several_arguments_is_refused(x, given):
    """It could be meant for any of them."""
    layer, hooks = with_hooks(Attend())

    def careless(value):
        return given

    hooks.add_forward_pre_hook(careless)

    with pytest.raises(TypeError, match=r"must return Inputs\(args, kwargs\)") as caught:
        layer(x, x)
    assert isinstance(caught.value, HooklineError)
    assert "careless of Attend, call 0" in str(caught.value)


@pytest.mark.parametrize("wrong", [([1, 2], {}), ((1,), [2]), (torch.ones(2), None), ((1,), 3)])
def test_v10_inputs_takes_a_tuple_and_a_dict(wrong):
    """A list of arguments, or a tensor that would be taken apart, is refused when made."""
    with pytest.raises(HookTypeError, match=r"Inputs takes a tuple .* and a dict"):
        Inputs(*wrong)


def test_v10_a_post_hook_gives_the_output_as_a_whole():
    """A structured output is replaced by one, and a plain value for a tensor is refused."""
    layer, hooks = with_hooks(nn.LSTM(3, 4))
    hooks.add_forward_hook(lambda value, out: out[0])
    assert layer(torch.ones(2, 3)).shape == (2, 4)

    layer, hooks = with_hooks(nn.ReLU())
    hooks.add_forward_hook(lambda value, out: True)
    with pytest.raises(HookTypeError, match="only observes must return None"):
        layer(torch.ones(1))


# Living with what stands around the layer.


def test_in_place_operations_after_the_layer_stay_legal(x):
    """On an output with backward hooks; the gradient is that of the value before."""
    bare, layer, hooks = wrapped_linear()
    seen = []
    hooks.add_backward_hook(lambda grad: seen.append(grad.clone()))

    out = layer(x)
    out.add_(1).mul_(3)
    F.relu_(out)
    out.sum().backward()

    plain = bare(x)
    expected = 3.0 * (plain + 1 > 0)
    assert torch.equal(seen[0], expected)
    assert torch.equal(bare.bias.grad, expected.sum(0))


def test_layers_that_work_in_place_can_be_wrapped(x):
    """`ReLU(inplace=True)` overwrites what its pre-hook gave."""
    bare, layer, hooks = wrapped_linear()
    relu, relu_hooks = with_hooks(nn.ReLU(inplace=True))
    relu_hooks.add_forward_pre_hook(lambda value: value + 1)
    relu_hooks.add_backward_hook(lambda grad: grad * 2)
    hooks.add_backward_hook(lambda grad: grad * 3)

    out = relu(layer(x))
    out.sum().backward()

    plain = bare(x)
    assert torch.equal(out, (plain + 1).relu())
    assert torch.equal(bare.bias.grad, (6.0 * (plain + 1 > 0)).sum(0))


def test_a_hook_may_call_the_bare_layer_and_other_modules(x):
    """A post-hook that adds what the bare layer makes of something else."""
    bare, layer, hooks = wrapped_linear()
    other = nn.Linear(5, 5)
    hooks.add_forward_hook(lambda value, out: out + other(bare(value * 2)))

    assert torch.equal(layer(x), bare(x) + other(bare(x * 2)))


def test_parts_of_a_language_model_can_be_wrapped():
    """Blocks called with keywords, and the head; observing changes no bit."""
    torch.manual_seed(0)
    config = GPT2Config(n_layer=2, n_head=2, n_embd=16, vocab_size=50, n_positions=16)
    bare = GPT2LMHeadModel(config).eval()
    model = copy.deepcopy(bare)
    tokens = torch.randint(50, (2, 7))
    calls = []
    for index in range(2):
        model.transformer.h[index], hooks = with_hooks(model.transformer.h[index])
        hooks.add_forward_pre_hook(lambda value: calls.append(type(value)))
        hooks.add_backward_hook(lambda grad: calls.append(tuple(grad.shape)))
    model.lm_head, hooks = with_hooks(model.lm_head)
    hooks.add_forward_hook(lambda value, out: calls.append(tuple(out.shape)))

    found, expected = model(tokens, labels=tokens), bare(tokens, labels=tokens)
    found.loss.backward()
    expected.loss.backward()

    assert torch.equal(found.logits, expected.logits)
    for one, other in zip(model.parameters(), bare.parameters(), strict=True):
        assert torch.equal(one.grad, other.grad)
    assert calls == [Inputs, Inputs, (2, 7, 50), (2, 7, 16), (2, 7, 16)]
    assert list(model.state_dict()) == list(bare.state_dict())
