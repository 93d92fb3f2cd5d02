"""The non-finite hooks: who made the first NaN or Inf, at both levels and in both directions."""

from __future__ import annotations

import copy
import gc
import math
import pickle
import warnings
import weakref

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import hookline
from hookline.errors import HooklineError, HookTypeError, HookValueError, NonFiniteError
from hookline.hooks.nonfinite import FunctionNonFiniteHook, ModuleNonFiniteHook
from hookline.torch_base.stack import steps

BOTH = pytest.mark.parametrize("hook_class", [ModuleNonFiniteHook, FunctionNonFiniteHook])
INF = float("inf")


class Apply(nn.Module):
    """A module around a function."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *args, **kwargs):
        return self.function(*args, **kwargs)


def place_of(row):
    """The module at which a row points, at either level."""
    return row.path


def diagonal(size, values=None):
    """A linear layer that multiplies each feature by a number."""
    layer = nn.Linear(size, size, bias=False)
    with torch.no_grad():
        layer.weight.copy_(torch.diag(torch.ones(size) if values is None else values))
    return layer


# Forward: producer, propagator, bad parameter.


@BOTH
def test_a_producer_is_named_with_all_that_is_known_of_it(hook_class):
    """The first output that is not finite out of finite inputs: place, leaf, counts, position."""
    model = nn.Sequential(nn.ReLU(), Apply(torch.log), nn.Linear(3, 3), nn.Tanh())
    x = torch.tensor([[1.0, -2.0, 0.0], [1.0, 2.0, 0.0]])
    with hook_class() as nonfinite:
        model(x)
    plain = x.relu().log()
    row = nonfinite.first
    assert row.root.startswith("Sequential")
    assert (row.path, row.direction, row.verdict) == ("1", "forward", "producer")
    assert (row.nan, row.inf) == (int(plain.isnan().sum()), int(plain.isinf().sum())) == (0, 3)
    assert row.position == tuple((~plain.isfinite()).nonzero()[0].tolist()) == (0, 1)
    assert (row.shape, row.dtype, row.leaf) == ((2, 3), "float32", "output")
    assert (row.index, row.pass_number, row.step, row.mode) == (0, 0, steps.count, "train")
    assert (row.times, row.scale, row.skipped, row.cause) == (1, None, None, "")


def test_function_rows_carry_the_function_and_module_rows_the_class():
    """The two levels fill the same row, each with what it knows."""
    model = nn.Sequential(nn.ReLU(), Apply(torch.log))
    with ModuleNonFiniteHook() as modules, FunctionNonFiniteHook() as functions:
        model(torch.zeros(2))
    assert (modules.first.level, modules.first.type, modules.first.name) == ("module", "Apply", "")
    found = functions.first
    assert (found.level, found.type, found.name) == ("function", "", "log")


@BOTH
def test_what_only_passes_it_on_is_a_propagator(hook_class):
    """A call that was given something not finite is no producer; its cause is the input."""
    model = nn.Sequential(diagonal(3), Apply(torch.log), diagonal(3), nn.Softmax(-1))
    with hook_class() as nonfinite:
        model(torch.tensor([[1.0, 0.0, 2.0]]))
    verdicts = {row.path: (row.verdict, row.cause) for row in nonfinite.rows() if row.path}
    assert verdicts == {
        "1": ("producer", ""),
        "2": ("propagator", "args[0]"),
        "3": ("propagator", "args[0]"),
    }


def test_a_module_around_the_producer_is_a_propagator():
    """A container whose input is finite did not make what a module inside it made."""
    inner = nn.Sequential(Apply(torch.log), nn.Identity())
    with ModuleNonFiniteHook() as nonfinite:
        nn.Sequential(inner, nn.Identity())(torch.zeros(2))
    found = [(row.path, row.verdict, row.cause) for row in nonfinite.rows()]
    assert found == [
        ("0.0", "producer", ""),
        ("0.1", "propagator", "args[0]"),
        ("0", "propagator", "0.0"),
        ("1", "propagator", "args[0]"),
        ("", "propagator", "0.0"),
    ]


class Between(nn.Module):
    """Makes what is not finite between two modules."""

    def __init__(self, function):
        super().__init__()
        self.before = diagonal(3)
        self.after = diagonal(3)
        self.function = function

    def forward(self, x):
        return self.after(self.function(self.before(x)))


def test_what_comes_up_between_modules_is_laid_to_the_module_around():
    """A child given what no call made is a propagator; its parent, given finite values, made it."""
    model = nn.Sequential(nn.Identity(), Between(torch.log))
    with ModuleNonFiniteHook() as nonfinite:
        model(torch.tensor([[0.0, 1.0, 2.0]]))
    first, second, third = nonfinite.rows()
    assert (first.path, first.verdict, first.leaf) == ("1", "producer", "args[0] of 1.after[0]")
    assert (first.inf, first.position, first.times) == (1, (0, 0), 1)
    assert (second.path, second.verdict) == ("1.after", "propagator")
    assert (third.path, third.verdict, third.cause) == ("", "propagator", "1")
    assert nonfinite.first == first


def test_functions_tell_exactly_what_came_up_between_modules():
    """The function hook names the function in the module's own code."""
    model = nn.Sequential(nn.Identity(), Between(torch.log))
    with FunctionNonFiniteHook() as nonfinite:
        model(torch.tensor([[0.0, 1.0, 2.0]]))
    assert (nonfinite.first.path, nonfinite.first.name) == ("1", "log")


