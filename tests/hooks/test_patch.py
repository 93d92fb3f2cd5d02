"""Patching changes what flows just as asked, and only while it is on."""

import copy
import pickle
from dataclasses import dataclass
from typing import NamedTuple

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import hookline
from hookline import edits, patch
from hookline.edits import add, apply, clamp, head, mean, replace, scale, zero
from hookline.torch_base.tree import tensors


class Pair(NamedTuple):
    first: torch.Tensor
    second: torch.Tensor


@dataclass
class Result:
    logits: torch.Tensor
    states: tuple
    note: str = "kept"


class Many(nn.Module):
    """Hands out every kind of structure."""

    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.b = nn.Linear(4, 4)
        self.kind = "tuple"

    def forward(self, x, shift=None, *, mask=None):
        x = x if shift is None else x + shift
        x = x if mask is None else x * mask
        a, b = self.a(x), self.b(x)
        return {
            "tuple": (a, [b, 3]),
            "dict": {"a": a, "b": {"c": b}, "n": None},
            "pair": Pair(a, b),
            "result": Result(a, (b, a)),
        }[self.kind]


class Holder(nn.Module):
    """A model around it, which sees what its part hands out."""

    def __init__(self, part):
        super().__init__()
        self.part = part

    def forward(self, *args, **kwargs):
        return self.part(*args, **kwargs)


@pytest.fixture
def mlp():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))


@pytest.fixture
def many():
    torch.manual_seed(0)
    return Holder(Many())


X = torch.linspace(-1, 1, 8).reshape(2, 4)
VECTOR = torch.arange(6.0)

EDITS = {
    "zero": (zero(), torch.zeros_like),
    "mean": (mean(0), lambda t: torch.stack([sum(t) / len(t)] * len(t))),
    "mean over all": (mean((0, 1)), lambda t: t.mean() * torch.ones_like(t)),
    "scale": (scale(-2.5), lambda t: t * -2.5),
    "scale by tensor": (scale(VECTOR), lambda t: torch.stack([row * VECTOR for row in t])),
    "add": (add(VECTOR), lambda t: torch.stack([row + VECTOR for row in t])),
    "add number": (add(1), lambda t: t + 1),
    "clamp": (
        clamp(-0.1, 0.2),
        lambda t: t.where(t > -0.1, torch.tensor(-0.1)).minimum(torch.tensor(0.2)),
    ),
    "clamp from below": (clamp(0.0), torch.relu),
    "clamp from above": (clamp(max=0.0), lambda t: -torch.relu(-t)),
    "replace": (replace(torch.ones(2, 6)), lambda t: torch.ones(2, 6)),
    "replace broadcast": (
        replace(VECTOR, broadcast=True),
        lambda t: torch.stack([VECTOR, VECTOR]),
    ),
    "replace by number": (replace(2), lambda t: torch.full_like(t, 2.0)),
    "bare tensor": (torch.ones(2, 6), lambda t: torch.ones(2, 6)),
    "bare number": (0.5, lambda t: torch.full_like(t, 0.5)),
    "function": (lambda t: t.sin(), torch.sin),
    "function in place": (lambda t: t.mul_(3), lambda t: t * 3),
    "module": (nn.Softmax(dim=-1), lambda t: t.softmax(-1)),
    "last column": (zero(at=(slice(None), -1)), lambda t: torch.cat([t[:, :-1], t[:, :1] * 0], 1)),
    "by mask": (
        replace(9, at=torch.tensor([[True] * 6, [False] * 6])),
        lambda t: torch.stack([t[0] * 0 + 9, t[1]]),
    ),
    "by list": (
        add(1.0, at=(slice(None), [0, 2])),
        lambda t: t + torch.tensor([1.0, 0, 1, 0, 0, 0]),
    ),
    "part by value": (
        replace(torch.ones(2), at=(..., 1)),
        lambda t: torch.cat([t[:, :1], torch.ones(2, 1), t[:, 2:]], 1),
    ),
    "head": (zero(at=head(1, 3)), lambda t: t * torch.tensor([1.0, 1, 0, 0, 1, 1])),
    "heads": (scale(2.0, at=head([0, 2], 3)), lambda t: t * torch.tensor([2.0, 2, 1, 1, 2, 2])),
    "head of another dimension": (
        zero(at=head(0, 2, dim=0)),
        lambda t: torch.stack([t[0] * 0, t[1]]),
    ),
    "mean of a head": (
        mean(0, at=head(-1, 3)),
        lambda t: torch.cat([t[:, :4], t[:, 4:].mean(0).repeat(2, 1)], 1),
    ),
    "list": ([add(1.0), scale(2.0)], lambda t: (t + 1) * 2),
    "list in the other order": ([scale(2.0), add(1.0)], lambda t: t * 2 + 1),
}


