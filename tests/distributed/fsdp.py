"""Checks of `fully_shard` and of sharded tensors, for two processes; see `pair.py`."""

from __future__ import annotations

import io
import math
from contextlib import nullcontext
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import _functional_collectives as collectives
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn import functional as F

from hookline import FunctionHook, ModuleHook, capture, function_hooks, module_hooks, watch
from tests.distributed.manners import (
    IMAGES,
    MANNERS,
    assert_alone,
    assert_unchanged,
    batch,
    build,
    gradients,
    hooked,
    module_scope,
    same,
    train,
    watched,
)


def mesh():
    return init_device_mesh("cpu", (2,))


def shard(model, **options):
    """The blocks and the head apart, and then the rest."""
    for part in (*model.blocks, model.head, model):
        fully_shard(part, mesh=mesh(), **options)
    return model


def loss_of(model, step=0):
    x, y = batch(step)
    torch.manual_seed(dist.get_rank())
    return F.cross_entropy(model(x), y)


# Nothing changes.


def check_r2_every_kind_of_hook_leaves_the_training_as_it_is():
    assert_unchanged(shard, thorough=True)


def check_r2_with_parameters_kept_after_the_forward():
    assert_unchanged(partial(shard, reshard_after_forward=False))


def check_r2_with_mixed_precision():
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    assert_unchanged(partial(shard, mp_policy=policy), make=partial(build, nn.LayerNorm))


def check_r2_with_prefetching():
    def wrap(model):
        shard(model)
        first, second = model.blocks
        first.set_modules_to_forward_prefetch([second])
        second.set_modules_to_forward_prefetch([model.head])
        model.head.set_modules_to_backward_prefetch([second])
        second.set_modules_to_backward_prefetch([first])
        return model

    assert_unchanged(wrap)


def check_r2_with_blocks_in_one_group():
    def wrap(model):
        fully_shard(list(model.blocks), mesh=mesh())
        return fully_shard(model, mesh=mesh())

    assert_unchanged(wrap)


def check_r2_with_activation_checkpoints():
    def wrap(model):
        for place, block in enumerate(model.blocks):
            model.blocks[place] = checkpoint_wrapper(block)
        return shard(model)

    assert_unchanged(wrap)


def check_r2_with_gradients_accumulated_unreduced():
    def accumulate(model):
        model.set_requires_gradient_sync(False)
        loss_of(model, 0).backward()
        model.set_requires_gradient_sync(True)
        loss_of(model, 1).backward()
        return gradients(model)

    assert_unchanged(shard, accumulate)


def check_hooks_in_one_process_alone():
    assert_alone(shard)


# What hooks see.


def check_c40_events_are_those_of_the_bare_model():
    rows = []
    for manner in (module_scope, watched):
        for wrap in (lambda model: model, shard):
            before, after = build(), build()
            with hooked(before, manner) as seen:
                loss_of(wrap(before)).backward()
            rows.append(seen.rows)
            wrap(after)
            with hooked(after, manner) as seen:
                loss_of(after).backward()
            rows.append(seen.rows)
    assert len(rows[0]) == 60
    assert all(row == rows[0] for row in rows[1:])


class Forms(ModuleHook):
    """Notes which form a module's weight and its gradient have: whole, or sharded."""

    def __init__(self):
        self.rows = {}

    def note(self, call):
        weight = call.module.weight
        grad = None if weight.grad is None else form(weight.grad)
        self.rows[call.path, call.phase.value] = form(weight), grad

    forward_preprocess = forward_postprocess = note
    backward_preprocess = backward_postprocess = note


def form(tensor):
    return "sharded" if isinstance(tensor, DTensor) else "whole"