@BOTH
def test_a_nan_in_a_weight_is_a_bad_parameter_with_its_name(hook_class):
    """With finite inputs, a parameter that is not finite is named as in `named_parameters()`."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.ReLU(), nn.Linear(4, 2)))
    with torch.no_grad():
        model[1][1].weight[1, 2] = math.nan
    names = [name for name, p in model.named_parameters() if not p.isfinite().all()]
    with hook_class() as nonfinite:
        model(torch.rand(3, 4))
    row = nonfinite.first
    assert [row.cause] == names == ["1.1.weight"]
    assert (row.path, row.verdict, row.nan, row.position) == ("1.1", "bad parameter", 3, (0, 1))


@BOTH
def test_a_buffer_that_is_not_finite_is_a_bad_parameter(hook_class):
    """A poisoned running variance is told by name."""
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2)).eval()
    model[1].running_var[1] = INF
    model[1].running_mean[0] = math.nan
    with hook_class() as nonfinite:
        model(torch.rand(1, 1, 5, 5))
    assert (nonfinite.first.verdict, nonfinite.first.cause) == ("bad parameter", "1.running_mean")


def test_a_parameter_of_a_module_that_is_never_called_is_named():
    """`out_proj` of an attention is used without being called; its parameter is found all the same.

    The module hook looks through the parameters of the module that gave the output.
    """
    attention = nn.MultiheadAttention(8, 2)
    with torch.no_grad():
        attention.out_proj.bias[0] = math.nan
    x = torch.rand(3, 1, 8)
    with ModuleNonFiniteHook() as nonfinite:
        attention(x, x, x)
    assert (nonfinite.first.verdict, nonfinite.first.cause) == ("bad parameter", "out_proj.bias")


@BOTH
def test_nan_in_the_data_is_nobodys_fault(hook_class):
    """Then the first call is a propagator, and what `first` gives."""
    x = torch.rand(2, 3)
    x[1, 0] = math.nan
    with hook_class() as nonfinite:
        nn.Sequential(diagonal(3), nn.ReLU())(x)
    rows = nonfinite.rows()
    assert {row.verdict for row in rows} == {"propagator"}
    assert nonfinite.first == rows[0]
    assert (rows[0].path, rows[0].cause) == ("0", "args[0]")


@BOTH
def test_sgd_with_a_huge_rate_overflows_on_digits_and_the_place_is_named(hook_class, digits):
    """SGD at 1e8: the named call is the first whose output is not finite in a plain loop."""
    images, labels = digits[0][:64].flatten(1), digits[1][:64]
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU())
    model.append(nn.Linear(32, 10))
    twin = copy.deepcopy(model)

    def run(model, watch):
        optimizer = torch.optim.SGD(model.parameters(), lr=1e8)
        for step in range(10):
            found = watch(step, model)
            F.cross_entropy(model(images), labels).backward()
            if found:
                return found
            optimizer.step()
            optimizer.zero_grad()
        return None

    def by_hand(step, twin):
        value = images
        for place, layer in enumerate(twin):
            before, value = value, layer(value)
            if before.isfinite().all() and not value.isfinite().all():
                weights = all(p.isfinite().all() for p in layer.parameters())
                return step, str(place), "producer" if weights else "bad parameter"
        return None

    begin = steps.count
    with hook_class() as nonfinite:
        run(model, lambda step, _: nonfinite.first)
    row = nonfinite.first
    assert (row.step - begin, row.path, row.verdict) == run(twin, by_hand)
    assert row.direction == "forward"


@BOTH
def test_float16_overflow_is_named(hook_class):
    """A product over 65504 is infinite in half precision: the layer that makes it is named."""
    model = nn.Sequential(diagonal(4), diagonal(4, torch.full((4,), 300.0)), diagonal(4)).half()
    x = torch.full((2, 4), 250.0, dtype=torch.float16)
    with hook_class() as nonfinite:
        model(x)
    row = nonfinite.first
    assert (row.path, row.verdict, row.inf, row.dtype) == ("1", "producer", 8, "float16")


def test_a_sum_that_overflows_is_no_finding():
    """Finite numbers whose sum is infinite are finite: the full check clears them."""
    x = torch.full((4, 4), 3e38)
    assert not x.sum().isfinite()
    with ModuleNonFiniteHook() as modules, FunctionNonFiniteHook() as functions:
        nn.Identity()(x * 1.0)
        F.relu(x)
    assert not modules.rows()
    assert not functions.rows()
    assert modules.first is None


@BOTH
def test_a_sum_of_inputs_that_overflows_does_not_excuse_the_producer(hook_class):
    """The input is finite although its sum is not: what comes out of it was made there."""
    x = torch.full((4, 4), 3e38)
    with hook_class() as nonfinite:
        Apply(lambda x: x * 10)(x)
    assert (nonfinite.first.verdict, nonfinite.first.inf) == ("producer", 16)


@BOTH
def test_in_place_modules_and_functions_are_judged_by_what_was_there_before(hook_class):
    """`log_` of zero produces; `relu_` of NaN passes on: both overwrite the evidence."""

    class InPlaceLog(nn.Module):
        inplace = False

        def __init__(self):
            super().__init__()
            self.inplace = True

        def forward(self, x):
            return x.log_()

    x = torch.tensor([0.0, 1.0])
    with hook_class() as nonfinite, torch.no_grad():
        nn.Sequential(InPlaceLog())(x)
    assert (nonfinite.first.path, nonfinite.first.verdict) == ("0", "producer")
    x = torch.tensor([math.nan, 1.0])
    with hook_class() as nonfinite, torch.no_grad():
        nn.Sequential(nn.ReLU(inplace=True))(x)
    assert {row.verdict for row in nonfinite.rows()} == {"propagator"}
    assert nonfinite.first.path == "0"


def test_an_input_overwritten_unannounced_is_judged_by_what_was_found_before():
    """A module that does not say it works in place: with nothing found before, it made it."""
    with ModuleNonFiniteHook() as nonfinite, torch.no_grad():
        nn.Sequential(Apply(lambda x: x.log_()), Apply(lambda x: x.mul_(2)))(torch.zeros(2))
    assert [(row.path, row.verdict) for row in nonfinite.rows()] == [
        ("0", "producer"),
        ("1", "propagator"),
        ("", "propagator"),
    ]


@BOTH
def test_leaves_of_structures_are_named_by_their_paths(hook_class):
    """An output in a dict of lists is told by the path that reads it."""

    class Nested(nn.Module):
        def forward(self, x):
            return {"first": x, "rest": [x + 1, torch.log(x * 0)]}

    with hook_class() as nonfinite:
        Nested()(torch.rand(2, 2))
    row = nonfinite.rows()[0]
    expected = "output['rest'][1]" if hook_class is ModuleNonFiniteHook else "output"
    assert (row.leaf, row.inf) == (expected, 4)


@BOTH
def test_call_index_pass_and_step_are_those_of_the_call(hook_class):
    """The third call of a shared module, in the second pass, after one optimizer step."""
    act = Apply(lambda x: x / (x - 3))

    class Thrice(nn.Module):
        def __init__(self):
            super().__init__()
            self.act = act
            self.weight = nn.Parameter(torch.ones(1))

        def forward(self, x):
            for value in (1.0, 2.0, x):
                last = self.act(self.weight * 0 + value)
            return last

    model = Thrice()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with hook_class() as nonfinite:
        model(1.5).backward()
        optimizer.step()
        model(3.0)
        after = steps.count
    row = nonfinite.first
    assert (row.path, row.pass_number, row.step) == ("act", 1, after)
    assert row.index == 2
    assert row.verdict == "producer"


@BOTH
def test_a_later_producer_does_not_displace_the_first(hook_class):
    """`first` stays what it was; rows count how often each place was seen; `reset` forgets."""
    model, other = Apply(torch.log), Apply(torch.sqrt)
    zeros, negative = torch.zeros(2), -torch.ones(2)
    with hook_class() as nonfinite:
        for _ in range(3):
            model(zeros)
        other(negative)
        first = nonfinite.first
        assert (first.inf, first.nan, first.pass_number, first.times) == (2, 0, 0, 3)
        assert len(nonfinite.rows()) == 2
        nonfinite.reset()
        assert nonfinite.rows() == []
        other(negative)
        model(zeros)
    assert (nonfinite.first.inf, nonfinite.first.nan) == (0, 2)


# Backward.


@BOTH
def test_a_gradient_that_comes_up_in_backward_only_is_laid_to_its_producer(hook_class):
    """sqrt at 0: the forward is finite, the gradient of its input is infinite."""
    model = nn.Sequential(diagonal(3), nn.ReLU(), Apply(torch.sqrt), diagonal(3))
    x = torch.tensor([[0.0, 1.0, 4.0]])
    with hook_class() as nonfinite:
        model(x).sum().backward()
    row = nonfinite.first
    assert (row.path, row.direction, row.verdict) == ("2", "backward", "producer")
    assert (row.leaf, row.inf, row.nan, row.position) == ("grad_input[0]", 1, 0, (0, 0))
    given = torch.tensor([[0.0, 1.0, 4.0]], requires_grad=True)
    plain = torch.autograd.grad(given.sqrt().sum(), given)[0]
    assert (~plain.isfinite()).nonzero().tolist() == [[0, 0]]
    assert nonfinite.rows()[1].verdict == "propagator"
    assert not any(row.direction == "forward" for row in nonfinite.rows())


@BOTH
def test_zero_times_infinity_in_backward_is_laid_to_where_it_is_multiplied(hook_class):
    """norm at 0 divides 0 by 0 in backward: NaN out of a finite gradient."""
    model = nn.Sequential(diagonal(2), Apply(lambda x: x.pow(2).sum(-1).sqrt()))
    with hook_class() as nonfinite:
        model(torch.zeros(1, 2)).sum().backward()
    row = nonfinite.first
    assert (row.path, row.direction, row.verdict) == ("1", "backward", "producer")
    if hook_class is FunctionNonFiniteHook:
        assert (row.name, row.inf) == ("sqrt", 1)
    else:
        assert (row.leaf, row.nan) == ("grad_input[0]", 2)


def test_backward_between_modules_is_laid_to_the_module_around():
    """A function in a module's own code made it: no child is to blame."""
    model = nn.Sequential(nn.Identity(), Between(lambda x: x.sqrt() + 1))
    with ModuleNonFiniteHook() as nonfinite:
        model(torch.tensor([[0.0, 1.0, 2.0]], requires_grad=True)).sum().backward()
    found = [(row.path, row.verdict, row.cause) for row in nonfinite.rows()]
    assert found[:2] == [("1", "producer", ""), ("1.before", "propagator", "1")]
    assert nonfinite.first.direction == "backward"