@pytest.mark.parametrize("name", EDITS)
def test_every_edit_equals_plain_torch(mlp, name):
    """Each edit does what a line of plain torch does, and the rest of the model runs on that."""
    given, plain = EDITS[name]
    hidden = mlp[0](X)
    expected = mlp[2](mlp[1](plain(hidden)))

    with patch(mlp, {"0": given}):
        patched = mlp(X)

    torch.testing.assert_close(patched, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", [n for n in EDITS if isinstance(EDITS[n][0], edits.Edit)])
def test_an_edit_can_be_tried_on_a_tensor_and_leaves_it_as_it_is(name):
    """Called by itself, an edit gives the new value in new memory."""
    given, plain = EDITS[name]
    value = torch.randn(2, 6)
    before = value.clone()

    torch.testing.assert_close(given(value), plain(value))
    assert torch.equal(value, before)


@pytest.mark.parametrize("name", EDITS)
def test_the_model_is_as_before_bit_for_bit(mlp, name):
    """R2: after the scope, outputs and gradients are those of the unpatched model."""

    def step():
        mlp.zero_grad()
        out = mlp(X)
        out.square().sum().backward()
        return [out.detach(), *(p.grad.clone() for p in mlp.parameters())]

    before = step()
    with patch(mlp, {"0": EDITS[name][0]}), torch.no_grad():
        mlp(X)
    after = step()

    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert not hookline.hooks_of(mlp)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in mlp.modules())


def test_close_ends_it_at_once_and_twice(mlp):
    """Without `with`, a patch is on until it is closed."""
    before = mlp(X)
    patched = patch(mlp, {"1": zero()})
    assert torch.equal(mlp(X), mlp[2].bias.expand(2, 3))
    patched.close()
    patched.close()
    assert patched.closed
    assert torch.equal(mlp(X), before)
    with pytest.raises(hookline.HookValueError, match="this patch is closed"), patched:
        pass


def test_it_ends_where_the_block_raises(mlp):
    """An error in the block comes out as it is, and the patch is gone."""
    error = RuntimeError("mine")
    with pytest.raises(RuntimeError) as caught, patch(mlp, {"0": zero()}):
        raise error
    assert caught.value is error
    assert not hookline.hooks_of(mlp)


# What is changed: outputs, inputs, gradients, leaves.


@pytest.mark.parametrize(
    ("kind", "on", "read"),
    [
        ("tuple", "output[0]", lambda out: out[0]),
        ("tuple", "output[1][0]", lambda out: out[1][0]),
        ("dict", "output['a']", lambda out: out["a"]),
        ("dict", 'output["b"]["c"]', lambda out: out["b"]["c"]),
        ("pair", "output.second", lambda out: out.second),
        ("result", "output.logits", lambda out: out.logits),
        ("result", "output.states[1]", lambda out: out.states[1]),
    ],
)
def test_r7_one_leaf_is_changed_and_the_container_keeps_its_type(many, kind, on, read):
    """Only the named leaf differs; types and what is no tensor stay."""
    many.part.kind = kind
    plain = many(X)
    with patch(many, {"part": add(1.0, on=on)}):
        out = many(X)

    assert type(out) is type(plain)
    assert torch.equal(read(out), read(plain) + 1)
    changed = [not torch.equal(a, b) for a, b in zip(tensors(plain), tensors(out), strict=True)]
    assert changed.count(True) == 1
    if kind == "tuple":
        assert type(out[1]) is list
        assert out[1][1] == 3
    if kind == "result":
        assert out.note == "kept"


def test_all_leaves_are_changed_by_default(many):
    """`output` means every tensor in it."""
    plain = tensors(many(X))
    with patch(many, {"part": scale(3.0)}):
        out = tensors(many(X))
    assert all(torch.equal(a * 3, b) for a, b in zip(plain, out, strict=True))


def test_a_captured_structure_replaces_another(many):
    """What was captured in a clean run takes the place of what a corrupted one makes."""
    many.part.kind = "dict"
    with hookline.capture(many, "part") as clean:
        expected = many(X)
    with patch(many, {"part": replace(clean["part"].output)}):
        out = many(-X)
    assert torch.equal(out["a"], expected["a"])
    assert torch.equal(out["b"]["c"], expected["b"]["c"])

    with (
        patch(many, {"part": replace({"a": expected["a"]})}),
        pytest.raises(hookline.HookValueError, match=r"output\['b'\]\['c'\].*has no tensor"),
    ):
        many(X)


@pytest.mark.parametrize(
    ("on", "args", "kwargs"),
    [
        ("input", (X,), {}),
        ("input[0]", (X,), {}),
        ("input.args[0]", (X,), {}),
        ("input.x", (X,), {}),
        ("input[0]", (X, torch.ones(4)), {}),
        ("input.x", (X, torch.ones(4)), {}),
        ("input.args[0]", (X,), {"mask": torch.ones(4)}),
        ("input.x", (X,), {"mask": torch.ones(4)}),
        ("input.x", (), {"x": X, "mask": torch.ones(4)}),
        ("input['x']", (), {"x": X}),
        ("input.kwargs['x']", (), {"x": X}),
    ],
)
def test_an_input_is_named_by_place_or_by_name(many, on, args, kwargs):
    """However an argument is passed, its name finds it."""
    ones = {name: value if name != "x" else X + 2 for name, value in kwargs.items()}
    expected = many(*((X + 2, *args[1:]) if args else ()), **ones)
    with patch(many, {"part": add(2.0, on=on)}):
        out = many(*args, **kwargs)
    assert torch.equal(out[0], expected[0])