def check_c40_the_form_of_parameters_in_hooks():
    """At a sharded module: sharded before and after, whole inside; the order of set-up is one."""
    for before in (True, False):
        model, forms = build(), Forms()
        if not before:
            shard(model)
        with watch(model, forms, where=["head", "blocks.0.linear"]):
            if before:
                shard(model)
            loss_of(model).backward()
        assert forms.rows == {
            ("head", "forward_pre"): ("sharded", None),
            ("head", "forward"): ("sharded", None),
            ("head", "backward_pre"): ("whole", None),
            ("head", "backward"): ("sharded", "sharded"),
            ("blocks.0.linear", "forward_pre"): ("whole", None),
            ("blocks.0.linear", "forward"): ("whole", None),
            ("blocks.0.linear", "backward_pre"): ("whole", None),
            ("blocks.0.linear", "backward"): ("whole", "whole"),
        }


def check_c40_functions_are_given_whole_parameters():
    """In the forward also of a sharded module: what its forward computes with."""
    full = build()
    seen = {}

    class Weights(FunctionHook):
        def forward_preprocess(self, function, in_data):
            seen[function.label] = in_data[1].detach().clone()

    model = shard(build())
    with watch(model, Weights(), where=["head:linear", "**.linear:linear"]):
        loss_of(model)
    assert torch.equal(seen["head:linear[0]"], full.head.weight)
    assert torch.equal(seen["blocks.1.linear:linear[0]"], full.blocks[1].linear.weight)
    assert form(model.head.weight) == "sharded"


def check_c40_statistics_of_sharded_parameters():
    """Of the part in each process; squares add up to those of the whole, averaged gradient."""
    bare = build()
    loss_of(bare).backward()
    mean = {}
    for name, parameter in bare.named_parameters():
        gradient = parameter.grad / 2
        dist.all_reduce(gradient)
        mean[name] = gradient

    model, stats = shard(build()), module_hooks.StatsHook(every=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, stats):
        loss_of(model).backward()
        optimizer.step()
    rows = stats.parameter_rows()
    assert [row.name for row in rows] == list(mean)
    assert {row.note for row in rows} == {"sharded"}
    squares = torch.tensor([row.grad_norm**2 for row in rows])
    dist.all_reduce(squares)
    expected = torch.stack([gradient.norm() for gradient in mean.values()])
    torch.testing.assert_close(squares.sqrt(), expected, rtol=1e-4, atol=1e-6)
    assert {row.name: row.shape for row in rows} == {n: g.shape for n, g in mean.items()}


def check_c40_a_bad_shard_is_named_by_the_process_that_has_it():
    """Everywhere, where the parameter is whole in the call; at a sharded module, where it lies."""
    for path, here in (("blocks.0.linear", {0, 1}), ("head", {1})):
        model, nonfinite = shard(build()), module_hooks.NonFiniteHook(backward=False)
        weight = model.get_submodule(path).weight
        if dist.get_rank() == 1:
            with torch.no_grad():
                weight.to_local()[0, 0] = math.nan
        with watch(model, nonfinite):
            loss_of(model)
        assert nonfinite.first.path == path
        named = nonfinite.first.cause == f"{path}.weight"
        assert named == (dist.get_rank() in here), nonfinite.first


def check_r4_state_dicts_are_those_of_the_bare_model():
    whole = StateDictOptions(full_state_dict=True)
    model = shard(build())
    plain = get_model_state_dict(model), get_model_state_dict(model, options=whole)
    assert list(plain[0]) == list(build().state_dict())
    for manner in MANNERS:
        with hooked(model, manner):
            state = get_model_state_dict(model), get_model_state_dict(model, options=whole)
            assert repr(state) == repr(plain)
            loss_of(model)
            model.load_state_dict(plain[0])


# Errors.


def check_a_failing_hook():
    """Raised in both processes, the next step is right again once FSDP's own state is reset."""
    expected = train(shard(build(nn.LayerNorm)))
    for phase in ("forward", "backward"):
        model = shard(build(nn.LayerNorm))

        def fails(*_):
            raise ZeroDivisionError

        class Fails(ModuleHook):
            forward_postprocess = fails if phase == "forward" else ModuleHook.forward_postprocess
            backward_preprocess = fails if phase == "backward" else ModuleHook.backward_preprocess

        with watch(model, Fails(), where="blocks.0"):
            with pytest.raises(ZeroDivisionError) as caught:
                loss_of(model).backward()
            assert "blocks.0 (Block)" in caught.value.__notes__[0]
        model.reset_iter_state()
        model.zero_grad()
        assert same(train(model), expected), phase


