"""The statistics hooks: every number against plain torch, memory that does not grow."""

from __future__ import annotations

import copy
import gc
import math
import sys
import weakref

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import hookline
from hookline.errors import HookTypeError, HookValueError
from hookline.hooks import tally, updates
from hookline.hooks.histogram import SAMPLE, magnitudes
from hookline.hooks.moments import sample_of
from hookline.hooks.stats import FunctionStatsHook, ModuleStatsHook
from hookline.report.tables.stats import sheets as stats_sheets
from hookline.torch_base.tree import leaves

BOTH = pytest.mark.parametrize("hook_class", [ModuleStatsHook, FunctionStatsHook])


class ByHand(hookline.ModuleHook):
    """Keeps copies of what the statistics are to be of, by plain means."""

    def __init__(self):
        self.kept = {}

    def keep(self, call, direction, value, name):
        for leaf, tensor in leaves(value, name):
            if tensor.is_floating_point():
                key = call.root, call.path, call.mode, direction, leaf
                self.kept.setdefault(key, []).append(tensor.detach().double().clone())

    def forward_postprocess(self, call):
        self.keep(call, "forward", call.out, "output")

    def backward_postprocess(self, call):
        self.keep(call, "backward", call.grad_output, "grad_output")


def assert_row(row, values):
    """A row against the tensors that it is of."""
    whole = torch.cat([value.flatten() for value in values])
    finite = whole[whole.isfinite()]
    assert row.calls == len(values)
    assert row.count == finite.numel()
    assert (row.nan, row.inf) == (int(whole.isnan().sum()), int(whole.isinf().sum()))
    assert row.mean == pytest.approx(float(finite.mean()), rel=1e-6, abs=1e-9)
    assert row.std == pytest.approx(float(finite.std(correction=0)), rel=1e-6, abs=1e-9)
    assert row.abs_max == pytest.approx(float(finite.abs().max()), rel=1e-7)
    assert (row.minimum, row.maximum) == (float(finite.min()), float(finite.max()))
    assert row.zero_share == pytest.approx(float((finite == 0).double().mean()))
    norms = [float(value[value.isfinite()].norm()) for value in values]
    assert row.norm == pytest.approx(sum(norms) / len(norms), rel=1e-6, abs=1e-9)
    bins = sum(magnitudes(sample_of(value, SAMPLE)) for value in values)
    assert row.histogram == tuple(bins.tolist())


def test_every_number_is_that_of_plain_torch(case):
    """Five kinds of models, three passes: outputs and gradients of every module."""
    with ModuleStatsHook(every=1) as stats, ByHand() as plain:
        for _ in range(3):
            case.loss().backward()
    rows = stats.rows()
    found = {(r.root, r.path, r.mode, r.direction, r.leaf) for r in rows}
    assert found == set(plain.kept)
    assert len(rows) == len(found)
    for row in rows:
        key = row.root, row.path, row.mode, row.direction, row.leaf
        assert_row(row, plain.kept[key])
        assert (row.level, row.name, row.scale) == ("module", "", 1.0)
    types = {path: type(m).__name__ for path, m in case.model.named_modules()}
    assert all(types[row.path] == row.type for row in rows if row.root in types[""])


def test_functions_are_measured_by_the_module_that_calls_them():
    """Outputs and gradients of functions, by path and name."""
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    x = torch.randn(3, 4)
    with FunctionStatsHook(every=1) as stats:
        model(x).square().sum().backward()
    rows = {(r.path, r.name, r.direction): r for r in stats.rows()}
    hidden = model[0](x).detach().double()
    out = model(x).detach().double()
    assert_row(rows["0", "linear", "forward"], [hidden])
    assert_row(rows["1", "relu", "forward"], [hidden.relu()])
    assert_row(rows["2", "linear", "backward"], [2 * out])
    assert_row(rows[None, "square", "forward"], [model(x).detach().square().double()])
    assert rows["1", "relu", "forward"].level == "function"
    assert rows["1", "relu", "forward"].type == ""