def test_a_keyword_argument_is_changed(many):
    """An argument that is given by keyword only."""
    mask = torch.tensor([1.0, 0, 1, 0])
    expected = many(X, mask=torch.zeros(4))
    with patch(many, {"part": zero(on="input.mask")}):
        out = many(X, mask=mask)
    assert torch.equal(out[0], expected[0])
    assert mask.tolist() == [1.0, 0, 1, 0]


def test_an_input_that_is_a_container(mlp):
    """A leaf of a structure in the inputs; the structure stays what it was."""
    seen = []

    class Sum(nn.Module):
        def forward(self, pair):
            seen.append(type(pair))
            return pair.first + 10 * pair.second

    model = Holder(Sum())
    with patch(model, {"part": zero(on="input.second")}):
        out = model(Pair(X, X))
    assert seen == [Pair]
    assert torch.equal(out, X)


def test_a_gradient_is_changed_as_autograd_would(mlp):
    """The gradient of an output, against autograd by hand."""
    hidden = mlp[0](X)
    hidden.retain_grad()
    mlp[2](mlp[1](hidden)).square().sum().backward()
    expected = torch.autograd.grad(mlp[0](X), mlp[0].weight, hidden.grad * 2 + 1)[0]
    unchanged = mlp[2].weight.grad.clone()

    mlp.zero_grad()
    with patch(mlp, {"0": [scale(2.0, on="grad"), add(1.0, on="grad[0]")]}):
        mlp(X).square().sum().backward()

    torch.testing.assert_close(mlp[0].weight.grad, expected)
    assert torch.equal(mlp[2].weight.grad, unchanged)


@pytest.mark.parametrize("leaf", [0, 1])
def test_the_gradient_of_one_of_several_outputs(many, leaf):
    """Also where the outputs come from different nodes, whose gradients arrive one by one."""
    on = ["grad[0]", "grad[1][0]"][leaf]
    part = many.part
    with patch(many, {"part": scale(5.0, on=on)}):
        a, (b, _) = many(X)
        (a.square().sum() + b.sin().sum()).backward()
    got = part.a.weight.grad.clone(), part.b.weight.grad.clone()

    part.zero_grad()
    a, (b, _) = many(X)
    factor = [1.0, 1.0]
    factor[leaf] = 5.0
    (factor[0] * a.square().sum() + factor[1] * b.sin().sum()).backward()
    torch.testing.assert_close(got, (part.a.weight.grad, part.b.weight.grad))


def test_an_output_that_gets_no_gradient_is_left_alone(many):
    """A patch on all gradients changes those that there are."""
    with patch(many, {"part": scale(3.0, on="grad")}):
        many(X)[0].sum().backward()
    assert torch.allclose(many.part.a.bias.grad, torch.full((4,), 6.0))
    assert many.part.b.bias.grad is None


@pytest.mark.parametrize(
    ("edit", "factor"),
    [(zero(), None), (add(VECTOR), 1.0), (scale(3.0), 3.0), (replace(1.0), None)],
)
def test_gradients_flow_through_edits_where_they_can(mlp, edit, factor):
    """Zero and replace cut the gradient, add keeps and scale multiplies it."""
    with patch(mlp, {"0": edit}):
        out = mlp[2](mlp[0](X))
    out.sum().backward()
    if factor is None:
        assert mlp[0].weight.grad is None
    else:
        expected = torch.autograd.grad(factor * mlp[2](mlp[0](X)).sum(), mlp[0].weight)[0]
        torch.testing.assert_close(mlp[0].weight.grad, expected)


def test_zero_of_a_part_cuts_the_gradient_of_that_part_only(mlp):
    """The rest of the tensor keeps its gradient."""
    with patch(mlp, {"0": zero(at=head(0, 3))}):
        mlp[0](X).sum().backward()
    grad = mlp[0].bias.grad
    assert grad.tolist() == [0, 0, 2, 2, 2, 2]


def test_a_steering_vector_can_be_trained(mlp):
    """What is added gets a gradient itself."""
    vector = torch.zeros(6, requires_grad=True)
    with patch(mlp, {"0": add(vector)}):
        mlp(X).sum().backward()
    hidden = mlp[0](X).detach().requires_grad_()
    expected = torch.autograd.grad(mlp[2](mlp[1](hidden)).sum(), hidden)[0].sum(0)
    torch.testing.assert_close(vector.grad, expected)


