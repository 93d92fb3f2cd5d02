"""Checks of `DistributedDataParallel`, which two processes run together; see `pair.py`."""

from __future__ import annotations

import math
import pickle
import tempfile
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    CheckpointImpl,
    checkpoint_wrapper,
)
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
)
from torch.nn import functional as F

from hookline import capture, register_forward_hook, register_full_backward_hook, select, watch
from hookline.module_hooks import NonFiniteHook, StatsHook, TimerHook
from tests.distributed.manners import (
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

DDP = nn.parallel.DistributedDataParallel


def loss_of(model, step=0):
    x, y = batch(step)
    torch.manual_seed(dist.get_rank())  # the same dropout each time
    return F.cross_entropy(model(x), y)


def local_gradients():
    """The gradients of this process's data alone, from a model that is not wrapped."""
    net = build()
    loss_of(net).backward()
    return gradients(net)


def average(tensors):
    """The mean over the processes, as DDP forms it."""
    for tensor in tensors:
        dist.all_reduce(tensor.div_(2))
    return tensors


# Nothing changes.


def check_r2_every_kind_of_hook_leaves_the_training_as_it_is():
    assert_unchanged(DDP, thorough=True)


def check_r2_with_unused_parameters():
    assert_unchanged(partial(DDP, find_unused_parameters=True), partial(train, blocks=1))


def check_r2_with_a_static_graph():
    assert_unchanged(partial(DDP, static_graph=True), partial(train, steps=3))


def check_r2_with_gradients_as_views_of_buckets():
    assert_unchanged(partial(DDP, gradient_as_bucket_view=True))


def check_r2_with_small_buckets_and_compressed_gradients():
    def wrap(net):
        model = DDP(net, bucket_cap_mb=0.001)
        model.register_comm_hook(None, fp16_compress_hook)
        return model

    assert_unchanged(wrap)


def check_r2_with_gradients_accumulated_by_no_sync():
    def accumulate(model):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        trace = []
        for _ in range(2):
            with model.no_sync():
                loss_of(model, 0).backward()
                trace += gradients(model)
            loss_of(model, 1).backward()
            trace += gradients(model)
            optimizer.step()
            optimizer.zero_grad()
        return trace

    assert_unchanged(DDP, accumulate)


def check_r2_with_activation_checkpoints():
    for kind, options in (
        (CheckpointImpl.NO_REENTRANT, {}),
        (CheckpointImpl.REENTRANT, {"static_graph": True}),
    ):

        def wrap(net, kind=kind, options=options):
            for place, block in enumerate(net.blocks):
                net.blocks[place] = checkpoint_wrapper(block, kind)
            return DDP(net, **options)

        assert_unchanged(wrap, partial(train, steps=3))


def check_hooks_in_one_process_alone():
    assert_alone(DDP)


# What hooks see.


def check_c30_the_same_selection_with_and_without_the_wrapper():
    net = build()
    model = DDP(net)
    assert list(select(model)) == list(select(net)) == list(net.named_modules())
    for pattern in ("blocks.*", "**.linear", nn.Linear, "", net.head):
        assert select(model, pattern).paths == select(net, pattern).paths


def check_c30_events_are_those_of_the_bare_model():
    """In a scope and watched, set before and after wrapping: the same, and nested."""
    for manner in (module_scope, watched):
        rows = []
        for wrap in (lambda net: net, DDP, partial(DDP, find_unused_parameters=True)):
            before, after = build(), build()
            with hooked(before, manner) as seen:
                model = wrap(before)  # the backward of some needs the wrapper to be alive
                loss_of(model).backward()
            rows.append(seen.rows)
            model = wrap(after)
            with hooked(after, manner) as seen:
                loss_of(model).backward()
            rows.append(seen.rows)
        assert len(rows[0]) == 60
        assert all(row == rows[0] for row in rows[1:])
        assert_nested(rows[0])


def assert_nested(rows):
    open_calls = []
    ends = {"forward": "forward_pre", "backward": "backward_pre"}
    for phase, path, index in rows:
        if phase in ends:
            assert open_calls.pop() == (ends[phase], path, index)
        else:
            open_calls.append((phase, path, index))
    assert not open_calls


def check_c30_gradients_in_hooks_are_local():
    """Gradients of outputs are those of this process's loss; nothing of them is averaged."""
    net = build()
    with capture(net, "blocks.*", "head", what=("output", "grad")) as expected:
        loss_of(net).backward()
    model = DDP(build())
    with capture(model, "blocks.*", "head", what=("output", "grad")) as found:
        loss_of(model).backward()

    assert list(found) == list(expected) == ["blocks.0", "blocks.1", "head"]
    for path in found:
        assert torch.equal(found[path].output, expected[path].output)
        assert torch.equal(found[path].grad, expected[path].grad)
    theirs = [None, None]
    dist.all_gather_object(theirs, found["head"].grad)
    assert not torch.equal(*theirs)


def check_c30_parameters_gradients_in_hooks():
    """Local while the backward runs (or on the way to the average), the average afterwards."""
    local = local_gradients()
    mean = average([gradient.clone() for gradient in local])
    for options, factor in (({}, 1.0), ({"gradient_as_bucket_view": True}, 0.5)):
        net, seen = build(), []
        model = DDP(net, **options)
        with register_full_backward_hook(
            net.head, lambda module, *_, seen=seen: seen.append(module.weight.grad.clone())
        ):
            loss_of(model).backward()
        place = [parameter is net.head.weight for parameter in net.parameters()].index(True)
        assert torch.equal(seen[0], local[place] * factor)
        assert same(gradients(net), mean)


def check_statistics_and_times_are_of_this_process():
    """Activations are local; parameters' gradients are those that the optimizer used: averaged."""
    net = build()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    model, stats, timer = DDP(net), StatsHook(every=1), TimerHook()
    with watch(model, stats, timer):
        loss_of(model).backward()
        optimizer.step()
    mean = average(local_gradients())

    rows = stats.parameter_rows()
    assert [row.name for row in rows] == [name for name, _ in net.named_parameters()]
    for row, gradient in zip(rows, mean, strict=True):
        assert math.isclose(row.grad_norm, gradient.norm().item(), rel_tol=1e-5, abs_tol=1e-7)
    assert set(timer.summary()) == {path or "Net" for path, _ in net.named_modules()} - {"blocks"}


def check_a_value_that_is_not_finite_is_found_where_it_is():
    """In one process the activations; in both the gradients, since averaging spreads them."""
    net = build()
    model = DDP(net)
    x, y = batch(0)
    if dist.get_rank() == 1:
        x = x.clone()
        x[0, 0] = math.nan
    nonfinite = NonFiniteHook(backward=False)
    with watch(model, nonfinite):
        F.cross_entropy(model(x), y).backward()
    assert bool(nonfinite.rows()) == (dist.get_rank() == 1)
    assert all(parameter.grad.isnan().any() for parameter in net.stem[0].parameters())


# Errors.


def check_a_failing_hook_raises_in_its_process():
    """The other waits in its next collective, and goes on once this one takes its step again."""
    expected = train(DDP(build(nn.LayerNorm)))
    net = build(nn.LayerNorm)  # without buffers, a forward sends nothing that would now be missed
    model = DDP(net)

    def fails(module, args, out):
        raise ZeroDivisionError

    if dist.get_rank() == 1:
        with register_forward_hook(net.blocks[0], fails):
            with pytest.raises(ZeroDivisionError) as caught:
                model(batch(0)[0])
            assert "blocks.0 (Block)" in caught.value.__notes__[0]
    assert same(train(model), expected)


# What leaves the process.


def check_r4_state_dicts_and_checkpoints_are_those_of_the_bare_model():
    """By torch's distributed state dicts, and through files of a distributed checkpoint."""
    net = build()
    model, optimizer = DDP(net), torch.optim.AdamW(net.parameters())
    loss_of(model).backward()
    optimizer.step()
    plain = get_model_state_dict(model), get_optimizer_state_dict(model, optimizer)
    for manner in MANNERS:
        with hooked(net, manner):
            loss_of(model)
            net.load_state_dict(plain[0])
            state = get_model_state_dict(model), get_optimizer_state_dict(model, optimizer)
            assert repr(state) == repr(plain)
            assert b"hookline" not in pickle.dumps(model.module)
    folder = [tempfile.mkdtemp()]
    dist.broadcast_object_list(folder)
    with hooked(net, watched):
        loss_of(model)
        dcp.save(plain[0], checkpoint_id=folder[0])
    other = build()
    nn.init.zeros_(other.head.weight)
    state = get_model_state_dict(other)
    dcp.load(state, checkpoint_id=folder[0])
    with hooked(other, watched):
        set_model_state_dict(other, state)
        loss_of(other)
    assert all(b"hookline" not in file.read_bytes() for file in Path(folder[0]).iterdir())
    assert torch.equal(other.head.weight, net.head.weight)