# Sharded activations.


class Wide(nn.Module):
    """Two layers, the second of which adds up parts that lie in different processes."""

    def __init__(self):
        super().__init__()
        self.up, self.act, self.down = nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)

    def forward(self, x):
        return self.down(self.act(self.up(x)))


def parallel():
    torch.manual_seed(0)
    plan = {
        "up": ColwiseParallel(use_local_output=False),
        "down": RowwiseParallel(use_local_output=False),
    }
    return parallelize_module(Wide(), mesh(), plan)


def step(model):
    model.zero_grad()
    loss = model(IMAGES[:4]).full_tensor().square().sum()
    loss.backward()
    return [loss.detach(), *gradients(model)]


HOOKS = {
    f"{level} {name}": partial(getattr(home, name), **options)
    for level, home in (("module", module_hooks), ("function", function_hooks))
    for name, options in {
        "CaptureHook": {"what": ("input", "output", "grad")},
        "NonFiniteHook": {},
        "PrintHook": {"file": io.StringIO()},
        "RangeHook": {},
        "StatsHook": {"every": 1},
        "TimerHook": {},
    }.items()
}


def check_hooks_on_sharded_activations_ask_no_other_process():
    """No ready-made hook sends anything: on in one process alone, all stays in step."""
    sent = []
    for name in ("all_reduce", "all_gather_tensor", "reduce_scatter_tensor", "broadcast"):
        original = getattr(collectives, name)

        def counted(*args, original=original, **kwargs):
            sent.append(original.__name__)
            return original(*args, **kwargs)

        setattr(collectives, name, counted)
    model = parallel()
    expected = step(model)
    sent.clear()
    step(model)
    count = len(sent)
    assert count == 1
    for place, (name, hook) in enumerate(HOOKS.items()):
        sent.clear()
        with hook() if dist.get_rank() == place % 2 else nullcontext():
            found = step(model)
        assert (name, len(sent)) == (name, count)
        assert same(found, expected), name


def check_sharded_masks_are_no_fault():
    """What tells a mask from a fault is compared as far as it is here."""
    scores = distribute_tensor(torch.zeros(4, 6), mesh(), [Shard(0)])
    hidden = distribute_tensor(torch.eye(4, 6).bool(), mesh(), [Shard(0)])
    with function_hooks.NonFiniteHook() as nonfinite:
        masked = scores.masked_fill(hidden, -math.inf)
        added = scores + masked
        assert not nonfinite.rows()
        _ = added.softmax(-1).log()
    assert [(row.name, row.verdict) for row in nonfinite.rows()] == [("log", "producer")]


def check_captured_sharded_activations():
    """They are kept as they are: sharded, or a part of a sum; `reduce` takes the part here."""
    model = parallel()
    with capture(model, "up", "down:linear", "act:relu", what="output") as acts:
        step(model)
        size = acts.nbytes
    up, partial_sum = acts["up"].output, acts["down:linear"].output
    assert isinstance(up, DTensor)
    assert up.placements[0].is_shard(1)
    assert partial_sum.placements[0].is_partial()
    assert size == 4 * (4 * 16 * 2 + 4 * 10)

    with capture(model, "up", reduce=lambda tensor: tensor.to_local()) as acts:
        step(model)
    assert torch.equal(acts["up"].output, up.to_local())
    weight, bias = (parameter.full_tensor() for parameter in model.up.parameters())
    torch.testing.assert_close(up.full_tensor(), F.linear(IMAGES[:4], weight, bias))


def check_printed_sharded_activations():
    """The values are those here."""
    text = io.StringIO()
    model = parallel()
    with capture(model, "up") as acts, watch(model, module_hooks.PrintHook(file=text), where="up"):
        step(model)
    here = acts["up"].output.to_local()
    first = text.getvalue().splitlines()[0]
    assert "float32[4, 32] cpu sharded" in first
    assert f"min={here.min():.4g} mean={here.double().mean():.4g} max={here.max():.4g}" in first