def test_every_says_which_passes():
    """every=3 measures passes 0, 3, 6 …, in forward and backward alike."""
    model = nn.Linear(2, 2)
    kept = []
    with ModuleStatsHook(every=3) as stats:
        for number in range(8):
            out = model(torch.randn(5, 2))
            out.sum().backward()
            if number % 3 == 0:
                kept.append(out.detach().double())
    forward, backward = stats.rows()
    assert_row(forward, kept)
    assert (backward.calls, backward.direction) == (3, "backward")
    assert ModuleStatsHook().every == FunctionStatsHook().every == 100


def test_modes_are_kept_apart():
    """Train, eval and no-grad passes have rows of their own."""
    model = nn.Dropout(0.5)
    x = torch.ones(1000)
    with ModuleStatsHook(every=1) as stats:
        model(x)
        with torch.no_grad():
            model(x)
        model.eval()
        model(x)
    shares = {row.mode: row.zero_share for row in stats.rows()}
    assert set(shares) == {"train", "no_grad", "eval"}
    assert shares["eval"] == 0 < shares["train"]


def test_shared_modules_add_up_by_call():
    """A module called twice in a pass is measured twice."""
    act = nn.ReLU()
    model = nn.Sequential(nn.Linear(2, 2), act, nn.Linear(2, 2), act)
    with ModuleStatsHook(every=1) as stats:
        model(torch.randn(4, 2))
    assert sum(row.calls for row in stats.rows() if row.type == "ReLU") == 2


def test_structures_are_measured_leaf_by_leaf():
    """An LSTM's output has three tensors, each with a row; integers have none."""
    lstm = nn.LSTM(3, 4)
    with ModuleStatsHook(every=1) as stats, ByHand() as plain:
        lstm(torch.randn(5, 2, 3))[0].sum().backward()

        class Mixed(nn.Module):
            def forward(self, x):
                return {"values": x, "place": x.argmax()}

        Mixed()(torch.randn(3))
    assert [row.leaf for row in stats.rows()] == [
        "output[0]",
        "output[1][0]",
        "output[1][1]",
        "grad_output[0]",
        "output['values']",
    ]
    for row in stats.rows()[:4]:
        key = row.root, row.path, row.mode, row.direction, row.leaf
        assert_row(row, plain.kept[key])


@BOTH
def test_what_is_not_finite_is_counted_apart(hook_class):
    """NaN and Inf are counted, and the rest is measured without them."""
    x = torch.tensor([1.0, 0.0, -1.0, 4.0])
    identity = nn.Module()
    identity.forward = lambda x: x.log()
    with hook_class(every=1) as stats:
        identity(x)
    assert_row(stats.rows()[0], [x.log().double()])
    assert (stats.rows()[0].nan, stats.rows()[0].inf) == (1, 1)


@BOTH
def test_a_tensor_without_a_finite_number_has_a_row(hook_class):
    """All NaN: nothing to measure, but counted."""
    x = torch.full((3,), math.nan)
    model = nn.ReLU()
    with hook_class(every=1) as stats:
        model(x)
    (row,) = stats.rows()
    assert (row.count, row.nan) == (0, 3)
    unknown = (row.mean, row.std, row.minimum, row.maximum, row.abs_max, row.norm, row.zero_share)
    assert all(map(math.isnan, unknown))


def test_r9_where_nothing_could_be_measured_nothing_stands(tmp_path):
    """Neither in the table nor in the JSON a zero is shown that nobody measured."""
    path = tmp_path / "run.hookline"
    with hookline.record(path, stats=True, every=1):
        nn.Identity()(torch.full((3,), math.nan))
    run = hookline.load_run(path)
    (row,) = run.to_rows("stats")
    assert (row["mean"], row["std"], row["norm"], row["nan"]) == (None, None, None, 3)
    (sheet,) = stats_sheets(run)
    assert [column.name for column in sheet.columns] == ["leaf", "calls", "NaN"]