def test_a_gradient_that_comes_too_late_is_refused(many):
    """Where it flowed on before the edit could be made, nothing is silently left out."""

    class Spread(nn.Module):
        def forward(self, x):
            a, b = torch.broadcast_tensors(x[:1], x[:, :1])  # each with its own node
            return a.sin() + b

    model = Holder(Spread())
    x = X.clone().requires_grad_()
    with (
        patch(model, {"part:broadcast_tensors": scale(2.0, on="grad")}),
        pytest.raises(
            hookline.HookValueError, match=r"grad\[\d\] of function part:.* after others"
        ),
    ):
        model(x).sum().backward()

    with hookline.watch(many, hookline.module_hooks.TimerHook()):
        a, (b, _) = many(X)
    with (
        patch(many, {"part": scale(2.0, on="grad")}),  # after the forward: too late for both
        pytest.raises(hookline.HookValueError, match=r"grad.* of part \(Many\), call 0: .*others"),
    ):
        (a.sum() + b.sum()).backward()


def test_no_tensor_of_the_model_or_the_user_is_written_into():
    """Edits work on copies, and what they put there is the model's to overwrite."""
    value = torch.full((2, 4), -1.0)
    model = nn.Sequential(nn.Identity(), nn.ReLU(inplace=True))
    x = torch.ones(2, 4)
    with patch(model, {"0": [lambda t: t.zero_(), replace(value)]}):
        out = model(x)
    assert torch.equal(out, torch.zeros(2, 4))
    assert torch.equal(x, torch.ones(2, 4))
    assert torch.equal(value, torch.full((2, 4), -1.0))
    with patch(model, {"0": mean(0)}):  # its result can be written into
        assert torch.equal(model(x), torch.ones(2, 4))


# Which calls.


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Identity()

    def forward(self, x):
        return torch.stack([self.layer(x), self.layer(x), self.layer(x)])


@pytest.mark.parametrize(
    ("calls", "changed"),
    [
        (0, [0]),
        (4, [4]),
        ({1, 5}, [1, 5]),
        (range(2, 4), [2, 3]),
        ([3], [3]),
        (slice(1, None), [1, 2, 3, 4, 5]),
        (slice(None, 2), [0, 1]),
        (slice(0, 6, 2), [0, 2, 4]),
        (lambda call: call.index == 1, [1, 4]),
        (lambda call: call.pass_number % 2 == 1, [3, 4, 5]),
        (None, [0, 1, 2, 3, 4, 5]),
    ],
)
def test_calls_are_numbered_from_when_the_patch_is_on(calls, changed):
    """Numbers go on over passes; a predicate gets the call itself."""
    model = Twice()
    before = model(torch.zeros(()))  # not counted: the patch is not on
    with patch(model, {"layer": add(1.0, calls=_shifted(calls))}):
        rows = [model(torch.zeros(())), model(torch.zeros(()))]
    assert before.tolist() == [0, 0, 0]
    assert [n for n, value in enumerate(torch.cat(rows).tolist()) if value] == changed


def _shifted(calls):
    if not callable(calls):
        return calls
    seen = {}

    def predicate(call):
        number = seen.setdefault(call.pass_number, len(seen))
        fake = type("Fake", (), {"index": call.index, "pass_number": number})
        return calls(fake)

    return predicate


def test_gradients_are_changed_in_the_calls_asked_for():
    """A gradient belongs to the call of its forward."""
    model, x = Twice(), torch.zeros(3, requires_grad=True)
    with patch(model, {"layer": scale(10.0, on="grad", calls=1)}):
        (model(x) * torch.tensor([[1.0], [2.0], [3.0]])).sum().backward()
    assert x.grad.tolist() == [24, 24, 24]


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_checkpointed_forward_is_changed_alike_both_times(reentrant):
    """The recomputed call has the number of the first, so gradients fit the outputs."""
    torch.manual_seed(0)
    layer = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    edit = apply(lambda t: t.sin() * 2, calls={0, 2})

    def run(call):
        layer.zero_grad()
        x = X.clone().requires_grad_()
        with patch(layer, {"0": edit}):
            out = call(call(call(x)))
            out.sum().backward()
        return out.detach(), x.grad, layer[0].weight.grad.clone()

    plain = run(layer)
    again = run(lambda x: checkpoint(layer, x, use_reentrant=reentrant))
    torch.testing.assert_close(plain, again)


def test_a_function_may_ask_for_the_call(mlp):
    """`with_call=True` hands over the call: its path and number."""
    seen = []

    def note(value, call):
        seen.append((call.path, call.index))
        return value

    with patch(mlp, {"*": apply(note, with_call=True)}):
        mlp(X)
    assert seen == [("0", 0), ("1", 0), ("2", 0)]


# Order.