def test_functions_name_the_function_between_modules_in_backward():
    """The same, exactly."""
    model = nn.Sequential(nn.Identity(), Between(lambda x: x.sqrt() + 1))
    with FunctionNonFiniteHook() as nonfinite:
        model(torch.tensor([[0.0, 1.0, 2.0]], requires_grad=True)).sum().backward()
    assert (nonfinite.first.path, nonfinite.first.name) == ("1", "sqrt")


@BOTH
def test_a_gradient_that_a_loss_made_is_not_laid_to_the_model(hook_class):
    """The gradient arrives at the model's output as it is: modules are propagators."""
    model = nn.Sequential(diagonal(2), nn.ReLU())
    with hook_class() as nonfinite:
        model(torch.zeros(1, 2)).sqrt().sum().backward()
    row = nonfinite.first
    if hook_class is ModuleNonFiniteHook:
        assert {r.verdict for r in nonfinite.rows()} == {"propagator"}
        assert (row.path, row.leaf) == ("", "grad_output[0]")
    else:
        assert (row.path, row.name, row.verdict) == (None, "sqrt", "producer")


@BOTH
def test_the_gradient_of_a_parameter_that_is_not_finite_is_laid_to_the_call(hook_class):
    """Its input needs no gradient, so only the parameter's gradient tells."""

    class Root(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.tensor([0.0, 1.0]))

        def forward(self, x):
            return self.scale.sqrt() * x

    model = nn.Sequential(nn.Identity(), Root())
    with hook_class() as nonfinite:
        model(torch.ones(2)).sum().backward()
    assert not model[1].scale.grad.isfinite().all()
    row = nonfinite.first
    assert (row.path, row.direction, row.verdict) == ("1", "backward", "producer")
    assert row.leaf == ("scale.grad" if hook_class is ModuleNonFiniteHook else "1.scale.grad")
    assert (row.inf, row.position) == (1, (0,))


@BOTH
def test_a_bad_gradient_stays_one_finding_until_it_is_zeroed(hook_class):
    """Accumulated NaN is not laid to each later backward; after zeroing it is found anew."""
    layer = nn.Sequential(nn.Linear(1, 1))
    x = torch.ones(1, 1)
    layer(x).sum().backward()
    layer[0].weight.grad.fill_(math.nan)
    with hook_class() as nonfinite:
        for _ in range(3):
            layer(x).sum().backward()
        (row,) = nonfinite.rows()
        assert (row.times, row.leaf[-11:]) == (1, "weight.grad")
        layer.zero_grad()
        layer(x).sum().backward()
        assert nonfinite.rows() == [row]
        layer[0].weight.grad.fill_(0).div_(x.detach() * 0)
        nonfinite.reset()
        layer(x).sum().backward()
        assert [r.leaf for r in nonfinite.rows() if r.direction == "backward"] == [row.leaf]


@pytest.mark.parametrize("swapped", [False, True])
def test_outputs_whose_gradients_come_late_are_looked_at_too(swapped):
    """A module with two outputs: the gradient of one is not there when the backward begins."""

    class Two(nn.Module):
        def forward(self, x):
            return x * 2, x * 3

    class Uses(nn.Module):
        def __init__(self):
            super().__init__()
            self.two = Two()

        def forward(self, x):
            outputs = self.two(x)
            first, second = reversed(outputs) if swapped else outputs
            return second.sum() + first.sqrt().sum()

    with ModuleNonFiniteHook() as nonfinite:
        Uses()(torch.zeros(2, requires_grad=True)).backward()
    rows = {row.path: row for row in nonfinite.rows()}
    assert rows[""].verdict == "producer"
    assert (rows["two"].leaf, rows["two"].times) == (f"grad_output[{int(swapped)}]", 1)


def test_a_function_that_gave_bad_gradients_on_explains_those_of_its_inputs():
    """Of two uses of a tensor, one passes on what came from behind: the other is not to blame."""
    x = torch.zeros(2, requires_grad=True)
    with FunctionNonFiniteHook() as nonfinite:
        y = x * 2
        other = y.exp()
        passes = y + 1
        ((passes - 1).sqrt().sum() + other.sum()).backward()
    assert [(row.name, row.verdict) for row in nonfinite.rows()] == [
        ("sqrt", "producer"),
        ("sub", "propagator"),
        ("add", "propagator"),
        ("mul", "propagator"),
    ]


def test_an_in_place_function_on_bad_data_is_a_propagator():
    """What it overwrites is looked at before."""
    x = torch.tensor([math.nan, 1.0])
    with FunctionNonFiniteHook() as nonfinite:
        x.mul_(2)
        x.log_()
    assert [(row.name, row.verdict) for row in nonfinite.rows()] == [
        ("mul_", "propagator"),
        ("log_", "propagator"),
    ]


def test_what_was_reported_is_no_mask_although_it_looks_like_one():
    """log of a one-hot tensor, handed on: the next function is a propagator, not the producer."""
    x = torch.eye(2)
    with FunctionNonFiniteHook() as nonfinite:
        torch.mm(x.log(), x)
    assert [(row.name, row.verdict) for row in nonfinite.rows()] == [
        ("log", "producer"),
        ("mm", "propagator"),
    ]


def test_a_gradient_is_added_up_once(monkeypatch):
    """A tensor that one module gave and the next was given has one gradient, and one sum."""
    from hookline.hooks import watcher

    model = nn.Sequential(nn.Tanh(), nn.Tanh(), nn.Tanh())
    sums = []
    plain = watcher.is_finite
    monkeypatch.setattr(watcher, "is_finite", lambda values: sums.append(values) or plain(values))
    with ModuleNonFiniteHook(forward=False):
        model(torch.ones(2, requires_grad=True)).sum().backward()
    assert len(sums) == 3


def test_functions_of_earlier_backwards_are_forgotten():
    """Who used what is known for one backward only."""
    x = torch.ones(2, requires_grad=True)
    with FunctionNonFiniteHook() as nonfinite:
        for _ in range(5):
            (x * 2).exp().sum().backward()
    assert [function.name for function in nonfinite._ran] == ["sum", "exp", "mul"]


