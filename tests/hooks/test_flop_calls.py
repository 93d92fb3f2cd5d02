"""Whose the FLOPs are, and what is counted at all."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import flop_registry, register_flop_formula

import hookline
from hookline import ModuleHook
from hookline.function_hooks import FlopHook as FunctionFlopHook
from hookline.module_hooks import FlopHook
from hookline.torch_base.modes import dispatch_modes
from tests.hooks.flop_net import BODY, HEAD, STEP, Net, batch, own_flops

LEVELS = [FlopHook, FunctionFlopHook]


@pytest.mark.parametrize("make", LEVELS)
def test_operators_belong_to_the_innermost_call(make):
    """A layer's own FLOPs are those of its own call, whatever is around it."""
    net = Net()
    with make() as flops:
        net(batch()).sum().backward()

    assert own_flops(flops) == STEP
    assert flops.total_flops() == sum(STEP.values())


def test_what_a_forward_does_itself_is_its_own():
    """A product between the layers is the root's own; totals hold what is inside."""
    weight = torch.ones(4, 4)
    net = Net(lambda x: x @ weight)
    with FlopHook() as flops:
        net(batch())

    rows = {row.path: row for row in flops.rows()}
    assert (rows[""].self_flops, rows[""].total_flops) == (BODY, BODY + BODY + HEAD)
    assert (rows["body"].self_flops, rows["body"].total_flops) == (0, BODY)
    assert dict(rows[""].operators) == {"aten.mm": BODY}
    assert rows["body.1"].calls == 1
    assert rows["body.1"].total_flops == 0


@pytest.mark.parametrize("make", LEVELS)
def test_rows_tell_modes_apart(make):
    """Train, eval and no-grad passes have rows of their own."""
    net = Net()
    with make() as flops:
        net(batch())
        with torch.no_grad():
            net(batch())
        net.eval()(batch())

    heads = {row.mode: row.calls for row in flops.rows() if row.path == "head"}
    assert heads == {"train": 1, "no_grad": 1, "eval": 1}


def test_what_runs_outside_of_modules_counts_in_a_scope():
    """It has rows without a path, by direction and mode, and is part of the total."""
    weight = torch.ones(2, 5, requires_grad=True)
    with FlopHook() as flops:
        loss = (Net()(batch()) @ weight).sum()
        loss.backward()
        with torch.no_grad():
            _ = weight.T @ weight

    outside = {(r.direction, r.mode): r for r in flops.rows() if r.path is None}
    one = 2 * 3 * 2 * 5
    assert {key: row.self_flops for key, row in outside.items()} == {
        ("forward", "train"): one,
        ("backward", "train"): 2 * one,
        ("forward", "no_grad"): 2 * 5 * 2 * 5,
    }
    assert {(row.root, row.type, row.calls, row.level) for row in outside.values()} == {
        ("", "", 0, "module")
    }
    assert flops.total_flops() == sum(row.self_flops for row in flops.rows())


def test_chosen_modules_take_what_others_inside_of_them_run():
    """With `watch`, the innermost chosen module; what is in none of them is left out."""
    net = Net()
    flops = FlopHook()
    with hookline.watch(net, flops, where=["body"]):
        net(batch()).sum().backward()
        _ = torch.ones(3, 3) @ torch.ones(3, 3)

    assert own_flops(flops) == {("body", "forward"): BODY, ("body", "backward"): BODY}


def test_chosen_functions_are_counted_alone():
    """With `watch`, functions of other modules and outside are left out."""
    net = Net()
    flops = FunctionFlopHook()
    with hookline.watch(net, flops, where=["head:linear"]):
        net(batch()).sum().backward()
        _ = torch.ones(3, 3) @ torch.ones(3, 3)

    assert own_flops(flops) == {("head", "forward"): HEAD, ("head", "backward"): 2 * HEAD}


