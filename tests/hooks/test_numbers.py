"""Every number of the ready-made hooks on five kinds of models, against plain torch."""

from __future__ import annotations

import io
import math
import re
from collections import Counter
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from hookline import FunctionHook, capture, edits, patch, watch
from hookline.core import clock as core_clock
from hookline.function_hooks import CaptureHook as FunctionCaptureHook
from hookline.function_hooks import NonFiniteHook as FunctionNonFiniteHook
from hookline.function_hooks import PrintHook as FunctionPrintHook
from hookline.function_hooks import StatsHook as FunctionStatsHook
from hookline.module_hooks import NonFiniteHook, PrintHook, RangeHook, TimerHook
from hookline.torch_base.tree import leaves, map_tensors


@pytest.fixture(autouse=True)
def _without_dropout(case):
    case.model.eval()


class ByTorch:
    """What torch's own hooks see: outputs and their gradients, in copies, call by call."""

    def __init__(self, model):
        self.outputs, self.gradients, self.handles = [], {}, []
        for path, module in model.named_modules():
            self.handles.append(module.register_forward_hook(self.hook(path)))

    def hook(self, path):
        def keep(module, args, output):
            for leaf, tensor in leaves(output, "output"):
                key = path, leaf, sum(p == path and of == leaf for p, of, _ in self.outputs)
                self.outputs.append((path, leaf, tensor.detach().clone()))
                if tensor.requires_grad:
                    tensor.register_hook(lambda g, key=key: self.got(key, g))

        return keep

    def got(self, key, gradient):
        self.gradients[key] = gradient.detach().clone()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for handle in self.handles:
            handle.remove()


class ByHand(FunctionHook):
    """Copies of what each function gave, and of the gradients of that."""

    def __init__(self):
        self.kept, self.order = {}, []

    def keep(self, function, direction, values):
        name = "output" if direction == "forward" else "grad_output"
        alone = direction == "forward" and len(values) == 1
        for place, tensor in enumerate(values):
            if tensor is not None and tensor.is_floating_point() and tensor.numel():
                leaf = name if alone else f"{name}[{place}]"
                key = function.module_path, function.name, direction, leaf
                self.kept.setdefault(key, []).append(tensor.detach().double().clone())
                self.order.append((function.label, direction, leaf, tensor.detach().clone()))

    def forward_postprocess(self, function, in_data):
        self.keep(function, "forward", function.outputs)

    def backward_preprocess(self, function, in_data, out_grad):
        self.keep(function, "backward", out_grad)


# Captures.


def test_captures_are_what_torchs_hooks_see(case):
    """Outputs and their gradients of every module, every call and every leaf, bit for bit."""
    with capture(case.model) as acts, ByTorch(case.model) as plain:
        case.loss().backward()

    found = {
        (path, leaf, place): tensor
        for path, entry in acts.items()
        for place, call in enumerate(entry)
        for leaf, tensor in call.leaves().items()
    }
    counted = Counter()
    for path, leaf, tensor in plain.outputs:
        assert torch.equal(found.pop((path, leaf, counted[path, leaf])), tensor)
        counted[path, leaf] += 1
    assert found == {}

    compared = 0
    for path, entry in acts.items():
        for place, call in enumerate(entry):
            if "grad" not in call.kinds:
                continue
            for leaf, tensor in call.leaves("grad").items():
                of = leaf.replace("grad", "output", 1)
                expected = plain.gradients.pop((path, of, place), None)
                if expected is None and of == "output[0]":
                    expected = plain.gradients.pop((path, "output", place))
                assert torch.equal(tensor, expected)
                compared += 1
    assert plain.gradients == {}
    assert compared >= len(list(case.model.modules())) // 2


def test_functions_captures_are_those_by_hand(case):
    """The same for every function, by its address."""
    hook = FunctionCaptureHook(what=("output", "grad"))
    with watch(case.model, hook, plain := ByHand()):
        case.loss().backward()
    compared = Counter()
    for label, direction, leaf, tensor in plain.order:
        call = hook.captured[label]
        if direction == "forward":
            found = call.leaves()[leaf]
        else:
            gradients = call.leaves("grad")
            found = gradients.get(leaf.replace("grad_output", "grad"), gradients.get("grad"))
        assert torch.equal(found, tensor)
        compared[direction] += 1
    assert compared["forward"] >= compared["backward"] >= 3


# Statistics of functions.