def test_an_unrecorded_backward_tells_propagators():
    """Forward outside of the scope: the nodes' gradients are looked at, nobody is blamed."""
    x = torch.zeros(2, requires_grad=True)
    loss = (x * 2).sqrt().sum()
    with FunctionNonFiniteHook() as nonfinite:
        loss.backward()
    assert [(row.name, row.verdict) for row in nonfinite.rows()] == [("mul", "propagator")]


@BOTH
def test_a_residual_gradient_names_the_branch(hook_class):
    """x + f(x): the gradient of x is the sum over both uses; the branch that made it is named."""

    class Residual(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = diagonal(2)
            self.branch = Apply(torch.sqrt)

        def forward(self, x):
            x = self.first(x)
            return x + self.branch(x)

    with hook_class() as nonfinite:
        nn.Sequential(Residual())(torch.zeros(1, 2)).sum().backward()
    assert (nonfinite.first.path, nonfinite.first.verdict) == ("0.branch", "producer")


# Masks.


def causal(size):
    return torch.full((size, size), -INF).triu(1)


@BOTH
@pytest.mark.parametrize("need_weights", [True, False])
def test_attention_with_a_mask_of_inf_raises_no_alarm(hook_class, need_weights):
    """nn.MultiheadAttention with float, bool and padding masks, forward and backward."""
    attention = nn.MultiheadAttention(8, 2, batch_first=True)
    x = torch.rand(2, 5, 8)
    padding = torch.zeros(2, 5, dtype=torch.bool)
    padding[1, 3:] = True
    with hook_class(action="raise") as nonfinite:
        masks = (causal(5), nn.Transformer.generate_square_subsequent_mask(5), causal(5) < 0)
        for mask in masks:
            out, _ = attention(x, x, x, attn_mask=mask, need_weights=need_weights)
            out.sum().backward()
        attention(x, x, x, key_padding_mask=padding, need_weights=need_weights)
    assert nonfinite.rows() == []


@BOTH
def test_scaled_dot_product_attention_with_a_float_mask_raises_no_alarm(hook_class):
    """F.scaled_dot_product_attention, with the mask made inside the scope."""
    x = torch.rand(1, 2, 5, 8, requires_grad=True)
    with hook_class(action="raise") as nonfinite:
        mask = torch.zeros(5, 5)
        mask[torch.ones(5, 5, dtype=torch.bool).triu(1)] = -INF
        Apply(F.scaled_dot_product_attention)(x, x, x, attn_mask=mask).sum().backward()
    assert nonfinite.rows() == []


class Scores(nn.Module):
    """Attention written out, with one way of masking its scores."""

    def __init__(self, mask):
        super().__init__()
        self.mask = mask
        self.masked = Apply(mask)

    def forward(self, q, k):
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        hidden = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).triu(1)
        return self.masked(scores, hidden).softmax(-1) @ k


@BOTH
@pytest.mark.parametrize(
    "mask",
    [
        lambda scores, hidden: scores.masked_fill(hidden, -INF),
        lambda scores, hidden: scores.clone().masked_fill_(hidden, -INF),
        lambda scores, hidden: torch.where(hidden, -INF, scores),
        lambda scores, hidden: torch.where(~hidden, scores, torch.tensor(-INF)),
        lambda scores, hidden: scores + causal(5),
        lambda scores, hidden: scores + causal(5).expand(2, 5, 5).contiguous(),
        lambda scores, hidden: scores.add(torch.zeros(5, 5).masked_fill(hidden, -INF)) / 2,
    ],
    ids=["masked_fill", "in place", "where", "where not", "add", "expanded", "scaled"],
)
def test_masked_scores_raise_no_alarm(hook_class, mask):
    """The usual ways to mask scores before a softmax, in functions and in a module."""
    q = torch.rand(2, 5, 4, requires_grad=True)
    with hook_class(action="raise") as nonfinite:
        Scores(mask)(q, q).sum().backward()
    assert nonfinite.rows() == []


@BOTH
def test_two_masks_together_raise_no_alarm(hook_class):
    """Causal and padding, both added: every -inf is explained by one of them."""
    padding = torch.zeros(2, 1, 5)
    padding[1, :, 3:] = -INF
    scores = torch.rand(2, 5, 5)
    with hook_class(action="raise") as nonfinite:
        Apply(lambda s, a, b: (s + a + b) * 0.5)(scores, causal(5), padding)
        Apply(lambda s, a, b: (s + a).masked_fill(b < 0, -INF))(scores, causal(5), padding)
    assert nonfinite.rows() == []


def test_functions_that_move_masked_values_raise_no_alarm():
    """cat, pad, repeat and max of masked scores are masked scores."""
    with FunctionNonFiniteHook("raise") as nonfinite:
        scores = torch.rand(2, 5, 5).masked_fill(torch.ones(5, 5).triu(1) > 0, -INF)
        torch.cat([scores, torch.rand(1, 5, 5)]).repeat(2, 1, 1)
        F.pad(scores, (0, 2), value=-INF)
        scores[:, :1, 1:].max(-1)
    assert nonfinite.rows() == []


def test_masks_that_are_changed_in_place_raise_no_alarm():
    """What is overwritten was a mask before."""
    mask = causal(5)
    with FunctionNonFiniteHook("raise") as nonfinite:
        mask.mul_(1.0)
        mask.tril_(3)
        torch.zeros(5, 5).add_(mask)
    assert nonfinite.rows() == []


def test_a_module_that_masks_by_itself_is_told_unless_allowed():
    """Nothing that it is given explains its -inf, so it looks like log(0)."""
    for allow, found in (((), 1), ("0", 0)):
        with ModuleNonFiniteHook(allow=allow) as nonfinite:
            nn.Sequential(Apply(lambda s: s + causal(5)), nn.Softmax(-1))(torch.rand(5, 5))
        assert len(nonfinite.rows()) == found


@BOTH
def test_gpt2_and_bert_with_padding_raise_no_alarm(hook_class, case):
    """Every kind of model trains under `action="raise"`; transformers mask in their own ways."""
    with hook_class(action="raise") as nonfinite:
        case.loss().backward()
    assert nonfinite.rows() == []


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_gpt2_masks_of_both_kinds_raise_no_alarm(attention):
    """GPT-2 in eager attention and SDPA, with padding, training and inference."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(vocab_size=50, n_positions=16, n_embd=16, n_layer=2, n_head=2)
    config._attn_implementation = attention
    model = GPT2LMHeadModel(config)
    tokens = torch.randint(0, 50, (2, 12))
    padding = torch.ones_like(tokens)
    padding[0, :4] = 0
    with ModuleNonFiniteHook("raise") as modules, FunctionNonFiniteHook("raise") as functions:
        model(tokens, attention_mask=padding, labels=tokens).loss.backward()
        with torch.inference_mode():
            model(tokens, attention_mask=padding)
    assert modules.rows() == functions.rows() == []


@BOTH
def test_transformer_encoder_with_masks_raises_no_alarm(hook_class):
    """nn.TransformerEncoder with a causal float mask and padding, in training and in eval."""
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    x = torch.rand(2, 5, 8)
    padding = torch.zeros(2, 5).masked_fill(torch.tensor([[0] * 5, [0, 0, 0, 1, 1]]) > 0, -INF)
    with hook_class(action="raise") as nonfinite:
        encoder(x, mask=causal(5), src_key_padding_mask=padding).sum().backward()
        encoder.eval()
        with torch.no_grad():
            encoder(x, mask=causal(5), src_key_padding_mask=padding)
    assert nonfinite.rows() == []


@BOTH
@pytest.mark.parametrize("x", [[0.0, 1.0], [0.0, 0.0], [[1.0, 0.0], [0.0, 1.0]]])
def test_the_log_of_zero_is_an_alarm_although_it_looks_like_a_mask(hook_class, x):
    """log of a one-hot tensor is 0 and -inf, as a mask is: its input does not explain it."""
    with hook_class() as nonfinite:
        Apply(torch.log)(torch.tensor(x))
    row = nonfinite.first
    assert (row.verdict, row.direction) == ("producer", "forward")
    assert row.inf == torch.tensor(x).log().isinf().sum()


@BOTH
def test_a_mask_that_is_given_does_not_excuse_the_log_of_zero(hook_class):
    """A loss that is given a bool mask and takes the log of zero is the producer."""

    def loss(p, mask):
        return (p.log() * 1.0)[mask]

    with hook_class() as nonfinite:
        Apply(loss)(torch.tensor([0.5, 0.0, 0.0, 1.0]), torch.tensor([True, True, False, True]))
    assert (nonfinite.first.verdict, nonfinite.first.inf) == ("producer", nonfinite.first.inf)
    if hook_class is FunctionNonFiniteHook:
        assert nonfinite.first.name == "log"


def test_an_overwritten_input_explains_nothing():
    """The module's own `log_` stands in the input when the output is looked at."""
    x = torch.eye(2)
    with ModuleNonFiniteHook() as nonfinite, torch.no_grad():
        Apply(lambda x: x.log_().view(-1).view(2, 2))(x)
    assert (nonfinite.first.verdict, nonfinite.first.inf) == ("producer", 2)