def test_r6_order_is_that_of_registration_and_can_be_read(mlp):
    """Later patches see the result of earlier ones, unless they are prepended."""
    value = mlp[0](X)
    with patch(mlp, {"0": [add(1.0), scale(2.0)], nn.Linear: scale(10.0)}) as one:
        first = mlp[0](X)
        with patch(mlp, {"0": add(5.0)}):
            second = mlp[0](X)
        with patch(mlp, {"0": add(5.0)}, prepend=True):
            third = mlp[0](X)
    torch.testing.assert_close(first, (value + 1) * 2 * 10)
    torch.testing.assert_close(second, (value + 1) * 2 * 10 + 5)
    torch.testing.assert_close(third, (value + 5 + 1) * 2 * 10)

    listed = [(path, repr(edit)) for path, edit in one.edits]
    assert listed == [
        ("0", "<Edit add(1.0)>"),
        ("0", "<Edit scale(2.0)>"),
        ("0", "<Edit scale(10.0)>"),
        ("2", "<Edit scale(10.0)>"),
    ]
    assert (
        repr(one)
        == "\n  ".join(["<Patch, closed", *(f"{path!r}: {edit}" for path, edit in listed)]) + ">"
    )


def test_other_hooks_see_the_result_of_those_before_them(mlp):
    """A capture that is opened later has the patched value, an earlier one the plain."""
    plain = mlp[0](X)
    with (
        hookline.capture(mlp, "0") as before,
        patch(mlp, {"0": zero()}),
        hookline.capture(mlp, "0") as after,
    ):
        mlp(X)
    assert torch.equal(before["0"].output, plain)
    assert torch.equal(after["0"].output, torch.zeros(2, 6))


def test_repr_says_all_of_an_edit():
    """What is changed, where and when."""
    edit = clamp(-1.0, 1.0, on="output[0]", at=(slice(None), -1, ...), calls=slice(1, None))
    assert repr(edit) == "<Edit clamp(-1.0, 1.0) on='output[0]' at=[:, -1, ...] calls=[1:]>"
    assert repr(zero(at=head(3, 12))) == "<Edit zero() at=head(3, 12)>"
    assert repr(add(torch.ones(3), calls={1})) == "<Edit add(float32[3]) calls={1}>"


# Functions.


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return x + torch.relu(self.layer(x)) + x


def test_a_function_is_patched_by_address(mlp):
    """`0:linear[0]` is the linear of that layer."""
    expected = mlp[2](mlp[1](mlp[0](X) * 2))
    with patch(mlp, {"0:linear[0]": scale(2.0)}) as patched:
        out = mlp(X)
    torch.testing.assert_close(out, expected)
    assert not patched.silent()


def test_a_residual_is_patched_by_address():
    """The sum of a skip connection and its branch is no module's output."""
    model = nn.Sequential(Residual())
    x, branch = X, torch.relu(model[0].layer(X))
    with patch(model, {"0:add[0]": scale(3.0)}):
        out = model(x)
    torch.testing.assert_close(out, (x + branch) * 3 + x)
    with patch(model, {"0:add[1]": zero(on="input[1]"), "0:relu": add(1.0)}):
        out = model(x)
    torch.testing.assert_close(out, x + branch + 1)
    assert torch.equal(model(x), x + branch + x)


def test_gradients_of_functions():
    """The gradient of a function's output, against autograd by hand."""
    model = nn.Sequential(Residual())
    model(X).sum().backward()
    expected = model[0].layer.weight.grad * 7
    model.zero_grad()
    with patch(model, {"0:relu": scale(7.0, on="grad")}):
        model(X).sum().backward()
    torch.testing.assert_close(model[0].layer.weight.grad, expected)


def test_calls_of_functions_are_numbered_too():
    """By function, over passes."""
    model = nn.Sequential(Residual())
    plain = model(X)
    with patch(model, {"0:add": zero(calls={1, 2})}):
        outs = [model(X), model(X), model(X)]
    assert torch.equal(outs[0], torch.zeros(2, 4))
    torch.testing.assert_close(outs[1], X)
    assert torch.equal(outs[2], plain)


def test_several_outputs_of_a_function():
    """One leaf of what a function returns; the type stays that of torch."""

    class Top(nn.Module):
        def forward(self, x):
            return torch.max(x, dim=1)

    model = Holder(Top())
    with patch(model, {"part:max": add(1.0, on="output.values")}):
        out = model(X)
    plain = torch.max(X, dim=1)
    assert type(out) is type(plain)
    assert torch.equal(out.values, plain.values + 1)
    assert torch.equal(out.indices, plain.indices)


def test_both_levels_in_one_patch(mlp):
    """Addresses and paths may stand in one patch."""
    with patch(mlp, {"0:linear": zero(), "2": add(1.0)}) as patched:
        out = mlp(X)
    torch.testing.assert_close(out, (mlp[2].bias + 1).expand(2, 3))
    assert [path for path, _ in patched.edits] == ["0:linear", "2"]


def test_a_function_that_writes_in_place_has_no_output_of_its_own():
    """`x[0] = 1` returns nothing, and a patch on it says so."""

    class Write(nn.Module):
        def forward(self, x):
            x = x.clone()
            x[0] = 1
            return x

    model = Holder(Write())
    with (
        patch(model, {"part:setitem": zero()}),
        pytest.raises(hookline.HookValueError, match=r"no tensor at 'output' of function part:set"),
    ):
        model(X)