def test_parts_may_be_left_out():
    """Activations, gradients, parameters and histograms each on their own."""
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def run(**options):
        with ModuleStatsHook(every=1, **options) as stats:
            model(torch.randn(3, 2)).sum().backward()
            optimizer.step()
        directions = {row.direction for row in stats.rows()}
        return directions, len(stats.parameter_rows()), {row.histogram for row in stats.rows()}

    assert run(activations=False)[0] == {"backward"}
    assert run(gradients=False)[0] == {"forward"}
    assert run(parameters=False)[1] == 0
    assert run(activations=False, gradients=False)[:2] == (set(), 2)
    assert run(histogram=False)[2] == {()}
    with ModuleStatsHook(gradients=False, parameters=False):
        assert not hookline.core.demand.demand.backward


def test_recomputed_forwards_are_left_out():
    """Activation checkpointing repeats the forward; it is measured once, its gradients too."""
    layer = nn.Linear(2, 2)
    for reentrant in (False, True):
        x = torch.randn(3, 2, requires_grad=True)
        with ModuleStatsHook(every=1) as stats:
            checkpoint(layer, x, use_reentrant=reentrant).sum().backward()
        assert [row.calls for row in stats.rows() if row.direction == "forward"] == [1]


def test_reset_forgets():
    """Afterwards it begins anew."""
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with ModuleStatsHook(every=1) as stats:
        for _ in range(2):
            model(torch.randn(3, 2)).sum().backward()
            optimizer.step()
        stats.reset()
        assert stats.rows() == stats.parameter_rows() == []
        model(torch.randn(3, 2)).sum().backward()
        optimizer.step()
    assert [row.calls for row in stats.rows()] == [1, 1]
    assert [row.steps for row in stats.parameter_rows()] == [1, 1]


@BOTH
@pytest.mark.parametrize("every", [0, -1, 1.5, "2"])
def test_a_bad_every_gets_a_clear_error(hook_class, every):
    """What was given, and what to give."""
    with pytest.raises(HookValueError, match="whole number of passes"):
        hook_class(every=every)


@BOTH
def test_nothing_to_measure_is_an_error(hook_class):
    """All parts switched off."""
    options = {"parameters": False} if hook_class is ModuleStatsHook else {}
    with pytest.raises(HookValueError, match="leave something to measure"):
        hook_class(activations=False, gradients=False, **options)
    with pytest.raises(HookTypeError, match="takes a GradScaler"):
        hook_class(scaler="yes")


# Parameters.


@pytest.mark.parametrize("kind", ["SGD", "AdamW"])
def test_parameters_are_measured_at_steps(case, kind):
    """Weight norm, gradient norm and update ratio of every parameter, against a plain loop."""
    optimizer = getattr(torch.optim, kind)(case.model.parameters(), lr=0.01)
    names = {id(p): n for n, p in case.model.named_parameters()}
    expected = {name: ([], [], []) for name in names.values()}
    with ModuleStatsHook(every=1, activations=False, gradients=False) as stats:
        for _ in range(3):
            case.loss().backward()
            before = {n: p.detach().double().clone() for n, p in case.model.named_parameters()}
            optimizer.step()
            for name, p in case.model.named_parameters():
                grads, ratios, weights = expected[name]
                grads.append(float(p.grad.double().norm()))
                change = float((p.detach().double() - before[name]).norm())
                size = float(before[name].norm())
                ratios += [change / size] if size else []
                weights.append(float(p.detach().double().norm()))
            optimizer.zero_grad()
    rows = stats.parameter_rows()
    assert [row.name for row in rows] == list(expected)
    for row in rows:
        grads, ratios, weights = expected[row.name]
        near = {"rel": 1e-5, "abs": 1e-12}
        assert row.steps == 3
        assert row.weight_norm == pytest.approx(weights[-1], **near)
        assert row.grad_norm == pytest.approx(sum(grads) / 3, **near)
        assert row.grad_norm_max == pytest.approx(max(grads), **near)
        assert row.grad_norm_last == pytest.approx(grads[-1], **near)
        assert row.update_ratio == pytest.approx(sum(ratios) / len(ratios), **near)
        assert row.update_ratio_max == pytest.approx(max(ratios), **near)
        assert row.update_ratio_last == pytest.approx(ratios[-1], **near)
        assert (row.optimizer, row.note, row.scale, row.nonfinite) == (kind, "", 1.0, 0)
        assert row.shape == tuple(case.model.get_parameter(row.name).shape)
        assert row.root.startswith(type(case.model).__name__)