def test_statistics_of_functions_are_those_of_plain_torch(case):
    """Outputs and gradients of every function in every module."""
    with watch(case.model, stats := FunctionStatsHook(every=1), plain := ByHand()):
        for _ in range(2):
            case.loss().backward()
    rows = {(row.path, row.name, row.direction, row.leaf): row for row in stats.rows()}
    assert rows.keys() == plain.kept.keys()
    assert len(rows) >= 10
    for key, row in rows.items():
        values = plain.kept[key]
        whole = torch.cat([value.flatten() for value in values])
        finite = whole[whole.isfinite()]
        assert (row.calls, row.count) == (len(values), finite.numel())
        assert (row.nan, row.inf) == (int(whole.isnan().sum()), int(whole.isinf().sum()))
        assert row.mean == pytest.approx(float(finite.mean()), rel=1e-5, abs=1e-9)
        assert row.std == pytest.approx(float(finite.std(correction=0)), rel=1e-5, abs=1e-9)
        assert (row.minimum, row.maximum) == (float(finite.min()), float(finite.max()))
        assert row.abs_max == float(finite.abs().max())
        assert row.zero_share == pytest.approx(float((finite == 0).double().mean()))


# Printed numbers.

_NUMBERS = re.compile(r"(\w+)=(\S+)")


def assert_printed(text, tensor):
    """Each number of a line, to the digits that are printed."""
    shown = {name: float(value) for name, value in _NUMBERS.findall(text)}
    values = tensor.double().flatten()
    finite = values[values.isfinite()]
    expected = {
        "min": float(finite.min()),
        "mean": float(finite.mean()),
        "max": float(finite.max()),
        "std": float(finite.std(correction=0)),
    }
    for name, count in (("nan", values.isnan().sum()), ("inf", values.isinf().sum())):
        if count:
            expected[name] = int(count)
    assert shown == {
        name: pytest.approx(value, rel=2e-3, abs=1e-7) for name, value in expected.items()
    }
    dtype = str(tensor.dtype).removeprefix("torch.")
    assert f"{dtype}[{', '.join(map(str, tensor.shape))}] cpu" in text


def parts_of(line):
    """The head of a line, and the text of each tensor in it."""
    head, _, values = line.partition(": ")
    return head, [part for part in values.split("; ") if part]


def test_printed_numbers_of_modules_are_those_of_plain_torch(case):
    """Every output of every module."""
    file = io.StringIO()
    with watch(case.model, PrintHook(file)), ByTorch(case.model) as plain:
        case.loss().backward()
    forward = [line for line in file.getvalue().splitlines() if line.startswith("forward")]
    texts = [part for line in forward for part in parts_of(line)[1]]
    assert len(texts) == len(plain.outputs)
    for text, (_, leaf, tensor) in zip(texts, plain.outputs, strict=True):
        assert text.startswith(f"{leaf} ")
        if tensor.is_floating_point():
            assert_printed(text, tensor)


def test_printed_numbers_of_functions_are_those_of_plain_torch(case):
    """Every output and every gradient of every function."""
    file = io.StringIO()
    with watch(case.model, FunctionPrintHook(file), plain := ByHand()):
        case.loss().backward()
    texts = [
        (*head.split(" ", 1), part)
        for head, parts in map(parts_of, file.getvalue().splitlines())
        for part in parts
        if re.search(r"float\d+\[(?!0)", part)
    ]
    assert len(texts) == len(plain.order) >= 10
    for (phase, label, text), (of, direction, _, tensor) in zip(texts, plain.order, strict=True):
        assert (phase, label) == (direction, of)
        assert_printed(text, tensor)


# Values that are not finite.


def leaf_modules(model):
    return [(path, m) for path, m in model.named_modules() if path and not list(m.children())]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("part", [0.0, 0.5, 0.99])