def test_a_conversion_that_overflows_downwards_is_told():
    """-1e39 has no place in 32 bits: `to` only moves values, but this one it made."""
    x = torch.tensor([-1e39, 1.0], dtype=torch.float64)
    with FunctionNonFiniteHook() as nonfinite:
        x.to(torch.float32)
    assert (nonfinite.first.name, nonfinite.first.verdict) == ("to", "producer")


@BOTH
def test_a_row_that_is_masked_as_a_whole_is_an_alarm(hook_class):
    """softmax over nothing but -inf is NaN: the softmax made it, the mask is no bad input."""
    scores = torch.zeros(2, 3)
    hidden = torch.tensor([[False, True, False], [True, True, True]])
    with hook_class() as nonfinite:
        masked = Apply(lambda s, h: s.masked_fill(h, -INF))(scores, hidden)
        nn.Softmax(-1)(masked)
    row = nonfinite.first
    assert (row.verdict, row.nan, row.position) == ("producer", 3, (1, 0))
    assert (row.type or row.name) in ("Softmax", "softmax")


@BOTH
def test_masks_are_told_where_they_are_not_allowed(hook_class):
    """allow_inf_mask=False: -inf is -inf."""
    with hook_class(allow_inf_mask=False) as nonfinite:
        Apply(lambda s: s.masked_fill(s > 0, -INF))(torch.ones(2))
    assert (nonfinite.first.verdict, nonfinite.first.inf) == ("producer", 2)


def test_a_module_that_builds_a_mask_from_token_ids_raises_no_alarm():
    """It is given integers and gives 0 and -inf; handed on by its parent, it is still a mask."""

    class Builder(nn.Module):
        def forward(self, padding):
            return torch.where(padding[:, None, None, :] == 1, 0.0, -INF)

    class Parent(nn.Module):
        def __init__(self):
            super().__init__()
            self.builder = Builder()

        def forward(self, hidden, padding):
            return hidden, self.builder(padding)

    padding = torch.tensor([[1, 1, 0], [1, 1, 1]])
    with ModuleNonFiniteHook("raise") as nonfinite:
        Parent()(torch.rand(2, 3), padding)
    assert nonfinite.rows() == []


def test_plus_infinity_and_nan_are_no_masks():
    """Only -inf is let through."""
    for value in (INF, math.nan):
        with FunctionNonFiniteHook() as nonfinite:
            torch.zeros(2).masked_fill(torch.tensor([True, False]), value)
        assert nonfinite.first.name == "masked_fill"


@BOTH
@pytest.mark.parametrize(
    "allow",
    [
        "1",
        ["nothing", "*"],
        lambda call, leaf, tensor: leaf == "output" and bool(tensor.isinf().all()),
    ],
    ids=["path", "several", "function"],
)
def test_calls_may_be_allowed(hook_class, allow):
    """By path, pattern or function: what is allowed is no finding."""
    model = nn.Sequential(nn.ReLU(), Apply(torch.log), Apply(torch.exp))
    with hook_class(allow=allow) as nonfinite:
        model(torch.zeros(2))
    assert nonfinite.rows() == []
    with hook_class(allow="0") as nonfinite:
        model(torch.zeros(2))
    assert [row.path for row in nonfinite.rows()] == ["1"]


def test_functions_may_be_allowed_by_name_and_address():
    """`log`, `**:log` and `1:log[0]` mean the same call; another index does not."""
    import re

    model = nn.Sequential(nn.ReLU(), Apply(torch.log))
    for allow, found in (
        ("log", 0),
        ("**:log", 0),
        ("1:log[0]", 0),
        ("1:log[1]", 1),
        ("0:log", 1),
        (re.compile(r"1:lo.*"), 0),
        (re.compile(r"lo.*"), 1),
    ):
        with FunctionNonFiniteHook(allow=allow) as nonfinite:
            model(torch.zeros(2))
        assert len(nonfinite.rows()) == found, allow


def test_modules_may_be_allowed_by_class():
    """A class means the modules of it."""
    with ModuleNonFiniteHook(allow=Apply) as nonfinite:
        nn.Sequential(Apply(torch.log))(torch.zeros(2))
    assert [row.path for row in nonfinite.rows()] == [""]


# What is left alone.