def test_tied_parameters_are_measured_once_with_all_names():
    """GPT-2's head is its embedding: one row, the other name in `ties`."""
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(vocab_size=9, n_positions=4, n_embd=4, n_layer=1, n_head=1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tokens = torch.tensor([[1, 2, 3]])
    with ModuleStatsHook(every=1) as stats:
        model(tokens, labels=tokens).loss.backward()
        optimizer.step()
    rows = stats.parameter_rows()
    ties = [(row.name, row.ties) for row in rows if row.ties]
    assert ties == [("transformer.wte.weight", ("lm_head.weight",))]
    assert len(rows) == len(list(model.parameters()))


def test_accumulated_gradients_are_measured_once_a_step():
    """Four micro-batches, one step: the gradient is the sum over all, counted once."""
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with ModuleStatsHook(every=1) as stats:
        for _ in range(2):
            for _ in range(4):
                model(torch.randn(5, 3)).sum().backward()
            whole = model.weight.grad.clone()
            optimizer.step()
            optimizer.zero_grad()
    row = stats.parameter_rows()[0]
    assert (row.name, row.steps) == ("weight", 2)
    assert row.grad_norm_last == pytest.approx(float(whole.norm()), rel=1e-6)


def test_steps_are_counted_for_each_optimizer():
    """Two optimizers in turn, every=2: each is measured at its own steps 0, 2 …"""
    one, two = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (one, two)]
    with ModuleStatsHook(every=2) as stats:
        for _ in range(3):
            (one(torch.ones(1, 1)) + two(torch.ones(1, 1))).backward()
            for optimizer in optimizers:
                optimizer.step()
    assert [row.steps for row in stats.parameter_rows()] == [2, 2]


def test_only_parameters_of_modules_that_were_seen_are_measured():
    """A hook on one layer measures that layer's parameters, by their full names."""
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    stats = ModuleStatsHook(every=1)
    hookline.add_hook(model[1], stats)
    model(torch.randn(1, 2)).sum().backward()
    optimizer.step()
    hookline.clear_hooks(model)
    assert [row.name for row in stats.parameter_rows()] == ["1.weight", "1.bias"]


def test_parameters_of_modules_that_are_never_called_are_measured():
    """`out_proj` of an attention is never called; its parameters are the attention's."""
    attention = nn.MultiheadAttention(4, 1)
    optimizer = torch.optim.SGD(attention.parameters(), lr=0.1)
    x = torch.randn(2, 1, 4)
    with ModuleStatsHook(every=1) as stats:
        attention(x, x, x)[0].sum().backward()
        optimizer.step()
    names = [row.name for row in stats.parameter_rows()]
    assert names == [name for name, _ in attention.named_parameters()]