def test_counts_and_positions_of_what_is_planted(case, bad, part):
    """In a module at the beginning, in the middle or at the end: place, counts and position."""
    modules = [pair for pair in leaf_modules(case.model) if not isinstance(pair[1], nn.Dropout)]
    path, module = modules[int(part * len(modules))]
    planted = []

    def plant(_, args, output):
        output = output if isinstance(output, torch.Tensor) else output[0]
        if planted:
            return
        new = output.detach().clone(memory_format=torch.contiguous_format)
        flat = new.view(-1)
        flat[[flat.numel() // 3, flat.numel() // 2, flat.numel() - 1]] = bad
        planted.append(new.clone())
        output.data.copy_(new)
        return

    handle = module.register_forward_hook(plant)
    with watch(case.model, nonfinite := NonFiniteHook(backward=False)):
        case.loss()
    handle.remove()

    row, (tensor,) = nonfinite.first, planted
    assert (row.path, row.type, row.verdict) == (path, type(module).__name__, "producer")
    assert (row.nan, row.inf) == (int(tensor.isnan().sum()), int(tensor.isinf().sum()))
    assert row.nan + row.inf == len(set((~tensor.isfinite()).view(-1).nonzero().flatten().tolist()))
    assert row.position == tuple((~tensor.isfinite()).nonzero()[0].tolist())
    assert (row.shape, row.index, row.times) == (tuple(tensor.shape), 0, 1)


@pytest.mark.parametrize("level", [NonFiniteHook, FunctionNonFiniteHook])
def test_a_nan_in_each_weight_is_told_with_its_name(case, level):
    """Whichever parameter it is, by module; by function, in the module that uses it."""
    for name, parameter in case.model.named_parameters():
        owner = name.rpartition(".")[0]
        kept = parameter.detach().clone()
        with torch.no_grad():
            parameter.view(-1)[-1] = math.nan
        with watch(case.model, nonfinite := level(backward=False)):
            case.loss()
        with torch.no_grad():
            parameter.copy_(kept)
        row = nonfinite.first
        if row is None:  # an embedding of a token that is not there
            assert isinstance(case.model.get_submodule(owner), nn.Embedding)
            continue
        assert row.verdict == "bad parameter"
        assert name.endswith(row.cause)
        assert (row.path or "").startswith(owner) or level is FunctionNonFiniteHook


# Times and ranges.


def test_times_are_the_sums_of_those_inside(case, monkeypatch):
    """Each leaf takes a time of its own; own and inclusive times, counts and extremes."""
    time = SimpleNamespace(now=0)
    monkeypatch.setattr(core_clock, "perf_counter_ns", lambda: time.now)
    costs = {path: 10**6 * (n + 1) for n, (path, _) in enumerate(leaf_modules(case.model))}
    calls, handles = Counter(), []
    for path, module in case.model.named_modules():

        def spend(*_, path=path):
            calls[path] += 1
            time.now += costs.get(path, 0)

        handles.append(module.register_forward_pre_hook(spend))
    with watch(case.model, timer := TimerHook()):
        for _ in range(2):
            case.loss()
    for handle in handles:
        handle.remove()

    rows = {row.path: row for row in timer.rows()}
    assert rows.keys() == {path for path in calls if calls[path]}
    for path, row in rows.items():
        inside = {p for p in costs if p == path or not path or p.startswith(f"{path}.")}
        total = sum(costs[p] * calls[p] for p in inside) / 1e9
        own = costs.get(path, 0) * calls[path] / 1e9
        assert row.calls == calls[path]
        assert row.total_time == pytest.approx(total)
        assert row.self_time == pytest.approx(own)
        if path in costs:
            each = pytest.approx(costs[path] / 1e9)
            assert (row.minimum, row.median, row.maximum) == (each, each, each)
    assert timer.total_time() == pytest.approx(rows[""].total_time)


def test_a_range_for_each_call(case):
    """As many of each name as torch's own hooks count."""
    calls, handles = Counter(), []
    for path, module in case.model.named_modules():
        name = path or type(module).__name__
        handles.append(module.register_forward_hook(lambda *_, n=name: calls.update([n])))
    with profile(activities=[ProfilerActivity.CPU]) as profiler, watch(case.model, RangeHook()):
        case.loss().backward()
    for handle in handles:
        handle.remove()
    names = [re.sub(r"#\d+", "", event.name) for event in profiler.events()]
    found = Counter(name.removesuffix(".forward") for name in names if name.endswith(".forward"))
    assert found == calls
    backward = Counter(n.removesuffix(".backward") for n in names if n.endswith(".backward"))
    assert set(backward) <= set(calls)
    assert all(backward[name] <= calls[name] for name in backward)
    assert backward[type(case.model).__name__] == 1


# Edits.

EDITS = {
    "zero": (edits.zero(), torch.zeros_like),
    "scale": (edits.scale(0.5), lambda t: t * 0.5),
    "add": (edits.add(0.25), lambda t: t + 0.25),
    "clamp": (edits.clamp(-0.005, 0.005), lambda t: t.clamp(-0.005, 0.005)),
    "mean": (edits.mean(0), lambda t: t.mean(0, keepdim=True).expand_as(t).clone()),
}


@pytest.mark.parametrize("name", EDITS)
@pytest.mark.parametrize("part", [0.0, 0.5, 0.99])
def test_edits_are_those_of_a_hook_of_torchs(case, name, part):
    """Loss and gradients equal those of a hook that is written by hand; then all is as before."""
    edit, by_hand = EDITS[name]
    modules = leaf_modules(case.model)
    path, module = modules[int(part * len(modules))]

    def step():
        case.model.zero_grad()
        loss = case.loss()
        if loss.requires_grad:  # zeros at the end have no gradient
            loss.backward()
        return [loss.detach(), *(p.grad for p in case.model.parameters())]

    before = step()
    handle = module.register_forward_hook(lambda m, a, out: map_tensors(by_hand, out))
    expected = step()
    handle.remove()
    with patch(case.model, {path: edit}) as patched:
        found = step()
    after = step()

    def same(one, other):
        return all(
            (a is None) == (b is None) and (a is None or torch.equal(a, b))
            for a, b in zip(one, other, strict=True)
        )

    assert same(found, expected)
    assert same(after, before)
    assert not same(found, before)
    assert patched.silent() == []