# Scoped hooks.


def test_patch_hooks_work_as_scopes_and_on_one_module(mlp):
    """As every ready-made hook."""
    from hookline.function_hooks import PatchHook as FunctionPatchHook
    from hookline.module_hooks import PatchHook

    with PatchHook(apply(torch.cos)):
        out = mlp[1](X)
    assert torch.equal(out, X.relu().cos())
    hookline.add_hook(mlp[1], PatchHook(zero()))
    assert not mlp[1](X).any()
    hookline.delete_hook(mlp[1], "PatchHook")
    with FunctionPatchHook(scale(2.0)) as hook:
        out = torch.exp(X)
    assert torch.equal(out, X.exp() * 2)
    assert repr(hook) == "<PatchHook: <Edit scale(2.0)>>"
    assert [repr(edit) for edit in hook.edits] == ["<Edit scale(2.0)>"]


# Before other libraries' hooks.


def test_r6_first_comes_before_hooks_of_others(mlp):
    """Hooks of torch's own see the patched value with `first=True`, else the plain one."""
    plain, seen = mlp[0](X), []
    handle = mlp[0].register_forward_hook(lambda module, args, out: seen.append(out))
    try:
        with patch(mlp, {"0": zero()}):
            out = mlp(X)
        with patch(mlp, {"0": zero()}, first=True):
            again = mlp(X)
            assert list(mlp[0]._forward_hooks) == [handle.id]  # nothing stays between calls
            copied = copy.deepcopy(mlp)
    finally:
        handle.remove()
    assert torch.equal(seen[0], plain)
    assert torch.equal(seen[1], torch.zeros(2, 6))
    assert torch.equal(out, again)
    assert len(copied[0]._forward_hooks) == 1
    assert not mlp[0]._forward_hooks


def test_r6_first_leaves_nothing_where_the_call_raises():
    """Neither where the layer raises, nor where the edit does, nor where it is closed meanwhile."""

    class Fails(nn.Module):
        what = "raise"

        def forward(self, x):
            if self.what == "close":
                current.close()
            if self.what != "fine":
                raise KeyboardInterrupt
            return x

    model = Holder(Fails())
    part = model.part
    for what in ("raise", "close"):
        part.what = what
        current = patch(model, {"part": zero()}, first=True)
        with pytest.raises(KeyboardInterrupt):
            model(X)
        assert not part._forward_hooks
        current.close()
    part.what = "fine"

    def fail(value):
        raise error

    error = OSError("mine")

    with patch(model, {"part": fail}, first=True), pytest.raises(OSError, match="mine") as caught:
        model(X)
    assert caught.value.__notes__ == [
        "hookline: raised by a patch in front of part (Fails), call 0"
    ]
    assert not part._forward_hooks
    assert torch.equal(model(X), X)