@BOTH
def test_what_cannot_be_read_is_left_alone(hook_class):
    """Integers, truth values, empty, meta and fake tensors, and those inside a transform."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    identity = Apply(lambda x: x + x)
    nan = torch.tensor([math.nan, 1.0])
    with hook_class(action="raise") as nonfinite:
        identity(torch.arange(3))
        identity(torch.tensor([True]))
        identity(torch.empty(0))
        identity(torch.full((2,), math.nan, device="meta"))
        with FakeTensorMode():
            identity(torch.ones(2) / 0)
        torch.vmap(identity)(nan)
        torch.func.grad(lambda x: identity(x).sum())(nan)
    assert nonfinite.rows() == []


def test_traces_are_not_disturbed():
    """make_fx and torch.jit.trace record the same program with and without the hook."""
    from torch.fx.experimental.proxy_tensor import make_fx

    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU()).requires_grad_(False)
    x = torch.rand(1, 2)
    plain = make_fx(model)(x).code
    jitted = str(torch.jit.trace(model, x).graph).count("aten::")
    with ModuleNonFiniteHook(), FunctionNonFiniteHook():
        assert make_fx(model)(x).code == plain
        with warnings.catch_warnings():
            warnings.simplefilter("error", torch.jit.TracerWarning)
            assert str(torch.jit.trace(model, x).graph).count("aten::") == jitted


@BOTH
def test_complex_and_sparse_tensors_are_read(hook_class):
    """A complex NaN and a stored value of a sparse tensor are found at their place."""
    z = torch.ones(2, 2, dtype=torch.complex64)
    z[1, 0] = complex(0, math.nan)
    with hook_class() as nonfinite:
        Apply(lambda z: z * 2)(z)
    assert (nonfinite.first.nan, nonfinite.first.position) == (1, (1, 0))
    sparse = torch.sparse_coo_tensor([[0, 2], [1, 0]], [1.0, INF], (3, 3), check_invariants=True)
    with hook_class() as nonfinite:
        Apply(lambda s: s * 2)(sparse)
    row = nonfinite.first
    assert (row.inf, row.shape, row.position) == (1, (3, 3), (2, 0))


def test_uninitialised_memory_and_stores_are_no_findings():
    """What `empty` gives, and a buffer that is filled piece by piece, is not looked at."""
    with FunctionNonFiniteHook("raise") as nonfinite:
        buffer = torch.empty(3, 2)
        torch.Tensor.fill_(buffer.view(torch.int32), -1)  # bits of NaN
        buffer[0] = torch.ones(2)
        buffer[1:].zero_()
        _ = buffer.view(-1)[:2], buffer.t()
    assert nonfinite.rows() == []


def test_recomputed_forwards_are_counted_once():
    """Activation checkpointing repeats the forward; the finding is seen once."""
    layer = Apply(lambda x: x.log())
    for reentrant in (False, True):
        x = torch.zeros(2, requires_grad=True)
        with ModuleNonFiniteHook(backward=False) as nonfinite:
            checkpoint(layer, x, use_reentrant=reentrant).sum().backward()
        assert [row.times for row in nonfinite.rows()] == [1]


def test_sharded_parameters_are_read_as_far_as_they_are_here(tmp_path):
    """`fully_shard`: a NaN in a DTensor's part in this process is a bad parameter."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 1))
        fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
        with ModuleNonFiniteHook() as nonfinite:
            model(torch.randn(5, 4)).sum().backward()
            assert nonfinite.rows() == []
            with torch.no_grad():
                model[1].weight.to_local()[0, 0] = math.nan
            model(torch.randn(5, 4)).sum().backward()
    finally:
        dist.destroy_process_group()
    assert (nonfinite.first.path, nonfinite.first.cause) == ("1", "1.weight")


# Actions.


@BOTH
def test_raise_stops_in_the_call_with_the_record(hook_class):
    """The error names path, call and leaf, carries the row, and leaves with hookline's note."""
    calls = []
    model = nn.Sequential(nn.ReLU(), Apply(torch.log), Apply(lambda x: calls.append(x) or x))
    with pytest.raises(NonFiniteError) as caught, hook_class(action="raise") as nonfinite:
        model(torch.zeros(1, 2))
    error = caught.value
    assert isinstance(error, HooklineError)
    assert isinstance(error, ArithmeticError)
    assert not calls
    assert error.row == nonfinite.first
    text = str(error)
    assert "output float32[1, 2] has 2 Inf, first at (0, 0); producer" in text
    assert ("1 (Apply)" if hook_class is ModuleNonFiniteHook else "1:log") in text
    assert f"call 0 in pass 0 (train, step {steps.count})" in text
    assert len(error.__notes__) == 1


@BOTH
def test_raise_comes_out_of_backward_as_the_same_error(hook_class):
    """An error in a backward leaves `backward()`, and nothing stays behind; the next one works."""
    model = nn.Sequential(diagonal(2), Apply(torch.sqrt), diagonal(2))
    with hook_class(action="raise") as nonfinite:
        with pytest.raises(NonFiniteError, match="producer") as caught:
            model(torch.zeros(1, 2)).sum().backward()
        assert caught.value.row.path == "1"
        model.zero_grad()
        model(torch.ones(1, 2)).sum().backward()
        with pytest.raises(NonFiniteError):
            model(torch.zeros(1, 2)).sum().backward()
    assert nonfinite.first.times == 2


def test_an_error_survives_pickling_with_its_row():
    """A DataLoader worker or another process can hand it on."""
    with pytest.raises(NonFiniteError) as caught, ModuleNonFiniteHook("raise"):
        Apply(torch.log)(torch.zeros(2))
    back = pickle.loads(pickle.dumps(caught.value))
    assert (str(back), back.row) == (str(caught.value), caught.value.row)


@BOTH
def test_warn_tells_each_producer_once(hook_class):
    """The first pass warns, the second does not; propagators are not told."""
    model = nn.Sequential(Apply(torch.log), nn.Identity(), nn.ReLU())
    nan_weight = torch.full((2, 2), math.nan)
    with hook_class(action="warn"):
        with pytest.warns(RuntimeWarning, match="producer") as told:
            model(torch.zeros(2))
        assert len(told) == 1
        model(torch.zeros(2))
        bad = nn.Linear(2, 2)
        bad.weight = nn.Parameter(nan_weight)
        with pytest.warns(RuntimeWarning, match="bad parameter"):
            bad(torch.ones(2))


@BOTH
def test_warn_tells_data_that_is_not_finite(hook_class):
    """If nobody made it, the first call that is given it is told."""
    x = torch.full((2,), math.nan)
    with (
        hook_class(action="warn"),
        pytest.warns(RuntimeWarning, match="propagator: it came from args") as told,
    ):
        nn.Sequential(nn.ReLU(), nn.ReLU())(x)
    assert len(told) == 1


@BOTH
def test_directions_may_be_left_out(hook_class):
    """forward=False sees gradients only; backward=False registers nothing for the backward."""
    model = nn.Sequential(diagonal(2), Apply(torch.log))
    with hook_class(forward=False) as nonfinite:
        model(torch.zeros(1, 2)).sum().backward()
    assert {row.direction for row in nonfinite.rows()} == {"backward"}
    with hook_class(backward=False) as nonfinite:
        assert not hookline.core.demand.demand.backward
        model(torch.zeros(1, 2)).sum().backward()
    assert {row.direction for row in nonfinite.rows()} == {"forward"}


@BOTH
def test_bad_arguments_get_clear_errors(hook_class):
    """What was given, and what there is to choose from."""
    with pytest.raises(HookValueError, match="choose 'raise', 'warn' or 'record'"):
        hook_class(action="stop")
    with pytest.raises(HookValueError, match="leave nothing to look at"):
        hook_class(forward=False, backward=False)
    with pytest.raises(HookTypeError, match="takes a GradScaler"):
        hook_class(scaler=3.5)
    with pytest.raises(HookTypeError, match="allow= takes paths"):
        hook_class(allow=3)
    with pytest.raises(HookTypeError, match="allow= takes paths"):
        hook_class(allow=[int])
    with pytest.raises(ValueError, match="segment"):
        hook_class(allow="a..b")


# Mixed precision.