@pytest.mark.parametrize("reentrant", [False, True])
def test_r8_a_forward_that_a_checkpoint_repeats_is_told_apart(reentrant):
    """It has rows of its own; one that ends early, before the last product, has less."""
    net = Net()
    x = batch().requires_grad_()
    with FlopHook() as flops:
        checkpoint(net, x, use_reentrant=reentrant).sum().backward()

    repeated = {("body.0", "recompute"): BODY}
    if reentrant:
        repeated["head", "recompute"] = HEAD
    assert own_flops(flops) == {**STEP, ("body.0", "backward"): 2 * BODY, **repeated}


@pytest.mark.parametrize("make", LEVELS)
def test_the_backward_of_a_forward_outside_is_counted(make):
    """Forward before the scope, backward inside: all of it counts, by function or as outside."""
    loss = Net()(batch()).sum()
    with make() as flops:
        loss.backward()

    assert flops.total_flops() == BODY + 2 * HEAD
    assert {row.direction for row in flops.rows() if row.self_flops} == {"backward"}


def test_a_gradient_of_a_gradient_counts():
    """All three runs are in the total: what torch counts."""
    from torch.utils.flop_counter import FlopCounterMode

    x, net = batch().requires_grad_(), Net()
    first, _, second = *net.body, net.head

    def work(model):
        (grad,) = torch.autograd.grad(model(x).square().sum(), x, create_graph=True)
        grad.square().sum().backward()

    with FlopCounterMode(display=False) as counter:  # which raises where modules are called
        work(
            lambda x: F.linear(
                F.linear(x, first.weight, first.bias).tanh(), second.weight, second.bias
            )
        )
    with FlopHook() as flops:
        work(net)
    assert flops.total_flops() == counter.get_total_flops()


def test_c11_what_hooks_compute_does_not_count():
    """A product in another hook's callback is nobody's."""

    class Costly(ModuleHook):
        def forward_postprocess(self, call):
            _ = torch.ones(9, 9) @ torch.ones(9, 9)

    with FlopHook() as flops, Costly():
        Net()(batch())
    assert flops.total_flops() == BODY + HEAD


@pytest.mark.parametrize("make", LEVELS)
def test_c9_a_call_that_raises_counts_up_to_there(make):
    """The next pass is counted as if nothing had been; nothing stays on."""
    net = Net(lambda x: {}[x])
    flops = make()
    with hookline.watch(net, flops):
        with pytest.raises(KeyError):
            net(batch())
        assert own_flops(flops) == {("body.0", "forward"): BODY}
        assert not list(dispatch_modes)
        net.between = lambda x: x
        net(batch()).sum().backward()

    assert own_flops(flops) == {**STEP, ("body.0", "forward"): 2 * BODY}


@pytest.mark.parametrize("make", LEVELS)
def test_c9_a_backward_that_raises_counts_up_to_there(make):
    """The mode is gone with the run, and the next run is counted anew."""
    net = Net()
    flops = make()
    with hookline.watch(net, flops):
        out = net(batch())
        handle = net.body[1].register_full_backward_pre_hook(lambda *_: 1 / 0)
        out = net(batch())
        with pytest.raises(ZeroDivisionError):
            out.sum().backward()
        assert not list(dispatch_modes)
        handle.remove()
        before = own_flops(flops)
        net(batch()).sum().backward()

    after = Counter(own_flops(flops))
    after.subtract(before)
    assert {key: n for key, n in after.items() if n} == STEP


def test_reset_forgets_also_inside_of_a_call():
    """What comes after still counts."""
    flops = FlopHook()
    net = Net(lambda x: (flops.reset(), x)[1])
    with flops:
        net(batch())

    assert own_flops(flops) == {("head", "forward"): HEAD}


# What is counted.


