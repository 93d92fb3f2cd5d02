"""Troubles people report: NaN and Inf, and gradients that are not what they seem.

The numbers are those of the list of reported troubles that this library was built against.
"""

import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

from hookline import FunctionHook, ModuleHook, NonFiniteError, watch
from hookline.function_hooks import NonFiniteHook as FunctionNonFiniteHook
from hookline.function_hooks import StatsHook as FunctionStatsHook
from hookline.module_hooks import NonFiniteHook, StatsHook

X = torch.randn(2, 3, generator=torch.Generator().manual_seed(0))


class Makes(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


BAD = {
    "log of zero": (lambda x: torch.log(x - x), "log", "inf"),
    "zero by zero": (lambda x: (x - x) / (x - x), "div", "nan"),
    "one by zero": (lambda x: 1 / (x - x), "rdiv", "inf"),
    "root of less": (lambda x: torch.sqrt(-x.abs() - 1), "sqrt", "nan"),
    "exp": (lambda x: torch.exp(x * 0 + 1000), "exp", "inf"),
    "float16": (lambda x: (x * 0 + 60000).half() * 2, "mul", "inf"),
    "acos": (lambda x: torch.acos(x * 0 + 2), "acos", "nan"),
    "power": (lambda x: (-x.abs() - 1) ** 0.5, "pow", "nan"),
}


@pytest.mark.parametrize("name", BAD)
def test_c06_the_producer_is_told_from_those_that_pass_it_on(name):
    """By module: the one that was given finite values; nan and inf are counted apart."""
    make, _, kind = BAD[name]
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3), Makes(make), Makes(torch.Tensor.float), nn.Tanh())
    with watch(model, nonfinite := NonFiniteHook()):
        model(X)

    row = nonfinite.first
    assert (row.path, row.type, row.verdict, row.leaf) == ("1", "Makes", "producer", "output")
    assert (row.nan if kind == "nan" else row.inf) == 6
    assert [each.path for each in nonfinite.rows() if each.verdict == "producer"] == ["1"]


@pytest.mark.parametrize("name", BAD)
def test_c06_the_operation_is_named(name):
    """By function: which of the operations in that module it was."""
    make, function, kind = BAD[name]
    model = nn.Sequential(nn.Linear(3, 3), Makes(make), nn.Tanh())
    with watch(model, nonfinite := FunctionNonFiniteHook()):
        model(X)
    row = nonfinite.first
    assert (row.path, row.name, row.verdict) == ("1", function, "producer")
    assert (row.nan, row.inf) == ((6, 0) if kind == "nan" else (0, 6))


@pytest.mark.parametrize("action", ["record", "warn", "raise"])
def test_c06_it_can_record_warn_or_raise(action):
    """The error comes out of the forward, before anything else runs."""
    model = nn.Sequential(nn.Linear(3, 3), Makes(lambda x: torch.log(x - x)), nn.Linear(3, 3))
    ran = []
    model[2].register_forward_hook(lambda *_: ran.append(1))
    nonfinite = NonFiniteHook(action)
    with watch(model, nonfinite):
        if action == "raise":
            with pytest.raises(NonFiniteError, match="1 "):
                model(X)
        elif action == "warn":
            with pytest.warns(RuntimeWarning, match="1 "):
                model(X)
        else:
            model(X)
    assert nonfinite.first.path == "1"
    assert ran == [1] * (action != "raise")


def test_c06_what_has_no_finite_values_to_check_is_left_alone():
    """Integers, truth values, meta tensors, and calls that are allowed."""
    ids = Makes(lambda x: (x > 0).long())
    model = nn.Sequential(Makes(lambda x: torch.log(x - x)), ids)
    with watch(model, nonfinite := NonFiniteHook(allow=["0", lambda call, *_: call.path == ""])):
        model(X)
    assert nonfinite.rows() == []
    with watch(model, nonfinite := NonFiniteHook()):
        model.to("meta")(X.to("meta"))
    assert nonfinite.rows() == []


def test_c06_backward_is_looked_at_too():
    """Where anomaly mode looks only there, this looks there as well."""
    x = torch.zeros(3, requires_grad=True)
    model = nn.Sequential(Makes(lambda x: x * 1), Makes(torch.sqrt), Makes(torch.sum))
    with watch(model, nonfinite := NonFiniteHook()):
        model(x).backward()
    row = nonfinite.first
    assert (row.path, row.direction, row.verdict, row.inf) == ("1", "backward", "producer", 3)


# Gradients of parameters, before and after they are added up.


class Gradients(ModuleHook):
    """The gradient of each backward by itself, and what is added up so far."""

    def __init__(self):
        self.rows, self.before = [], {}

    def backward_preprocess(self, call):
        weight = call.module.weight.grad
        self.before[call.path] = 0 if weight is None else weight.clone()

    def backward_postprocess(self, call):
        added_up = call.module.weight.grad
        local = added_up - self.before.pop(call.path)
        self.rows.append((call.step, call.pass_number, local.clone(), added_up.clone()))