class Overflowing(nn.Module):
    """A half-precision step whose gradient overflows under a large scale."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 1)

    def forward(self, x):
        return self.head(x).half().sum()


@BOTH
@pytest.mark.parametrize("how", ["plain", "clipped", "fused"])
def test_an_overflow_that_the_scaler_skips_is_expected(hook_class, how):
    """GradScaler: inf gradients are kept, with the scale; nothing is raised."""
    torch.manual_seed(0)
    model = Overflowing()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=how == "fused")
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**17, growth_interval=1000)
    x = torch.rand(8, 4)
    scales = []
    with hook_class(action="raise", scaler=scaler) as nonfinite:
        for _ in range(5):
            scales.append(scaler.get_scale())
            scaler.scale(model(x).float()).backward()
            if how == "clipped":
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    assert scales[:3] == [2.0**17, 2.0**16, 2.0**15]  # two overflows
    rows = nonfinite.rows()
    assert rows
    assert {row.scale for row in rows} <= {2.0**17, 2.0**16}
    assert all(row.skipped for row in rows if row.direction == "backward")
    assert all(p.isfinite().all() for p in model.parameters())


@BOTH
def test_without_a_scaler_the_same_overflow_is_raised(hook_class):
    """The option is what makes the difference."""
    model = Overflowing()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**17)
    with pytest.raises(NonFiniteError, match="backward"), hook_class(action="raise"):
        scaler.scale(model(torch.rand(8, 4)).float()).backward()


@BOTH
def test_an_optimizer_that_goes_ahead_with_overflowed_gradients_is_stopped(hook_class):
    """The scaler is given, but the step is not taken through it: that is raised before the step."""
    model = Overflowing()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**17)
    before = model.head.weight.detach().clone()
    with hook_class(action="raise", scaler=scaler) as nonfinite:
        scaler.scale(model(torch.rand(8, 4)).float()).backward()
        with pytest.raises(NonFiniteError, match="SGD takes a step with gradients that are not"):
            optimizer.step()
    assert torch.equal(model.head.weight, before)
    assert nonfinite.rows()[0].skipped is False


def test_another_optimizer_may_step_meanwhile():
    """Two optimizers under one scaler: one overflows and is skipped, the other's step is fine."""
    bad, good = Overflowing(), nn.Linear(4, 1)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (good, bad)]
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**17)
    before = good.weight.detach().clone()
    x = torch.rand(8, 4)
    with ModuleNonFiniteHook("raise", scaler=scaler) as nonfinite:
        scaler.scale(bad(x).float() + good(x).mean() * 1e-3).backward()
        for optimizer in optimizers:
            scaler.step(optimizer)
        scaler.update()
        assert nonfinite.first.skipped is True
    assert not torch.equal(good.weight, before)


def test_a_scaler_that_is_off_excuses_nothing():
    """GradScaler(enabled=False) scales nothing, so an infinite gradient is raised."""
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    model = nn.Sequential(diagonal(2), Apply(torch.sqrt))
    with pytest.raises(NonFiniteError), ModuleNonFiniteHook("raise", scaler=scaler):
        model(torch.zeros(1, 2)).sum().backward()


def test_a_scaler_excuses_nothing_in_forward():
    """An activation that overflows is told whether or not gradients are scaled."""
    scaler = torch.amp.GradScaler("cpu")
    with pytest.raises(NonFiniteError), ModuleNonFiniteHook("raise", scaler=scaler):
        Apply(torch.log)(torch.zeros(2))


def test_no_optimizer_hook_stays():
    """With a scaler the hook watches optimizer steps, until its last registration goes."""
    from torch.optim.optimizer import _global_optimizer_pre_hooks

    hook = ModuleNonFiniteHook(scaler=torch.amp.GradScaler("cpu"))
    with hook:
        layer = nn.Linear(1, 1)
        hookline.add_hook(layer, hook)
        assert len(_global_optimizer_pre_hooks) == 1
        hookline.delete_hook(layer, "NonFiniteHook")
        assert len(_global_optimizer_pre_hooks) == 1
    assert len(_global_optimizer_pre_hooks) == 0


# Late: what would wait for a device is read once a pass.


@pytest.fixture
def late(monkeypatch):
    """Treat tensors on the CPU like those on a device, and count how often something is read."""
    from hookline.hooks import looks, watcher

    reads = []
    monkeypatch.setattr(watcher.Watcher, "_waits", lambda self, values: self._action != "raise")
    monkeypatch.setattr(watcher, "is_finite", lambda values: pytest.fail("waits for the device"))
    plain = looks.numbers_of
    monkeypatch.setattr(
        looks,
        "numbers_of",
        lambda sums: (sums and reads.append(len(sums))) or plain(sums),
    )
    return reads


def test_on_a_device_sums_are_read_once_a_direction(late):
    """One read at the end of the root's forward, one at the end of its backward; same verdicts."""
    model = nn.Sequential(diagonal(3), nn.ReLU(), Apply(torch.sqrt), diagonal(3))
    with ModuleNonFiniteHook() as nonfinite:
        model(torch.tensor([[0.0, 1.0, 4.0]])).sum().backward()
        assert len(late) == 2
    row = nonfinite.first
    assert (row.path, row.direction, row.verdict) == ("2", "backward", "producer")
    assert len(late) == 2


def test_on_a_device_what_is_still_there_is_counted(late):
    """Activations that the graph keeps are counted when the sums are read."""
    model = nn.Sequential(diagonal(3), Apply(torch.log), Apply(torch.exp), diagonal(3))
    with ModuleNonFiniteHook() as nonfinite:
        out = model(torch.tensor([[0.0, 1.0, 4.0]]))
    assert out.isfinite().all()
    row = nonfinite.first
    assert (row.path, row.verdict) == ("1", "producer")
    assert (row.nan, row.inf, row.position) in [(0, 1, (0, 0)), (None, None, None)]
    assert len(late) == 1


def test_on_a_device_what_is_gone_is_named_all_the_same(late):
    """Without a graph intermediate outputs are gone: path, verdict and leaf stay known."""
    model = nn.Sequential(diagonal(3), Apply(torch.log), Apply(torch.exp), diagonal(3))
    with ModuleNonFiniteHook() as nonfinite, torch.no_grad():
        model(torch.tensor([[0.0, 1.0, 4.0]]))
    row = nonfinite.first
    assert (row.path, row.verdict, row.leaf, row.shape) == ("1", "producer", "output", (1, 3))
    assert (row.nan, row.inf, row.position) == (None, None, None)
    assert hookline.hooks.findings.in_words(row).count("gone before") == 1


def test_on_a_device_what_was_overwritten_is_named_all_the_same(late):
    """The output is there, but no longer as it was."""
    model = nn.Sequential(Apply(torch.log), Apply(lambda x: x.exp_()))
    with ModuleNonFiniteHook() as nonfinite, torch.no_grad():
        out = model(torch.tensor([[0.0, 1.0, 4.0]]))
    assert out.isfinite().all()
    assert (nonfinite.first.path, nonfinite.first.nan) == ("0", None)


def test_on_a_device_no_more_than_a_bound_is_in_line(late, monkeypatch):
    """Where no root ends and no direction turns, sums are read after so many."""
    from hookline.hooks import looks

    monkeypatch.setattr(looks.Line, "LIMIT", 4)
    with FunctionNonFiniteHook() as nonfinite:
        x = torch.ones(2)
        for _ in range(6):
            x = x * 2
        assert late
        assert nonfinite.rows() == []


def test_on_a_device_reset_drops_what_is_in_line(late):
    """What was looked at before is no finding after."""
    x = torch.zeros(2)
    with FunctionNonFiniteHook() as nonfinite:
        x.log()
        nonfinite.reset()
        assert nonfinite.rows() == []


def test_on_a_device_verdicts_are_those_at_once(late, case):
    """Every kind of model with NaN in one weight: the same rows late as at once."""
    name, weight = list(case.model.named_parameters())[-2]
    with torch.no_grad():
        weight.view(-1)[0] = math.nan
    with ModuleNonFiniteHook() as nonfinite:
        case.loss().backward()
    origins = [row for row in nonfinite.rows() if row.verdict != "propagator"]
    assert [(row.cause, row.verdict) for row in origins] == [(name, "bad parameter")]