def test_a_parameter_without_a_gradient_has_no_row():
    """What took no part in the loss is not updated."""
    model = nn.Bilinear(1, 1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.bias.requires_grad_(False)
    with ModuleStatsHook(every=1) as stats:
        model(torch.ones(1, 1), torch.ones(1, 1)).backward()
        optimizer.step()
    assert [row.name for row in stats.parameter_rows()] == ["weight"]


def test_a_parameter_that_was_zero_has_no_ratio_then():
    """A bias begins at zero: its first update has no ratio, the second has."""
    model = nn.Linear(1, 1)
    nn.init.zeros_(model.bias)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    with ModuleStatsHook(every=1) as stats:
        for _ in range(2):
            model(torch.ones(1, 1)).backward()
            optimizer.step()
            optimizer.zero_grad()
    row = stats.parameter_rows()[1]
    assert (row.steps, row.update_ratio, row.update_ratio_max) == (2, 1.0, 1.0)


def test_gradients_that_are_not_finite_are_counted_apart():
    """A step with an infinite gradient is counted, and left out of norms and ratios."""
    model = nn.Linear(1, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with ModuleStatsHook(every=1) as stats:
        for value in (1.0, math.inf):
            model(torch.full((1, 1), value)).backward()
            optimizer.step()
            optimizer.zero_grad()
    (row,) = stats.parameter_rows()
    assert (row.steps, row.nonfinite, row.grad_norm) == (2, 1, 1.0)
    assert math.isfinite(row.update_ratio_max)


def test_large_parameters_are_estimated_from_a_sample(monkeypatch):
    """Beyond a bound the update is measured on a sample, and the row says so; norms stay exact."""
    monkeypatch.setattr(updates, "EXACT", 100)
    model = nn.Linear(50, 40)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with ModuleStatsHook(every=1) as stats:
        model(torch.randn(8, 50)).square().sum().backward()
        before = model.weight.detach().clone()
        optimizer.step()
    weight, bias = stats.parameter_rows()
    assert (weight.note, bias.note) == ("estimated", "")
    assert weight.grad_norm == pytest.approx(float(model.weight.grad.norm()), rel=1e-5)
    change = sample_of(model.weight.detach() - before, 100).norm()
    expected = float(change / sample_of(before, 100).norm())
    assert weight.update_ratio == pytest.approx(expected, rel=1e-4)


def test_sparse_gradients_are_measured():
    """An embedding with sparse gradients: the norm is that of the dense gradient."""
    model = nn.Embedding(10, 3, sparse=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with ModuleStatsHook(every=1) as stats:
        model(torch.tensor([1, 1, 4])).square().sum().backward()
        dense = model.weight.grad.to_dense()
        optimizer.step()
    (row,) = stats.parameter_rows()
    assert row.grad_norm == pytest.approx(float(dense.norm()), rel=1e-6)


def test_empty_parameters_are_told_as_such():
    """A parameter of size zero (its numbers are elsewhere) has a row that says so."""
    model = nn.Linear(2, 2)
    model.elsewhere = nn.Parameter(torch.empty(0))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with ModuleStatsHook(every=1) as stats:
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    rows = {row.name: row for row in stats.parameter_rows()}
    row = rows["elsewhere"]
    assert (row.note, row.steps, row.weight_norm, row.shape) == ("empty", 1, 0.0, (0,))
    assert math.isnan(row.grad_norm)


def test_sharded_parameters_are_told_as_such(tmp_path):
    """`fully_shard`: parameters are DTensors; rows say `sharded` and are of this process's part."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 1))
        fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with ModuleStatsHook(every=1) as stats:
            model(torch.randn(5, 4)).sum().backward()
            optimizer.step()
            grads = {n: p.grad.to_local().norm() for n, p in model.named_parameters()}
    finally:
        dist.destroy_process_group()
    rows = stats.parameter_rows()
    assert {row.note for row in rows} == {"sharded"}
    assert [row.name for row in rows] == list(grads)
    for row in rows:
        assert row.grad_norm == pytest.approx(float(grads[row.name]), rel=1e-5)
    assert rows[0].shape == (3, 4)


def test_an_optimizer_with_a_closure_is_measured():
    """LBFGS runs forward and backward inside of its step."""
    model = nn.Linear(2, 1)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)
    x = torch.randn(4, 2)

    def closure():
        optimizer.zero_grad()
        loss = model(x).square().sum()
        loss.backward()
        return loss

    with ModuleStatsHook(every=1) as stats:
        optimizer.step(closure)
        optimizer.step(closure)
    assert {row.name for row in stats.parameter_rows()} == {"weight", "bias"}


# Mixed precision.


@BOTH
def test_the_loss_scale_is_taken_out_of_gradients(hook_class):
    """Gradients under a GradScaler are those without it, and the scale is told."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    x = torch.randn(16, 4)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)

    def run(scale, scaler):
        model.zero_grad()
        loss = model(x).square().mean()
        with hook_class(every=1, activations=False, scaler=scaler) as stats:
            loss = model(x).square().mean()
            loss = loss * scale
            loss.backward()
        return {(row.path, row.name, row.leaf): row for row in stats.rows() if row.path}

    plain = run(1.0, None)
    for given in (scaler, lambda: 1024.0):
        scaled = run(1024.0, given)
        assert set(scaled) == set(plain)
        for key, row in scaled.items():
            expected = plain[key]
            assert row.scale == 1024.0
            assert row.mean == pytest.approx(expected.mean, rel=1e-5, abs=1e-12)
            assert row.norm == pytest.approx(expected.norm, rel=1e-5)
            assert row.abs_max == pytest.approx(expected.abs_max, rel=1e-5)
            assert row.std == pytest.approx(expected.std, rel=1e-5, abs=1e-12)
            assert row.histogram == expected.histogram
    assert run(1.0, torch.amp.GradScaler("cpu", enabled=False)).keys() == plain.keys()


@pytest.mark.parametrize("fused", [False, True])
def test_parameters_under_a_scaler_are_those_that_the_optimizer_uses(fused):
    """`scaler.step` takes the scale out before the step, a fused optimizer inside of it."""
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    twin = copy.deepcopy(model)
    x = torch.randn(16, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    with ModuleStatsHook(every=1, scaler=scaler) as stats:
        scaler.scale(model(x).square().mean()).backward()
        scaler.step(optimizer)
        scaler.update()
    twin(x).square().mean().backward()
    for row, p in zip(stats.parameter_rows(), twin.parameters(), strict=True):
        assert row.grad_norm == pytest.approx(float(p.grad.norm()), rel=1e-5)
        ratio = float(0.1 * p.grad.norm() / p.detach().norm())
        assert row.update_ratio == pytest.approx(ratio, rel=1e-4)
        assert row.scale == (1024.0 if fused else 1.0)


@pytest.mark.parametrize("fused", [False, True])
def test_a_step_that_the_scaler_skips_is_not_counted(fused):
    """An overflow: no update happens, so none is measured."""
    model = nn.Linear(1, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    with ModuleStatsHook(every=1, scaler=scaler) as stats:
        for value in (math.inf, 1.0):
            scaler.scale(model(torch.full((1, 1), value))).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    (row,) = stats.parameter_rows()
    assert (row.steps, row.nonfinite) == (1, 0)
    backward = next(row for row in stats.rows() if row.direction == "backward")
    assert backward.scale == 512.0


# Nothing is changed, nothing is kept.


@BOTH
def test_r2_results_are_bitwise_the_same(hook_class, case):
    """Loss, gradients, weights after a step, and the random generator."""
    plain = copy.deepcopy(case.model.state_dict())
    state = torch.get_rng_state()

    def run():
        optimizer = torch.optim.AdamW(case.model.parameters(), lr=0.01)
        loss = case.loss()
        loss.backward()
        gradients = [None if p.grad is None else p.grad.clone() for p in case.model.parameters()]
        optimizer.step()
        optimizer.zero_grad()
        return loss, gradients, [p.detach().clone() for p in case.model.parameters()]

    expected = run()
    after = torch.get_rng_state()
    case.model.load_state_dict(plain)
    torch.set_rng_state(state)
    with hook_class(every=1):
        found = run()
    assert torch.equal(found[0], expected[0])
    for mine, theirs in zip(found[1] + found[2], expected[1] + expected[2], strict=True):
        assert theirs is None if mine is None else torch.equal(mine, theirs)
    assert torch.equal(torch.get_rng_state(), after)


def size_of(value, seen):
    """The bytes of all that an object holds, tensors included; modules are not followed."""
    if id(value) in seen or isinstance(value, (type, nn.Module, type(sys))) or callable(value):
        return 0
    seen.add(id(value))
    if isinstance(value, torch.Tensor):
        return value.nbytes
    size = sys.getsizeof(value)
    if isinstance(value, dict):
        inner = [*value.keys(), *value.values()]
    elif isinstance(value, (list, tuple, set, frozenset)):
        inner = list(value)
    else:
        slots = [getattr(value, n, None) for n in getattr(type(value), "__slots__", ())]
        inner = [*slots, *vars(value).values()] if hasattr(value, "__dict__") else slots
    return size + sum(size_of(each, seen) for each in inner)


@BOTH
def test_memory_does_not_grow_over_2000_passes(hook_class):
    """The bytes of the hook's state and the number of tensors alive are the same at the end."""
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x, y = torch.randn(8, 4), torch.randint(0, 2, (8,))

    def passes(count):
        for _ in range(count):
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
        gc.collect()
        stats.rows()
        tensors = sum(issubclass(type(each), torch.Tensor) for each in gc.get_objects())
        return size_of(vars(stats), set()), tensors, len(gc.get_objects())

    with hook_class(every=2) as stats:
        passes(100)
        before = passes(10)
        after = passes(1890)
    assert after[1] == before[1]
    assert after[0] <= before[0] * 1.05 + 2000  # integers and floats get longer
    assert after[2] <= before[2] + 500
    calls = {row.calls for row in stats.rows() if row.path == "1"}
    assert calls == {1000}


def test_modules_that_are_made_anew_in_each_pass_do_not_pile_up():
    """A loss module made in every forward: what is known of dead ones is dropped."""
    model = nn.Linear(2, 2)
    with ModuleStatsHook(every=100) as stats:
        for _ in range(500):
            nn.MSELoss()(model(torch.ones(1, 2)), torch.ones(1, 2))
    assert len(stats._updates._modules) <= 130
    assert len(stats.rows()) <= 10


@BOTH
def test_r5_no_tensor_outlives_its_pass(hook_class):
    """What was measured is not held."""
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    gc.collect()
    gc.disable()
    try:
        with hook_class(every=1):
            out = model(torch.randn(1, 2))
            out.sum().backward()
            optimizer.step()
            alive = [weakref.ref(each) for each in (out, model[0].weight.grad)]
            optimizer.zero_grad()
            del out
            assert [each() for each in alive] == [None, None]
        key = weakref.ref(model)
        del model, optimizer
        assert key() is None
    finally:
        gc.enable()


def test_no_optimizer_hook_stays():
    """Optimizer steps are watched while the hook is registered somewhere."""
    from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

    stats = ModuleStatsHook()
    layer = nn.Linear(1, 1)
    with stats:
        hookline.add_hook(layer, stats)
        assert len(_global_optimizer_pre_hooks) == 1
    assert len(_global_optimizer_pre_hooks) == 1
    hookline.delete_hook(layer, "StatsHook")
    assert len(_global_optimizer_pre_hooks) == 0
    assert len(_global_optimizer_post_hooks) == 0


def test_function_hooks_do_not_see_the_measuring_of_parameters():
    """What the hook computes at a step is no function of the program's."""
    from hookline.hooks.timer import FunctionTimerHook

    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def names():
        with FunctionTimerHook() as timer:
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
        return sorted(timer.summary())

    plain = names()
    with ModuleStatsHook(every=1):
        assert names() == plain


def test_on_a_device_measurements_are_read_together(monkeypatch):
    """What waits is read when asked for, and never more than a bound at once."""
    monkeypatch.setattr(torch.Tensor, "is_cpu", False)
    monkeypatch.setattr(tally.Tally, "LIMIT", 5)
    reads = []
    plain = tally.numbers_of
    monkeypatch.setattr(tally, "numbers_of", lambda parts: reads.append(len(parts)) or plain(parts))
    model = nn.Linear(2, 2)
    x = torch.randn(3, 2)
    with ModuleStatsHook(every=1, gradients=False, parameters=False, histogram=False) as stats:
        for _ in range(7):
            out = model(x)
    assert reads == [5, 0]
    assert_row_without_histogram(stats.rows()[0], [out.detach().double()] * 7)


def assert_row_without_histogram(row, values):
    """The row, where no magnitudes were counted."""
    whole = torch.cat([value.flatten() for value in values])
    assert (row.calls, row.count, row.histogram) == (len(values), whole.numel(), ())
    assert row.mean == pytest.approx(float(whole.mean()), rel=1e-6)
    assert row.std == pytest.approx(float(whole.std(correction=0)), rel=1e-6)


@BOTH
def test_what_cannot_be_read_is_left_alone(hook_class):
    """Meta tensors, integers, and tensors inside a transform have no row; nothing fails."""
    model = nn.ReLU()
    x = torch.ones(2, 2)
    ids = torch.arange(3)
    meta = torch.ones(2, device="meta")
    with hook_class(every=1) as stats:
        model(meta)
        model(ids)
        torch.vmap(model)(x)
        with torch.inference_mode():
            model(x)
    assert [(row.mode, row.calls) for row in stats.rows()] == [("no_grad", 1)]


def test_a_closure_makes_the_gradients_of_its_own_step():
    """They are read when the step is over; the first step counts too."""
    net, norms = nn.Linear(1, 1, bias=False), iter((1.0, 10.0, 100.0))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)

    def closure():
        optimizer.zero_grad()
        loss = (net(torch.ones(1, 1)) * next(norms)).sum()
        loss.backward()
        return loss

    with ModuleStatsHook(every=1) as stats:
        optimizer.step(closure)
        before = net.weight.item()
        optimizer.step(closure=closure)
        change = abs(net.weight.item() - before)
        optimizer.step(closure)
    (row,) = stats.parameter_rows()
    assert (row.name, row.steps) == ("weight", 3)
    assert (row.grad_norm, row.grad_norm_max, row.grad_norm_last) == (37.0, 100.0, 100.0)
    assert change == pytest.approx(5.0)
    assert row.update_ratio_max >= change / abs(before)


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("hook_class", [ModuleStatsHook, FunctionStatsHook])
def test_gradients_inside_of_a_checkpoint_are_measured_once(hook_class, reentrant):
    """In the reentrant kind it is the repeat that has a backward."""
    inner = nn.Sequential(nn.Linear(4, 4), nn.Tanh())

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.checkpoints = inner, True

        def forward(self, x):
            run = checkpoint if self.checkpoints else lambda part, x, **_: part(x)
            return run(self.inner, x, use_reentrant=reentrant).sum()

    def measured(checkpoints):
        net.checkpoints = checkpoints
        with hook_class(every=1) as hook:
            net(torch.ones(3, 4, requires_grad=True)).backward()
        rows = hook.rows()
        return sorted((r.path or "", r.name, r.direction, r.calls, r.norm) for r in rows)

    net = Net()
    assert measured(checkpoints=True) == measured(checkpoints=False)


@pytest.mark.parametrize("hook_class", [ModuleStatsHook, FunctionStatsHook])
def test_a_batched_gradient_has_no_numbers_to_look_at(hook_class):
    """`is_grads_batched` goes as without the hook."""
    net, x = nn.Linear(3, 2), torch.ones(4, 3, requires_grad=True)

    def gradients():
        many = torch.eye(8).view(8, 4, 2)
        return torch.autograd.grad(net(x), x, many, is_grads_batched=True)[0]

    plain = gradients()
    with hook_class(every=1) as stats, hookline.capture(net, "", what="grad") as acts:
        assert torch.equal(gradients(), plain)
    assert {row.direction for row in stats.rows()} == {"forward"}
    assert repr(acts[""].grad) == "<batched gradient, not captured>"


def test_a_tensor_of_nan_tells_listeners_of_no_numbers():
    """Its norm is not known, which is not 0; and it has no part in the mean."""
    looked = []
    with ModuleStatsHook(every=1) as stats:
        stats.listen(lambda what, leaf, number, found: looked.append(found))
        identity = nn.Identity()
        identity(torch.full((3,), math.nan))
        identity(torch.full((4,), 2.0))
        (row,) = stats.rows()
    assert [math.isnan(value) for value in looked[0]] == [True, True, True, False]
    assert looked[0].nonfinite == 3
    assert (row.calls, row.norm, row.nan) == (2, 4.0, 3)