def test_r6_first_with_a_module_that_calls_itself_and_with_threads():
    """The hook of one call leaves other calls of the module alone."""
    from threading import Barrier, Thread

    class Nested(nn.Module):
        def __init__(self):
            super().__init__()
            self.barrier = None

        def forward(self, depth):
            if self.barrier:
                self.barrier.wait(10)
            return depth + self(depth - 1) if float(depth) > 0 else depth

    model = nn.Sequential(Nested())
    with patch(model, {"0": add(1.0)}, first=True):
        assert float(model(torch.tensor(2.0))) == 2 + (1 + (0 + 1) + 1) + 1

        model[0].barrier, results = Barrier(2), {}

        def work(number):
            results[number] = float(model(torch.tensor(-float(number))))

        threads = [Thread(target=work, args=(number,)) for number in (1, 2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert results == {1: 0.0, 2: -1.0}
    assert not model[0]._forward_hooks


def test_first_keeps_gradients_and_goes_with_gradient_edits(mlp):
    """Gradients are those of a patch that is not first."""

    def run(**options):
        mlp.zero_grad()
        with patch(mlp, {"0": [scale(2.0), scale(3.0, on="grad")]}, **options):
            mlp(X).sum().backward()
        return [p.grad.clone() for p in mlp.parameters()]

    torch.testing.assert_close(run(first=True), run())


@pytest.mark.parametrize("first", [False, True])
def test_c11_what_an_edit_computes_fires_no_hooks(mlp, first):
    """Function hooks see the model's functions only, wherever the edit is made."""
    seen = []

    class Log(hookline.FunctionHook):
        def forward_preprocess(self, function, in_data):
            seen.append(function.label)

    with patch(mlp, {"0": [add(1.0), lambda t: t.sin()]}, first=first), Log():
        mlp(X)
    assert seen == ["0:linear[0]", "1:relu[0]", "2:linear[0]"]


def test_first_works_inside_the_wrapper_of_a_layer():
    """A layer with value hooks is changed once."""
    layer, hooks = hookline.with_hooks(nn.Identity())
    hooks.add_forward_hook(lambda inputs, out: out * 2)
    model = nn.Sequential(layer)
    with patch(model, {"0": add(1.0)}, first=True):
        assert torch.equal(model(X), (X + 1) * 2)


# Everything else goes on.


def test_r4_copies_and_pickles_of_a_patched_model_are_plain(mlp):
    """Nothing of a patch travels."""
    plain = mlp(X)
    with patch(mlp, {"0": zero()}, first=True), patch(mlp, {"1": zero()}):
        copies = copy.deepcopy(mlp), pickle.loads(pickle.dumps(mlp))
    for each in copies:
        assert torch.equal(each(X), plain)


def test_r5_what_is_replaced_with_is_let_go(mlp):
    """A closed patch that is dropped keeps nothing alive."""
    import gc
    import weakref

    value = torch.ones(2, 6)
    gone = weakref.ref(value)
    with patch(mlp, {"0": replace(value)}) as patched:
        out = mlp(X)
    del value, patched
    gc.collect()
    assert gone() is None
    assert out.requires_grad


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_it_works_without_gradients(mlp, mode):
    """Under no_grad and in inference mode."""
    with mode(), patch(mlp, {"0": zero(at=head(0, 2)), "2": add(1.0)}):
        out = mlp(X)
    hidden = mlp[0](X) * torch.tensor([0.0, 0, 0, 1, 1, 1])
    torch.testing.assert_close(out, (mlp[2](hidden.relu()) + 1).detach())


def test_it_works_on_meta_tensors_autocast_and_vmap(mlp):
    """Where there are no numbers, other dtypes, or a batch dimension that is hidden."""
    meta = copy.deepcopy(mlp).to("meta")
    with patch(meta, {"0": [zero(at=head(0, 2)), add(1.0)]}):
        assert meta(X.to("meta")).shape == (2, 3)
    with patch(mlp, {"0": scale(2.0)}), torch.autocast("cpu", torch.bfloat16):
        out = mlp(X)
    assert out.dtype is torch.bfloat16
    with patch(mlp, {"0": [zero(at=head(0, 2)), scale(2.0)]}):
        expected = mlp(X)
        torch.testing.assert_close(torch.vmap(mlp)(X), expected)


def test_a_patch_uses_no_random_numbers(mlp):
    """R2: nor does anything of it show in the generator."""
    torch.manual_seed(3)
    expected = torch.rand(3)
    torch.manual_seed(3)
    with patch(mlp, {"0": [zero(), mean(), add(1.0)]}):
        mlp(X)
    assert torch.equal(torch.rand(3), expected)


def test_r9_what_never_ran_is_reported(mlp):
    """A patched module that is never called has a row with its cause."""
    with patch(mlp, {"0": zero(), "0:relu": zero()}) as patched:
        mlp(X)
    assert [(row.path, row.cause) for row in patched.silent()] == [("0:relu", "not called")]


# Errors.

WRONG = {
    "shape": (
        lambda t: t[:1],
        hookline.HookValueError,
        r"float32\[1, 6\] on cpu in place of float32\[2, 6\]",
    ),
    "dtype": (
        lambda t: t.double(),
        hookline.HookValueError,
        r"float64\[2, 6\].*dtype and device must stay",
    ),
    "device": (lambda t: t.to("meta"), hookline.HookValueError, r"on meta in place of .* on cpu"),
    "none": (lambda t: None, hookline.HookTypeError, r"gave None .*return the new value"),
    "number": (lambda t: 3, hookline.HookTypeError, r"gave 3 in place of float32\[2, 6\]"),
    "replace": (
        replace(torch.ones(6)),
        hookline.HookValueError,
        r"replace\(float32\[6\]\).*gave float32\[6\]",
    ),
    "broadcast": (
        replace(torch.ones(5), broadcast=True),
        hookline.HookValueError,
        r"cannot broadcast .*float32\[5\]",
    ),
    "add": (
        add(torch.ones(5)),
        hookline.HookValueError,
        r"cannot add float32\[2, 6\] with float32\[5\]",
    ),
    "add widens": (add(torch.ones(3, 2, 6)), hookline.HookValueError, r"gave float32\[3, 2, 6\]"),
    "add promotes": (add(torch.ones(6).double()), hookline.HookValueError, r"gave float64"),
    "at": (
        zero(at=(slice(None), 9)),
        hookline.HookValueError,
        r"at=\[:, 9\] is no part of float32\[2, 6\]",
    ),
    "head": (
        zero(at=head(0, 4)),
        hookline.HookValueError,
        r"head\(0, 4\) does not fit float32\[2, 6\]",
    ),
    "leaf": (
        zero(on="output[1]"),
        hookline.HookValueError,
        r"no tensor at 'output\[1\]'.*there is output float32\[2, 6\]",
    ),
    "input": (
        zero(on="input.y"),
        hookline.HookValueError,
        r"no tensor at 'input.y'.*there is input float32",
    ),
    "grad": (zero(on="grad[2]"), hookline.HookValueError, r"no tensor at 'grad\[2\]'"),
    "mean": (mean(5), hookline.HookValueError, r"cannot mean float32\[2, 6\]"),
}


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("name", WRONG)
def test_r10_what_does_not_fit_is_refused(mlp, name, first):
    """The error names the pattern, the path, the leaf and what was given."""
    edit, kind, text = WRONG[name]
    with patch(mlp, {"0": edit}, first=first), pytest.raises(kind, match=text) as caught:
        mlp(X)
    message = str(caught.value)
    assert "patch for '0': <Edit " in message
    assert "of 0 (Linear), call 0" in message
    assert not mlp[0]._forward_hooks


def test_r10_integers_are_not_scaled_to_fractions():
    """What a dtype cannot hold is refused, not rounded."""
    model = Holder(nn.Identity())
    numbers = torch.arange(4)
    for edit in (scale(0.5), replace(0.5)):
        with patch(model, {"part": edit}), pytest.raises(hookline.HookValueError, match="int64"):
            model(numbers)
    with patch(model, {"part": scale(2)}):
        assert model(numbers).tolist() == [0, 2, 4, 6]


def test_r3_errors_of_functions_keep_their_identity(mlp):
    """What a user's function raises comes out as it is, also hookline's own errors."""
    for error in (ZeroDivisionError("mine"), hookline.HookValueError("mine")):

        def fail(value, error=error):
            raise error

        with patch(mlp, {"0": fail}), pytest.raises(type(error)) as caught:
            mlp(X)
        assert caught.value is error
        assert "patch" in "".join(error.__notes__)
        assert "0 (Linear)" in "".join(error.__notes__)


@pytest.mark.parametrize(
    ("make", "kind", "text"),
    [
        (lambda m: patch(m, {"nope": zero()}), hookline.SelectionError, "nope"),
        (lambda m: patch(m, {}), hookline.HookTypeError, "takes a dict"),
        (lambda m: patch(m, zero()), hookline.HookTypeError, "takes a dict"),
        (lambda m: patch(m, {"0": None}), hookline.HookTypeError, "not None"),
        (lambda m: patch(m, {"0": []}), hookline.HookTypeError, "an edit is one of"),
        (lambda m: patch(m, {"0": zero}), hookline.HookTypeError, r"did you mean zero\(...\)"),
        (lambda m: patch(m, {"0": {"a": X}}), hookline.HookTypeError, r"write replace\(...\)"),
        (lambda m: patch("m", {"0": zero()}), hookline.HookTypeError, "torch.nn.Module"),
        (lambda m: zero(on="out"), hookline.HookValueError, "begins with 'output'"),
        (lambda m: zero(on="output["), hookline.HookValueError, "begins with 'output'"),
        (lambda m: zero(on=3), hookline.HookTypeError, "takes a path"),
        (lambda m: zero(calls=-1), hookline.HookValueError, "from 0"),
        (lambda m: zero(calls="0"), hookline.HookValueError, "from 0"),
        (lambda m: zero(calls=slice(-1, None)), hookline.HookValueError, "from 0"),
        (lambda m: zero(calls=[0.5]), hookline.HookValueError, "from 0"),
        (lambda m: zero(at="x"), hookline.HookTypeError, "tensor"),
        (lambda m: zero(at=True), hookline.HookTypeError, "tensor"),
        (lambda m: head(4, 4), hookline.HookValueError, "no head 4 of 4"),
        (lambda m: head(0, 0), hookline.HookValueError, "no head 0 of 0"),
        (lambda m: head("a", 4), hookline.HookTypeError, r"head\(0, 12\)"),
        (lambda m: add("a"), hookline.HookTypeError, "a number or a tensor"),
        (lambda m: clamp(), hookline.HookValueError, "needs a bound"),
        (lambda m: replace("a"), hookline.HookTypeError, "replace takes"),
        (lambda m: apply(3), hookline.HookTypeError, "takes a function"),
    ],
)
def test_r10_what_makes_no_patch_is_refused_at_once(mlp, make, kind, text):
    """Before the model runs, and nothing stays registered."""
    with pytest.raises(kind, match=text):
        make(mlp)
    assert not hookline.hooks_of(mlp)


def test_a_position_beyond_a_step_says_what_to_do(mlp):
    """In generation a position of the prompt is not there in the later steps."""
    edit = zero(at=(slice(None), 3))
    with pytest.raises(
        hookline.HookValueError, match=r"<Edit zero\(\).*is no part of float32\[1, 1\]"
    ):
        edit(torch.ones(1, 1))


def test_the_gradient_of_a_loss_under_digits(digits):
    """A real training step: freezing a channel by its gradient leaves its weights untrained."""
    images, labels = digits
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(144, 10)
    )
    before = model[0].weight.detach().clone()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with patch(model, {"0": zero(on="grad", at=(slice(None), 2))}):
        for _ in range(3):
            optimizer.zero_grad()
            F.cross_entropy(model(images[:32]), labels[:32]).backward()
            optimizer.step()
    same = [torch.equal(a, b) for a, b in zip(before, model[0].weight, strict=True)]
    assert same == [False, False, True, False]