def test_on_a_device_functions_are_read_when_the_direction_turns(late):
    """Functions have no root: what is in line is read when the backward begins."""
    x = torch.zeros(3, requires_grad=True)
    with FunctionNonFiniteHook() as nonfinite:
        loss = (x + 1).mul(2).sub(2).sqrt().sum()
        assert len(late) == 0
        loss.backward()
        assert len(late) == 1
    assert (nonfinite.first.name, nonfinite.first.direction) == ("sqrt", "backward")


def test_on_a_device_masks_raise_no_alarm(late):
    """The rule about masks holds for what is read late."""
    attention = nn.MultiheadAttention(8, 2, batch_first=True)
    x = torch.rand(2, 5, 8)
    with ModuleNonFiniteHook() as modules, FunctionNonFiniteHook() as functions:
        attention(x, x, x, attn_mask=causal(5))
        q = torch.rand(2, 5, 4, requires_grad=True)
        Scores(lambda s, h: s.masked_fill(h, -INF))(q, q).sum().backward()
    assert modules.rows() == functions.rows() == []


def test_on_a_device_nothing_is_held_for_long(late):
    """What is in line holds tensors weakly: an output dies when the program drops it."""
    with ModuleNonFiniteHook():
        layer = nn.Sequential(nn.Linear(2, 2))[0]
        out = layer(torch.ones(1, 2))
        alive = weakref.ref(out)
        del out
        assert alive() is None


# Nothing is changed, nothing is kept.


@BOTH
def test_r2_results_are_bitwise_the_same(hook_class, case):
    """Loss, gradients, and the state of the random generator are those without the hook."""
    plain = copy.deepcopy(case.model)
    state = torch.get_rng_state()
    expected = case.loss()
    expected.backward()
    gradients = [None if p.grad is None else p.grad.clone() for p in case.model.parameters()]
    after = torch.get_rng_state()
    case.model.load_state_dict(plain.state_dict())
    case.model.zero_grad()
    torch.set_rng_state(state)
    with hook_class() as nonfinite:
        found = case.loss()
        found.backward()
    assert torch.equal(found, expected)
    for parameter, gradient in zip(case.model.parameters(), gradients, strict=True):
        assert gradient is None if parameter.grad is None else torch.equal(parameter.grad, gradient)
    assert torch.equal(torch.get_rng_state(), after)
    assert nonfinite.rows() == []


@BOTH
def test_r2_no_autograd_node_is_added(hook_class):
    """The graph has the same nodes, in the same order."""

    def nodes(tensor):
        found, todo = [], [tensor.grad_fn]
        while todo:
            node = todo.pop()
            if node is not None:
                found.append(node.name())
                todo += [n for n, _ in node.next_functions]
        return found

    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(inplace=True), nn.Linear(2, 2))
    x = torch.rand(1, 2)
    plain = nodes(model(x))
    with hook_class():
        watched = model(x)
        assert nodes(watched) == plain
        watched.sum().backward()


@BOTH
def test_r5_no_tensor_outlives_its_pass(hook_class):
    """Also after a finding, outputs, inputs and gradients die with the pass."""
    model = nn.Sequential(diagonal(2), Apply(torch.sqrt), Apply(torch.log))
    gc.collect()
    gc.disable()
    try:
        with hook_class() as nonfinite:
            x = torch.zeros(1, 2, requires_grad=True)
            out = model(x)
            out.sum().backward()
            alive = [weakref.ref(each) for each in (x, out, x.grad)]
            del x, out
            assert [each() for each in alive] == [None] * 3
    finally:
        gc.enable()
    assert nonfinite.rows()


@BOTH
def test_a_removed_hook_looks_no_more(hook_class, monkeypatch):
    """Forward inside, backward outside of the scope: nothing is looked at in backward."""
    from hookline.hooks import watcher

    model = nn.Sequential(diagonal(2), Apply(torch.sqrt), diagonal(2))
    with hook_class() as nonfinite:
        out = model(torch.zeros(1, 2))
    monkeypatch.setattr(watcher, "is_finite", lambda values: pytest.fail("it is not on"))
    with hookline.module_hooks.TimerHook():
        out.sum().backward()
    assert nonfinite.rows() == []


def test_two_hooks_do_not_disturb_each_other():
    """Two hooks of one class, with other settings, see the same passes."""
    model = nn.Sequential(diagonal(2), Apply(torch.log), Apply(torch.exp), Apply(torch.sqrt))
    with (
        ModuleNonFiniteHook(allow="1") as lenient,
        ModuleNonFiniteHook().renamed("strict") as strict,
    ):
        model(torch.zeros(1, 2)).sum().backward()
    assert strict.first.path == "1"
    assert (lenient.first.path, lenient.first.direction) == ("3", "backward")


def test_a_hook_on_some_modules_lays_the_rest_to_the_module_around():
    """Only the root and the last layer are watched: what came up between is the root's."""
    model = nn.Sequential(diagonal(2), Apply(torch.log), diagonal(2))
    hook = ModuleNonFiniteHook()
    hookline.add_hook(model, hook)
    hookline.add_hook(model[2], hook)
    model(torch.zeros(1, 2))
    hookline.clear_hooks(model)
    assert (hook.first.path, hook.first.verdict) == ("", "producer")
    assert hook.first.leaf == "args[0] of 2[0]"


@BOTH
def test_inference_mode_and_autocast_are_fine(hook_class):
    """Tensors without version counters are read; bfloat16 under autocast too."""
    model = nn.Sequential(nn.Linear(2, 2), Apply(torch.log))
    model[0].weight.data.zero_()
    model[0].bias.data.zero_()
    with hook_class() as nonfinite:
        with torch.inference_mode():
            model(torch.zeros(1, 2))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            model(torch.zeros(1, 2))
    row = nonfinite.first
    assert (row.path, row.verdict, row.inf) == ("1", "producer", 2)
    assert len({r.mode for r in nonfinite.rows()}) >= 1


def test_modules_called_in_several_threads_are_all_seen():
    """A hook on a module sees the calls of all threads."""
    import threading

    layer = Apply(torch.log)
    hook = ModuleNonFiniteHook()
    hookline.add_hook(layer, hook)
    threads = [threading.Thread(target=layer, args=(torch.zeros(2),)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    hookline.clear_hooks(layer)
    assert sum(row.times for row in hook.rows()) == 4


@BOTH
@pytest.mark.parametrize("action", ["record", "raise"])
def test_a_gradient_that_was_not_finite_before_is_laid_to_nobody(hook_class, action):
    """It was there before anything was watched: no call made it, and it is told once."""
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
    model[0].weight.grad = torch.full((3, 3), math.nan)
    hook = hook_class(action)
    x = torch.ones(2, 3)
    if action == "raise":
        with hook, pytest.raises(NonFiniteError, match="an earlier backward"):
            model(x).sum().backward()
        return
    with hook:
        for _ in range(2):
            model(x).sum().backward()
    rows = [(row.leaf.rpartition("0.")[2], row.verdict, row.cause) for row in hook.rows()]
    assert rows == [("weight.grad", "propagator", "an earlier backward")]
    with hook:
        model.zero_grad()
        model(x).sum().backward()
        model[0].weight.grad.fill_(math.inf)
        model(x).sum().backward()
    assert hook.first.verdict == "producer"


@BOTH
def test_a_warning_points_to_the_program(hook_class):
    """Not to where it is raised inside of hookline."""
    model = Apply(torch.log)
    with hook_class("warn"), pytest.warns(RuntimeWarning, match="producer") as told:
        model(torch.zeros(2))
    assert {each.filename for each in told} == {__file__}