def test_operators_without_a_formula_are_listed():
    """With who ran them, how often and why; those that do no matrix work are not."""
    net = nn.Bilinear(4, 4, 3)
    with FlopHook() as flops:
        for _ in range(2):
            net(batch(), batch()).softmax(-1)
        _ = torch.linalg.inv(torch.eye(3)) @ torch.eye(3).to_sparse()

    found = {(row.path, row.operator): (row.calls, row.reason) for row in flops.uncounted()}
    assert found == {
        ("", "aten._trilinear"): (2, "no formula"),
        (None, "aten.linalg_inv_ex"): (1, "no formula"),
        (None, "aten.mm"): (1, "not dense"),
    }
    assert flops.total_flops() == 0


def test_sparse_and_nested_tensors_are_listed():
    """A formula for dense tensors would count what is not done."""
    sparse = torch.eye(4).to_sparse()
    nested = torch.nested.nested_tensor([torch.ones(2, 4), torch.ones(3, 4)], layout=torch.jagged)
    with FunctionFlopHook() as flops:
        _ = torch.mm(sparse, torch.ones(4, 4))
        assert flops.total_flops() == 0
        F.linear(nested, torch.ones(5, 4))
    assert {row.operator for row in flops.uncounted()} <= {"aten.mm", "aten._sparse_addmm"}
    assert flops.uncounted()
    assert flops.total_flops() == 2 * 5 * 4 * 5  # a jagged tensor's five rows


def twice(x: torch.Tensor) -> torch.Tensor:
    return (x @ x) * 2


def test_operators_of_the_program_count_by_its_formula():
    """Without one they are listed, since nobody knows what they do."""
    operator = torch.library.custom_op("hookline_tests::own", twice, mutates_args=())
    packet = torch.ops.hookline_tests.own
    with FunctionFlopHook() as flops:
        operator(torch.ones(4, 4))
        assert [(row.operator, row.reason) for row in flops.uncounted()] == [
            ("hookline_tests.own", "no formula")
        ]
        register_flop_formula(packet)(lambda shape, out_shape=None, **_: 2 * shape[0] ** 3)
        operator(torch.ones(4, 4))
    del flop_registry[packet]
    assert flops.total_flops() == 128


def test_r2_a_formula_that_raises_does_no_harm():
    """The operator is listed with what was wrong; the program goes on."""
    operator = torch.library.custom_op("hookline_tests::wrong", twice, mutates_args=())
    packet = torch.ops.hookline_tests.wrong
    register_flop_formula(packet)(lambda *_, **__: 1 // 0)
    with FunctionFlopHook() as flops:
        assert operator(torch.eye(4)).sum() == 8
    del flop_registry[packet]
    (row,) = flops.uncounted()
    assert "ZeroDivisionError" in row.reason


@pytest.mark.usefixtures("fresh_compiler")
def test_operators_that_take_functions_are_listed():
    """What they run inside is not known."""
    from torch._higher_order_ops import while_loop

    with FunctionFlopHook() as flops:
        _, out = while_loop(
            lambda i, _: i < 3,
            lambda i, x: (i + 1, x @ torch.eye(4)),
            (torch.tensor(0), batch()),
        )
    assert torch.equal(out, batch())
    assert [(row.operator, row.calls) for row in flops.uncounted()] == [("while_loop", 1)]


def test_meta_tensors_count():
    """No numbers are needed."""
    with torch.device("meta"), FlopHook() as flops:
        Net()(torch.empty(3, 4)).sum().backward()
    assert own_flops(flops) == STEP


def test_vmap_counts_the_whole_batch():
    """What runs in the end is one product of all."""
    weight = torch.ones(4, 2)
    with FlopHook() as flops:
        torch.vmap(lambda x: x @ weight)(torch.ones(5, 3, 4))
        torch.func.grad(lambda x: (x @ weight).sum())(batch())
    assert flops.total_flops() == 5 * HEAD + 2 * HEAD


def test_autocast_counts_what_runs():
    """In the type that it chooses."""
    with torch.autocast("cpu", torch.bfloat16), FlopHook() as flops:
        Net()(batch()).sum().backward()
    assert own_flops(flops) == STEP