@pytest.mark.parametrize("micro_steps", [1, 2, 3])
def test_c26_local_and_accumulated_gradients(micro_steps):
    """At the end of a module's backward both can be told, with the micro step that it was."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    batches = torch.randn(2 * micro_steps, 4, 3)
    local = [torch.autograd.grad(model(x).square().sum(), model[0].weight)[0] for x in batches]

    with watch(model, gradients := Gradients(), where="0"):
        for number, x in enumerate(batches):
            model(x).square().sum().backward()
            if (number + 1) % micro_steps == 0:
                optimizer.step()
                optimizer.zero_grad()

    first = gradients.rows[0]
    for number, (step, passed, own, added_up) in enumerate(gradients.rows):
        since = number - number % micro_steps
        assert step - first[0] == number // micro_steps
        assert passed - first[1] == number
        torch.testing.assert_close(own, local[number])
        torch.testing.assert_close(added_up, sum(local[since : number + 1]))


@pytest.mark.parametrize("micro_steps", [1, 4])
def test_c26_statistics_see_the_whole_gradient_once_a_step(micro_steps):
    """With the parameter's name; every k-th step, if asked."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 2), nn.Tanh(), nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    norms = {name: [] for name, _ in model.named_parameters()}
    with watch(model, stats := StatsHook(every=2)):
        for step in range(4):
            for _ in range(micro_steps):
                model(torch.randn(4, 3)).sum().backward()
            for name, parameter in model.named_parameters():
                if step % 2 == 0:
                    norms[name].append(parameter.grad.norm().item())
            optimizer.step()
            optimizer.zero_grad()

    rows = {row.name: row for row in stats.parameter_rows()}
    assert rows.keys() == norms.keys()
    for name, seen in norms.items():
        assert rows[name].steps == len(seen) == 2
        assert rows[name].grad_norm == pytest.approx(sum(seen) / 2, rel=1e-5)
        assert rows[name].grad_norm_last == pytest.approx(seen[-1], rel=1e-5)


# Gradients under a loss scale.


def scalers():
    return {
        "scaler": lambda: torch.amp.GradScaler("cpu", init_scale=1024.0),
        "function": lambda: lambda: 1024.0,
    }


@pytest.mark.parametrize("make", [StatsHook, FunctionStatsHook])
@pytest.mark.parametrize("kind", scalers())
@pytest.mark.parametrize("scale", [1.0, 1024.0, 2.0**-4])
def test_c32_statistics_are_those_of_the_unscaled_gradients(make, kind, scale):
    """The scale is taken out, and told."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    x = torch.randn(8, 3)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    with watch(model, plain := make(every=1)):
        model(x).sum().backward()
    given = scaler if kind == "scaler" else scaler.get_scale
    with watch(model, scaled := make(every=1, scaler=given)):
        scaler.scale(model(x).sum()).backward()

    def backward(stats):
        return [row for row in stats.rows() if row.direction == "backward"]

    assert len(backward(plain)) >= 3
    for one, other in zip(backward(plain), backward(scaled), strict=True):
        assert other.scale == scale
        assert other.norm == pytest.approx(one.norm, rel=1e-6)
        assert other.std == pytest.approx(one.std, rel=1e-5)


def test_c32_a_real_training_in_mixed_precision():
    """Norms in rows do not jump with the scale, and the steps that were skipped are told."""
    data = load_digits()
    images, labels = torch.tensor(data.data[:64], dtype=torch.float32), data.target[:64]
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127, backoff_factor=2.0**-4)
    stats, nonfinite = StatsHook(every=1, scaler=scaler), NonFiniteHook("raise", scaler=scaler)
    norms, taken = [], 0
    with watch(model, stats, nonfinite):
        for _ in range(6):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                loss = nn.functional.cross_entropy(model(images), torch.tensor(labels))
            before = scaler.get_scale()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            norm = model[2].weight.grad.norm().item()
            scaler.step(optimizer)
            scaler.update()
            if scaler.get_scale() >= before:
                norms.append(norm)
                taken += 1

    (row,) = [row for row in stats.parameter_rows() if row.name == "2.weight"]
    assert 0 < taken < 6
    assert row.steps == taken
    assert row.grad_norm == pytest.approx(sum(norms) / taken, rel=1e-3)
    assert all(found.skipped for found in nonfinite.rows())


class Local(FunctionHook):
    """What a hook of one's own sees: gradients as they flow, the scale in them."""

    def __init__(self):
        self.norms = []

    def backward_preprocess(self, function, in_data, out_grad):
        self.norms.append(out_grad[0].norm().item())


def test_c32_a_hook_of_ones_own_sees_gradients_as_they_are():
    """Only the ready-made hooks take the scale out."""
    w = torch.ones(3, requires_grad=True)
    with Local() as plain:
        (w * 2).sum().backward()
    with Local().renamed("scaled") as scaled:
        ((w * 2).sum() * 1024).backward()
    assert scaled.norms[1:] == [1024 * norm for norm in plain.norms]
